-- name: may_look
SELECT pg_catalog.pg_has_role('pg_read_all_stats'::name, 'USAGE'), current_user::text

-- name: replicas
-- Without our own slot's. `behind`: whether there is anything that the replica has still to apply.
SELECT r.pid, coalesce(nullif(r.application_name, ''), r.client_addr::text, 'process ' || r.pid),
       coalesce(extract(epoch FROM r.replay_lag), 0)::float8, r.replay_lsn::text,
       coalesce(r.replay_lsn < pg_catalog.pg_current_wal_flush_lsn(), true)
FROM pg_catalog.pg_stat_replication r
WHERE r.state IN ('streaming', 'catchup') AND NOT pg_catalog.starts_with(r.application_name, 'pgddl:')

-- name: active_backends
SELECT count(*) FROM pg_catalog.pg_stat_activity a
WHERE a.state = 'active' AND a.backend_type = 'client backend' AND NOT pg_catalog.starts_with(a.application_name, 'pgddl:')
