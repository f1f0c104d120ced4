"""The example DAGs on a busy shop, through Airflow and real spark-submit: moved from 16 to 18, then rewritten there."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo import compare, shop
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.writers import Writers, broken_invariants
from tests.conftest import drop_database
from tests.dags.conftest import EXAMPLES, Airflow, postgres_connection

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(480)]

LIFECYCLE = ["setup", "snapshot", "backfill", "schema_sync", "replay", "gate", "catch_up", "verify", "swap", "cleanup"]


@dataclass
class Move:
    """What happened to the shop: what Airflow said, and what its writers noticed."""

    said: str
    states: dict[str, str]
    xcoms: dict[str, Any]
    writers: Writers
    differences: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def shop_databases(pg16: Cluster, pg18: Cluster) -> Iterator[tuple[str, str]]:
    """A loaded shop on 16, and an empty database of that name on 18."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    yield shop.load(pg16, name, scale=1), shop.create_database(pg18, name)
    for cluster in (pg16, pg18):
        drop_database(cluster, name)


@pytest.fixture(scope="module")
def connections(shop_databases: tuple[str, str]) -> dict[str, str]:
    source, target = map(postgres_connection, shop_databases)
    return {"AIRFLOW_CONN_SHOP_PG16": source, "AIRFLOW_CONN_SHOP_PG18": target}


@pytest.fixture(scope="module")
def migrated(airflow: Airflow, shop_databases: tuple[str, str], connections: dict[str, str]) -> Move:
    """The shop after `migrate_shop`; its writers never stopped, and go on against 18 after the cut-over."""
    found: list[str] = []

    def compare_at_cut_over() -> None:
        found.extend(map(str, compare.differences(*shop_databases)))
        found.extend(map(str, compare.compare_sequences(*shop_databases, ahead=True)))

    with Writers(shop_databases, pipeline="migrate_shop", on_cut_over=compare_at_cut_over, rate=60) as writers:
        done = airflow("dags", "test", "migrate_shop", dags=EXAMPLES, **connections)
        if done.returncode == 0:
            assert writers.accepted.wait(30), "no writer went on against the target"
    return Move(done.stdout, airflow.states("migrate_shop"), airflow.xcoms("migrate_shop"), writers, found)


@pytest.fixture(scope="module")
def rewritten(airflow: Airflow, migrated: Move, shop_databases: tuple[str, str], connections: dict[str, str]) -> Move:
    """The shop after `rewrite_orders` on 18."""
    with Writers(shop_databases[1:], rate=60) as writers:
        done = airflow("dags", "test", "rewrite_orders", dags=EXAMPLES, **connections)
    return Move(done.stdout, airflow.states("rewrite_orders"), airflow.xcoms("rewrite_orders"), writers)


def test_every_task_of_the_migration_succeeds(migrated: Move) -> None:
    assert migrated.states == {f"migrate.{name}": "success" for name in LIFECYCLE}, migrated.said


def test_nothing_is_lost_in_the_migration(migrated: Move, shop_databases: tuple[str, str]) -> None:
    assert migrated.writers.cut_over
    assert migrated.differences == []
    assert migrated.writers.notes.failures == []
    with psycopg.connect(shop_databases[1]) as target:
        assert migrated.writers.ledger.check(target) == []
    assert broken_invariants(shop_databases[1]) == []


def test_the_results_are_small_and_complete(migrated: Move) -> None:
    assert migrated.xcoms.keys() == {f"migrate.{name}" for name in LIFECYCLE if name != "gate"}
    for task, result in migrated.xcoms.items():
        assert result["pipeline"] == "migrate_shop", task
        assert result["run"] == 1, task
        assert result["blocked"] == [], task
        assert len(json.dumps(result)) < 4096, task
    assert migrated.xcoms["migrate.backfill"]["state"] == "done"
    assert migrated.xcoms["migrate.backfill"]["tables"] > 5


def test_no_secret_is_printed(migrated: Move, shop_databases: tuple[str, str]) -> None:
    for conninfo in shop_databases:
        password = str(psycopg.conninfo.conninfo_to_dict(conninfo)["password"])
        assert password not in migrated.said


def test_the_key_of_orders_is_rewritten_in_place(rewritten: Move, shop_databases: tuple[str, str]) -> None:
    assert rewritten.states == {f"rewrite.{name}": "success" for name in LIFECYCLE}, rewritten.said
    with psycopg.connect(shop_databases[1]) as target:
        query = (
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'shop.orders'::regclass AND attname = 'id'"
        )
        assert target.execute(query).fetchone() == ("bigint",)
        assert rewritten.writers.ledger.check(target) == []
    assert rewritten.writers.notes.failures == []
    assert broken_invariants(shop_databases[1]) == []


# Each stage alone


@pytest.fixture
def ledger_table(source_dsn: str) -> str:
    """A small table to rewrite in place."""
    with psycopg.connect(source_dsn, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA shop")
        conn.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, note text NOT NULL)")
        conn.execute("INSERT INTO shop.orders SELECT g, 'order ' || g FROM generate_series(1, 1000) g")
    return source_dsn


def test_each_stage_runs_alone_and_a_second_time_has_nothing_to_do(airflow: Airflow, ledger_table: str) -> None:
    stages = [name for name in LIFECYCLE if name not in ("gate", "catch_up")]
    calls = [["tasks", "test", "rewrite_orders", f"rewrite.{stage}"] for stage in stages for _ in range(2)]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("calls.py"))],
        env=airflow.environment(EXAMPLES, AIRFLOW_CONN_SHOP_PG18=postgres_connection(ledger_table)),
        input="\n".join(map(json.dumps, calls)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    ran = [line.strip() for line in done.stdout.splitlines() if "pgddl: " in line and " of rewrite_orders: " in line]
    assert len(ran) == 2 * len(stages), done.stdout
    for stage, first, second in zip(stages, ran[::2], ran[1::2], strict=True):
        assert f"pgddl: {stage} of rewrite_orders: done" in first, done.stdout
        assert f"pgddl: {stage} of rewrite_orders: nothing to do" in second, done.stdout
