-- name: server
-- One row about the server, the database and the role that we are.
SELECT pg_catalog.current_setting('server_version_num')::int AS version,
       d.oid AS database_oid,
       d.datname AS database,
       pg_catalog.pg_encoding_to_char(d.encoding) AS encoding,
       pg_catalog.concat_ws(' ', d.datcollate, d.datctype) AS locale,
       (SELECT system_identifier::text FROM pg_catalog.pg_control_system()) AS system,
       pg_catalog.pg_is_in_recovery() AS standby,
       r.rolname AS role,
       r.rolsuper AS superuser,
       r.rolsuper OR r.rolbypassrls AS bypasses_row_security,
       pg_catalog.has_database_privilege(d.oid, 'CREATE') AS can_create,
       pg_catalog.current_setting('wal_level') AS wal_level,
       r.rolreplication OR r.rolsuper AS replication,
       pg_catalog.current_setting('max_locks_per_transaction')::int AS locks_a_session,
       (SELECT sum(setting::int) FROM pg_catalog.pg_settings
        WHERE name IN ('max_connections', 'max_prepared_transactions', 'max_worker_processes', 'max_wal_senders'))::int
       AS sessions,
       pg_catalog.current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_catalog.pg_replication_slots) AS free_slots
FROM pg_catalog.pg_database d, pg_catalog.pg_roles r
WHERE d.datname = pg_catalog.current_database() AND r.rolname = current_user

-- name: hiding_damage
-- Settings by which a read passes over pages that it cannot read, and who has made each for this session.
SELECT s.name, s.source FROM pg_catalog.pg_settings s
WHERE s.name IN ('ignore_checksum_failure', 'zero_damaged_pages') AND s.setting = 'on' ORDER BY s.name

-- name: keywords
-- Words that cannot stand as a name without quotes.
SELECT word FROM pg_catalog.pg_get_keywords() WHERE catcode <> 'U'

-- name: lock_probe
SELECT pg_catalog.pg_try_advisory_lock(%s)

-- name: unlock_probe
SELECT pg_catalog.pg_advisory_unlock(%s)

-- name: named
-- The relations with these names: schema, name, oid (null where there is none), relkind.
SELECT w.schema, w.name, c.oid, c.relkind::text
FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS w(schema, name)  -- with two arguments it is no pg_catalog.unnest
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name

-- name: relations
-- The tables and all that hangs below them as partitions, with our rights on each.
WITH RECURSIVE tree(root, relid) AS (
    SELECT c.oid, c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(oids)s::oid[])
    UNION ALL
    SELECT t.root, i.inhrelid
    FROM tree t
    JOIN pg_catalog.pg_class p ON p.oid = t.relid AND p.relkind = 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relid
)
SELECT t.root, c.oid, n.nspname AS schema, c.relname AS name, pg_catalog.format('%%I.%%I', n.nspname, c.relname) AS quoted,
       c.relkind::text AS kind, c.relispartition AS is_partition, r.rolname AS owner,
       pg_catalog.pg_has_role(c.relowner, 'USAGE') AS owned,
       pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS can_use_schema,
       pg_catalog.has_schema_privilege(n.oid, 'CREATE') AS can_create_in_schema,
       pg_catalog.has_table_privilege(c.oid, 'SELECT') AS can_select,
       c.relrowsecurity AS row_security, c.relforcerowsecurity AS forced,
       pg_catalog.row_security_active(c.oid) AS hides_rows
FROM tree t
JOIN pg_catalog.pg_class c ON c.oid = t.relid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_roles r ON r.oid = c.relowner
ORDER BY t.root, t.relid <> t.root, n.nspname, c.relname

-- name: sequences
-- Sequences whose values are read at the swap: of all tables, since the target gets them all.
SELECT pg_catalog.format('%I.%I', n.nspname, s.relname)
FROM pg_catalog.pg_class s JOIN pg_catalog.pg_namespace n ON n.oid = s.relnamespace
WHERE s.relkind = 'S' AND s.relpersistence <> 't' AND n.nspname !~ '^(pg_|pgddl(_|$))' AND n.nspname <> 'information_schema'
  AND CASE WHEN s.relkind = 'S' THEN NOT pg_catalog.has_sequence_privilege(s.oid, 'SELECT') END
ORDER BY 1

-- name: unreadable
-- What a dump of the whole schema locks or reads, and our role may not.
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relpersistence <> 't'
  AND n.nspname !~ '^(pg_|pgddl(_|$))' AND n.nspname <> 'information_schema'
  AND (NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE')
       OR CASE WHEN c.relkind = 'S' THEN NOT pg_catalog.has_sequence_privilege(c.oid, 'SELECT')
               ELSE NOT pg_catalog.has_table_privilege(c.oid, 'SELECT') END)
ORDER BY 1

-- name: not_null_candidates
-- What could become a key: the smallest unique index that only its nullable columns keep from being one.
SELECT DISTINCT ON (i.indrelid) i.indrelid,
       ARRAY(SELECT a.attname::text FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n)
             JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE k.n <= i.indnkeyatts
               AND (NOT a.attnotnull OR EXISTS (SELECT FROM pg_catalog.pg_constraint v WHERE v.conrelid = a.attrelid AND v.contype = 'n'
                                                AND NOT v.convalidated AND v.conkey = ARRAY[a.attnum]))
             ORDER BY k.n) AS nullable
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
JOIN pg_catalog.pg_am am ON am.oid = ic.relam AND am.amname = 'btree'
WHERE i.indrelid = ANY(%(oids)s::oid[])
  AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
ORDER BY i.indrelid, i.indnkeyatts, ic.relname

-- name: odd_not_null
-- Of columns that a row from before, or of a child, may have NULL in: the constraint, and whether it holds for the table's own.
SELECT a.attname::text, k.conname::text, k.convalidated
FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[1]
WHERE k.conrelid = %(oid)s AND k.contype = 'n' AND (k.connoinherit OR NOT k.convalidated)

-- name: primary_key
SELECT a.attname::text
FROM pg_catalog.pg_constraint k CROSS JOIN LATERAL pg_catalog.unnest(k.conkey) WITH ORDINALITY c(attnum, n)
JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = c.attnum
WHERE k.conrelid = %(oid)s AND k.contype = 'p' ORDER BY c.n

-- name: partition_columns
-- What a partitioned table is partitioned by; NULL for an expression.
SELECT a.attname::text
FROM pg_catalog.pg_partitioned_table p CROSS JOIN LATERAL pg_catalog.unnest(p.partattrs::int2[]) k(attnum)
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.attnum
WHERE p.partrelid = %(oid)s

-- name: columns
SELECT a.attrelid, a.attname::text
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum

-- name: column_users
-- What DROP COLUMN does not take along: triggers, policies, foreign keys of others, generated columns, views and more
SELECT DISTINCT a.attname::text, pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_depend d ON d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
     AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
WHERE a.attrelid = %(oid)s AND a.attname = ANY(%(columns)s::text[]) AND d.deptype = 'n'
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend o JOIN pg_catalog.pg_attribute b ON b.attrelid = o.refobjid AND b.attnum = o.refobjsubid
                  WHERE o.classid = d.classid AND o.objid = d.objid AND o.refclassid = d.refclassid AND o.deptype = 'a'
                    AND b.attrelid = a.attrelid AND b.attname = ANY(%(columns)s::text[]))
ORDER BY 1, 2

-- name: generated_from
-- Generated columns that are computed from these: Postgres changes no type below one. What makes a virtual one again.
SELECT DISTINCT a.attname::text, g.attname::text,
       CASE g.attgenerated WHEN 'v' THEN pg_catalog.format('%%I %%s GENERATED ALWAYS AS (%%s) VIRTUAL', g.attname,
           pg_catalog.format_type(g.atttypid, g.atttypmod), pg_catalog.pg_get_expr(f.adbin, f.adrelid)) END
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_depend d ON d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
     AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
JOIN pg_catalog.pg_attrdef f ON f.oid = d.objid AND f.adrelid = a.attrelid
JOIN pg_catalog.pg_attribute g ON g.attrelid = f.adrelid AND g.attnum = f.adnum AND g.attgenerated <> '' AND g.attnum <> a.attnum
WHERE a.attrelid = %(oid)s AND a.attname = ANY(%(columns)s::text[])
ORDER BY 1, 2

-- name: key_collations
-- Columns under a nondeterministic collation: texts that differ count as equal.
SELECT a.attrelid, a.attname::text, pg_catalog.format('%%I.%%I', n.nspname, c.collname)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation AND NOT c.collisdeterministic
JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped

-- name: key_indexes
-- By which collations the indexes of these names are ordered (oid, schema of the index, its name), each with its recorded
-- version and the one that the server has now; of the database's own (no schema) see database_collation.
SELECT i.indrelid, xn.nspname::text, x.relname::text, CASE WHEN o.collid <> 100 THEN n.nspname::text END, c.collname::text,
       c.collversion, CASE WHEN o.collid <> 100 THEN pg_catalog.pg_collation_actual_version(o.collid) END
FROM unnest(%(oids)s::oid[], %(indexes)s::name[]) k(oid, index)
JOIN pg_catalog.pg_index i ON i.indrelid = k.oid
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid AND x.relname = k.index
JOIN pg_catalog.pg_namespace xn ON xn.oid = x.relnamespace
CROSS JOIN LATERAL (SELECT DISTINCT u.collid FROM pg_catalog.unnest(i.indcollation::oid[]) u(collid)) o
JOIN pg_catalog.pg_collation c ON c.oid = o.collid
JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace
ORDER BY 4, 5, 2, 3

-- name: database_collation
-- From version 15 on.
SELECT d.datcollversion, pg_catalog.pg_database_collation_actual_version(d.oid)
FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()

-- name: long_names
-- What has a name that takes more bytes in another encoding than a name may have.
WITH user_schemas AS (
    SELECT n.oid, n.nspname FROM pg_catalog.pg_namespace n
    WHERE n.nspname !~ '^(pg_|pgddl(_|$))' AND n.nspname <> 'information_schema')
SELECT k.kind, k.of, k.name FROM (
    SELECT 'schema' AS kind, NULL::text AS of, nspname::text AS name FROM user_schemas
    UNION ALL SELECT 'relation', s.nspname, c.relname FROM pg_catalog.pg_class c JOIN user_schemas s ON s.oid = c.relnamespace
    UNION ALL SELECT 'column', c.oid::pg_catalog.regclass::text, a.attname FROM pg_catalog.pg_attribute a
        JOIN pg_catalog.pg_class c ON c.oid = a.attrelid AND c.relkind <> 'i' JOIN user_schemas s ON s.oid = c.relnamespace
        WHERE a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT 'type', s.nspname, t.typname FROM pg_catalog.pg_type t JOIN user_schemas s ON s.oid = t.typnamespace
        WHERE t.typtype IN ('e', 'd', 'r')
    UNION ALL SELECT 'label', t.oid::pg_catalog.regtype::text, e.enumlabel FROM pg_catalog.pg_enum e
        JOIN pg_catalog.pg_type t ON t.oid = e.enumtypid JOIN user_schemas s ON s.oid = t.typnamespace
    UNION ALL SELECT 'constraint', s.nspname, o.conname FROM pg_catalog.pg_constraint o
        JOIN user_schemas s ON s.oid = o.connamespace WHERE o.conindid = 0 OR o.contype = 'f'
    UNION ALL SELECT 'function', s.nspname, p.proname FROM pg_catalog.pg_proc p JOIN user_schemas s ON s.oid = p.pronamespace
    UNION ALL SELECT 'trigger', g.tgrelid::pg_catalog.regclass::text, g.tgname FROM pg_catalog.pg_trigger g WHERE NOT g.tgisinternal) k
WHERE pg_catalog.octet_length(k.name) < pg_catalog.octet_length(pg_catalog.convert_to(k.name, %(encoding)s))
  AND pg_catalog.octet_length(pg_catalog.convert_to(k.name, %(encoding)s)) > 63
ORDER BY 1, 2, 3

-- name: values_by_oid
-- Columns of any table whose values name relations or types, and are kept as their oids; with the type, and whether it is an array.
SELECT n.nspname, c.relname, a.attname, b.typname, b.oid <> coalesce(nullif(t.typbasetype, 0), t.oid)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_type b ON b.oid IN (t.oid, t.typbasetype, t.typelem)
WHERE b.oid IN ('pg_catalog.regclass'::pg_catalog.regtype, 'pg_catalog.regtype'::pg_catalog.regtype)
  AND a.attnum > 0 AND NOT a.attisdropped AND n.nspname !~ '^(pg_|pgddl(_|$))' AND n.nspname <> 'information_schema'
ORDER BY 1, 2, a.attnum

-- name: for_all_tables
-- Publications that would take our tables along: the schemas that have tables, the tables, and what it publishes and how.
SELECT p.pubname::text,
       (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(n.nspname), ', ' ORDER BY n.nspname)
        FROM pg_catalog.pg_namespace n
        WHERE n.nspname !~ '^(pg_|pgddl(_|$))' AND n.nspname <> 'information_schema'
          AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p'))),
       (SELECT pg_catalog.string_agg(pg_catalog.format('%I.%I', t.schemaname, t.tablename), ', ' ORDER BY t.schemaname, t.tablename)
        FROM pg_catalog.pg_publication_tables t WHERE t.pubname = p.pubname AND t.schemaname !~ '^pgddl(_|$)'),
       pg_catalog.format('publish = %L, publish_via_partition_root = %s%s',
           pg_catalog.concat_ws(', ', CASE WHEN p.pubinsert THEN 'insert' END, CASE WHEN p.pubupdate THEN 'update' END,
                                CASE WHEN p.pubdelete THEN 'delete' END, CASE WHEN p.pubtruncate THEN 'truncate' END),
           CASE WHEN p.pubviaroot THEN 'true' ELSE 'false' END,
           CASE WHEN pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's' THEN ', publish_generated_columns = stored' END)  -- from 18 on
FROM pg_catalog.pg_publication p WHERE p.puballtables ORDER BY 1

-- name: names_taken
-- Of these names those that a relation or a type of the schema has; without one, those that a schema has.
SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = ANY(%(names)s::text[])
UNION ALL
SELECT y.typname FROM pg_catalog.pg_type y JOIN pg_catalog.pg_namespace n ON n.oid = y.typnamespace
WHERE n.nspname = %(schema)s AND y.typname = ANY(%(names)s::text[])
UNION ALL
SELECT n.nspname FROM pg_catalog.pg_namespace n WHERE %(schema)s::text IS NULL AND n.nspname = ANY(%(names)s::text[])

-- name: written_by
-- Subscriptions that write into these tables, enabled or not.
SELECT r.srrelid, s.subname::text
FROM pg_catalog.pg_subscription_rel r JOIN pg_catalog.pg_subscription s ON s.oid = r.srsubid
WHERE r.srrelid = ANY(%(oids)s::oid[])
ORDER BY 1, 2

-- name: published_by_leaf
-- Publications of these tables, by name or by their schema, that would name the leaves of a partitioned one.
SELECT c.oid, p.pubname::text
FROM pg_catalog.pg_publication_tables t
JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname AND NOT p.pubviaroot
JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE c.oid = ANY(%(oids)s::oid[]) AND p.pubname !~ '^pgddl_'
ORDER BY 1, 2

-- name: children
-- Tables that inherit from these.
SELECT i.inhparent, i.inhrelid, c.relkind::text, n.nspname::text, c.relname::text
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class p ON p.oid = i.inhparent AND p.relkind = 'r'
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE i.inhparent = ANY(%(oids)s::oid[])
ORDER BY 4, 5

-- name: subscribed
-- Subscriptions that write into these tables: enabled ones, and those whose worker has not ended yet.
SELECT r.srrelid, s.subname::text
FROM pg_catalog.pg_subscription_rel r JOIN pg_catalog.pg_subscription s ON s.oid = r.srsubid
WHERE r.srrelid = ANY(%(oids)s::oid[])
  AND (s.subenabled OR EXISTS (SELECT FROM pg_catalog.pg_stat_subscription w WHERE w.subid = s.oid AND w.pid IS NOT NULL))
ORDER BY 1, 2

-- name: schemas
-- Schemas of ours by name: the comment says whose they are, and whether we may use and create in them.
SELECT n.nspname::text, pg_catalog.obj_description(n.oid, 'pg_namespace'),
       pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_schema_privilege(n.oid, 'CREATE'),
       pg_catalog.pg_get_userbyid(n.nspowner)::text,
       EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'migrations' AND c.relkind = 'r')
FROM pg_catalog.pg_namespace n WHERE n.nspname = ANY(%(schemas)s::text[])

-- name: running
-- Whether a run of this pipeline is under way; then what it created is on the target already.
SELECT finished_at IS NULL FROM pgddl.pipelines WHERE pipeline = %s

-- name: others_with_ddl
-- Pipelines of this journal from one source that are under way, or whose tables applications use.
SELECT pipeline, config, cut_over_at IS NOT NULL FROM pgddl.pipelines
WHERE pipeline <> %(pipeline)s AND source_system = %(system)s AND (finished_at IS NULL OR cut_over_at IS NOT NULL) ORDER BY pipeline

-- name: recorded
-- The tables that this pipeline's present run has made already, with their states.
SELECT t.schema_name, t.table_name, t.state
FROM pgddl.tables t JOIN pgddl.pipelines p ON p.pipeline = t.pipeline AND p.run = t.run AND p.finished_at IS NULL
WHERE t.pipeline = %s AND t.state <> 'captured'

-- name: filled
-- Of these relations those that take up space, which tells of rows without reading any.
SELECT r.oid FROM unnest(%(oids)s::oid[]) r(oid)
WHERE (SELECT sum(pg_catalog.pg_relation_size(t.relid))
       FROM (SELECT r.oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(r.oid) p) t(relid)) > 0

-- name: with_partitions
-- A relation and its partitions at any depth, by schema and name.
SELECT n.nspname::text, c.relname::text
FROM (SELECT %(oid)s::oid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree(%(oid)s::oid::pg_catalog.regclass) p) t(relid)
JOIN pg_catalog.pg_class c ON c.oid = t.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY t.relid

-- name: brought
-- Which pipeline, if any, has begun or ended to bring each of these tables here, or is to: the newest run of each that knows it.
SELECT DISTINCT ON (t.schema_name, t.table_name) t.schema_name, t.table_name, t.pipeline, t.run,
       CASE WHEN t.run < p.run THEN 'earlier' WHEN p.finished_at IS NOT NULL THEN 'finished' ELSE 'under way' END,
       t.state <> 'captured', p.job = 'rewrite' OR p.config #>> '{tables,existing}' = 'replace'
FROM pgddl.tables t JOIN pgddl.pipelines p ON p.pipeline = t.pipeline
WHERE (t.schema_name, t.table_name) IN (SELECT s, n FROM unnest(%(schemas)s::text[], %(names)s::text[]) w(s, n))
  AND (t.state <> 'captured' OR t.run = p.run AND p.finished_at IS NULL)
ORDER BY t.schema_name, t.table_name, t.run = p.run AND p.finished_at IS NULL DESC, t.planned_at DESC NULLS LAST, t.id DESC

-- name: any_brought
SELECT EXISTS (SELECT FROM pgddl.tables WHERE state <> 'captured')

-- name: objects
-- What a dump of this database creates beside tables: views, sequences, types and functions, as kind, schema, name, quoted.
WITH schemas AS (
    SELECT n.oid, n.nspname FROM pg_catalog.pg_namespace n
    WHERE n.nspname !~ '^(pg_|pgddl(_|$))' AND n.nspname <> 'information_schema'
), extended(classid, objid) AS (
    SELECT d.classid, d.objid FROM pg_catalog.pg_depend d WHERE d.deptype = 'e'
)
SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'FOREIGN TABLE' END AS kind,
       s.nspname::text, c.relname::text, pg_catalog.format('%I.%I', s.nspname, c.relname)
FROM schemas s JOIN pg_catalog.pg_class c ON c.relnamespace = s.oid
WHERE c.relkind IN ('v', 'm', 'f') OR (c.relkind = 'S' AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
          AND d.objid = c.oid AND d.deptype IN ('a', 'i')))   -- with its table
  AND ('pg_catalog.pg_class'::pg_catalog.regclass, c.oid) NOT IN (SELECT * FROM extended)
UNION ALL
SELECT CASE y.typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END, s.nspname::text, y.typname::text, pg_catalog.format('%I.%I', s.nspname, y.typname)
FROM schemas s JOIN pg_catalog.pg_type y ON y.typnamespace = s.oid
WHERE (y.typtype IN ('d', 'e', 'r')
       OR y.typtype = 'c' AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = y.typrelid AND c.relkind = 'c'))
  AND ('pg_catalog.pg_type'::pg_catalog.regclass, y.oid) NOT IN (SELECT * FROM extended)
UNION ALL
SELECT 'ROUTINE', s.nspname::text, p.proname::text,
       pg_catalog.format('%I.%I(%s)', s.nspname, p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid))
FROM schemas s JOIN pg_catalog.pg_proc p ON p.pronamespace = s.oid
WHERE ('pg_catalog.pg_proc'::pg_catalog.regclass, p.oid) NOT IN (SELECT * FROM extended)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass
                    AND d.objid = p.oid AND d.deptype = 'i')  -- a range type's constructors
ORDER BY 2, 3, 4

-- name: owned_code
-- What runs with its owner's rights, or shows what only these may read, and comes with these tables: routines, views, materialized
-- views and rules, as owner, kind, schema, name (a rule's table's), quoted. Without views over tables that are not among them.
WITH RECURSIVE schemas AS (
    SELECT n.oid, n.nspname FROM pg_catalog.pg_namespace n
    WHERE n.nspname !~ '^(pg_|pgddl(_|$))' AND n.nspname <> 'information_schema'
), tree(relid) AS (
    SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(oids)s::oid[])
    UNION
    SELECT i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relid
), extended(classid, objid) AS (
    SELECT d.classid, d.objid FROM pg_catalog.pg_depend d WHERE d.deptype = 'e'
), without(relid) AS (
    SELECT c.oid FROM schemas s JOIN pg_catalog.pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('r', 'p', 'f')
    WHERE c.oid NOT IN (SELECT relid FROM tree)
      AND ('pg_catalog.pg_class'::pg_catalog.regclass, c.oid) NOT IN (SELECT * FROM extended)
    UNION
    SELECT w.ev_class FROM without o
    JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = o.relid
         AND d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass
    JOIN pg_catalog.pg_rewrite w ON w.oid = d.objid AND w.ev_type = '1'
)
SELECT pg_catalog.pg_get_userbyid(o.owner)::text, o.kind, o.schema, o.name, o.quoted
FROM (
    SELECT c.relowner, CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'MATERIALIZED VIEW' END, s.nspname::text, c.relname::text,
           pg_catalog.format('%%I.%%I', s.nspname, c.relname)
    FROM schemas s JOIN pg_catalog.pg_class c ON c.relnamespace = s.oid
    WHERE (c.relkind = 'm' OR c.relkind = 'v' AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_options_to_table(c.reloptions) x
               WHERE x.option_name = 'security_invoker' AND x.option_value::boolean))
      AND c.oid NOT IN (SELECT relid FROM without)
      AND ('pg_catalog.pg_class'::pg_catalog.regclass, c.oid) NOT IN (SELECT * FROM extended)
    UNION ALL
    SELECT p.proowner, 'ROUTINE', s.nspname::text, p.proname::text,
           pg_catalog.format('%%I.%%I(%%s)', s.nspname, p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid))
    FROM schemas s JOIN pg_catalog.pg_proc p ON p.pronamespace = s.oid AND p.prosecdef
    WHERE ('pg_catalog.pg_proc'::pg_catalog.regclass, p.oid) NOT IN (SELECT * FROM extended)
    UNION ALL
    SELECT c.relowner, 'RULE', s.nspname::text, c.relname::text, pg_catalog.format('%%I on %%I.%%I', w.rulename, s.nspname, c.relname)
    FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.relid JOIN schemas s ON s.oid = c.relnamespace
    JOIN pg_catalog.pg_rewrite w ON w.ev_class = c.oid AND w.ev_type <> '1'
) o(owner, kind, schema, name, quoted)
ORDER BY 2, 3, 4, 5

-- name: journal_exists
SELECT CASE WHEN pg_catalog.to_regclass('pgddl.tables') IS NULL OR pg_catalog.to_regclass('pgddl.pipelines') IS NULL THEN false
            ELSE pg_catalog.has_schema_privilege('pgddl', 'USAGE') AND pg_catalog.has_table_privilege('pgddl.tables', 'SELECT')
                 AND pg_catalog.has_table_privilege('pgddl.pipelines', 'SELECT') END

-- name: login_triggers
-- Of extensions as well: whose code it is does not matter to who logs in. From 17 on there are such.
SELECT t.evtname::text FROM pg_catalog.pg_event_trigger t WHERE t.evtenabled <> 'D' AND t.evtevent = 'login' ORDER BY 1

-- name: event_triggers
-- Those of people that fire for DDL: neither ours nor of an extension.
SELECT t.evtname FROM pg_catalog.pg_event_trigger t
WHERE t.evtenabled <> 'D' AND t.evtevent <> 'login' AND NOT pg_catalog.starts_with(t.evtname, 'pgddl_')
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_event_trigger'::pg_catalog.regclass
                  AND d.objid = t.oid AND d.deptype = 'e')
ORDER BY 1

-- name: prepared_transactions
SELECT gid, owner::text, prepared::text FROM pg_catalog.pg_prepared_xacts
WHERE database = pg_catalog.current_database() ORDER BY prepared

-- name: large_objects
SELECT count(*) FROM (SELECT FROM pg_catalog.pg_largeobject_metadata LIMIT 1000) AS first

-- name: foreign_keys
-- Foreign keys at either end of the tables: who refers to whom, and what we may do with the other end.
SELECT k.oid AS key, k.conname::text AS name, k.conrelid AS referencing_oid, k.confrelid AS referenced_oid,
       fn.nspname::text AS referencing_schema, fr.relname::text AS referencing_name, fr.relkind::text AS referencing_kind,
       tn.nspname::text AS referenced_schema, tr.relname::text AS referenced_name, tr.relkind::text AS referenced_kind,
       pg_catalog.pg_has_role(fr.relowner, 'USAGE') AS owns_referencing,
       pg_catalog.pg_has_role(tr.relowner, 'USAGE') AS owns_referenced,
       fo.rolname::text AS referencing_owner, tor.rolname::text AS referenced_owner, k.convalidated AS validated,
       coalesce((to_jsonb(k) ->> 'conenforced')::boolean, true) AS enforced  -- from 18 on
FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class fr ON fr.oid = k.conrelid
JOIN pg_catalog.pg_namespace fn ON fn.oid = fr.relnamespace
JOIN pg_catalog.pg_roles fo ON fo.oid = fr.relowner
JOIN pg_catalog.pg_class tr ON tr.oid = k.confrelid
JOIN pg_catalog.pg_namespace tn ON tn.oid = tr.relnamespace
JOIN pg_catalog.pg_roles tor ON tor.oid = tr.relowner
WHERE k.contype = 'f' AND k.conparentid = 0
  AND (k.conrelid = ANY(%(oids)s::oid[]) OR k.confrelid = ANY(%(oids)s::oid[]))
ORDER BY 4, 5, 1

-- name: enforced_keys
-- Of foreign keys those that are validated, by oid, and whether some of the referring columns being NULL is enough to break one.
SELECT k.oid, k.confmatchtype = 'f'
FROM pg_catalog.pg_constraint k
WHERE k.oid = ANY(%(keys)s::oid[]) AND k.convalidated
  AND coalesce((to_jsonb(k) ->> 'conenforced')::boolean, true)  -- from 18 on
  AND NOT coalesce((to_jsonb(k) ->> 'conperiod')::boolean, false)
ORDER BY pg_catalog.array_position(%(keys)s::oid[], k.oid)

-- name: inheritance
-- Inheritance (not partitioning) at either end of the tables.
SELECT i.inhrelid, i.inhparent,
       cn.nspname::text, c.relname::text, pg_catalog.format('%%I.%%I', cn.nspname, c.relname),
       pn.nspname::text, p.relname::text, pg_catalog.format('%%I.%%I', pn.nspname, p.relname)
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND NOT c.relispartition
JOIN pg_catalog.pg_namespace cn ON cn.oid = c.relnamespace
JOIN pg_catalog.pg_class p ON p.oid = i.inhparent AND p.relkind IN ('r', 'f')
JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
WHERE i.inhrelid = ANY(%(oids)s::oid[]) OR i.inhparent = ANY(%(oids)s::oid[])
ORDER BY 3, 4, 6, 7

-- name: roles
-- Roles that own, or are granted something on, what the target gets: the tables, and with them all schemas, views,
-- sequences, functions and types of the database. True: an owner.
WITH RECURSIVE tree(relid) AS (
    SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(oids)s::oid[])
    UNION
    SELECT i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relid
), schemas AS (
    SELECT n.oid, n.nspowner, n.nspacl FROM pg_catalog.pg_namespace n
    WHERE n.nspname !~ '^(pg_|pgddl(_|$))' AND n.nspname <> 'information_schema'
), extended(classid, objid) AS (
    SELECT d.classid, d.objid FROM pg_catalog.pg_depend d WHERE d.deptype = 'e'
), involved(role, owner) AS (
    SELECT s.nspowner, true FROM schemas s
    UNION
    SELECT a.grantee, false FROM schemas s, pg_catalog.aclexplode(s.nspacl) a
    UNION
    SELECT c.relowner, true FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.relid
    UNION
    SELECT a.grantee, false FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.relid, pg_catalog.aclexplode(c.relacl) a
    UNION
    SELECT a.grantee, false FROM tree t JOIN pg_catalog.pg_attribute c ON c.attrelid = t.relid, pg_catalog.aclexplode(c.attacl) a
    UNION
    SELECT u.role, false FROM tree t JOIN pg_catalog.pg_policy p ON p.polrelid = t.relid, pg_catalog.unnest(p.polroles) u(role)
    UNION
    SELECT c.relowner, true FROM schemas s JOIN pg_catalog.pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('v', 'm', 'S')
    WHERE ('pg_catalog.pg_class'::pg_catalog.regclass, c.oid) NOT IN (SELECT * FROM extended)
    UNION
    SELECT p.proowner, true FROM schemas s JOIN pg_catalog.pg_proc p ON p.pronamespace = s.oid
    WHERE ('pg_catalog.pg_proc'::pg_catalog.regclass, p.oid) NOT IN (SELECT * FROM extended)
    UNION
    SELECT y.typowner, true FROM schemas s JOIN pg_catalog.pg_type y ON y.typnamespace = s.oid AND y.typtype IN ('d', 'e', 'r')
    WHERE ('pg_catalog.pg_type'::pg_catalog.regclass, y.oid) NOT IN (SELECT * FROM extended)
)
SELECT r.rolname::text, pg_catalog.bool_or(i.owner)
FROM involved i JOIN pg_catalog.pg_roles r ON r.oid = i.role
WHERE r.rolname !~ '^pg_'
GROUP BY r.rolname ORDER BY r.rolname

-- name: memberships
-- Which of these roles exist, and whether we can hand an object over to each.
SELECT r.rolname::text, pg_catalog.pg_has_role(r.oid, %(privilege)s)
FROM pg_catalog.pg_roles r WHERE r.rolname = ANY(%(roles)s::text[])

-- name: owners_to_be
-- Of roles that are to own relations in these schemas of the target, those that may not: they are made there first, and given
-- to their owners then, who need the right to create; whether the schema is there.
SELECT w.schema, w.owner, n.oid IS NOT NULL
FROM (SELECT DISTINCT * FROM unnest(%(schemas)s::text[], %(owners)s::text[], %(able)s::boolean[])) w(schema, owner, able)
JOIN pg_catalog.pg_roles r ON r.rolname = w.owner AND NOT r.rolsuper
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
WHERE NOT coalesce(pg_catalog.has_schema_privilege(r.oid, n.oid, 'CREATE'), w.able)
ORDER BY 1, 2

-- name: owners_can_create
SELECT pg_catalog.has_schema_privilege(c.relowner, c.relnamespace, 'CREATE')
FROM unnest(%(oids)s::oid[]) WITH ORDINALITY o(oid, no) JOIN pg_catalog.pg_class c ON c.oid = o.oid
ORDER BY o.no

-- name: extensions
-- Installed extensions, and those of the tables that need each: by a column's type, or by what an index or a default calls.
WITH RECURSIVE tree(root, relid) AS (
    SELECT c.oid, c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(oids)s::oid[])
    UNION
    SELECT t.root, i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relid
), part(root, classid, objid) AS (
    SELECT t.root, 'pg_catalog.pg_class'::pg_catalog.regclass::oid, t.relid FROM tree t
    UNION ALL
    SELECT t.root, 'pg_catalog.pg_class'::pg_catalog.regclass::oid, i.indexrelid
    FROM tree t JOIN pg_catalog.pg_index i ON i.indrelid = t.relid
    UNION ALL
    SELECT t.root, 'pg_catalog.pg_attrdef'::pg_catalog.regclass::oid, a.oid
    FROM tree t JOIN pg_catalog.pg_attrdef a ON a.adrelid = t.relid
    UNION ALL
    SELECT t.root, 'pg_catalog.pg_constraint'::pg_catalog.regclass::oid, k.oid
    FROM tree t JOIN pg_catalog.pg_constraint k ON k.conrelid = t.relid
    UNION ALL
    SELECT t.root, 'pg_catalog.pg_trigger'::pg_catalog.regclass::oid, g.oid
    FROM tree t JOIN pg_catalog.pg_trigger g ON g.tgrelid = t.relid
), needed(root, classid, objid) AS (
    SELECT * FROM part
    UNION
    -- An array depends on its element, a domain on its base: types of our own lead on to an extension's.
    SELECT n.root, d.refclassid, d.refobjid
    FROM needed n
    JOIN pg_catalog.pg_depend d ON d.classid = n.classid AND d.objid = n.objid AND d.deptype IN ('n', 'i')
    WHERE d.refclassid IN ('pg_catalog.pg_type'::pg_catalog.regclass, 'pg_catalog.pg_proc'::pg_catalog.regclass,
                           'pg_catalog.pg_opclass'::pg_catalog.regclass, 'pg_catalog.pg_collation'::pg_catalog.regclass,
                           'pg_catalog.pg_operator'::pg_catalog.regclass, 'pg_catalog.pg_am'::pg_catalog.regclass)
)
SELECT e.extname::text, e.extversion, n.nspname::text,
       ARRAY(SELECT DISTINCT needed.root FROM needed
             JOIN pg_catalog.pg_depend d ON d.classid = needed.classid AND d.objid = needed.objid AND d.deptype = 'e'
             WHERE d.refobjid = e.oid)
FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname <> 'plpgsql' ORDER BY 1

-- name: available_extensions
SELECT x.name::text, i.oid IS NOT NULL,
       pg_catalog.bool_or(NOT v.superuser OR v.trusted)
FROM pg_catalog.pg_available_extensions x
JOIN pg_catalog.pg_available_extension_versions v ON v.name = x.name
LEFT JOIN pg_catalog.pg_extension i ON i.extname = x.name
WHERE x.name = ANY(%(names)s::name[])
GROUP BY 1, 2

-- name: shared_sequences
-- Sequences that a column of a table owns, and that another table takes a default from; whether the column is an identity.
SELECT DISTINCT d.refobjid, pg_catalog.format('%%I.%%I', sn.nspname, s.relname), own.attname::text, d.deptype = 'i',
       pg_catalog.format('%%I.%%I', n.nspname, c.relname), pg_catalog.quote_ident(a.attname)
FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_class s ON s.oid = d.objid AND s.relkind = 'S' JOIN pg_catalog.pg_namespace sn ON sn.oid = s.relnamespace
JOIN pg_catalog.pg_attribute own ON own.attrelid = d.refobjid AND own.attnum = d.refobjsubid
JOIN pg_catalog.pg_depend u ON u.refclassid = d.classid AND u.refobjid = d.objid AND u.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
JOIN pg_catalog.pg_attrdef f ON f.oid = u.objid AND f.adrelid <> d.refobjid
JOIN pg_catalog.pg_class c ON c.oid = f.adrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = d.classid AND d.deptype IN ('a', 'i')
  AND d.refobjid = ANY(%(oids)s::oid[])
  AND n.nspname !~ '^pgddl_(copy|old)_'  -- a copy takes the sequence over, and its partitions do
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i
                  JOIN pg_catalog.pg_class p ON p.oid = i.inhparent JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
                  WHERE i.inhrelid = c.oid AND c.relispartition AND pn.nspname ~ '^pgddl_copy_')
ORDER BY 1, 2, 5

-- name: unkept
-- What a table has and no dump of it shows, or what its copy could not have: (table, what, how it is put right).
SELECT i.indrelid, pg_catalog.format('index %%s is not valid, so that nobody makes it again', c.relname),
       pg_catalog.format('REINDEX INDEX %%I.%%I;  -- or DROP INDEX', n.nspname, c.relname)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE i.indrelid = ANY(%(oids)s::oid[]) AND NOT i.indisvalid
  -- One that is being built, CONCURRENTLY, keeps this lock all the time, for which the swap waits.
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_locks l
                  WHERE l.relation = i.indrelid AND l.granted AND l.mode = 'ShareUpdateExclusiveLock'
                    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
                    AND l.pid <> pg_catalog.pg_backend_pid())
UNION ALL
SELECT o.oid, pg_catalog.format('constraint %%s of %%s is not enforced: its triggers are disabled', c.conname, c.conrelid::pg_catalog.regclass),
       pg_catalog.string_agg(pg_catalog.format('ALTER TABLE %%I.%%I ENABLE TRIGGER %%I;', n.nspname, r.relname, t.tgname), E'\n' ORDER BY t.tgname)
FROM pg_catalog.unnest(%(oids)s::oid[]) o(oid)
JOIN pg_catalog.pg_constraint c ON o.oid IN (c.conrelid, c.confrelid)
JOIN pg_catalog.pg_trigger t ON t.tgconstraint = c.oid AND t.tgisinternal AND t.tgenabled <> 'O'
JOIN pg_catalog.pg_class r ON r.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
GROUP BY o.oid, c.oid, c.conname, c.conrelid
UNION ALL
SELECT c.oid, 'its row type has a comment, which would stay with the old table',
       pg_catalog.format('COMMENT ON TYPE %%I.%%I IS NULL;  -- and again after the swap', n.nspname, c.relname)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_description d ON d.classoid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.objoid = c.reltype
WHERE c.oid = ANY(%(oids)s::oid[])
UNION ALL
SELECT c.oid, 'its row type has grants of its own, which would stay with the old table',
       pg_catalog.format('GRANT USAGE ON TYPE %%I.%%I TO PUBLIC;  -- alone, and what there was again after the swap', n.nspname, c.relname)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_type t ON t.oid = c.reltype
WHERE c.oid = ANY(%(oids)s::oid[]) AND t.typacl IS DISTINCT FROM NULL
  AND NOT (t.typacl @> pg_catalog.acldefault('T', t.typowner) AND t.typacl <@ pg_catalog.acldefault('T', t.typowner))
UNION ALL
SELECT s.stxrelid, pg_catalog.format('statistics of the name %%s are in more than one schema, and its copy has one schema', s.stxname),
       pg_catalog.string_agg(pg_catalog.format('ALTER STATISTICS %%I.%%I RENAME TO %%I;', n.nspname, s.stxname,
                                                pg_catalog.concat(left(s.stxname::text, 40), '_', s.oid)), E'\n-- or ' ORDER BY n.nspname)
FROM pg_catalog.pg_statistic_ext s JOIN pg_catalog.pg_namespace n ON n.oid = s.stxnamespace
WHERE s.stxrelid = ANY(%(oids)s::oid[])
GROUP BY s.stxrelid, s.stxname HAVING count(*) > 1
ORDER BY 1, 2

-- name: security_labels
SELECT l.objoid, l.provider
FROM pg_catalog.pg_seclabel l
WHERE l.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND l.objoid = ANY(%(oids)s::oid[])
ORDER BY 1, 2

-- name: extension_members
SELECT d.objid, e.extname::text
FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = ANY(%(oids)s::oid[]) AND d.deptype = 'e'

-- name: table_sizes
-- Bytes of each table with its partitions, TOAST included, indexes not.
SELECT o.oid, coalesce((SELECT sum(pg_catalog.pg_table_size(t.relid)) FROM pg_catalog.pg_partition_tree(o.oid::pg_catalog.regclass) t),
                       pg_catalog.pg_table_size(o.oid::pg_catalog.regclass))::bigint
FROM unnest(%(oids)s::oid[]) o(oid)

-- name: owner_lacks
SELECT n.nspname, 'USAGE' FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = %(oid)s AND NOT pg_catalog.has_schema_privilege(%(role)s::name, n.oid, 'USAGE')

-- name: owners_of_expressions
-- Of these tables and their partitions those with an index that calls a function of users, and their owners.
SELECT DISTINCT t.oid, r.rolname::text
FROM unnest(%(oids)s::oid[]) t(oid)
JOIN pg_catalog.pg_class c ON c.oid = t.oid
    OR c.oid IN (SELECT p.relid FROM pg_catalog.pg_partition_tree(t.oid::pg_catalog.regclass) p)
JOIN pg_catalog.pg_roles r ON r.oid = c.relowner AND NOT r.rolsuper
JOIN pg_catalog.pg_index i ON i.indrelid = c.oid
JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = i.indexrelid
    AND d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.refobjid >= 16384

-- name: usable_schemas
SELECT n.nspname::text FROM pg_catalog.pg_namespace n
WHERE n.nspname !~ '^(pg_|pgddl)' AND pg_catalog.has_schema_privilege(%(role)s::name, n.oid, 'USAGE')

-- name: unusable_schemas
SELECT n.nspname::text FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.rolname = %(role)s
WHERE n.nspname = ANY(%(schemas)s::text[]) AND NOT pg_catalog.has_schema_privilege(r.oid, n.oid, 'USAGE')
ORDER BY 1

-- name: may_make_walls
SELECT pg_catalog.has_database_privilege(%(role)s::name, pg_catalog.current_database(), 'TEMPORARY')

-- name: given
-- What our role has been given of what a pipeline uses, as the statement that takes it away, and a name in it.
SELECT 'REVOKE {name} FROM {role};', o.rolname::text
FROM pg_catalog.pg_auth_members m
JOIN pg_catalog.pg_roles o ON o.oid = m.roleid JOIN pg_catalog.pg_roles r ON r.oid = m.member AND r.rolname = current_user
WHERE o.rolname = ANY(%(owners)s::name[]) OR o.rolname IN ('pg_read_all_data', 'pg_read_all_stats', 'pg_signal_backend')
UNION ALL
SELECT 'REVOKE CREATE ON DATABASE {database} FROM {role};', ''
FROM pg_catalog.pg_database d, pg_catalog.aclexplode(d.datacl) a
WHERE d.datname = pg_catalog.current_database() AND a.grantee = current_user::pg_catalog.regrole AND a.privilege_type = 'CREATE'
UNION ALL
SELECT 'ALTER ROLE {role} NOREPLICATION;', '' FROM pg_catalog.pg_roles WHERE rolname = current_user AND rolreplication AND NOT rolsuper
UNION ALL
SELECT 'ALTER ROLE {role} NOBYPASSRLS;', '' FROM pg_catalog.pg_roles WHERE rolname = current_user AND rolbypassrls AND NOT rolsuper

-- name: any_role_may
-- Names with their schemas, quoted. To have Postgres look one up takes rights that ours may lack.
SELECT coalesce(pg_catalog.bool_or(CASE %(kind)s
    WHEN 'schema' THEN pg_catalog.has_schema_privilege(r.role::pg_catalog.regrole::oid, %(name)s::text::pg_catalog.regnamespace::oid, %(privilege)s)
    WHEN 'sequence' THEN pg_catalog.has_sequence_privilege(r.role::pg_catalog.regrole::oid, c.oid, %(privilege)s)
    ELSE pg_catalog.has_table_privilege(r.role::pg_catalog.regrole::oid, c.oid, %(privilege)s) END), false)
FROM unnest(%(roles)s::text[]) AS r(role)
LEFT JOIN (pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace)
    ON pg_catalog.format('%%I.%%I', n.nspname, c.relname) = %(name)s::text
