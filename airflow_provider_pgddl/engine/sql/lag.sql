-- name: behind
-- Bytes of WAL since then, whoever wrote them, and seconds by the source's own clock.
SELECT greatest(pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), %s::pg_catalog.pg_lsn), 0)::bigint,
       greatest(extract(epoch FROM pg_catalog.clock_timestamp() - %s::timestamptz), 0)::float8
