-- The functions as versions 9 and 18 made them.
CREATE OR REPLACE FUNCTION pgddl.named_in_alter(after text, path jsonb, OUT relation oid, OUT target text, OUT columns name[])
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
