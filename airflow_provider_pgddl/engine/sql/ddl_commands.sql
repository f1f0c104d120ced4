-- name: exceptions
-- This pipeline's and those that concern all; `relation` as it is called now, null where it is gone.
SELECT e.id, e.happened_at, e.tag, e.role, e.sqlstate, e.what, e.statement, c.relation, e.resolved_at, e.note
FROM pgddl.exceptions e
LEFT JOIN LATERAL (SELECT n.nspname || '.' || r.relname AS relation
                   FROM pg_catalog.pg_class r JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
                   WHERE r.oid = e.relation) c ON true
WHERE (e.pipeline IS NULL OR e.pipeline = %(pipeline)s) AND (%(resolved)s OR e.resolved_at IS NULL)
ORDER BY e.id

-- name: captures_ddl
-- How this pipeline's DDL is captured here, and whether it is switched on.
SELECT ddl, ddl_enabled FROM pgddl.captures WHERE pipeline = %s

-- name: not_seen_by
-- Other pipelines that have not read as far as this exception: it must not be over before they know of it.
SELECT c.pipeline FROM pgddl.captures c, pgddl.exceptions e
WHERE e.id = %(id)s AND e.xid IS NOT NULL AND c.ddl <> 'off' AND c.pipeline <> %(pipeline)s
  AND (c.ddl_position IS NULL OR NOT pg_catalog.pg_visible_in_snapshot(e.xid, c.ddl_position))
ORDER BY 1

-- name: is_set_up
SELECT pg_catalog.to_regclass('pgddl.ddl_queue') IS NOT NULL

-- name: schemas
SELECT nspname::text FROM pg_catalog.pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' ORDER BY 1

-- name: lost_event
-- Where an exception of the source is recorded as an event that nobody could handle.
SELECT id FROM pgddl.ddl_events
WHERE pipeline = %s AND run = %s AND captured_id = %s AND status NOT IN ('applied', 'skipped', 'resolved')
