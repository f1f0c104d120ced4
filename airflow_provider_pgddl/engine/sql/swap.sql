-- name: foreign_keys
-- Every foreign key from or to these tables, with the definition to make it again (qualified by the empty search_path).
SELECT c.oid, c.conname, c.conrelid, c.confrelid, n.nspname, r.relname, fn.nspname, f.relname,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.conrelid AND a.attnum = ANY(c.conkey)),
       pg_catalog.pg_get_constraintdef(c.oid), c.convalidated, pg_catalog.obj_description(c.oid, 'pg_constraint')
FROM pg_catalog.pg_constraint c
JOIN pg_catalog.pg_class r ON r.oid = c.conrelid
JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
JOIN pg_catalog.pg_class f ON f.oid = c.confrelid
JOIN pg_catalog.pg_namespace fn ON fn.oid = f.relnamespace
WHERE c.contype = 'f' AND c.conparentid = 0
  AND (c.conrelid = ANY(%(oids)s::oid[]) OR c.confrelid = ANY(%(oids)s::oid[]))
ORDER BY n.nspname COLLATE "C", r.relname COLLATE "C", c.conname COLLATE "C"

-- name: named_checks
-- Of each CHECK and NOT NULL of a table: its kind (CHECK or NOTNULL), its name, a NOT NULL's column, whether it is NO INHERIT.
SELECT CASE k.contype WHEN 'c' THEN 'CHECK' ELSE 'NOTNULL' END, k.conname::text, coalesce(a.attname::text, ''), k.connoinherit
FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class c ON c.oid = k.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute a ON k.contype = 'n' AND a.attrelid = k.conrelid AND a.attnum = k.conkey[1]
WHERE n.nspname = %s AND c.relname = %s AND k.contype IN ('c', 'n')

-- name: owned_sequences
-- The sequences of a table's columns: deptype a is a serial's (kept, it goes over), i an identity's (the copy has its own).
SELECT d.deptype::text, n.nspname, s.relname, a.attname, q.seqtypid::pg_catalog.regtype::text,
       pg_catalog.format_type(a.atttypid, a.atttypmod)
FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_class s ON s.oid = d.objid AND s.relkind = 'S'
JOIN pg_catalog.pg_namespace n ON n.oid = s.relnamespace
JOIN pg_catalog.pg_sequence q ON q.seqrelid = s.oid
JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
  AND d.refobjid = %s AND d.deptype IN ('a', 'i')
ORDER BY a.attnum

-- name: statistics_of
SELECT n.nspname, s.stxname
FROM pg_catalog.pg_statistic_ext s JOIN pg_catalog.pg_namespace n ON n.oid = s.stxnamespace
WHERE s.stxrelid = %s ORDER BY 1, 2

-- name: identity_copy
SELECT n.nspname, s.relname
FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_class s ON s.oid = d.objid AND s.relkind = 'S'
JOIN pg_catalog.pg_namespace n ON n.oid = s.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
  AND d.refobjid = %s AND d.deptype = 'i' AND a.attname = %s

-- name: old_snapshots
-- Other sessions of this database that hold a snapshot over statements: an idle one surely, an active one if its transaction is
-- older than its statement. Of those only such as are under way for longer than an application's own transactions: a busy server
-- has some of these at any time, the ones that wait for our lock among them, and the swap would never come.
SELECT max(pid) FROM pg_catalog.pg_stat_activity
WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid() AND backend_xmin IS NOT NULL
  AND backend_type = 'client backend' AND application_name NOT LIKE 'pgddl:%'
  AND (state LIKE 'idle in transaction%'
       OR xact_start < query_start AND xact_start < pg_catalog.clock_timestamp() - interval '1 s')

-- name: granted_by_default
-- On a table and on the sequences of its identity columns; a serial's sequence is not a new one.
SELECT c.oid::pg_catalog.regclass::text, r.rolname
FROM pg_catalog.pg_class c
CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a
LEFT JOIN pg_catalog.pg_roles r ON r.oid = a.grantee
WHERE a.grantee <> c.relowner
  AND c.oid IN (SELECT t.oid FROM pg_catalog.pg_class t JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
                WHERE tn.nspname = %(schema)s AND t.relname = %(name)s
                UNION ALL
                SELECT d.objid FROM pg_catalog.pg_class t JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
                JOIN pg_catalog.pg_depend d ON d.refobjid = t.oid AND d.deptype = 'i'
                WHERE tn.nspname = %(schema)s AND t.relname = %(name)s
                  AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = d.classid)
GROUP BY 1, 2

-- name: carry_identity
-- Sessions that wait for the old sequence's lock at this moment still draw from it once we commit. The new one leaves room
-- for one draw of each session that there can be, unless it is nearly used up.
SELECT pg_catalog.setval(q.seqrelid, (CASE WHEN f.fits THEN l.last_value + g.gap ELSE l.last_value END)::bigint, l.is_called OR f.fits)
FROM {live} l
JOIN pg_catalog.pg_sequence q ON q.seqrelid = {copy}::pg_catalog.regclass
CROSS JOIN LATERAL (SELECT q.seqincrement::numeric * q.seqcache * pg_catalog.current_setting('max_connections')::int) g(gap)
CROSS JOIN LATERAL (
    SELECT NOT q.seqcycle
           AND pg_catalog.abs((CASE WHEN g.gap > 0 THEN q.seqmax ELSE q.seqmin END)::numeric - l.last_value) > 100 * pg_catalog.abs(g.gap)
) f(fits)

-- name: schema_objects
SELECT count(*) FROM pg_catalog.pg_depend
WHERE refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
  AND refobjid = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %s)

-- name: materialized_views
SELECT n.nspname, c.relname, c.relispopulated
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'm' ORDER BY c.oid

-- name: partitions_of
SELECT n.nspname, c.relname FROM pg_catalog.pg_partition_tree(%s::pg_catalog.regclass) t
JOIN pg_catalog.pg_class c ON c.oid = t.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace

-- name: key_partitions
-- The partitions of a partitioned table that have rows of their own, with the names of the constraints that are on each.
SELECT n.nspname, c.relname, ARRAY(SELECT k.conname::text FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid)
FROM pg_catalog.pg_class r JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
CROSS JOIN LATERAL pg_catalog.pg_partition_tree(r.oid) t
JOIN pg_catalog.pg_class c ON c.oid = t.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE rn.nspname = %s AND r.relname = %s AND r.relkind = 'p' AND c.relkind = 'r'
ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"

-- name: unproven_partition
-- A partition on which a foreign key of this name is NOT VALID.
SELECT n.nspname, c.relname
FROM pg_catalog.pg_class r JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
CROSS JOIN LATERAL pg_catalog.pg_partition_tree(r.oid) t
JOIN pg_catalog.pg_class c ON c.oid = t.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_constraint k ON k.conrelid = c.oid AND k.contype = 'f' AND NOT k.convalidated
WHERE rn.nspname = %s AND r.relname = %s AND r.relkind = 'p' AND k.conname = %s
ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C" LIMIT 1
