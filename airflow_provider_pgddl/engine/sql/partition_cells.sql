-- name: partitions
-- A partitioned table's own partitions, by name: oid, schema, name, bound.
SELECT c.oid, n.nspname, c.relname, pg_catalog.pg_get_expr(c.relpartbound, c.oid)
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE i.inhparent = (SELECT p.oid FROM pg_catalog.pg_class p JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
                     WHERE pn.nspname = %s AND p.relname = %s)
ORDER BY c.relname COLLATE "C"

-- name: storage
-- What a table keeps its rows in: access method, storage parameters, those of its TOAST table.
SELECT am.amname, c.reloptions, t.reloptions
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_am am ON am.oid = c.relam
LEFT JOIN pg_catalog.pg_class t ON t.oid = c.reltoastrelid
WHERE c.oid = %s

-- name: undressed
-- Partitions that lack what CREATE TABLE ... PARTITION OF does not take from its parent, with what they lack: the replica identity
-- and its index, the targets and options of columns.
SELECT ln.nspname, l.relname, p.relreplident::text,
       (SELECT x.relname FROM pg_catalog.pg_index pi
        JOIN pg_catalog.pg_inherits xi ON xi.inhparent = pi.indexrelid
        JOIN pg_catalog.pg_index li ON li.indexrelid = xi.inhrelid AND li.indrelid = l.oid
        JOIN pg_catalog.pg_class x ON x.oid = xi.inhrelid
        WHERE pi.indrelid = p.oid AND pi.indisreplident),
       l.relreplident <> p.relreplident AS identity,
       ARRAY(SELECT pg_catalog.format('ALTER COLUMN %%I SET STATISTICS %%s', a.attname, a.attstattarget)
             FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_attribute b ON b.attrelid = l.oid AND b.attname = a.attname
             WHERE a.attrelid = p.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attstattarget >= 0
               AND b.attstattarget IS DISTINCT FROM a.attstattarget
             UNION ALL
             SELECT pg_catalog.format('ALTER COLUMN %%I SET (%%s)', a.attname, pg_catalog.string_agg(o, ', '))
             FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_attribute b ON b.attrelid = l.oid AND b.attname = a.attname
             CROSS JOIN LATERAL unnest(a.attoptions) o
             WHERE a.attrelid = p.oid AND a.attnum > 0 AND NOT a.attisdropped AND NOT starts_with(o, 'pg_attver=')  -- the server's own
               AND NOT coalesce(a.attoptions <@ b.attoptions, false)
             GROUP BY a.attname)
FROM pg_catalog.pg_class p
JOIN pg_catalog.pg_namespace n ON n.oid = p.relnamespace
JOIN pg_catalog.pg_inherits i ON i.inhparent = p.oid
JOIN pg_catalog.pg_class l ON l.oid = i.inhrelid JOIN pg_catalog.pg_namespace ln ON ln.oid = l.relnamespace
WHERE n.nspname = %s AND p.relname = %s
ORDER BY l.relname COLLATE "C"

-- name: periods_of
-- The periods that these values lie in, each with its end and the end of its partition's name.
SELECT s.low::text, (s.low + {step}::interval)::{type}::text, pg_catalog.to_char(s.low, {format})
FROM (SELECT DISTINCT pg_catalog.date_trunc({unit}, r.v)::{type} AS low FROM ({rows}) r(v) WHERE pg_catalog.isfinite(r.v)) s
ORDER BY s.low

-- name: periods_between
SELECT s.low::{type}::text, (s.low + {step}::interval)::{type}::text, pg_catalog.to_char(s.low, {format})
FROM pg_catalog.generate_series(
    pg_catalog.date_trunc({unit}, {first}::{type}::{base}),
    pg_catalog.date_trunc({unit}, greatest({last}::{type}::{base}, {now})) + {ahead} * {step}::interval, {step}::interval) s(low)
LIMIT {most}

-- name: widths_of
SELECT DISTINCT pg_catalog.floor(r.v::numeric / {width}) * {width} FROM ({rows}) r(v)
WHERE r.v::numeric <> ALL ('{{NaN,Infinity,-Infinity}}'::numeric[]) ORDER BY 1

-- name: values_of
SELECT r.v::text FROM (SELECT DISTINCT v FROM ({rows}) r(v) WHERE v IS NOT NULL) r ORDER BY 1

-- name: edges
-- The least and the greatest of them that lie in a period or a width; whether there are others (infinity, NaN).
SELECT e.low::text, e.high::text, coalesce(NOT ({finite_first} AND {finite_last}), false)
FROM (SELECT (SELECT min(r.v) FROM ({rows}) r(v) WHERE {finite}) AS low, (SELECT max(r.v) FROM ({rows}) r(v) WHERE {finite}) AS high,
             (SELECT min(r.v) FROM ({rows}) r(v)) AS first, (SELECT max(r.v) FROM ({rows}) r(v)) AS last) e

-- name: is_empty
SELECT NOT EXISTS (SELECT FROM {partition})

-- name: schema_is_published
SELECT FROM pg_catalog.pg_publication_namespace p JOIN pg_catalog.pg_namespace n ON n.oid = p.pnnspid
WHERE n.nspname = %s LIMIT 1

-- name: owners
-- Partitions with the owner of the live table, whether that is not theirs, and who else was granted something by default.
SELECT ln.nspname, l.relname, r.rolname, l.relowner <> r.oid,
       ARRAY(SELECT DISTINCT g.rolname::text FROM pg_catalog.aclexplode(l.relacl) a
             LEFT JOIN pg_catalog.pg_roles g ON g.oid = a.grantee WHERE a.grantee <> l.relowner)
FROM pg_catalog.pg_class p
JOIN pg_catalog.pg_namespace n ON n.oid = p.relnamespace
JOIN pg_catalog.pg_roles r ON r.oid = (SELECT live.relowner FROM pg_catalog.pg_class live WHERE live.oid = %s)
JOIN pg_catalog.pg_inherits i ON i.inhparent = p.oid
JOIN pg_catalog.pg_class l ON l.oid = i.inhrelid JOIN pg_catalog.pg_namespace ln ON ln.oid = l.relnamespace
WHERE n.nspname = %s AND p.relname = %s
ORDER BY l.relname COLLATE "C"
