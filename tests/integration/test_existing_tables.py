"""`tables.existing: adopt`: tables that the target has already are brought in line, by what differs in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.commands.check import check
from airflow_provider_pgddl.engine.commands.plan import lines, plan
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.failpoints import VARIABLE
from airflow_provider_pgddl.engine.job import file as jobs
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.failpoints import At, once
from tests.integration.adopted import (
    ADOPT,
    EXTRA,
    ROWS,
    SHOP,
    WORK,
    Lifecycles,
    alike,
    blocks_and_rows_read_again,
    equal,
    restore,
)
from tests.integration.lifecycle import PROGRAM, execute, left_behind, wait_until


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_behind_a_restore_only_what_differs_is_read(
    rows: str, pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str, at: At
) -> None:
    """Clients write all the while; and the target has lost and changed some rows."""
    execute(source_dsn, SHOP)
    execute(source_dsn, ROWS)
    restore(pg18, source_dsn, target_dsn)
    execute(source_dsn, WORK.format("before", 1))
    execute(target_dsn, "SET session_replication_role = replica; DELETE FROM shop.customer WHERE id BETWEEN 7 AND 9;"
                        "UPDATE shop.purchase SET note = 'changed here' WHERE id = 41;")  # fmt: skip
    # A row whose key has changed while nothing was captured is two: one that is missing, and one of the target alone.
    tables = {**ADOPT["tables"], "keep_extra": False}
    move = lifecycle(source_dsn, target_dsn, **{**ADOPT, "tables": tables}, capture={"rows": rows})
    move.run_all(until="snapshot")
    execute(source_dsn, WORK.format("captured", 2))
    with at("adopt.before_compared_commit", once(lambda: execute(source_dsn, WORK.format("late", 3)))):
        move.run_all(after="snapshot", until="schema_sync")
    assert 0 < move.results["schema_sync"].figures["differed"] < 12_000
    execute(source_dsn, WORK.format("replayed", 4))
    move.run("replay")
    chunks, read = blocks_and_rows_read_again(move)
    assert chunks == 0 and 0 < read < 20_000  # of 97,000
    move.run_all(after="replay", until="swap")
    alike(move)
    move.run("cleanup")
    assert left_behind(target_dsn) == ["schema pgddl"]


def test_an_empty_table_is_filled_and_what_meets_another_row_waits(
    pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str, at: At
) -> None:
    """Rows move to later blocks, names change places; and somebody writes to the target."""
    execute(source_dsn, SHOP)
    execute(source_dsn, ROWS)
    restore(pg18, source_dsn, target_dsn, "--schema-only")
    one = {**ADOPT["backfill"], "workers": 1}
    move = lifecycle(source_dsn, target_dsn, **{**ADOPT, "backfill": one})
    execute(source_dsn, "CREATE TABLE shop.late (id int PRIMARY KEY)")
    planned = plan(load_pipeline(move.content), source_dsn, target_dsn)
    told = "\n".join(lines(planned))
    assert "shop.customer: the target's own table is taken as it is" in told
    assert "shop.purchase: if the target's has rows, both are read" in told and "tables.keep_extra" in told
    assert [s["statement"].split("(")[0].strip() for s in planned["stages"]["snapshot"]["statements"]
            if s["statement"].startswith("CREATE")] == ['CREATE TABLE shop.late']  # fmt: skip
    assert left_behind(target_dsn) == []
    move.run_all(until="snapshot")
    lost = list[int]()

    def meet(n: int) -> None:
        if n == 3:
            execute(
                source_dsn,
                """UPDATE shop.customer SET name = 'away' WHERE id = 1;
                   UPDATE shop.customer SET name = 'name 1' WHERE id = 2;
                   UPDATE shop.customer SET name = 'name 2' WHERE id = 1;
                   UPDATE shop.customer SET mood = 'sad' WHERE id < 50;
                   UPDATE shop.purchase SET note = 'moved' WHERE id < 2000;
                   DELETE FROM shop.part WHERE id < 10;""",
            )
            execute(target_dsn, "INSERT INTO shop.customer OVERRIDING SYSTEM VALUE VALUES (-1, 'name 29999', 'ok')")
        # What blocks have brought is the source's, which loses it again.
        if not lost and move.journal("SELECT EXISTS (SELECT FROM shop.purchase)") == [(True,)]:
            lost.append(n)
            execute(
                source_dsn,
                "TRUNCATE shop.purchase; INSERT INTO shop.purchase (customer, total) VALUES (1, 1), (3, 3)",
            )

    with at("backfill.before_chunk", meet):
        move.run_all(after="snapshot", until="backfill")
    assert lost and move.journal("SELECT count(*) > 3 FROM pgddl.chunks") == [(True,)]
    move.run("schema_sync")
    result = move.run("replay")
    assert [blocked["table"] for blocked in result.blocked] == ["shop.customer"]
    assert "key (29999)" in result.blocked[0]["reason"]
    execute(target_dsn, "UPDATE shop.customer SET name = 'somebody' WHERE id = -1")
    assert not move.run("replay").blocked
    assert "shop.customer: 1 rows differ" in str(move.refused("verify"))
    execute(target_dsn, "DELETE FROM shop.customer WHERE id = -1")
    move.run_all(after="replay", until="swap")
    alike(move)


def test_a_lost_journal_costs_a_comparison_and_a_reset_no_row(
    pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    execute(source_dsn, SHOP)
    execute(source_dsn, ROWS)
    first = lifecycle(source_dsn, target_dsn, **{**ADOPT, "tables": {"include": ["shop.*"]}})
    first.run_all(until="replay")
    execute(target_dsn, "DROP SCHEMA pgddl CASCADE")
    execute(source_dsn, WORK.format("lost", 1))

    tables = {**ADOPT["tables"], "keep_extra": False}
    move = lifecycle(source_dsn, target_dsn, **{**ADOPT, "tables": tables})
    move.content["pipeline"] = first.name
    move.run_all(until="schema_sync")
    # The source remembers windows that no journal knows of, and whatever the comparison has found: verify is to say so.
    assert "acknowledged window" in move.run("replay").blocked[0]["reason"]
    chunks, read = blocks_and_rows_read_again(move)
    assert chunks == 0 and 0 < read < 12_000
    equal(move)
    move.run("verify")
    dropped = reset(load_pipeline(move.content), source_dsn, target_dsn, ["shop.purchase"])["dropped"]
    assert [line for line in dropped if line.startswith("what followed shop.purchase: it stays")]
    equal(move)
    execute(source_dsn, WORK.format("reset", 2))
    move.run_all(until="replay")
    equal(move)
    reset(load_pipeline(move.content), source_dsn, target_dsn)
    assert left_behind(source_dsn) == left_behind(target_dsn) == []
    equal(move)
    move.run_all(until="swap")  # with the foreign keys and triggers that the lost run had still to bring
    alike(move)


@contextmanager
def subscribed(source_dsn: str, target_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Native logical replication has brought the rows, and goes on in the block; a session of the target."""
    with psycopg.connect(source_dsn, autocommit=True) as source, psycopg.connect(target_dsn, autocommit=True) as target:
        source.execute("CREATE PUBLICATION away FOR TABLES IN SCHEMA shop")
        create = sql.SQL("CREATE SUBSCRIPTION here CONNECTION {} PUBLICATION away")
        target.execute(create.format(sql.Literal(source_dsn)))
        try:
            not_yet = "SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r'"
            wait_until(lambda: target.execute(not_yet).fetchone() is None, seconds=120)
            yield target
        finally:
            target.execute("DROP SUBSCRIPTION here")
            source.execute("DROP PUBLICATION away")


def test_behind_native_replication_nothing_is_read(
    pg16: Cluster, pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    execute(source_dsn, SHOP)
    execute(source_dsn, ROWS)
    restore(pg18, source_dsn, target_dsn, "--schema-only")
    move = lifecycle(source_dsn, target_dsn, **ADOPT)
    with subscribed(source_dsn, target_dsn):
        found = check(load_pipeline(move.content), source_dsn, target_dsn)["findings"]
        assert {f["table"] for f in found if f["code"] == "subscription"} >= {"shop.customer", "shop.purchase"}
    results = move.run_all(until="replay")
    assert results["schema_sync"].figures["differed"] == 0
    assert blocks_and_rows_read_again(move) == (0, 0)
    move.run_all(after="replay", until="swap")
    alike(move)


def test_what_cannot_be_adopted_is_refused_with_the_sql(
    pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    execute(source_dsn, SHOP)
    execute(source_dsn, "CREATE TABLE shop.other (id int PRIMARY KEY, v text, n int)")
    execute(source_dsn, "CREATE TABLE shop.key (id int PRIMARY KEY, v text)")
    execute(
        target_dsn, "CREATE SCHEMA shop; CREATE TABLE shop.other (id int PRIMARY KEY, v text);"
                        "CREATE TABLE shop.key (id int, v text PRIMARY KEY); CREATE VIEW shop.part AS SELECT 1"
    )  # fmt: skip
    move = lifecycle(source_dsn, target_dsn, **ADOPT)
    refused = str(move.refused("setup", PreflightRefused))
    assert "shop.other" in refused and "ADD COLUMN" in refused
    assert "shop.key" in refused and "it is a view on the target" in refused
    assert left_behind(target_dsn) == []


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_kills_at_every_border(
    rows: str, pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str, tmp_path: Path
) -> None:
    execute(source_dsn, SHOP)
    execute(source_dsn, ROWS)
    restore(pg18, source_dsn, target_dsn)
    execute(target_dsn, EXTRA)
    execute(source_dsn, "UPDATE shop.customer SET mood = 'sad' WHERE id % 1000 = 3")
    keep, undecided = {**ADOPT["tables"], "keep_extra": True}, ADOPT["tables"]
    move = lifecycle(source_dsn, target_dsn, **{**ADOPT, "tables": keep}, capture={"rows": rows})
    move.run("setup")
    borders = {"snapshot": [("adopt.before_noted_commit", keep)], "backfill": [], "schema_sync": [
        ("adopt.before_extra_commit", keep), ("verify.before_mend_commit", keep),
        ("adopt.before_undecided_commit", undecided), ("adopt.before_compared_commit", keep)]}  # fmt: skip
    for number, (stage, names) in enumerate(borders.items()):
        for name, tables in names:
            move.content["tables"] = tables
            jobs.write(move.job(stage), tmp_path / f"{name}.json")
            env = {**os.environ, VARIABLE: f"'{tmp_path}' {name}=kill"}
            command = [sys.executable, "-c", PROGRAM, str(tmp_path / f"{name}.json")]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
            assert (tmp_path / name).exists() and done.returncode < 0, f"{name}: {done.stdout}{done.stderr}"
            execute(source_dsn, WORK.format(name, 10 + number))
            if tables is undecided:  # what was to stay is no longer known as that, and none of it has gone
                refused = str(move.refused(stage, PreflightRefused))
                assert "shop.customer: 1,500 rows" in refused and "shop.part: 3 rows" in refused
                assert move.journal("SELECT count(*) FROM pgddl.tables WHERE plan ->> 'extra' <> ''") == [(0,)]
        move.run(stage)
    move.run_all(after="schema_sync", until="swap")
    extra = {("shop", "customer"): "id > 1000000", ("shop", "part"): "v = 'here'"}
    for (schema, name), condition in extra.items():
        assert move.journal(f"SELECT count(*) FROM {schema}.{name} WHERE {condition}")[0][0] in (1500, 3)
        execute(target_dsn, f"DELETE FROM {schema}.{name} WHERE {condition}")
    alike(move, ahead=True)


def test_ddl_only_brings_a_column_to_a_subscriber(
    pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    """Rows do not wait for it: the apply worker stops at the first that has it, and goes on once it is there."""
    execute(source_dsn, SHOP)
    execute(source_dsn, ROWS)
    restore(pg18, source_dsn, target_dsn, "--schema-only")
    alone = {"tables": ADOPT["tables"], "capture": {"ddl": "queue"}, "ddl": {"ddl_only": True}}
    move = lifecycle(source_dsn, target_dsn, **alone)
    with subscribed(source_dsn, target_dsn) as target:
        move.run_all(until="snapshot")
        assert move.results["snapshot"].figures["applied"] == 0
        execute(
            source_dsn,
            "ALTER TABLE shop.customer ADD COLUMN city text; UPDATE shop.customer SET city = 'x' WHERE id < 9",
        )
        stopped = "SELECT 1 FROM pg_stat_subscription_stats WHERE apply_error_count > 0"
        wait_until(lambda: target.execute(stopped).fetchone(), seconds=60)
        execute(source_dsn, "INSERT INTO shop.customer (name, city) VALUES ('behind', 'y')")
        move.run("replay")
        there = "SELECT 1 FROM shop.customer WHERE city = 'y'"
        wait_until(lambda: target.execute(there).fetchone(), seconds=120)
        equal(move)
