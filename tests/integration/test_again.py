"""A pipeline that is finished: it has nothing to do until it is asked, and nobody is told to drop what it has moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.errors import PgddlError, PreflightRefused, UsageError
from airflow_provider_pgddl.engine.job.idle import idle
from airflow_provider_pgddl.engine.preflight import preflight
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.stages import STAGES
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute

Make = Callable[..., Lifecycle]

SHOP = """
CREATE SCHEMA shop;
CREATE SEQUENCE shop.tickets;
CREATE TYPE shop.mood AS ENUM ('fine');
CREATE TABLE shop.orders (id int PRIMARY KEY, mood shop.mood NOT NULL DEFAULT 'fine');
CREATE TABLE shop.log (id int PRIMARY KEY, at int NOT NULL) PARTITION BY RANGE (id);
CREATE TABLE shop.log_1 PARTITION OF shop.log FOR VALUES FROM (0) TO (1000);
CREATE TABLE shop.log_rest PARTITION OF shop.log DEFAULT;
CREATE TABLE shop.empty (id int PRIMARY KEY);
INSERT INTO shop.orders SELECT generate_series(1, 100);
INSERT INTO shop.log SELECT n, n FROM generate_series(1, 2000) n;
"""
TABLES = {"tables": {"include": ["shop.*"]}, "capture": {"ddl": "off"}}


def all_idle(move: Lifecycle) -> None:
    for stage in STAGES:
        done = move.run(stage)
        assert done.state == "nothing_to_do", stage
        assert ("finished_at" in done.figures) == (stage != "cleanup")
        assert move.journal("SELECT result ->> 'state' FROM pgddl.stage_runs ORDER BY started_at DESC LIMIT 1") == [
            ("nothing_to_do",)
        ]


@pytest.fixture
def moved(pg16: Cluster, pg18: Cluster, database: Database, lifecycle: Make) -> Lifecycle:
    source, target = database(pg16), database(pg18)
    execute(source, SHOP)
    move = lifecycle(source, target, **TABLES)
    move.run_all()
    return move


def findings(move: Lifecycle) -> list[dict[str, Any]]:
    pipeline = move.job("setup").pipeline
    tables = [("shop", name) for name in ("empty", "log", "orders")]
    with connect(move.source, purpose="test") as source, connect(move.target, purpose="test") as target:
        return [f.to_json() for f in preflight(pipeline, source, target, tables)]


def test_after_a_cut_over_there_is_nothing_to_do_and_nothing_to_drop(moved: Lifecycle, lifecycle: Make) -> None:
    all_idle(moved)
    refused = moved.refused("setup", PreflightRefused, again=True)
    assert "pipeline 'test_" in str(refused) and "DROP" not in str(refused)
    assert moved.run("setup").state == "nothing_to_do", "a refused run has not begun"
    other = lifecycle(moved.source, moved.target, **TABLES)
    for move in (moved, other):
        found = findings(move)
        assert {f["table"] for f in found if f["code"] == "existing"} == {"shop.orders", "shop.log", "shop.empty", None}
        assert "DROP" not in str(found)
        assert f"pipeline {moved.name!r}" in str(found)


def test_a_source_that_is_gone_by_now_is_not_asked(moved: Lifecycle) -> None:
    gone = moved.source.replace("dbname=", "dbname=gone_")
    for stage in STAGES[:-1]:
        done = idle(moved.job(stage), gone, moved.target)
        assert done is not None and done.state == "nothing_to_do"
    assert idle(moved.job("setup", again=True), moved.source, moved.target) is None


def test_rows_of_nobody_knows_whom_are_put_aside_and_not_dropped(
    pg16: Cluster, pg18: Cluster, database: Database, lifecycle: Make
) -> None:
    source, target = database(pg16), database(pg18)
    for dsn in (source, target):
        execute(dsn, SHOP)
    move = lifecycle(source, target, **TABLES)
    fixes = {f["table"]: f["fix"] for f in findings(move) if f["code"] == "existing"}
    assert fixes["shop.empty"].startswith("DROP TABLE shop.empty;")
    assert "DROP" not in fixes["shop.orders"] + fixes["shop.log"] + fixes[None]
    for fix in fixes.values():
        execute(target, fix)
    move.run_all()
    assert move.journal("SELECT count(*) FROM shop.log") == move.journal("SELECT count(*) FROM before_pgddl.log")


def test_a_pipeline_that_has_cut_over_and_is_not_cleaned_up_is_told_to_drop_nothing(
    pg16: Cluster, pg18: Cluster, database: Database, lifecycle: Make
) -> None:
    """As a DAG does that is triggered once more."""
    source, target = database(pg16), database(pg18)
    execute(source, SHOP)
    move = lifecycle(source, target, **TABLES)
    move.run_all(until="swap")
    rows = move.journal("SELECT count(*) FROM shop.orders")
    other = lifecycle(source, target, **TABLES)
    assert "DROP" not in str(findings(move)) + str(findings(other))
    for stage in STAGES:
        assert move.run(stage).blocked == []
    assert "DROP" not in str(other.refused("setup", PreflightRefused))
    assert move.journal("SELECT count(*) FROM shop.orders") == rows


IN_THE_WAY = """
CREATE SCHEMA shop; CREATE SCHEMA pgddl; CREATE TABLE pgddl.theirs AS SELECT 1 AS id;
CREATE TABLE shop.filled AS SELECT 1 AS id;
CREATE VIEW shop.orders AS SELECT * FROM shop.filled;
CREATE MATERIALIZED VIEW shop.log AS SELECT * FROM shop.filled;
CREATE INDEX empty ON shop.filled (id);
CREATE TYPE shop.mood AS ENUM ('fine'); CREATE TABLE shop.moods AS SELECT 'fine'::shop.mood AS mood;
CREATE SEQUENCE shop.tickets; CREATE SEQUENCE shop.log_1; CREATE TYPE shop.log_rest AS (x int);
"""


@pytest.mark.parametrize("stage", ["snapshot", "backfill", "schema_sync", "replay", "verify"])
def test_what_is_done_to_the_old_tables_behind_a_cut_over_is_not_followed(
    pg16: Cluster, pg18: Cluster, database: Database, lifecycle: Make, stage: str
) -> None:
    """A task that is cleared then, or was retried until the swap had ended."""
    source, target = database(pg16), database(pg18)
    execute(source, SHOP)
    move = lifecycle(source, target, tables={"include": ["shop.*"]}, capture={"ddl": "queue"})
    move.run_all(until="swap")
    execute(source, "DROP TABLE shop.orders; ALTER TABLE shop.empty ADD COLUMN late int")
    execute(target, "INSERT INTO shop.orders VALUES (1000)")
    for _ in range(2):
        assert move.run(stage).state == "nothing_to_do"
    assert move.journal("SELECT count(*) FROM shop.orders") == [(101,)]
    assert move.journal("SELECT count(*) FROM pg_attribute WHERE attname = 'late'") == [(0,)]
    with pytest.raises(PgddlError, match="run on the source after the cut-over"):
        move.run("cleanup")


def test_a_rewritten_table_is_altered_before_cleanup(source_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, rewrite={"shop.orders": {}}, capture={"ddl": "queue"})
    move.run_all(until="swap")
    execute(source_dsn, "ALTER TABLE shop.orders ADD COLUMN late int")
    for stage in STAGES[: STAGES.index("swap")]:
        assert move.run(stage).state == "nothing_to_do"
    assert move.run("cleanup").state == "done"


def test_whatever_is_in_the_way_keeps_its_rows_where_advice_is_followed(
    pg16: Cluster, pg18: Cluster, database: Database, lifecycle: Make
) -> None:
    source, target = database(pg16), database(pg18)
    execute(source, SHOP)
    execute(target, IN_THE_WAY)
    move = lifecycle(source, target, **TABLES)
    codes = set()
    for _ in range(9):
        errors = [f for f in findings(move) if f["severity"] == "error"]
        codes |= {f["code"] for f in errors}
        if not errors:
            break
        assert "DROP" not in str([f["fix"] for f in errors])
        execute(target, errors[0]["fix"])
    assert codes >= {"existing", "foreign_schema"}
    move.run_all()
    kept = ("not_pgddl.theirs", "before_pgddl.log", "shop.moods", "shop.filled")
    assert [move.journal(f"SELECT count(*) FROM {name}") for name in kept] == [[(1,)]] * 4


def test_what_another_pipeline_has_brought_is_not_put_aside(
    pg16: Cluster, pg18: Cluster, database: Database, lifecycle: Make
) -> None:
    """Of other tables, with objects that both need."""
    source, target = database(pg16), database(pg18)
    execute(source, SHOP)
    first = lifecycle(source, target, tables={"include": ["shop.empty"]}, capture={"ddl": "off"})
    first.run_all(until="backfill")
    second = lifecycle(source, target, tables={"include": ["shop.orders"]}, capture={"ddl": "off"})
    refused = str(second.refused("setup", PreflightRefused))
    assert "another target" in refused
    assert "DROP" not in refused and "SET SCHEMA" not in refused


@pytest.mark.parametrize("alter", [[], ["ALTER COLUMN id TYPE bigint"]], ids=["bloat", "alter"])
def test_a_finished_rewrite_begins_again_only_where_it_is_asked(
    pg18: Cluster, database: Database, lifecycle: Make, alter: list[str]
) -> None:
    dsn = database(pg18)
    execute(dsn, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 100)")
    move = lifecycle(dsn, rewrite={"public.t": {"alter": alter}}, capture={"ddl": "off"})

    def file() -> list[tuple[Any, ...]]:
        return move.on_source("SELECT oid, relfilenode FROM pg_class WHERE oid = 't'::regclass")

    for run in (1, 2):
        before = file()
        assert move.run("setup", again=run > 1).run == run
        assert move.run("setup", again=True).state == "nothing_to_do", "one under way goes on"
        move.run_all(after="setup")
        after = file()
        assert before != after
        all_idle(move)
        assert file() == after
    assert move.refused("swap", UsageError, again=True).what == "swap begins no run"


def test_a_changed_file_of_a_finished_pipeline_is_for_its_next_run(
    pg18: Cluster, database: Database, lifecycle: Make
) -> None:
    dsn = database(pg18)
    execute(dsn, "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    move = lifecycle(dsn, rewrite={"public.t": {}}, capture={"ddl": "off"})
    move.run_all()
    changed = {"rewrite": {"public.u": {}}}
    assert move.run("setup", **changed).state == "nothing_to_do"
    assert move.run("setup", again=True, **changed).tables.keys() == {"public.u"}


@pytest.mark.parametrize("transport", ["off", "queue", "wal"])
def test_a_pipeline_that_follows_submits_replay_only(
    pg16: Cluster, pg18: Cluster, database: Database, lifecycle: Make, transport: str
) -> None:
    source, target = database(pg16), database(pg18)
    execute(source, SHOP)
    move = lifecycle(source, target, **{**TABLES, "capture": {"ddl": transport}})

    def to_submit() -> list[str]:
        found = []
        for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay"):
            if idle(move.job(stage), move.source, move.target) is None:
                found.append(stage)
                assert not move.run(stage).blocked
        return found

    everything = ["setup", "snapshot", "backfill", "schema_sync", "replay"]
    assert to_submit() == everything
    for _ in range(2):
        execute(source, "INSERT INTO shop.orders SELECT max(id) + 1 FROM shop.orders")
        assert to_submit() == ["replay"]
        assert move.on_source("SELECT count(*) FROM shop.orders") == move.journal("SELECT count(*) FROM shop.orders")
    execute(source, "CREATE TABLE shop.more (id int PRIMARY KEY); INSERT INTO shop.more VALUES (1)")
    assert to_submit()[0] == "setup"
    assert move.journal("SELECT count(*) FROM shop.more") == [(1,)]
    assert to_submit() == ["replay"]
    with pytest.raises(PgddlError, match="gone_"):
        idle(move.job("setup"), move.source.replace("dbname=", "dbname=gone_"), move.target)
