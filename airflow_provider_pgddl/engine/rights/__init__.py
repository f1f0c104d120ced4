"""Nobody gains rights through us: whom we trust, where code of others can be reached, and the wall that it runs behind
(C28).

Roles that captured DDL is run as belong to `apply`; that a role lacks a right is found by `preflight`."""
