-- name: slot
SELECT plugin, database = pg_catalog.current_database(), coalesce(wal_status, ''), confirmed_flush_lsn::text
FROM pg_catalog.pg_replication_slots WHERE slot_name = %s

-- name: sender_timeout
-- In milliseconds.
SELECT pg_catalog.set_config('wal_sender_timeout', %s, false)

-- name: start
START_REPLICATION SLOT {slot} LOGICAL 0/0
    (proto_version '1', publication_names {publications}, messages 'true', binary 'false')

-- name: marker
-- Transactional: its commit flushes the log up to here (synchronous_commit is on), and everything that committed before it.
SELECT pg_catalog.pg_logical_emit_message(true, 'pgddl.marker', '')::text
