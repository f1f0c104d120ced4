"""The example DAGs on a busy shop, through Airflow and real spark-submit: moved from 16 to 18, then rewritten there."""

from __future__ import annotations

import json
import re
import shutil
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
from tests.dags.conftest import EXAMPLES, Airflow, Shell, postgres_connection

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

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


def test_the_swap_is_an_event_of_each_table(migrated: Move, airflow: Airflow, shop_databases: tuple[str, str]) -> None:
    to = psycopg.conninfo.conninfo_to_dict(shop_databases[1])
    events = airflow.asset_events("migrate_shop")
    assert {uri for uri, _, _ in events} >= {
        f"postgres://{to['host']}:{to['port']}/{to['dbname']}/shop/{table}" for table in ("orders", "customers")
    }
    assert {task for _, task, _ in events} == {"migrate.swap"}
    known = {"pipeline": "migrate_shop", "run": 1, "stage": "swap"}
    assert all({**extra, **known} == extra and extra.keys() - known <= {"state", "rows"} for _, _, extra in events)
    rows = {uri.rpartition("/")[2]: extra.get("rows") for uri, _, extra in events}
    assert min(rows["orders"], rows["customers"]) > 100, rows
    assert len(events) == migrated.xcoms["migrate.swap"]["tables"]


def test_no_secret_is_printed(migrated: Move, shop_databases: tuple[str, str]) -> None:
    for conninfo in shop_databases:
        password = str(psycopg.conninfo.conninfo_to_dict(conninfo)["password"])
        assert password not in migrated.said


# Each stage alone, on 18, while the writers go on


@dataclass
class Alone:
    """Stages of `rewrite_orders` one by one, by `airflow tasks test`."""

    shell: Shell

    def run(self, stage: str) -> str:
        """`done` or `nothing to do`."""
        code, said = self.shell("tasks", "test", "rewrite_orders", f"rewrite.{stage}", "2026-01-01")
        ended = re.search(rf"pgddl: {stage} of rewrite_orders: ([a-z ]+) \(", said)
        assert code == 0, said
        assert "state=success" in said or "new_state=success" in said, said
        assert ended, said
        return ended[1]


@pytest.fixture(scope="module")
def alone(airflow: Airflow, migrated: Move, connections: dict[str, str], tmp_path_factory: Any) -> Iterator[Alone]:
    assert migrated.writers.cut_over, migrated.said
    dags = tmp_path_factory.mktemp("dags")
    shutil.copytree(EXAMPLES, dags, dirs_exist_ok=True)
    shutil.copy(Path(__file__).parent / "folder" / "gate.py", dags)
    with airflow.shell(dags, **connections) as shell:
        yield Alone(shell)


def test_each_stage_runs_alone_and_a_second_time_has_nothing_to_do(
    alone: Alone, airflow: Airflow, shop_databases: tuple[str, str]
) -> None:
    target = shop_databases[1]
    done = ["done", "nothing to do"]
    with Writers([target], rate=60) as writers:
        for stage in ("setup", "snapshot", "backfill", "schema_sync"):
            assert [alone.run(stage), alone.run(stage)] == done, stage
        the_gate_is_closed_by_a_mismatch(alone.shell, airflow, target)
        with writers.quiet():  # an order that has one more column for a while would not be as it was written
            ddl_leaves_the_gate_open(alone, target)
        assert alone.run("replay") == "done"
        with writers.quiet():
            alone.run("replay")
            assert alone.run("replay") == "nothing to do"
            assert [alone.run("verify"), alone.run("verify")] == done
        for stage in ("swap", "cleanup"):
            assert [alone.run(stage), alone.run(stage)] == done, stage
    assert writers.notes.failures == []
    with psycopg.connect(target) as conn:
        query = (
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'shop.orders'::regclass AND attname = 'id'"
        )
        assert conn.execute(query).fetchone() == ("bigint",)
        assert writers.ledger.check(conn) == []
    assert broken_invariants(target) == []


COPY = "ALTER TABLE pgddl_copy_shop.orders"
STATUS = "SELECT DISTINCT status FROM pgddl.schema_status WHERE pipeline = 'rewrite_orders'"


def the_gate_is_closed_by_a_mismatch(shell: Shell, airflow: Airflow, dsn: str) -> None:
    """It opens again by itself once the mismatch is gone."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"{COPY} RENAME COLUMN placed_at TO gone".encode())
        shell.start("tasks", "test", "gate", "gate")
        said = shell.until("new column 'placed_at'")
        (link,) = airflow.links("gate")
        assert link.endswith("/pgddl/gate/rewrite_orders"), "it is there while the task runs"
        assert "closed: shop.orders" in said
        assert conn.execute(STATUS).fetchall() == [("mismatch",)]
        conn.execute(f"{COPY} RENAME COLUMN gone TO placed_at".encode())
        code, said = shell.end()
        assert code == 0
        assert "shop.orders: no mismatch any more" in said
        assert "state=success" in said
        assert conn.execute(STATUS).fetchall() == [("compatible",)]


def ddl_leaves_the_gate_open(alone: Alone, dsn: str) -> None:
    """What is captured is applied by the next replay."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("ALTER TABLE shop.orders ADD COLUMN gift boolean")
        code, said = alone.shell("tasks", "test", "gate", "gate")
        assert code == 0, said
        assert alone.run("replay") == "done"
        assert conn.execute("SELECT count(gift) FROM pgddl_copy_shop.orders").fetchone() == (0,)
        assert ("mismatch",) not in conn.execute(STATUS).fetchall()
        conn.execute("ALTER TABLE shop.orders DROP COLUMN gift")
