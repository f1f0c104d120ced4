-- capture.rows: direct_trigger. After the hand-over the trigger function of a captured relation writes to the copy itself.

-- 'left': DDL has brought the log's function back, while writers that began before may still write to the copy.
ALTER TABLE pgddl.captured ADD COLUMN mode text NOT NULL DEFAULT 'log' CHECK (mode IN ('log', 'direct', 'left'));

-- In the client's own transaction: what it writes behind its DDL is in the log, whatever the table has become.
CREATE FUNCTION pgddl.leave_direct(tag text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    relations   oid[];
    skip        text := coalesce(current_setting('pgddl.skip', true), '');
    message     text;
    state       text;
    left_behind record;
BEGIN
    IF tag <> 'ALTER TABLE' OR NOT EXISTS (SELECT FROM pgddl.captured WHERE mode = 'direct') THEN
        RETURN;
    END IF;
    SELECT pgddl.with_descendants(array_agg(DISTINCT objid)) INTO relations FROM pg_event_trigger_ddl_commands()
    WHERE classid = 'pg_class'::regclass;
    PERFORM set_config('pgddl.skip', 'on', true);
    FOR left_behind IN SELECT c.pipeline, c.leaf FROM pgddl.captured c WHERE c.leaf = ANY(relations) AND c.mode = 'direct' LOOP
        BEGIN
            UPDATE pgddl.captured SET mode = 'left' WHERE pipeline = left_behind.pipeline AND leaf = left_behind.leaf;
            PERFORM pgddl.make_capture(left_behind.pipeline, left_behind.leaf);
        EXCEPTION WHEN OTHERS THEN      -- the function itself sees that the table is another one, and writes to the log
            GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
            PERFORM pgddl.record_exception('the direct trigger could not be taken back: ' || message, state, tag, left_behind.leaf);
        END;
    END LOOP;
    PERFORM set_config('pgddl.skip', skip, true);
END
$function$;

ALTER FUNCTION pgddl.follow_capture(text) RENAME TO follow_log;

CREATE FUNCTION pgddl.follow_capture(tag text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    PERFORM pgddl.leave_direct(tag);
    PERFORM pgddl.follow_log(tag);
END
$function$;
