-- name: slot
SELECT s.plugin, s.database = pg_catalog.current_database(), s.wal_status, s.confirmed_flush_lsn::text, s.active_pid,
       pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), s.restart_lsn)::bigint
FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %s

-- name: create_slot
SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput')

-- name: create_failover_slot
-- From Postgres 17 on: standbys keep it in step, and go on with it once promoted.
SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput', failover => true)

-- name: lost_track
-- By a transaction that every snapshot shows.
INSERT INTO {log} (op, leaf, xid, at) VALUES ('X', %s, '3', '0/0')

-- name: types_with
-- These types, by their own oids or their relations' (an attribute of a composite is altered in these), and those that are made of
-- them: arrays, domains, ranges and composites; as a column's is printed without a modifier.
WITH RECURSIVE with_them(oid) AS (
    SELECT t.oid FROM pg_catalog.pg_type t, pg_catalog.unnest(%s::oid[]) altered(oid) WHERE altered.oid IN (t.oid, t.typrelid)
    UNION
    SELECT x.oid FROM with_them w CROSS JOIN LATERAL (
        SELECT t.oid FROM pg_catalog.pg_type t WHERE t.typelem = w.oid OR t.typbasetype = w.oid
        UNION ALL SELECT t.oid FROM pg_catalog.pg_range r JOIN pg_catalog.pg_type t ON t.oid IN (r.rngtypid, r.rngmultitypid)
        WHERE r.rngsubtype = w.oid
        UNION ALL SELECT t.oid FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.typrelid = a.attrelid
        WHERE a.atttypid = w.oid AND a.attnum > 0 AND NOT a.attisdropped
    ) x
)
SELECT pg_catalog.format_type(oid, NULL) FROM with_them

-- name: labels
SELECT e.enumlabel FROM pg_catalog.pg_enum e JOIN pg_catalog.pg_type t ON t.oid = e.enumtypid
WHERE t.typnamespace = pg_catalog.to_regnamespace(pg_catalog.quote_ident(%s)) AND t.typname = %s

-- name: in_progress
-- Whether some transaction has an id and has not ended. Without one the slot lets go a little later by itself.
SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid())
       OR EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts)

-- name: may_log_snapshot
SELECT pg_catalog.has_function_privilege('pg_catalog.pg_log_standby_snapshot()', 'EXECUTE')

-- name: log_snapshot
SELECT pg_catalog.pg_log_standby_snapshot()

-- name: unread
-- Rows and TRUNCATEs that the slot has and the logs do not; nothing is read away.
SELECT count(*) FROM pg_catalog.pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)
WHERE pg_catalog.get_byte(data, 0) = ANY(ARRAY[73, 85, 68, 84])    -- I, U, D, T

-- name: drop_slot
SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots
WHERE slot_name = %s AND plugin = 'pgoutput' AND database = pg_catalog.current_database()

-- name: publication_exists
SELECT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = %s)

-- name: replica_identity
-- (replica identity, persistence, columns that it has in the WAL by an index: what it only includes is none of them)
SELECT c.relreplident::text, c.relpersistence::text,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_index i
             JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1])
             WHERE i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
               AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END
             ORDER BY a.attnum)
FROM pg_catalog.pg_class c WHERE c.oid = %s

-- name: whole_rows
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%s::oid[]) AND c.relreplident = 'f' ORDER BY 1, 2

-- name: captured
-- Each captured leaf with its log, its key in the log's order (attnums, types), the columns that are published where no list says
-- which (attnums, names), and whether some were dropped.
SELECT c.leaf, c.log_table, c.key, c.key_types, coalesce(a.numbers, '{}'), coalesce(a.names, '{}'), coalesce(a.dropped, false)
FROM pgddl.captured c CROSS JOIN LATERAL (
    SELECT pg_catalog.array_agg(a.attnum::int ORDER BY a.attnum) FILTER (WHERE NOT a.attisdropped AND a.attgenerated = '') AS numbers,
           pg_catalog.array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE NOT a.attisdropped AND a.attgenerated = '') AS names,
           pg_catalog.bool_or(a.attisdropped) AS dropped
    FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.leaf AND a.attnum > 0) a
WHERE c.pipeline = %s AND c.key IS NOT NULL

-- name: register
INSERT INTO pgddl.captured (pipeline, root, leaf, log_table, function, key, key_types) VALUES (%s, %s, %s, %s, '', %s, %s)
ON CONFLICT (pipeline, leaf) DO UPDATE SET root = EXCLUDED.root, log_table = EXCLUDED.log_table, key = EXCLUDED.key,
    key_types = EXCLUDED.key_types

-- name: log_table
-- Like the log by triggers; `at` is where the change stands in the source's WAL.
CREATE TABLE {log} (op "char" NOT NULL, leaf oid NOT NULL, {keys}, xid xid8 NOT NULL, at pg_lsn NOT NULL)
WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
      autovacuum_vacuum_insert_threshold = -1)

-- name: logs_there
SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'pgddl' AND c.relname = ANY(%s::name[])

-- name: backlog
SELECT pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), %s::pg_catalog.pg_lsn)::bigint

-- name: received
SELECT slot_lsn::text FROM pgddl.pipelines WHERE pipeline = %s

-- name: set_received
UPDATE pgddl.pipelines SET slot_lsn = %s::pg_catalog.pg_lsn WHERE pipeline = %s

-- name: go_on
UPDATE pgddl.pipelines SET slot_lsn = greatest(slot_lsn, %s::pg_catalog.pg_lsn) WHERE pipeline = %s

-- name: set_received_of
-- As long as the source's timeline is the one that was read.
UPDATE pgddl.pipelines SET slot_lsn = %s::pg_catalog.pg_lsn WHERE pipeline = %s AND source_timeline = %s

-- name: recorded_timeline
SELECT source_timeline FROM pgddl.pipelines WHERE pipeline = %s

-- name: keep_old_keys
-- As updates that leave the key as it is: values that are kept must not follow moves that never were.
INSERT INTO {log} (op, leaf, {old}, {new}, xid, at)
SELECT 'U', leaf, {old}, {old}, '3', '0/0' FROM {log} WHERE at >= {switch} AND op IN ('U', 'D')

-- name: keep_new_keys
UPDATE {log} SET op = CASE op WHEN 'X' THEN op ELSE 'U' END, {to_new}, xid = '3', at = '0/0' WHERE at >= {switch} AND op IN ('U', 'I', 'X')

-- name: forget_never_was
DELETE FROM {log} WHERE at >= {switch}
