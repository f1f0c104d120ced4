DROP TABLE pgddl.finished;
DROP TABLE pgddl.finishes;
