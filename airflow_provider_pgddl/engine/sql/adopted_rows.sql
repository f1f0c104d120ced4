-- Tables that were on the target before the pipeline.

-- name: forget_extra
DELETE FROM {extra} AS x USING {staging} AS k WHERE {same}

-- name: staged_extra
INSERT INTO {here} ({keys}) SELECT {keys} FROM {staging} AS k WHERE EXISTS (SELECT FROM {extra} AS x WHERE {same})

-- name: others_of_copy
-- The condition in a query of its own, where no column of anything else is in its sight.
SELECT {keys} FROM {copy} AS c WHERE EXISTS (SELECT FROM {staging} AS k WHERE {join}) AND NOT EXISTS ({known})
AND (SELECT ({where}) FROM (SELECT c.*) AS r) IS NOT TRUE

-- name: spare_extra
DELETE FROM {staging} AS k USING {alone} AS x WHERE {same}

-- name: retype_extra
ALTER TABLE {extra} ALTER COLUMN {column} TYPE {type} USING CAST({column}::text AS {type})

-- name: delete_but_extra
DELETE FROM {relation} AS c WHERE NOT EXISTS (SELECT FROM {extra} AS x WHERE {same})

-- name: not_on_source
SELECT {keys} FROM {staging} AS k WHERE NOT EXISTS (SELECT FROM {source} AS t WHERE {join})

-- name: insert_or_leave
WITH p AS ({insert} ON CONFLICT DO NOTHING RETURNING {put})
INSERT INTO {left} ({keys}) SELECT {keys} FROM (SELECT {arrived} FROM {arrivals} AS a) AS a
WHERE NOT EXISTS (SELECT FROM p WHERE {same})

-- name: leave_all
INSERT INTO {left} ({keys}) SELECT {arrived} FROM {arrivals} AS a

-- name: deferrable
-- Whether a unique or exclusion constraint of the table, or of a partition of it, is not checked at once.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_index i
    WHERE NOT i.indimmediate AND (i.indisunique OR i.indisexclusion) AND i.indrelid IN (
        SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %(schema)s AND c.relname = %(name)s
        UNION ALL
        SELECT t.relid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        CROSS JOIN LATERAL pg_catalog.pg_partition_tree(c.oid) t
        WHERE n.nspname = %(schema)s AND c.relname = %(name)s))

-- name: has_rows
SELECT EXISTS (SELECT FROM {relation})

-- name: may_have_rows
-- By its file, for a query of it is planned, which runs code of its owner: one that has been emptied by DELETE may have rows until it
-- is vacuumed, and so may one that is in no file of the server's own kind. Nothing of that name has none.
SELECT EXISTS (SELECT FROM pg_catalog.pg_class c
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               LEFT JOIN pg_catalog.pg_am m ON m.oid = c.relam
               WHERE n.nspname = %s AND c.relname = %s
                 AND (m.amname IS DISTINCT FROM 'heap' OR pg_catalog.pg_relation_size(c.oid) > 0))

-- name: slowing
-- What is kept up for each row that comes into these tables: how many indexes beside the key's, and foreign keys.
SELECT c.oid,
       (SELECT count(*) FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND NOT i.indisprimary),
       (SELECT count(*) FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'f')
FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(oids)s::oid[])

-- name: referring
-- Foreign keys to these tables of others that are none of them.
SELECT k.confrelid, k.conname, n.nspname, c.relname
FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class c ON c.oid = k.conrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE k.contype = 'f' AND k.conparentid = 0 AND k.confrelid = ANY(%(oids)s::oid[])
  AND NOT coalesce(pg_catalog.pg_partition_root(k.conrelid), k.conrelid) = ANY(%(oids)s::oid[])
ORDER BY 1, 2

-- name: rights
-- Whether we may bring these tables in line, and whether rules stand in for what is written to them.
SELECT c.oid, pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_table_privilege(c.oid, 'INSERT')
              AND pg_catalog.has_table_privilege(c.oid, 'DELETE') AND pg_catalog.has_table_privilege(c.oid, 'TRUNCATE'),
       EXISTS (SELECT FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid)
FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(oids)s::oid[])
