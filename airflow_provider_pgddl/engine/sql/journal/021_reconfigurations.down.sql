DROP TABLE pgddl.reconfigurations;
