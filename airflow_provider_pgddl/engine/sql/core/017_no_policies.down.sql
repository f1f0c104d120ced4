ALTER FUNCTION pgddl.follow_triggers(text) RESET row_security;
