-- name: named_in_an_error
-- What of this name an error may have meant: as SQL names it, how its owner is changed, its owner, and whether that is one whose
-- rights are nobody else's. The server leaves out the schema, so those count that the statement names with it.
SELECT o.name, o.change, r.rolname::text, r.rolsuper OR r.rolname = current_user
FROM (SELECT 'relation', c.relname::text, n.nspname, c.relowner, pg_catalog.format('%%I.%%I', n.nspname, c.relname), 'TABLE'
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      UNION ALL
      SELECT 'schema', n.nspname, n.nspname, n.nspowner, pg_catalog.quote_ident(n.nspname), 'SCHEMA' FROM pg_catalog.pg_namespace n
      UNION ALL
      SELECT 'routine', p.proname, n.nspname, p.proowner, p.oid::pg_catalog.regprocedure::text, 'ROUTINE'
      FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
      UNION ALL
      SELECT 'type', t.typname, n.nspname, t.typowner, pg_catalog.format('%%I.%%I', n.nspname, t.typname), 'TYPE'
      FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
      WHERE t.typtype IN ('d', 'e', 'r') OR t.typtype = 'c' AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = t.typrelid AND c.relkind = 'c')
     ) o(kind, called, schema, owner, name, change)
JOIN pg_catalog.pg_roles r ON r.oid = o.owner
WHERE o.kind = %s AND o.called = %s
  AND (o.kind = 'schema' OR pg_catalog.strpos(%s, pg_catalog.format('%%I.%%I', o.schema, o.called)) > 0)

-- name: lacking_on_schema
SELECT p.privilege
FROM pg_catalog.pg_namespace n CROSS JOIN unnest(ARRAY['USAGE', 'CREATE']) WITH ORDINALITY p(privilege, no)
WHERE n.nspname = %(schema)s AND NOT pg_catalog.has_schema_privilege(%(role)s, n.oid, p.privilege)
ORDER BY p.no
