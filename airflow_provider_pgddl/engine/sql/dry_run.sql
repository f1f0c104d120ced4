-- name: locks
-- (oid, relation, mode) of what this session holds on users' relations.
SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname), l.mode
FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_class c ON c.oid = l.relation JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.granted AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
      AND n.nspname !~ '^(pg_|pgddl$)'

-- name: met_by_writers
-- Whether one of these is no copy, and no partition of one.
SELECT EXISTS (SELECT FROM pg_catalog.unnest(%s::oid[]) o(oid)
               JOIN pg_catalog.pg_class r ON r.oid = coalesce(pg_catalog.pg_partition_root(o.oid), o.oid)
               JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace WHERE n.nspname !~ '^pgddl_')
