"""One table of several chunks, and where its change log is."""

from __future__ import annotations

from typing import Any

from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import one

# So small that little data makes many chunks and many windows; one worker, so no SparkSession.
SMALL: dict[str, Any] = {"backfill": {"chunk_bytes": "64kB", "workers": 1}, "replay": {"window_rows": 40}}

# Without event triggers, as where nobody is a superuser.
UNCAPTURED = {"capture": {"ddl": "off"}, **SMALL}


ITEMS = """
    CREATE TABLE public.items (id int PRIMARY KEY, code text UNIQUE NOT NULL, filler text NOT NULL);
    INSERT INTO items SELECT n, 'c' || n, repeat('x', 400) FROM generate_series(1, 600) n;
    ALTER TABLE items CLUSTER ON items_code_key
"""
REWRITE = {"public.items": {"alter": ["ALTER COLUMN id TYPE bigint"]}}


def log_of(pipeline: Lifecycle, table: str) -> str:
    """The change log of a table."""
    (row,) = pipeline.journal("SELECT log_table FROM pgddl.tables WHERE table_name = %s", [table])
    return f"pgddl.{row[0]}"


def unequal(dsn: str, one_table: str, other: str) -> int:
    """Rows of two tables of one database that are not in the other, whatever the types of their columns."""
    query = (
        f"SELECT count(*) FROM (SELECT o::text AS r FROM {one_table} o) o"
        f" FULL JOIN (SELECT n::text AS r FROM {other} n) n USING (r) WHERE o.r IS NULL OR n.r IS NULL"
    )
    return int(one(dsn, query))
