-- name: register_pipeline
INSERT INTO pgddl.captures (pipeline, journal) VALUES (%s, %s) ON CONFLICT DO NOTHING

-- name: journal_of
SELECT journal FROM pgddl.captures WHERE pipeline = %s

-- name: may_read
SELECT pg_catalog.has_table_privilege(pg_catalog.to_regclass('pgddl.captures'), 'SELECT')

-- name: window_no
SELECT window_no FROM pgddl.captures WHERE pipeline = %s

-- name: set_window_no
UPDATE pgddl.captures SET window_no = greatest(window_no, %s) WHERE pipeline = %s

-- name: captured
SELECT root, leaf, log_table, function FROM pgddl.captured WHERE pipeline = %s

-- name: captured_leaf
SELECT root, function FROM pgddl.captured WHERE pipeline = %s AND leaf = %s

-- name: is_part_of_captured
-- Whether a relation is still, or by now, a part of the table that it is captured as one of.
SELECT EXISTS (SELECT FROM pgddl.captured k JOIN pg_catalog.pg_partition_ancestors(k.leaf) a(relid) ON a.relid = k.root
               WHERE k.pipeline = %s AND k.leaf = %s AND k.leaf <> k.root)

-- name: captured_of_root
SELECT leaf, log_table, function FROM pgddl.captured WHERE pipeline = %s AND root = %s

-- name: unused_logs
-- Those of these logs that are there and that nothing writes to.
SELECT c.relname
FROM pg_catalog.unnest(%(logs)s::text[]) l(name)
JOIN pg_catalog.pg_class c ON c.relname = l.name AND c.relnamespace = 'pgddl'::pg_catalog.regnamespace
WHERE NOT EXISTS (SELECT FROM pgddl.captured k WHERE k.pipeline = %(pipeline)s AND k.log_table = l.name)

-- name: register
INSERT INTO pgddl.captured (pipeline, root, leaf, log_table, function, key, key_names, key_types)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)

-- name: since_birth
-- What says that a leaf is captured was written by the same subtransaction that made its triggers, or published it: none of them has
-- been switched off or made anew since. Beside each its ancestors below the root.
SELECT k.leaf, a.relid::pg_catalog.oid
FROM pgddl.captured k
LEFT JOIN LATERAL pg_catalog.pg_partition_ancestors(k.leaf) a(relid) ON a.relid NOT IN (k.leaf, k.root)
WHERE k.pipeline = %(pipeline)s AND k.leaf = ANY(%(leaves)s::oid[])
  AND CASE k.function
      WHEN '' THEN EXISTS (SELECT FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
                           WHERE r.prrelid = k.leaf AND p.pubname = %(publication)s AND r.xmin = k.xmin)
      ELSE 2 = (SELECT count(*) FROM pg_catalog.pg_trigger t
                WHERE t.tgrelid = k.leaf AND t.tgname = ANY(%(triggers)s::name[]) AND t.tgenabled = 'A' AND t.xmin = k.xmin)
      END

-- name: never_written
-- Those of these relations that have held no row since they were made, or emptied; without reading one.
SELECT c.oid FROM pg_catalog.pg_class c
WHERE c.oid = ANY(%s::oid[]) AND c.relkind = 'r' AND pg_catalog.pg_relation_size(c.oid) = 0

-- name: not_always
-- (relation, its schema and name, trigger) of these triggers where they do not fire in every session.
SELECT c.oid, n.nspname, c.relname, t.tgname
FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%s::oid[]) AND t.tgname = ANY(%s::name[]) AND t.tgenabled <> 'A'
ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C", t.tgname COLLATE "C"

-- name: forget
DELETE FROM pgddl.captured WHERE pipeline = %s AND root = %s

-- name: forget_leaf
DELETE FROM pgddl.captured WHERE pipeline = %s AND leaf = %s

-- name: forget_pipeline
DELETE FROM pgddl.captures WHERE pipeline = %s

-- name: logs_left
SELECT relname FROM pg_catalog.pg_class
WHERE relnamespace = 'pgddl'::pg_catalog.regnamespace AND relkind = 'r' AND relname ~ %s

-- name: captures_left
SELECT count(*) FROM pgddl.captures

-- name: fences_left
SELECT EXISTS (SELECT FROM pg_catalog.pg_depend d
               JOIN pg_catalog.pg_proc p ON p.oid = d.refobjid
               JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
               WHERE d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass
                 AND d.classid = 'pg_catalog.pg_trigger'::pg_catalog.regclass
                 AND n.nspname = 'pgddl' AND p.proname = 'fence')

-- name: unfenced
-- Disabled is as good as none.
SELECT tn.nspname, tr.relname
FROM ROWS FROM (unnest(%s::name[]), unnest(%s::name[])) k(schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = k.name AND c.relkind IN ('r', 'p')
CROSS JOIN LATERAL (SELECT c.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p WHERE p.level BETWEEN 0 AND 10000) t(relid)
JOIN pg_catalog.pg_class tr ON tr.oid = t.relid AND tr.relkind IN ('r', 'p')
JOIN pg_catalog.pg_namespace tn ON tn.oid = tr.relnamespace
WHERE NOT EXISTS (
    SELECT FROM pg_catalog.pg_trigger g
    JOIN pg_catalog.pg_proc f ON f.oid = g.tgfoid AND f.proname = 'fence'
    JOIN pg_catalog.pg_namespace fn ON fn.oid = f.pronamespace AND fn.nspname = 'pgddl'
    WHERE g.tgrelid = t.relid AND g.tgname = %s AND g.tgenabled = 'A')
ORDER BY tn.nspname COLLATE "C", tr.relname COLLATE "C"

-- name: fenced
SELECT n.nspname, c.relname
FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid JOIN pg_catalog.pg_namespace pn ON pn.oid = p.pronamespace
WHERE t.tgname = %s AND pn.nspname = 'pgddl' AND p.proname = 'fence'
ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"

-- name: closed
SELECT DISTINCT k.schema, k.name, pg_catalog.substr(g.tgname, pg_catalog.length('pgddl_fence_') + 1) AS pipeline
FROM ROWS FROM (unnest(%s::name[]), unnest(%s::name[])) k(schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = k.name
CROSS JOIN LATERAL (SELECT c.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p WHERE p.level BETWEEN 0 AND 10000) t(relid)
JOIN pg_catalog.pg_trigger g ON g.tgrelid = t.relid AND NOT g.tgisinternal
JOIN pg_catalog.pg_proc f ON f.oid = g.tgfoid AND f.proname = 'fence'
JOIN pg_catalog.pg_namespace fn ON fn.oid = f.pronamespace AND fn.nspname = 'pgddl'
ORDER BY 1, 2, 3

-- name: note_birth
-- No window of this run has been acknowledged yet: a journal that knows of fewer than are from here on has lost some.
-- The position shows what has committed and this transaction itself: its own id is never among those in progress, and what lies
-- between the newest that has ended and it is.
UPDATE pgddl.captures SET
    window_no = 0, born_run = %s, born_at = pg_catalog.clock_timestamp(), born_lsn = pg_catalog.pg_current_wal_insert_lsn(),
    born_position = (
        SELECT pg_catalog.format('%%s:%%s:%%s', pg_catalog.pg_snapshot_xmin(s.now), greatest(pg_catalog.pg_snapshot_xmax(s.now)::text::bigint, s.own + 1),
                                 (SELECT pg_catalog.string_agg(x::text, ',' ORDER BY x)
                                  FROM (SELECT x::text::bigint AS x FROM pg_catalog.pg_snapshot_xip(s.now) x
                                        UNION
                                        SELECT pg_catalog.generate_series(pg_catalog.pg_snapshot_xmax(s.now)::text::bigint, s.own - 1)) ids
                                  WHERE x <> s.own))::pg_catalog.pg_snapshot
        FROM (SELECT pg_catalog.pg_current_snapshot() AS now, pg_catalog.pg_current_xact_id()::text::bigint AS own) s)
WHERE pipeline = %s

-- name: birth
SELECT born_run, born_position::text, born_lsn::text FROM pgddl.captures
WHERE pipeline = %s AND born_run IS NOT NULL

-- name: published
SELECT EXISTS (SELECT FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
               WHERE p.pubname = %s AND r.prrelid = %s)

-- name: relation_name
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s

-- name: lockable
SELECT n.nspname, c.relname, c.relkind = 'p'
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = %s AND c.relkind IN ('r', 'p')

-- name: triggers_of
-- By what they call: of a source that came back from a dump the oids that are recorded of leaves are those of another server.
SELECT p.proname, n.nspname, c.relname, t.tgname
FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE p.pronamespace = 'pgddl'::pg_catalog.regnamespace AND p.proname = ANY(%s::name[]) AND NOT t.tgisinternal
ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C", t.tgname COLLATE "C"

-- name: log_table
-- The trigger names neither xid nor at. Whoever writes a row after another transaction does so after that one's commit, whose WAL
-- lies between both readings of the position: in its order a row's keys follow each other, and no sequence has to be fought over.
CREATE TABLE {log} (op "char" NOT NULL, leaf oid NOT NULL, {keys},
    xid xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
    at pg_lsn NOT NULL DEFAULT pg_catalog.pg_current_wal_insert_lsn())
WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_insert_threshold = -1)

-- name: log_replica_identity
ALTER TABLE {log} REPLICA IDENTITY FULL

-- name: make_functions
SELECT pgddl.make_capture(%s, leaf) FROM pg_catalog.unnest(%s::oid[]) leaf

-- name: row_trigger
CREATE TRIGGER {trigger} AFTER INSERT OR UPDATE OR DELETE ON {relation} FOR EACH ROW EXECUTE FUNCTION {function}()

-- name: truncate_trigger
CREATE TRIGGER {trigger} AFTER TRUNCATE ON {relation} FOR EACH STATEMENT EXECUTE FUNCTION {function}()

-- name: enable_always
ALTER TABLE {relation} ENABLE ALWAYS TRIGGER {trigger}

-- name: fence
CREATE OR REPLACE TRIGGER {trigger} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {relation}
FOR EACH STATEMENT EXECUTE FUNCTION pgddl.fence({pipeline})
