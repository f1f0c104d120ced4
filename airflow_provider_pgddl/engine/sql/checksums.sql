-- name: boundaries
SELECT s.k::text FROM (SELECT {key} AS k, pg_catalog.row_number() OVER (ORDER BY {key}) - 1 AS n FROM {copy}) s
WHERE s.n % {rows} = 0 AND s.n > 0 GROUP BY s.k ORDER BY s.k

-- name: sum
SELECT count(*), coalesce(sum(pg_catalog.hashtextextended(({row})::text COLLATE "C", 0)::numeric), 0) FROM {relation}{where}

-- name: buckets
SELECT pg_catalog.hashtextextended(({key})::text COLLATE "C", 0) & {mask}, count(*),
       sum(pg_catalog.hashtextextended(({row})::text COLLATE "C", 0)::numeric)
FROM {relation}{where} GROUP BY 1

-- name: rows_of_bucket
SELECT ({key})::text, pg_catalog.hashtextextended(({row})::text COLLATE "C", 0) FROM (SELECT * FROM {relation}{where}) s
WHERE (pg_catalog.hashtextextended(({key})::text COLLATE "C", 0) & {mask}) = {bucket}
