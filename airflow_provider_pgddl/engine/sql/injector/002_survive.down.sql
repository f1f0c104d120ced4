DROP FUNCTION pgddl.with_identities(jsonb);
DROP FUNCTION pgddl.forget_relations(oid[]);
DROP FUNCTION pgddl.identify_relations(oid[]);
CREATE OR REPLACE FUNCTION pgddl.identify(relation regclass) RETURNS uuid
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgddl.table_identities (relation) VALUES ($1) ON CONFLICT (relation) DO NOTHING;
    INSERT INTO pgddl.column_identities (table_id, attnum)
    SELECT t.id, a.attnum
    FROM pgddl.table_identities t JOIN pg_attribute a ON a.attrelid = t.relation
    WHERE t.relation = $1 AND a.attnum > 0 AND NOT a.attisdropped
    ON CONFLICT (table_id, attnum) DO NOTHING;
    SELECT id FROM pgddl.table_identities WHERE table_identities.relation = $1;
$$;
DROP FUNCTION pgddl.this_database();
DROP INDEX pgddl.column_identities_table_id;
ALTER TABLE pgddl.column_identities DROP COLUMN name,
    ADD CONSTRAINT column_identities_table_id_attnum_key UNIQUE (table_id, attnum);
ALTER TABLE pgddl.table_identities DROP COLUMN seen_in, DROP COLUMN seen_as;
