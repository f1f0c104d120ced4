ALTER TABLE pgddl.windows DROP COLUMN windows;
