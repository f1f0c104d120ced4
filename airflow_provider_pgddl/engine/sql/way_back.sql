-- name: facts
-- Tables' definitions, one line a fact, for a person to read: what DDL can change of them. Foreign keys are left out: both ways of
-- a swap read them from the catalog; and whether a constraint is validated, which the swap itself does late.
WITH own AS MATERIALIZED (
    SELECT c.oid AS relid, c.* FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(oids)s::oid[])
), columns AS MATERIALIZED (
    SELECT a.attrelid AS relid, a.* FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
), sequences AS MATERIALIZED (
    SELECT d.refobjid AS relid, s.oid, s.relname, s.relowner, s.relacl, a.attname
    FROM pg_catalog.pg_depend d
    JOIN pg_catalog.pg_class s ON s.oid = d.objid AND s.relkind = 'S'
    JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = d.classid
      AND d.refobjid = ANY(%(oids)s::oid[]) AND d.deptype IN ('a', 'i')
), indexes AS MATERIALIZED (
    SELECT i.indrelid AS relid, i.*, c.relname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = ANY(%(oids)s::oid[])
), constraints AS MATERIALIZED (
    SELECT conrelid AS relid, * FROM pg_catalog.pg_constraint WHERE conrelid = ANY(%(oids)s::oid[]) AND contype NOT IN ('f', 't')
), triggers AS MATERIALIZED (
    SELECT t.tgrelid AS relid, t.* FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = ANY(%(oids)s::oid[]) AND NOT t.tgisinternal AND p.pronamespace IS DISTINCT FROM pg_catalog.to_regnamespace('pgddl')
), parts(relid, classid, objid, what) AS (
    SELECT relid, 'pg_catalog.pg_class'::pg_catalog.regclass, oid, 'table' FROM own
    UNION ALL SELECT relid, 'pg_catalog.pg_class'::pg_catalog.regclass, indexrelid, 'index ' || relname FROM indexes
    UNION ALL SELECT relid, 'pg_catalog.pg_class'::pg_catalog.regclass, oid, 'sequence ' || relname FROM sequences
    UNION ALL SELECT relid, 'pg_catalog.pg_constraint'::pg_catalog.regclass, oid, 'constraint ' || conname FROM constraints
    UNION ALL SELECT relid, 'pg_catalog.pg_trigger'::pg_catalog.regclass, oid, 'trigger ' || tgname FROM triggers
    UNION ALL SELECT polrelid, 'pg_catalog.pg_policy'::pg_catalog.regclass, oid, 'policy ' || polname
    FROM pg_catalog.pg_policy WHERE polrelid = ANY(%(oids)s::oid[])
    UNION ALL SELECT ev_class, 'pg_catalog.pg_rewrite'::pg_catalog.regclass, oid, 'rule ' || rulename
    FROM pg_catalog.pg_rewrite WHERE ev_class = ANY(%(oids)s::oid[])
    UNION ALL SELECT stxrelid, 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, oid, 'statistics ' || stxname
    FROM pg_catalog.pg_statistic_ext WHERE stxrelid = ANY(%(oids)s::oid[])
), grants(relid, acl, col, what) AS (
    SELECT relid, coalesce(relacl, pg_catalog.acldefault('r', relowner)), NULL::name, 'the table' FROM own
    UNION ALL SELECT relid, coalesce(relacl, pg_catalog.acldefault('s', relowner)), NULL, 'sequence ' || relname FROM sequences
    UNION ALL SELECT relid, attacl, attname, 'the table' FROM columns
), facts(relid, fact) AS (
    SELECT relid, concat_ws(', ', 'owner ' || relowner::pg_catalog.regrole, 'persistence ' || relpersistence::text,
                            'options ' || reloptions::text, 'replica identity ' || relreplident::text,
                            CASE WHEN relrowsecurity THEN 'row security' END, CASE WHEN relforcerowsecurity THEN 'forced' END,
                            'tablespace ' || (SELECT spcname FROM pg_catalog.pg_tablespace s WHERE s.oid = reltablespace)) FROM own
    UNION ALL
    SELECT a.relid, concat('column ', pg_catalog.quote_ident(a.attname), ' ', pg_catalog.format_type(a.atttypid, a.atttypmod),
                           CASE WHEN a.attnotnull THEN ' NOT NULL' END,
                           CASE WHEN a.attgenerated <> '' THEN ' GENERATED AS ' ELSE ' DEFAULT ' END || pg_catalog.pg_get_expr(d.adbin, d.adrelid),
                           ' IDENTITY ' || nullif(a.attidentity::text, ''), ' COLLATE ' || nullif(a.attcollation, 0)::pg_catalog.regcollation,
                           ' STORAGE ' || a.attstorage::text, ' COMPRESSION ' || nullif(a.attcompression::text, ''),
                           ' STATISTICS ' || nullif(a.attstattarget, -1), ' options ' || (SELECT pg_catalog.string_agg(o, ',') FROM unnest(a.attoptions) o WHERE NOT starts_with(o, 'pg_attver=')))
    FROM columns a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.relid AND d.adnum = a.attnum
    UNION ALL
    SELECT relid, concat(pg_catalog.pg_get_indexdef(indexrelid), CASE WHEN NOT indisvalid THEN ' INVALID' END,
                         CASE WHEN indisclustered THEN ' CLUSTERED' END, CASE WHEN indisreplident THEN ' REPLICA IDENTITY' END)
    FROM indexes
    UNION ALL
    SELECT relid, pg_catalog.format('CONSTRAINT %%I %%s', conname, pg_catalog.regexp_replace(pg_catalog.pg_get_constraintdef(oid), ' NOT VALID$', ''))
    FROM constraints WHERE contype <> 'n'
    UNION ALL
    SELECT relid, pg_catalog.format('NOT NULL CONSTRAINT %%I %%s', conname, pg_catalog.regexp_replace(pg_catalog.pg_get_constraintdef(oid), ' NOT VALID$', ''))
    FROM constraints WHERE contype = 'n'
    UNION ALL
    SELECT relid, 'ACCESS METHOD ' || coalesce((SELECT amname FROM pg_catalog.pg_am m WHERE m.oid = relam), 'none') FROM own
    UNION ALL
    SELECT relid, 'OF ' || reloftype::pg_catalog.regtype FROM own WHERE reloftype <> 0
    UNION ALL
    SELECT relid, 'TOAST options ' || t.reloptions::text FROM own JOIN pg_catalog.pg_class t ON t.oid = own.reltoastrelid
    WHERE t.reloptions IS NOT NULL
    UNION ALL
    SELECT inhrelid, 'INHERITS ' || inhparent::pg_catalog.regclass FROM pg_catalog.pg_inherits WHERE inhrelid = ANY(%(oids)s::oid[])
    UNION ALL
    SELECT i.relid, pg_catalog.format('INDEX %%I TABLESPACE %%I', i.relname, s.spcname)
    FROM indexes i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid JOIN pg_catalog.pg_tablespace s ON s.oid = c.reltablespace
    UNION ALL
    SELECT i.relid, pg_catalog.format('INDEX %%I COLUMN %%s STATISTICS %%s', i.relname, a.attnum, a.attstattarget)
    FROM indexes i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indexrelid WHERE coalesce(a.attstattarget, -1) >= 0
    UNION ALL
    SELECT stxrelid, pg_catalog.format('STATISTICS %%s TARGET %%s', stxname, stxstattarget)
    FROM pg_catalog.pg_statistic_ext WHERE stxrelid = ANY(%(oids)s::oid[]) AND coalesce(stxstattarget, -1) >= 0
    UNION ALL
    SELECT p.relid, concat('SECURITY LABEL FOR ', l.provider, ' ON ', p.what, ' ' || nullif(l.objsubid, 0), ': ', l.label)
    FROM parts p JOIN pg_catalog.pg_seclabel l ON l.classoid = p.classid AND l.objoid = p.objid
    UNION ALL
    SELECT relid, pg_catalog.format('%%s (%%s)', pg_catalog.pg_get_triggerdef(oid), tgenabled) FROM triggers
    UNION ALL
    SELECT ev_class, pg_catalog.format('%%s (%%s)', pg_catalog.pg_get_ruledef(oid), ev_enabled)
    FROM pg_catalog.pg_rewrite WHERE ev_class = ANY(%(oids)s::oid[])
    UNION ALL
    SELECT p.polrelid, concat('policy ', p.polname, ' ', p.polpermissive, ' ', p.polcmd, ' ',
                              (SELECT pg_catalog.array_agg(CASE r WHEN 0 THEN 'public' ELSE r::pg_catalog.regrole::text END ORDER BY r)
                               FROM unnest(p.polroles) r),
                              ' USING ' || pg_catalog.pg_get_expr(p.polqual, p.polrelid),
                              ' CHECK ' || pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid))
    FROM pg_catalog.pg_policy p WHERE p.polrelid = ANY(%(oids)s::oid[])
    UNION ALL
    SELECT stxrelid, pg_catalog.pg_get_statisticsobjdef(oid) || ' ' || stxowner::pg_catalog.regrole
    FROM pg_catalog.pg_statistic_ext WHERE stxrelid = ANY(%(oids)s::oid[])
    UNION ALL
    SELECT s.relid, concat_ws(' ', 'sequence', s.relname, 'of', s.attname, q.seqtypid::pg_catalog.regtype, q.seqstart, q.seqincrement,
                              q.seqmin, q.seqmax, q.seqcache, q.seqcycle, s.relowner::pg_catalog.regrole)
    FROM sequences s JOIN pg_catalog.pg_sequence q ON q.seqrelid = s.oid
    UNION ALL
    SELECT g.relid, concat('GRANT ', x.privilege_type, ' (' || g.col || ')', ' ON ', g.what, ' TO ',
                           CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE x.grantee::pg_catalog.regrole::text END,
                           CASE WHEN x.is_grantable THEN ' WITH GRANT OPTION' END, ' BY ', x.grantor::pg_catalog.regrole)
    FROM grants g CROSS JOIN LATERAL pg_catalog.aclexplode(g.acl) x
    UNION ALL
    SELECT p.relid, concat('COMMENT ON ', p.what, '.' || (SELECT attname FROM columns a WHERE a.relid = p.relid AND a.attnum = d.objsubid),
                           ': ', d.description)
    FROM parts p JOIN pg_catalog.pg_description d ON d.classoid = p.classid AND d.objoid = p.objid
    UNION ALL
    SELECT r.prrelid, concat('publication ', p.pubname, ' ', pg_catalog.to_jsonb(r) ->> 'prattrs', ' ', pg_catalog.to_jsonb(r) ->> 'prqual')
    FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid WHERE r.prrelid = ANY(%(oids)s::oid[])
)
SELECT relid, fact FROM facts ORDER BY relid, fact COLLATE "C"

-- name: noisy
-- What a write to the table would set off, but for our own triggers and a constraint's: (kind, name, state).
SELECT 'trigger', t.tgname, t.tgenabled::text FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
WHERE t.tgrelid = %(oid)s AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND p.pronamespace IS DISTINCT FROM pg_catalog.to_regnamespace('pgddl')
UNION ALL
SELECT 'rule', r.rulename, r.ev_enabled::text FROM pg_catalog.pg_rewrite r WHERE r.ev_class = %(oid)s AND r.ev_enabled <> 'D'
ORDER BY 1, 2

-- name: strip
-- Takes off a table what the end of a swap gives it, for it is going to be a copy again: what acts on writes to it, what would be
-- there twice, and what may be gone by the next swap. A copy's grants to its owner and its owner stay; they are set again. What a
-- copy has from its making on (replica identity, CLUSTER's index) nobody would give it a second time.
WITH own AS (
    SELECT c.oid, pg_catalog.format('%%I.%%I', n.nspname, c.relname) AS name, n.nspname, c.relrowsecurity, c.relforcerowsecurity,
           c.relowner, c.relacl
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %(oid)s
), sequences AS (
    SELECT s.oid, pg_catalog.format('%%I.%%I', n.nspname, s.relname) AS name, s.relacl, s.relowner
    FROM own JOIN pg_catalog.pg_depend d ON d.refobjid = own.oid AND d.deptype = 'i'
         AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = d.classid
    JOIN pg_catalog.pg_class s ON s.oid = d.objid AND s.relkind = 'S' JOIN pg_catalog.pg_namespace n ON n.oid = s.relnamespace
)
SELECT pg_catalog.format('DROP TRIGGER %%I ON %%s', t.tgname, own.name)
FROM own JOIN pg_catalog.pg_trigger t ON t.tgrelid = own.oid WHERE NOT t.tgisinternal
UNION ALL SELECT pg_catalog.format('DROP POLICY %%I ON %%s', p.polname, own.name) FROM own JOIN pg_catalog.pg_policy p ON p.polrelid = own.oid
UNION ALL SELECT pg_catalog.format('DROP RULE %%I ON %%s', r.rulename, own.name) FROM own JOIN pg_catalog.pg_rewrite r ON r.ev_class = own.oid
UNION ALL SELECT pg_catalog.format('ALTER TABLE %%s DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY', own.name)
FROM own WHERE relrowsecurity OR relforcerowsecurity
UNION ALL SELECT DISTINCT pg_catalog.format('REVOKE ALL ON %%s %%s FROM %%s CASCADE', g.what, g.name,
                                            CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE x.grantee::pg_catalog.regrole::text END)
FROM (SELECT 'TABLE' AS what, name, relacl AS acl, relowner FROM own
      UNION ALL SELECT 'TABLE', own.name, a.attacl, own.relowner FROM own JOIN pg_catalog.pg_attribute a ON a.attrelid = own.oid AND NOT a.attisdropped
      UNION ALL SELECT 'SEQUENCE', name, relacl, relowner FROM sequences) g
CROSS JOIN LATERAL pg_catalog.aclexplode(g.acl) x WHERE x.grantee <> g.relowner
UNION ALL SELECT pg_catalog.format('COMMENT ON %%s %%s IS NULL', CASE WHEN d.objsubid > 0 THEN 'COLUMN' ELSE 'TABLE' END,
                                   own.name || coalesce('.' || (SELECT pg_catalog.quote_ident(attname) FROM pg_catalog.pg_attribute
                                                                WHERE attrelid = own.oid AND attnum = d.objsubid AND d.objsubid > 0), ''))
FROM own JOIN pg_catalog.pg_description d ON d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objoid = own.oid
UNION ALL SELECT pg_catalog.format('COMMENT ON SEQUENCE %%s IS NULL', s.name)
FROM sequences s JOIN pg_catalog.pg_description d ON d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objoid = s.oid
UNION ALL SELECT pg_catalog.format('COMMENT ON INDEX %%I.%%I IS NULL', own.nspname, c.relname)
FROM own JOIN pg_catalog.pg_index i ON i.indrelid = own.oid JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_description d ON d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objoid = c.oid
UNION ALL SELECT pg_catalog.format('COMMENT ON CONSTRAINT %%I ON %%s IS NULL', k.conname, own.name)
FROM own JOIN pg_catalog.pg_constraint k ON k.conrelid = own.oid
JOIN pg_catalog.pg_description d ON d.classoid = 'pg_catalog.pg_constraint'::pg_catalog.regclass AND d.objoid = k.oid
UNION ALL SELECT pg_catalog.format('COMMENT ON STATISTICS %%I.%%I IS NULL', n.nspname, s.stxname)
FROM own JOIN pg_catalog.pg_statistic_ext s ON s.stxrelid = own.oid JOIN pg_catalog.pg_namespace n ON n.oid = s.stxnamespace
JOIN pg_catalog.pg_description d ON d.classoid = 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass AND d.objoid = s.oid
