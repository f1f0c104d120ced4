"""The stages of an example DAG one by one, on a busy shop, by `airflow tasks test` and real spark-submit."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgddl.demo import shop
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.writers import Writers, broken_invariants
from tests.conftest import drop_database
from tests.dags.conftest import EXAMPLES, Airflow, Shell, postgres_connection

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]


@pytest.fixture
def target(pg18: Cluster) -> Iterator[str]:
    """A loaded shop."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    yield shop.load(pg18, name, scale=1)
    drop_database(pg18, name)


@dataclass
class Alone:
    """Stages of `rewrite_orders` one by one, by `airflow tasks test`."""

    shell: Shell

    def run(self, stage: str, task: str = "rewrite_orders rewrite.{}") -> str:
        """`done` or `nothing to do`."""
        code, said = self.shell("tasks", "test", *task.format(stage).split(), "2026-01-01")
        ended = re.search(rf"pgddl: {stage} of rewrite_orders: ([a-z ]+) \(", said)
        assert code == 0, said
        assert "state=success" in said or "new_state=success" in said, said
        assert ended, said
        return ended[1]


@pytest.fixture
def alone(airflow: Airflow, target: str, tmp_path: Path) -> Iterator[Alone]:
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    shutil.copy(Path(__file__).parent / "folder" / "gate.py", tmp_path)
    with airflow.shell(tmp_path, AIRFLOW_CONN_SHOP_PG18=postgres_connection(target)) as shell:
        yield Alone(shell)


def test_each_stage_runs_alone_and_a_second_time_has_nothing_to_do(alone: Alone, airflow: Airflow, target: str) -> None:
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
        assert [alone.run("swap"), alone.run("swap")] == done
        assert [alone.run("revert", task="gate {}") for _ in range(2)] == done
        assert [alone.run(stage) for stage in ("replay", "verify", "swap")] == ["done"] * 3
        assert [alone.run("cleanup"), alone.run("cleanup")] == done
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
