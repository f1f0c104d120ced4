"""A request for schema sync: the next stage runs the SQL that a person was shown, or says why it has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands.sync_requests import ask, shown
from airflow_provider_pgddl.engine.errors import Retry, UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.integration.lifecycle import Lifecycle, execute

SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, total int NOT NULL);
INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(1, 50) n;
INSERT INTO orders SELECT n, n FROM generate_series(1, 50) n;
"""
BEHIND = ("replay", "verify", "swap")
OUTCOMES = "SELECT who, about, outcome FROM pgddl.actions WHERE action = 'sync' ORDER BY id"
TYPE = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'customers'::regclass AND attnum = 2"


@pytest.fixture
def shop(lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str) -> Lifecycle:
    """With a table that is blocked, since somebody has altered it on the target."""
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    move.run_all(until="replay")
    execute(target_dsn, "ALTER TABLE customers ALTER COLUMN name TYPE varchar(40)")
    assert closed(move) == ["public.customers"]
    return move


def die(_: int) -> None:
    raise Retry("killed")


def closed(move: Lifecycle, behind: tuple[str, ...] = ()) -> list[str]:
    """The tables that the gate is closed for, with these stages behind it."""
    reports = stages.gate(load_pipeline(move.content), move.source, move.target, behind=behind)
    return [report.table for report in reports if report.status == "mismatch"]


def asked(move: Lifecycle, digest: str | None = None) -> None:
    ends: Any = (load_pipeline(move.content), move.source, move.target)
    (sync,) = shown(*ends, ["public.customers"])
    ask(*ends, sync.table, digest or sync.digest, "ann")


def test_the_next_stage_runs_what_was_shown_and_the_gate_lets_it(shop: Lifecycle, at: Any) -> None:
    with pytest.raises(UsageError, match="not what was shown"):
        asked(shop, "0" * 64)
    assert shop.journal(OUTCOMES) == []
    asked(shop)
    asked(shop)  # once more: one of them is seen to
    assert closed(shop) == ["public.customers"], "nobody behind this gate would see to it"
    assert closed(shop, BEHIND) == []
    execute(shop.source, "UPDATE customers SET name = repeat('x', 90) WHERE id = 7")
    with at("sync.before_ended_commit", die):
        shop.refused("replay", Retry)
    assert shop.journal(TYPE) == [("text",)]
    assert shop.run("replay").blocked == []
    assert shop.journal(OUTCOMES) == [
        ("ann", "public.customers", "another request took its place"),
        ("ann", "public.customers", "nothing is left to do"),
    ]
    shop.run_all(after="replay", until="verify")
    row = "'bo', 'sync', 'o', '', '[]'"
    late = "INSERT INTO pgddl.actions (pipeline, who, action, about, digest, statements) VALUES ('{}', {})"
    execute(shop.target, late.format(shop.name, row))
    shop.run_all(after="verify")
    assert shop.journal(OUTCOMES)[-1] == ("bo", "o", "not done: the run is past its swap")
    assert differences(shop.source, shop.target) == []


def test_what_is_not_the_same_any_more_is_not_run(shop: Lifecycle) -> None:
    asked(shop)
    execute(shop.target, "ALTER TABLE customers DROP COLUMN name")
    assert [entry["table"] for entry in shop.run("replay").blocked] == ["public.customers"]
    assert shop.journal(OUTCOMES) == [("ann", "public.customers", "not done: the SQL is not what was shown any more")]
    assert shop.journal("SELECT FROM pg_attribute WHERE attrelid = 'customers'::regclass AND attname = 'name'") == []
    assert closed(shop, BEHIND) == ["public.customers"]
