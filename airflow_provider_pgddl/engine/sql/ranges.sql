-- name: sizes
-- Of each copy, with its partitions: rows as ANALYZE has found them, at most 0 where it has not; bytes without TOAST, with it.
SELECT coalesce(sum(c.reltuples), 0)::bigint, coalesce(sum(pg_catalog.pg_relation_size(c.oid)), 0)::bigint,
       coalesce(sum(pg_catalog.pg_table_size(c.oid)), 0)::bigint
FROM unnest(%s::text[]) WITH ORDINALITY AS copy (name, number)
CROSS JOIN LATERAL (
    SELECT pg_catalog.to_regclass(copy.name) AS relid
    UNION SELECT t.relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass(copy.name)) t) leaf
LEFT JOIN pg_catalog.pg_class c ON c.oid = leaf.relid AND c.relkind <> 'p'
GROUP BY copy.number ORDER BY copy.number

-- name: boundaries
-- Every so manieth key, of a sample in percent.
SELECT {texts}
FROM (SELECT {named}, pg_catalog.row_number() OVER (ORDER BY {columns}) - 1 AS nth
      FROM {copy} TABLESAMPLE SYSTEM ({percent})) s
WHERE s.nth % {step} = 0 AND s.nth > 0 ORDER BY s.nth

-- name: scattered
SELECT DISTINCT c.number
FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[]) AS c (number, schema_name, table_name, column_name)
JOIN pg_catalog.pg_stats s
  ON s.schemaname = c.schema_name AND s.tablename = c.table_name AND s.attname = c.column_name
WHERE abs(s.correlation) < 0.9

-- name: parts
-- The keys that cut a range's rows into so many parts.
SELECT {texts}
FROM (SELECT {named}, pg_catalog.row_number() OVER (ORDER BY {columns}) - 1 AS nth, count(*) OVER () AS rows
      FROM {copy}{where}) s
WHERE s.nth > 0 AND s.nth % ((s.rows + {parts} - 1) / {parts}) = 0{beyond} ORDER BY s.nth

-- name: collations
SELECT a.attname, n.nspname, o.collname
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_collation o ON o.oid = a.attcollation
JOIN pg_catalog.pg_namespace n ON n.oid = o.collnamespace
WHERE a.attrelid = %s AND a.attname = ANY(%s) AND NOT a.attisdropped

-- name: in_order
-- Nobody who waits for the table is met: it is not asked.
SELECT {texts} FROM (SELECT {typed} FROM unnest({arrays}) AS c ({keys})) s{where} ORDER BY {ordered}
