-- Tables of the target that give way to copies (tables.existing: replace).

-- name: borrowed_sequences
-- Sequences that columns of these tables own, and what else draws from them or refers to them.
SELECT d.refobjid, pg_catalog.format('%%I.%%I', sn.nspname, s.relname), pg_catalog.pg_describe_object(u.classid, u.objid, u.objsubid)
FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_class s ON s.oid = d.objid AND s.relkind = 'S' JOIN pg_catalog.pg_namespace sn ON sn.oid = s.relnamespace
JOIN pg_catalog.pg_depend u ON u.refclassid = d.classid AND u.refobjid = d.objid AND u.deptype = 'n'
LEFT JOIN pg_catalog.pg_attrdef f ON u.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND f.oid = u.objid
WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = d.classid AND d.deptype IN ('a', 'i')
  AND d.refobjid = ANY(%(oids)s::oid[])
  AND (f.adrelid IS NULL OR f.adrelid <> ALL(%(oids)s::oid[]))
ORDER BY 1, 2, 3

-- name: partitioned_referring
SELECT k.confrelid, pg_catalog.quote_ident(k.conname), pg_catalog.format('%%I.%%I', n.nspname, c.relname)
FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class c ON c.oid = k.conrelid AND c.relkind = 'p' JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE k.contype = 'f' AND k.conparentid = 0 AND k.confrelid = ANY(%(oids)s::oid[])
ORDER BY 1, 2, 3

-- name: columns_in_use
-- Columns that views, rules, policies and functions of others use.
SELECT DISTINCT d.refobjid, a.attname::text, pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)
FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
LEFT JOIN pg_catalog.pg_rewrite w ON d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND w.oid = d.objid
LEFT JOIN pg_catalog.pg_policy p ON d.classid = 'pg_catalog.pg_policy'::pg_catalog.regclass AND p.oid = d.objid
WHERE d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = ANY(%(oids)s::oid[]) AND d.refobjsubid > 0
  AND (w.ev_class <> d.refobjid OR p.polrelid IS NOT NULL OR d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass)
ORDER BY 1, 2, 3

-- name: parts
-- What a table has beside its rows: (schema, table, kind, name). Indexes and constraints by what they are.
WITH asked AS (
    SELECT c.oid, n.nspname::text AS schema, c.relname::text AS name
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%(oids)s::oid[])
)
SELECT t.schema, t.name, 'column', a.attname::text
FROM asked t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
UNION SELECT t.schema, t.name, 'index', c.relname::text
FROM asked t JOIN pg_catalog.pg_index i ON i.indrelid = t.oid JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
UNION SELECT t.schema, t.name, CASE k.contype WHEN 'f' THEN 'foreign key' ELSE 'constraint' END, k.conname::text
FROM asked t JOIN pg_catalog.pg_constraint k ON k.conrelid = t.oid AND k.contype NOT IN ('n', 't')
UNION SELECT t.schema, t.name, 'trigger', g.tgname::text
FROM asked t JOIN pg_catalog.pg_trigger g ON g.tgrelid = t.oid AND NOT g.tgisinternal
UNION SELECT t.schema, t.name, 'rule', r.rulename::text
FROM asked t JOIN pg_catalog.pg_rewrite r ON r.ev_class = t.oid

-- name: only_old
-- How many rows the old table has that the new one has not got, nor had since the swap as its log tells.
SELECT count(*) FROM ONLY {old} AS o
WHERE NOT EXISTS (SELECT FROM ONLY {new} AS n WHERE {same})
  AND NOT EXISTS (SELECT FROM {log} AS l WHERE {before}) AND NOT EXISTS (SELECT FROM {log} AS l WHERE {after})

-- name: made
-- Views and functions of these names.
SELECT c.oid FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS w(schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind IN ('v', 'm')
UNION SELECT p.oid FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS w(schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
JOIN pg_catalog.pg_proc p ON p.pronamespace = n.oid AND p.proname = w.name
