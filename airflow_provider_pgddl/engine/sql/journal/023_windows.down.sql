ALTER TABLE pgddl.schema_counters REPLICA IDENTITY DEFAULT;
ALTER TABLE pgddl.windows DROP COLUMN windows;
