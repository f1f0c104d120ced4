ALTER TABLE pgddl.captures DROP COLUMN born_run, DROP COLUMN born_at, DROP COLUMN born_position, DROP COLUMN born_lsn;

CREATE OR REPLACE FUNCTION pgddl.fence() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'read_only_sql_transaction',
        MESSAGE = pg_catalog.format('pgddl: %I.%I is read-only here: pipeline %s has moved it to another server',
                                    TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0]),
        HINT = 'Connect to the new server.';
END
$$;

DROP FUNCTION pgddl.pass_fences();
DROP FUNCTION pgddl.return_passes();
DROP TABLE pgddl.fence_passes;
