DROP FUNCTION pgddl.identify(regclass);
DROP TABLE pgddl.column_identities;
DROP TABLE pgddl.table_identities;
