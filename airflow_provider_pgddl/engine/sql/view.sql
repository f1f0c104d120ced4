-- name: chunks
-- By table: what of its rows has been copied, and how much of that within the last minute.
SELECT c.table_id, count(*) AS chunks, count(c.done_at) AS chunks_done, coalesce(sum(c.rows), 0)::bigint AS rows_done,
       coalesce(sum(c.bytes), 0)::bigint AS bytes, coalesce(sum(c.bytes) FILTER (WHERE c.done_at IS NOT NULL), 0)::bigint AS bytes_done,
       coalesce(sum(c.bytes) FILTER (WHERE c.done_at > pg_catalog.clock_timestamp() - interval '1 minute'), 0)::bigint AS lately
FROM pgddl.chunks c WHERE c.table_id = ANY(%s) GROUP BY c.table_id

-- name: windows
-- The last hour's by minute: how old a window's snapshot was at its end, at worst, and what they brought.
SELECT pg_catalog.date_trunc('minute', w.finished_at) AS at, max(extract(epoch FROM w.finished_at - w.taken_at))::float8 AS seconds,
       sum(w.keys)::bigint AS keys, sum(w.rows)::bigint AS rows
FROM (SELECT * FROM pgddl.windows WHERE pipeline = %s AND run = %s ORDER BY window_no DESC LIMIT 20000) w
WHERE w.finished_at > pg_catalog.clock_timestamp() - interval '1 hour' GROUP BY 1 ORDER BY 1

-- name: settled
-- The last events that are over, the newest first, and what was said of each: by a person, and with the decision.
SELECT e.id, e.event ->> 'tag' AS tag, e.status,
       coalesce((SELECT pg_catalog.string_agg(s, E';\n') FROM pg_catalog.jsonb_array_elements_text(e.statements) s), e.event ->> 'statement') AS statement,
       e.note, e.notes, e.applied_at
FROM pgddl.ddl_events e
WHERE e.pipeline = %s AND e.run = %s AND e.captured_id IS NOT NULL AND e.status IN ('applied', 'skipped', 'resolved')
ORDER BY e.seq DESC LIMIT 20

-- name: waits
-- Sessions that wait for a lock and are ours, or have one of ours in their way. Applications name themselves.
WITH waiting AS (
    SELECT a.pid, a.application_name, l.waitstart, l.mode, l.relation, pg_catalog.pg_blocking_pids(a.pid) AS blockers
    FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a USING (pid)
    WHERE NOT l.granted AND a.datname = pg_catalog.current_database()
), ours AS (
    SELECT a.pid FROM pg_catalog.pg_stat_activity a WHERE pg_catalog.starts_with(a.application_name, 'pgddl:' || %s || ':')
)
SELECT w.pid, coalesce(nullif(w.application_name, ''), 'a session') AS who,
       coalesce(extract(epoch FROM pg_catalog.clock_timestamp() - w.waitstart), 0)::float8 AS seconds, w.mode,
       w.relation::regclass::text AS relation,
       ARRAY(SELECT DISTINCT coalesce(nullif(b.application_name, ''), 'a session') || ' (pid ' || b.pid || ')'
             FROM pg_catalog.pg_stat_activity b WHERE b.pid = ANY(w.blockers)) AS blockers
FROM waiting w
WHERE w.pid IN (SELECT pid FROM ours) OR w.blockers && ARRAY(SELECT pid FROM ours)
ORDER BY w.waitstart LIMIT 20
