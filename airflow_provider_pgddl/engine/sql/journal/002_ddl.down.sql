ALTER TABLE pgddl.tables
    DROP CONSTRAINT tables_pipeline_run_source_oid_key, ADD UNIQUE (pipeline, run, schema_name, table_name);
ALTER TABLE pgddl.pipelines DROP ddl_position, DROP ddl_lsn;
DROP TABLE pgddl.killed_blockers;
DROP TABLE pgddl.schema_versions;
DROP TABLE pgddl.ddl_attempts;
DELETE FROM pgddl.ddl_events WHERE captured_id IS NOT NULL;
ALTER TABLE pgddl.ddl_events
    DROP captured_id, DROP captured, DROP statements, DROP rule, DROP notes, DROP rebuilt, DROP no_transaction,
    DROP object_kind, DROP touches, DROP lsn, DROP previous_version, DROP previous_mask, DROP mask, DROP recorded_at,
    DROP started_at;
