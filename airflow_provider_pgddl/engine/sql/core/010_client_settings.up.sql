-- Nothing that a client sets in its session changes what our triggers do, beyond its own rows and its own commands. Custom settings are
-- anybody's: what we leave in one either bears a signature that only we can make, and is nothing without it, or is written anew right
-- before it is read, with nothing of a client's in between.

-- A timestamp is printed as TimeZone and DateStyle say, which are the client's where something is left for its command, and ours where
-- it is fetched: with any zone but UTC it was never found.
ALTER FUNCTION pgddl.stash_key(text) SET TimeZone = 'UTC' SET DateStyle = 'ISO, YMD';

-- Under a key of stash_key: for this string of commands and this place in it. The key itself is never shown to anybody.
CREATE FUNCTION pgddl.signature(key text, message text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $function$
    SELECT md5($1 || md5($1 || $2))
$function$;

-- One signed line for each entry. What others have put there is neither read nor taken away.
CREATE OR REPLACE FUNCTION pgddl.stash(key text, part text, entries jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    entry   text := jsonb_build_object(part, entries);
BEGIN
    IF key IS NULL THEN
        RAISE EXCEPTION 'a transaction that is older than schema pgddl has no key';
    END IF;
    PERFORM set_config('pgddl.stash', concat_ws(E'\n', pgddl.signature(key, entry) || entry, current_setting('pgddl.stash', true)), true);
END
$function$;

-- What is kept under this key, by part.
CREATE FUNCTION pgddl.take_stash(key text) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    kept    text := current_setting('pgddl.stash', true);
    others  text[] := '{}';
    stash   jsonb := '{}';
    line    text;
BEGIN
    -- As version 2 wrote it, for a command that was under way when this one came. Nobody else can have put the key there.
    IF strpos(kept, key) > 0 THEN
        PERFORM set_config('pgddl.stash', '', true);
        RETURN coalesce(kept::jsonb -> key, '{}');
    END IF;
    FOREACH line IN ARRAY coalesce(string_to_array(kept, E'\n'), '{}') LOOP
        IF left(line, 32) = pgddl.signature(key, substr(line, 33)) THEN
            -- The newest one comes first.
            SELECT stash || jsonb_object_agg(e.key, e.value || coalesce(stash -> e.key, '[]')) INTO stash
            FROM jsonb_each(substr(line, 33)::jsonb) e;
        ELSE
            others := others || line;
        END IF;
    END LOOP;
    IF stash <> '{}' THEN
        PERFORM set_config('pgddl.stash', array_to_string(others, E'\n'), true);
    END IF;
    RETURN stash;
END
$function$;

-- As before but for the operator, which a client's path could have put its own in front of.
CREATE OR REPLACE FUNCTION pgddl.outer_context(context text) RETURNS text
LANGUAGE sql IMMUTABLE AS $function$
    SELECT pg_catalog.substr($1, pg_catalog.length(pg_catalog.split_part($1, E'\n', 1)) OPERATOR(pg_catalog.+) 2)
$function$;

-- They are called by functions with a pinned path only, and say so themselves all the same.
ALTER FUNCTION pgddl.emit_command(text, text, jsonb) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION pgddl.follow_log(text) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION pgddl.follow_publications(text) SET search_path = pg_catalog, pg_temp;

-- Event trigger, as the client and before the others: what only it can tell. Every name is qualified, operators too, for the
-- search_path is the client's; and nothing of schema pgddl is touched, on which it needs no right.
--
-- No secret can be had here, so this is not signed: what makes it true is that a client cannot leave this call out, that it writes last
-- of all, and that the server calls the trigger which reads it right afterwards. Only another event trigger whose name sorts between
-- ours comes in between, which takes a superuser to make. Where that one runs commands of its own, each of them puts its line on top
-- here and has it taken away by record_command or leave_publications: the line on top is always the one of the command at hand. What a
-- client has set is below it and never read; it is cut, for it could be as long as a setting gets.
CREATE OR REPLACE FUNCTION pgddl.client_ddl() RETURNS event_trigger
LANGUAGE plpgsql AS $function$
DECLARE
    client  pg_catalog.text;
    message pg_catalog.text;
BEGIN
    IF pg_catalog.current_setting('pgddl.skip', true) OPERATOR(pg_catalog.=) 'on' THEN
        RETURN;
    END IF;
    BEGIN
        client := pg_catalog.json_build_object(
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
            )::pg_catalog.text;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS message = MESSAGE_TEXT;
        client := pg_catalog.json_build_object('error', message)::pg_catalog.text;
    END;
    PERFORM pg_catalog.set_config('pgddl.client', pg_catalog.concat_ws(
        E'\n', client, pg_catalog."left"(pg_catalog.current_setting('pgddl.client', true), 100000)), true);
END
$function$;

-- Emits the one event of a command. The settings are those that our own sessions pin, for what is printed here is compared with
-- what they print; a generic plan at once, for a client that runs one command pays for planning only.
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
    clients text := current_setting('pgddl.client', true);
    client  text := split_part(clients, E'\n', 1);
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
        stash := pgddl.take_stash(pgddl.stash_key(context));
        PERFORM set_config('pgddl.client', client, true);
        -- One level down, so that nothing of it comes back when that fails.
        BEGIN
            PERFORM pgddl.emit_command(tg_tag, context, stash);
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
        PERFORM set_config('pgddl.client', substr(clients, length(client) + 2), true);
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
        PERFORM pgddl.record_exception('a command could not be recorded: ' || message, state, tg_tag, NULL);
    END;
END
$function$;

-- Event trigger, ddl_command_start, behind client_ddl. It takes the lock that the command is going to take, in the same order, and
-- only for who may run it: one that waits or deadlocks here would have done so without us. Only under that lock is it known whether the
-- table is published: whom the command has waited for may just have captured it.
CREATE OR REPLACE FUNCTION pgddl.leave_publications() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $function$
#variable_conflict use_column
DECLARE
    skip        text := coalesce(current_setting('pgddl.skip', true), '');
    clients     text := current_setting('pgddl.client', true);
    client      jsonb;
    context     text;
    statement   text := coalesce(current_query(), '');
    parts       text[];
    key         text;
    before      text := current_setting('pgddl.alters', true);
    number      int := 1;
    relation    oid;
    target      text;
    columns     name[];
    message     text;
    state       text;
BEGIN
    IF skip = 'on' THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM set_config('pgddl.client', substr(clients, length(split_part(clients, E'\n', 1)) + 2), true);
        IF NOT EXISTS (SELECT FROM pgddl.captured WHERE function = '') THEN
            RETURN;
        END IF;
        client := nullif(split_part(clients, E'\n', 1), '')::jsonb;
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
            key := pgddl.stash_key('alters' || statement);
            IF left(before, 32) = pgddl.signature(key, substr(before, 33)) THEN
                number := substr(before, 33)::int % (cardinality(parts) - 1) + 1;
            END IF;
            PERFORM set_config('pgddl.alters', pgddl.signature(key, number::text) || number, true);
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
