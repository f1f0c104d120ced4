-- name: sequences
SELECT n.nspname, c.relname, c.oid, q.seqincrement, q.seqmin, q.seqmax, q.seqcycle
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_sequence q ON q.seqrelid = c.oid
WHERE c.relpersistence <> 't' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgddl')
  AND n.nspname !~ '^(pg_toast|pg_temp|pgddl_copy_|pgddl_old_)'
ORDER BY 1, 2

-- name: hold
-- Locks these sequences until the transaction ends: nothing else can take the name of one.
SELECT count(pg_catalog.pg_sequence_last_value(s.id::pg_catalog.regclass)) FROM unnest(%s::oid[]) s(id)

-- name: names
-- As the server finds them, whatever the snapshot shows.
SELECT s.id, s.id::pg_catalog.regclass::text FROM unnest(%s::oid[]) s(id)

-- name: position
SELECT {number}::int, last_value, is_called FROM {sequence}

-- name: set_positions
SELECT count(pg_catalog.setval(s.id::pg_catalog.regclass, s.last, s.called))
FROM unnest(%s::oid[], %s::bigint[], %s::boolean[]) s(id, last, called)
