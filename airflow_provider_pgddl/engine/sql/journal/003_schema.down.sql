ALTER TABLE pgddl.tables DROP removed_columns, DROP copy_version, DROP copy_physical;
DROP TABLE pgddl.schema_shown;
DROP TABLE pgddl.schema_counters;
DROP TABLE pgddl.schema_status_history;
-- Findings were sentences before.
UPDATE pgddl.schema_status s SET findings = (
    SELECT coalesce(pg_catalog.jsonb_agg(
               CASE pg_catalog.jsonb_typeof(f.value) WHEN 'object' THEN f.value -> 'what' ELSE f.value END
               ORDER BY f.number), '[]')
    FROM pg_catalog.jsonb_array_elements(s.findings) WITH ORDINALITY f(value, number));
ALTER TABLE pgddl.schema_status
    DROP resolution, DROP source_fingerprint, DROP target_fingerprint, DROP notified_at;
