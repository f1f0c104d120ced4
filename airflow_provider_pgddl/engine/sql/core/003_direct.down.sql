DROP FUNCTION pgddl.follow_capture(text);
ALTER FUNCTION pgddl.follow_log(text) RENAME TO follow_capture;
DROP FUNCTION pgddl.leave_direct(text);
ALTER TABLE pgddl.captured DROP COLUMN mode;
