"""DDL without a server. Pure: statements in, statements or a verdict out.

`scope` says what a pipeline takes, `decide` what becomes of each captured event: applied, skipped, or unhandled and
why. `events` reads a dump, `dump_phases` says when each of its statements is run. `qualify` and `relocate` rewrite
names, `rebuild` makes statements from metadata where the text is of no use, `drop_statements` those of a DROP, `undo`
takes one back, `redact` takes passwords out.

Running a statement belongs to `apply`; comparing tables, to `schema`."""
