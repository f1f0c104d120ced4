-- name: narrower
-- What stays narrower than a column that gets a wider type of number: the table, what it is, how it is put right. Sequences that the
-- column takes its values from, but for its own, which the swap widens with it; and columns that refer to it.
WITH number(type, bytes) AS (
    VALUES ('smallint', 2), ('integer', 4), ('bigint', 8), ('numeric', 16)
), retyped AS (
    SELECT w.oid, a.attnum, a.attname, t.name AS type, coalesce(n.bytes, 0) AS bytes
    FROM unnest(%(oids)s::oid[], %(columns)s::text[], %(types)s::text[]) w(oid, attname, type)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = w.oid AND a.attname = w.attname AND NOT a.attisdropped
    CROSS JOIN LATERAL (SELECT pg_catalog.format_type(pg_catalog.to_regtype(w.type), NULL)) t(name)
    LEFT JOIN number n ON n.type = t.name
)
SELECT r.oid, pg_catalog.format('sequence %%I.%%I, from which column %%I gets its values, stays %%s and ends there', sn.nspname, s.relname,
           r.attname, n.type),
       pg_catalog.format('ALTER SEQUENCE %%I.%%I AS bigint;', sn.nspname, s.relname)
FROM retyped r
JOIN pg_catalog.pg_attrdef d ON d.adrelid = r.oid AND d.adnum = r.attnum
JOIN pg_catalog.pg_depend u ON u.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND u.objid = d.oid
     AND u.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
JOIN pg_catalog.pg_sequence q ON q.seqrelid = u.refobjid
JOIN pg_catalog.pg_class s ON s.oid = u.refobjid JOIN pg_catalog.pg_namespace sn ON sn.oid = s.relnamespace
JOIN number n ON n.type = pg_catalog.format_type(q.seqtypid, NULL)
WHERE n.bytes < least(r.bytes, 8)
  AND (r.bytes > 8 OR NOT EXISTS (
       SELECT FROM pg_catalog.pg_depend o
       WHERE o.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND o.objid = s.oid AND o.deptype = 'a'
         AND o.refclassid = o.classid AND o.refobjid = r.oid AND o.refobjsubid = r.attnum))
UNION ALL
SELECT r.oid, pg_catalog.format('column %%I of %%I.%%I, which refers to column %%I, is %%s and takes no value beyond', ca.attname, cn.nspname,
           c.relname, r.attname, n.type),
       pg_catalog.format('ALTER TABLE %%I.%%I ALTER COLUMN %%I TYPE %%s;  -- or, without a lock on it, under rewrite', cn.nspname,
           c.relname, ca.attname, CASE r.type WHEN 'numeric' THEN 'bigint' ELSE r.type END)
FROM retyped r
JOIN pg_catalog.pg_constraint f ON f.confrelid = r.oid AND f.contype = 'f' AND f.conparentid = 0
CROSS JOIN LATERAL unnest(f.conkey, f.confkey) k(child, parent)
JOIN pg_catalog.pg_attribute ca ON ca.attrelid = f.conrelid AND ca.attnum = k.child
JOIN pg_catalog.pg_class c ON c.oid = f.conrelid JOIN pg_catalog.pg_namespace cn ON cn.oid = c.relnamespace
LEFT JOIN retyped o ON o.oid = f.conrelid AND o.attnum = k.child
JOIN number n ON n.type = coalesce(o.type, pg_catalog.format_type(ca.atttypid, NULL))
WHERE k.parent = r.attnum AND n.bytes < least(r.bytes, 8)
ORDER BY 1, 2
