-- name: server
-- The timeline of what is written now: the control file names that of the last checkpoint, minutes behind a failover.
SELECT pg_catalog.current_setting('server_version_num')::int,
       (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
       CASE WHEN pg_catalog.pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint())
            ELSE ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::int END,
       pg_catalog.current_database(),
       pg_catalog.current_setting('block_size')::int,
       (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())

-- name: database_name
-- Of a database that is there; one whose DROP was interrupted is not.
SELECT datname::text FROM pg_catalog.pg_database WHERE oid = %s AND datconnlimit <> -2

-- name: tables
-- Every table that people could name in a pipeline file: no partitions, no system, temporary or extension tables, none of ours.
SELECT c.oid, n.nspname, c.relname, c.relkind::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgddl')
  AND n.nspname !~ '^(pg_toast|pg_temp|pgddl_copy_|pgddl_old_)'
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                  WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e')
ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"

-- name: extension_tables
SELECT n.nspname, c.relname
FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_class c ON c.oid = d.objid AND c.relkind IN ('r', 'p')
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.deptype = 'e'
  AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass

-- name: partitions
-- Every partition, with the table that it is of.
SELECT n.nspname, c.relname, rn.nspname, r.relname
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class r ON r.oid = pg_catalog.pg_partition_root(c.oid)
JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
WHERE c.relispartition AND c.relkind IN ('r', 'p', 'f')

-- name: relations
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%(oids)s::oid[])

-- name: not_null_constraints
-- From 18 on.
SELECT conrelid, oid, conname, conkey[1], convalidated FROM pg_catalog.pg_constraint WHERE contype = 'n' AND conrelid = ANY(%s::oid[])

-- name: columns
-- base_type: domains resolved to what they are stored as; qualified by the empty search_path. Only a domain is
-- walked down from, and "OFFSET 0" has the type looked up by its index: the planner would read catalogs whole, for one table.
-- NOT NULL is what no row breaks: from 18 on it can be NOT VALID, and rows from before have NULLs.
SELECT a.attrelid, a.attnum, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
       a.atttypid, pg_catalog.format_type(t.oid, -1), t.oid, t.typtype::text, tn.nspname = 'pg_catalog',
       coalesce(e.oid, 0), coalesce(e.typtype::text, ''), coalesce(en.nspname = 'pg_catalog', false),
       a.attnotnull AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint v WHERE v.conrelid = a.attrelid AND v.contype = 'n'
                                    AND NOT v.convalidated AND v.conkey = ARRAY[a.attnum]),
       pg_catalog.pg_get_expr(d.adbin, d.adrelid), a.attgenerated::text, a.attidentity::text,
       CASE WHEN a.attcollation <> bt.typcollation OR a.attcollation NOT IN (0, 100)
            THEN (SELECT cn.nspname || '.' || co.collname FROM pg_catalog.pg_collation co
                  JOIN pg_catalog.pg_namespace cn ON cn.oid = co.collnamespace WHERE co.oid = a.attcollation) END
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type bt ON bt.oid = a.atttypid
CROSS JOIN LATERAL (
    SELECT t.* FROM pg_catalog.pg_type t WHERE t.oid = CASE bt.typtype WHEN 'd' THEN (
        WITH RECURSIVE base(oid) AS (
            SELECT bt.typbasetype
            UNION ALL
            SELECT y.typbasetype FROM base b JOIN pg_catalog.pg_type y ON y.oid = b.oid WHERE y.typtype = 'd'
        )
        SELECT b.oid FROM base b JOIN pg_catalog.pg_type y ON y.oid = b.oid WHERE y.typtype <> 'd') ELSE bt.oid END OFFSET 0) t
JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_catalog.pg_namespace en ON en.oid = e.typnamespace
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum

-- name: keys
-- The key of each table: its replica identity, else its primary key, else the first unique index that identifies every row; with the operator classes of its
-- columns, 0 for one of the server's own whose equality is pg_catalog's =, which is nearly all of them.
SELECT DISTINCT ON (i.indrelid) i.indrelid, ic.relname,
       ARRAY(SELECT k.attnum FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n)
             WHERE k.n <= i.indnkeyatts ORDER BY k.n),
       ARRAY(SELECT CASE WHEN o.oid < 16384 AND t.typtype <> 'p' THEN 0 ELSE k.opclass END::bigint
             FROM pg_catalog.unnest(i.indclass::oid[]) WITH ORDINALITY k(opclass, n)
             JOIN pg_catalog.pg_opclass o ON o.oid = k.opclass
             JOIN pg_catalog.pg_type t ON t.oid = o.opcintype
             WHERE k.n <= i.indnkeyatts ORDER BY k.n)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
WHERE i.indrelid = ANY(%(oids)s::oid[])
  AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
  AND (SELECT am.amname FROM pg_catalog.pg_am am WHERE am.oid = ic.relam) = 'btree'
  AND NOT EXISTS (SELECT FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n)
                  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                  WHERE k.n <= i.indnkeyatts
                    AND (NOT a.attnotnull OR EXISTS (SELECT FROM pg_catalog.pg_constraint v WHERE v.conrelid = a.attrelid AND v.contype = 'n'
                                                     AND NOT v.convalidated AND v.conkey = ARRAY[a.attnum])))
ORDER BY i.indrelid, i.indisreplident DESC, i.indisprimary DESC, i.indnkeyatts, ic.relname COLLATE "C"

-- name: operators
-- How values of a type are the same to an operator class of a btree: its own equality, qualified, as with an empty search_path an
-- extension type's = is not found otherwise. A type that is cast by itself to another has that one's = as well, and neither is
-- nearer than one of any enum, range or record: of such a type it is the function behind the operator, which no index serves.
SELECT w.opclass, w.type,
       CASE WHEN it.typtype = 'p' AND EXISTS (
                WITH RECURSIVE base(oid) AS (
                    SELECT w.type
                    UNION ALL
                    SELECT t.typbasetype FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid WHERE t.typtype = 'd')
                SELECT FROM base b JOIN pg_catalog.pg_cast c ON c.castsource = b.oid AND c.casttarget <> b.oid
                WHERE c.castcontext = 'i')
            THEN pg_catalog.format('%%I.%%I', pn.nspname, p.proname)
            ELSE 'OPERATOR(' || pg_catalog.quote_ident(opn.nspname) || '.' || o.oprname || ')' END
FROM unnest(%(opclasses)s::oid[], %(types)s::oid[]) w(opclass, type)
JOIN pg_catalog.pg_opclass oc ON oc.oid = w.opclass
JOIN pg_catalog.pg_type it ON it.oid = oc.opcintype
JOIN pg_catalog.pg_amop ao ON ao.amopfamily = oc.opcfamily AND ao.amopstrategy = 3
     AND ao.amoplefttype = oc.opcintype AND ao.amoprighttype = oc.opcintype
JOIN pg_catalog.pg_operator o ON o.oid = ao.amopopr
JOIN pg_catalog.pg_namespace opn ON opn.oid = o.oprnamespace
JOIN pg_catalog.pg_proc p ON p.oid = o.oprcode
JOIN pg_catalog.pg_namespace pn ON pn.oid = p.pronamespace

-- name: compared_columns
-- How each of these foreign keys compares its columns, referenced with referring; the operator as in the query `operators`.
SELECT f.oid, pa.attname::text,
       CASE WHEN ot.typtype = 'p' AND EXISTS (
                WITH RECURSIVE base(oid) AS (
                    VALUES (pa.atttypid), (ca.atttypid)
                    UNION ALL
                    SELECT t.typbasetype FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid WHERE t.typtype = 'd')
                SELECT FROM base b JOIN pg_catalog.pg_cast c ON c.castsource = b.oid AND c.casttarget <> b.oid
                WHERE c.castcontext = 'i')
            THEN pg_catalog.format('%%I.%%I', fs.nspname, fn.proname)
            ELSE pg_catalog.format('OPERATOR(%%I.%%s)', os.nspname, o.oprname) END,
       ca.attname::text
FROM pg_catalog.pg_constraint f
CROSS JOIN LATERAL unnest(f.conkey, f.confkey, f.conpfeqop) WITH ORDINALITY k(child, parent, operator, place)
JOIN pg_catalog.pg_attribute ca ON ca.attrelid = f.conrelid AND ca.attnum = k.child
JOIN pg_catalog.pg_attribute pa ON pa.attrelid = f.confrelid AND pa.attnum = k.parent
JOIN pg_catalog.pg_operator o ON o.oid = k.operator
JOIN pg_catalog.pg_namespace os ON os.oid = o.oprnamespace
JOIN pg_catalog.pg_type ot ON ot.oid = o.oprleft
JOIN pg_catalog.pg_proc fn ON fn.oid = o.oprcode JOIN pg_catalog.pg_namespace fs ON fs.oid = fn.pronamespace
WHERE f.oid = ANY(%(keys)s::oid[])
ORDER BY f.oid, k.place

-- name: leaves
-- What holds the rows: the table itself, or the leaves of a partitioned one as pg_inherits shows them to this snapshot.
-- "OFFSET 0" has each looked up by its index. filenode is 0 where the snapshot shows another file than there is by now: beside columns of then that of now would make a rewrite
-- between the two one that is known. attributes is a digest that every ALTER of a column changes, and no VACUUM FULL or TRUNCATE.
WITH RECURSIVE tree(root, relid) AS (
    SELECT c.oid, c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(oids)s::oid[])
    UNION ALL
    SELECT t.root, i.inhrelid
    FROM tree t
    JOIN pg_catalog.pg_class p ON p.oid = t.relid AND p.relkind = 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relid
)
SELECT t.root, c.oid, n.nspname, c.relname, c.relkind::text,
       coalesce(CASE WHEN pg_catalog.pg_relation_filenode(c.oid) = c.relfilenode THEN c.relfilenode END, 0),
       pg_catalog.md5((SELECT pg_catalog.string_agg(a.attnum || ':' || a.xmin::text, ',' ORDER BY a.attnum)
                       FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)),
       pg_catalog.pg_get_expr(c.relpartbound, c.oid),
       -- One of both triggers, or one that does not fire in every session, is as good as none.
       (SELECT CASE WHEN pg_catalog.bool_and(g.state NOT IN ('O', 'D', 'R')) AND pg_catalog.sum(g.trigger) IN (0, 2)
                    THEN pg_catalog.string_agg(g.name || ':' || g.state || ':' || g.version, ',' ORDER BY g.name COLLATE "C") END
        FROM (SELECT t.tgname::text AS name, t.tgenabled::text AS state, t.xmin::text AS version, 1 AS trigger
              FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = ANY(%(triggers)s::name[])
              UNION ALL
              SELECT p.pubname, r.oid::text, r.xmin::text, 0
              FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
              WHERE r.prrelid = c.oid AND p.pubname = ANY(%(triggers)s::name[])) g)
FROM tree t
CROSS JOIN LATERAL (SELECT c.* FROM pg_catalog.pg_class c WHERE c.oid = t.relid AND c.relkind <> 'p' OFFSET 0) c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY t.root, n.nspname COLLATE "C", c.relname COLLATE "C"

-- name: as_read
-- A digest of each table, with its partitions, that changes with whatever its capture is made for: names, columns and their types,
-- indexes and constraints, which make the key, and partitions. Every ALTER writes a new version of its catalog row, hence xmin; pg_class
-- alone is also written by VACUUM.
WITH RECURSIVE tree(root, relid) AS (
    SELECT c.oid, c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(oids)s::oid[])
    UNION ALL
    SELECT t.root, i.inhrelid
    FROM tree t
    JOIN pg_catalog.pg_class p ON p.oid = t.relid AND p.relkind = 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relid
)
SELECT t.root, pg_catalog.md5(pg_catalog.string_agg(pg_catalog.concat_ws(':', t.relid, v.named, v.columns, v.defaults, v.indexes, v.constraints, v.part),
                                                    ',' ORDER BY t.relid))
FROM tree t
CROSS JOIN LATERAL (
    SELECT (SELECT pg_catalog.format('%%I.%%I %%s %%s', n.nspname, c.relname, c.relkind, c.relpersistence)
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = t.relid) AS named,
           (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', a.attnum, a.xmin, CASE WHEN a.atttypid >= 16384 THEN
                       (SELECT y.xmin FROM pg_catalog.pg_type y WHERE y.oid = a.atttypid) END), ',' ORDER BY a.attnum)
            FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.relid AND a.attnum > 0) AS columns,
           (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', d.oid, d.xmin), ',' ORDER BY d.oid)
            FROM pg_catalog.pg_attrdef d WHERE d.adrelid = t.relid) AS defaults,
           (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', i.indexrelid, i.xmin), ',' ORDER BY i.indexrelid)
            FROM pg_catalog.pg_index i WHERE i.indrelid = t.relid) AS indexes,
           (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', k.oid, k.xmin), ',' ORDER BY k.oid)
            FROM pg_catalog.pg_constraint k WHERE k.conrelid = t.relid) AS constraints,
           (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', i.inhparent, i.xmin), ',' ORDER BY i.inhparent)
            FROM pg_catalog.pg_inherits i WHERE i.inhrelid = t.relid) AS part
) v
GROUP BY t.root

-- name: relations_partitioned_by
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
       CASE WHEN c.relkind = 'p' THEN pg_catalog.pg_get_partkeydef(c.oid) END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%(oids)s::oid[])

-- name: partitioned_as
SELECT pg_catalog.pg_get_partkeydef(p.partrelid), p.partdefid <> 0,
       EXISTS (SELECT FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class x ON x.oid = i.inhrelid AND x.relkind = 'p'
               WHERE i.inhparent = p.partrelid)
FROM pg_catalog.pg_partitioned_table p
JOIN pg_catalog.pg_class c ON c.oid = p.partrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s

-- name: leaf_paths
-- The leaves of a partitioned table, by which bounds a row comes to each: from the root down the key of every parent and the bound of
-- its child; where that is DEFAULT, with those of all others, which tell what it is the rest of. With the database's encoding, and
-- how the key is ordered, which is not the same on every server.
WITH RECURSIVE tree(relid, path) AS (
    SELECT c.oid, '[]'::jsonb
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
    UNION ALL
    SELECT i.inhrelid, t.path || pg_catalog.jsonb_build_array(pg_catalog.pg_get_partkeydef(t.relid), b.bound, (
               SELECT pg_catalog.jsonb_agg(CASE k.oid WHEN 100 THEN d.ordered ELSE pg_catalog.jsonb_build_array(
                   k.collname, k.collprovider, k.collcollate, k.collversion, d.ordered -> 0) END)
               FROM pg_catalog.unnest(p.partcollation::oid[]) c(oid) JOIN pg_catalog.pg_collation k ON k.oid = c.oid
               WHERE p.partstrat <> 'l'), CASE b.bound WHEN 'DEFAULT' THEN (
               SELECT pg_catalog.jsonb_agg(pg_catalog.pg_get_expr(x.relpartbound, x.oid) ORDER BY pg_catalog.pg_get_expr(x.relpartbound, x.oid) COLLATE "C")
               FROM pg_catalog.pg_inherits o JOIN pg_catalog.pg_class x ON x.oid = o.inhrelid WHERE o.inhparent = t.relid) END)
    FROM tree t
    JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = t.relid
    CROSS JOIN (SELECT pg_catalog.jsonb_build_array(d.encoding, d.datcollate, coalesce(j ->> 'datlocprovider', 'c'),
                       coalesce(j ->> 'datlocale', j ->> 'daticulocale'), j ->> 'datcollversion')
                FROM pg_catalog.pg_database d CROSS JOIN LATERAL pg_catalog.to_jsonb(d) j
                WHERE d.datname = pg_catalog.current_database()) d(ordered)
    JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relid
    CROSS JOIN LATERAL (SELECT pg_catalog.pg_get_expr(c.relpartbound, c.oid) FROM pg_catalog.pg_class c WHERE c.oid = i.inhrelid) b(bound)
)
SELECT t.relid, n.nspname, c.relname, t.path::text
FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind <> 'p'

-- name: sizes
SELECT c.oid, pg_catalog.pg_relation_size(c.oid) / pg_catalog.current_setting('block_size')::int, pg_catalog.pg_table_size(c.oid)
FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(oids)s::oid[])

-- name: all_relations
-- What holds columns, but for the system's own, ours and sessions' temporary ones.
SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgddl') AND n.nspname !~ '^(pg_toast|pg_temp|pgddl_)'

-- name: oid_of
SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s

-- name: oids_of
SELECT n.nspname, c.relname, c.oid
FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS v(schema_name, table_name)
JOIN pg_catalog.pg_namespace n ON n.nspname = v.schema_name
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = v.table_name

-- name: logged
SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(oids)s::oid[]) AND c.relpersistence = 'p'

-- name: own_types
-- Of columns whose type is the server's own: its name, which is the same on every server.
SELECT a.attrelid, a.attname, pg_catalog.format_type(a.atttypid, -1)
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid < 10000

-- name: strong_locks_outside
-- Relations of users, outside our own schemas, that this transaction holds more on than a reader's or a row locker's lock. A partition
-- is where its root is: of a copy, an older version had moved them before it.
SELECT n.nspname, c.relname
FROM pg_catalog.pg_locks l
LEFT JOIN pg_catalog.pg_index x ON x.indexrelid = l.relation
JOIN pg_catalog.pg_class c
    ON c.oid = coalesce(pg_catalog.pg_partition_root(coalesce(x.indrelid, l.relation)), x.indrelid, l.relation)
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation'
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
  AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
  AND n.nspname <> 'pgddl' AND n.nspname !~ '^(pg_|pgddl_copy_|information_schema$)'

-- name: waiting_behind
-- Who has waited longest behind this session for a relation (a table, one of its leaves, an index): seconds, process, statement, and
-- since when by the server's clock.
-- Nearly always nobody does, and what the others do is not looked at; nor are the server's locks, which are copied to be read, where
-- no session waits for a relation, as far as we may see that of others (pg_read_all_stats).
SELECT coalesce(extract(epoch FROM pg_catalog.clock_timestamp() - l.waitstart), 0)::float8, l.pid,
       (SELECT a.query FROM pg_catalog.pg_stat_activity a WHERE a.pid = l.pid), l.waitstart
FROM pg_catalog.pg_locks l
WHERE EXISTS (SELECT FROM pg_catalog.pg_stat_get_activity(NULL) a
              WHERE a.wait_event_type = 'Lock' AND a.wait_event = 'relation' OR a.query = '<insufficient privilege>')
  AND NOT l.granted AND l.locktype = 'relation' AND %s = ANY(pg_catalog.pg_blocking_pids(l.pid))
ORDER BY l.waitstart LIMIT 1

-- name: holders
-- Who holds one of a pipeline's tables, or a part of one, in one of these modes, the oldest transaction first: process and statement, or
-- the name of a transaction that is prepared, which no process has: a lock that it holds on its own number says which it is.
WITH held AS MATERIALIZED (
    SELECT l.pid, l.virtualtransaction FROM pg_catalog.pg_locks l
    JOIN pgddl.captured c ON c.pipeline = %(pipeline)s AND l.relation IN (c.root, c.leaf)
    WHERE l.granted AND l.locktype = 'relation' AND l.mode = ANY(%(modes)s::text[])
      AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
)
SELECT f.pid, f.query, f.gid FROM (
    SELECT a.pid, a.query, NULL::text AS gid, a.xact_start AS since
    FROM pg_catalog.pg_stat_activity a
    WHERE a.pid IN (SELECT h.pid FROM held h) AND pg_catalog.starts_with(a.application_name, %(ours)s) IS NOT TRUE
    UNION ALL
    SELECT NULL, NULL, p.gid, p.prepared
    FROM pg_catalog.pg_prepared_xacts p
    WHERE EXISTS (SELECT FROM pg_catalog.pg_locks o JOIN held h ON h.pid IS NULL AND h.virtualtransaction = o.virtualtransaction
                  WHERE o.pid IS NULL AND o.granted AND o.locktype = 'transactionid' AND o.transactionid = p.transaction)
) f
ORDER BY f.since, f.gid LIMIT 3

-- name: waited_for
-- Whom sessions of ours wait for: process and statement, or the name of a transaction that is prepared.
WITH ours AS MATERIALIZED (
    SELECT a.pid, pg_catalog.pg_blocking_pids(a.pid) AS blocking FROM pg_catalog.pg_stat_activity a
    WHERE a.datname = pg_catalog.current_database() AND a.wait_event_type = 'Lock'
      AND pg_catalog.starts_with(a.application_name, %(ours)s)
)
SELECT b.pid, b.query, NULL::text AS gid
FROM ours JOIN pg_catalog.pg_stat_activity b ON b.pid = ANY(ours.blocking)
WHERE pg_catalog.starts_with(b.application_name, %(ours)s) IS NOT TRUE
UNION
SELECT NULL, NULL, p.gid
FROM ours
JOIN pg_catalog.pg_locks w ON w.pid = ours.pid AND NOT w.granted
JOIN pg_catalog.pg_locks h ON h.granted AND h.pid IS NULL AND h.locktype = w.locktype
     AND h.database IS NOT DISTINCT FROM w.database AND h.relation IS NOT DISTINCT FROM w.relation
     AND h.transactionid IS NOT DISTINCT FROM w.transactionid AND h.objid IS NOT DISTINCT FROM w.objid
JOIN pg_catalog.pg_locks o ON o.pid IS NULL AND o.virtualtransaction = h.virtualtransaction AND o.locktype = 'transactionid' AND o.granted
JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = o.transactionid
WHERE 0 = ANY(ours.blocking)
ORDER BY pid, gid LIMIT 3

-- name: working
-- Backends of this pipeline that work with another token than ours, and of our role: anybody can give his session such a name.
-- A database beside this one may have a pipeline of the same name. By the function behind pg_stat_activity, which takes a new
-- session ten times as long to read and plan.
SELECT pid, backend_start, pg_catalog.split_part(application_name, ':', 3)
FROM pg_catalog.pg_stat_get_activity(NULL)
WHERE application_name LIKE %(prefix)s AND pid <> pg_catalog.pg_backend_pid()
  AND datid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
  AND usesysid = (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = session_user)
  AND pg_catalog.split_part(application_name, ':', 3) <> ALL(%(but)s::text[])

-- name: terminate
SELECT count(pg_catalog.pg_terminate_backend(a.pid, 5000))
FROM ROWS FROM (pg_catalog.unnest(%s::int[]), pg_catalog.unnest(%s::timestamptz[])) s(pid, backend_start)
JOIN pg_catalog.pg_stat_get_activity(NULL) a ON a.pid = s.pid AND a.backend_start = s.backend_start

-- name: terminate_workers
-- The sessions of one kind of worker of one run; how many there were. One that ends by itself just now is told of as one that
-- does not end.
SELECT count(pg_catalog.pg_terminate_backend(pid, 5000))
FROM pg_catalog.pg_stat_activity WHERE application_name = ANY(%s) AND datname = pg_catalog.current_database() AND usename = session_user

-- name: workers
-- How many sessions there are of one kind of worker of one run.
SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE application_name = %s AND datname = pg_catalog.current_database()

-- name: transactions_before
-- Transactions that were in progress when the snapshot was taken and have not ended, with who holds them.
SELECT x.xid::text, coalesce(a.pid::text, ''), coalesce(pg_catalog.pg_get_userbyid(a.usesysid)::text, p.owner::text, ''), coalesce(p.gid, '')
FROM pg_catalog.pg_snapshot_xip(%(snapshot)s::pg_catalog.pg_snapshot) x(xid)
LEFT JOIN pg_catalog.pg_stat_get_activity(NULL) a ON a.backend_xid = x.xid::pg_catalog.xid
LEFT JOIN pg_catalog.pg_database d ON d.oid = a.datid
LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = x.xid::pg_catalog.xid
WHERE NOT pg_catalog.pg_visible_in_snapshot(x.xid, pg_catalog.pg_current_snapshot())
  AND coalesce(d.datname, p.database, pg_catalog.current_database()) = pg_catalog.current_database()

-- name: partition_roots
-- Of partitioned tables that are partitions themselves: what they are below, at the top.
SELECT c.oid::bigint, pg_catalog.pg_partition_root(c.oid)::oid::bigint
FROM pg_catalog.pg_class c WHERE c.oid = ANY(%s::oid[]) AND c.relkind = 'p' AND c.relispartition

-- name: schema_digest
-- A digest that any change of a schema changes: of these tables and what belongs to them, or (oids null) of everything that a
-- dump shows. Cheaper than a dump; a REINDEX CONCURRENTLY changes it too, so a difference means "look closer". Our own objects
-- and the relations `out` are left out. Every ALTER writes a new version of its catalog row, hence xmin; pg_class alone is also written
-- by VACUUM.
WITH gone AS (
    SELECT o.oid FROM pg_catalog.unnest(%(out)s::oid[]) o(oid)
), out AS (
    TABLE gone
    UNION ALL SELECT i.indexrelid FROM pg_catalog.pg_index i WHERE i.indrelid IN (TABLE gone)
    UNION ALL SELECT d.objid FROM pg_catalog.pg_depend d  -- an identity's sequence; a serial's is in dumps all the same
    WHERE d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid IN (TABLE gone)
      AND d.classid = d.refclassid AND d.deptype = 'i'
), out_type AS (
    SELECT t.oid, t.typarray FROM pg_catalog.pg_type t WHERE t.typrelid IN (TABLE gone)
), out_part(class, oid) AS (
    SELECT 'pg_catalog.pg_class'::pg_catalog.regclass::oid, o.oid FROM out o
    UNION ALL SELECT t.tableoid, t.oid FROM pg_catalog.pg_trigger t WHERE t.tgrelid IN (TABLE gone)
    UNION ALL SELECT c.tableoid, c.oid FROM pg_catalog.pg_constraint c WHERE c.conrelid IN (TABLE gone)
    UNION ALL SELECT p.tableoid, p.oid FROM pg_catalog.pg_policy p WHERE p.polrelid IN (TABLE gone)
    UNION ALL SELECT r.tableoid, r.oid FROM pg_catalog.pg_rewrite r WHERE r.ev_class IN (TABLE gone)
    UNION ALL SELECT s.tableoid, s.oid FROM pg_catalog.pg_statistic_ext s WHERE s.stxrelid IN (TABLE gone)
), rel AS (
    SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relpersistence <> 't' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgddl')
      AND n.nspname !~ '^(pg_toast|pg_temp|pgddl_copy_|pgddl_old_)' AND c.oid NOT IN (TABLE out)
      AND (%(oids)s::oid[] IS NULL OR c.oid = ANY(%(oids)s::oid[])
           OR c.oid IN (SELECT i.indexrelid FROM pg_catalog.pg_index i WHERE i.indrelid = ANY(%(oids)s::oid[]))
           OR c.relkind = 'S' AND c.oid IN (
                SELECT d.objid FROM pg_catalog.pg_depend d
                WHERE d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = ANY(%(oids)s::oid[])
                  AND d.classid = d.refclassid AND d.deptype IN ('a', 'i')))
), spaces AS (
    SELECT oid FROM pg_catalog.pg_namespace
    WHERE %(oids)s::oid[] IS NULL AND nspname NOT IN ('pg_catalog', 'information_schema') AND nspname !~ '^(pg_|pgddl)'
), part(class, oid, version) AS (
    SELECT t.tableoid, t.oid, t.xmin FROM pg_catalog.pg_trigger t
    WHERE t.tgrelid IN (TABLE rel) AND NOT t.tgisinternal AND t.tgname !~ '^pgddl_'
    UNION ALL SELECT c.tableoid, c.oid, c.xmin FROM pg_catalog.pg_constraint c
    WHERE c.contype <> 't' AND c.conrelid NOT IN (TABLE gone) AND (c.conrelid IN (TABLE rel) OR c.confrelid IN (TABLE rel) OR c.contypid <> 0 AND %(oids)s::oid[] IS NULL)
    UNION ALL SELECT d.tableoid, d.oid, d.xmin FROM pg_catalog.pg_attrdef d WHERE d.adrelid IN (TABLE rel)
    UNION ALL SELECT p.tableoid, p.oid, p.xmin FROM pg_catalog.pg_policy p WHERE p.polrelid IN (TABLE rel)
    UNION ALL SELECT r.tableoid, r.oid, r.xmin FROM pg_catalog.pg_rewrite r WHERE r.ev_class IN (TABLE rel)
    UNION ALL SELECT s.tableoid, s.oid, s.xmin FROM pg_catalog.pg_statistic_ext s WHERE s.stxrelid IN (TABLE rel)
    UNION ALL SELECT n.tableoid, n.oid, n.xmin FROM pg_catalog.pg_namespace n WHERE n.oid IN (TABLE spaces)
    UNION ALL SELECT p.tableoid, p.oid, p.xmin FROM pg_catalog.pg_proc p WHERE p.pronamespace IN (TABLE spaces)
    UNION ALL SELECT t.tableoid, t.oid, t.xmin FROM pg_catalog.pg_type t WHERE t.typnamespace IN (TABLE spaces)
          AND NOT EXISTS (SELECT FROM out_type o WHERE t.oid IN (o.oid, o.typarray))
    UNION ALL SELECT o.tableoid, o.oid, o.xmin FROM pg_catalog.pg_operator o WHERE o.oprnamespace IN (TABLE spaces)
    UNION ALL SELECT o.tableoid, o.oid, o.xmin FROM pg_catalog.pg_opclass o WHERE o.opcnamespace IN (TABLE spaces)
    UNION ALL SELECT o.tableoid, o.oid, o.xmin FROM pg_catalog.pg_opfamily o WHERE o.opfnamespace IN (TABLE spaces)
    UNION ALL SELECT c.tableoid, c.oid, c.xmin FROM pg_catalog.pg_collation c WHERE c.collnamespace IN (TABLE spaces)
    UNION ALL SELECT c.tableoid, c.oid, c.xmin FROM pg_catalog.pg_conversion c WHERE c.connamespace IN (TABLE spaces)
    UNION ALL SELECT t.tableoid, t.oid, t.xmin FROM pg_catalog.pg_ts_config t WHERE t.cfgnamespace IN (TABLE spaces)
    UNION ALL SELECT t.tableoid, t.oid, t.xmin FROM pg_catalog.pg_ts_dict t WHERE t.dictnamespace IN (TABLE spaces)
    UNION ALL SELECT t.tableoid, t.oid, t.xmin FROM pg_catalog.pg_ts_parser t WHERE t.prsnamespace IN (TABLE spaces)
    UNION ALL SELECT t.tableoid, t.oid, t.xmin FROM pg_catalog.pg_ts_template t WHERE t.tmplnamespace IN (TABLE spaces)
    UNION ALL SELECT * FROM (
        SELECT e.tableoid, e.oid, e.xmin FROM pg_catalog.pg_enum e
        UNION ALL SELECT a.tableoid, a.oid, a.xmin FROM pg_catalog.pg_default_acl a
        UNION ALL SELECT c.tableoid, c.oid, c.xmin FROM pg_catalog.pg_cast c WHERE c.oid >= 16384
        UNION ALL SELECT a.tableoid, a.oid, a.xmin FROM pg_catalog.pg_amop a WHERE a.oid >= 16384
        UNION ALL SELECT a.tableoid, a.oid, a.xmin FROM pg_catalog.pg_amproc a WHERE a.oid >= 16384
        UNION ALL SELECT a.tableoid, a.oid, a.xmin FROM pg_catalog.pg_am a
        UNION ALL SELECT l.tableoid, l.oid, l.xmin FROM pg_catalog.pg_language l
        UNION ALL SELECT t.tableoid, t.oid, t.xmin FROM pg_catalog.pg_transform t
        UNION ALL SELECT e.tableoid, e.oid, e.xmin FROM pg_catalog.pg_extension e
        UNION ALL SELECT e.tableoid, e.oid, e.xmin FROM pg_catalog.pg_event_trigger e WHERE e.evtname !~ '^pgddl_'
        UNION ALL SELECT f.tableoid, f.oid, f.xmin FROM pg_catalog.pg_foreign_data_wrapper f
        UNION ALL SELECT f.tableoid, f.oid, f.xmin FROM pg_catalog.pg_foreign_server f
        UNION ALL SELECT m.tableoid, m.mapcfg, m.xmin FROM pg_catalog.pg_ts_config_map m WHERE m.mapcfg >= 16384
    ) anywhere WHERE %(oids)s::oid[] IS NULL
)
SELECT pg_catalog.md5(pg_catalog.string_agg(x, ',' ORDER BY x COLLATE "C")) FROM (
    SELECT pg_catalog.concat_ws(':', 'class', c.oid, c.relname, c.relnamespace, c.relowner, c.relkind, c.relacl::text,
        c.reloptions::text, c.relrowsecurity, c.relforcerowsecurity, c.relreplident, c.reltablespace, c.relpersistence, c.relam,
        c.reloftype, (SELECT t.reloptions::text FROM pg_catalog.pg_class t WHERE t.oid = c.reltoastrelid))
    FROM pg_catalog.pg_class c WHERE c.oid IN (TABLE rel)
    UNION ALL SELECT 'column:' || a.attrelid || ':' || a.attnum || ':' || a.xmin::text
    FROM pg_catalog.pg_attribute a WHERE a.attrelid IN (TABLE rel) AND a.attnum > 0
    UNION ALL SELECT 'index:' || i.indexrelid || ':' || i.xmin::text FROM pg_catalog.pg_index i WHERE i.indexrelid IN (TABLE rel)
    UNION ALL SELECT 'sequence:' || s.seqrelid || ':' || s.xmin::text FROM pg_catalog.pg_sequence s WHERE s.seqrelid IN (TABLE rel)
    UNION ALL SELECT 'foreign:' || f.ftrelid || ':' || f.xmin::text FROM pg_catalog.pg_foreign_table f WHERE f.ftrelid IN (TABLE rel)
    UNION ALL SELECT 'inherits:' || i.inhrelid || ':' || i.inhparent || ':' || i.xmin::text
    FROM pg_catalog.pg_inherits i WHERE (i.inhrelid IN (TABLE rel) OR i.inhparent IN (TABLE rel)) AND i.inhrelid NOT IN (TABLE out)
    UNION ALL SELECT 'part:' || p.class || ':' || p.oid || ':' || p.version::text FROM part p
    UNION ALL SELECT 'comment:' || d.classoid || ':' || d.objoid || ':' || d.objsubid || ':' || d.xmin::text
    FROM pg_catalog.pg_description d
    WHERE %(oids)s::oid[] IS NULL AND (d.objoid >= 12000 OR d.classoid = 'pg_catalog.pg_namespace'::pg_catalog.regclass)
          AND (d.classoid, d.objoid) NOT IN (TABLE out_part)
          AND NOT (d.classoid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
                   AND d.objoid IN (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname ~ '^pgddl'))
       OR d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objoid IN (TABLE rel)
       OR (d.classoid, d.objoid) IN (SELECT p.class, p.oid FROM part p)
    UNION ALL SELECT 'label:' || l.classoid || ':' || l.objoid || ':' || l.objsubid || ':' || l.xmin::text
    FROM pg_catalog.pg_seclabel l
    WHERE %(oids)s::oid[] IS NULL AND (l.classoid, l.objoid) NOT IN (TABLE out_part)
       OR l.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND l.objoid IN (TABLE rel)
    UNION ALL SELECT pg_catalog.concat_ws(':', 'user mapping', m.umid, m.umuser, m.umoptions::text)
    FROM pg_catalog.pg_user_mappings m WHERE %(oids)s::oid[] IS NULL
) digested(x)

-- name: index_definition
-- As a statement, whatever index and table are called.
SELECT '', pg_catalog.format('CREATE %%sINDEX i ON t%%s', CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, pg_catalog.substr(
    pg_catalog.pg_get_indexdef(i.indexrelid),
    1 + pg_catalog.length(pg_catalog.format('CREATE %%sINDEX %%I ON %%s%%I.%%I',
        CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, c.relname, CASE WHEN c.relkind = 'I' THEN 'ONLY ' ELSE '' END,
        tn.nspname, t.relname))))
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class t ON t.oid = i.indrelid JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
WHERE n.nspname = %s AND c.relname = %s

-- name: partition_indexes
-- (level, schema, partition, the parent's index, its own index) of a partitioned table, from the top.
SELECT t.level, n.nspname, r.relname, p.relname, c.relname
FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass(pg_catalog.format('%%I.%%I', %s::text, %s::text))) t
JOIN pg_catalog.pg_class r ON r.oid = t.relid
JOIN pg_catalog.pg_index x ON x.indrelid = r.oid
JOIN pg_catalog.pg_class c ON c.oid = x.indexrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
JOIN pg_catalog.pg_class p ON p.oid = i.inhparent
ORDER BY 1, 2, 3, 4

-- name: statistics_definition
-- Its kinds and its target, and the rest as a statement, whatever it and its table are called.
SELECT pg_catalog.format('%%s %%s', s.stxkind, nullif(s.stxstattarget, -1)),
       pg_catalog.format('CREATE STATISTICS s ON %%s FROM t', pg_catalog.pg_get_statisticsobjdef_columns(s.oid))
FROM pg_catalog.pg_statistic_ext s JOIN pg_catalog.pg_namespace n ON n.oid = s.stxnamespace
WHERE n.nspname = %s AND s.stxname = %s

-- name: marks
-- How a table is known to replication, and the index that CLUSTER goes by, as actions of an ALTER TABLE.
SELECT 'REPLICA IDENTITY ' || CASE c.relreplident
           WHEN 'd' THEN 'DEFAULT' WHEN 'f' THEN 'FULL' WHEN 'n' THEN 'NOTHING'
           ELSE coalesce('USING INDEX ' || pg_catalog.quote_ident(
               (SELECT x.relname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
                WHERE i.indrelid = c.oid AND i.indisreplident)), 'NOTHING') END,
       coalesce('CLUSTER ON ' || pg_catalog.quote_ident(
           (SELECT x.relname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
            WHERE i.indrelid = c.oid AND i.indisclustered)), 'SET WITHOUT CLUSTER')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s

-- name: table_settings
-- Whatever a table and its columns are set to that no comparison of columns shows.
SELECT c.relpersistence, c.relam, c.reltablespace, c.reloftype, c.reloptions::text,
       (SELECT t.reloptions::text FROM pg_catalog.pg_class t WHERE t.oid = c.reltoastrelid),
       (SELECT pg_catalog.array_agg((a.attname, a.attstattarget, a.attstorage, a.attcompression, a.attoptions::text)::text
                                    ORDER BY a.attname)
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s

-- name: is_of_constraint
SELECT EXISTS (SELECT FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.conindid
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = %s AND c.relname = %s AND k.contype IN ('p', 'u', 'x'))

-- name: user_oids
SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid >= 16384
UNION ALL SELECT p.oid FROM pg_catalog.pg_proc p WHERE p.oid >= 16384
UNION ALL SELECT t.oid FROM pg_catalog.pg_trigger t WHERE NOT t.tgisinternal

-- name: free_connections
-- How many connections can still be opened, of how many, by what limits them: the server, to a role that is no superuser; database
-- and role where they have a limit, which is none for superusers. Of other roles' sessions a role may see little but the database.
WITH s AS MATERIALIZED (
    SELECT a.datid, a.usesysid, a.backend_type FROM pg_catalog.pg_stat_get_activity(NULL) a
    WHERE a.backend_type IN ('client backend', 'walsender') OR a.backend_type IS NULL AND a.datid IS NOT NULL
)
SELECT m.setting::int - pg_catalog.current_setting('superuser_reserved_connections')::int
           - coalesce(pg_catalog.current_setting('reserved_connections', true), '0')::int
           - (SELECT count(*) FROM s WHERE s.backend_type IS DISTINCT FROM 'walsender'),
       m.setting::int, 'server'
FROM pg_catalog.current_setting('max_connections') m(setting)
UNION ALL SELECT d.datconnlimit - (SELECT count(*) FROM s WHERE s.datid = d.oid), d.datconnlimit, 'database'
FROM pg_catalog.pg_database d JOIN pg_catalog.pg_roles r ON r.rolname = session_user AND NOT r.rolsuper
WHERE d.datname = pg_catalog.current_database() AND d.datconnlimit >= 0
UNION ALL SELECT r.rolconnlimit - (SELECT count(*) FROM s WHERE s.usesysid = r.oid), r.rolconnlimit, 'role'
FROM pg_catalog.pg_roles r WHERE r.rolname = session_user AND NOT r.rolsuper AND r.rolconnlimit >= 0
