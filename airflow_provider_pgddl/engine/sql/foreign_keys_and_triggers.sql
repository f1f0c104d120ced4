-- name: foreign_keys
-- Every foreign key from or to these copies (id, schema, name), with the ids of those at its ends, null where it is another table.
-- No index finds those to a table; its triggers do, which are those of the key's own part where a partition has them. "OFFSET 0" has each looked up by an index, one by one: the
-- planner takes every table for one of a thousand partitions, and would read the catalog whole, for each chunk; and make room for
-- millions of keys, but for what is said of levels, which is so of all.
WITH RECURSIVE copies AS (
    SELECT k.id, t.relid
    FROM unnest(%(ids)s::bigint[], %(schemas)s::name[], %(names)s::name[]) k(id, schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = k.name
    CROSS JOIN LATERAL (SELECT c.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p WHERE p.level BETWEEN 0 AND 10000) t(relid)
), at_an_end AS (
    SELECT f.oid FROM copies
    CROSS JOIN LATERAL (SELECT f.oid FROM pg_catalog.pg_constraint f WHERE f.conrelid = copies.relid OFFSET 0) f
    UNION
    SELECT g.oid FROM copies
    CROSS JOIN LATERAL (
        SELECT g.tgconstraint FROM pg_catalog.pg_trigger g WHERE g.tgrelid = copies.relid AND g.tgconstraint <> 0 OFFSET 0) g(oid)
), whole AS (
    SELECT oid FROM at_an_end
    UNION
    SELECT f.oid FROM whole
    CROSS JOIN LATERAL (
        SELECT f.conparentid FROM pg_catalog.pg_constraint f WHERE f.oid = whole.oid AND f.conparentid <> 0 OFFSET 0) f(oid)
)
SELECT f.oid, f.conname, child.id, parent.id, f.child, f.child_partitioned, f.parent, f.parent_partitioned
FROM whole
CROSS JOIN LATERAL (
    SELECT f.*, ARRAY[cn.nspname, cr.relname]::text[] AS child, cr.relkind = 'p' AS child_partitioned,
           ARRAY[pn.nspname, pr.relname]::text[] AS parent, pr.relkind = 'p' AS parent_partitioned
    FROM pg_catalog.pg_constraint f
    JOIN pg_catalog.pg_class cr ON cr.oid = f.conrelid
    JOIN pg_catalog.pg_namespace cn ON cn.oid = cr.relnamespace
    JOIN pg_catalog.pg_class pr ON pr.oid = f.confrelid
    JOIN pg_catalog.pg_namespace pn ON pn.oid = pr.relnamespace
    WHERE f.oid = whole.oid AND f.contype = 'f' AND f.conparentid = 0 OFFSET 0) f
LEFT JOIN copies child ON child.relid = f.conrelid
LEFT JOIN copies parent ON parent.relid = f.confrelid
WHERE child.id IS NOT NULL OR parent.id IS NOT NULL
ORDER BY f.oid

-- name: triggers
-- Triggers of others on these copies that a row or a statement of ours would fire, by copy and relation: in a session as any other,
-- and in one that has taken the replica role. Ours are known by their functions: anybody may give a trigger a name like theirs.
SELECT k.id, pg_catalog.format('%%I.%%I', tn.nspname, tr.relname),
       coalesce(pg_catalog.array_agg(g.tgname::text ORDER BY g.tgname) FILTER (WHERE g.tgenabled IN ('O', 'A')), '{}'),
       coalesce(pg_catalog.array_agg(g.tgname::text ORDER BY g.tgname) FILTER (WHERE g.tgenabled IN ('R', 'A')), '{}')
FROM unnest(%(ids)s::bigint[], %(schemas)s::name[], %(names)s::name[]) k(id, schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = k.name
CROSS JOIN LATERAL (SELECT c.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p WHERE p.level BETWEEN 0 AND 10000) t(relid)
JOIN pg_catalog.pg_class tr ON tr.oid = t.relid
JOIN pg_catalog.pg_namespace tn ON tn.oid = tr.relnamespace
JOIN pg_catalog.pg_trigger g ON g.tgrelid = t.relid AND NOT g.tgisinternal AND g.tgenabled <> 'D'
JOIN pg_catalog.pg_proc p ON p.oid = g.tgfoid JOIN pg_catalog.pg_namespace pn ON pn.oid = p.pronamespace AND pn.nspname <> 'pgddl'
GROUP BY 1, 2
ORDER BY 1, 2

-- name: fences
-- Cut-overs since which one of these tables, or a part of it, refuses writes; and whether the table's pipeline is the way back of that one.
SELECT DISTINCT k.id, pg_catalog.substr(g.tgname, pg_catalog.length('pgddl_fence_') + 1) AS pipeline,
       coalesce(p.born_of = pg_catalog.substr(g.tgname, pg_catalog.length('pgddl_fence_') + 1), false)
FROM unnest(%s::bigint[], %s::name[], %s::name[]) k(id, schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = k.name
CROSS JOIN LATERAL (SELECT c.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p WHERE p.level BETWEEN 0 AND 10000) t(relid)
JOIN pg_catalog.pg_trigger g ON g.tgrelid = t.relid AND NOT g.tgisinternal
JOIN pg_catalog.pg_proc f ON f.oid = g.tgfoid AND f.proname = 'fence'
JOIN pg_catalog.pg_namespace fn ON fn.oid = f.pronamespace AND fn.nspname = 'pgddl'
LEFT JOIN pgddl.tables j ON j.id = k.id
LEFT JOIN pgddl.pipelines p ON p.pipeline = j.pipeline
ORDER BY 1, 2

-- name: hidden
-- One of these tables, or of their partitions, that hides rows from us.
SELECT n.nspname, c.relname
FROM unnest(%s::name[], %s::name[]) k(schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema
JOIN pg_catalog.pg_class r ON r.relnamespace = n.oid AND r.relname = k.name
CROSS JOIN LATERAL (SELECT r.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(r.oid) p) t(relid)
JOIN pg_catalog.pg_class c ON c.oid = t.relid
WHERE c.relrowsecurity AND pg_catalog.row_security_active(c.oid) LIMIT 1

-- name: validated
-- Every foreign key of its own, and whether all rows are known to obey it.
SELECT n.nspname, c.relname, f.conname, f.convalidated
FROM pg_catalog.pg_constraint f
JOIN pg_catalog.pg_class c ON c.oid = f.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE f.contype = 'f' AND f.conparentid = 0 ORDER BY f.oid

-- name: is_referenced
-- Whether TRUNCATE would be refused for a foreign key to one of these relations or, of partitioned ones, to a part.
SELECT EXISTS (
    SELECT FROM unnest(%(schemas)s::name[], %(names)s::name[]) k(schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = k.name
    CROSS JOIN LATERAL (SELECT c.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p) t(relid)
    JOIN pg_catalog.pg_constraint f ON f.confrelid = t.relid AND f.contype = 'f'
)

-- name: refer_to_staged
-- Rows that refer to a row that is going to leave its copy leave theirs as well.
INSERT INTO {into} ({keys})
SELECT DISTINCT {columns} FROM {child} AS c JOIN {parent} AS p ON {same} JOIN {staging} AS k ON {join}
WHERE NOT EXISTS (SELECT FROM {into} AS s WHERE {known})

-- name: delete
DELETE FROM {copy} AS c USING {staging} AS k WHERE {join}

-- name: insert
INSERT INTO {into} OVERRIDING SYSTEM VALUE SELECT {columns} FROM {arrivals}
