-- name: take_snapshot
SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_wal_insert_lsn()::text, pg_catalog.clock_timestamp()

-- name: may_hold_rows
-- Where a file has no block its table holds no row, for any snapshot: a row's block is there before the row is committed, and
-- goes only once nobody sees a row in it; or with the file, by a TRUNCATE, which no snapshot sees past.
SELECT c.relname, coalesce(pg_catalog.pg_relation_size(c.oid), 1) > 0
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'pgddl' AND c.relname = ANY(%s::name[])

-- name: large_logs
-- Logs whose files have grown, but for those that somebody has vacuumed a moment ago.
SELECT relname, size FROM (
    SELECT c.relname, pg_catalog.pg_relation_size(c.oid) AS size, pg_catalog.pg_stat_get_last_vacuum_time(c.oid) AS vacuumed
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'pgddl' AND c.relname = ANY(%(logs)s::name[])) l
WHERE size > %(large)s::bigint
  AND coalesce(vacuumed < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => %(again)s), true)
ORDER BY size DESC

-- name: log_shows
SELECT {id}::bigint WHERE EXISTS (SELECT FROM {log} AS l)

-- name: log_summary
-- By few groups first: an aggregate of DISTINCT values would sort the whole log.
SELECT {id}::bigint, coalesce(sum(n), 0)::bigint, coalesce(bool_or(op = 'X'), false),
       coalesce(pg_catalog.array_agg(DISTINCT leaf) FILTER (WHERE op = 'T'), '{{}}')
FROM (SELECT op, leaf, count(*) AS n FROM {log} AS l GROUP BY op, leaf) AS g

-- name: log_end
-- The place of the first row behind so many.
SELECT {id}::bigint, (SELECT ctid::text FROM {log} OFFSET {rows} LIMIT 1)

-- name: log_left
SELECT {id}::bigint, (SELECT count(*) FROM (SELECT FROM {log}{shown} AND ctid >= {end}::pg_catalog.tid LIMIT {rows}) AS l)

-- name: log_keys
-- Every key that the log names, before and after; UNION compares by the types' own equality.
SELECT {old} FROM {log} AS l WHERE op = 'D' OR op = 'U' AND NOT ({same})
UNION SELECT {new} FROM {log} AS l WHERE op IN ('I', 'U')

-- name: same_text
CAST(ROW({old}) AS text) = CAST(ROW({new}) AS text)

-- name: read_as
SELECT (x).* FROM (SELECT CAST(CAST(r AS text) AS {relation}) AS x FROM ({rows}) AS r OFFSET 0) AS y

-- name: create_pending
CREATE TABLE IF NOT EXISTS {pending} ({definitions}, UNIQUE ({keys}))

-- name: pending_replica_identity
ALTER TABLE {pending} REPLICA IDENTITY FULL

-- name: create_staging
CREATE TEMPORARY TABLE IF NOT EXISTS {staging} ({definitions}) ON COMMIT DELETE ROWS

-- name: stage_leaf
INSERT INTO {staging} ({keys}) SELECT {columns} FROM ONLY {leaf}

-- name: keys_of_copy
-- Of a range, without those that are staged already.
SELECT {keys} FROM (SELECT * FROM {copy}{where}) AS c WHERE NOT EXISTS (SELECT FROM {staging} AS k WHERE {same})

-- name: found_by_scan
SELECT (ROW({key}))::text FROM {rows} AS t
JOIN (SELECT {typed} FROM unnest({arrays}) AS c ({keys})) pgddl_key ON {same} LIMIT 1

-- name: without_indexes
SELECT pg_catalog.set_config('enable_seqscan', 'on', true), pg_catalog.set_config('enable_indexscan', 'off', true),
       pg_catalog.set_config('enable_indexonlyscan', 'off', true), pg_catalog.set_config('enable_bitmapscan', 'off', true)

-- name: delete_from_copy
DELETE FROM {copy} AS c USING {staging} AS k WHERE {join}

-- name: add_pending
INSERT INTO {pending} ({keys}) SELECT {keys} FROM {staging} ON CONFLICT DO NOTHING

-- name: take_pending
WITH taken AS (
    DELETE FROM {pending} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {pending} LIMIT {limit} FOR UPDATE SKIP LOCKED)) RETURNING {keys}
)
INSERT INTO {staging} ({keys}) SELECT {keys} FROM taken

-- name: rows_of_keys
SELECT {expressions} FROM {source} AS t WHERE EXISTS (SELECT FROM {staging} AS k WHERE {join})

-- name: from_keys
FROM {source} AS t WHERE EXISTS (SELECT FROM {staging} AS k WHERE {join})

-- name: insert_rows
INSERT INTO {into} OVERRIDING SYSTEM VALUE {rows}

-- name: unproven
-- Keys of rows that would not be the same again, with the columns, where the copy's row yields another value than the source has.
SELECT {keys}, pg_catalog.array_remove(ARRAY[{columns}]::text[], NULL)
FROM {staging} AS k JOIN {source} AS c ON {of_source}
CROSS JOIN LATERAL (SELECT {expressions} FROM {copy} AS t WHERE {of_copy}) AS m
WHERE {differ} LIMIT {limit}

-- name: forget_echo
DELETE FROM {log} WHERE xid = pg_catalog.pg_current_xact_id()

-- name: count_pending
SELECT {id}::bigint, count(*) FROM {pending}

-- name: copy_files
-- What holds each copy's rows, in which file, and whether a crash empties it.
WITH RECURSIVE tree(id, relid) AS (
    SELECT k.id, c.oid
    FROM unnest(%s::bigint[], %s::name[], %s::name[]) k(id, schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = k.name
    UNION ALL
    SELECT t.id, i.inhrelid
    FROM tree t
    JOIN pg_catalog.pg_class p ON p.oid = t.relid AND p.relkind = 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relid
)
SELECT t.id, c.oid::text, n.nspname::text, c.relname::text, c.relfilenode::bigint, c.relpersistence = 'u'
FROM tree t
JOIN pg_catalog.pg_class c ON c.oid = t.relid AND c.relkind <> 'p'
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace

-- name: note_emptied
-- The files of these by now, with what is below them; of what is recorded only: of another nobody knows what it holds.
WITH RECURSIVE tree(relid) AS (
    SELECT c.oid
    FROM unnest(%(schemas)s::name[], %(names)s::name[]) k(schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = k.name
    UNION ALL
    SELECT i.inhrelid
    FROM tree t
    JOIN pg_catalog.pg_class p ON p.oid = t.relid AND p.relkind = 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relid
)
UPDATE pgddl.tables t SET copy_physical = t.copy_physical || coalesce((
    SELECT pg_catalog.jsonb_object_agg(c.oid::text, pg_catalog.jsonb_set(
               t.copy_physical -> c.oid::text, '{0}', pg_catalog.to_jsonb(c.relfilenode::bigint)))
    FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.relid
    WHERE t.copy_physical -> c.oid::text IS NOT NULL), '{}')
WHERE t.id = %(id)s

-- name: note_made
UPDATE pgddl.tables SET copy_physical = copy_physical || %s WHERE id = %s

-- name: copy_digests
-- A digest of each copy's columns that every ALTER of one changes, and no VACUUM FULL or TRUNCATE.
SELECT k.id, pg_catalog.md5(coalesce((SELECT pg_catalog.string_agg(a.attnum || ':' || a.xmin::text, ',' ORDER BY a.attnum)
                                      FROM pg_catalog.pg_attribute a
                                      WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), ''))
FROM unnest(%s::bigint[], %s::name[], %s::name[]) k(id, schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = k.name
