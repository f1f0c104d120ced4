-- make_capture itself goes with version 2.
DROP FUNCTION pgddl.key_is(regclass, smallint[], name[], oid[]);
