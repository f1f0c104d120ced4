-- name: try
SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended(%s, 0))

-- name: end
SELECT pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended(%s, 0))

-- name: in_front
SELECT l.pid, coalesce(a.application_name, 'unknown')
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
  AND (l.classid::bigint << 32) | l.objid::bigint = pg_catalog.hashtextextended(%s, 0)
