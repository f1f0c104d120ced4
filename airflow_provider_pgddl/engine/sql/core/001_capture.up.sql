-- What the source needs for as long as some pipeline captures from it.

-- One row a pipeline that captures here; `window_no` is the last window whose log rows were acknowledged. Compared with
-- the journal's own number it tells whether a failover on either side lost some.
CREATE TABLE pgddl.captures (
    pipeline    text PRIMARY KEY,
    journal     text NOT NULL,          -- which database its journal is in: a change log serves one target only
    window_no   bigint NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

-- One row a captured relation (a table, or one leaf of a partitioned table), so that all of it can be taken away again.
CREATE TABLE pgddl.captured (
    pipeline    text NOT NULL REFERENCES pgddl.captures,
    root        oid NOT NULL,
    leaf        oid NOT NULL,
    log_table   name NOT NULL,
    function    name NOT NULL,
    PRIMARY KEY (pipeline, leaf)
);

-- What went wrong while capturing, without the client's statement having failed for it.
CREATE TABLE pgddl.exceptions (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline    text,
    relation    oid,
    what        text NOT NULL,
    happened_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

-- The fence of a cut-over: SQLSTATE 25006 is what a read-only server answers, so drivers that fail over on it do.
CREATE FUNCTION pgddl.fence() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'read_only_sql_transaction',
        MESSAGE = pg_catalog.format('pgddl: %I.%I is read-only here: pipeline %s has moved it to another server',
                                    TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0]),
        HINT = 'Connect to the new server.';
END
$$;
