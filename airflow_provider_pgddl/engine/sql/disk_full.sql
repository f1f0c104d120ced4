-- name: table_of_file
-- The table to which a file of this database belongs: itself, or that of an index or of a TOAST table; no row in another database.
SELECT (SELECT pg_catalog.format('%%s.%%s', n.nspname, c.relname)
        FROM pg_catalog.pg_class f
        LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = f.oid
        LEFT JOIN pg_catalog.pg_class t ON t.reltoastrelid = coalesce(i.indrelid, f.oid)
        JOIN pg_catalog.pg_class c ON c.oid = coalesce(t.oid, i.indrelid, f.oid)
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE f.oid = pg_catalog.pg_filenode_relation(CASE WHEN %(space)s::bigint = d.dattablespace::bigint THEN 0 ELSE %(space)s END, %(node)s))
FROM pg_catalog.pg_database d
WHERE d.datname = pg_catalog.current_database() AND d.oid = %(database)s
