DO $$
DECLARE
    trigger name;
BEGIN
    FOR trigger IN SELECT t.evtname FROM pg_catalog.pg_event_trigger t
                   JOIN pg_catalog.pg_proc p ON p.oid = t.evtfoid JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
                   WHERE n.nspname = 'pgddl' LOOP
        EXECUTE pg_catalog.format('DROP EVENT TRIGGER %I', trigger);
    END LOOP;
END
$$;
DROP FUNCTION pgddl.client_ddl();
DROP FUNCTION pgddl.record_command();
DROP FUNCTION pgddl.record_rewrite();
DROP FUNCTION pgddl.record_drop();
DROP FUNCTION pgddl.emit_command(text, text, jsonb);
DROP FUNCTION pgddl.follow_capture(text);
DROP FUNCTION pgddl.make_capture(text, oid);
DROP FUNCTION pgddl.outer_context(text);
DROP FUNCTION pgddl.stash(text, text, jsonb);
DROP FUNCTION pgddl.stash_key(text);
DROP FUNCTION pgddl.words(text);
DROP FUNCTION pgddl.define_type(oid);
DROP FUNCTION pgddl.describe_object(oid, oid, int);
DROP FUNCTION pgddl.describe_relations(oid[]);
DROP FUNCTION pgddl.relation_rest(oid, name);
DROP FUNCTION pgddl.replica_index(oid);
DROP FUNCTION pgddl.own_collation(oid, oid);
DROP FUNCTION pgddl.missing_value(oid, text);
DROP FUNCTION pgddl.with_descendants(oid[]);
DROP FUNCTION pgddl.record_exception(text, text, text, oid);
ALTER TABLE pgddl.exceptions
    DROP COLUMN xid, DROP COLUMN sqlstate, DROP COLUMN tag, DROP COLUMN role, DROP COLUMN statement,
    DROP COLUMN resolved_at, DROP COLUMN note;
DROP TABLE pgddl.ddl_token;
DROP TABLE pgddl.ddl_queue;
ALTER TABLE pgddl.captured DROP COLUMN key, DROP COLUMN key_names, DROP COLUMN key_types;
ALTER TABLE pgddl.captures DROP COLUMN ddl, DROP COLUMN ddl_enabled, DROP COLUMN ddl_position;
