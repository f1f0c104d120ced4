-- name: pipeline
-- Setup asks this before it brings an older journal up to date, which does not have the last columns.
SELECT run, job, config, source_system, source_timeline, window_no, verify_needed, cut_over_at, finished_at,
       coalesce((pg_catalog.to_jsonb(p) ->> 'acknowledged')::bigint, 0) AS acknowledged,
       (pg_catalog.to_jsonb(p) ->> 'reverted_at')::timestamptz AS reverted_at, pg_catalog.to_jsonb(p) ->> 'born_of' AS born_of,
       pg_catalog.to_jsonb(p) ->> 'unborn' IS NOT NULL AS unborn, (pg_catalog.to_jsonb(p) ->> 'source_database')::oid AS source_database
FROM pgddl.pipelines p WHERE pipeline = %s

-- name: insert_pipeline
INSERT INTO pgddl.pipelines (pipeline, job, config, source_system, source_timeline, source_database) VALUES (%s, %s, %s, %s, %s, %s)

-- name: next_run
UPDATE pgddl.pipelines
SET run = run + 1, job = %(job)s, config = %(config)s, source_system = %(system)s, source_timeline = %(timeline)s,
    source_database = %(database)s, verify_needed = NULL, cut_over_at = NULL, finished_at = NULL, reverted_at = NULL, gone_back_at = NULL, born_of = NULL, unborn = NULL,
    window_no = 0, acknowledged = 0, ddl_position = NULL, ddl_lsn = NULL, ddl_left_out = NULL, slot_lsn = NULL
WHERE pipeline = %(pipeline)s

-- name: set_config
UPDATE pgddl.pipelines SET config = %s WHERE pipeline = %s

-- name: set_verify_needed
UPDATE pgddl.pipelines SET verify_needed = %s WHERE pipeline = %s

-- name: set_source_state
UPDATE pgddl.pipelines SET source_timeline = %s, source_database = %s, acknowledged = %s WHERE pipeline = %s

-- name: set_source_database
UPDATE pgddl.pipelines SET source_database = %s WHERE pipeline = %s

-- name: note_acknowledged
UPDATE pgddl.pipelines SET acknowledged = %(acknowledged)s WHERE pipeline = %(pipeline)s AND acknowledged < %(acknowledged)s

-- name: note_lost_windows
-- Numbers are committed here before they are acknowledged: one that is not known here was, and is lost.
UPDATE pgddl.pipelines
SET verify_needed = coalesce(verify_needed, pg_catalog.format(
    '%%s %%s, the target knows of %%s only: it was failed over to an older state, and what it had since is lost%%s',
    %(lost)s::text, %(acknowledged)s::bigint, window_no,
    CASE WHEN config #>> '{capture,ddl}' = 'wal' THEN '; so may DDL be that it had followed: compare both schemas' END))
WHERE pipeline = %(pipeline)s AND window_no < %(acknowledged)s

-- name: next_window
UPDATE pgddl.pipelines
SET window_no = greatest(window_no, %(after)s) + 1, acknowledged = greatest(acknowledged, %(after)s)
WHERE pipeline = %(pipeline)s RETURNING window_no

-- name: set_cut_over
UPDATE pgddl.pipelines SET cut_over_at = pg_catalog.clock_timestamp() WHERE pipeline = %s AND cut_over_at IS NULL

-- name: set_reverted
UPDATE pgddl.pipelines SET cut_over_at = NULL, reverted_at = pg_catalog.clock_timestamp() WHERE pipeline = %s

-- name: finish_again
UPDATE pgddl.ddl_events e SET status = 'pending', applied_at = NULL
FROM pgddl.pipelines p
WHERE p.pipeline = %s AND e.pipeline = p.pipeline AND e.run = p.run AND e.phase = 'finish' AND e.status = 'applied'
  AND e.captured_id IS NULL

-- name: finish_tables_again
UPDATE pgddl.ddl_events e SET status = 'pending', applied_at = NULL
FROM pgddl.pipelines p
WHERE p.pipeline = %s AND e.pipeline = p.pipeline AND e.run = p.run AND e.phase IN ('foreign_key', 'finish') AND e.status = 'applied'
  AND e.captured_id IS NULL AND e.table_id IS NOT NULL

-- name: insert_reverse
INSERT INTO pgddl.reverses (table_id, source_oid, log_table, plan, version, physical, facts, foreign_keys)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)

-- name: reverses_there
SELECT pg_catalog.to_regclass('pgddl.reverses') IS NOT NULL

-- name: reverses
SELECT r.table_id, r.id, t.schema_name AS schema, t.table_name AS name, r.source_oid AS oid, r.log_table, r.plan, r.version,
       r.physical, r.facts, r.foreign_keys, r.silenced
FROM pgddl.reverses r JOIN pgddl.tables t ON t.id = r.table_id
WHERE t.pipeline = %s AND t.run = %s ORDER BY t.schema_name COLLATE "C", t.table_name COLLATE "C"

-- name: set_silenced
UPDATE pgddl.reverses SET silenced = %s WHERE id = %s

-- name: forget_reverse
DELETE FROM pgddl.reverses WHERE id = %s

-- name: lock_cut_over
SELECT cut_over_at IS NOT NULL FROM pgddl.pipelines WHERE pipeline = %s FOR UPDATE

-- name: set_finished
UPDATE pgddl.pipelines SET finished_at = pg_catalog.clock_timestamp() WHERE pipeline = %s

-- name: forget_versions
DELETE FROM pgddl.schema_versions WHERE pipeline = %s AND run < %s

-- name: forget_windows
DELETE FROM pgddl.windows WHERE pipeline = %s AND run < %s

-- name: insert_window
INSERT INTO pgddl.windows (pipeline, window_no, run, keys, rows, pending, taken_at, lsn) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)

-- name: last_complete
SELECT lsn::text, taken_at FROM pgddl.windows
WHERE pipeline = %s AND run = %s AND pending = 0 AND lsn IS NOT NULL
ORDER BY window_no DESC LIMIT 1

-- name: last_read
SELECT lsn::text FROM pgddl.windows WHERE pipeline = %s AND run = %s ORDER BY window_no DESC LIMIT 1

-- name: furthest
-- Where the source's WAL was for certain, on its disk.
SELECT greatest(slot_lsn, ddl_lsn, (
    SELECT w.lsn FROM pgddl.windows w
    WHERE w.pipeline = p.pipeline AND w.run = p.run AND w.lsn IS NOT NULL ORDER BY w.window_no DESC LIMIT 1))::text
FROM pgddl.pipelines p WHERE pipeline = %s

-- name: forget_lsns
UPDATE pgddl.windows SET lsn = NULL WHERE pipeline = %s AND run = %s AND lsn > %s::pg_lsn

-- name: windows
-- An older journal has no line that stands for several.
SELECT coalesce(sum((pg_catalog.to_jsonb(w) ->> 'windows')::bigint), count(*))::bigint AS windows,
       coalesce(sum(keys), 0)::bigint AS keys, coalesce(sum(rows), 0)::bigint AS rows, max(finished_at) AS last
FROM pgddl.windows w WHERE pipeline = %s AND run = %s

-- name: sum_up_windows
-- In the newest line up to there, but for those that something is still asked of.
WITH past AS (
    SELECT w.window_no FROM pgddl.windows w
    WHERE w.pipeline = %(pipeline)s AND w.run = %(run)s AND w.window_no <= %(upto)s
      AND w.window_no IS DISTINCT FROM (
          SELECT window_no FROM pgddl.windows WHERE pipeline = %(pipeline)s AND run = %(run)s AND lsn IS NOT NULL
          ORDER BY window_no DESC LIMIT 1)
      AND w.window_no IS DISTINCT FROM (
          SELECT window_no FROM pgddl.windows WHERE pipeline = %(pipeline)s AND run = %(run)s AND lsn IS NOT NULL AND pending = 0
          ORDER BY window_no DESC LIMIT 1)
), newest AS (
    SELECT max(window_no) AS window_no FROM past
), gone AS (
    DELETE FROM pgddl.windows w USING past, newest
    WHERE w.pipeline = %(pipeline)s AND w.window_no = past.window_no AND w.window_no <> newest.window_no
    RETURNING w.keys, w.rows, w.windows
)
UPDATE pgddl.windows w SET keys = w.keys + s.keys, rows = w.rows + s.rows, windows = w.windows + s.windows, lsn = NULL
FROM newest, (SELECT sum(keys)::bigint AS keys, sum(rows)::bigint AS rows, sum(windows)::bigint AS windows FROM gone) s
WHERE w.pipeline = %(pipeline)s AND w.window_no = newest.window_no AND s.windows IS NOT NULL

-- name: start_stage
INSERT INTO pgddl.stage_runs (job_id, pipeline, run, stage, token) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (job_id) DO UPDATE SET token = excluded.token, started_at = pg_catalog.clock_timestamp(), finished_at = NULL, result = NULL

-- name: finish_stage
UPDATE pgddl.stage_runs SET finished_at = pg_catalog.clock_timestamp(), result = %s WHERE job_id = %s

-- name: forget_stages
-- Of a stage that runs again and again, the newest ones, what it did last, and what writers waited for longest are
-- enough. A hundred at a time: most runs only look at an index. Which is newer tokens tell, here and below: a server's clock may be
-- set back.
WITH old AS MATERIALIZED (
    SELECT job_id FROM pgddl.stage_runs WHERE pipeline = %(pipeline)s AND run = %(run)s AND stage = %(stage)s
    ORDER BY token DESC, started_at DESC OFFSET %(kept)s
)
DELETE FROM pgddl.stage_runs r USING old WHERE r.job_id = old.job_id AND (SELECT count(*) FROM old) >= 100
  AND r.job_id IS DISTINCT FROM (
      SELECT job_id FROM pgddl.stage_runs
      WHERE pipeline = %(pipeline)s AND run = %(run)s AND stage = %(stage)s AND result ->> 'state' = 'done'
      ORDER BY token DESC, finished_at DESC LIMIT 1)
  AND r.job_id IS DISTINCT FROM (
      SELECT job_id FROM pgddl.stage_runs
      WHERE pipeline = %(pipeline)s AND run = %(run)s AND stage = %(stage)s AND result -> 'figures' ? 'longest_wait_ms'
      ORDER BY (result -> 'figures' ->> 'longest_wait_ms')::int DESC LIMIT 1)

-- name: stage_result
SELECT result FROM pgddl.stage_runs WHERE job_id = %s

-- name: stage_done
SELECT EXISTS (SELECT FROM pgddl.stage_runs
               WHERE pipeline = %s AND run = %s AND stage = %s AND finished_at IS NOT NULL AND result ->> 'state' = 'done')

-- name: stage_finished
SELECT EXISTS (SELECT FROM pgddl.stage_runs WHERE pipeline = %s AND run = %s AND stage = %s AND finished_at IS NOT NULL)

-- name: last_done
SELECT result FROM pgddl.stage_runs
WHERE pipeline = %(pipeline)s AND run = %(run)s AND stage = %(stage)s AND finished_at IS NOT NULL AND result ->> 'state' = 'done'
  AND (%(within)s::float8 IS NULL OR finished_at > pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => %(within)s))
ORDER BY token DESC, finished_at DESC LIMIT 1

-- name: stages
SELECT DISTINCT ON (stage) stage, started_at, finished_at, result
FROM pgddl.stage_runs WHERE pipeline = %s AND run = %s ORDER BY stage, token DESC, started_at DESC

-- name: results
SELECT job_id, result FROM pgddl.stage_runs WHERE pipeline = %s AND run = %s AND stage = %s
ORDER BY token DESC, started_at DESC LIMIT 100

-- name: longest_wait
-- In milliseconds: the longest that writers may have waited for a lock of ours, and in which stage.
SELECT (result -> 'figures' ->> 'longest_wait_ms')::int AS ms, stage
FROM pgddl.stage_runs WHERE pipeline = %s AND run = %s AND result -> 'figures' ? 'longest_wait_ms' ORDER BY ms DESC LIMIT 1

-- name: tables
SELECT id, schema_name AS schema, table_name AS name, source_oid AS oid, log_table, plan, version, fingerprint, physical, state,
       planned_at IS NOT NULL AS planned, removed_columns, copy_physical
FROM pgddl.tables WHERE pipeline = %s AND run = %s ORDER BY schema_name COLLATE "C", table_name COLLATE "C"

-- name: insert_table
INSERT INTO pgddl.tables (pipeline, run, schema_name, table_name, source_oid, log_table, plan, version, fingerprint, physical)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: replan_table
UPDATE pgddl.tables
SET schema_name = %(schema)s, table_name = %(name)s, log_table = %(log)s, plan = %(plan)s, version = %(version)s,
    fingerprint = %(fingerprint)s, physical = %(physical)s, state = %(state)s, removed_columns = %(removed)s,
    copy_physical = %(copy)s
WHERE id = %(id)s

-- name: forget_chunks
-- Those of partitions that are the table's no longer, and have not been read.
DELETE FROM pgddl.chunks WHERE table_id = %s AND done_at IS NULL AND leaf <> ALL(%s::oid[])

-- name: rename_chunks
UPDATE pgddl.chunks SET leaf_schema = %s, leaf_name = %s WHERE table_id = %s AND leaf = %s

-- name: stuck
-- What waits for a person, and what waits behind it, in their order.
SELECT e.id, e.event ->> 'tag' AS tag, e.status, coalesce(e.note, e.rule) AS note, e.touches, e.object_kind, e.statement, p.run,
       p.config
FROM pgddl.ddl_events e JOIN pgddl.pipelines p ON p.pipeline = e.pipeline AND p.run = e.run
WHERE e.pipeline = %s AND e.captured_id IS NOT NULL
  AND e.status IN ('pending', 'failed', 'unhandled', 'awaiting_approval', 'applying')
ORDER BY e.seq

-- name: has_made
SELECT EXISTS (SELECT FROM pgddl.ddl_events e CROSS JOIN LATERAL pg_catalog.jsonb_array_elements(e.captured -> 'objects') made(thing)
               WHERE e.pipeline = %s AND e.run = %s AND e.captured_id IS NOT NULL AND e.status = 'applied'
                 AND thing @> pg_catalog.jsonb_build_object('classid', 'pg_class', 'objid', %s::bigint, 'objsubid', 0)
                 AND thing ->> 'tag' IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO')
                 AND NOT EXISTS (SELECT FROM pg_catalog.jsonb_array_elements_text(e.notes) n(note) WHERE pg_catalog.starts_with(n.note, %s)))

-- name: found
SELECT DISTINCT (made.thing ->> 'objid')::bigint
FROM pgddl.ddl_events e CROSS JOIN LATERAL pg_catalog.jsonb_array_elements(e.captured -> 'objects') made(thing)
WHERE e.pipeline = %s AND e.run = %s AND e.captured_id IS NOT NULL AND e.status = 'applied'
  AND thing ->> 'classid' = 'pg_class' AND thing ->> 'objsubid' = '0' AND (thing ->> 'objid')::bigint = ANY(%s::bigint[])
  AND thing ->> 'tag' IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO')
  AND EXISTS (SELECT FROM pg_catalog.jsonb_array_elements_text(e.notes) n(note) WHERE pg_catalog.starts_with(n.note, %s))
  AND NOT EXISTS (SELECT FROM pgddl.tables t WHERE t.pipeline = e.pipeline AND t.run = e.run
                  AND t.source_oid::bigint = (made.thing ->> 'objid')::bigint AND t.state <> 'captured')

-- name: was_dropped
SELECT EXISTS (SELECT FROM pgddl.ddl_events e
               WHERE e.pipeline = %s AND e.run = %s AND e.captured_id IS NOT NULL AND e.status = 'applied'
                 AND e.captured -> 'dropped' @> pg_catalog.jsonb_build_array(
                     pg_catalog.jsonb_build_object('classid', 'pg_class', 'objid', %s::bigint, 'objsubid', 0)))

-- name: created
-- By a command of the source that was captured, whatever has become of it.
SELECT o.oid FROM unnest(%(oids)s::bigint[]) o(oid)
WHERE EXISTS (SELECT FROM pgddl.ddl_events e
              WHERE e.pipeline = %(pipeline)s AND e.run = %(run)s
                AND e.captured ->> 'tag' IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'CREATE SCHEMA')
                AND e.captured -> 'objects' @> pg_catalog.jsonb_build_array(
                    pg_catalog.jsonb_build_object('classid', 'pg_class', 'objid', o.oid)))

-- name: detached
SELECT DISTINCT was.oid::bigint
FROM pgddl.ddl_events e
CROSS JOIN LATERAL pg_catalog.jsonb_each(e.previous_version) was(oid, version)
CROSS JOIN LATERAL (SELECT e.captured -> 'tables' -> was.oid) now(version)
WHERE e.pipeline = %s AND e.run = %s AND e.captured_id IS NOT NULL AND e.status IN ('applied', 'resolved')
  AND was.version ->> 'bound' IS NOT NULL AND now.version IS NOT NULL AND now.version ->> 'bound' IS NULL

-- name: born_as_partitions
-- Partitions of which the first that was ever seen is their creation, and that were nothing else since; and what lies between them
-- and their root had its place by then.
SELECT o.oid FROM unnest(%(oids)s::bigint[]) o(oid)
CROSS JOIN LATERAL (
    SELECT e.seq, e.captured ->> 'tag', e.captured -> 'tables' -> o.oid::text FROM pgddl.ddl_events e
    WHERE e.pipeline = %(pipeline)s AND e.run = %(run)s AND e.captured -> 'tables' ? o.oid::text ORDER BY e.seq LIMIT 1) first(seq, tag, made)
WHERE tag = 'CREATE TABLE' AND made ->> 'bound' IS NOT NULL
  AND NOT EXISTS (
    SELECT FROM pgddl.ddl_events e CROSS JOIN LATERAL (SELECT e.captured -> 'tables' -> o.oid::text) later(was)
    WHERE e.pipeline = %(pipeline)s AND e.run = %(run)s AND e.captured -> 'tables' ? o.oid::text
      AND (was ->> 'bound' IS NULL OR was -> 'parents' IS DISTINCT FROM made -> 'parents'))
  AND NOT EXISTS (
    SELECT FROM unnest(%(leaves)s::bigint[], %(between)s::bigint[]) b(leaf, oid)
    JOIN pgddl.ddl_events e ON e.captured -> 'tables' ? b.oid::text
    WHERE b.leaf = o.oid AND e.pipeline = %(pipeline)s AND e.run = %(run)s AND e.seq > first.seq
      AND (e.captured -> 'tables' -> b.oid::text ->> 'bound' IS NULL OR e.previous_version -> b.oid::text ->> 'bound' IS NULL))

-- name: set_state
UPDATE pgddl.tables SET state = %s WHERE id = ANY(%s)

-- name: set_planned
UPDATE pgddl.tables SET planned_at = pg_catalog.clock_timestamp(), physical = %s WHERE id = %s

-- name: set_copy
UPDATE pgddl.tables SET plan = %s, copy_physical = %s WHERE id = %s

-- name: captured_statements
SELECT captured, statements FROM pgddl.ddl_events
WHERE pipeline = %s AND run = %s AND captured_id IS NOT NULL AND status = 'applied' AND captured -> 'tables' ? %s
  AND NOT EXISTS (SELECT FROM pg_catalog.jsonb_array_elements_text(notes) n(note) WHERE pg_catalog.starts_with(n.note, %s))
ORDER BY seq

-- name: type_alterations
SELECT captured FROM pgddl.ddl_events
WHERE pipeline = %s AND run = %s AND captured_id IS NOT NULL AND captured ->> 'tag' = 'ALTER TYPE'
ORDER BY seq

-- name: unplan
UPDATE pgddl.tables SET planned_at = NULL WHERE id = %s

-- name: set_physical
UPDATE pgddl.tables SET physical = %s WHERE id = %s

-- name: set_physical_back
UPDATE pgddl.reverses SET physical = %s WHERE id = %s

-- name: delete_table
DELETE FROM pgddl.tables WHERE id = %s

-- name: insert_chunks
INSERT INTO pgddl.chunks (table_id, leaf, leaf_schema, leaf_name, filenode, first_block, end_block, bytes)
SELECT %s, %s, %s, %s, %s, s, least(s + %s::bigint, %s::bigint), %s
FROM pg_catalog.generate_series(0::bigint, %s::bigint - 1, %s::bigint) s

-- name: insert_ordered_chunk
INSERT INTO pgddl.chunks (table_id, leaf, leaf_schema, leaf_name, filenode, first_block, end_block, bytes, kind, low, high)
VALUES (%s, %s, %s, %s, %s, 0, 0, %s, %s, %s, %s)

-- name: analyze_chunks
ANALYZE pgddl.chunks

-- name: delete_chunks
DELETE FROM pgddl.chunks WHERE table_id = %s

-- name: claim_chunk
-- By the index of those that are not done, and only the one that is found is looked at further. The planner would go
-- over all tables with a mismatch for each chunk, if it were not for OFFSET. Which tables the worker may take it says by
-- ranges of their ids: as a list, those of 10,000 tables would be 60 kB with each claim.
SELECT c.id, c.table_id, c.leaf, c.leaf_schema, c.leaf_name, c.filenode, c.first_block, c.end_block, c.kind, c.low, c.high
FROM pgddl.chunks c
WHERE %s::int8multirange OPERATOR(pg_catalog.@>) c.table_id AND c.done_at IS NULL AND c.id <> ALL(%s)
  AND (c.kind = 'blocks' OR NOT EXISTS (SELECT FROM pgddl.chunks e
                                        WHERE e.table_id = c.table_id AND e.done_at IS NULL AND e.id < c.id))
  AND NOT EXISTS (SELECT FROM pgddl.tables t JOIN pgddl.schema_status s USING (pipeline, schema_name, table_name)
                  WHERE t.id = c.table_id AND s.status = 'mismatch' OFFSET 0)
ORDER BY c.id LIMIT 1 FOR UPDATE OF c SKIP LOCKED

-- name: claim_small_tables
-- Behind a small chunk that was claimed, others: each the only one of its table, of those that may be copied together.
-- Only the next few are looked at: where no table is small, that is all that each claim pays for it.
SELECT c.id, c.table_id, c.leaf, c.leaf_schema, c.leaf_name, c.filenode, c.first_block, c.end_block, c.kind, c.low, c.high
FROM pgddl.chunks c
WHERE %(small)s::int8multirange OPERATOR(pg_catalog.@>) c.table_id
  AND %(going_on)s::int8multirange OPERATOR(pg_catalog.@>) c.table_id
  AND c.done_at IS NULL AND c.id > %(first)s::bigint AND c.id <= %(last)s::bigint AND c.id <> ALL(%(but)s::bigint[])
  AND c.bytes <= %(bytes)s AND c.kind = 'blocks'
  AND EXISTS (SELECT FROM pgddl.chunks f WHERE f.id = %(first)s AND f.bytes <= %(bytes)s)
  AND NOT EXISTS (SELECT FROM pgddl.chunks o WHERE o.table_id = c.table_id AND o.id <> c.id)
  AND NOT EXISTS (SELECT FROM pgddl.tables t JOIN pgddl.schema_status s USING (pipeline, schema_name, table_name)
                  WHERE t.id = c.table_id AND s.status = 'mismatch' OFFSET 0)
ORDER BY c.id LIMIT %(count)s FOR UPDATE OF c SKIP LOCKED

-- name: cut_chunk
-- Its first blocks stay its own, so many of them; the others become chunks of as many.
WITH rest AS (
    INSERT INTO pgddl.chunks (table_id, leaf, leaf_schema, leaf_name, filenode, first_block, end_block, bytes)
    SELECT c.table_id, c.leaf, c.leaf_schema, c.leaf_name, c.filenode, s, least(s + %(blocks)s::bigint, c.end_block),
           c.bytes * (least(s + %(blocks)s::bigint, c.end_block) - s) / (c.end_block - c.first_block)
    FROM pgddl.chunks c
    CROSS JOIN LATERAL pg_catalog.generate_series(c.first_block + %(blocks)s, c.end_block - 1, %(blocks)s::bigint) s
    WHERE c.id = %(id)s
)
UPDATE pgddl.chunks SET end_block = first_block + %(blocks)s, bytes = bytes * %(blocks)s / (end_block - first_block)
WHERE id = %(id)s

-- name: chunks_done
UPDATE pgddl.chunks c
SET done_at = pg_catalog.clock_timestamp(), rows = d.rows, xid = pg_catalog.pg_current_xact_id(), snapshot = %(at)s
FROM ROWS FROM (pg_catalog.unnest(%(ids)s::bigint[]), pg_catalog.unnest(%(rows)s::bigint[])) d (id, rows) WHERE c.id = d.id

-- name: chunks_left
SELECT t.id AS table_id, count(*) FILTER (WHERE c.done_at IS NULL) AS chunks,
       coalesce(sum(c.bytes) FILTER (WHERE c.done_at IS NULL), 0)::bigint AS bytes
FROM pgddl.tables t JOIN pgddl.chunks c ON c.table_id = t.id
WHERE t.id = ANY(%s) GROUP BY t.id

-- name: chunk_bytes
SELECT table_id, sum(bytes)::bigint AS bytes FROM pgddl.chunks WHERE table_id = ANY(%s) GROUP BY table_id

-- name: chunk_progress
SELECT count(*) AS chunks, count(done_at) AS chunks_done, coalesce(sum(rows), 0)::bigint AS rows_done,
       coalesce(sum(bytes), 0)::bigint AS bytes, coalesce(sum(bytes) FILTER (WHERE done_at IS NOT NULL), 0)::bigint AS bytes_done,
       (pg_catalog.min(ARRAY[id, table_id]) FILTER (WHERE done_at IS NULL))[2] AS at_table
FROM pgddl.chunks WHERE table_id = ANY(%s)

-- name: insert_event
INSERT INTO pgddl.ddl_events (pipeline, run, seq, phase, table_id, event, statement, status, note)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)

-- name: events_to_apply
SELECT id, table_id, event, statement FROM pgddl.ddl_events
WHERE pipeline = %s AND run = %s AND phase = ANY(%s) AND status IN ('pending', 'failed') AND captured_id IS NULL
ORDER BY seq

-- name: event_status
UPDATE pgddl.ddl_events
SET status = %s, note = %s, applied_at = CASE WHEN %s = 'applied' THEN pg_catalog.clock_timestamp() END
WHERE id = %s

-- name: lock_events
-- Of these the ones that are still to be done. Whoever is at one of them is waited for, and what it has committed is seen.
SELECT id FROM pgddl.ddl_events WHERE id = ANY(%s) AND status NOT IN ('applied', 'skipped', 'resolved') ORDER BY id FOR UPDATE

-- name: event_failed
UPDATE pgddl.ddl_events SET status = 'failed', note = %s, applied_at = NULL
WHERE id = %s AND status NOT IN ('applied', 'skipped', 'resolved')

-- name: events_applied
UPDATE pgddl.ddl_events SET status = 'applied', note = NULL, applied_at = pg_catalog.clock_timestamp() WHERE id = ANY(%s)

-- name: applied_events
-- Without those that found what they were to make.
SELECT id, event FROM pgddl.ddl_events
WHERE pipeline = %s AND run = %s AND status = 'applied'
  AND NOT EXISTS (SELECT FROM pg_catalog.jsonb_array_elements_text(notes) n(note) WHERE pg_catalog.starts_with(n.note, %s))
ORDER BY seq DESC

-- name: all_events
SELECT id, table_id, event, status, note FROM pgddl.ddl_events WHERE pipeline = %s AND run = %s AND captured_id IS NULL ORDER BY seq

-- name: dump_has_made
SELECT EXISTS (SELECT FROM pgddl.ddl_events WHERE pipeline = %s AND run = %s AND table_id = %s AND captured_id IS NULL
               AND status = 'applied' AND event ->> 'tag' = 'CREATE TABLE')

-- name: queue_behind
UPDATE pgddl.ddl_events SET seq = seq + %(by)s
WHERE pipeline = %(pipeline)s AND run = %(run)s AND status = 'pending' AND seq < %(first)s AND captured_id IS NULL

-- name: dumped_events
SELECT event FROM pgddl.ddl_events
WHERE pipeline = %s AND run = %s AND event ->> 'section' IS NOT NULL AND event ->> 'kind' <> 'rewrite'
  AND note IS DISTINCT FROM %s AND NOT (phase = 'index' AND status IN ('pending', 'failed'))
ORDER BY seq

-- name: captured_touches
SELECT t.name ->> 0 AS schema, t.name ->> 1 AS name, pg_catalog.bool_or(
    e.status = 'skipped' AND coalesce(e.rule, '') <> ALL(%(carried)s)
    AND coalesce(e.captured ->> 'tag', '') <> ALL(%(dumped)s)) AS left_out, pg_catalog.bool_or(e.status = 'resolved') AS resolved
FROM pgddl.ddl_events e CROSS JOIN LATERAL pg_catalog.jsonb_array_elements(e.touches) t(name)
WHERE e.pipeline = %(pipeline)s AND e.run = %(run)s AND e.captured_id IS NOT NULL
  AND e.status IN ('applied', 'resolved', 'skipped')
GROUP BY 1, 2

-- name: tables_with_events
-- One that was blocked when the dump was taken has none but skipped ones.
SELECT DISTINCT table_id FROM pgddl.ddl_events
WHERE pipeline = %s AND run = %s AND table_id IS NOT NULL AND status <> 'skipped'

-- name: replace_skipped
UPDATE pgddl.ddl_events SET note = %s
WHERE pipeline = %s AND run = %s AND table_id = ANY(%s) AND status = 'skipped' AND captured_id IS NULL

-- name: next_seq
SELECT coalesce(max(seq), -1) + 1 FROM pgddl.ddl_events WHERE pipeline = %s AND run = %s

-- name: event_counts
SELECT status, count(*) FROM pgddl.ddl_events WHERE pipeline = %s AND run = %s AND captured_id IS NULL GROUP BY status

-- name: insert_range
INSERT INTO pgddl.verifications (table_id, job_id, range_no, low, high) VALUES (%s, %s, %s, %s, %s)

-- name: ranges_left
SELECT v.id, v.table_id, v.low, v.high FROM pgddl.verifications v
WHERE v.table_id = ANY(%s) AND v.job_id = %s AND v.differ IS NULL ORDER BY v.id

-- name: ranges_differing
SELECT v.id, v.table_id, v.low, v.high FROM pgddl.verifications v
WHERE v.table_id = ANY(%s) AND v.job_id = %s AND v.differ <> '[]' ORDER BY v.id

-- name: compare_again
UPDATE pgddl.verifications SET differ = NULL, rows = NULL, verified_at = NULL WHERE id = %s

-- name: take_range
DELETE FROM pgddl.verifications v WHERE v.id = %s AND v.differ IS NULL
RETURNING v.table_id, v.job_id,
          (SELECT max(o.range_no) FROM pgddl.verifications o WHERE o.table_id = v.table_id AND o.job_id = v.job_id) AS last_no

-- name: tables_with_ranges
SELECT DISTINCT table_id FROM pgddl.verifications WHERE job_id = %s

-- name: forget_other_verifications
DELETE FROM pgddl.verifications WHERE table_id = ANY(%s) AND job_id <> %s

-- name: forget_verification
DELETE FROM pgddl.verifications WHERE table_id = %s

-- name: range_done
UPDATE pgddl.verifications SET rows = %s, differ = %s, verified_at = pg_catalog.clock_timestamp() WHERE id = %s

-- name: verification
WITH last AS (
    SELECT DISTINCT ON (v.table_id) v.table_id, v.job_id
    FROM pgddl.verifications v JOIN pgddl.tables t ON t.id = v.table_id
    WHERE t.pipeline = %s AND v.table_id = ANY(%s) ORDER BY v.table_id, v.id DESC
)
SELECT v.table_id, count(*) FILTER (WHERE v.differ IS NULL) AS ranges_left, coalesce(sum(v.rows), 0)::bigint AS rows,
       (SELECT count(DISTINCT k.key) FROM pgddl.verifications d
        CROSS JOIN LATERAL pg_catalog.jsonb_array_elements_text(d.differ) AS k (key)
        WHERE d.table_id = v.table_id AND d.job_id = v.job_id) AS differ
FROM pgddl.verifications v JOIN last USING (table_id, job_id) GROUP BY v.table_id, v.job_id

-- name: differing
SELECT pg_catalog.jsonb_agg(k.key) FROM (
    SELECT DISTINCT pg_catalog.jsonb_array_elements_text(v.differ) AS key FROM pgddl.verifications v
    WHERE v.table_id = %s AND v.job_id = (SELECT job_id FROM pgddl.verifications WHERE table_id = v.table_id ORDER BY id DESC LIMIT 1)
    LIMIT 100) k

-- name: insert_follow_up
INSERT INTO pgddl.follow_ups (pipeline, run, statement) VALUES (%s, %s, %s)
ON CONFLICT (pipeline, run, statement) DO UPDATE SET done_at = NULL, failed = NULL

-- name: follow_ups_left
SELECT statement, failed FROM pgddl.follow_ups WHERE pipeline = %s AND run = %s AND done_at IS NULL ORDER BY id

-- name: follow_up_done
UPDATE pgddl.follow_ups SET done_at = pg_catalog.clock_timestamp() WHERE pipeline = %s AND run = %s AND statement = %s

-- name: follow_up_failed
UPDATE pgddl.follow_ups SET failed = %s WHERE pipeline = %s AND run = %s AND statement = %s

-- name: finish
SELECT digest, seq FROM pgddl.finishes WHERE pipeline = %s AND run = %s

-- name: set_finish
INSERT INTO pgddl.finishes (pipeline, run, digest, seq) VALUES (%s, %s, %s, -1)
ON CONFLICT (pipeline, run) DO UPDATE SET digest = EXCLUDED.digest

-- name: forget_finish_digest
UPDATE pgddl.finishes SET digest = '' WHERE pipeline = %s AND run = %s

-- name: finished_events
SELECT event FROM pgddl.finished WHERE pipeline = %s AND run = %s ORDER BY number

-- name: forget_finished
DELETE FROM pgddl.finished WHERE pipeline = %s AND run = %s

-- name: insert_finished
INSERT INTO pgddl.finished (pipeline, run, number, event) VALUES (%s, %s, %s, %s)

-- name: refreshed_since
-- The last captured event, and the materialized views that those since the last time have refreshed.
SELECT (SELECT coalesce(max(e.seq), -1) FROM pgddl.ddl_events e WHERE e.pipeline = %(pipeline)s AND e.run = %(run)s) AS upto,
       ARRAY(SELECT DISTINCT ARRAY[o ->> 'schema', o ->> 'name']
             FROM pgddl.ddl_events e CROSS JOIN LATERAL pg_catalog.jsonb_array_elements(e.captured -> 'objects') o
             WHERE e.pipeline = %(pipeline)s AND e.run = %(run)s AND e.captured_id IS NOT NULL
               AND e.event ->> 'tag' = 'REFRESH MATERIALIZED VIEW'
               AND e.seq > coalesce((SELECT f.seq FROM pgddl.finishes f WHERE f.pipeline = e.pipeline AND f.run = e.run), -1)) AS names

-- name: set_refreshed
UPDATE pgddl.finishes SET seq = %s WHERE pipeline = %s AND run = %s

-- name: finishes_there
SELECT pg_catalog.to_regclass('pgddl.finishes') IS NOT NULL

-- name: purge_finishes
DELETE FROM pgddl.finishes WHERE pipeline = %s

-- name: purge_finished
DELETE FROM pgddl.finished WHERE pipeline = %s

-- name: purge
DELETE FROM pgddl.pipelines WHERE pipeline = %s

-- name: purge_events
DELETE FROM pgddl.ddl_events WHERE pipeline = %s

-- name: purge_killed
DELETE FROM pgddl.killed_blockers WHERE pipeline = %s

-- name: purge_versions
DELETE FROM pgddl.schema_versions WHERE pipeline = %s

-- name: purge_tables
DELETE FROM pgddl.tables WHERE pipeline = %s

-- name: purge_windows
DELETE FROM pgddl.windows WHERE pipeline = %s

-- name: purge_stage_runs
DELETE FROM pgddl.stage_runs WHERE pipeline = %s

-- name: purge_follow_ups
DELETE FROM pgddl.follow_ups WHERE pipeline = %s

-- name: purge_leases
DELETE FROM pgddl.leases WHERE pipeline = %s

-- name: pipelines_left
SELECT count(*) FROM pgddl.pipelines

-- name: add_action
INSERT INTO pgddl.actions (pipeline, who, action, about, note, ended_at)
VALUES (%s, %s, %s, %s, %s, pg_catalog.clock_timestamp())

-- name: replace_request
UPDATE pgddl.actions SET ended_at = pg_catalog.clock_timestamp(), outcome = 'another request took its place'
WHERE pipeline = %s AND about = %s AND ended_at IS NULL

-- name: add_request
INSERT INTO pgddl.actions (pipeline, who, action, about, digest, statements) VALUES (%s, %s, 'sync', %s, %s, %s)

-- name: requests
SELECT id, who, about AS table, digest FROM pgddl.actions WHERE pipeline = %s AND ended_at IS NULL ORDER BY id

-- name: end_request
UPDATE pgddl.actions SET ended_at = pg_catalog.clock_timestamp(), outcome = %s WHERE id = %s AND ended_at IS NULL

-- name: end_requests
UPDATE pgddl.actions SET ended_at = pg_catalog.clock_timestamp(), outcome = %s WHERE pipeline = %s AND ended_at IS NULL

-- name: latest_actions
SELECT at, who, action, about, note, ended_at, outcome FROM pgddl.actions WHERE pipeline = %s
ORDER BY ended_at IS NULL DESC, id DESC LIMIT 20

-- name: set_rehearsal
INSERT INTO pgddl.rehearsals AS r (pipeline, run, result) VALUES (%s, %s, %s)
ON CONFLICT (pipeline) DO UPDATE SET run = excluded.run, at = excluded.at, result = excluded.result

-- name: rehearsal
SELECT run, at, result FROM pgddl.rehearsals WHERE pipeline = %s

-- name: reconfigurations_there
SELECT pg_catalog.to_regclass('pgddl.reconfigurations') IS NOT NULL

-- name: insert_reconfiguration
INSERT INTO pgddl.reconfigurations (pipeline, run, subject, name, before, after) VALUES (%s, %s, %s, %s, %s, %s)

-- name: reconfigurations
SELECT subject, name, before, after, taken_at, taken_by, done_at FROM pgddl.reconfigurations WHERE pipeline = %s ORDER BY id

-- name: reconfiguration_under_way
SELECT EXISTS (SELECT FROM pgddl.reconfigurations WHERE pipeline = %s AND run = %s AND done_at IS NULL)

-- name: reconfiguration_done
UPDATE pgddl.reconfigurations SET done_at = pg_catalog.clock_timestamp() WHERE pipeline = %s AND run = %s AND done_at IS NULL

-- name: purge_reconfigurations
DELETE FROM pgddl.reconfigurations WHERE pipeline = %s
