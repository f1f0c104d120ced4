-- name: locks
-- (oid, relation, mode) of what this session holds on users' relations.
SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname), l.mode
FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_class c ON c.oid = l.relation JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.granted AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
      AND n.nspname !~ '^(pg_|pgddl$)'
