-- name: event_triggers
-- Fired in the order of their names: what the client alone can tell comes before what records it.
CREATE EVENT TRIGGER pgddl_0_client ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION pgddl.client_ddl();
CREATE EVENT TRIGGER pgddl_0_publications ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION pgddl.leave_publications();
CREATE EVENT TRIGGER pgddl_1_client ON ddl_command_end EXECUTE FUNCTION pgddl.client_ddl();
CREATE EVENT TRIGGER pgddl_2_command ON ddl_command_end EXECUTE FUNCTION pgddl.record_command();
CREATE EVENT TRIGGER pgddl_2_drop ON sql_drop EXECUTE FUNCTION pgddl.record_drop();
CREATE EVENT TRIGGER pgddl_2_rewrite ON table_rewrite EXECUTE FUNCTION pgddl.record_rewrite();
DO $$
BEGIN
    IF pg_catalog.to_regprocedure('pgddl.hold()') IS NOT NULL THEN  -- an older version of the set has none
        CREATE EVENT TRIGGER pgddl_00_hold ON ddl_command_start EXECUTE FUNCTION pgddl.hold();
    END IF;
    IF pg_catalog.to_regprocedure('pgddl.lock_altered()') IS NOT NULL THEN  -- nor these
        CREATE EVENT TRIGGER pgddl_0_publications_lock ON ddl_command_start WHEN TAG IN ('ALTER TABLE')
            EXECUTE FUNCTION pgddl.lock_altered();
        CREATE EVENT TRIGGER pgddl_0_publications_locked ON ddl_command_start WHEN TAG IN ('ALTER TABLE')
            EXECUTE FUNCTION pgddl.leave_altered();
    END IF;
END
$$

-- name: known_event_triggers
SELECT evtname, evtenabled::text FROM pg_catalog.pg_event_trigger
WHERE evtname IN ('pgddl_00_hold', 'pgddl_0_client', 'pgddl_0_publications', 'pgddl_0_publications_lock', 'pgddl_0_publications_locked',
                  'pgddl_1_client', 'pgddl_2_command', 'pgddl_2_drop', 'pgddl_2_rewrite')

-- name: our_schema_exists
SELECT pg_catalog.to_regnamespace('pgddl') IS NOT NULL

-- name: set_is_granted
SELECT NOT pg_catalog.pg_has_role(c.relowner, 'USAGE') FROM pg_catalog.pg_class c
WHERE c.oid = pg_catalog.to_regclass('pgddl.captured')

-- name: probe_function
CREATE FUNCTION pg_temp.pgddl_probe() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'

-- name: probe_trigger
CREATE EVENT TRIGGER pgddl_probe ON ddl_command_end WHEN TAG IN ('SECURITY LABEL') EXECUTE FUNCTION pg_temp.pgddl_probe()

-- name: english_context
-- The frames of an error context are translated, and we read them; only a superuser may set this.
ALTER FUNCTION pgddl.leave_publications() SET lc_messages = 'C';
ALTER FUNCTION pgddl.record_command() SET lc_messages = 'C';
ALTER FUNCTION pgddl.record_drop() SET lc_messages = 'C';
ALTER FUNCTION pgddl.record_rewrite() SET lc_messages = 'C'

-- name: hold_limit
SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', %s, true)

-- name: hold_what_changes_dumps
LOCK TABLE pgddl.ddl_hold IN SHARE MODE

-- name: hold_all
LOCK TABLE pgddl.ddl_hold IN ACCESS EXCLUSIVE MODE

-- name: is_held
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database d ON d.oid = l.database
    WHERE d.datname = pg_catalog.current_database() AND l.relation = pg_catalog.to_regclass('pgddl.ddl_hold') AND l.granted
      AND l.mode IN ('ShareLock', 'AccessExclusiveLock')
)

-- name: lock_captures
-- One pipeline at a time starts or stops; readers and the event triggers go on.
LOCK TABLE pgddl.captures IN SHARE ROW EXCLUSIVE MODE

-- name: set_transport
UPDATE pgddl.captures SET ddl = %(transport)s, ddl_position = CASE WHEN ddl = %(transport)s THEN ddl_position END
WHERE pipeline = %(pipeline)s

-- name: transport
SELECT ddl FROM pgddl.captures WHERE pipeline = %s

-- name: still_wanted
SELECT count(*) FROM pgddl.captures WHERE ddl <> 'off'

-- name: now
SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_wal_insert_lsn()::text

-- name: queued
-- Transactions by the last of their events: a command that needs another transaction's waits for its commit.
SELECT q.event
FROM pgddl.ddl_queue q
WHERE %(position)s::pg_catalog.pg_snapshot IS NULL
   OR NOT pg_catalog.pg_visible_in_snapshot(q.xid, %(position)s::pg_catalog.pg_snapshot)
ORDER BY max(q.id) OVER (PARTITION BY q.xid), q.id

-- name: is_queued
EXISTS (SELECT FROM pgddl.ddl_queue q
        WHERE %(position)s::pg_catalog.pg_snapshot IS NULL
           OR NOT pg_catalog.pg_visible_in_snapshot(q.xid, %(position)s::pg_catalog.pg_snapshot))

-- name: lost
SELECT e.id, e.tag, e.what, e.statement, c.oid::regclass::text, e.role, e.happened_at
FROM pgddl.exceptions e LEFT JOIN pg_catalog.pg_class c ON c.oid = e.relation
WHERE e.resolved_at IS NULL AND e.xid IS NOT NULL
  AND (%(position)s::pg_catalog.pg_snapshot IS NULL
       OR NOT pg_catalog.pg_visible_in_snapshot(e.xid, %(position)s::pg_catalog.pg_snapshot))
ORDER BY e.id

-- name: confirm
UPDATE pgddl.captures SET ddl_position = %s::pg_catalog.pg_snapshot WHERE pipeline = %s

-- name: confirmed
SELECT ddl_position::text FROM pgddl.captures WHERE pipeline = %s

-- name: confirmed_beyond
SELECT ddl_position IS NOT NULL
   AND pg_catalog.pg_snapshot_xmax(ddl_position)
       > coalesce(pg_catalog.pg_snapshot_xmax(%(position)s::pg_catalog.pg_snapshot), '0'::pg_catalog.xid8)
FROM pgddl.captures WHERE pipeline = %(pipeline)s

-- name: forget_passed
-- What every pipeline that reads the queue has passed; one that has confirmed nothing yet keeps everything.
DELETE FROM pgddl.ddl_queue q
WHERE NOT EXISTS (SELECT FROM pgddl.captures c
                  WHERE c.ddl = 'queue'
                    AND (c.ddl_position IS NULL OR NOT pg_catalog.pg_visible_in_snapshot(q.xid, c.ddl_position)))

-- name: set_enabled
UPDATE pgddl.captures SET ddl_enabled = %s WHERE pipeline = %s

-- name: resolve_exception
UPDATE pgddl.exceptions SET resolved_at = pg_catalog.clock_timestamp(), note = %s WHERE id = %s AND resolved_at IS NULL

-- name: describe
SELECT pgddl.describe_relations(pgddl.with_descendants(%s::oid[]))

-- name: registered
SELECT pg_catalog.to_regclass('pgddl.ddl_queue') IS NOT NULL

-- name: publication_exists
SELECT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = %s)

-- name: slot
SELECT plugin, database = pg_catalog.current_database(), coalesce(wal_status, ''), active_pid
FROM pg_catalog.pg_replication_slots WHERE slot_name = %s

-- name: drop_slot
-- A database beside this one may have a pipeline of the same name.
SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots
WHERE slot_name = %s AND plugin = 'pgoutput' AND database = pg_catalog.current_database()

-- name: marker
-- Transactional: its commit flushes the log up to here (synchronous_commit is on), and everything that committed before it.
SELECT pg_catalog.pg_logical_emit_message(true, 'pgddl_marker', '')::text

-- name: peek
SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes(
    %(slot)s, %(upto)s::pg_catalog.pg_lsn, NULL,
    'proto_version', '1', 'publication_names', %(publication)s, 'messages', 'true')

-- name: texts
SELECT pg_catalog.convert_from(u.content, pg_catalog.getdatabaseencoding())
FROM pg_catalog.unnest(%s::bytea[]) WITH ORDINALITY u(content, n) ORDER BY u.n

-- name: token
SELECT token FROM pgddl.ddl_token

-- name: shown
-- Which of these transactions a snapshot shows.
SELECT x::text FROM pg_catalog.unnest(%(xids)s::text[]::pg_catalog.xid8[]) x
WHERE pg_catalog.pg_visible_in_snapshot(x, %(snapshot)s::pg_catalog.pg_snapshot)

-- name: advance
SELECT pg_catalog.pg_replication_slot_advance(slot_name, %(upto)s::pg_catalog.pg_lsn)
FROM pg_catalog.pg_replication_slots WHERE slot_name = %(slot)s AND confirmed_flush_lsn < %(upto)s::pg_catalog.pg_lsn

-- name: needing
-- What cannot be there without these tables, and by what it is tied to them: views by their rules, functions by their types and
-- bodies, types, sequences, triggers, policies. No table: it stays, without what ties it.
WITH RECURSIVE gone(classid, objid, via_class, via) AS (
    SELECT 'pg_catalog.pg_class'::pg_catalog.regclass::oid, t, 'pg_catalog.pg_class'::pg_catalog.regclass::oid, t
    FROM pg_catalog.unnest(%(tables)s::oid[]) t
    UNION
    SELECT n.classid, n.objid, CASE WHEN i.named THEN g.classid ELSE g.via_class END, CASE WHEN i.named THEN g.objid ELSE g.via END
    FROM gone g
    CROSS JOIN LATERAL (VALUES (g.classid IN ('pg_catalog.pg_class'::pg_catalog.regclass, 'pg_catalog.pg_proc'::pg_catalog.regclass))) i(named)
    JOIN pg_catalog.pg_depend d ON d.refclassid = g.classid AND d.refobjid = g.objid AND d.deptype IN ('n', 'a', 'i')
    LEFT JOIN pg_catalog.pg_rewrite r
           ON d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND r.oid = d.objid AND r.rulename = '_RETURN'
    LEFT JOIN pg_catalog.pg_class c ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = d.objid
    CROSS JOIN LATERAL (VALUES
        (CASE WHEN r.oid IS NOT NULL THEN 'pg_catalog.pg_class'::pg_catalog.regclass::oid
              WHEN c.relkind = 'c' THEN 'pg_catalog.pg_type'::pg_catalog.regclass::oid ELSE d.classid END,
         CASE WHEN r.oid IS NOT NULL THEN r.ev_class WHEN c.relkind = 'c' THEN c.reltype ELSE d.objid END)
    ) n(classid, objid)
    WHERE coalesce(c.relkind, 'v') NOT IN ('r', 'p', 'f', 'i', 'I', 't')
)
SELECT DISTINCT ON (g.classid, g.objid) g.classid::pg_catalog.regclass::text, g.objid, coalesce(i.schema, ''), coalesce(i.name, ''),
       i.identity, coalesce(v.schema, ''), coalesce(v.name, '')
FROM gone g
CROSS JOIN LATERAL pg_catalog.pg_identify_object(g.classid, g.objid, 0) i
CROSS JOIN LATERAL pg_catalog.pg_identify_object(g.via_class, g.via, 0) v
LEFT JOIN pg_catalog.pg_class c ON g.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = g.objid
LEFT JOIN pg_catalog.pg_type t ON g.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND t.oid = g.objid
LEFT JOIN pg_catalog.pg_class row_of ON row_of.oid = t.typrelid
LEFT JOIN pg_catalog.pg_trigger tr ON g.classid = 'pg_catalog.pg_trigger'::pg_catalog.regclass AND tr.oid = g.objid
WHERE i.identity IS NOT NULL
  AND g.classid NOT IN ('pg_catalog.pg_constraint'::pg_catalog.regclass, 'pg_catalog.pg_attrdef'::pg_catalog.regclass)
  AND coalesce(c.relkind, 'v') IN ('v', 'm', 'S')
  AND coalesce(row_of.relkind, 'c') = 'c' AND coalesce(t.typelem, 0) = 0
  AND NOT coalesce(tr.tgisinternal, false)
ORDER BY g.classid, g.objid, g.via_class, g.via

-- name: identities_kept
SELECT pg_catalog.to_regproc('pgddl.identify_relations') IS NOT NULL

-- name: unidentified
SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgddl') AND n.nspname !~ '^(pg_toast|pg_temp|pgddl_)'

-- name: identify
SELECT pgddl.identify_relations(ARRAY[%s::oid])

-- name: types
SELECT e.enumtypid, pg_catalog.md5(pg_catalog.string_agg(e.oid::text || ' ' || e.enumlabel, ',' ORDER BY e.oid))
FROM pg_catalog.pg_enum e GROUP BY 1
UNION ALL
SELECT c.reltype, pg_catalog.md5(pg_catalog.string_agg(a.attnum || ' ' || a.atttypid, ',' ORDER BY a.attnum))
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind = 'c' AND c.relnamespace <> 'pg_catalog'::pg_catalog.regnamespace GROUP BY c.oid, 1

-- name: type_altered
SELECT EXISTS (SELECT FROM pgddl.ddl_queue q
               WHERE q.event ->> 'tag' = 'ALTER TYPE'
                 AND NOT pg_catalog.pg_visible_in_snapshot(q.xid, %(position)s::pg_catalog.pg_snapshot))
       AND EXISTS (SELECT FROM pgddl.captures WHERE pipeline = %(pipeline)s AND ddl = 'queue')
