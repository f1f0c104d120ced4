-- Copies that keep what their source deletes.

-- name: all_wait
INSERT INTO {pending} ({keys}) SELECT {typed} FROM {copy} AS c ON CONFLICT DO NOTHING

-- name: forget_extra
DELETE FROM {extra} AS x USING {arrivals} AS a WHERE {same}

-- name: note_extra
INSERT INTO {extra} ({keys})
SELECT {names} FROM {taken} AS k
WHERE EXISTS (SELECT FROM {copy} AS c WHERE {in_copy}) AND NOT EXISTS (SELECT FROM {arrivals} AS a WHERE {arrived})
ON CONFLICT DO NOTHING

-- name: always_identity
-- Columns that an UPDATE cannot write.
SELECT a.attname FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attidentity = 'a' AND NOT a.attisdropped

-- name: update
UPDATE {copy} AS c SET {set} FROM {arrivals} AS a WHERE {same}

-- name: forget_arrived
DELETE FROM {arrivals} AS a USING {copy} AS c WHERE {same}

-- name: insert
INSERT INTO {into} OVERRIDING SYSTEM VALUE SELECT {columns} FROM {arrivals}

-- name: unfit
-- Tables in which a row that is kept might keep another from coming, with the index; or which go in parts, with NULL. An index
-- over the key and more is unique anyhow.
SELECT c.oid, NULL FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(oids)s::oid[]) AND c.relkind = 'p'
UNION ALL
SELECT k.oid, i.indexrelid::pg_catalog.regclass::text
FROM unnest(%(oids)s::oid[], %(keys)s::text[]) AS k(oid, columns)
JOIN pg_catalog.pg_index i ON i.indrelid = k.oid AND (i.indisunique OR i.indisexclusion)
WHERE i.indisexclusion OR i.indexprs IS NOT NULL OR NOT ARRAY(
    SELECT pg_catalog.json_array_elements_text(k.columns::pg_catalog.json)::name) <@ ARRAY(
    SELECT a.attname FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = k.oid AND a.attnum = ANY((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1]))
ORDER BY 1, 2
