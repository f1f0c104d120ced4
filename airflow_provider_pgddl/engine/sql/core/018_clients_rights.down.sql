-- The functions as versions 2 and 10 made them.
DROP EVENT TRIGGER IF EXISTS pgddl_0_publications_lock;
DROP EVENT TRIGGER IF EXISTS pgddl_0_publications_locked;
DROP FUNCTION pgddl.lock_altered();
DROP FUNCTION pgddl.leave_altered();

CREATE OR REPLACE FUNCTION pgddl.follow_log(tag text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    relations   oid[];
    skip        text := coalesce(current_setting('pgddl.skip', true), '');
    message     text;
    state       text;
    renamed     record;
    fresh       record;
    has_rows    boolean;
BEGIN
    IF tag NOT IN ('CREATE TABLE', 'ALTER TABLE', 'CREATE SCHEMA') OR NOT EXISTS (SELECT FROM pgddl.captured) THEN
        RETURN;
    END IF;
    SELECT pgddl.with_descendants(array_agg(DISTINCT objid)) INTO relations FROM pg_event_trigger_ddl_commands()
    WHERE classid = 'pg_class'::regclass AND schema_name IS DISTINCT FROM 'pg_temp';
    PERFORM set_config('pgddl.skip', 'on', true);
    FOR renamed IN
        SELECT * FROM (
            SELECT c.pipeline, c.leaf, c.key_names,
                   ARRAY(SELECT a.attname FROM unnest(c.key) WITH ORDINALITY k(attnum, n)
                         JOIN pg_attribute a ON a.attrelid = c.leaf AND a.attnum = k.attnum AND NOT a.attisdropped
                         ORDER BY n) AS now
            FROM pgddl.captured c WHERE c.leaf = ANY(relations)) x
        WHERE now <> key_names AND cardinality(now) = cardinality(key_names)
    LOOP
        BEGIN
            UPDATE pgddl.captured SET key_names = renamed.now WHERE pipeline = renamed.pipeline AND leaf = renamed.leaf;
            PERFORM pgddl.make_capture(renamed.pipeline, renamed.leaf);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
            PERFORM pgddl.record_exception('a renamed key column could not be followed: ' || message, state, tag, renamed.leaf);
        END;
    END LOOP;
    FOR fresh IN
        SELECT DISTINCT ON (s.pipeline, c.oid) s.pipeline, s.root, s.log_table, s.key_names, s.key_types, c.oid AS leaf,
               n.nspname, c.relname,
               ARRAY(SELECT a.attnum FROM unnest(s.key_names) WITH ORDINALITY k(name, n)
                     JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = k.name ORDER BY k.n) AS key
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        CROSS JOIN LATERAL pg_partition_ancestors(c.oid) p(relid)
        JOIN pgddl.captured s ON s.root = p.relid AND s.key_names IS NOT NULL
        WHERE c.oid = ANY(relations) AND c.relispartition AND c.relkind <> 'p'
          AND NOT EXISTS (SELECT FROM pgddl.captured k WHERE k.pipeline = s.pipeline AND k.root = s.root AND k.leaf = c.oid)
        ORDER BY s.pipeline, c.oid, s.leaf
    LOOP
        BEGIN
            -- A table that was captured by itself until now: its triggers write into its root's log from here on. Nobody reads
            -- its own any more.
            DELETE FROM pgddl.captured WHERE pipeline = fresh.pipeline AND leaf = fresh.leaf;
            IF FOUND THEN
                EXECUTE format('INSERT INTO pgddl.%I (op, leaf) VALUES (''X'', %s)', fresh.log_table, fresh.leaf);
            END IF;
            INSERT INTO pgddl.captured (pipeline, root, leaf, log_table, function, key, key_names, key_types)
            VALUES (fresh.pipeline, fresh.root, fresh.leaf, fresh.log_table,
                    'capture_' || fresh.pipeline || '_' || fresh.leaf, fresh.key, fresh.key_names, fresh.key_types);
            PERFORM pgddl.make_capture(fresh.pipeline, fresh.leaf);
            EXECUTE format('CREATE OR REPLACE TRIGGER %1$I AFTER INSERT OR UPDATE OR DELETE ON %2$I.%3$I FOR EACH ROW EXECUTE FUNCTION pgddl.%4$I();'
                           'ALTER TABLE %2$I.%3$I ENABLE ALWAYS TRIGGER %1$I',
                           'pgddl_row_' || fresh.pipeline, fresh.nspname, fresh.relname,
                           'capture_' || fresh.pipeline || '_' || fresh.leaf);
            EXECUTE format('CREATE OR REPLACE TRIGGER %1$I AFTER TRUNCATE ON %2$I.%3$I FOR EACH STATEMENT EXECUTE FUNCTION pgddl.%4$I();'
                           'ALTER TABLE %2$I.%3$I ENABLE ALWAYS TRIGGER %1$I',
                           'pgddl_truncate_' || fresh.pipeline, fresh.nspname, fresh.relname,
                           'capture_' || fresh.pipeline || '_' || fresh.leaf);
            EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %I.%I)', fresh.nspname, fresh.relname) INTO has_rows;
            IF has_rows THEN
                EXECUTE format('INSERT INTO pgddl.%I (op, leaf) VALUES (''X'', %s)', fresh.log_table, fresh.leaf);
            END IF;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
            PERFORM pgddl.record_exception('a new partition could not be captured: ' || message, state, tag, fresh.leaf);
        END;
    END LOOP;
    PERFORM set_config('pgddl.skip', skip, true);
END
$function$;

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

-- What is created anew has lost what was set for it since, as in version 10.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_proc
               WHERE oid = 'pgddl.record_command()'::pg_catalog.regprocedure AND 'lc_messages=C' = ANY(proconfig)) THEN
        ALTER FUNCTION pgddl.leave_publications() SET lc_messages = 'C';
    END IF;
EXCEPTION WHEN insufficient_privilege THEN NULL;
END
$$;
