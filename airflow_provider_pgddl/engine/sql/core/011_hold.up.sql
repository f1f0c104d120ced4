-- Where DDL has spoiled a dump, the next one asks for quiet: pg_dump prints parts of a schema as of now, and its own locks come only
-- once it has read which tables there are. So does a swap, which must miss none.

-- Whoever runs DDL has this locked to the end of its transaction: ROW EXCLUSIVE where that may change what a dump at an older snapshot
-- prints, else ACCESS SHARE. A dump takes SHARE, a swap ACCESS EXCLUSIVE. A table, as nobody but its owner can take that from others.
CREATE TABLE pgddl.ddl_hold ();

-- Event trigger, ddl_command_start, before all others: whoever waits here has no lock yet that others would queue behind, and does not
-- wait for longer than half of its own statement_timeout. Who does not wait for locks goes on, and its event tells that it came. What
-- temporary tables are made and dropped by never waits for a swap.
CREATE FUNCTION pgddl.hold() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    mode text := 'ACCESS SHARE';
    patience int;
    most int;
BEGIN
    IF current_setting('pgddl.skip', true) = 'on' OR tg_tag IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') THEN
        RETURN;
    END IF;
    IF tg_tag ~ '^(ALTER|DROP) ' AND tg_tag <> 'ALTER DEFAULT PRIVILEGES'
       OR tg_tag IN ('CREATE AGGREGATE', 'CREATE EXTENSION', 'CREATE FUNCTION', 'CREATE PROCEDURE', 'CREATE TRIGGER') THEN
        mode := 'ROW EXCLUSIVE';
    END IF;
    BEGIN
        EXECUTE format('LOCK TABLE pgddl.ddl_hold IN %s MODE NOWAIT', mode);
        RETURN;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END;
    IF EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation >= 16384::oid
               AND pg_locks.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')) THEN
        RETURN;
    END IF;
    patience := 1000 * extract(epoch FROM current_setting('lock_timeout')::interval);
    most := 500 * extract(epoch FROM current_setting('statement_timeout')::interval);
    IF most > 0 AND (patience = 0 OR patience > most) THEN
        PERFORM set_config('lock_timeout', most::text, true);
    END IF;
    EXECUTE format('LOCK TABLE pgddl.ddl_hold IN %s MODE', mode);
    PERFORM set_config('lock_timeout', patience::text, true);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN NULL;
END
$function$;

-- A source that captures DDL already gets the trigger here, any other from ddl_log.start.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_event_trigger WHERE evtname = 'pgddl_2_command') THEN
        CREATE EVENT TRIGGER pgddl_00_hold ON ddl_command_start EXECUTE FUNCTION pgddl.hold();
    END IF;
END
$$;
