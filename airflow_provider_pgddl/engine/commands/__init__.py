"""What the shell asks for beside stages: check, plan, status, reset, DDL, schemas, control, metrics.

Parsing and printing belong to the command line."""
