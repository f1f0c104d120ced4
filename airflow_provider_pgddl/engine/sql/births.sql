-- name: known
-- An older journal does not know of births.
SELECT run, pg_catalog.to_jsonb(p) -> 'unborn', pg_catalog.to_jsonb(p) ->> 'born_of', cut_over_at IS NOT NULL, finished_at IS NOT NULL
FROM pgddl.pipelines p WHERE pipeline = %s

-- name: may_read
-- No row where there is no journal. By name one could not even be asked for without USAGE on its schema.
SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = 'pipelines'
WHERE n.nspname = 'pgddl'

-- name: living
SELECT pipeline FROM pgddl.pipelines p
WHERE pg_catalog.to_jsonb(p) ->> 'born_of' = %s AND pg_catalog.to_jsonb(p) ->> 'unborn' IS NULL
  AND cut_over_at IS NULL AND finished_at IS NULL

-- name: feeding
SELECT EXISTS (SELECT FROM pgddl.pipelines p
               WHERE pg_catalog.to_jsonb(p) ->> 'born_of' = %s AND cut_over_at IS NULL AND finished_at IS NULL)

-- name: make_unborn
INSERT INTO pgddl.pipelines AS p (pipeline, job, config, source_system, source_timeline, source_database, born_of, unborn)
VALUES (%(pipeline)s, 'migrate', %(config)s, %(system)s, %(timeline)s, %(database)s, %(of)s, '{}')
ON CONFLICT (pipeline) DO UPDATE
SET run = p.run + 1, job = excluded.job, config = excluded.config, source_system = excluded.source_system,
    source_timeline = excluded.source_timeline, source_database = excluded.source_database, born_of = excluded.born_of, unborn = pg_catalog.to_jsonb(p),
    verify_needed = NULL, cut_over_at = NULL, finished_at = NULL, reverted_at = NULL, gone_back_at = NULL,
    acknowledged = 0, ddl_position = NULL, ddl_lsn = NULL, ddl_left_out = NULL, slot_lsn = NULL
RETURNING run

-- name: be_born
UPDATE pgddl.pipelines
SET unborn = NULL, ddl_position = %(position)s::pg_catalog.pg_snapshot, ddl_lsn = %(lsn)s::pg_catalog.pg_lsn
WHERE pipeline = %(pipeline)s AND unborn IS NOT NULL

-- name: unmake
UPDATE pgddl.pipelines p
SET run = was.run, job = was.job, config = was.config, source_system = was.source_system, source_timeline = was.source_timeline,
    source_database = was.source_database, born_of = was.born_of, unborn = NULL, verify_needed = was.verify_needed, cut_over_at = was.cut_over_at,
    finished_at = was.finished_at, reverted_at = was.reverted_at, gone_back_at = was.gone_back_at,
    acknowledged = coalesce(was.acknowledged, 0), ddl_position = was.ddl_position, ddl_lsn = was.ddl_lsn, ddl_left_out = was.ddl_left_out
FROM pg_catalog.jsonb_populate_record(NULL::pgddl.pipelines, (SELECT unborn FROM pgddl.pipelines WHERE pipeline = %(pipeline)s)) was
WHERE p.pipeline = %(pipeline)s

-- name: unmake_events
DELETE FROM pgddl.ddl_events WHERE pipeline = %s AND run = %s

-- name: unmake_versions
DELETE FROM pgddl.schema_versions WHERE pipeline = %s AND run = %s

-- name: unmake_stage_runs
DELETE FROM pgddl.stage_runs WHERE pipeline = %s AND run = %s

-- name: unmake_tables
DELETE FROM pgddl.tables WHERE pipeline = %s AND run = %s

-- name: stage_done
INSERT INTO pgddl.stage_runs (job_id, pipeline, run, stage, token, finished_at, result)
VALUES (%s, %s, %s, %s, %s, pg_catalog.clock_timestamp(), %s)

-- name: end_gone_back
UPDATE pgddl.pipelines SET gone_back_at = pg_catalog.clock_timestamp(), finished_at = coalesce(finished_at, pg_catalog.clock_timestamp())
WHERE pipeline = %s
