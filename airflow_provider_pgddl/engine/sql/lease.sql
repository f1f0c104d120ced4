-- name: lock_exclusive
SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended('pgddl:' || %s, 0))

-- name: lock_shared
SELECT pg_catalog.pg_try_advisory_lock_shared(pg_catalog.hashtextextended('pgddl:' || %s, 0))

-- name: holder
SELECT l.scope, l.holder, l.taken_at, l.token FROM pgddl.leases l WHERE l.pipeline = %s ORDER BY l.taken_at DESC LIMIT 1

-- name: take_all
-- A run over the whole pipeline fences every scope: without its row none is valid.
WITH t AS (SELECT pg_catalog.nextval('pgddl.tokens') AS token),
fenced AS (DELETE FROM pgddl.leases l WHERE l.pipeline = %(pipeline)s AND l.scope <> ''),
own AS (INSERT INTO pgddl.leases (pipeline, scope, token, holder)
        SELECT %(pipeline)s, '', t.token, %(holder)s FROM t
        ON CONFLICT (pipeline, scope) DO UPDATE
        SET token = excluded.token, holder = excluded.holder, taken_at = pg_catalog.clock_timestamp())
SELECT token FROM t

-- name: take_tables
-- A run over some tables fences their scopes, and whatever ran over the whole pipeline before.
WITH t AS (SELECT pg_catalog.nextval('pgddl.tokens') AS token),
own AS (INSERT INTO pgddl.leases (pipeline, scope, token, holder)
        SELECT %(pipeline)s, s.scope, t.token, %(holder)s
        FROM t, pg_catalog.unnest(%(scopes)s::text[] || ARRAY['']) s(scope)
        ON CONFLICT (pipeline, scope) DO UPDATE
        SET token = excluded.token, holder = excluded.holder, taken_at = pg_catalog.clock_timestamp())
SELECT token FROM t

-- name: live_tokens
SELECT DISTINCT token::text FROM pgddl.leases WHERE pipeline = %s

-- name: check
-- In the order in which a takeover takes them, too: neither waits for the other.
SELECT token FROM pgddl.leases WHERE pipeline = %s AND scope = ANY(%s) ORDER BY scope COLLATE "C" FOR SHARE

-- name: lock_ddl
SELECT pg_catalog.pg_advisory_lock(pg_catalog.hashtextextended(%s, 0))

-- name: unlock_ddl
SELECT pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended(%s, 0))
