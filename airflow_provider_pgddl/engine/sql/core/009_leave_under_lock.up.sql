-- Whether a table is published is asked under the lock that the command takes: until it has it, whom it waits for may capture the table.
-- And a publication that somebody holds is waited for less long than Postgres waits before it tells that one of a deadlock.
--
-- A session that is in leave_publications as version 5 made it stays in that one, and calls the others as they are here.

-- Out of every publication that fills a log. The command itself may be waited for, the publication only shortly: whoever else alters
-- it keeps it locked until its transaction ends. If that one wants the table which is locked by now, it is the one that would be told of
-- a deadlock, after deadlock_timeout: we give way well before.
CREATE OR REPLACE FUNCTION pgddl.unpublish(relations oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '250ms' AS $function$
#variable_conflict use_column
DECLARE
    published   record;
BEGIN
    PERFORM set_config('lock_timeout', greatest(setting::int / 4, 1)::text, true) FROM pg_settings WHERE name = 'deadlock_timeout';
    FOR published IN
        SELECT p.pubname, n.nspname, c.relname
        FROM pgddl.captured s
        JOIN pg_class c ON c.oid = s.leaf JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_publication p ON p.pubname = 'pgddl_rows_of_' || s.pipeline
        JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
        WHERE s.leaf = ANY(relations) AND s.function = ''
        ORDER BY c.oid, p.oid
    LOOP
        EXECUTE format('ALTER PUBLICATION %I DROP TABLE ONLY %I.%I', published.pubname, published.nspname, published.relname);
    END LOOP;
END
$function$;

-- What a function returns cannot be replaced; nothing depends on it but by name.
DROP FUNCTION pgddl.named_in_alter(text, jsonb);

-- What one ALTER TABLE names, as its client's path resolves it, if it is of a kind that Postgres refuses for columns that a publication
-- lists: the columns that it drops or gives another type; null where it sets a table unlogged, which needs none. `after` is the text
-- behind ALTER TABLE. What is written in some way that is not understood here is left to Postgres.
CREATE FUNCTION pgddl.named_in_alter(after text, path jsonb, OUT relation oid, OUT target text, OUT columns name[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $function$
#variable_conflict use_column
DECLARE
    word    CONSTANT text := '(?:"(?:[^"]|"")+"|[^\s".,;*()''0-9][^\s".,;*()'']*)';
    head    text[] := regexp_match(after, '^\s+(?:if\s+exists\s+)?(only\s+)?(' || word || '(?:\s*\.\s*' || word || ')?)(.*)$', 'i');
    name    name[];
    found   record;
BEGIN
    IF head[3] !~* '\mset\s+unlogged\M' THEN
        SELECT array_agg((parse_ident(m[2]))[1]::name) INTO columns
        FROM regexp_matches(head[3], '\m(?:(drop)\s+(?:column\s+)?(?:if\s+exists\s+)?|alter\s+(?:column\s+)?)('
                                     || word || ')(?:\s+(?:set\s+data\s+)?(type)\M)?', 'gi') x(m)
        WHERE coalesce(m[1], m[3]) IS NOT NULL;
        IF columns IS NULL THEN
            RETURN;
        END IF;
    END IF;
    name := parse_ident(head[2])::name[];
    SELECT c.oid, n.nspname, c.relname INTO found
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN jsonb_array_elements_text(path) WITH ORDINALITY p(schema, n) ON p.schema::name = n.nspname
    WHERE c.relname = name[cardinality(name)] AND c.relkind IN ('r', 'p')
      AND CASE cardinality(name) WHEN 1 THEN p.n IS NOT NULL ELSE n.nspname = name[1] END
    ORDER BY p.n LIMIT 1;
    IF columns IS NOT NULL THEN
        -- Only these can be a key's. Behind this command the string may have others, which drop other things.
        SELECT array_agg(DISTINCT a.attname) INTO columns
        FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
        WHERE i.indisunique AND i.indrelid = ANY(pgddl.with_descendants(ARRAY[found.oid])) AND a.attname = ANY(columns);
        IF columns IS NULL THEN
            RETURN;
        END IF;
    END IF;
    relation := found.oid;
    target := coalesce(head[1], '') || format('%I.%I', found.nspname, found.relname);
EXCEPTION WHEN OTHERS THEN
    relation := NULL;
END
$function$;

-- Whether a publication that fills a log lists one of these columns of a relation or of what is below it; null: any column.
CREATE FUNCTION pgddl.is_published(relation oid, columns name[]) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $function$
    SELECT EXISTS (
        SELECT FROM pgddl.captured s
        JOIN pg_publication p ON p.pubname = 'pgddl_rows_of_' || s.pipeline
        JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = s.leaf
        JOIN pg_attribute a ON a.attrelid = s.leaf AND a.attnum = ANY(s.key)
        WHERE s.function = '' AND s.leaf = ANY(pgddl.with_descendants(ARRAY[$1])) AND (columns IS NULL OR a.attname = ANY(columns)))
$function$;

-- Event trigger, ddl_command_start, behind client_ddl. It takes the lock that the command is going to take, in the same order, and
-- only for who may run it: one that waits or deadlocks here would have done so without us. Only under that lock is it known whether the
-- table is published: whom the command has waited for may just have captured it.
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

-- What is created anew has lost what was set for it since. ddl_log.start sets this for all functions that read their context at once.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_proc
               WHERE oid = 'pgddl.record_command()'::pg_catalog.regprocedure AND 'lc_messages=C' = ANY(proconfig)) THEN
        ALTER FUNCTION pgddl.leave_publications() SET lc_messages = 'C';
    END IF;
EXCEPTION WHEN insufficient_privilege THEN NULL;    -- as ddl_log.start does without
END
$$;
