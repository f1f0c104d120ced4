DROP EVENT TRIGGER IF EXISTS pgddl_00_hold;
DROP FUNCTION pgddl.hold();
DROP TABLE pgddl.ddl_hold;
