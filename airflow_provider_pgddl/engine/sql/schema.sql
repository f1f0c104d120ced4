-- oids as numbers: in JSON an oid is a string.

-- name: relations
-- Whatever bears one of these names, with its owner, whether this role may alter it, and the rights on rows that it lacks (USAGE
-- is that of the schema). A right is null where the relation went meanwhile.
SELECT c.oid::bigint AS oid, n.nspname, c.relname, c.relkind::text, pg_catalog.pg_get_userbyid(c.relowner) AS owner,
       pg_catalog.pg_has_role(c.relowner, 'USAGE') AS owned, c.relpersistence = 'u' AS unlogged,
       (SELECT pg_catalog.jsonb_object_agg(r.right_, CASE r.right_
                   WHEN 'USAGE' THEN pg_catalog.has_schema_privilege(n.oid, r.right_)
                   ELSE pg_catalog.has_table_privilege(c.oid, r.right_) END)
        FROM pg_catalog.unnest('{USAGE,SELECT,INSERT,UPDATE,DELETE,TRUNCATE}'::text[]) r(right_)) AS rights
FROM unnest(%(schemas)s::text[], %(names)s::text[]) w(nspname, relname)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.nspname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname

-- name: columns
-- has_default without a default: it went meanwhile, since expressions are printed as they are now. A domain's default is its
-- columns'. collation is null where it is that of the type, domains resolved.
WITH RECURSIVE base(attrelid, attnum, typid) AS (
    SELECT a.attrelid, a.attnum, a.atttypid
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attrelid, b.attnum, t.typbasetype FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.typid WHERE t.typtype = 'd'
)
SELECT a.attrelid::bigint AS relid, a.attnum, a.attname, a.atttypid::bigint AS type_, a.atttypmod, a.attnotnull,
       a.attnotnull AND EXISTS (SELECT FROM pg_catalog.pg_constraint v WHERE v.conrelid = a.attrelid AND v.contype = 'n'
                                AND NOT v.convalidated AND v.conkey = ARRAY[a.attnum]) AS not_valid,
       a.atthasdef AS has_default,
       -- without its relation, which only a generated column's expression needs, nobody's lock is waited for
       CASE WHEN a.atthasdef
            THEN pg_catalog.pg_get_expr(d.adbin, CASE WHEN a.attgenerated = '' THEN 0::oid ELSE a.attrelid END)
            WHEN t.typtype = 'd' THEN t.typdefault END AS default_,
       a.attgenerated, a.attidentity,
       CASE WHEN a.attcollation <> bt.typcollation AND a.attcollation <> 0
            THEN pg_catalog.format('%%I.%%I', cn.nspname, co.collname) END AS collation_,
       coalesce(co.collisdeterministic, true) AS deterministic
FROM base b
JOIN pg_catalog.pg_type bt ON bt.oid = b.typid AND bt.typtype <> 'd'
JOIN pg_catalog.pg_attribute a ON a.attrelid = b.attrelid AND a.attnum = b.attnum
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_catalog.pg_collation co ON co.oid = a.attcollation
LEFT JOIN pg_catalog.pg_namespace cn ON cn.oid = co.collnamespace
ORDER BY a.attrelid, a.attnum

-- name: types
-- The types of the columns and all that these are made of, each with the modifier under which it is used.
WITH RECURSIVE part(whole, oid, typmod) AS (
    -- a type is made of one other at most; an array's modifier (null here) is its elements'
    SELECT t.typarray, t.oid, NULL::int FROM pg_catalog.pg_type t WHERE t.typarray <> 0
    UNION ALL SELECT t.oid, t.typbasetype, t.typtypmod FROM pg_catalog.pg_type t WHERE t.typtype = 'd'
    UNION ALL SELECT r.rngtypid, r.rngsubtype, -1 FROM pg_catalog.pg_range r
    UNION ALL SELECT r.rngmultitypid, r.rngtypid, -1 FROM pg_catalog.pg_range r
), used(oid, typmod) AS (
    SELECT a.atttypid, a.atttypmod FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT p.oid, coalesce(p.typmod, u.typmod) FROM used u JOIN part p ON p.whole = u.oid
)
SELECT u.oid::bigint AS oid, u.typmod, t.typtype, p.oid::bigint AS part, coalesce(p.typmod, u.typmod) AS part_typmod,
       -- no modifier is another thing than the modifier -1, which prints bpchar for character
       pg_catalog.format_type(u.oid, NULL) AS name, pg_catalog.format_type(u.oid, u.typmod) AS text_,
       u.oid < 16384 AS builtin, t.typnotnull AS not_null,
       ARRAY(SELECT l.enumlabel FROM pg_catalog.pg_enum l WHERE l.enumtypid = u.oid ORDER BY l.enumsortorder) AS labels,
       ARRAY(SELECT pg_catalog.jsonb_build_array(a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod))
             FROM pg_catalog.pg_attribute a
             WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum) AS attributes,
       ARRAY(SELECT pg_catalog.pg_get_expr(c.conbin, 0) FROM pg_catalog.pg_constraint c
             WHERE c.contypid = u.oid AND c.contype = 'c' ORDER BY c.conname COLLATE "C") AS checks,
       (SELECT x.extname FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid
        WHERE d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.objid = u.oid AND d.deptype = 'e'
          AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass) AS extension
FROM used u
JOIN pg_catalog.pg_type t ON t.oid = u.oid
LEFT JOIN part p ON p.whole = u.oid

-- name: constraints
-- What rows have to meet, and their keys; of a foreign key to a partitioned table not what it has for each partition.
SELECT c.conrelid::bigint AS relid, c.conname AS name, c.contype AS kind, pg_catalog.pg_get_constraintdef(c.oid) AS definition,
       -- 0 is the whole row or an expression, below are the system's columns
       ARRAY(SELECT k.attnum FROM pg_catalog.unnest(c.conkey) WITH ORDINALITY k(attnum, n) WHERE k.attnum > 0 ORDER BY k.n) AS attnums
FROM pg_catalog.pg_constraint c
WHERE c.conrelid = ANY(%(oids)s::oid[]) AND c.contype IN ('c', 'p', 'u', 'x', 'f') AND c.conname !~ '^pgddl_'
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint p WHERE p.oid = c.conparentid AND p.conrelid = c.conrelid)
UNION ALL
SELECT i.indrelid::bigint, ic.relname, 'i', pg_catalog.pg_get_indexdef(i.indexrelid),
       ARRAY(SELECT k.attnum FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n)
             WHERE k.n <= i.indnkeyatts AND k.attnum > 0 ORDER BY k.n)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
WHERE i.indrelid = ANY(%(oids)s::oid[]) AND i.indisunique AND i.indisvalid AND ic.relname !~ '^pgddl_'
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint c
                  WHERE c.conindid = i.indexrelid AND c.contype IN ('p', 'u', 'x'))
ORDER BY 1, 2

-- name: known_types
-- Every type that did not come with the server, but for arrays, which come with what they are of.
SELECT pg_catalog.format_type(t.oid, NULL) AS name
FROM pg_catalog.pg_type t
WHERE t.oid >= 16384 AND t.typisdefined AND t.typtype <> 'p'
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_type e WHERE e.typarray = t.oid)
