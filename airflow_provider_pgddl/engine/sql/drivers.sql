-- name: announce
SELECT pg_catalog.set_config('application_name', %s, false)

-- name: at_work
-- The name may be anybody's, so the session has to be this role's own.
SELECT a.pid, a.application_name FROM pg_catalog.pg_stat_activity a
WHERE a.datname = pg_catalog.current_database() AND a.usename = session_user
  AND pg_catalog.starts_with(a.application_name, %s)
ORDER BY a.backend_start

-- name: say
SELECT pg_catalog.pg_notify(%s, %s)

-- name: stop
SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity a
WHERE a.datname = pg_catalog.current_database() AND a.usename = session_user AND a.application_name = %s
