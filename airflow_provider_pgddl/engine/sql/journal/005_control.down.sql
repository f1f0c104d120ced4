DROP TABLE pgddl.controls;
