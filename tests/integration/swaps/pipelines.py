"""The two pipelines that tests of swaps have, and what they ask about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.integration.calls import before_each
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for

Make = Callable[..., Lifecycle]

SMALL: dict[str, Any] = {"backfill": {"workers": 1}}

# Without event triggers, as where nobody is a superuser.
UNCAPTURED: dict[str, Any] = {"capture": {"ddl": "off"}}

SHOP = """
    CREATE SCHEMA shop;
    CREATE TABLE shop.parent (id int PRIMARY KEY, name text NOT NULL);
    CREATE TABLE shop.child (
        id int PRIMARY KEY, parent int NOT NULL REFERENCES shop.parent ON DELETE CASCADE, note text NOT NULL);
    INSERT INTO shop.parent SELECT n, 'p' || n FROM generate_series(1, 20) n;
    INSERT INTO shop.child SELECT n, 1 + n % 20, 'c' || n FROM generate_series(1, 60) n
"""

ITEMS = """
    CREATE TABLE items (id int PRIMARY KEY, code text NOT NULL UNIQUE);
    INSERT INTO items SELECT n, 'c' || n FROM generate_series(1, 60) n
"""

TO_BIGINT = {"public.items": {"alter": ["ALTER COLUMN id TYPE bigint"]}}


def has_cut_over(pipeline: Lifecycle) -> bool:
    return pipeline.journal("SELECT cut_over_at IS NOT NULL FROM pgddl.pipelines WHERE pipeline = %s", [pipeline.name])[
        0
    ][0]


FOREIGN_KEYS = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND connamespace = 'shop'::regnamespace"


def type_of_id(pipeline: Lifecycle) -> str:
    return str(one(pipeline.source, "SELECT pg_typeof(id)::text FROM items LIMIT 1"))


def sessions(pipeline: Lifecycle, dsn: str) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s AND datname = current_database()"
    return int(one(dsn, query, f"pgddl:{pipeline.name}:%"))


def reset(pipeline: Lifecycle, *tables: str) -> None:
    stages.reset(load_pipeline(pipeline.content), pipeline.source, pipeline.target, list(tables) or None)


def fenced(pipeline: Lifecycle) -> bool:
    try:
        do(pipeline.source, "UPDATE shop.parent SET name = name || '.' WHERE id = 1")
    except pg.ReadOnlySqlTransaction:
        return True
    return False


def run_behind_a_snapshot(
    move: Lifecycle, stage: str, monkeypatch: pytest.MonkeyPatch, where: Any, newer: str = "SELECT pg_current_xact_id()"
) -> None:
    """A stage while a transaction is open on the target that has an older snapshot, which it has to wait for: there,
    before what `where` has exchanged is committed."""
    tries = before_each(monkeypatch, where, "wait_out_old_snapshots", lambda _: None)
    older = ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM pg_catalog.pg_class"]
    with in_transaction(move.target, *older) as reader, Underway(lambda: move.run(stage)) as underway:
        do(move.target, newer)
        # It stays idle: one that comes to the table while a try holds the lock, younger than a second, is not told from
        # an application's own short transactions, and may find the new table.
        wait_for(lambda: len(tries) > 3, underway)
        assert not underway.over
        reader.commit()
        assert underway.finish().state == "done"


END_SESSIONS = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE application_name LIKE %s"


class Killed(BaseException):
    """What a process that is killed does next: nothing."""
