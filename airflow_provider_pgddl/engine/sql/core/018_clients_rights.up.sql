-- What is done in the session of whoever runs DDL, and is about tables of somebody else, neither runs code of theirs as the owner of
-- these functions nor takes for theirs what only bears a name of theirs.

-- As before, but no query of a new partition is planned to learn whether it brings rows along: planning computes what is constant in
-- its indexes and statistics, which its owner wrote. One whose file is not empty may have rows; so may one that is not in a file of
-- the server's own kind.
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
               n.nspname, c.relname, m.amname IS DISTINCT FROM 'heap' OR pg_relation_size(c.oid) > 0 AS may_have_rows,
               ARRAY(SELECT a.attnum FROM unnest(s.key_names) WITH ORDINALITY k(name, n)
                     JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = k.name ORDER BY k.n) AS key
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_am m ON m.oid = c.relam
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
            IF fresh.may_have_rows THEN
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

-- As before, but for the lock, which is not taken as the owner of this function: while it is waited for, its name may become that of a
-- view, and with a view all is locked that is in it. What a client names here is told to the two triggers that follow.
CREATE OR REPLACE FUNCTION pgddl.leave_publications() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $function$
#variable_conflict use_column
DECLARE
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
    owner       oid;
    altering    text;
BEGIN
    IF current_setting('pgddl.skip', true) = 'on' THEN
        RETURN;
    END IF;
    PERFORM set_config('pgddl.altering', '', true);
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
        SELECT n.relation, n.target INTO relation, target FROM pgddl.named_in_alter(parts[number + 1], client -> 'path') n;
        SELECT c.relowner INTO owner FROM pg_class c WHERE c.oid = relation;
        IF relation IS NULL OR NOT pg_has_role((client ->> 'role')::name, owner, 'USAGE') THEN
            RETURN;
        END IF;
        altering := jsonb_build_object(
            'relation', relation::bigint, 'target', target, 'after', parts[number + 1], 'path', client -> 'path',
            'owner', (SELECT o.rolname FROM pg_roles o, pg_roles c
                      WHERE o.oid = owner AND NOT o.rolsuper AND c.rolname = client ->> 'role' AND c.rolsuper));
        PERFORM set_config('pgddl.altering', pgddl.signature(pgddl.stash_key('altering'), altering) || altering, true);
    EXCEPTION WHEN OTHERS THEN
        RETURN;     -- Postgres decides, as it would without us
    END;
END
$function$;

-- Event trigger, ddl_command_start, behind leave_publications: takes the lock that the command is going to take, as the client, or for a
-- superuser as the table's owner. So it locks nothing that they could not lock by themselves. Every name is qualified, operators too,
-- for the search_path is the client's; and nothing of schema pgddl is touched, on which it needs no right. So what is read is not
-- checked: a client that has put it there gets what it could have had without.
CREATE FUNCTION pgddl.lock_altered() RETURNS event_trigger
LANGUAGE plpgsql AS $function$
DECLARE
    altering    pg_catalog.json;
    owner       pg_catalog.text;
    role        pg_catalog.text := pg_catalog.current_setting('role');
BEGIN
    IF pg_catalog.current_setting('pgddl.skip', true) OPERATOR(pg_catalog.=) 'on'
       OR pg_catalog.length(pg_catalog.current_setting('pgddl.altering', true)) OPERATOR(pg_catalog.>) 0 IS NOT TRUE THEN
        RETURN;
    END IF;
    BEGIN
        altering := pg_catalog.substr(pg_catalog.current_setting('pgddl.altering', true), 33);
        owner := altering OPERATOR(pg_catalog.->>) 'owner';
        IF owner IS NOT NULL THEN
            PERFORM pg_catalog.set_config('role', owner, true);
        END IF;
        EXECUTE pg_catalog.concat('LOCK TABLE ', altering OPERATOR(pg_catalog.->>) 'target', ' IN ACCESS EXCLUSIVE MODE');
        IF owner IS NOT NULL THEN
            PERFORM pg_catalog.set_config('role', role, true);
        END IF;
    EXCEPTION
        WHEN lock_not_available OR deadlock_detected THEN
            RAISE;  -- the client's own
        WHEN OTHERS THEN NULL;      -- dropped or renamed just now, or one that its owner may not lock: Postgres decides
    END;
END
$function$;

-- Event trigger, ddl_command_start, behind lock_altered: only now is it known whether the table is published, for whom the command has
-- waited for may just have captured it; and whether the name is that table's still.
CREATE FUNCTION pgddl.leave_altered() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    skip        text := coalesce(current_setting('pgddl.skip', true), '');
    line        text := current_setting('pgddl.altering', true);
    altering    jsonb;
    found       record;
    message     text;
    state       text;
BEGIN
    IF skip = 'on' OR coalesce(line, '') = '' THEN
        RETURN;
    END IF;
    PERFORM set_config('pgddl.altering', '', true);
    BEGIN
        IF left(line, 32) IS DISTINCT FROM pgddl.signature(pgddl.stash_key('altering'), substr(line, 33)) THEN
            RETURN;
        END IF;
        altering := substr(line, 33);
        SELECT n.* INTO found FROM pgddl.named_in_alter(altering ->> 'after', altering -> 'path') n;
        IF found.relation IS DISTINCT FROM (altering ->> 'relation')::oid OR NOT pgddl.is_published(found.relation, found.columns) THEN
            RETURN;
        END IF;
        PERFORM set_config('pgddl.skip', 'on', true);
        BEGIN
            PERFORM pgddl.unpublish(pgddl.with_descendants(ARRAY[found.relation]));
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
            PERFORM pgddl.record_exception('a table could not be taken out of a publication: ' || message, state, tg_tag, found.relation);
        END;
        PERFORM set_config('pgddl.skip', skip, true);
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
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

-- A source that captures DDL already gets the triggers here, any other from ddl_log.start.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_event_trigger WHERE evtname = 'pgddl_2_command') THEN
        CREATE EVENT TRIGGER pgddl_0_publications_lock ON ddl_command_start WHEN TAG IN ('ALTER TABLE')
            EXECUTE FUNCTION pgddl.lock_altered();
        CREATE EVENT TRIGGER pgddl_0_publications_locked ON ddl_command_start WHEN TAG IN ('ALTER TABLE')
            EXECUTE FUNCTION pgddl.leave_altered();
    END IF;
END
$$;
