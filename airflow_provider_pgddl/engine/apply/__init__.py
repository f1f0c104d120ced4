"""DDL onto a server: captured events as their clients ran them, statements of a dump, a person's `schema sync`; with
locks, whoever blocks them, roles, and what refuses a transaction (CONCURRENTLY). `dependents` is what stands on a
table and is carried over by a swap (foreign keys and sequences, `swapping.in_place`).

What a statement means, and whether it is done at all, is decided in `ddl`; here it is run. When it is read and in
which order, `following` says."""
