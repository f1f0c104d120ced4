-- The way back of a cut-over. What comes back from the new server is written past the fence, which stays up for everybody else; and a
-- pipeline that is born complete, by a cut-over of its source, is void until that has committed.

-- A fence lets a transaction through that has put its own id in here: only we can, whatever else a client sets or calls itself.
CREATE TABLE pgddl.fence_passes (xid xid8 PRIMARY KEY);

CREATE FUNCTION pgddl.pass_fences() RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$ INSERT INTO pgddl.fence_passes VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING $$;

-- Passes are good for one transaction; those that have ended are of no use to anybody.
CREATE FUNCTION pgddl.return_passes() RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$ DELETE FROM pgddl.fence_passes WHERE xid = pg_current_xact_id() $$;

REVOKE ALL ON FUNCTION pgddl.pass_fences() FROM PUBLIC;
REVOKE ALL ON FUNCTION pgddl.return_passes() FROM PUBLIC;

CREATE OR REPLACE FUNCTION pgddl.fence() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM pgddl.fence_passes WHERE xid = pg_current_xact_id_if_assigned()) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'read_only_sql_transaction',
        MESSAGE = pg_catalog.format('pgddl: %I.%I is read-only here: pipeline %s has moved it to another server',
                                    TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0]),
        HINT = 'Connect to the new server.';
END
$$;

-- The mark of a birth, in the transaction of the cut-over: the run that is born complete, and what of the DDL on this server it has
-- behind it: `born_position` shows all that had committed, and the cut-over itself.
ALTER TABLE pgddl.captures
    ADD COLUMN born_run      bigint,
    ADD COLUMN born_at       timestamptz,
    ADD COLUMN born_position pg_catalog.pg_snapshot,
    ADD COLUMN born_lsn      pg_catalog.pg_lsn;
