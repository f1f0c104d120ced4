"""DDL as events: pg_dump's reader, statements as syntax trees, phases, and names rewritten for a copy."""
