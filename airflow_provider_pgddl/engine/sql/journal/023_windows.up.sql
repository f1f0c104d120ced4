-- How many windows a line stands for: those that are long past are summed up in one.
ALTER TABLE pgddl.windows ADD COLUMN windows bigint NOT NULL DEFAULT 1;
