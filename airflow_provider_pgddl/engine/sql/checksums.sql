-- name: sum
SELECT count(*), coalesce(sum({hash}), 0) FROM {relation} AS t{where}

-- name: buckets
SELECT {key_hash} & {mask}, count(*),
       sum({hash})
FROM {relation} AS t{where} GROUP BY 1

-- name: rows_of_buckets
SELECT ({key})::text, {hash}, {columns} FROM (SELECT * FROM {relation} AS t{where}) s
WHERE ({key_hash} & {mask}) = ANY({buckets})

-- name: rows_of_keys
-- Each key is a row of texts.
SELECT ({key})::text, {hash}
FROM (SELECT t.* FROM {relation} AS t
      JOIN (SELECT {typed} FROM unnest({arrays}) AS c ({keys})) pgddl_key ON {same}) s
