-- name: lock_exclusive
SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended('pgddl:' || %s, 0))

-- name: lock_shared
SELECT pg_catalog.pg_try_advisory_lock_shared(pg_catalog.hashtextextended('pgddl:' || %s, 0))

-- name: in_front
-- Whose session holds one of these locks, and since when it is there.
SELECT l.pid, a.backend_start
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.pid <> pg_catalog.pg_backend_pid()
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
  AND (l.mode = 'ExclusiveLock' OR %(shared)s)
  AND (l.classid::bigint << 32) | l.objid::bigint
      IN (SELECT pg_catalog.hashtextextended('pgddl:' || n, 0) FROM pg_catalog.unnest(%(names)s::text[]) n)
LIMIT 1

-- name: holder
-- What the run of that session has said of itself when it took its token, if it has by now.
SELECT l.holder, l.taken_at
FROM pgddl.leases l
JOIN pg_catalog.pg_locks k ON k.pid = %(pid)s AND k.locktype = 'advisory' AND k.granted AND k.mode = 'ExclusiveLock'
  AND (k.classid::bigint << 32) | k.objid::bigint
      = pg_catalog.hashtextextended('pgddl:' || l.pipeline || CASE l.scope WHEN '' THEN '' ELSE ':' || l.scope END, 0)
WHERE l.pipeline = %(pipeline)s AND l.taken_at >= %(since)s
ORDER BY l.taken_at DESC LIMIT 1

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

-- name: others_tokens
-- Those that may be of runs which are alive while we hold the locks on these tables: of other tables, and of those alone.
SELECT DISTINCT token::text FROM pgddl.leases l
WHERE pipeline = %(pipeline)s AND scope <> '' AND NOT EXISTS (
    SELECT FROM pgddl.leases mine WHERE mine.pipeline = l.pipeline AND mine.token = l.token AND mine.scope = ANY(%(scopes)s))

-- name: check
-- In the order in which a takeover takes them, too: neither waits for the other.
SELECT token FROM pgddl.leases WHERE pipeline = %s AND scope = ANY(%s) ORDER BY scope COLLATE "C" FOR SHARE
