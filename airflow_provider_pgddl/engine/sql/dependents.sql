-- What refers to a table by oid and is no part of it: read before a swap, and again under its lock. search_path must be empty,
-- so that every name comes out qualified.

-- name: users
-- Who refers to these relations and functions, parts of their own left out: one row a user and what it uses. `by_column` is
-- the column that is used; `by_type`: the row type is used, or an array of it; `in_signature`: by a function's own arguments.
WITH asked AS (
    SELECT x.class, x.oid FROM unnest(%(classes)s::oid[], %(oids)s::oid[]) AS x(class, oid)
), referred(oid, by_type, refclass, ref) AS (
    SELECT a.oid, false, a.class, a.oid FROM asked a
    UNION ALL
    SELECT a.oid, true, 'pg_catalog.pg_type'::pg_catalog.regclass, t.oid
    FROM asked a
    JOIN pg_catalog.pg_class c ON a.class = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = a.oid AND c.reltype <> 0
    JOIN pg_catalog.pg_type t ON t.oid = c.reltype OR t.typelem = c.reltype AND t.typcategory = 'A'
), found AS (
    SELECT r.oid AS used, r.by_type, r.ref, d.classid, d.objid, d.objsubid, d.refobjsubid, d.deptype, w.ev_class,
           CASE d.classid
               WHEN 'pg_catalog.pg_rewrite'::pg_catalog.regclass THEN w.ev_class
               WHEN 'pg_catalog.pg_policy'::pg_catalog.regclass THEN l.polrelid
               WHEN 'pg_catalog.pg_attrdef'::pg_catalog.regclass THEN (SELECT a.adrelid FROM pg_catalog.pg_attrdef a WHERE a.oid = d.objid)
               WHEN 'pg_catalog.pg_trigger'::pg_catalog.regclass THEN (SELECT g.tgrelid FROM pg_catalog.pg_trigger g WHERE g.oid = d.objid)
               WHEN 'pg_catalog.pg_constraint'::pg_catalog.regclass THEN (SELECT k.conrelid FROM pg_catalog.pg_constraint k WHERE k.oid = d.objid)
               WHEN 'pg_catalog.pg_type'::pg_catalog.regclass THEN (
                   SELECT c.oid FROM pg_catalog.pg_type t JOIN pg_catalog.pg_class c ON c.reltype IN (t.oid, t.typelem)
                   WHERE t.oid = d.objid AND c.reltype <> 0)
               WHEN 'pg_catalog.pg_class'::pg_catalog.regclass THEN
                   coalesce((SELECT i.indrelid FROM pg_catalog.pg_index i WHERE i.indexrelid = d.objid), d.objid)
           END AS part_of,
           w.rulename = '_RETURN' AS is_view, p.prokind
    FROM referred r
    JOIN pg_catalog.pg_depend d ON d.refclassid = r.refclass AND d.refobjid = r.ref
    LEFT JOIN pg_catalog.pg_rewrite w ON d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND w.oid = d.objid
    LEFT JOIN pg_catalog.pg_policy l ON d.classid = 'pg_catalog.pg_policy'::pg_catalog.regclass AND l.oid = d.objid
    LEFT JOIN pg_catalog.pg_proc p ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.oid = d.objid
), users AS (
    SELECT f.*, c.relkind,
           CASE WHEN c.relkind IN ('v', 'm') AND (f.is_view OR f.classid = 'pg_catalog.pg_class'::pg_catalog.regclass)
                THEN CASE c.relkind WHEN 'v' THEN 'view' ELSE 'materialized view' END
                WHEN f.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass THEN 'rule'
                WHEN f.classid = 'pg_catalog.pg_policy'::pg_catalog.regclass THEN 'policy'
                WHEN f.prokind IN ('f', 'p', 'w') THEN 'function'
                ELSE 'other' END AS kind
    FROM found f
    LEFT JOIN pg_catalog.pg_class c ON c.oid = f.part_of
    WHERE f.part_of IS DISTINCT FROM f.used
      AND CASE f.classid::pg_catalog.regclass::text
          WHEN 'pg_publication_rel' THEN false
          WHEN 'pg_statistic_ext' THEN false
          WHEN 'pg_constraint' THEN NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.oid = f.objid AND k.contype = 'f')
          WHEN 'pg_trigger' THEN NOT EXISTS (SELECT FROM pg_catalog.pg_trigger g WHERE g.oid = f.objid AND g.tgisinternal)
          WHEN 'pg_class' THEN c.relkind NOT IN ('S', 't') AND NOT EXISTS (
              SELECT FROM pg_catalog.pg_inherits h WHERE h.inhrelid = c.oid AND h.inhparent = f.used)
          ELSE true END
)
SELECT DISTINCT u.used, u.kind,
       CASE WHEN u.kind LIKE '%%view' THEN 'pg_catalog.pg_class'::pg_catalog.regclass::oid ELSE u.classid END,
       CASE WHEN u.kind LIKE '%%view' THEN u.part_of ELSE u.objid END,
       CASE WHEN u.kind IN ('rule', 'policy') THEN u.part_of END,
       u.refobjsubid,
       u.by_type,
       u.by_type AND EXISTS (SELECT FROM pg_catalog.pg_proc p
                             WHERE u.kind = 'function' AND p.oid = u.objid AND u.ref = ANY (p.prorettype || p.proargtypes::oid[] || p.proallargtypes)),
       CASE WHEN u.kind LIKE '%%view' THEN pg_catalog.pg_describe_object('pg_catalog.pg_class'::pg_catalog.regclass, u.part_of, 0)
            ELSE pg_catalog.pg_describe_object(u.classid, u.objid, u.objsubid) END,
       EXISTS (SELECT FROM pg_catalog.pg_depend x
               WHERE x.classid = CASE WHEN u.kind LIKE '%%view' THEN 'pg_catalog.pg_class'::pg_catalog.regclass::oid ELSE u.classid END
                 AND x.objid = CASE WHEN u.kind LIKE '%%view' THEN u.part_of ELSE u.objid END AND x.deptype IN ('e', 'x'))
FROM users u
ORDER BY 1, 2, 3, 4, 5, 6

-- name: columns
-- The numbers of these columns.
SELECT a.attrelid, a.attnum FROM pg_catalog.pg_attribute a
JOIN unnest(%(oids)s::oid[], %(columns)s::text[]) AS x(oid, name) ON x.oid = a.attrelid AND x.name = a.attname

-- name: relations
-- Views and materialized views: what makes each again, and what is said about it and its parts. The statements of `again`
-- leave oid, owner, grants, comments, triggers and rules as they are; there are none for a materialized view.
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence = 't', o.rolname::text,
       pg_catalog.pg_has_role(c.relowner, 'USAGE'),
       EXISTS (SELECT FROM pg_catalog.pg_seclabel l WHERE l.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND l.objoid = c.oid),
       c.relacl IS NOT NULL,
       pg_catalog.format('ALTER %%s %%I.%%I OWNER TO %%I', k.kind, n.nspname, c.relname, o.rolname) AS owner,
       pg_catalog.format('DROP %%s %%I.%%I', k.kind, n.nspname, c.relname) AS away,
       CASE WHEN c.relkind = 'v' THEN pg_catalog.format('CREATE OR REPLACE VIEW %%I.%%I%%s AS %%s', n.nspname, c.relname, k.options,
                                                        pg_catalog.pg_get_viewdef(c.oid)) END AS again,
       pg_catalog.format('CREATE %%s %%I.%%I%%s%%s%%s AS %%s%%s', k.kind, n.nspname, c.relname, ' USING ' || pg_catalog.quote_ident(am.amname), k.options,
                         ' TABLESPACE ' || pg_catalog.quote_ident(ts.spcname),
                         pg_catalog.rtrim(pg_catalog.pg_get_viewdef(c.oid), ';'),
                         CASE WHEN c.relkind = 'm' THEN ' WITH NO DATA' END) AS make,
       CASE WHEN c.relkind = 'm' AND c.relispopulated THEN pg_catalog.format('REFRESH MATERIALIZED VIEW %%I.%%I', n.nspname, c.relname) END AS fill,
       ARRAY(
           SELECT s.statement FROM (
               SELECT 1 AS step, d.adnum::int AS no, pg_catalog.format('ALTER VIEW %%I.%%I ALTER COLUMN %%I SET DEFAULT %%s', n.nspname, c.relname,
                      a.attname, pg_catalog.pg_get_expr(d.adbin, d.adrelid)) AS statement
               FROM pg_catalog.pg_attrdef d JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
               WHERE d.adrelid = c.oid
               UNION ALL
               SELECT 1, a.attnum, pg_catalog.format('ALTER MATERIALIZED VIEW %%I.%%I ALTER COLUMN %%I SET STATISTICS %%s', n.nspname, c.relname, a.attname, a.attstattarget)
               FROM pg_catalog.pg_attribute a
               WHERE a.attrelid = c.oid AND c.relkind = 'm' AND a.attnum > 0 AND NOT a.attisdropped AND a.attstattarget >= 0
               UNION ALL
               SELECT 1, a.attnum, pg_catalog.format('ALTER MATERIALIZED VIEW %%I.%%I ALTER COLUMN %%I SET (%%s)', n.nspname, c.relname, a.attname,
                      pg_catalog.string_agg(pg_catalog.format('%%I=%%L', x.option_name, x.option_value), ', '))
               FROM pg_catalog.pg_attribute a CROSS JOIN LATERAL pg_catalog.pg_options_to_table(a.attoptions) x
               WHERE a.attrelid = c.oid AND c.relkind = 'm' AND x.option_name <> 'pg_attver'  -- the server's own
               GROUP BY a.attnum, a.attname
               UNION ALL
               SELECT 1, a.attnum, pg_catalog.format('ALTER MATERIALIZED VIEW %%I.%%I ALTER COLUMN %%I SET STORAGE %%s', n.nspname, c.relname, a.attname,
                      CASE a.attstorage WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END)
               FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
               WHERE a.attrelid = c.oid AND c.relkind = 'm' AND a.attnum > 0 AND NOT a.attisdropped AND a.attstorage <> t.typstorage
               UNION ALL
               SELECT 1, a.attnum, pg_catalog.format('ALTER MATERIALIZED VIEW %%I.%%I ALTER COLUMN %%I SET COMPRESSION %%s', n.nspname, c.relname, a.attname,
                      CASE a.attcompression WHEN 'p' THEN 'pglz' ELSE 'lz4' END)
               FROM pg_catalog.pg_attribute a
               WHERE a.attrelid = c.oid AND c.relkind = 'm' AND a.attnum > 0 AND NOT a.attisdropped AND a.attcompression <> ''
               UNION ALL
               SELECT 2, i.indexrelid::bigint, pg_catalog.pg_get_indexdef(i.indexrelid) FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid
               UNION ALL
               SELECT 3, i.indexrelid::bigint, pg_catalog.format('ALTER INDEX %%I.%%I SET TABLESPACE %%I', n.nspname, ic.relname, it.spcname)
               FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
               JOIN pg_catalog.pg_tablespace it ON it.oid = ic.reltablespace WHERE i.indrelid = c.oid
               UNION ALL
               SELECT 3, i.indexrelid::bigint, pg_catalog.format('ALTER MATERIALIZED VIEW %%I.%%I CLUSTER ON %%I', n.nspname, c.relname, ic.relname)
               FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
               WHERE i.indrelid = c.oid AND i.indisclustered
               UNION ALL
               SELECT 3, i.indexrelid::bigint, pg_catalog.format('ALTER INDEX %%I.%%I ALTER COLUMN %%s SET STATISTICS %%s', n.nspname, ic.relname, a.attnum, a.attstattarget)
               FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
               JOIN pg_catalog.pg_attribute a ON a.attrelid = ic.oid AND a.attstattarget >= 0 WHERE i.indrelid = c.oid
               UNION ALL
               SELECT 3, i.indexrelid::bigint, pg_catalog.format('COMMENT ON INDEX %%I.%%I IS %%L', n.nspname, ic.relname, pg_catalog.obj_description(ic.oid, 'pg_class'))
               FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
               WHERE i.indrelid = c.oid AND pg_catalog.obj_description(ic.oid, 'pg_class') IS NOT NULL
               UNION ALL
               SELECT 4, s.oid::bigint * 10 + x.no, x.statement
               FROM pg_catalog.pg_statistic_ext s JOIN pg_catalog.pg_namespace sn ON sn.oid = s.stxnamespace
               CROSS JOIN LATERAL (VALUES
                   (1, pg_catalog.pg_get_statisticsobjdef(s.oid)),
                   (2, CASE WHEN s.stxstattarget >= 0 THEN pg_catalog.format('ALTER STATISTICS %%I.%%I SET STATISTICS %%s', sn.nspname, s.stxname, s.stxstattarget) END),
                   (3, pg_catalog.format('COMMENT ON STATISTICS %%I.%%I IS %%L', sn.nspname, s.stxname, pg_catalog.obj_description(s.oid, 'pg_statistic_ext'))),
                   (4, pg_catalog.format('ALTER STATISTICS %%I.%%I OWNER TO %%I', sn.nspname, s.stxname, pg_catalog.pg_get_userbyid(s.stxowner)))
               ) x(no, statement)
               WHERE s.stxrelid = c.oid AND x.statement IS NOT NULL
               UNION ALL
               SELECT 5, w.oid::bigint, pg_catalog.pg_get_ruledef(w.oid) FROM pg_catalog.pg_rewrite w WHERE w.ev_class = c.oid AND w.rulename <> '_RETURN'
               UNION ALL
               SELECT 6, w.oid::bigint, pg_catalog.format('COMMENT ON RULE %%I ON %%I.%%I IS %%L', w.rulename, n.nspname, c.relname, x.description)
               FROM pg_catalog.pg_rewrite w
               JOIN pg_catalog.pg_description x ON x.classoid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND x.objoid = w.oid
               WHERE w.ev_class = c.oid
               UNION ALL
               SELECT 5, g.oid::bigint, pg_catalog.pg_get_triggerdef(g.oid) FROM pg_catalog.pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal
               UNION ALL
               SELECT 6, g.oid::bigint, pg_catalog.format('COMMENT ON TRIGGER %%I ON %%I.%%I IS %%L', g.tgname, n.nspname, c.relname, x.description)
               FROM pg_catalog.pg_trigger g
               JOIN pg_catalog.pg_description x ON x.classoid = 'pg_catalog.pg_trigger'::pg_catalog.regclass AND x.objoid = g.oid
               WHERE g.tgrelid = c.oid
               UNION ALL
               SELECT 6, 0, pg_catalog.format('COMMENT ON %%s %%I.%%I IS %%L', k.kind, n.nspname, c.relname, x.description)
               FROM pg_catalog.pg_description x
               WHERE x.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND x.objoid = c.oid AND x.objsubid = 0
               UNION ALL
               SELECT 6, x.objsubid, pg_catalog.format('COMMENT ON COLUMN %%I.%%I.%%I IS %%L', n.nspname, c.relname, a.attname, x.description)
               FROM pg_catalog.pg_description x
               JOIN pg_catalog.pg_attribute a ON a.attrelid = x.objoid AND a.attnum = x.objsubid
               WHERE x.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND x.objoid = c.oid AND x.objsubid > 0
           ) s ORDER BY s.step, s.no, s.statement
       ) AS parts
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
LEFT JOIN pg_catalog.pg_am am ON am.oid = c.relam
LEFT JOIN pg_catalog.pg_tablespace ts ON ts.oid = c.reltablespace
CROSS JOIN LATERAL (
    SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'MATERIALIZED VIEW' END,
           (SELECT ' WITH (' || pg_catalog.string_agg(pg_catalog.format('%%I=%%L', x.option_name, x.option_value), ', ') || ')'
            FROM pg_catalog.pg_options_to_table(c.reloptions) x)
) k(kind, options)
WHERE c.oid = ANY (%(oids)s::oid[]) AND c.relkind IN ('v', 'm')

-- name: functions
-- The same for functions and procedures.
SELECT p.oid, o.rolname::text, pg_catalog.pg_has_role(p.proowner, 'USAGE'),
       EXISTS (SELECT FROM pg_catalog.pg_seclabel l WHERE l.classoid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND l.objoid = p.oid),
       p.proacl IS NOT NULL,
       pg_catalog.format('ALTER ROUTINE %%s OWNER TO %%I', k.signature, o.rolname),
       pg_catalog.format('DROP ROUTINE %%s', k.signature),
       pg_catalog.pg_get_functiondef(p.oid),
       ARRAY(SELECT pg_catalog.format('COMMENT ON ROUTINE %%s IS %%L', k.signature, d)
             FROM pg_catalog.obj_description(p.oid, 'pg_proc') d WHERE d IS NOT NULL),
       p.oid::pg_catalog.regprocedure::text
FROM pg_catalog.pg_proc p
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_roles o ON o.oid = p.proowner
CROSS JOIN LATERAL (SELECT pg_catalog.format('%%I.%%I(%%s)', n.nspname, p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid))) k(signature)
WHERE p.oid = ANY (%(oids)s::oid[])

-- name: grants
-- What is granted on relations, on their columns and on functions, in the order in which it can be granted; nothing where the
-- owner has never granted or revoked anything.
SELECT g.oid, r.rolname::text, g.of_owner, g.statement
FROM (
    SELECT c.oid, a.grantor, a.grantor = c.relowner AS of_owner, a.no,
           pg_catalog.format('GRANT %%s ON TABLE %%I.%%I TO %%s%%s', a.privilege_type, n.nspname, c.relname,
                             CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END,
                             CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' END) AS statement
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL ROWS FROM (pg_catalog.aclexplode(c.relacl)) WITH ORDINALITY a(grantor, grantee, privilege_type, is_grantable, no)
    WHERE c.oid = ANY (%(oids)s::oid[]) AND c.relkind IN ('v', 'm')
    UNION ALL
    SELECT c.oid, a.grantor, a.grantor = c.relowner, 1000 * t.attnum + a.no,
           pg_catalog.format('GRANT %%s (%%I) ON TABLE %%I.%%I TO %%s%%s', a.privilege_type, t.attname, n.nspname, c.relname,
                             CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END,
                             CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' END)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_attribute t ON t.attrelid = c.oid AND NOT t.attisdropped
    CROSS JOIN LATERAL ROWS FROM (pg_catalog.aclexplode(t.attacl)) WITH ORDINALITY a(grantor, grantee, privilege_type, is_grantable, no)
    WHERE c.oid = ANY (%(oids)s::oid[]) AND c.relkind IN ('v', 'm')
    UNION ALL
    SELECT p.oid, a.grantor, a.grantor = p.proowner, a.no,
           pg_catalog.format('GRANT %%s ON ROUTINE %%I.%%I(%%s) TO %%s%%s', a.privilege_type, n.nspname, p.proname,
                             pg_catalog.pg_get_function_identity_arguments(p.oid),
                             CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END,
                             CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' END)
    FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    CROSS JOIN LATERAL ROWS FROM (pg_catalog.aclexplode(p.proacl)) WITH ORDINALITY a(grantor, grantee, privilege_type, is_grantable, no)
    WHERE p.oid = ANY (%(oids)s::oid[])
) g
JOIN pg_catalog.pg_roles r ON r.oid = g.grantor
ORDER BY g.oid, NOT g.of_owner, g.no

-- name: bare_relation
-- What a new view was given by ALTER DEFAULT PRIVILEGES; with %(owner)s also what its owner has by its being new.
SELECT DISTINCT pg_catalog.format('REVOKE ALL ON TABLE %%s FROM %%s', c.oid::pg_catalog.regclass,
                         CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END)
FROM pg_catalog.pg_class c
CROSS JOIN LATERAL pg_catalog.aclexplode(coalesce(c.relacl, pg_catalog.acldefault('r', c.relowner))) a
WHERE c.oid = %(name)s::pg_catalog.regclass AND (%(owner)s OR a.grantee <> c.relowner)

-- name: bare_function
-- The same; what everybody may do with a function stays, or comes back, where its owner never said anything about it.
SELECT DISTINCT pg_catalog.format('REVOKE ALL ON ROUTINE %%s FROM %%s', p.oid::pg_catalog.regprocedure,
                         CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END)
FROM pg_catalog.pg_proc p
CROSS JOIN LATERAL pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) a
WHERE p.oid = %(name)s::pg_catalog.regprocedure AND (%(owner)s OR a.grantee NOT IN (0, p.proowner))
UNION ALL
SELECT pg_catalog.format('GRANT EXECUTE ON ROUTINE %%s TO PUBLIC', p.oid::pg_catalog.regprocedure)
FROM pg_catalog.pg_proc p
WHERE p.oid = %(name)s::pg_catalog.regprocedure AND NOT %(owner)s AND p.proacl IS NOT NULL

-- name: policies
SELECT l.oid, l.polname::text, n.nspname::text, c.relname::text, pg_catalog.pg_has_role(c.relowner, 'USAGE'), o.rolname::text,
       pg_catalog.format('ALTER POLICY %%I ON %%I.%%I%%s%%s', l.polname, n.nspname, c.relname,
                         ' USING (' || pg_catalog.pg_get_expr(l.polqual, l.polrelid) || ')',
                         ' WITH CHECK (' || pg_catalog.pg_get_expr(l.polwithcheck, l.polrelid) || ')')
FROM pg_catalog.pg_policy l
JOIN pg_catalog.pg_class c ON c.oid = l.polrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
WHERE l.oid = ANY (%(oids)s::oid[])
ORDER BY l.oid  -- it is read twice, and has to be the same

-- name: rules
SELECT w.oid, w.rulename::text, n.nspname::text, c.relname::text, pg_catalog.pg_has_role(c.relowner, 'USAGE'), o.rolname::text,
       c.relkind IN ('v', 'm'),
       pg_catalog.regexp_replace(pg_catalog.pg_get_ruledef(w.oid), '^CREATE RULE', 'CREATE OR REPLACE RULE'),
       pg_catalog.format('ALTER VIEW %%I.%%I OWNER TO %%I', n.nspname, c.relname, o.rolname)
FROM pg_catalog.pg_rewrite w
JOIN pg_catalog.pg_class c ON c.oid = w.ev_class
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
WHERE w.oid = ANY (%(oids)s::oid[])
ORDER BY w.oid

-- name: publications
-- The publications that name a table, with its list of columns and its row filter. Those of a whole schema follow its name; ours
-- stays with the table whose changes it captures.
SELECT r.prrelid, p.pubname::text, pg_catalog.pg_has_role(p.pubowner, 'USAGE'), o.rolname::text, p.pubviaroot,
       pg_catalog.format('ALTER PUBLICATION %%I DROP TABLE ONLY %%I.%%I', p.pubname, n.nspname, c.relname),
       pg_catalog.format('ALTER PUBLICATION %%I ADD TABLE ONLY %%I.%%I%%s%%s', p.pubname, n.nspname, c.relname,
           (SELECT ' (' || pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY k.no) || ')'
            FROM pg_catalog.unnest(r.prattrs::int2[]) WITH ORDINALITY k(attnum, no)
            JOIN pg_catalog.pg_attribute a ON a.attrelid = r.prrelid AND a.attnum = k.attnum),
           ' WHERE (' || pg_catalog.pg_get_expr(r.prqual, r.prrelid) || ')')
FROM pg_catalog.pg_publication_rel r
JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
JOIN pg_catalog.pg_roles o ON o.oid = p.pubowner
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE r.prrelid = ANY (%(oids)s::oid[]) AND p.pubname !~ '^pgddl_'
ORDER BY 1, 2

-- name: publications_14
-- Before 15 there were neither lists nor filters.
SELECT r.prrelid, p.pubname::text, pg_catalog.pg_has_role(p.pubowner, 'USAGE'), o.rolname::text, p.pubviaroot,
       pg_catalog.format('ALTER PUBLICATION %%I DROP TABLE ONLY %%I.%%I', p.pubname, n.nspname, c.relname),
       pg_catalog.format('ALTER PUBLICATION %%I ADD TABLE ONLY %%I.%%I', p.pubname, n.nspname, c.relname)
FROM pg_catalog.pg_publication_rel r
JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
JOIN pg_catalog.pg_roles o ON o.oid = p.pubowner
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE r.prrelid = ANY (%(oids)s::oid[]) AND p.pubname !~ '^pgddl_'
ORDER BY 1, 2

-- name: children
-- Tables that inherit from these, and whether this parent is the last that each names.
SELECT i.inhparent, pn.nspname::text, p.relname::text, cn.nspname::text, c.relname::text,
       pg_catalog.pg_has_role(c.relowner, 'USAGE'), o.rolname::text,
       NOT EXISTS (SELECT FROM pg_catalog.pg_inherits x WHERE x.inhrelid = i.inhrelid AND x.inhseqno > i.inhseqno)
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class p ON p.oid = i.inhparent AND p.relkind = 'r'
JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
JOIN pg_catalog.pg_namespace cn ON cn.oid = c.relnamespace
JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
WHERE i.inhparent = ANY (%(oids)s::oid[])
ORDER BY cn.nspname, c.relname, 1

-- name: lacking
-- Rights that it takes to make relations and functions again with their owners and grants, whoever of us lacks them:
-- (relation or function, what, how it is put right). Whoever comes to own something needs CREATE on the schema that it is in.
WITH made(oid, home, owner, acl) AS (
    SELECT c.oid, c.relnamespace, c.relowner, c.relacl FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(relations)s::oid[])
    UNION ALL
    SELECT d.refobjid, s.relnamespace, s.relowner, s.relacl
    FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_class s ON s.oid = d.objid AND s.relkind = 'S'
    WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = d.classid
      AND d.refobjid = ANY(%(relations)s::oid[]) AND d.deptype IN ('a', 'i')
    UNION ALL
    SELECT c.oid, c.relnamespace, c.relowner, a.attacl
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attacl IS NOT NULL
    WHERE c.oid = ANY(%(relations)s::oid[])
    UNION ALL
    SELECT x.stxrelid, x.stxnamespace, x.stxowner, NULL FROM pg_catalog.pg_statistic_ext x WHERE x.stxrelid = ANY(%(relations)s::oid[])
    UNION ALL
    SELECT p.oid, p.pronamespace, p.proowner, p.proacl FROM pg_catalog.pg_proc p WHERE p.oid = ANY(%(functions)s::oid[])
)
SELECT m.oid, pg_catalog.format('role %%s may not create in schema %%s, in which the swap makes what is its own', r.rolname, n.nspname),
       pg_catalog.format('GRANT CREATE ON SCHEMA %%I TO %%I;', n.nspname, r.rolname)
FROM made m JOIN pg_catalog.pg_namespace n ON n.oid = m.home
JOIN pg_catalog.pg_roles r ON r.oid = m.owner OR r.rolname = current_user
WHERE NOT pg_catalog.has_schema_privilege(r.oid, n.oid, 'CREATE')
  AND NOT (SELECT u.rolsuper FROM pg_catalog.pg_roles u WHERE u.rolname = current_user)  -- who gives whatever to anybody
UNION
SELECT m.oid, pg_catalog.format('the swap gives again what %%s has granted: role %%s needs to act as that role', r.rolname, current_user),
       pg_catalog.format('GRANT %%I TO %%I;', r.rolname, current_user)
FROM made m CROSS JOIN LATERAL pg_catalog.aclexplode(m.acl) a JOIN pg_catalog.pg_roles r ON r.oid = a.grantor
WHERE a.grantor <> m.owner AND NOT pg_catalog.pg_has_role(r.oid, %(privilege)s)
ORDER BY 1, 2

-- name: view_text
SELECT pg_catalog.pg_get_viewdef(c.oid)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('v', 'm')
