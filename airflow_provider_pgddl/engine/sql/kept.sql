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
-- Keys change places within one statement, so uniqueness is looked at where it ends.
CREATE TABLE {kept} ({definitions}, UNIQUE ({keys}) DEFERRABLE INITIALLY IMMEDIATE)

-- name: exists
SELECT pg_catalog.to_regclass(%s) IS NOT NULL

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
SELECT at, {old}, {new} FROM {log} AS l
WHERE (op = 'D' OR op = 'U' AND NOT ({same}))
  AND coalesce(NOT pg_catalog.pg_visible_in_snapshot(xid, {until}::pg_catalog.pg_snapshot), true)

-- name: truncated
SELECT DISTINCT leaf FROM {log}
WHERE op = 'T' AND coalesce(NOT pg_catalog.pg_visible_in_snapshot(xid, {until}::pg_catalog.pg_snapshot), true)

-- name: create_moves
CREATE TEMPORARY TABLE IF NOT EXISTS {moves} (at pg_catalog.pg_lsn NOT NULL, {definitions}) ON COMMIT DELETE ROWS

-- name: index_moves
CREATE INDEX IF NOT EXISTS {index} ON {moves} ({old}, at)

-- name: find_ends
-- Where each kept key has come to in the order of the log; null where its row was deleted. Two come to one key only where a block
-- has brought a row that had moved already, while its own values were kept at the key that it had before: that is the longer way.
INSERT INTO {ends} ({old}, {new})
WITH RECURSIVE way AS (
    SELECT * FROM (
        SELECT DISTINCT ON ({m_old}) {m_old}, {m_new}, m.at, 1 AS hops
        FROM {moves} AS m JOIN {kept} AS k ON {departs}
        ORDER BY {m_old}, m.at
    ) first
    UNION ALL
    SELECT {w_old}, {m_new}, m.at, w.hops + 1
    FROM way AS w CROSS JOIN LATERAL (
        SELECT {new}, at FROM {moves} AS n WHERE {goes_on} AND n.at > w.at ORDER BY n.at LIMIT 1
    ) AS m
), last AS (
    SELECT DISTINCT ON ({old}) {old}, {new}, hops FROM way ORDER BY {old}, hops DESC
), ranked AS (
    SELECT {old}, {new}, pg_catalog.row_number() OVER (PARTITION BY {new} ORDER BY hops DESC) AS rank FROM last
)
SELECT {old}, {new_if_first} FROM ranked

-- name: forget_gone
DELETE FROM {kept} AS k USING {ends} AS e WHERE {same} AND e.new_1 IS NULL

-- name: forget_replaced
-- A value at a key that another row has come to, and that did not leave it: of a row that a block had brought early.
DELETE FROM {kept} AS k USING {ends} AS e WHERE {arrives} AND NOT EXISTS (SELECT FROM {ends} AS l WHERE {leaves})

-- name: move
UPDATE {kept} AS k SET {set} FROM {ends} AS e WHERE {same}

-- name: forget_strays
-- Values of keys that are not pending, so whose rows were gone when they could have come back.
DELETE FROM {kept} AS k USING {staging} AS s WHERE {same} AND NOT EXISTS (SELECT FROM {pending} AS p WHERE {waits})

-- name: forget_all
DELETE FROM {kept}

-- name: forget_leaves
DELETE FROM {kept} WHERE {leaf} = ANY(%s::pg_catalog.oid[])

-- name: forget_taken
DELETE FROM {kept} AS k USING {staging} AS s WHERE {same}

-- name: delete_from_copy
WITH gone AS (DELETE FROM {copy} AS c USING {staging} AS k WHERE {join} RETURNING {values})
-- blocks may have brought two rows of one key
INSERT INTO {kept} ({columns}) SELECT DISTINCT ON ({keys}) {columns} FROM gone AS g
WHERE {worth} AND NOT EXISTS (SELECT FROM {kept} AS k WHERE {same})

-- name: save
WITH there AS (SELECT {values} FROM {relation} AS c)
INSERT INTO {kept} ({columns}) SELECT DISTINCT ON ({keys}) {columns} FROM there AS g
WHERE {worth} AND NOT EXISTS (SELECT FROM {kept} AS k WHERE {same})

-- name: create_arrivals
CREATE TEMPORARY TABLE {arrivals} AS SELECT {columns} FROM {copy} WITH NO DATA

-- name: drop_arrivals
DROP TABLE {arrivals}

-- name: take_out
WITH gone AS (DELETE FROM {copy} AS c USING {kept} AS k WHERE {join} RETURNING {values})
INSERT INTO {arrivals} ({columns}) SELECT {columns} FROM gone

-- name: insert_kept
INSERT INTO {copy} ({columns}, {keep}) OVERRIDING SYSTEM VALUE
SELECT {values}, {kept_values} FROM {arrivals} AS a JOIN {kept} AS k ON {join}

-- name: insert_others
INSERT INTO {copy} ({columns}) OVERRIDING SYSTEM VALUE
SELECT {values} FROM {arrivals} AS a WHERE NOT EXISTS (SELECT FROM {kept} AS k WHERE {join})

-- name: forget_returned
DELETE FROM {kept} AS k USING {arrivals} AS a WHERE {join}
