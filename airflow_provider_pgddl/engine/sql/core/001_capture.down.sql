DROP FUNCTION pgddl.fence();
DROP TABLE pgddl.exceptions;
DROP TABLE pgddl.captured;
DROP TABLE pgddl.captures;
