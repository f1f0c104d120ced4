-- The functions as versions 2 and 9 made them.
CREATE OR REPLACE FUNCTION pgddl.client_ddl() RETURNS event_trigger
LANGUAGE plpgsql AS $function$
DECLARE
    message pg_catalog.text;
BEGIN
    IF pg_catalog.current_setting('pgddl.skip', true) OPERATOR(pg_catalog.=) 'on' THEN
        RETURN;
    END IF;
    PERFORM pg_catalog.set_config('pgddl.client', pg_catalog.json_build_object(
        'role', CURRENT_USER,
        'path', pg_catalog.current_schemas(true),
        'settings', pg_catalog.json_build_object(
            'TimeZone', pg_catalog.current_setting('TimeZone'),
            'DateStyle', pg_catalog.current_setting('DateStyle'),
            'IntervalStyle', pg_catalog.current_setting('IntervalStyle'),
            'default_tablespace', pg_catalog.current_setting('default_tablespace'),
            'default_table_access_method', pg_catalog.current_setting('default_table_access_method'),
            'check_function_bodies', pg_catalog.current_setting('check_function_bodies'),
            'xmloption', pg_catalog.current_setting('xmloption'),
            'standard_conforming_strings', pg_catalog.current_setting('standard_conforming_strings'))
        )::pg_catalog.text, true);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT;
    PERFORM pg_catalog.set_config('pgddl.client', pg_catalog.json_build_object('error', message)::pg_catalog.text, true);
END
$function$;

CREATE OR REPLACE FUNCTION pgddl.stash(key text, part text, entries jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    stash   jsonb := coalesce(nullif(current_setting('pgddl.stash', true), ''), '{}');
BEGIN
    PERFORM set_config('pgddl.stash', jsonb_set(
        stash || jsonb_build_object(key, coalesce(stash -> key, '{}')),
        ARRAY[key, part], coalesce(stash #> ARRAY[key, part], '[]') || entries)::text, true);
END
$function$;

CREATE OR REPLACE FUNCTION pgddl.outer_context(context text) RETURNS text
LANGUAGE sql IMMUTABLE AS $function$
    SELECT pg_catalog.substr($1, pg_catalog.length(pg_catalog.split_part($1, E'\n', 1)) + 2)
$function$;

CREATE OR REPLACE FUNCTION pgddl.record_command() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET TimeZone = 'UTC' SET DateStyle = 'ISO, YMD' SET IntervalStyle = 'postgres' SET extra_float_digits = 1
SET bytea_output = 'hex' SET lc_monetary = 'C' SET quote_all_identifiers = off SET standard_conforming_strings = on
SET lock_timeout = '1s' SET jit = off SET plan_cache_mode = force_generic_plan
AS $function$
#variable_conflict use_column
DECLARE
    context text;
    key     text;
    stash   jsonb;
    message text;
    state   text;
BEGIN
    IF current_setting('pgddl.skip', true) = 'on' THEN
        RETURN;
    END IF;
    BEGIN
        GET DIAGNOSTICS context = PG_CONTEXT;
        context := pgddl.outer_context(context);
        key := pgddl.stash_key(context);
        stash := coalesce(nullif(current_setting('pgddl.stash', true), ''), '{}');
        IF stash ? key THEN
            PERFORM set_config('pgddl.stash', (stash - key)::text, true);
        END IF;
        -- One level down, so that nothing of it comes back when that fails.
        BEGIN
            PERFORM pgddl.emit_command(tg_tag, context, coalesce(stash -> key, '{}'));
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
            PERFORM pgddl.record_exception('a command could not be recorded: ' || message, state, tg_tag, NULL);
        END;
        BEGIN
            PERFORM pgddl.follow_capture(tg_tag);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
            PERFORM pgddl.record_exception('the change log could not follow a command: ' || message, state, tg_tag, NULL);
        END;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
        PERFORM pgddl.record_exception('a command could not be recorded: ' || message, state, tg_tag, NULL);
    END;
END
$function$;

CREATE OR REPLACE FUNCTION pgddl.leave_publications() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $function$
#variable_conflict use_column
DECLARE
    skip        text := coalesce(current_setting('pgddl.skip', true), '');
    client      jsonb;
    context     text;
    statement   text := coalesce(current_query(), '');
    parts       text[];
    before      text[];
    number      int := 1;
    relation    oid;
    target      text;
    columns     name[];
    message     text;
    state       text;
BEGIN
    IF skip = 'on' OR NOT EXISTS (SELECT FROM pgddl.captured WHERE function = '') THEN
        RETURN;
    END IF;
    BEGIN
        client := nullif(current_setting('pgddl.client', true), '')::jsonb;
        GET DIAGNOSTICS context = PG_CONTEXT;
        context := pgddl.outer_context(context);
        IF context <> '' THEN
            -- In a function: the text of the frame around us, up to the next one.
            statement := CASE WHEN starts_with(context, 'SQL statement "') THEN regexp_replace(substr(context, 16), '"\n(PL/pgSQL function|SQL) .*$', '')
                              ELSE '' END;
        END IF;
        IF statement !~* '\m(drop|type|unlogged)\M' THEN
            RETURN;
        END IF;
        statement := regexp_replace(regexp_replace(statement, '/\*.*?\*/', ' ', 'g'), '--[^\n]*', ' ', 'g');
        parts := regexp_split_to_array(statement, '\malter\s+table\M', 'i');
        IF cardinality(parts) > 2 THEN
            -- Of a string with many, the one that has its turn.
            before := string_to_array(nullif(current_setting('pgddl.alters', true), ''), ' ');
            IF before[1] = md5(statement_timestamp()::text || statement) THEN
                number := before[2]::int % (cardinality(parts) - 1) + 1;
            END IF;
            PERFORM set_config('pgddl.alters', md5(statement_timestamp()::text || statement) || ' ' || number, true);
        END IF;
        SELECT n.* INTO relation, target, columns FROM pgddl.named_in_alter(parts[number + 1], client -> 'path') n;
        IF relation IS NULL
           OR NOT pg_has_role((client ->> 'role')::name, (SELECT relowner FROM pg_class WHERE oid = relation), 'USAGE') THEN
            RETURN;
        END IF;
    EXCEPTION WHEN OTHERS THEN
        RETURN;     -- Postgres decides, as it would without us
    END;
    PERFORM set_config('pgddl.skip', 'on', true);
    BEGIN
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', target);
        IF (SELECT n.relation FROM pgddl.named_in_alter(parts[number + 1], client -> 'path') n) = relation
           AND pgddl.is_published(relation, columns) THEN
            BEGIN
                PERFORM pgddl.unpublish(pgddl.with_descendants(ARRAY[relation]));
            EXCEPTION WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
                PERFORM pgddl.record_exception('a table could not be taken out of a publication: ' || message, state, tg_tag, relation);
            END;
        END IF;
    EXCEPTION
        WHEN lock_not_available OR deadlock_detected THEN
            RAISE;  -- the client's own
        WHEN OTHERS THEN NULL;      -- dropped or renamed just now
    END;
    PERFORM set_config('pgddl.skip', skip, true);
END
$function$;

DROP FUNCTION pgddl.take_stash(text);
DROP FUNCTION pgddl.signature(text, text);
ALTER FUNCTION pgddl.stash_key(text) RESET TimeZone;
ALTER FUNCTION pgddl.stash_key(text) RESET DateStyle;
ALTER FUNCTION pgddl.emit_command(text, text, jsonb) RESET search_path;
ALTER FUNCTION pgddl.follow_log(text) RESET search_path;
ALTER FUNCTION pgddl.follow_publications(text) RESET search_path;

-- What is created anew has lost what was set for it since. ddl_log.start sets this for all functions that read their context at once.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_proc
               WHERE oid = 'pgddl.record_drop()'::pg_catalog.regprocedure AND 'lc_messages=C' = ANY(proconfig)) THEN
        ALTER FUNCTION pgddl.record_command() SET lc_messages = 'C';
        ALTER FUNCTION pgddl.leave_publications() SET lc_messages = 'C';
    END IF;
EXCEPTION WHEN insufficient_privilege THEN NULL;    -- as ddl_log.start does without
END
$$;
