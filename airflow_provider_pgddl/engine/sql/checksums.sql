-- name: sizes
-- Of each copy, with its partitions: rows as ANALYZE has found them, at most 0 where it has not, and bytes but for TOAST.
SELECT coalesce(sum(c.reltuples), 0)::bigint, coalesce(sum(pg_catalog.pg_relation_size(c.oid)), 0)::bigint
FROM unnest(%s::text[]) WITH ORDINALITY AS copy (name, number)
CROSS JOIN LATERAL (
    SELECT pg_catalog.to_regclass(copy.name) AS relid
    UNION SELECT t.relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass(copy.name)) t) leaf
LEFT JOIN pg_catalog.pg_class c ON c.oid = leaf.relid AND c.relkind <> 'p'
GROUP BY copy.number ORDER BY copy.number

-- name: boundaries
-- Every so manieth value of the first key column, of a sample in percent.
SELECT s.k::text
FROM (SELECT {key} AS k, pg_catalog.row_number() OVER (ORDER BY {key}) - 1 AS n FROM {copy} TABLESAMPLE SYSTEM ({percent})) s
WHERE s.n % {step} = 0 AND s.n > 0 GROUP BY s.k ORDER BY s.k

-- name: sum
SELECT count(*), coalesce(sum({hash}), 0) FROM {relation}{where}

-- name: buckets
SELECT pg_catalog.hashtextextended(({key})::text COLLATE "C", 0) & {mask}, count(*),
       sum({hash})
FROM {relation}{where} GROUP BY 1

-- name: rows_of_bucket
SELECT ({key})::text, {hash} FROM (SELECT * FROM {relation}{where}) s
WHERE (pg_catalog.hashtextextended(({key})::text COLLATE "C", 0) & {mask}) = {bucket}
