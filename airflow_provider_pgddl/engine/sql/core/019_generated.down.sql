CREATE OR REPLACE FUNCTION pgddl.follow_publications(tag text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    relations   oid[];
    skip        text := coalesce(current_setting('pgddl.skip', true), '');
    message     text;
    state       text;
    unfit       record;
    fresh       record;
BEGIN
    IF tag NOT IN ('CREATE TABLE', 'ALTER TABLE', 'DROP INDEX')
       OR NOT EXISTS (SELECT FROM pgddl.captured WHERE function = '') THEN
        RETURN;
    END IF;
    PERFORM set_config('pgddl.skip', 'on', true);
    IF tag <> 'DROP INDEX' THEN
        SELECT pgddl.with_descendants(array_agg(DISTINCT objid)) INTO relations FROM pg_event_trigger_ddl_commands()
        WHERE classid = 'pg_class'::regclass AND schema_name IS DISTINCT FROM 'pg_temp';
        FOR fresh IN
            SELECT DISTINCT ON (s.pipeline, c.oid) s.pipeline, s.root, s.log_table, s.key_types, c.oid AS leaf, n.nspname, c.relname,
                   c.relreplident, k.key, k.names
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            CROSS JOIN LATERAL pg_partition_ancestors(c.oid) p(relid)
            JOIN pgddl.captured s ON s.root = p.relid AND s.function = ''
            CROSS JOIN LATERAL (
                SELECT array_agg(mine.attnum ORDER BY o.n) AS key,
                       string_agg(quote_ident(mine.attname), ', ' ORDER BY o.n) AS names
                FROM unnest(s.key) WITH ORDINALITY o(attnum, n)
                JOIN pg_attribute its ON its.attrelid = s.leaf AND its.attnum = o.attnum
                JOIN pg_attribute mine ON mine.attrelid = c.oid AND mine.attname = its.attname) k
            WHERE c.oid = ANY(relations) AND c.relispartition AND c.relkind <> 'p'
              AND NOT EXISTS (SELECT FROM pgddl.captured x WHERE x.pipeline = s.pipeline AND x.root = s.root AND x.leaf = c.oid)
            ORDER BY s.pipeline, c.oid, s.leaf
        LOOP
            BEGIN
                -- A table that was captured by itself until now is in the publication already.
                INSERT INTO pgddl.captured (pipeline, root, leaf, log_table, function, key, key_types)
                VALUES (fresh.pipeline, fresh.root, fresh.leaf, fresh.log_table, '', fresh.key, fresh.key_types)
                ON CONFLICT (pipeline, leaf) DO UPDATE SET root = EXCLUDED.root, log_table = EXCLUDED.log_table, key = EXCLUDED.key,
                    key_types = EXCLUDED.key_types;
                IF EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                           WHERE p.pubname = 'pgddl_rows_of_' || fresh.pipeline AND r.prrelid = fresh.leaf) THEN
                    EXECUTE format('ALTER PUBLICATION %I DROP TABLE ONLY %I.%I', 'pgddl_rows_of_' || fresh.pipeline, fresh.nspname, fresh.relname);
                END IF;
                EXECUTE format('ALTER PUBLICATION %I ADD TABLE ONLY %I.%I%s', 'pgddl_rows_of_' || fresh.pipeline, fresh.nspname, fresh.relname,
                               CASE WHEN current_setting('server_version_num')::int < 150000 OR fresh.relreplident = 'f' THEN ''
                                    ELSE format(' (%s)', fresh.names) END);
            EXCEPTION WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
                PERFORM pgddl.record_exception('a new partition could not be captured: ' || message, state, tag, fresh.leaf);
            END;
        END LOOP;
    END IF;
    -- With a publication, UPDATE fails where there is no replica identity, and where the columns that are published are not all of
    -- it; where it is not all of the key, what an UPDATE leaves in the WAL has no old key. No application may meet the one, and no
    -- log the other: the table leaves, its pipeline sees that it has, and stops it. Last, as what has become a partition is published
    -- by its root's key, and may have another identity.
    FOR unfit IN
        SELECT DISTINCT p.pubname, n.nspname, c.relname, c.oid
        FROM pgddl.captured s
        JOIN pg_class c ON c.oid = s.leaf JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_publication p ON p.pubname = 'pgddl_rows_of_' || s.pipeline
        JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
        LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
             AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END
        CROSS JOIN LATERAL (SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] AS columns) identity
        WHERE s.function = ''
          AND (c.relreplident = 'n' OR c.relreplident IN ('d', 'i') AND (i.indexrelid IS NULL OR NOT s.key <@ identity.columns)
               OR to_jsonb(r) ->> 'prattrs' IS NOT NULL
                  AND (c.relreplident = 'f'
                       OR NOT identity.columns <@ string_to_array(translate(to_jsonb(r) ->> 'prattrs', '[],', ''), ' ')::int2[]))
    LOOP
        BEGIN
            EXECUTE format('ALTER PUBLICATION %I DROP TABLE ONLY %I.%I', unfit.pubname, unfit.nspname, unfit.relname);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, state = RETURNED_SQLSTATE;
            PERFORM pgddl.record_exception('a table could not be taken out of a publication: ' || message, state, tag, unfit.oid);
        END;
    END LOOP;
    PERFORM set_config('pgddl.skip', skip, true);
END
$function$;
