"""DAGs under a real scheduler: Airflow whole, over a database of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.dags.conftest import AIRFLOW, EXAMPLES, Airflow

CONSUMER = """
from airflow.sdk import DAG, Asset
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("consumer", schedule=[Asset("{asset}")]):
    EmptyOperator(task_id="consume")
"""


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
