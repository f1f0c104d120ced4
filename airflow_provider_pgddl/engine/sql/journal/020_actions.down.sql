DROP TABLE pgddl.rehearsals;
DROP TABLE pgddl.actions;
