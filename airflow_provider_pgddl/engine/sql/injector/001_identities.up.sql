-- Identities of tables and columns that survive dump and restore, where oids and attnums do not.

CREATE TABLE pgddl.table_identities (
    id          uuid PRIMARY KEY DEFAULT pg_catalog.gen_random_uuid(),
    relation    regclass NOT NULL UNIQUE
);

CREATE TABLE pgddl.column_identities (
    id          uuid PRIMARY KEY DEFAULT pg_catalog.gen_random_uuid(),
    table_id    uuid NOT NULL REFERENCES pgddl.table_identities ON DELETE CASCADE,
    attnum      smallint NOT NULL,
    UNIQUE (table_id, attnum)
);

-- Gives a table and its live columns identities where they have none; returns the table's.
CREATE FUNCTION pgddl.identify(relation regclass) RETURNS uuid
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgddl.table_identities (relation) VALUES ($1) ON CONFLICT (relation) DO NOTHING;
    INSERT INTO pgddl.column_identities (table_id, attnum)
    SELECT t.id, a.attnum
    FROM pgddl.table_identities t JOIN pg_attribute a ON a.attrelid = t.relation
    WHERE t.relation = $1 AND a.attnum > 0 AND NOT a.attisdropped
    ON CONFLICT (table_id, attnum) DO NOTHING;
    SELECT id FROM pgddl.table_identities WHERE table_identities.relation = $1;
$$;
