-- name: ourselves
-- With the settings of the transaction under way that hold behind the wall as well.
SELECT (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user), pg_catalog.current_setting('role'),
       array_agg(name), array_agg(pg_catalog.current_setting(name))
FROM unnest(ARRAY['lock_timeout', 'statement_timeout', 'session_replication_role']) s(name)

-- name: put_back
SELECT pg_catalog.set_config(name, value, true) FROM unnest(%s::text[], %s::text[]) s(name, value)
WHERE value <> pg_catalog.current_setting(name)

-- name: make
CREATE FUNCTION {wall}() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = '' AS {body}

-- name: make_reader
CREATE FUNCTION {wall}() RETURNS SETOF record LANGUAGE plpgsql SECURITY DEFINER SET search_path = '' SET work_mem = '128MB' AS {body}

-- name: body
DECLARE
    affected bigint;
BEGIN
    {statements}
    GET DIAGNOSTICS affected = ROW_COUNT;
    RETURN affected;
END

-- name: reader_body
BEGIN
    RETURN QUERY EXECUTE {query};
END

-- name: give
ALTER FUNCTION {wall}() OWNER TO {role}

-- name: call
SELECT {wall}()

-- name: drop
DROP FUNCTION IF EXISTS {wall}()

-- name: home
-- First of all, and without an operator or a type, for what follows finds its own by this path again.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false), pg_catalog.current_setting('transaction_read_only')

-- name: silenced
-- In the replica role: what this transaction may have written to of that which has triggers, foreign keys or rules, none of which fire
-- then; and how many rows of catalogs it has changed, where an event trigger would have told of DDL.
SELECT ARRAY(
    SELECT l.relation::pg_catalog.regclass::text FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'relation' AND l.pid = pg_catalog.pg_backend_pid() AND l.granted
      AND l.mode <> ALL ('{AccessShareLock,RowShareLock,ShareLock,ShareUpdateExclusiveLock}')
      AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
      AND (EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = l.relation AND t.tgenabled IN ('O', 'R'))
           OR EXISTS (SELECT FROM pg_catalog.pg_rewrite w WHERE w.ev_class = l.relation AND w.ev_type <> '1'
                                                            AND w.ev_enabled IN ('O', 'R')))),
    (SELECT sum(c.n_tup_ins + c.n_tup_upd + c.n_tup_del) FROM pg_catalog.pg_stat_xact_sys_tables c
     WHERE c.relname !~ '^pg_(largeobject|statistic)' AND c.schemaname <> 'pg_toast'
       AND EXISTS (SELECT FROM pg_catalog.pg_event_trigger e WHERE e.evtenabled IN ('O', 'R')))

-- name: forget
-- Nothing in here can be looked up in a place that the code behind the wall chooses: these are commands, not functions. The
-- query of a cursor WITH HOLD would run at the commit, as us.
CLOSE ALL;
DEALLOCATE ALL;
UNLISTEN *;
RESET ALL;
SET search_path = pg_catalog, pg_temp

-- name: left
-- What code behind the wall has left in our session: a temporary object is found before pg_catalog's by an unqualified name.
SELECT 'the temporary object ' || pg_catalog.quote_ident(name)
FROM (SELECT relname AS name, relowner AS owner, relnamespace AS namespace FROM pg_catalog.pg_class WHERE relkind <> 'i'
      UNION ALL SELECT typname, typowner, typnamespace FROM pg_catalog.pg_type
      UNION ALL SELECT proname, proowner, pronamespace FROM pg_catalog.pg_proc) made
WHERE namespace = pg_catalog.pg_my_temp_schema() AND pg_catalog.pg_my_temp_schema() <> 0
  AND owner <> (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)
LIMIT 1

-- name: may_be_deferred
-- Relations that this transaction may have written to and that have triggers which wait for its end, with a column of each. Up to
-- 17 they fire as whoever commits. From 18 on they run as whoever wrote, but behind all that we look at: what they leave in the
-- session (a setting, a cursor) stays there. And one that queues itself again never ends, wherever it is made to fire.
SELECT DISTINCT l.relation::pg_catalog.regclass::text,
       (SELECT a.attname FROM pg_catalog.pg_attribute a WHERE a.attrelid = l.relation AND a.attnum > 0 AND NOT a.attisdropped LIMIT 1)
FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_trigger t ON t.tgrelid = l.relation AND t.tgdeferrable
JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = t.tgconstrindid
WHERE l.locktype = 'relation' AND l.pid = pg_catalog.pg_backend_pid() AND l.mode = 'RowExclusiveLock'
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
  -- The server's own switch to the table's owner, or run no code: but for the expressions of an exclusion constraint.
  AND (NOT t.tgisinternal OR p.proname = 'unique_key_recheck' AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL))
