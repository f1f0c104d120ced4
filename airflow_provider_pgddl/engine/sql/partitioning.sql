-- name: column
-- The partition key's column, with its type without modifier.
SELECT a.attnum, pg_catalog.format_type(a.atttypid, NULL),
       a.attnotnull AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint v WHERE v.conrelid = a.attrelid AND v.contype = 'n'
                                    AND NOT v.convalidated AND v.conkey = ARRAY[a.attnum]),
       a.attgenerated <> '', t.typtype = 'e',
       c.relpersistence = 'u', c.reloftype <> 0
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %(oid)s AND a.attname = %(column)s AND a.attnum > 0 AND NOT a.attisdropped

-- name: spread
-- How many values the column has, as its statistics tell, and about the least and the greatest.
SELECT CASE WHEN s.n_distinct < 0 THEN -s.n_distinct * greatest(c.reltuples, 0) ELSE s.n_distinct END,
       (s.histogram_bounds::text::text[])[1], (s.histogram_bounds::text::text[])[pg_catalog.array_upper(s.histogram_bounds::text::text[], 1)]
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname AND NOT s.inherited
WHERE c.oid = %(oid)s AND s.attname = %(column)s

-- name: named_type
SELECT pg_catalog.format_type(pg_catalog.to_regtype(%s), NULL)

-- name: unique
-- Unique indexes without the column among their keys: name, the constraint's kind if there is one, columns.
SELECT x.relname, coalesce(k.contype::text, ''),
       (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY u.n)
        FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY u(attnum, n)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = u.attnum WHERE u.n <= i.indnkeyatts)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
LEFT JOIN pg_catalog.pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid AND k.contype IN ('p', 'u', 'x')
WHERE i.indrelid = %(oid)s AND i.indisunique
  AND NOT EXISTS (SELECT FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY u(attnum, n)
                  WHERE u.n <= i.indnkeyatts AND u.attnum = %(attnum)s)
ORDER BY x.relname

-- name: exclusions
-- Exclusion constraints, and whether each compares the column for equality.
SELECT k.conname, EXISTS (SELECT FROM unnest(k.conkey, k.conexclop) e(attnum, op)  -- with two arguments it is no pg_catalog.unnest
                          JOIN pg_catalog.pg_operator o ON o.oid = e.op WHERE e.attnum = %(attnum)s AND o.oprname = '=')
FROM pg_catalog.pg_constraint k WHERE k.conrelid = %(oid)s AND k.contype = 'x' ORDER BY 1

-- name: referring
-- Foreign keys to the table: whether they refer to the column too, and whether rows that refer go, or change, with a deleted one.
SELECT k.conname, pg_catalog.format('%%I.%%I', n.nspname, r.relname), pg_catalog.pg_get_constraintdef(k.oid),
       %(attnum)s = ANY(k.confkey), k.confdeltype IN ('c', 'n', 'd')
FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class r ON r.oid = k.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
WHERE k.confrelid = %(oid)s AND k.contype = 'f' AND k.conparentid = 0
ORDER BY 2, 1

-- name: not_valid
SELECT k.conname FROM pg_catalog.pg_constraint k
WHERE k.conrelid = %(oid)s AND k.contype = 'f' AND NOT k.convalidated ORDER BY 1

-- name: unpartitionable
-- Constraints that no partitioned table has, or not with the column in them: name, why, how it is put right.
SELECT k.conname, 'NO INHERIT', CASE k.contype WHEN 'n' THEN 'ALTER CONSTRAINT %%s INHERIT' ELSE 'DROP CONSTRAINT %%s' END
FROM pg_catalog.pg_constraint k WHERE k.conrelid = %(oid)s AND k.contype IN ('c', 'n') AND k.connoinherit
UNION ALL
SELECT k.conname, 'WITHOUT OVERLAPS, and the partition key would be its last column', 'DROP CONSTRAINT %%s'
FROM pg_catalog.pg_constraint k
WHERE k.conrelid = %(oid)s AND k.contype = 'p' AND NOT %(attnum)s = ANY (k.conkey)
  AND (pg_catalog.to_jsonb(k) ->> 'conperiod')::boolean  -- from 18 on
ORDER BY 1

-- name: clustered
SELECT x.relname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
WHERE i.indrelid = %(oid)s AND i.indisclustered

-- name: triggers
-- Row triggers: whether they have transition tables, and whether they fire before a row is written.
SELECT g.tgname, g.tgoldtable IS NOT NULL OR g.tgnewtable IS NOT NULL, g.tgtype & 2 = 2 AND g.tgtype & 20 <> 0
FROM pg_catalog.pg_trigger g
WHERE g.tgrelid = %(oid)s AND NOT g.tgisinternal AND g.tgname !~ '^pgddl_' AND g.tgtype & 1 = 1
ORDER BY 1

-- name: publications
-- Those that publish the table, and not through the root of a partitioned one.
SELECT p.pubname FROM pg_catalog.pg_publication p
WHERE NOT p.pubviaroot AND p.pubname !~ '^pgddl_'
  AND (p.puballtables
       OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = %(oid)s))
ORDER BY 1

-- name: listed_columns
-- From 15 on: publications of UPDATE or DELETE that list the table's columns without this one, where rows are known by the primary
-- key, which takes it in; each with all its tables as SQL that lists it too. None with a list has a schema.
SELECT p.pubname::text, pg_catalog.format('ALTER PUBLICATION %%I SET TABLE %%s;', p.pubname, (
    SELECT pg_catalog.string_agg(pg_catalog.concat(pg_catalog.format('ONLY %%I.%%I', n.nspname, c.relname),
        (SELECT ' (' || pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY u.no) || ')'
         FROM pg_catalog.unnest(CASE WHEN m.oid = r.oid THEN m.prattrs::int2[] || %(attnum)s::int2 ELSE m.prattrs::int2[] END)
              WITH ORDINALITY u(attnum, no)
         JOIN pg_catalog.pg_attribute a ON a.attrelid = m.prrelid AND a.attnum = u.attnum),
        ' WHERE (' || pg_catalog.pg_get_expr(m.prqual, m.prrelid) || ')'), ', ' ORDER BY n.nspname, c.relname)
    FROM pg_catalog.pg_publication_rel m
    JOIN pg_catalog.pg_class c ON c.oid = m.prrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE m.prpubid = p.oid))
FROM pg_catalog.pg_publication_rel r
JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid AND (p.pubupdate OR p.pubdelete)
JOIN pg_catalog.pg_class t ON t.oid = r.prrelid
JOIN pg_catalog.pg_index i ON i.indrelid = t.oid AND i.indisprimary AND (t.relreplident = 'd' OR t.relreplident = 'i' AND i.indisreplident)
WHERE r.prrelid = %(oid)s AND p.pubname !~ '^pgddl_' AND NOT %(attnum)s = ANY (r.prattrs::int2[])
  AND NOT %(attnum)s = ANY (i.indkey::int2[])
ORDER BY 1

-- name: taken
-- Relations and types whose names a partition, or an index of one, could get; but for those of the copy's own partitions.
WITH home AS (
    SELECT t.relnamespace AS oid FROM pg_catalog.pg_class t WHERE t.oid = %(oid)s
), ours AS (
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i
    JOIN pg_catalog.pg_class p ON p.oid = i.inhparent JOIN pg_catalog.pg_namespace n ON n.oid = p.relnamespace
    WHERE n.nspname ~ '^pgddl_copy_'
)
SELECT c.relname::text, CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE' WHEN 'i' THEN 'INDEX'
                                     WHEN 'I' THEN 'INDEX' WHEN 'f' THEN 'FOREIGN TABLE' WHEN 'c' THEN 'TYPE' ELSE 'TABLE' END
FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_index x ON x.indexrelid = c.oid
WHERE c.relnamespace IN (TABLE home) AND c.relname ~ %(pattern)s AND coalesce(x.indrelid, c.oid) NOT IN (TABLE ours)
UNION ALL
SELECT y.typname, CASE y.typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END
FROM pg_catalog.pg_type y
WHERE y.typnamespace IN (TABLE home) AND y.typname ~ %(pattern)s
  -- Not a relation's, which goes by its name, nor an array's, which makes room by itself.
  AND y.typrelid = 0 AND NOT EXISTS (SELECT FROM pg_catalog.pg_type e WHERE e.typarray = y.oid)
ORDER BY 1, 2
