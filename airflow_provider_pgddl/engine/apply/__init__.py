"""DDL onto a server: captured events, statements of a dump, what stands on a table; with locks, blockers and roles.

What a statement means is decided in `ddl`; here it is run."""
