"""Nobody gains rights through us: `trust` says whose code may run as us, `foreign_code` what code of others a table
has, and so whether we go there as ourselves, behind the wall, or not at all; `wall` is how that is done (C28).

Roles that captured DDL is run as belong to `apply`; that a role lacks a right is found by `preflight`."""
