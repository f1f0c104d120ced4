-- What a swap makes for the new table, before there is one.

-- name: own
-- Policies, triggers, rules, and expressions of indexes of these tables: (table, what it is, what makes it, its fix). Roles and
-- commands of a policy do not matter; an expression is made as a view of it.
SELECT l.polrelid::bigint, pg_catalog.format('policy %%I', l.polname),
       pg_catalog.concat(pg_catalog.format('CREATE POLICY %%I ON %%I.%%I', l.polname, n.nspname, c.relname),
                         ' USING (' || pg_catalog.pg_get_expr(l.polqual, l.polrelid) || ')',
                         ' WITH CHECK (' || pg_catalog.pg_get_expr(l.polwithcheck, l.polrelid) || ')'),
       pg_catalog.format('DROP POLICY %%I ON %%I.%%I;', l.polname, n.nspname, c.relname)
FROM pg_catalog.pg_policy l
JOIN pg_catalog.pg_class c ON c.oid = l.polrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE l.polrelid = ANY(%(oids)s::oid[])
UNION ALL
SELECT g.tgrelid, pg_catalog.format('trigger %%I', g.tgname), pg_catalog.pg_get_triggerdef(g.oid),
       pg_catalog.format('DROP TRIGGER %%I ON %%I.%%I;', g.tgname, n.nspname, c.relname)
FROM pg_catalog.pg_trigger g
JOIN pg_catalog.pg_class c ON c.oid = g.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE g.tgrelid = ANY(%(oids)s::oid[]) AND NOT g.tgisinternal AND g.tgname !~ '^pgddl_'
UNION ALL
SELECT w.ev_class, pg_catalog.format('rule %%I', w.rulename), pg_catalog.pg_get_ruledef(w.oid),
       pg_catalog.format('DROP RULE %%I ON %%I.%%I;', w.rulename, n.nspname, c.relname)
FROM pg_catalog.pg_rewrite w
JOIN pg_catalog.pg_class c ON c.oid = w.ev_class JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE w.ev_class = ANY(%(oids)s::oid[])
UNION ALL
SELECT i.indrelid, pg_catalog.format('index %%I', x.relname),
       pg_catalog.concat('CREATE VIEW ' || pg_catalog.format('%%I.%%I', n.nspname, x.relname) || ' AS SELECT ',
           (SELECT pg_catalog.string_agg(pg_catalog.format('(%%s) AS c%%s', pg_catalog.pg_get_indexdef(i.indexrelid, k.no, true), k.no), ', ')
            FROM pg_catalog.generate_series(1, i.indnkeyatts) k(no)),
           pg_catalog.format(' FROM %%I.%%I', n.nspname, c.relname),
           ' WHERE ' || pg_catalog.pg_get_expr(i.indpred, i.indrelid)),
       CASE WHEN k.oid IS NULL THEN pg_catalog.format('DROP INDEX %%I.%%I;', n.nspname, x.relname)
            ELSE pg_catalog.format('ALTER TABLE %%I.%%I DROP CONSTRAINT %%I;', n.nspname, c.relname, k.conname) END
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
JOIN pg_catalog.pg_class c ON c.oid = i.indrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_constraint k ON k.conindid = i.indexrelid AND k.contype = 'x'
WHERE i.indrelid = ANY(%(oids)s::oid[]) AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)
ORDER BY 1, 2

-- name: indexes
-- Those of plain columns: their operator classes may be of one type.
SELECT i.indrelid, pg_catalog.format('index %%I', x.relname), pg_catalog.pg_get_indexdef(i.indexrelid),
       CASE WHEN k.oid IS NULL THEN pg_catalog.format('DROP INDEX %%I.%%I;', n.nspname, x.relname)
            ELSE pg_catalog.format('ALTER TABLE %%I.%%I DROP CONSTRAINT %%I;', n.nspname, c.relname, k.conname) END
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
JOIN pg_catalog.pg_class c ON c.oid = i.indrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_constraint k ON k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x')
WHERE i.indrelid = ANY(%(oids)s::oid[]) AND i.indexprs IS NULL
ORDER BY 1, 2

-- name: keys
-- Foreign keys from or to these tables, each behind what is unique on its other end; NOT VALID, so that nothing is planned.
SELECT k.table_oid, k.what, s.statement, k.fix
FROM (
    SELECT f.oid, CASE WHEN f.conrelid = ANY(%(oids)s::oid[]) THEN f.conrelid ELSE f.confrelid END AS table_oid,
           pg_catalog.format('foreign key %%I of %%I.%%I', f.conname, n.nspname, c.relname) AS what,
           pg_catalog.format('ALTER TABLE %%I.%%I ADD UNIQUE (%%s)', rn.nspname, r.relname,
               (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY u.no)
                FROM pg_catalog.unnest(f.confkey) WITH ORDINALITY u(attnum, no)
                JOIN pg_catalog.pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = u.attnum)) AS made_unique,
           pg_catalog.format('ALTER TABLE %%I.%%I ADD CONSTRAINT %%I %%s NOT VALID', n.nspname, c.relname, f.conname,
               pg_catalog.regexp_replace(pg_catalog.pg_get_constraintdef(f.oid), ' NOT VALID$', '')) AS made,
           pg_catalog.format('ALTER TABLE %%I.%%I DROP CONSTRAINT %%I;  -- or rewrite both tables, with types that go together',
               n.nspname, c.relname, f.conname) AS fix
    FROM pg_catalog.pg_constraint f
    JOIN pg_catalog.pg_class c ON c.oid = f.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_class r ON r.oid = f.confrelid JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
    WHERE f.contype = 'f' AND f.conparentid = 0 AND (f.conrelid = ANY(%(oids)s::oid[]) OR f.confrelid = ANY(%(oids)s::oid[]))
) k CROSS JOIN LATERAL (VALUES (1, k.made_unique), (2, k.made)) s(no, statement)
ORDER BY k.oid, s.no

-- name: other_ends
SELECT DISTINCT n.nspname::text, c.relname::text
FROM pg_catalog.pg_constraint f JOIN pg_catalog.pg_class c ON c.oid IN (f.conrelid, f.confrelid)
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE f.contype = 'f' AND f.conparentid = 0 AND (f.conrelid = ANY(%(oids)s::oid[]) OR f.confrelid = ANY(%(oids)s::oid[]))

-- name: row_filters
-- From 15 on, each as a view with its condition.
SELECT r.prrelid, pg_catalog.format('publication %%I', p.pubname),
       pg_catalog.format('CREATE VIEW %%I.%%I AS SELECT 1 AS filtered FROM %%I.%%I WHERE %%s', n.nspname, 'pgddl filter ' || r.oid,
           n.nspname, c.relname, pg_catalog.pg_get_expr(r.prqual, r.prrelid)),
       pg_catalog.format('ALTER PUBLICATION %%I DROP TABLE ONLY %%I.%%I;', p.pubname, n.nspname, c.relname)
FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE r.prrelid = ANY(%(oids)s::oid[]) AND r.prqual IS NOT NULL
ORDER BY 1, 2

-- name: twins
-- CREATE TABLE with no more than columns, and the primary key, by which a view may group, of relations by name.
SELECT n.nspname::text, c.relname::text, pg_catalog.format('CREATE TABLE %%I.%%I (%%s%%s)', n.nspname, c.relname,
    (SELECT pg_catalog.string_agg(pg_catalog.concat(pg_catalog.quote_ident(a.attname), ' ', pg_catalog.format_type(a.atttypid, a.atttypmod),
                ' COLLATE ' || pg_catalog.quote_ident(ln.nspname) || '.' || pg_catalog.quote_ident(l.collname)), ', ' ORDER BY a.attnum)
     FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
     LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation AND a.attcollation <> t.typcollation
     LEFT JOIN pg_catalog.pg_namespace ln ON ln.oid = l.collnamespace
     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    (SELECT ', PRIMARY KEY (' || pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY u.no) || ')'
     FROM pg_catalog.pg_constraint k CROSS JOIN LATERAL pg_catalog.unnest(k.conkey) WITH ORDINALITY u(attnum, no)
     JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.attnum
     WHERE k.conrelid = c.oid AND k.contype = 'p'))
FROM unnest(%(schemas)s::text[], %(names)s::text[]) w(nspname, relname)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.nspname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname
WHERE EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
