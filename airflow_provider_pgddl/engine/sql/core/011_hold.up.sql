-- Where DDL has spoiled a dump, the next one asks for quiet: pg_dump prints parts of a schema as of now, and its own locks come only
-- once it has read which tables there are.

-- Whoever runs DDL that a dump may show holds this to the end of its transaction; a dump takes it for itself. A table, since nobody but
-- its owner can take it away from others.
CREATE TABLE pgddl.ddl_hold ();

-- Event trigger, ddl_command_start, before all others: whoever waits here has no lock yet that others would queue behind. What cannot
-- wait goes on, and the dump sees by its event that it came.
CREATE FUNCTION pgddl.hold() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF current_setting('pgddl.skip', true) = 'on' THEN
        RETURN;
    END IF;
    LOCK TABLE pgddl.ddl_hold IN ACCESS SHARE MODE;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN NULL;
END
$function$;

-- What makes the event trigger; where DDL is captured already that is here, else ddl_log.start calls it. Of the tags that change what
-- pg_dump prints at a snapshot older than they.
CREATE FUNCTION pgddl.start_hold() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    CREATE EVENT TRIGGER pgddl_00_hold ON ddl_command_start WHEN TAG IN (
        'ALTER AGGREGATE', 'ALTER COLLATION', 'ALTER DOMAIN', 'ALTER EXTENSION', 'ALTER FOREIGN TABLE', 'ALTER FUNCTION', 'ALTER INDEX',
        'ALTER MATERIALIZED VIEW', 'ALTER OPERATOR', 'ALTER OPERATOR CLASS', 'ALTER POLICY', 'ALTER PROCEDURE', 'ALTER ROUTINE',
        'ALTER RULE', 'ALTER SCHEMA', 'ALTER SEQUENCE', 'ALTER STATISTICS', 'ALTER TABLE', 'ALTER TRIGGER', 'ALTER TYPE', 'ALTER VIEW',
        'CREATE AGGREGATE', 'CREATE FUNCTION', 'CREATE PROCEDURE', 'CREATE TRIGGER',
        'DROP AGGREGATE', 'DROP CAST', 'DROP COLLATION', 'DROP DOMAIN', 'DROP EXTENSION', 'DROP FOREIGN TABLE', 'DROP FUNCTION',
        'DROP INDEX', 'DROP MATERIALIZED VIEW', 'DROP OPERATOR', 'DROP OWNED', 'DROP POLICY', 'DROP PROCEDURE', 'DROP ROUTINE',
        'DROP RULE', 'DROP SCHEMA', 'DROP SEQUENCE', 'DROP STATISTICS', 'DROP TABLE', 'DROP TRIGGER', 'DROP TYPE', 'DROP VIEW'
    ) EXECUTE FUNCTION pgddl.hold();
END
$function$;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_event_trigger WHERE evtname = 'pgddl_2_command') THEN
        PERFORM pgddl.start_hold();
    END IF;
END
$$;
