-- Identities that follow what an event trigger tells, and a restore. A dump writes `relation` as a name, so that it finds the new
-- table; attnums do not survive, for dropped columns are not dumped. So columns are known by number in the database that they were
-- seen in last, and by name in any other.

ALTER TABLE pgddl.table_identities
    ADD COLUMN seen_in  text,       -- system identifier and database
    ADD COLUMN seen_as  oid;
ALTER TABLE pgddl.column_identities
    ADD COLUMN name     name,
    DROP CONSTRAINT column_identities_table_id_attnum_key;
CREATE INDEX column_identities_table_id ON pgddl.column_identities (table_id);

CREATE FUNCTION pgddl.this_database() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $function$
    SELECT (SELECT system_identifier::text FROM pg_control_system())
           || '/' || (SELECT oid FROM pg_database WHERE datname = current_database())
$function$;

UPDATE pgddl.table_identities SET seen_in = pgddl.this_database(), seen_as = relation::oid;
UPDATE pgddl.column_identities c SET name = a.attname
FROM pgddl.table_identities t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.relation
WHERE c.table_id = t.id AND a.attnum = c.attnum;

-- Gives a table and its live columns identities where they have none, takes renames over and forgets dropped columns.
CREATE OR REPLACE FUNCTION pgddl.identify(relation regclass) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    here    text := pgddl.this_database();
    known   pgddl.table_identities;
BEGIN
    INSERT INTO pgddl.table_identities (relation, seen_in, seen_as) VALUES ($1, here, $1::oid)
    ON CONFLICT (relation) DO NOTHING;
    SELECT * INTO STRICT known FROM pgddl.table_identities t WHERE t.relation = $1;
    IF (known.seen_in, known.seen_as) IS DISTINCT FROM (here, $1::oid) THEN
        UPDATE pgddl.column_identities c
        SET attnum = coalesce((SELECT a.attnum FROM pg_attribute a
                               WHERE a.attrelid = $1 AND a.attname = c.name AND a.attnum > 0 AND NOT a.attisdropped), 0)
        WHERE c.table_id = known.id;
        UPDATE pgddl.table_identities t SET seen_in = here, seen_as = $1::oid WHERE t.id = known.id;
    END IF;
    DELETE FROM pgddl.column_identities c WHERE c.table_id = known.id
       AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = $1 AND a.attnum = c.attnum AND a.attnum > 0 AND NOT a.attisdropped);
    UPDATE pgddl.column_identities c SET name = a.attname FROM pg_attribute a
    WHERE c.table_id = known.id AND a.attrelid = $1 AND a.attnum = c.attnum AND c.name IS DISTINCT FROM a.attname;
    INSERT INTO pgddl.column_identities (table_id, attnum, name)
    SELECT known.id, a.attnum, a.attname FROM pg_attribute a
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
      AND NOT EXISTS (SELECT FROM pgddl.column_identities c WHERE c.table_id = known.id AND c.attnum = a.attnum);
    RETURN known.id;
END
$function$;

-- What the event triggers call: tables get their identities before they are described.
CREATE FUNCTION pgddl.identify_relations(relations oid[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $function$
    SELECT pgddl.identify(c.oid::regclass) FROM pg_class c WHERE c.oid = ANY($1) AND c.relkind IN ('r', 'p', 'f')
$function$;

CREATE FUNCTION pgddl.forget_relations(relations oid[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $function$
    DELETE FROM pgddl.table_identities WHERE relation = ANY($1::regclass[])
$function$;

-- Descriptions (see pgddl.describe_relations) with the identities in them.
CREATE FUNCTION pgddl.with_identities(described jsonb) RETURNS jsonb
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $function$
    SELECT coalesce(jsonb_object_agg(d.key, d.value || jsonb_build_object('id', t.id, 'columns', (
        SELECT coalesce(jsonb_agg(e.c || jsonb_build_object('id', (
            SELECT k.id FROM pgddl.column_identities k
            WHERE k.table_id = t.id
              AND CASE WHEN (t.seen_in, t.seen_as) IS NOT DISTINCT FROM (here, t.relation::oid)
                       THEN k.attnum = (e.c ->> 'attnum')::int ELSE k.name = e.c ->> 'name' END
            LIMIT 1)) ORDER BY e.n), '[]')
        FROM jsonb_array_elements(d.value -> 'columns') WITH ORDINALITY e(c, n)))), '{}')
    FROM (SELECT pgddl.this_database()) h(here), jsonb_each($1) d
    LEFT JOIN pgddl.table_identities t ON t.relation = d.key::oid::regclass
$function$;
