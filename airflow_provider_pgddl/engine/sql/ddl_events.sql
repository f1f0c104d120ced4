-- name: record
-- The next number is taken in the same statement; two writers at once would meet in the unique (pipeline, run, seq).
INSERT INTO pgddl.ddl_events (pipeline, run, seq, phase, event, statement, status, captured_id, captured, statements, rule, notes,
                              rebuilt, no_transaction, object_kind, touches, lsn, previous_version, previous_mask, mask)
SELECT %(pipeline)s, %(run)s, (SELECT coalesce(max(e.seq), -1) + 1 FROM pgddl.ddl_events e WHERE e.pipeline = %(pipeline)s AND e.run = %(run)s),
       'captured', %(event)s, %(statement)s, %(status)s, %(captured_id)s, %(captured)s, %(statements)s, %(rule)s, %(notes)s,
       %(rebuilt)s, %(concurrently)s, %(kind)s, %(touches)s, %(lsn)s::pg_lsn, before.version, before.mask, %(mask)s
FROM (SELECT coalesce(pg_catalog.jsonb_object_agg(v.source_oid::text, v.version), '{}') AS version,
             coalesce(pg_catalog.jsonb_object_agg(v.source_oid::text, v.mask), '{}') AS mask
      FROM (SELECT DISTINCT ON (source_oid) source_oid, version, mask FROM pgddl.schema_versions
            WHERE pipeline = %(pipeline)s AND run = %(run)s AND source_oid = ANY(%(oids)s::oid[]) AND lsn <= %(lsn)s::pg_lsn
            ORDER BY source_oid, lsn DESC) v
      WHERE v.version IS NOT NULL) before
ON CONFLICT (pipeline, run, captured_id) WHERE captured_id IS NOT NULL DO NOTHING
RETURNING id

-- name: record_lost
INSERT INTO pgddl.ddl_events (pipeline, run, seq, phase, event, statement, status, captured_id, captured, statements, rule, object_kind, touches)
SELECT %(pipeline)s, %(run)s, (SELECT coalesce(max(e.seq), -1) + 1 FROM pgddl.ddl_events e WHERE e.pipeline = %(pipeline)s AND e.run = %(run)s),
       'captured', %(event)s, %(statement)s, 'unhandled', %(captured_id)s, %(captured)s, '[]', %(rule)s, 'unknown', %(touches)s
ON CONFLICT (pipeline, run, captured_id) WHERE captured_id IS NOT NULL DO NOTHING
RETURNING id

-- name: redecide
-- What has not been done yet is decided anew: by other rules, or with a statement rewritten for another copy.
UPDATE pgddl.ddl_events
SET event = %(event)s, statement = %(statement)s, status = %(status)s, statements = %(statements)s, rule = %(rule)s, notes = %(notes)s,
    rebuilt = %(rebuilt)s, no_transaction = %(concurrently)s, object_kind = %(kind)s, touches = %(touches)s, note = NULL
WHERE id = %(id)s AND pipeline = %(pipeline)s AND status IN ('pending', 'awaiting_approval', 'unhandled', 'failed')
RETURNING id

-- name: waiting
SELECT id, captured_id, seq, lsn::text, event, status, statements, rule, notes, object_kind, touches, rebuilt,
       no_transaction AS concurrently, note, recorded_at, started_at, applied_at
FROM pgddl.ddl_events
WHERE pipeline = %s AND run = %s AND captured_id IS NOT NULL
  AND status IN ('pending', 'awaiting_approval', 'applying', 'unhandled', 'failed')
ORDER BY seq

-- name: list
SELECT id, captured_id, seq, lsn::text, event, status, statements, rule, notes, object_kind, touches, rebuilt,
       no_transaction AS concurrently, note, recorded_at, started_at, applied_at
FROM pgddl.ddl_events
WHERE pipeline = %(pipeline)s AND run = %(run)s AND captured_id IS NOT NULL
  AND (%(statuses)s::text[] IS NULL OR status = ANY(%(statuses)s::text[])) AND (%(id)s::bigint IS NULL OR id = %(id)s)
ORDER BY seq

-- name: details
SELECT captured, previous_version, previous_mask, mask FROM pgddl.ddl_events WHERE id = %s AND pipeline = %s AND captured_id IS NOT NULL

-- name: known
SELECT captured_id FROM pgddl.ddl_events WHERE pipeline = %s AND run = %s AND captured_id = ANY(%s)

-- name: status_counts
SELECT status, count(*) FROM pgddl.ddl_events WHERE pipeline = %s AND run = %s AND captured_id IS NOT NULL GROUP BY status

-- name: lock_status
SELECT status FROM pgddl.ddl_events WHERE id = %s AND pipeline = %s AND captured_id IS NOT NULL FOR UPDATE

-- name: set_status
UPDATE pgddl.ddl_events
SET status = %(status)s, note = coalesce(%(note)s, CASE WHEN %(status)s IN ('failed', 'resolved', 'skipped') THEN note END),
    applied_at = CASE WHEN %(status)s = 'applied' THEN pg_catalog.clock_timestamp() END,
    started_at = CASE WHEN %(status)s = 'applying' THEN pg_catalog.clock_timestamp() ELSE started_at END
WHERE id = %(id)s

-- name: add_notes
UPDATE pgddl.ddl_events SET notes = notes || %s::jsonb WHERE id = %s

-- name: interrupt_attempts
UPDATE pgddl.ddl_attempts
SET finished_at = pg_catalog.clock_timestamp(), outcome = 'interrupted', message = 'the run ended in the middle of it'
WHERE event_id = %s AND finished_at IS NULL

-- name: start_attempt
INSERT INTO pgddl.ddl_attempts (event_id, number)
SELECT %(id)s, coalesce(max(number), 0) + 1 FROM pgddl.ddl_attempts WHERE event_id = %(id)s
RETURNING number

-- name: forget_attempts
-- The first tells when it began.
DELETE FROM pgddl.ddl_attempts WHERE event_id = %s AND number > 1 AND number <= %s

-- name: finish_attempt
UPDATE pgddl.ddl_attempts SET finished_at = pg_catalog.clock_timestamp(), outcome = %s, message = %s WHERE event_id = %s AND number = %s

-- name: attempts
SELECT number, started_at, finished_at, outcome, message FROM pgddl.ddl_attempts WHERE event_id = %s ORDER BY number

-- name: save_version
INSERT INTO pgddl.schema_versions (pipeline, run, source_oid, lsn, version, mask) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (pipeline, run, source_oid, lsn) DO UPDATE SET version = excluded.version, mask = excluded.mask

-- name: forget_version
INSERT INTO pgddl.schema_versions (pipeline, run, source_oid, lsn, version, mask)
SELECT %(pipeline)s, %(run)s, %(oid)s, %(lsn)s, NULL, '[]'
WHERE EXISTS (SELECT FROM pgddl.schema_versions WHERE pipeline = %(pipeline)s AND run = %(run)s AND source_oid = %(oid)s)
ON CONFLICT (pipeline, run, source_oid, lsn) DO UPDATE SET version = NULL, mask = '[]'

-- name: load_versions
SELECT v.source_oid, v.version, v.mask
FROM (SELECT DISTINCT ON (source_oid) source_oid, version, mask FROM pgddl.schema_versions
      WHERE pipeline = %s AND run = %s AND (%s::pg_lsn IS NULL OR lsn <= %s::pg_lsn) ORDER BY source_oid, lsn DESC) v
WHERE v.version IS NOT NULL

-- name: prune_versions
-- Older than the newest one at or below the LSN; and a table that was dropped below it.
DELETE FROM pgddl.schema_versions v USING (
    SELECT DISTINCT ON (source_oid) source_oid, lsn, version IS NULL AS dropped FROM pgddl.schema_versions
    WHERE pipeline = %(pipeline)s AND run = %(run)s AND lsn <= %(lsn)s::pg_lsn ORDER BY source_oid, lsn DESC) newest
WHERE v.pipeline = %(pipeline)s AND v.run = %(run)s AND v.source_oid = newest.source_oid
  AND (v.lsn < newest.lsn OR newest.dropped AND v.lsn = newest.lsn)

-- name: position
SELECT ddl_position, ddl_lsn::text FROM pgddl.pipelines WHERE pipeline = %s

-- name: behind
SELECT id, captured_id, coalesce(captured ->> 'lsn', '') FROM pgddl.ddl_events
WHERE pipeline = %(pipeline)s AND run = %(run)s AND captured_id NOT LIKE '%% never was %%' AND captured ? 'xid'
  AND (%(position)s::pg_catalog.pg_snapshot IS NULL
       OR NOT pg_catalog.pg_visible_in_snapshot((captured ->> 'xid')::pg_catalog.xid8, %(position)s::pg_catalog.pg_snapshot))

-- name: never_was
UPDATE pgddl.ddl_events
SET captured_id = captured_id || ' never was ' || id,
    status = CASE WHEN status IN ('applied', 'applying', 'resolved') THEN 'unhandled' ELSE 'skipped' END, note = %(why)s
WHERE pipeline = %(pipeline)s AND run = %(run)s AND id = ANY(%(ids)s::bigint[]) RETURNING id, status

-- name: forget_versions
DELETE FROM pgddl.schema_versions WHERE pipeline = %s AND run = %s AND lsn > %s::pg_lsn

-- name: forget_versions_of
DELETE FROM pgddl.schema_versions v USING pgddl.ddl_events e
WHERE v.pipeline = %(pipeline)s AND v.run = %(run)s AND e.id = ANY(%(ids)s::bigint[]) AND v.lsn = (e.captured ->> 'lsn')::pg_lsn

-- name: set_position
UPDATE pgddl.pipelines SET ddl_position = %s, ddl_lsn = %s::pg_lsn WHERE pipeline = %s

-- name: left_out
SELECT ddl_left_out FROM pgddl.pipelines WHERE pipeline = %s

-- name: set_left_out
UPDATE pgddl.pipelines SET ddl_left_out = %s WHERE pipeline = %s

-- name: function_exists
-- Of that name; where one is given, of that identity only.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = %s AND p.proname = %s
      AND (%s::text IS NULL
           OR (SELECT i.identity FROM pg_catalog.pg_identify_object('pg_catalog.pg_proc'::pg_catalog.regclass, p.oid, 0) i) = %s))

-- name: type_exists
SELECT EXISTS (SELECT FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
               WHERE n.nspname = %s AND t.typname = %s)

-- name: killed
SELECT id, event_id, pid, usename, application_name, client_addr, state, query, xact_start, signal, succeeded, message, signalled_at,
       reported, reported_at
FROM pgddl.killed_blockers
WHERE pipeline = %(pipeline)s AND (%(event)s::bigint IS NULL OR event_id = %(event)s) AND (%(all)s OR NOT reported) ORDER BY id

-- name: mark_reported
UPDATE pgddl.killed_blockers SET reported = true, reported_at = pg_catalog.clock_timestamp()
WHERE pipeline = %(pipeline)s AND NOT reported AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[]))

-- name: blockers
-- Whom a session waits for, and for how long it has waited. Pid 0 is a prepared transaction.
SELECT DISTINCT ON (b.pid) b.pid, a.usename::text, a.application_name, pg_catalog.host(a.client_addr), a.state,
       left(a.query, 1000), a.xact_start, a.backend_start,
       coalesce(extract(epoch FROM pg_catalog.clock_timestamp() - w.waitstart), 0)::float8
FROM pg_catalog.pg_locks w
CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(w.pid)) b(pid)
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid
WHERE w.pid = %s AND NOT w.granted
ORDER BY b.pid

-- name: prepared_blockers
SELECT DISTINCT p.gid
FROM pg_catalog.pg_locks w
JOIN pg_catalog.pg_locks h ON h.granted AND h.pid IS NULL AND h.locktype = w.locktype
     AND h.database IS NOT DISTINCT FROM w.database AND h.relation IS NOT DISTINCT FROM w.relation
     AND h.transactionid IS NOT DISTINCT FROM w.transactionid AND h.objid IS NOT DISTINCT FROM w.objid
-- Its own number is known by the lock that it holds on it.
JOIN pg_catalog.pg_locks o ON o.pid IS NULL AND o.virtualtransaction = h.virtualtransaction AND o.locktype = 'transactionid' AND o.granted
JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = o.transactionid
WHERE w.pid = %s AND NOT w.granted

-- name: killing
-- Recorded, and committed, before the signal is sent.
INSERT INTO pgddl.killed_blockers (pipeline, event_id, pid, usename, application_name, client_addr, state, query, xact_start, signal)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING id

-- name: cancel
-- Only while it is still in the way, and still the same session.
SELECT pg_catalog.pg_cancel_backend(a.pid) FROM pg_catalog.pg_stat_activity a
WHERE a.pid = %(pid)s AND a.backend_start IS NOT DISTINCT FROM %(started)s AND a.pid = ANY(pg_catalog.pg_blocking_pids(%(waiter)s))

-- name: terminate
SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity a
WHERE a.pid = %(pid)s AND a.backend_start IS NOT DISTINCT FROM %(started)s AND a.pid = ANY(pg_catalog.pg_blocking_pids(%(waiter)s))

-- name: killed_so
UPDATE pgddl.killed_blockers SET succeeded = %s, message = %s, signalled_at = pg_catalog.clock_timestamp() WHERE id = %s

-- name: not_killed
DELETE FROM pgddl.killed_blockers WHERE id = %s

-- name: roles
SELECT rolname::text FROM pg_catalog.pg_roles

-- name: assume
-- Said while a client's search_path may still hold.
SELECT pg_catalog.set_config(s.name, s.value, %s) FROM unnest(%s::pg_catalog.text[], %s::pg_catalog.text[]) WITH ORDINALITY s(name, value, n) ORDER BY s.n

-- name: closed_copies
-- Schemas of copies, some of which are as good as this role's, in which it may make nothing.
SELECT DISTINCT n.nspname::text
FROM (SELECT %s::name) r(role), pg_catalog.pg_namespace n JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid
WHERE n.nspname ~ '^pgddl_copy_' AND c.relkind IN ('r', 'p') AND pg_catalog.pg_has_role(r.role, c.relowner, 'USAGE')
  AND NOT pg_catalog.has_schema_privilege(r.role, n.oid, 'CREATE')

-- name: own_role
SELECT pg_catalog.current_setting('role')

-- name: unknown_settings
-- A tablespace or access method of these names that is not here.
SELECT CASE WHEN %(tablespace)s <> '' AND NOT EXISTS (SELECT FROM pg_catalog.pg_tablespace WHERE spcname = %(tablespace)s) THEN %(tablespace)s END,
       CASE WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_am WHERE amname = %(method)s AND amtype = 't') THEN %(method)s END

-- name: owned_sequence
SELECT EXISTS (SELECT FROM pg_catalog.pg_depend d
               WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = pg_catalog.to_regclass(%s)
                 AND d.refclassid = d.classid AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i'))

-- name: index
SELECT i.indisvalid, pg_catalog.quote_ident(tn.nspname) || '.' || pg_catalog.quote_ident(t.relname)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
WHERE n.nspname = %s AND c.relname = %s

-- name: reindex_leftovers
-- What REINDEX CONCURRENTLY leaves behind when it is ended: on one table (or that of an index), in a schema, anywhere.
SELECT n.nspname, c.relname
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
WHERE NOT i.indisvalid AND c.relname ~ '_cc(new|old)[0-9]*$' AND c.relkind = 'i' AND n.nspname !~ '^pg_toast'
  AND (%(schema)s::text IS NULL OR tn.nspname = %(schema)s)
  AND (%(name)s::text IS NULL OR t.relname = %(name)s
       OR t.oid = (SELECT x.indrelid FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class xc ON xc.oid = x.indexrelid
                   JOIN pg_catalog.pg_namespace xn ON xn.oid = xc.relnamespace
                   WHERE xn.nspname = %(schema)s AND xc.relname = %(name)s))

-- name: partition
SELECT i.inhdetachpending
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class p ON p.oid = i.inhparent JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid JOIN pg_catalog.pg_namespace cn ON cn.oid = c.relnamespace
WHERE pn.nspname = %s AND p.relname = %s AND cn.nspname = %s AND c.relname = %s
