-- name: sequences
SELECT n.nspname, c.relname, c.oid, q.seqincrement, q.seqmin, q.seqmax, q.seqcycle
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_sequence q ON q.seqrelid = c.oid
WHERE c.relpersistence <> 't' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgddl')
  AND n.nspname !~ '^(pg_toast|pg_temp|pgddl_copy_|pgddl_old_)'
ORDER BY 1, 2

-- name: owners
-- Each sequence with the role that it belongs to, and the table whose column it goes with, if any: of a partition the root.
SELECT n.nspname, c.relname, pg_catalog.pg_get_userbyid(c.relowner)::text, o.nspname, o.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN LATERAL (
    SELECT rn.nspname, r.relname
    FROM pg_catalog.pg_depend d
    JOIN pg_catalog.pg_class r ON r.oid = coalesce(pg_catalog.pg_partition_root(d.refobjid), d.refobjid)
    JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
    WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.refclassid = d.classid
      AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i') LIMIT 1) o ON true
WHERE c.relkind = 'S' AND c.relpersistence <> 't'

-- name: may_move
-- Which of these sequences these roles may move by themselves; not for being superusers here, which they need not be on the source.
SELECT k.schema, k.name
FROM unnest(%s::name[], %s::name[], %s::name[]) k(schema, name, role)
JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = k.name AND c.relkind = 'S'
JOIN pg_catalog.pg_roles r ON r.rolname = k.role
WHERE c.relowner = r.oid OR NOT r.rolsuper AND pg_catalog.has_sequence_privilege(r.oid, c.oid, 'UPDATE')

-- name: of
-- The sequences of these names, and those of the columns of tables of these names.
SELECT s.oid
FROM unnest(%s::text[], %s::text[]) w(nspname, relname)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.nspname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname
LEFT JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = c.oid AND d.refobjsubid > 0
     AND d.classid = d.refclassid AND d.deptype IN ('a', 'i')
JOIN pg_catalog.pg_class s ON s.oid IN (c.oid, d.objid) AND s.relkind = 'S'

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
