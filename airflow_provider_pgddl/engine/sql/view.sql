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
