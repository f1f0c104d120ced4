-- What pg_dump leaves out when it is asked for single tables.

-- name: statistics
-- The statements that make the extended statistics of some tables (oids), as pg_dump prints them for a whole schema.
SELECT concat_ws(E';\n',
         pg_get_statisticsobjdef(s.oid),
         CASE WHEN s.stxstattarget >= 0
              THEN format('ALTER STATISTICS %%I.%%I SET STATISTICS %%s', n.nspname, s.stxname, s.stxstattarget) END,
         format('ALTER STATISTICS %%I.%%I OWNER TO %%I', n.nspname, s.stxname, pg_get_userbyid(s.stxowner)),
         'COMMENT ON STATISTICS ' || format('%%I.%%I', n.nspname, s.stxname) || ' IS '
           || quote_literal(obj_description(s.oid, 'pg_statistic_ext'))) || ';'
  FROM pg_statistic_ext s
  JOIN pg_namespace n ON n.oid = s.stxnamespace
  JOIN pg_class c ON c.oid = s.stxrelid
  JOIN pg_namespace cn ON cn.oid = c.relnamespace
 WHERE (cn.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
 ORDER BY n.nspname, s.stxname;

-- name: unreadable
-- Tables that this role may not lock, for which pg_dump would give up.
SELECT n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND n.nspname !~ '^(pg_|pgddl)' AND n.nspname <> 'information_schema'
  AND NOT (pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_schema_privilege(n.oid, 'USAGE'))
