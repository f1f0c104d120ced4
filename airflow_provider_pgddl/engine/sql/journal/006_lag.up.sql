-- How far the source's WAL was at a window's snapshot; null where the window was not over every table that rows are followed of.
ALTER TABLE pgddl.windows ADD lsn pg_lsn;
