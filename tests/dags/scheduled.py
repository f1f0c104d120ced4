"""DAGs under a real scheduler: Airflow whole, over a database of its own."""

from __future__ import annotations

import contextlib
import json
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
import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.dags.conftest import AIRFLOW, EXAMPLES, Airflow

CONSUMER = """
from airflow.sdk import DAG, Asset
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("consumer", schedule=[Asset("{asset}")]):
    EmptyOperator(task_id="consume")
"""


class Scheduled:
    """`airflow standalone`: scheduler, DAG processor, triggerer and API server, over a database of their own: SQLite's
    in `home`, or the Postgres of `metadata`."""

    def __init__(
        self,
        home: Path,
        process: subprocess.Popen[bytes],
        log: Path,
        base: str,
        env: dict[str, str],
        metadata: str | None,
    ) -> None:
        self.home, self._process, self._log, self.base = home, process, log, base
        self._env, self._metadata = env, metadata
        self._other: subprocess.Popen[bytes] | None = None

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

    def wait_for(self, true: Callable[[], object], seconds: float = 840) -> None:
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
        folder = self.home / "logs" / "dag_id=follow_shop"
        logs = [(folder / f"run_id={run_id}").rglob("*.log") for (run_id,) in runs]
        return [sum(log.read_text().count("Spark-Submit cmd") for log in of_run) for of_run in logs]

    def states_of(self, dag_id: str) -> list[str]:
        return [state for (state,) in self._rows(f"SELECT state FROM dag_run WHERE dag_id = '{dag_id}'")]

    def done(self) -> int:
        return sum(state == "success" for _, state, _ in self.runs())

    def xcoms(self, dag_id: str) -> dict[str, Any]:
        """What the tasks of a DAG have returned."""
        rows = self._rows(f"SELECT task_id, value FROM xcom WHERE key = 'return_value' AND dag_id = '{dag_id}'")
        return {task_id: _read(value) for task_id, value in rows}

    def asset_events(self, dag_id: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Asset, task and extra of each event that the DAG's tasks have told of."""
        query = "SELECT a.uri, e.source_task_id, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id"
        rows = self._rows(f"{query} WHERE e.source_dag_id = '{dag_id}' ORDER BY e.id")
        return [(uri, task, _read(extra)) for uri, task, extra in rows]

    def logs(self, dag_id: str) -> str:
        """Of all tasks of a DAG."""
        return "".join(log.read_text() for log in (self.home / "logs" / f"dag_id={dag_id}").rglob("*.log"))

    def kill_scheduler(self) -> None:
        """As if its machine had gone, with Postgres metadata; what it had started goes on. Another one begins once
        nobody has heard of it for an hour, which is so at once here."""
        assert self._metadata is not None
        (scheduler,) = (
            one for one in psutil.Process(self._process.pid).children() if one.cmdline()[-1] == "scheduler"
        )  # fmt: skip
        scheduler.suspend()  # it opens no other
        ports = [one.laddr.port for one in scheduler.net_connections("tcp")]
        scheduler.kill()
        self.wait_for(lambda: not lives(scheduler))
        with psycopg.connect(self._metadata) as metadata:
            # What it had forked holds its sockets open, and with them its transaction's locks.
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_port = ANY(%s)"
            metadata.execute(end + " AND datname = current_database()", [ports])
            metadata.execute(
                "UPDATE job SET latest_heartbeat = latest_heartbeat - interval '1 hour'"
                " WHERE job_type = 'SchedulerJob' AND state = 'running'"
            )
        with self._log.open("ab") as out:
            self._other = subprocess.Popen(
                [str(AIRFLOW), "scheduler"], env=self._env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def end(self) -> None:
        for process in filter(None, (self._other, self._process)):
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        if self._metadata is not None:
            with psycopg.connect(self._metadata) as metadata:
                return metadata.execute(query.encode()).fetchall()
        with contextlib.closing(sqlite3.connect(f"file:{self.home / 'airflow.db'}?mode=ro", uri=True)) as database:
            with contextlib.suppress(sqlite3.OperationalError):  # it is being written to
                return database.execute(query).fetchall()
        return []


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def only(home: Path, *names: str) -> Path:
    """A folder of these example DAGs with their pipeline files: whatever has a schedule would run beside them."""
    folder = home / "dags"
    folder.mkdir()
    for path in EXAMPLES.iterdir():
        if path.stem in names:
            shutil.copy(path, folder)
    return folder


@contextmanager
def standalone(
    airflow: Airflow, home: Path, dags: Path, *, metadata: str | None = None, **env: str
) -> Iterator[Scheduled]:
    """Over a database that has been migrated; or over the Postgres of `metadata`, which is empty."""
    if metadata is None:
        shutil.copy(airflow.home / "airflow.db", home / "airflow.db")
    else:
        parts = conninfo_to_dict(metadata)
        at = "postgresql+psycopg2://{user}:{password}@{host}:{port}/{dbname}".format(**parts)
        env = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": at, **env}
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
        # No file changes: to read each one again, every half a minute, costs as much as all that is looked at here.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": "0",
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": "0",
    }
    around = Airflow(home).environment(dags, **(settings | env))
    log = home / "standalone.log"
    with log.open("ab") as out:  # another scheduler writes to it, too
        process = subprocess.Popen(
            [str(AIRFLOW), "standalone"], env=around, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        scheduled = Scheduled(home, process, log, f"http://127.0.0.1:{port}", around, metadata)
        try:
            yield scheduled
        finally:
            scheduled.end()


def _read(value: Any) -> Any:
    """JSON, which SQLite gives as text."""
    return json.loads(value) if isinstance(value, str) else value
