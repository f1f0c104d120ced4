-- name: differences
-- What of the wanted columns is not there, is of another type, or is not wanted: (name or null, type, name that is there or null).
-- A key's type has no modifier, so it is compared by its oid.
SELECT w.name, w.type, a.attname
FROM unnest(%(names)s::name[], %(types)s::text[]) w(name, type)
FULL JOIN (SELECT a.attname, a.atttypid, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type
           FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = pg_catalog.to_regclass(%(kept)s) AND a.attnum > 0 AND NOT a.attisdropped) a ON a.attname = w.name
WHERE a.attname IS NULL OR w.name IS NULL
   OR CASE WHEN w.name = ANY(%(keys)s::name[]) THEN a.atttypid <> w.type::pg_catalog.regtype ELSE a.type <> w.type END

-- name: create
-- Not unique: blocks may have brought two rows of one key, until a window has followed them.
CREATE TABLE {kept} ({definitions})

-- name: index_keys
CREATE INDEX ON {kept} ({keys})

-- name: index_batch
CREATE INDEX ON {kept} ({batch}) WHERE {batch} IS NOT NULL

-- name: unfollowed
SELECT EXISTS (SELECT FROM {kept} WHERE {batch} IS NOT NULL)

-- name: exists
SELECT pg_catalog.to_regclass(%s) IS NOT NULL

-- name: count
SELECT count(*) FROM {kept}{which}

-- name: create_until
-- The snapshot of the last window whose changed keys were followed.
CREATE TABLE {until} (snapshot pg_catalog.pg_snapshot NOT NULL)

-- name: replica_identity
ALTER TABLE {relation} REPLICA IDENTITY FULL

-- name: drop
DROP TABLE IF EXISTS {kept}, {until}

-- name: drop_column
ALTER TABLE {kept} DROP COLUMN {column}

-- name: add_column
ALTER TABLE {kept} ADD COLUMN {column} {type}

-- name: alter_column
ALTER TABLE {kept} ALTER COLUMN {column} TYPE {type} USING CAST({column}::text AS {type})

-- name: default_of
-- What a row of the copy gets in a column that nobody writes.
SELECT CASE WHEN a.attidentity <> ''
            THEN pg_catalog.format('pg_catalog.nextval(%%L::pg_catalog.regclass)',
                                   pg_catalog.pg_get_serial_sequence(pg_catalog.format('%%I.%%I', n.nspname, c.relname), a.attname))
            ELSE pg_catalog.pg_get_expr(d.adbin, d.adrelid) END
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE n.nspname = %s AND c.relname = %s AND a.attname = %s

-- name: set_default
UPDATE {kept} SET {column} = {value}

-- name: have_defaults
SELECT EXISTS (SELECT FROM pg_catalog.pg_attribute a
               JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = %s AND c.relname = %s AND a.attname = ANY(%s::name[])
                 AND (a.atthasdef OR a.attidentity <> ''))

-- name: followed_until
SELECT snapshot::text FROM {until}

-- name: forget_until
DELETE FROM {until}

-- name: set_until
INSERT INTO {until} (snapshot) VALUES ({snapshot})

-- name: moves
-- Where keys went that the log shows and no window has followed yet; a deleted row's went nowhere.
SELECT xid, at, {old}, {new} FROM {log} AS l
WHERE (op = 'D' OR op = 'U' AND NOT ({same}))
  AND coalesce(NOT pg_catalog.pg_visible_in_snapshot(xid, {until}::pg_catalog.pg_snapshot), true)

-- name: truncated
SELECT DISTINCT leaf, xid::text FROM {log} AS l
WHERE op = 'T' AND coalesce(NOT pg_catalog.pg_visible_in_snapshot(xid, {until}::pg_catalog.pg_snapshot), true)

-- name: create_moves
CREATE TEMPORARY TABLE IF NOT EXISTS {moves} (xid pg_catalog.xid8 NOT NULL, at pg_catalog.pg_lsn NOT NULL, {definitions})
ON COMMIT DELETE ROWS

-- name: create_ends
CREATE TEMPORARY TABLE IF NOT EXISTS {ends} (kept pg_catalog.tid NOT NULL, {definitions}) ON COMMIT DELETE ROWS

-- name: index_moves
CREATE INDEX IF NOT EXISTS {index} ON {moves} ({old}, at)

-- name: find_ends
-- Where each kept value's row has come to in the order of the log, by moves that the value's snapshot does not show: a row that
-- moves twice is seen to have moved first. Null where it was deleted.
INSERT INTO {ends} (kept, {new})
WITH RECURSIVE way AS (
    SELECT * FROM (
        SELECT DISTINCT ON (k.ctid) k.ctid AS kept, {m_new}, m.at
        FROM {moves} AS m JOIN {kept} AS k ON {departs}
        WHERE coalesce(NOT pg_catalog.pg_visible_in_snapshot(m.xid, {seen}), true)
        ORDER BY k.ctid, m.at
    ) first
    UNION ALL
    SELECT w.kept, {m_new}, m.at
    FROM way AS w CROSS JOIN LATERAL (
        SELECT {new}, at FROM {moves} AS n WHERE {goes_on} AND n.at > w.at ORDER BY n.at LIMIT 1
    ) AS m
)
SELECT DISTINCT ON (kept) kept, {new} FROM way ORDER BY kept, at DESC

-- name: forget_gone
DELETE FROM {kept} AS k USING {ends} AS e WHERE k.ctid = e.kept AND e.new_1 IS NULL

-- name: forget_doubles
-- Of values that have come to one key the first that was kept: what blocks bring later has no more than a default. Of those that
-- were kept at once, the one of the latest chunk.
DELETE FROM {kept} AS k USING {kept} AS b
WHERE {same} AND k.ctid <> b.ctid AND k.{batch} IS NOT NULL
  AND (coalesce(b.{batch}, '0') < coalesce(k.{batch}, '0')
       OR b.{batch} IS NOT DISTINCT FROM k.{batch}
          AND (coalesce(pg_catalog.pg_snapshot_xmax(b.{seen}), '0'), b.ctid)
              > (coalesce(pg_catalog.pg_snapshot_xmax(k.{seen}), '0'), k.ctid))

-- name: followed
UPDATE {kept} SET {batch} = NULL, {seen} = NULL WHERE {batch} IS NOT NULL

-- name: move
UPDATE {kept} AS k SET {set} FROM {ends} AS e WHERE k.ctid = e.kept

-- name: forget_strays
-- Values of keys that are not pending, so whose rows were gone when they could have come back.
DELETE FROM {kept} AS k USING {staging} AS s WHERE {same} AND NOT EXISTS (SELECT FROM {pending} AS p WHERE {waits})

-- name: forget_truncated
DELETE FROM {kept} AS k USING unnest(%s::oid[], %s::xid8[]) AS t(leaf, xid)
WHERE {there} AND coalesce(NOT pg_catalog.pg_visible_in_snapshot(t.xid, k.{seen}), true)

-- name: forget_taken
DELETE FROM {kept} AS k USING {staging} AS s WHERE {same}

-- name: first_seen
-- What every row that chunks have brought has seen at least.
SELECT snapshot::text FROM pgddl.chunks WHERE table_id = %s AND snapshot IS NOT NULL
ORDER BY pg_catalog.pg_snapshot_xmax(snapshot), pg_catalog.pg_snapshot_xmin(snapshot) LIMIT 1

-- name: delete_from_copy
WITH gone AS (DELETE FROM {copy} AS c USING {staging} AS k WHERE {join} RETURNING {values})
INSERT INTO {kept} ({columns}, {seen})
SELECT {columns}, coalesce(b.pgddl_snapshot, {first_seen}) FROM gone AS g
LEFT JOIN (SELECT xid::pg_catalog.xid AS pgddl_xid, snapshot AS pgddl_snapshot FROM pgddl.chunks WHERE table_id = {table}) AS b
    ON b.pgddl_xid = g.pgddl_xmin
WHERE {worth}

-- name: save
WITH there AS (SELECT {values} FROM {relation} AS c)
INSERT INTO {kept} ({columns}, {seen})
SELECT {columns}, coalesce(b.pgddl_snapshot, {first_seen}) FROM there AS g
LEFT JOIN (SELECT xid::pg_catalog.xid AS pgddl_xid, snapshot AS pgddl_snapshot FROM pgddl.chunks WHERE table_id = {table}) AS b
    ON b.pgddl_xid = g.pgddl_xmin
WHERE {worth}

-- name: create_arrivals
CREATE TEMPORARY TABLE {arrivals} AS SELECT {columns} FROM {copy} WITH NO DATA

-- name: drop_arrivals
DROP TABLE {arrivals}

-- name: stage_keys
INSERT INTO {staging} ({names}) SELECT DISTINCT {keys} FROM {kept}

-- name: insert_kept
INSERT INTO {copy} ({columns}, {keep}) OVERRIDING SYSTEM VALUE
SELECT {values}, {kept_values} FROM {arrivals} AS a JOIN {kept} AS k ON {join}

-- name: insert_others
INSERT INTO {copy} ({columns}) OVERRIDING SYSTEM VALUE
SELECT {values} FROM {arrivals} AS a WHERE NOT EXISTS (SELECT FROM {kept} AS k WHERE {join})
