-- How many windows a line stands for: those that are long past are summed up in one.
ALTER TABLE pgddl.windows ADD COLUMN windows bigint NOT NULL DEFAULT 1;
-- It has no key: somebody's publication of all tables would refuse that what was counted is summed up.
ALTER TABLE pgddl.schema_counters REPLICA IDENTITY FULL;
