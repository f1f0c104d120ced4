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
