DROP FUNCTION pgddl.follow_capture(text);
ALTER FUNCTION pgddl.follow_triggers(text) RENAME TO follow_capture;
DROP FUNCTION pgddl.follow_publications(text);
