-- name: leading_index
-- Whether an index over all rows begins with the column.
SELECT true FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid JOIN pg_catalog.pg_am m ON m.oid = x.relam AND m.amname = 'btree'
WHERE i.indrelid = %s AND i.indkey[0] = %s AND i.indpred IS NULL AND i.indisvalid LIMIT 1

-- name: cuts
-- Values that cut a sample of the rows into parts.
SELECT s.v::text FROM (
    SELECT r.{column} AS v, pg_catalog.row_number() OVER (ORDER BY r.{column}) - 1 AS n, count(*) OVER () AS total
    FROM {source} AS r TABLESAMPLE SYSTEM ({sample}) WHERE r.{column} IS NOT NULL) s
WHERE s.n > 0 AND s.n * {parts} / s.total <> (s.n - 1) * {parts} / s.total
ORDER BY s.n

-- name: probe
-- Fails where the columns have no order, or none that is found without a search_path.
SELECT FROM {source} AS t WHERE t.{first} >= NULL::{type} AND t.{first} < NULL::{type} ORDER BY {columns} LIMIT 0
