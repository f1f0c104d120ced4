-- name: insert_lsn
SELECT pg_catalog.pg_current_wal_insert_lsn()::text

-- name: snapshot_and_lsn
SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_wal_insert_lsn()::text

-- name: flushed
SELECT pg_catalog.pg_current_wal_flush_lsn() >= %s::pg_catalog.pg_lsn

-- name: flush
-- A transaction that writes WAL, so that its commit waits for the disk; nothing else is changed by it.
SELECT pg_catalog.pg_logical_emit_message(true, 'pgddl.flush', '')
