"""Tables that are rewritten into partitions, and the audit that accounts for every row of theirs."""

from __future__ import annotations

from typing import Any

import psycopg

from airflow_provider_pgddl.demo.traffic import Traffic
from tests.integration.lifecycle import wait_until

STAGES = ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap", "cleanup")

# The audit is written by a trigger of the application's in the transaction of each change: initial rows plus audit are
# the table, each row as often as it occurs.
AUDIT = """
CREATE TABLE changes (no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tab text, old jsonb, new jsonb);
CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.changes (tab, old, new) VALUES (TG_ARGV[0], to_jsonb(OLD), to_jsonb(NEW));
    RETURN NULL;
END $$;
"""
AUDITED = """
CREATE TRIGGER audited AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION audited('{table}');
INSERT INTO changes (tab, new) SELECT '{table}', to_jsonb(t) FROM {table} t;
"""
BALANCE = """
SELECT image, sum(n) FROM (
    SELECT new - 'legacy', 1 FROM changes WHERE tab = '{table}' AND new IS NOT NULL AND new <> 'null'
    UNION ALL SELECT old - 'legacy', -1 FROM changes WHERE tab = '{table}' AND old IS NOT NULL AND old <> 'null'
    UNION ALL SELECT to_jsonb(t) - 'legacy', -1 FROM {table} t) c(image, n)
GROUP BY 1 HAVING sum(n) <> 0 LIMIT 5
"""


def rows_of(dsn: str, query: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        return [row[0] if len(row) == 1 else row for row in conn.execute(query.encode())]


def parts(dsn: str, table: str) -> dict[str, str]:
    """Partition → bound, in UTC."""
    query = f"""SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i
                JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = '{table}'::regclass ORDER BY 1"""
    with psycopg.connect(dsn, autocommit=True, options="-c TimeZone=UTC") as conn:
        return dict(conn.execute(query.encode()).fetchall())


def unaccounted(dsn: str, table: str) -> list[Any]:
    return rows_of(dsn, BALANCE.format(table=table))


def some_traffic(writers: Traffic, n: int = 20) -> None:
    seen = writers.notes.committed.total()
    wait_until(lambda: writers.notes.committed.total() > seen + n)
