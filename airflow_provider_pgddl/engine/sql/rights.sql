-- name: untrusted
-- A superuser is a member of every role. Whoever is a member of ours may do all that we may.
SELECT r.rolname FROM pg_catalog.pg_roles r
WHERE r.rolname = ANY(%s::name[]) AND r.rolname <> ALL(%s::name[])
  AND NOT r.rolsuper AND NOT pg_catalog.pg_has_role(r.oid, current_user, 'MEMBER')

-- name: trusted
SELECT EXISTS (SELECT FROM pg_catalog.pg_roles r
               WHERE r.rolname = %s AND (r.rolsuper OR pg_catalog.pg_has_role(r.oid, current_user, 'MEMBER')))

-- name: powers
-- What makes a role able to reach what is others', or the server's, by the statement that takes it away.
SELECT r.rolname, p.power FROM pg_catalog.pg_roles r
CROSS JOIN LATERAL (
    SELECT pg_catalog.format('ALTER ROLE %%I NO%%s;', r.rolname, a.attribute)
    FROM (VALUES ('SUPERUSER', r.rolsuper), ('CREATEROLE', r.rolcreaterole), ('REPLICATION', r.rolreplication),
                 ('BYPASSRLS', r.rolbypassrls)) a(attribute, has) WHERE a.has
    UNION ALL
    SELECT pg_catalog.format('REVOKE %%I FROM %%I;', g.rolname, r.rolname) FROM pg_catalog.pg_roles g
    WHERE NOT r.rolsuper AND g.oid <> r.oid AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER')
      AND (g.rolname = current_user
           OR g.rolname IN ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files',
                            'pg_read_all_data', 'pg_write_all_data', 'pg_maintain', 'pg_create_subscription',
                            'pg_signal_backend', 'pg_checkpoint'))
) p(power)
WHERE r.rolname = ANY(%s::name[])

-- name: standing
-- Of each of these relations, with its partitions: name, owners, those of them that are not trusted (a superuser is a member of every
-- role), whether it may have rules, triggers or foreign keys, and whether anything on it refers to a function, an operator or a type
-- of a user's, or calls a function of the server's that does more than tell the time: the others need no walk.
SELECT r.oid, r.schema, r.name, pg_catalog.array_agg(DISTINCT pg_catalog.pg_get_userbyid(c.relowner)::text),
       pg_catalog.array_agg(DISTINCT pg_catalog.pg_get_userbyid(c.relowner)::text)
           FILTER (WHERE pg_catalog.pg_get_userbyid(c.relowner) <> ALL(%(trusted)s::name[])
                         AND NOT pg_catalog.pg_has_role(c.relowner, current_user, 'MEMBER')),
       bool_or(c.relhasrules OR c.relhastriggers),
       bool_or(EXISTS (
           SELECT FROM (
               SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, t.relid
               UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, i.indexrelid FROM pg_catalog.pg_index i WHERE i.indrelid = t.relid
               UNION ALL SELECT 'pg_catalog.pg_attrdef'::pg_catalog.regclass, d.oid FROM pg_catalog.pg_attrdef d WHERE d.adrelid = t.relid
               UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, k.oid FROM pg_catalog.pg_constraint k WHERE k.conrelid = t.relid
               UNION ALL SELECT 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, s.oid FROM pg_catalog.pg_statistic_ext s WHERE s.stxrelid = t.relid
           ) own(classid, objid)
           CROSS JOIN LATERAL (
               SELECT FROM pg_catalog.pg_depend d
               WHERE d.classid = own.classid AND d.objid = own.objid AND d.refobjid >= 16384
                 AND d.refclassid IN ('pg_catalog.pg_proc'::pg_catalog.regclass, 'pg_catalog.pg_operator'::pg_catalog.regclass,
                                      'pg_catalog.pg_opclass'::pg_catalog.regclass, 'pg_catalog.pg_opfamily'::pg_catalog.regclass,
                                      'pg_catalog.pg_type'::pg_catalog.regclass)
               OFFSET 0) d)  -- from what belongs to the relation, and not from whatever in the database refers to a user's object
           OR EXISTS (
           SELECT FROM (
               SELECT d.adbin::text FROM pg_catalog.pg_attrdef d WHERE d.adrelid = t.relid
               UNION ALL SELECT k.conbin::text FROM pg_catalog.pg_constraint k WHERE k.conrelid = t.relid AND k.contype = 'c'
           ) e(expression)
           WHERE e.expression ~ pg_catalog.format(':funcid (?!(%%s|%%s) )',
               'pg_catalog.now()'::pg_catalog.regprocedure::oid, 'pg_catalog.nextval(pg_catalog.regclass)'::pg_catalog.regprocedure::oid)))
FROM ({relations}) r(oid, schema, name)
CROSS JOIN LATERAL (SELECT r.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(r.oid) p WHERE p.level BETWEEN 0 AND 10000) t(relid)
JOIN pg_catalog.pg_class c ON c.oid = t.relid
GROUP BY r.oid, r.schema, r.name

-- name: by_oid
SELECT c.oid, n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%(oids)s::oid[])

-- name: by_name
SELECT c.oid, n.nspname, c.relname FROM unnest(%(schemas)s::name[], %(names)s::name[]) k(schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = k.name

-- name: anybody
-- Whether a role that is not trusted owns a relation, a function or a type in this database: where none does, there is nothing to
-- look for. pg_shdepend would tell it faster, but has no entries for roles that initdb made, such as pg_database_owner.
SELECT EXISTS (
    SELECT FROM (
        SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid >= 16384
        UNION SELECT p.proowner FROM pg_catalog.pg_proc p WHERE p.oid >= 16384
        UNION SELECT t.typowner FROM pg_catalog.pg_type t WHERE t.oid >= 16384
    ) o(owner)
    JOIN pg_catalog.pg_roles r ON r.oid = o.owner
    WHERE r.rolname <> ALL(%s::name[]) AND NOT r.rolsuper AND NOT pg_catalog.pg_has_role(r.oid, current_user, 'MEMBER'))

-- name: foreign_code
-- What of roles that are not trusted can run where these tables, or their partitions, are read or written: by table, in what (kind
-- and name), whose it is, and what it is. Down from what belongs to a table over pg_depend to functions, whose owners decide: what
-- they call in their turn runs with the same rights. A domain counts with any CHECK or none, for its owner can add one at any
-- time, and no lock on the tables keeps that out. Nothing that initdb made (below 16384) reaches what users made.
WITH RECURSIVE tree(root, relid) AS MATERIALIZED (  -- of a level, else the planner takes them for a thousand and makes room for millions
    SELECT r.oid, t.relid FROM unnest(%(oids)s::oid[]) r(oid)
    CROSS JOIN LATERAL (SELECT r.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(r.oid) p WHERE p.level BETWEEN 0 AND 10000) t(relid)
), reached(root, kind, what, classid, objid, nested) AS (
    SELECT start.*, false FROM (
        SELECT t.root, CASE WHEN a.attgenerated <> '' THEN 'generated column' ELSE 'default' END, a.attname::text,
               'pg_catalog.pg_attrdef'::pg_catalog.regclass::oid, d.oid
        FROM tree t JOIN pg_catalog.pg_attrdef d ON d.adrelid = t.relid
        JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        UNION ALL
        SELECT t.root, 'check', c.conname, 'pg_catalog.pg_constraint'::pg_catalog.regclass, c.oid
        FROM tree t JOIN pg_catalog.pg_constraint c ON c.conrelid = t.relid AND c.contype = 'c'
        UNION ALL
        SELECT t.root, 'index', x.relname, 'pg_catalog.pg_class'::pg_catalog.regclass, x.oid
        FROM tree t JOIN pg_catalog.pg_index i ON i.indrelid = t.relid JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
        UNION ALL
        SELECT t.root, 'statistics', s.stxname, 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, s.oid
        FROM tree t JOIN pg_catalog.pg_statistic_ext s ON s.stxrelid = t.relid
        UNION ALL
        SELECT t.root, 'partition key', c.relname, 'pg_catalog.pg_class'::pg_catalog.regclass, c.oid
        FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.relid AND c.relkind = 'p'
        UNION ALL
        SELECT t.root, CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = t.relid AND i.indisunique
                                         AND a.attnum = ANY (i.indkey::int2[])) THEN 'key column' ELSE 'column' END,
               a.attname, 'pg_catalog.pg_type'::pg_catalog.regclass, a.atttypid
        FROM tree t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.relid AND a.attnum > 0 AND a.atttypid >= 16384
        UNION ALL
        SELECT t.root, 'cast', a.attname, 'pg_catalog.pg_proc'::pg_catalog.regclass, c.castfunc
        FROM tree t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.relid AND a.attnum > 0 AND a.atttypid >= 16384
        JOIN pg_catalog.pg_cast c ON a.atttypid IN (c.castsource, c.casttarget) AND c.castfunc >= 16384
        UNION ALL
        SELECT t.root, 'expression', c.relname, 'pg_catalog.pg_rewrite'::pg_catalog.regclass, w.oid
        FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.relid AND c.relkind = 'v' JOIN pg_catalog.pg_rewrite w ON w.ev_class = t.relid
    ) start(root, kind, what, classid, objid)
    UNION
    SELECT r.root, r.kind, r.what, n.classid, n.objid, r.nested OR n.nested
    FROM reached r CROSS JOIN LATERAL (
        SELECT d.refclassid, d.refobjid, false FROM pg_catalog.pg_depend d
        WHERE d.classid = r.classid AND d.objid = r.objid AND d.refobjid >= 16384 AND d.deptype IN ('n', 'a')
          AND (r.kind <> 'partition key' OR d.objsubid = 0 OR r.classid <> 'pg_catalog.pg_class'::pg_catalog.regclass)
          AND r.classid IN ('pg_catalog.pg_attrdef'::pg_catalog.regclass, 'pg_catalog.pg_constraint'::pg_catalog.regclass,
                            'pg_catalog.pg_class'::pg_catalog.regclass, 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass,
                            'pg_catalog.pg_rewrite'::pg_catalog.regclass, 'pg_catalog.pg_operator'::pg_catalog.regclass)
          AND d.refclassid IN ('pg_catalog.pg_proc'::pg_catalog.regclass, 'pg_catalog.pg_operator'::pg_catalog.regclass,
                               'pg_catalog.pg_opclass'::pg_catalog.regclass, 'pg_catalog.pg_type'::pg_catalog.regclass)
        UNION ALL
        SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, p.amproc, false
        FROM pg_catalog.pg_opclass o JOIN pg_catalog.pg_amproc p ON p.amprocfamily = o.opcfamily
        WHERE r.classid = 'pg_catalog.pg_opclass'::pg_catalog.regclass AND o.oid = r.objid AND p.amproc >= 16384
        UNION ALL
        SELECT 'pg_catalog.pg_operator'::pg_catalog.regclass, p.amopopr, false
        FROM pg_catalog.pg_opclass o JOIN pg_catalog.pg_amop p ON p.amopfamily = o.opcfamily
        WHERE r.classid = 'pg_catalog.pg_opclass'::pg_catalog.regclass AND o.oid = r.objid AND p.amopopr >= 16384
        UNION ALL
        SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, c.oid, false FROM pg_catalog.pg_constraint c
        WHERE r.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND c.contypid = r.objid
        UNION ALL
        SELECT d.refclassid, d.refobjid, false FROM pg_catalog.pg_depend d  -- a domain's default
        WHERE r.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.classid = r.classid AND d.objid = r.objid
          AND d.refobjid >= 16384 AND d.deptype IN ('n', 'a')
          AND d.refclassid IN ('pg_catalog.pg_proc'::pg_catalog.regclass, 'pg_catalog.pg_operator'::pg_catalog.regclass)
        UNION ALL
        SELECT 'pg_catalog.pg_type'::pg_catalog.regclass, inner_type, nested
        FROM pg_catalog.pg_type y CROSS JOIN LATERAL (
            SELECT y.typbasetype, false WHERE y.typtype = 'd'
            UNION ALL SELECT y.typelem, true WHERE y.typelem <> 0
            UNION ALL SELECT a.atttypid, true FROM pg_catalog.pg_attribute a
            WHERE y.typtype = 'c' AND a.attrelid = y.typrelid AND a.attnum > 0 AND NOT a.attisdropped
            UNION ALL SELECT g.rngsubtype, true FROM pg_catalog.pg_range g WHERE g.rngtypid = y.oid OR g.rngmultitypid = y.oid
        ) within(inner_type, nested)
        WHERE r.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND y.oid = r.objid AND inner_type >= 16384
        UNION ALL
        -- Our own tables of keys are analyzed as us, which calls the difference of ranges.
        SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, f, r.kind = 'key column'
        FROM pg_catalog.pg_range g CROSS JOIN LATERAL (VALUES (g.rngsubdiff::oid), (g.rngcanonical::oid)) v(f)
        WHERE r.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND (g.rngtypid = r.objid OR g.rngmultitypid = r.objid)
          AND f >= 16384
    ) n(classid, objid, nested)
), authored(root, kind, what, author, code, nested) AS (
    SELECT r.root, r.kind, r.what, p.proowner, 'function ' || p.oid::pg_catalog.regprocedure::text, r.nested
    FROM reached r JOIN pg_catalog.pg_proc p ON p.oid = r.objid WHERE r.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass
    UNION
    SELECT r.root, r.kind, r.what, y.typowner, 'domain ' || y.oid::pg_catalog.regtype::text, r.nested
    FROM reached r JOIN pg_catalog.pg_type y ON y.oid = r.objid AND y.typtype = 'd'
    WHERE r.classid = 'pg_catalog.pg_type'::pg_catalog.regclass
    UNION
    -- A composite may get an attribute of a domain at any time, which no lock keeps out: reading one from text runs its CHECK. And
    -- whoever owns a type may bring casts of it at any time, which for the table's own owner are looked after elsewhere.
    SELECT r.root, r.kind, r.what, y.typowner, 'type ' || y.oid::pg_catalog.regtype::text, r.kind = 'key column' AND y.typtype = 'c'
    FROM reached r JOIN pg_catalog.pg_type y ON y.oid = r.objid JOIN pg_catalog.pg_class t ON t.oid = r.root
    WHERE r.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND r.kind IN ('column', 'key column')
      AND (y.typtype = 'c' OR y.typowner <> t.relowner AND y.typtype IN ('e', 'r', 'm'))
)
SELECT a.root, a.kind, a.what, o.rolname, a.code, bool_or(a.nested)
FROM authored a JOIN pg_catalog.pg_roles o ON o.oid = a.author
WHERE o.rolname <> ALL(%(trusted)s::name[]) AND NOT o.rolsuper AND NOT pg_catalog.pg_has_role(o.oid, current_user, 'MEMBER')
GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5

-- name: makers_beside
-- The schemas of functions and operators that a view's query calls, each with who may make others there, of which one could be taken
-- for them by its arguments; everybody as ''.
SELECT DISTINCT n.nspname, coalesce(CASE g.rolname WHEN 'pg_database_owner' THEN pg_catalog.pg_get_userbyid(b.datdba) ELSE g.rolname END, '')
FROM pg_catalog.pg_rewrite w
JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND d.objid = w.oid AND d.refobjid >= 16384
LEFT JOIN pg_catalog.pg_proc p ON d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.oid = d.refobjid
LEFT JOIN pg_catalog.pg_operator o ON d.refclassid = 'pg_catalog.pg_operator'::pg_catalog.regclass AND o.oid = d.refobjid
JOIN pg_catalog.pg_namespace n ON n.oid = coalesce(p.pronamespace, o.oprnamespace)
JOIN pg_catalog.pg_database b ON b.datname = pg_catalog.current_database()
CROSS JOIN LATERAL (
    SELECT n.nspowner UNION
    SELECT a.grantee FROM pg_catalog.aclexplode(coalesce(n.nspacl, pg_catalog.acldefault('n', n.nspowner))) a
    WHERE a.privilege_type = 'CREATE') m(role)
LEFT JOIN pg_catalog.pg_roles g ON g.oid = m.role
WHERE w.ev_class = %s
ORDER BY 1, 2

-- name: calls
-- The server's own functions are no code of anybody's, but some of them run SQL that they are given (ts_rewrite, query_to_xml), or
-- do what only our rights allow (pg_read_file, set_config, lo_unlink): whose expression calls them does it. pg_depend knows nothing
-- of these, so expressions are looked through. What is immutable does nothing of the kind. So do all functions of some extensions,
-- which belong to a superuser. In the shape of foreign_code.
SELECT DISTINCT e.root, e.kind, e.what, o.rolname, 'function ' || p.oid::pg_catalog.regprocedure::text, false
FROM (
    SELECT r.oid, t.relid, c.relowner FROM unnest(%(oids)s::oid[]) r(oid)
    CROSS JOIN LATERAL (SELECT r.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(r.oid) p WHERE p.level BETWEEN 0 AND 10000) t(relid)
    JOIN pg_catalog.pg_class c ON c.oid = t.relid
) t(root, relid, owner)
JOIN pg_catalog.pg_roles o ON o.oid = t.owner
CROSS JOIN LATERAL (
    SELECT t.root, CASE WHEN a.attgenerated <> '' THEN 'generated column' ELSE 'default' END, a.attname::text, d.adbin::text
    FROM pg_catalog.pg_attrdef d JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
    WHERE d.adrelid = t.relid
    UNION ALL
    SELECT t.root, 'check', k.conname, k.conbin::text FROM pg_catalog.pg_constraint k WHERE k.conrelid = t.relid AND k.contype = 'c'
) e(root, kind, what, expression)
CROSS JOIN LATERAL (SELECT DISTINCT f.found[1]::oid FROM pg_catalog.regexp_matches(e.expression, ':funcid (\d+)', 'g') f(found)) f(oid)
JOIN pg_catalog.pg_proc p ON p.oid = f.oid
WHERE o.rolname <> ALL(%(trusted)s::name[]) AND NOT o.rolsuper AND NOT pg_catalog.pg_has_role(o.oid, current_user, 'MEMBER')
  AND (p.oid >= 16384 AND EXISTS (
           SELECT FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid
           WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid AND d.deptype = 'e'
             AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass
             AND x.extname IN ('adminpack', 'aws_lambda', 'aws_s3', 'dblink', 'http', 'pg_background', 'pg_cron', 'pg_net',
                               'plproxy', 'tablefunc', 'xml2'))
       OR p.oid < 16384 AND p.provolatile = 's' AND p.proname ~ '^(pg_|lo_|current_setting$)|_to_xml'
       OR p.oid < 16384 AND p.provolatile = 'v' AND p.proname <> ALL ('{nextval,currval,lastval,random,random_normal,clock_timestamp,timeofday,gen_random_uuid,uuidv4,uuidv7}'))

-- name: traps
-- What writing to these copies (by any number) would set off that no window keeps from it: rules; and on those in place, which have
-- none of ours and where nothing is silenced, triggers, and foreign keys to them, whose actions fire triggers of other tables.
WITH copies AS (
    SELECT k.id, t.relid, k.schema ~ '^pgddl_(copy|old)_' AS in_place
    FROM unnest(%(ids)s::bigint[], %(schemas)s::name[], %(names)s::name[]) k(id, schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = k.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = k.name
    CROSS JOIN LATERAL (SELECT c.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p WHERE p.level BETWEEN 0 AND 10000) t(relid)
)
SELECT c.id, pg_catalog.format('rule %%I on %%s', w.rulename, c.relid::pg_catalog.regclass)
FROM copies c JOIN pg_catalog.pg_rewrite w ON w.ev_class = c.relid AND w.ev_enabled <> 'D'
UNION ALL
SELECT c.id, pg_catalog.format('trigger %%I on %%s', g.tgname, c.relid::pg_catalog.regclass)
FROM copies c JOIN pg_catalog.pg_trigger g ON g.tgrelid = c.relid AND NOT g.tgisinternal AND g.tgenabled <> 'D'
JOIN pg_catalog.pg_proc p ON p.oid = g.tgfoid JOIN pg_catalog.pg_namespace pn ON pn.oid = p.pronamespace
WHERE c.in_place AND pn.nspname <> 'pgddl'
UNION ALL
SELECT c.id, pg_catalog.format('foreign key %%I of %%s', f.conname, f.conrelid::pg_catalog.regclass)
FROM copies c JOIN pg_catalog.pg_constraint f ON f.confrelid = c.relid AND f.contype = 'f'
WHERE c.in_place

-- name: hold_schemas
SELECT n.oid FROM pg_catalog.pg_namespace n
WHERE n.oid = ANY (ARRAY(
    SELECT c.relnamespace FROM ({relations}) r(oid, schema, name)
    CROSS JOIN LATERAL (SELECT r.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(r.oid) p WHERE p.level BETWEEN 0 AND 10000) t(relid)
    JOIN pg_catalog.pg_class c ON c.oid = t.relid))
FOR KEY SHARE NOWAIT

-- name: have_types
-- Which of these tables have columns of types that users have made.
SELECT DISTINCT a.attrelid FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384

-- name: may_act_as
-- Which of these roles may do anyway whatever the one beside it may.
SELECT r.role, r.owner FROM unnest(%s::name[], %s::name[]) r(role, owner)
WHERE r.role = r.owner OR pg_catalog.pg_has_role(r.role, r.owner, 'USAGE')

-- name: forced
-- Of these tables those whose owner's own rows are filtered.
SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY(%s::oid[]) AND c.relrowsecurity AND c.relforcerowsecurity

-- name: bare_types
-- Of a relation's columns: name, type, and what values of it are kept as where nothing of a user may run: a domain's base type
-- where that is the server's own, text for any other type of a user's.
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
       CASE WHEN a.atttypid < 16384 THEN pg_catalog.format_type(a.atttypid, a.atttypmod)
            WHEN t.typtype = 'd' AND t.typbasetype < 16384 THEN pg_catalog.format_type(t.typbasetype, t.typtypmod)
            ELSE 'text' END
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = (SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                    WHERE n.nspname = %s AND c.relname = %s)
  AND a.attnum > 0 AND NOT a.attisdropped

-- name: let_in
-- Schemas of ours in which code runs as the owner of a copy, who finds it by its name; and makes its partitions.
SELECT DISTINCT pg_catalog.format('GRANT %%s ON SCHEMA %%I TO %%I', p.privilege, n.nspname, g.role)
FROM unnest(%s::name[], %s::name[], %s::boolean[]) g(schema, role, makes)
JOIN pg_catalog.pg_namespace n ON n.nspname = g.schema
CROSS JOIN LATERAL (SELECT 'USAGE' UNION ALL SELECT 'CREATE' WHERE g.makes) p(privilege)
WHERE n.nspname ~ '^pgddl_' AND NOT pg_catalog.has_schema_privilege(g.role, n.oid, p.privilege)

-- name: lacks_on_schema
SELECT p.privilege FROM (VALUES ('USAGE'), ('CREATE')) p(privilege)
JOIN pg_catalog.pg_namespace n ON n.nspname = %(schema)s::name
WHERE NOT pg_catalog.has_schema_privilege(%(role)s::name, n.oid, p.privilege)

-- name: made_in_schema
-- What this role has there that takes a name from others: relations but indexes and sequences, those that bear one of these names
-- left out, and types of their own.
SELECT found.what FROM (
    SELECT 'relation ' || c.relname::text, c.relowner, c.relnamespace FROM pg_catalog.pg_class c
    WHERE c.relkind <> ALL ('{i,I,S,t}') AND c.relname <> ALL(%(names)s::name[])
    UNION ALL
    SELECT 'type ' || t.typname::text, t.typowner, t.typnamespace FROM pg_catalog.pg_type t
    WHERE t.typrelid = 0 AND t.typname <> ALL(%(names)s::name[])
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_type e WHERE e.typarray = t.oid)
) found(what, owner, namespace)
JOIN pg_catalog.pg_roles o ON o.oid = found.owner JOIN pg_catalog.pg_namespace n ON n.oid = found.namespace
WHERE o.rolname = %(role)s::name AND n.nspname = %(schema)s::name

-- name: given_by_default
-- What ALTER DEFAULT PRIVILEGES of another has given on a new table.
SELECT DISTINCT pg_catalog.format('REVOKE ALL ON TABLE %%s FROM %%s', c.oid::pg_catalog.regclass,
                         CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a
WHERE n.nspname = %s AND c.relname = %s AND a.grantee <> c.relowner

-- name: probe
SELECT c.oid FROM pg_catalog.pg_class c WHERE c.relnamespace = pg_catalog.pg_my_temp_schema() AND c.relname IN ('pgddl_probe', 'pgddl_probed')

-- name: let_own
SELECT DISTINCT pg_catalog.format('GRANT USAGE, CREATE ON SCHEMA %%I TO %%I', %s::name, r.rolname)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN pg_catalog.pg_roles r ON r.oid = c.relowner
WHERE n.nspname = %s AND c.relkind IN ('r', 'p') AND r.rolname <> current_user

-- name: with_referenced
-- Tables, and those of indexes, with those at the other end of their foreign keys.
SELECT DISTINCT c.oid, ARRAY(SELECT k.confrelid FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'f')
FROM unnest(%s::name[], %s::name[]) g(schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = g.schema
JOIN pg_catalog.pg_class r ON r.relnamespace = n.oid AND r.relname = g.name
LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = r.oid
CROSS JOIN LATERAL (
    SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid = coalesce(i.indrelid, r.oid) AND c.relkind IN ('r', 'p') OFFSET 0) c

-- name: names_of
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%s::oid[]) ORDER BY 1, 2

-- name: code_of_types
-- The first of these types (as text) whose values, read from text, run code that is not trusted: by way of a domain within it.
WITH RECURSIVE within(named, oid, nested) AS (
    SELECT t.named, t.type::oid, false FROM unnest(%(types)s::text[]) g(named)
    CROSS JOIN LATERAL (SELECT g.named, pg_catalog.to_regtype(g.named)) t(named, type) WHERE t.type >= 16384
    UNION
    SELECT w.named, i.oid, w.nested OR i.nested
    FROM within w JOIN pg_catalog.pg_type y ON y.oid = w.oid CROSS JOIN LATERAL (
        SELECT y.typbasetype, false WHERE y.typtype = 'd'
        UNION ALL SELECT y.typelem, true WHERE y.typelem <> 0
        UNION ALL SELECT a.atttypid, true FROM pg_catalog.pg_attribute a
        WHERE y.typtype = 'c' AND a.attrelid = y.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT g.rngsubtype, true FROM pg_catalog.pg_range g WHERE g.rngtypid = y.oid OR g.rngmultitypid = y.oid
    ) i(oid, nested) WHERE i.oid >= 16384
)
SELECT w.named, o.rolname, 'domain ' || y.oid::pg_catalog.regtype::text
FROM within w JOIN pg_catalog.pg_type y ON y.oid = w.oid AND y.typtype = 'd' AND w.nested
CROSS JOIN LATERAL (
    SELECT y.typowner
    UNION SELECT p.proowner FROM pg_catalog.pg_constraint c
    JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass AND d.objid = c.oid
         AND d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass
    JOIN pg_catalog.pg_proc p ON p.oid = d.refobjid WHERE c.contypid = y.oid
) a(author)
JOIN pg_catalog.pg_roles o ON o.oid = a.author
WHERE o.rolname <> ALL(%(trusted)s::name[]) AND NOT o.rolsuper AND NOT pg_catalog.pg_has_role(o.oid, current_user, 'MEMBER')
ORDER BY 1, 2, 3 LIMIT 1

-- name: open_to_all
-- What everybody may use by default, of these names: as a GRANT calls it (kind, schema, name, number of arguments).
SELECT k.kind, n.nspname::text, p.proname::text, p.pronargs::integer
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
CROSS JOIN (VALUES ('function'), ('procedure'), ('routine')) k(kind)
WHERE p.proname = ANY(%(names)s::name[])
UNION ALL
SELECT k.kind, n.nspname::text, y.typname::text, NULL
FROM pg_catalog.pg_type y JOIN pg_catalog.pg_namespace n ON n.oid = y.typnamespace
CROSS JOIN (VALUES ('type'), ('domain')) k(kind)
WHERE y.typname = ANY(%(names)s::name[])
UNION ALL
SELECT 'language', '', l.lanname::text, NULL FROM pg_catalog.pg_language l WHERE l.lanname = ANY(%(names)s::name[])
