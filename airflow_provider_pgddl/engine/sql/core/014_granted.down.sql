CREATE OR REPLACE FUNCTION pgddl.follow_capture(tag text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    PERFORM pgddl.follow_triggers(tag);
    PERFORM pgddl.follow_publications(tag);
END
$function$;
DROP FUNCTION pgddl.record_exception(text, text, text, text);
