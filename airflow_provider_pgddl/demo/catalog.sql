-- One line of text a fact about the schemas in %(schemas)s (null: all that are neither the system's, an extension's nor
-- ours). No oids, no attribute numbers: two databases with the same structure give the same lines. search_path must be
-- empty, so that every name comes out qualified. Servers 14 to 18. The copy of 18's NOT NULL in pg_constraint
-- (contype n) and the privilege MAINTAIN (17) are left out: older servers do not have them.
WITH ns AS MATERIALIZED (
    SELECT oid, nspname::text AS nspname, nspowner, nspacl
      FROM pg_catalog.pg_namespace
     WHERE (%(schemas)s::text[] IS NULL OR nspname = ANY (%(schemas)s::text[]))
       AND nspname !~ '^pg_' AND nspname <> 'information_schema' AND nspname !~ '^pgddl'
),
ours AS MATERIALIZED (
    SELECT classid, objid FROM pg_catalog.pg_depend WHERE deptype = 'e'
),
rel AS MATERIALIZED (
    SELECT c.*, format('%%I.%%I', n.nspname, c.relname) AS name
      FROM pg_catalog.pg_class c JOIN ns n ON n.oid = c.relnamespace
     WHERE NOT EXISTS (SELECT FROM ours o WHERE o.classid = 'pg_class'::regclass AND o.objid = c.oid)
),
lines (line) AS (
    -- relations
    SELECT format('%%s %%s: persistence %%s%%s%%s%%s%%s%%s%%s%%s', rel.name,
                  CASE rel.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'partitioned table' WHEN 'v' THEN 'view'
                                   WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table' END,
                  rel.relpersistence,
                  ' owner ' || rel.relowner::regrole,
                  ' partition by ' || pg_get_partkeydef(rel.oid),
                  ' partition ' || pg_get_expr(rel.relpartbound, rel.oid),
                  ' options ' || rel.reloptions::text,
                  CASE WHEN rel.relrowsecurity THEN ' row security' END,
                  CASE WHEN rel.relforcerowsecurity THEN ' forced' END,
                  ' replica identity ' || nullif(rel.relreplident::text, 'd'))
      FROM rel WHERE rel.relkind IN ('r', 'p', 'v', 'm', 'f')
    UNION ALL
    SELECT format('%%s inherits %%s', rel.name, i.inhparent::regclass)
      FROM rel JOIN pg_catalog.pg_inherits i ON i.inhrelid = rel.oid
    UNION ALL
    SELECT format('%%s view: %%s', rel.name, pg_get_viewdef(rel.oid)) FROM rel WHERE rel.relkind IN ('v', 'm')
    UNION ALL
    -- columns, by position among those that are not dropped
    SELECT format('%%s column %%s %%I: %%s%%s%%s%%s%%s%%s%%s%%s', rel.name,
                  row_number() OVER (PARTITION BY rel.oid ORDER BY a.attnum), a.attname,
                  format_type(a.atttypid, a.atttypmod),
                  CASE WHEN a.attnotnull THEN ' not null' END,
                  CASE a.attgenerated WHEN 's' THEN ' generated stored' WHEN 'v' THEN ' generated virtual' END,
                  ' default ' || pg_get_expr(d.adbin, d.adrelid),
                  -- since 17 partitions show their parent's identity
                  CASE WHEN NOT rel.relispartition THEN
                      CASE a.attidentity WHEN 'a' THEN ' identity always' WHEN 'd' THEN ' identity by default' END
                  END,
                  CASE WHEN a.attcollation <> t.typcollation THEN ' collate ' || a.attcollation::regcollation END,
                  concat(CASE WHEN a.attstorage <> t.typstorage THEN ' storage ' || a.attstorage::text END,
                         ' compression ' || nullif(a.attcompression::text, '')),
                  -- newer minor versions note there when the column got its type
                  ' options ' || nullif(ARRAY(SELECT o FROM unnest(a.attoptions) o WHERE NOT starts_with(o, 'pg_attver=')), '{}')::text)
      FROM rel
      JOIN pg_catalog.pg_attribute a ON a.attrelid = rel.oid AND a.attnum > 0 AND NOT a.attisdropped
      JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
      LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE rel.relkind IN ('r', 'p', 'v', 'm', 'f', 'c')
    UNION ALL
    SELECT format('%%s statistics target of %%I: %%s', rel.name, a.attname, a.attstattarget)
      FROM rel JOIN pg_catalog.pg_attribute a ON a.attrelid = rel.oid AND a.attnum > 0 AND NOT a.attisdropped
     WHERE a.attstattarget >= 0 AND rel.relkind IN ('r', 'p', 'm')
    UNION ALL
    -- indexes and constraints
    SELECT format('%%s index: %%s%%s%%s%%s', rel.name, pg_get_indexdef(i.indexrelid),
                  CASE WHEN NOT i.indisvalid THEN ' INVALID' END,
                  CASE WHEN i.indisclustered THEN ' clustered' END,
                  CASE WHEN i.indisreplident THEN ' replica identity' END)
      FROM rel JOIN pg_catalog.pg_index i ON i.indrelid = rel.oid
    UNION ALL
    SELECT format('%%s constraint %%I: %%s', rel.name, con.conname, pg_get_constraintdef(con.oid))
      FROM rel JOIN pg_catalog.pg_constraint con ON con.conrelid = rel.oid
     WHERE con.contype NOT IN ('n', 't')
    UNION ALL
    -- triggers, rules, policies
    SELECT format('%%s trigger (%%s): %%s', rel.name, tg.tgenabled, pg_get_triggerdef(tg.oid))
      FROM rel JOIN pg_catalog.pg_trigger tg ON tg.tgrelid = rel.oid AND NOT tg.tgisinternal
     WHERE tg.tgname !~ '^pgddl'
    UNION ALL
    SELECT format('%%s rule (%%s): %%s', rel.name, r.ev_enabled, pg_get_ruledef(r.oid))
      FROM rel JOIN pg_catalog.pg_rewrite r ON r.ev_class = rel.oid AND r.rulename <> '_RETURN'
    UNION ALL
    SELECT format('%%s policy %%I: %%s %%s to %%s using %%s check %%s', rel.name, p.polname,
                  CASE WHEN p.polpermissive THEN 'permissive' ELSE 'restrictive' END, p.polcmd,
                  (SELECT string_agg(CASE r WHEN 0 THEN 'public' ELSE r::regrole::text END, ', '
                                     ORDER BY CASE r WHEN 0 THEN 'public' ELSE r::regrole::text END)
                     FROM unnest(p.polroles) r),
                  pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
      FROM rel JOIN pg_catalog.pg_policy p ON p.polrelid = rel.oid
    UNION ALL
    SELECT format('statistics: %%s', pg_get_statisticsobjdef(s.oid))
      FROM pg_catalog.pg_statistic_ext s JOIN ns ON ns.oid = s.stxnamespace
    UNION ALL
    -- sequences
    SELECT format('%%s sequence: %%s start %%s min %%s max %%s increment %%s cache %%s%%s%%s', rel.name,
                  format_type(s.seqtypid, NULL), s.seqstart, s.seqmin, s.seqmax, s.seqincrement, s.seqcache,
                  CASE WHEN s.seqcycle THEN ' cycle' END,
                  (SELECT format(' owned by %%s.%%I', d.refobjid::regclass, a.attname)
                     FROM pg_catalog.pg_depend d
                     JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
                    WHERE d.classid = 'pg_class'::regclass AND d.objid = rel.oid
                      AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')))
      FROM rel JOIN pg_catalog.pg_sequence s ON s.seqrelid = rel.oid
    UNION ALL
    -- types
    SELECT format('%%s type %%s: owner %%s', format_type(t.oid, NULL),
                  CASE t.typtype WHEN 'e' THEN 'enum' WHEN 'd' THEN 'domain' WHEN 'c' THEN 'composite'
                                 WHEN 'r' THEN 'range' ELSE t.typtype::text END,
                  t.typowner::regrole)
      FROM pg_catalog.pg_type t JOIN ns ON ns.oid = t.typnamespace
     WHERE (t.typtype IN ('e', 'd', 'r') OR (t.typtype = 'c' AND EXISTS (
               SELECT FROM pg_catalog.pg_class c WHERE c.oid = t.typrelid AND c.relkind = 'c')))
       AND NOT EXISTS (SELECT FROM ours o WHERE o.classid = 'pg_type'::regclass AND o.objid = t.oid)
    UNION ALL
    SELECT format('%%s enum labels: %%s', format_type(e.enumtypid, NULL),
                  string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder))
      FROM pg_catalog.pg_enum e JOIN pg_catalog.pg_type t ON t.oid = e.enumtypid JOIN ns ON ns.oid = t.typnamespace
     GROUP BY e.enumtypid
    UNION ALL
    SELECT format('%%s domain over %%s%%s%%s', format_type(t.oid, NULL), format_type(t.typbasetype, t.typtypmod),
                  CASE WHEN t.typnotnull THEN ' not null' END, ' default ' || t.typdefault)
      FROM pg_catalog.pg_type t JOIN ns ON ns.oid = t.typnamespace WHERE t.typtype = 'd'
    UNION ALL
    SELECT format('%%s domain constraint %%I: %%s', format_type(t.oid, NULL), con.conname, pg_get_constraintdef(con.oid))
      FROM pg_catalog.pg_constraint con
      JOIN pg_catalog.pg_type t ON t.oid = con.contypid JOIN ns ON ns.oid = t.typnamespace
     WHERE con.contype = 'c'
    UNION ALL
    SELECT format('%%s range over %%s', format_type(r.rngtypid, NULL), format_type(r.rngsubtype, NULL))
      FROM pg_catalog.pg_range r JOIN pg_catalog.pg_type t ON t.oid = r.rngtypid JOIN ns ON ns.oid = t.typnamespace
    UNION ALL
    -- functions (aggregates by name only)
    SELECT CASE WHEN p.prokind = 'a' THEN format('aggregate %%s', p.oid::regprocedure)
                ELSE format('function: %%s', pg_get_functiondef(p.oid)) END
      FROM pg_catalog.pg_proc p JOIN ns ON ns.oid = p.pronamespace
     WHERE NOT EXISTS (SELECT FROM ours o WHERE o.classid = 'pg_proc'::regclass AND o.objid = p.oid)
    UNION ALL
    SELECT format('function owner: %%s %%s', p.oid::regprocedure, p.proowner::regrole)
      FROM pg_catalog.pg_proc p JOIN ns ON ns.oid = p.pronamespace
     WHERE NOT EXISTS (SELECT FROM ours o WHERE o.classid = 'pg_proc'::regclass AND o.objid = p.oid)
    UNION ALL
    -- grants, one line a grantee and privilege; what null stands for is spelled out
    SELECT format('grant %%s on %%s to %%s by %%s%%s', g.privilege_type, rel.name,
                  CASE g.grantee WHEN 0 THEN 'public' ELSE g.grantee::regrole::text END, g.grantor::regrole,
                  CASE WHEN g.is_grantable THEN ' with grant option' END)
      FROM rel CROSS JOIN LATERAL aclexplode(coalesce(
               rel.relacl, acldefault(CASE rel.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", rel.relowner))) g
     WHERE rel.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND g.privilege_type <> 'MAINTAIN'
    UNION ALL
    SELECT format('grant %%s (%%I) on %%s to %%s by %%s%%s', g.privilege_type, a.attname, rel.name,
                  CASE g.grantee WHEN 0 THEN 'public' ELSE g.grantee::regrole::text END, g.grantor::regrole,
                  CASE WHEN g.is_grantable THEN ' with grant option' END)
      FROM rel
      JOIN pg_catalog.pg_attribute a ON a.attrelid = rel.oid AND NOT a.attisdropped
      CROSS JOIN LATERAL aclexplode(a.attacl) g
    UNION ALL
    SELECT format('grant %%s on schema %%I to %%s', g.privilege_type, ns.nspname,
                  CASE g.grantee WHEN 0 THEN 'public' ELSE g.grantee::regrole::text END)
      FROM ns CROSS JOIN LATERAL aclexplode(coalesce(ns.nspacl, acldefault('n', ns.nspowner))) g
    UNION ALL
    SELECT format('grant %%s on function %%s to %%s', g.privilege_type, p.oid::regprocedure,
                  CASE g.grantee WHEN 0 THEN 'public' ELSE g.grantee::regrole::text END)
      FROM pg_catalog.pg_proc p JOIN ns ON ns.oid = p.pronamespace
      CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) g
     WHERE NOT EXISTS (SELECT FROM ours o WHERE o.classid = 'pg_proc'::regclass AND o.objid = p.oid)
    UNION ALL
    SELECT format('grant %%s on type %%s to %%s', g.privilege_type, format_type(t.oid, NULL),
                  CASE g.grantee WHEN 0 THEN 'public' ELSE g.grantee::regrole::text END)
      FROM pg_catalog.pg_type t JOIN ns ON ns.oid = t.typnamespace
      CROSS JOIN LATERAL aclexplode(coalesce(t.typacl, acldefault('T', t.typowner))) g
     WHERE t.typtype IN ('e', 'd', 'r')
    UNION ALL
    -- comments, under the names that Postgres itself gives to objects
    SELECT format('comment on %%s %%s: %%s', i.type, i.identity, d.description)
      FROM pg_catalog.pg_description d
      CROSS JOIN LATERAL pg_identify_object(d.classoid, d.objoid, d.objsubid) i
     WHERE d.objoid >= 16384
       AND (i.schema IN (SELECT nspname FROM ns)
            OR (i.schema IS NULL AND (
                  d.objoid IN (SELECT oid FROM ns)
                  OR EXISTS (SELECT FROM pg_catalog.pg_trigger t JOIN rel ON rel.oid = t.tgrelid
                              WHERE d.classoid = 'pg_trigger'::regclass AND t.oid = d.objoid)
                  OR EXISTS (SELECT FROM pg_catalog.pg_policy p JOIN rel ON rel.oid = p.polrelid
                              WHERE d.classoid = 'pg_policy'::regclass AND p.oid = d.objoid)
                  OR EXISTS (SELECT FROM pg_catalog.pg_rewrite r JOIN rel ON rel.oid = r.ev_class
                              WHERE d.classoid = 'pg_rewrite'::regclass AND r.oid = d.objoid))))
)
SELECT line FROM lines ORDER BY line COLLATE "C"
