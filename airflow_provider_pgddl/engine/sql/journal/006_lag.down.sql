ALTER TABLE pgddl.windows DROP lsn;
