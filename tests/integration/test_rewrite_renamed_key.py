"""C18 in place: developers rename the key's column of a table while it is rewritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine.errors import StageFailed
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.resets import reset
from tests.integration.sessions import do

TABLE = """
CREATE TABLE public.orders (id integer PRIMARY KEY, note text NOT NULL);
INSERT INTO public.orders SELECT n, 'note ' || n FROM generate_series(1, 1000) n;
"""
WAYS: dict[str, dict[str, Any]] = {"same": {}, "bigint": {"alter": ["ALTER COLUMN id TYPE bigint"]}}

MOMENTS = [
    (way, behind)
    for way in WAYS
    for behind in ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify")
    if (way, behind) != ("bigint", "setup")  # below
]


@pytest.mark.parametrize(("way", "behind"), MOMENTS)
def test_c18_a_renamed_key_column_follows_in_place(
    source_dsn: str, lifecycle: Callable[..., Lifecycle], way: str, behind: str
) -> None:
    execute(source_dsn, TABLE)
    move = lifecycle(source_dsn, rewrite={"public.orders": WAYS[way]}, backfill={"workers": 1})
    move.run_all(until=behind)
    with psycopg.connect(source_dsn) as client:
        client.execute("UPDATE orders SET note = 'before' WHERE id <= 10")
        client.execute("ALTER TABLE orders RENAME id TO number")
        client.execute("UPDATE orders SET number = number + 5000, note = 'in it' WHERE number BETWEEN 6 AND 20")
        client.execute("DELETE FROM orders WHERE number BETWEEN 21 AND 30")
    do(
        source_dsn,
        "INSERT INTO orders (number, note) VALUES (9000, 'after')",
        "UPDATE orders SET note = 'x' WHERE number = 40",
    )
    before = rows(source_dsn)
    assert len(before) == 991
    move.run_all(after=behind)
    assert rows(source_dsn) == before
    assert left_behind(source_dsn) == ["schema pgddl"]


def rows(dsn: str) -> list[Any]:
    with psycopg.connect(dsn) as conn:
        return conn.execute("SELECT number, note FROM public.orders ORDER BY number").fetchall()


def test_an_alter_that_names_the_old_column_says_what_to_do(
    source_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(source_dsn, TABLE)
    move = lifecycle(source_dsn, rewrite={"public.orders": WAYS["bigint"]}, backfill={"workers": 1})
    move.run("setup")
    do(source_dsn, "ALTER TABLE orders RENAME id TO number")
    before = rows(source_dsn)
    refused = str(move.refused("snapshot", StageFailed))
    assert 'column "id" of relation "orders" does not exist' in refused
    assert "`pgddl reset` the pipeline, then start again with a rewrite.alter" in refused
    reset(move)
    move.content["rewrite"] = {"public.orders": {"alter": ["ALTER COLUMN number TYPE bigint"]}}
    move.run_all()
    assert rows(source_dsn) == before
