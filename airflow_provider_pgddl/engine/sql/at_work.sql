-- name: at_work
-- What sessions of ours do that takes longer than so many seconds: process, seconds, statement; where the server tells it, the
-- relation, and how much is done of how much (0 of a COPY, which knows no end). The longest first.
SELECT a.pid, extract(epoch FROM pg_catalog.clock_timestamp() - a.query_start)::float8, a.query,
       n.nspname, c.relname, p.unit, p.done, p.of
FROM pg_catalog.pg_stat_activity a
LEFT JOIN LATERAL (
    SELECT i.relid, CASE WHEN i.tuples_total > 0 THEN 'rows' ELSE 'blocks' END,
           CASE WHEN i.tuples_total > 0 THEN i.tuples_done ELSE i.blocks_done END,
           CASE WHEN i.tuples_total > 0 THEN i.tuples_total ELSE i.blocks_total END
    FROM pg_catalog.pg_stat_progress_create_index i WHERE i.pid = a.pid
    UNION ALL
    SELECT y.relid, 'blocks', y.sample_blks_scanned, y.sample_blks_total
    FROM pg_catalog.pg_stat_progress_analyze y WHERE y.pid = a.pid
    UNION ALL
    SELECT o.relid, 'rows', o.tuples_processed, 0 FROM pg_catalog.pg_stat_progress_copy o WHERE o.pid = a.pid AND o.relid <> 0
) p(relid, unit, done, of) ON true
LEFT JOIN pg_catalog.pg_class c ON c.oid = p.relid
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE a.datname = pg_catalog.current_database() AND a.state = 'active' AND a.pid <> pg_catalog.pg_backend_pid()
  AND pg_catalog.starts_with(a.application_name, %(ours)s)
  AND a.query_start < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => %(longer)s)
ORDER BY a.query_start LIMIT 3

-- name: index_builds
-- Of each index that sessions of ours build just now: its table, and which part of it is done: half of the way is reading.
SELECT n.nspname, c.relname,
       (0.5 * i.blocks_done / greatest(i.blocks_total, 1) + 0.5 * i.tuples_done / greatest(i.tuples_total, 1))::float8
FROM pg_catalog.pg_stat_progress_create_index i
JOIN pg_catalog.pg_stat_activity a ON a.pid = i.pid
JOIN pg_catalog.pg_class c ON c.oid = i.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE i.datname = pg_catalog.current_database() AND pg_catalog.starts_with(a.application_name, %(ours)s)
ORDER BY a.query_start
