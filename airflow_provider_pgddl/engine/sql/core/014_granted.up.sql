-- A set that an administrator made: it is hers, and a pipeline's role without superuser's rights has been granted what it works with.
-- That role may make functions in schema pgddl, and fill our tables. So what runs as the administrator, in the session of whoever
-- runs DDL, takes no function but the set's own for one of ours, and does nothing that rows of these tables tell it to do.

-- With an argument of no known type Postgres prefers text; without this it would prefer a function of somebody else's.
CREATE FUNCTION pgddl.record_exception(what text, sqlstate text, tag text, relation text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $function$
    SELECT pgddl.record_exception($1, $2, $3, $4::oid)
$function$;

-- Where others may fill pgddl.captured, a renamed key and a new partition are met by the next stage, which captures the table anew
-- and reads its rows again.
CREATE OR REPLACE FUNCTION pgddl.follow_capture(tag text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF EXISTS (SELECT FROM pg_class c, aclexplode(c.relacl) a
               WHERE c.oid = 'pgddl.captured'::regclass AND a.privilege_type = 'INSERT' AND a.grantee <> c.relowner) THEN
        RETURN;
    END IF;
    PERFORM pgddl.follow_triggers(tag);
    PERFORM pgddl.follow_publications(tag);
END
$function$;
