-- What of the journal opens or closes the schema gate: read by whoever waits for a change.

-- name: journal
SELECT pg_catalog.to_regclass('pgddl.pipelines') IS NOT NULL

-- name: run
SELECT run, cut_over_at::text, verify_needed FROM pgddl.pipelines WHERE pipeline = %s

-- name: tables
SELECT t.schema_name, t.table_name, t.plan ->> 'copy_schema', t.plan ->> 'copy_name', t.state
FROM pgddl.tables t JOIN pgddl.pipelines p ON p.pipeline = t.pipeline AND p.run = t.run
WHERE p.pipeline = %s
ORDER BY t.schema_name COLLATE "C", t.table_name COLLATE "C"

-- name: statuses
SELECT schema_name, table_name, status, findings::text
FROM pgddl.schema_status WHERE pipeline = %s
ORDER BY schema_name COLLATE "C", table_name COLLATE "C"

-- name: events
SELECT e.id, e.status FROM pgddl.ddl_events e JOIN pgddl.pipelines p ON p.pipeline = e.pipeline AND p.run = e.run
WHERE p.pipeline = %s AND e.status IN ('failed', 'unhandled', 'awaiting_approval')
ORDER BY e.id
