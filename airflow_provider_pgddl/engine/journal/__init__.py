"""The one door to the journal, a module a subject: pipelines and their tables, DDL, the schema gate, lease, control.

Statements that move rows, or that act on users' tables, do not belong here."""
