DROP EVENT TRIGGER IF EXISTS pgddl_0_publications;
DROP EVENT TRIGGER IF EXISTS pgddl_0_client;
DROP FUNCTION pgddl.leave_publications();
DROP FUNCTION pgddl.named_in_alter(text, jsonb);
DROP FUNCTION pgddl.unpublish(oid[]);
