"""The example DAG that follows, under a real scheduler: one run after the other, each bringing the shop up to date."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo import compare, shop
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.writers import Writers, broken_invariants
from tests.conftest import drop_database
from tests.dags.conftest import AIRFLOW, EXAMPLES, Airflow, postgres_connection

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

FOLLOW = ["setup", "snapshot", "backfill", "schema_sync", "replay", "gate"]
NEW = """
CREATE TABLE shop.vouchers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, code text UNIQUE);
INSERT INTO shop.vouchers (code) SELECT 'voucher ' || n FROM generate_series(1, 300) n;
"""
CONSUMER = """
from airflow.sdk import DAG, Asset
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("consumer", schedule=[Asset("{asset}")]):
    EmptyOperator(task_id="consume")
"""


@pytest.fixture
def shop_databases(pg16: Cluster, pg18: Cluster) -> Iterator[tuple[str, str]]:
    """A loaded shop on 16, and an empty database of that name on 18."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    yield shop.load(pg16, name, scale=1), shop.create_database(pg18, name)
    for cluster in (pg16, pg18):
        drop_database(cluster, name)


class Scheduled:
    """`airflow standalone`: scheduler, DAG processor, triggerer and API server, over a database of their own."""

    def __init__(self, home: Path, process: subprocess.Popen[bytes], log: Path, base: str) -> None:
        self._home, self._process, self._log, self.base = home, process, log, base

    def answers(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.base}/api/v2/version", timeout=60).is_success
        return False

    def knows(self, dag_id: str) -> bool:
        """Whether the DAG has been parsed."""
        return bool(self._rows(f"SELECT 1 FROM serialized_dag WHERE dag_id = '{dag_id}'"))

    def runs(self, dag: str = "follow_shop") -> list[tuple[str, str, dict[str, str]]]:
        """Of each run of a DAG its logical date, state, and the states of its tasks."""
        runs = self._rows(f"SELECT run_id, logical_date, state FROM dag_run WHERE dag_id = '{dag}' ORDER BY id")
        tasks = self._rows(f"SELECT run_id, task_id, state FROM task_instance WHERE dag_id = '{dag}'")
        return [(date, state, {t: s for run, t, s in tasks if run == run_id}) for run_id, date, state in runs]

    def wait_for(self, true: Callable[[], object], seconds: float = 420) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            alive = self._process.poll() is None
            said = self._log.read_text()
            stuck = "run already exists" in said  # two runs of one logical date: no third will come
            assert alive and not stuck and time.monotonic() < deadline, f"{self.runs()}\n{said[-4000:]}"
            time.sleep(0.25)

    def said(self) -> str:
        """By the scheduler, the API server and all else."""
        return self._log.read_text()

    def submitted(self) -> list[int]:
        """How many applications each run of the DAG has submitted to Spark, by the logs of its tasks."""
        runs = self._rows("SELECT run_id FROM dag_run WHERE dag_id = 'follow_shop' ORDER BY id")
        folder = self._home / "logs" / "dag_id=follow_shop"
        logs = [(folder / f"run_id={run_id}").rglob("*.log") for (run_id,) in runs]
        return [sum(log.read_text().count("Spark-Submit cmd") for log in of_run) for of_run in logs]

    def states_of(self, dag_id: str) -> list[str]:
        return [state for (state,) in self._rows(f"SELECT state FROM dag_run WHERE dag_id = '{dag_id}'")]

    def done(self) -> int:
        return sum(state == "success" for _, state, _ in self.runs())

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(f"file:{self._home / 'airflow.db'}?mode=ro", uri=True)) as database:
            with contextlib.suppress(sqlite3.OperationalError):  # it is being written to
                return database.execute(query).fetchall()
        return []


def only(home: Path, *names: str) -> Path:
    """A folder of these example DAGs with their pipeline files: whatever has a schedule would run beside them."""
    folder = home / "dags"
    folder.mkdir()
    for path in EXAMPLES.iterdir():
        if path.stem in names:
            shutil.copy(path, folder)
    return folder


@contextmanager
def standalone(airflow: Airflow, home: Path, dags: Path, **env: str) -> Iterator[Scheduled]:
    shutil.copy(airflow.home / "airflow.db", home / "airflow.db")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "PATH": f"{AIRFLOW.parent}:/usr/local/bin:/usr/bin:/bin",  # it looks for itself there
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": "0",
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": "0",
    }
    log = home / "standalone.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(AIRFLOW), "standalone"],
            env=Airflow(home).environment(dags, **(settings | env)),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield Scheduled(home, process, log, f"http://127.0.0.1:{port}")
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)


def test_each_run_brings_the_shop_up_to_date(airflow: Airflow, shop_databases: tuple[str, str], tmp_path: Path) -> None:
    source, target = shop_databases
    connections = {
        "AIRFLOW_CONN_SHOP_PG16": postgres_connection(source),
        "AIRFLOW_CONN_SHOP_PG18": postgres_connection(target),
    }
    to = conninfo_to_dict(target)
    dags = only(tmp_path, "follow_shop")
    asset = f"postgres://{to['host']}:{to['port']}/{to['dbname']}/shop/vouchers"
    (dags / "consumer.py").write_text(CONSUMER.format(asset=asset))
    with standalone(airflow, tmp_path, dags, **connections) as scheduled:
        with Writers([source], rate=30) as writers:
            scheduled.wait_for(lambda: scheduled.done() >= 1)
            with psycopg.connect(source) as conn:
                conn.execute(NEW)
            scheduled.wait_for(lambda: scheduled.done() >= 2)
        assert writers.notes.failures == []
        # One that has begun by now may have passed its replay's last window; the next one sees all.
        begun = len(scheduled.runs())
        scheduled.wait_for(lambda: scheduled.done() > max(begun, 2))
        # By then the new table is known; whoever begins now has nothing to do but to replay.
        known, told = len(scheduled.runs()), len(Airflow(tmp_path).asset_events("follow_shop"))
        scheduled.wait_for(lambda: scheduled.done() > known)
        runs, submitted = scheduled.runs(), scheduled.submitted()
        scheduled.wait_for(lambda: "success" in scheduled.states_of("consumer"))
    events = Airflow(tmp_path).asset_events("follow_shop")
    assert len(events) == told, "of runs that change nothing nobody hears"
    by = {(extra["pipeline"], extra["stage"]) for uri, _, extra in events if uri == asset}
    assert by == {("follow_shop", "replay")}
    assert submitted[0] >= 5 and submitted[known] == 1, submitted
    finished = [run for run in runs if run[1] == "success"]
    assert len(finished) >= 3
    assert len({date for date, _, _ in runs}) == len(runs), "each run has a logical date of its own"
    for _, _, tasks in finished:
        assert tasks == {f"follow.{name}": "success" for name in FOLLOW}
    assert compare.differences(source, target) == []
    assert compare.compare_sequences(source, target, ahead=True) == []
    assert broken_invariants(target) == []
