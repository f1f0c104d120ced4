-- Objects of a client's with names of the server's and of ours, to be put in front of them in a search_path.
CREATE SCHEMA trap;

DO $$
DECLARE
    called text;
BEGIN
    FOREACH called IN ARRAY '{
        current_setting(text),
        "current_setting(text, bool)",
        "set_config(text, text, bool)",
        "left(text, int)",
        "substr(text, int)",
        length(text),
        "split_part(text, text, int)",
        md5(text),
        "concat_ws(text, text, text)",
        "strpos(text, text)",
        current_schemas(bool),
        current_query(),
        statement_timestamp(),
        pg_current_xact_id(),
        pg_event_trigger_ddl_commands(),
        pg_event_trigger_dropped_objects(),
        "json_build_object(text, text)",
        "json_build_object(text, name, text, name[], text, json)",
        "json_build_object(text, text, text, text, text, text, text, text, text, text, text, text, text, text, text, text)",
        "jsonb_build_object(text, jsonb)"}'::text[]
    LOOP
        EXECUTE format('CREATE FUNCTION trap.%s RETURNS text LANGUAGE plpgsql AS ''BEGIN RAISE EXCEPTION ''''trapped''''; END''', called);
    END LOOP;
    FOREACH called IN ARRAY '{text, int, bigint, bool, name, oid, jsonb, smallint}'::text[] LOOP
        EXECUTE format('CREATE FUNCTION trap.operate(%1$s, %1$s) RETURNS bool LANGUAGE plpgsql'
                       ' AS ''BEGIN RAISE EXCEPTION ''''trapped''''; END''', called);
        EXECUTE format('CREATE OPERATOR trap.= (LEFTARG = %1$s, RIGHTARG = %1$s, FUNCTION = trap.operate);'
                       'CREATE OPERATOR trap.<> (LEFTARG = %1$s, RIGHTARG = %1$s, FUNCTION = trap.operate);'
                       'CREATE OPERATOR trap.|| (LEFTARG = %1$s, RIGHTARG = %1$s, FUNCTION = trap.operate);'
                       'CREATE OPERATOR trap.+ (LEFTARG = %1$s, RIGHTARG = %1$s, FUNCTION = trap.operate)', called);
    END LOOP;
    FOREACH called IN ARRAY '{pg_class, pg_attribute, pg_namespace, pg_proc, pg_type, pg_settings, captured, captures, ddl_queue,
                              ddl_token, exceptions}'::text[]
    LOOP
        EXECUTE format('CREATE TABLE trap.%1$I (nothing int); CREATE TEMP TABLE %1$I (nothing int)', called);
    END LOOP;
    -- The last, for pg_temp is looked in first for types, whatever the path.
    FOREACH called IN ARRAY '{text, jsonb, json, oid, name, bool, int2, int4, regclass, xid8, event_trigger, record}'::text[] LOOP
        EXECUTE pg_catalog.format('CREATE DOMAIN trap.%1$I AS pg_catalog.bytea CHECK (false);'
                                  'CREATE DOMAIN pg_temp.%1$I AS pg_catalog.bytea CHECK (false)', called);
    END LOOP;
END
$$;
