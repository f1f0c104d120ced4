-- Postgres refuses three commands on a table whose publication lists its key's columns: ALTER COLUMN … TYPE and DROP COLUMN of one
-- of these, and SET UNLOGGED. No application may meet that, so the table leaves the publication before the command begins. Its
-- pipeline sees that it has, captures it anew and reads it again, or stops it.

-- Out of every publication that fills a log. The command itself may be waited for, the publication only shortly: whoever else alters
-- it keeps it locked until its transaction ends.
CREATE FUNCTION pgddl.unpublish(relations oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $function$
#variable_conflict use_column
DECLARE
    published   record;
BEGIN
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

-- What one ALTER TABLE names, as its client's path resolves it, if Postgres would refuse it for one of our publications; else null.
-- `after` is the text behind ALTER TABLE. What is written in some way that is not understood here is left to Postgres.
CREATE FUNCTION pgddl.named_in_alter(after text, path jsonb, OUT relation oid, OUT target text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $function$
#variable_conflict use_column
DECLARE
    word    CONSTANT text := '(?:"(?:[^"]|"")+"|[^\s".,;*()''0-9][^\s".,;*()'']*)';
    head    text[] := regexp_match(after, '^\s+(?:if\s+exists\s+)?(only\s+)?(' || word || '(?:\s*\.\s*' || word || ')?)(.*)$', 'i');
    name    name[];
    found   record;
    listed  name[];
BEGIN
    name := parse_ident(head[2])::name[];
    SELECT c.oid, n.nspname, c.relname INTO found
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN jsonb_array_elements_text(path) WITH ORDINALITY p(schema, n) ON p.schema::name = n.nspname
    WHERE c.relname = name[cardinality(name)]
      AND CASE cardinality(name) WHEN 1 THEN p.n IS NOT NULL ELSE n.nspname = name[1] END
    ORDER BY p.n LIMIT 1;
    SELECT array_agg(DISTINCT a.attname) INTO listed
    FROM pgddl.captured s
    JOIN pg_publication p ON p.pubname = 'pgddl_rows_of_' || s.pipeline
    JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = s.leaf
    JOIN pg_attribute a ON a.attrelid = s.leaf AND a.attnum = ANY(s.key)
    WHERE s.function = '' AND s.leaf = ANY(pgddl.with_descendants(ARRAY[found.oid]));
    IF listed IS NOT NULL
       AND (head[3] ~* '\mset\s+unlogged\M'
            OR EXISTS (SELECT FROM regexp_matches(head[3], '\m(?:(drop)\s+(?:column\s+)?(?:if\s+exists\s+)?|alter\s+(?:column\s+)?)('
                                                  || word || ')(?:\s+(?:set\s+data\s+)?(type)\M)?', 'gi') x(m)
                       WHERE coalesce(m[1], m[3]) IS NOT NULL AND (parse_ident(m[2]))[1]::name = ANY(listed))) THEN
        relation := found.oid;
        target := coalesce(head[1], '') || format('%I.%I', found.nspname, found.relname);
    END IF;
EXCEPTION WHEN OTHERS THEN
    relation := NULL;
END
$function$;

-- Event trigger, ddl_command_start, behind client_ddl. It takes the lock that the command is going to take, in the same order, and
-- only for who may run it: one that waits or deadlocks here would have done so without us.
CREATE FUNCTION pgddl.leave_publications() RETURNS event_trigger
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
        SELECT n.relation, n.target INTO relation, target FROM pgddl.named_in_alter(parts[number + 1], client -> 'path') n;
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
        IF (SELECT n.relation FROM pgddl.named_in_alter(parts[number + 1], client -> 'path') n) = relation THEN
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

-- A source that captures DDL already gets the triggers here, any other from ddl_log.start.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_event_trigger WHERE evtname = 'pgddl_2_command') THEN
        CREATE EVENT TRIGGER pgddl_0_client ON ddl_command_start WHEN TAG IN ('ALTER TABLE')
            EXECUTE FUNCTION pgddl.client_ddl();
        CREATE EVENT TRIGGER pgddl_0_publications ON ddl_command_start WHEN TAG IN ('ALTER TABLE')
            EXECUTE FUNCTION pgddl.leave_publications();
    END IF;
END
$$;
