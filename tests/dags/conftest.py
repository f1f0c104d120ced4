"""Airflow as a person has it: a home folder, a migrated database, and the `airflow` command."""

from __future__ import annotations

import atexit
import json
import os
import queue
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo import shop
from airflow_provider_pgddl.demo.clusters import Cluster
from tests.conftest import REPOSITORY, drop_database

# Importing Airflow writes a configuration into its home; it must not be the developer's.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="pgddl-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

AIRFLOW = Path(sys.executable).parent / "airflow"
EXAMPLES = REPOSITORY / "dags_examples"
LOCAL_SPARK = json.dumps({"conn_type": "spark", "host": "local[2]"})


def postgres_connection(conninfo: str) -> str:
    """A conninfo as the JSON of an Airflow connection."""
    parts = conninfo_to_dict(conninfo)
    return json.dumps(
        {
            "conn_type": "postgres",
            "host": parts["host"],
            "port": int(parts["port"] or 5432),
            "login": parts["user"],
            "password": parts["password"],
            "schema": parts["dbname"],
        }
    )


def context() -> dict[str, Any]:
    """What a task has of a run, without one."""
    ti = SimpleNamespace(dag_id="d", task_id="gate", run_id=uuid.uuid4().hex, map_index=-1, try_number=1)
    return {"dag": SimpleNamespace(folder="."), "ti": ti}


class Shell:
    """`shell("tasks", "test", "dag", "task")` returns exit code and output; `start` does not wait for the end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def __call__(self, *args: str) -> tuple[int, str]:
        self.start(*args)
        return self.end()

    def start(self, *args: str) -> None:
        assert self._process.stdin is not None
        print(json.dumps(args), file=self._process.stdin, flush=True)

    def end(self) -> tuple[int, str]:
        """Exit code and output of the call that is running."""
        said = self.until("=== airflow ended with ")
        return int(said.rpartition(" ")[2]), said

    def until(self, text: str, seconds: float = 400) -> str:
        """What is said up to and including the line with this text."""
        said, deadline = "", time.monotonic() + seconds
        while text not in said:
            try:
                line = self._lines.get(timeout=deadline - time.monotonic())
            except (queue.Empty, ValueError):
                line = None
            assert line is not None, f"{text!r} was not said:\n{said}"
            said += line
        return said

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)


@dataclass(frozen=True)
class Airflow:
    """`airflow` with its own home; connections come from the environment, as `AIRFLOW_CONN_<ID>`."""

    home: Path

    def __call__(self, *args: str, dags: Path, timeout: float = 900, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(AIRFLOW), *args],
            env=self.environment(dags, **env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )

    def environment(self, dags: Path, **env: str) -> dict[str, str]:
        own = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW_CONN_SPARK_DEFAULT": LOCAL_SPARK,
            "PYTHONPATH": str(REPOSITORY),
            # spark-submit and Python are to be found without an active virtual environment.
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "COLUMNS": "400",
        }
        kept = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
        return kept | own | env

    @contextmanager
    def shell(self, dags: Path, **env: str) -> Iterator[Shell]:
        """One process for many calls."""
        with subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("calls.py"))],
            env=self.environment(dags, **env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield Shell(process)
            finally:
                process.kill()

    def states(self, dag_id: str) -> dict[str, str]:
        """The states of the tasks of the newest run."""
        return dict(self._newest("SELECT task_id, state FROM task_instance", dag_id))

    def tries(self, dag_id: str) -> dict[str, int]:
        """How often each task of the newest run was started."""
        return dict(self._newest("SELECT task_id, try_number FROM task_instance", dag_id))

    def xcoms(self, dag_id: str) -> dict[str, Any]:
        """What the tasks of the newest run returned."""
        rows = self._newest("SELECT task_id, value FROM xcom WHERE key = 'return_value'", dag_id)
        return {task_id: json.loads(value) for task_id, value in rows}

    def links(self, dag_id: str) -> list[str]:
        """To the page of a pipeline, of each task that has begun."""
        with closing(sqlite3.connect(f"file:{self.home / 'airflow.db'}?mode=ro", uri=True, timeout=60)) as database:
            query = "SELECT value FROM xcom WHERE key = '_link_PipelineLink' AND dag_id = ?"
            return [json.loads(value) for (value,) in database.execute(query, [dag_id])]

    def asset_events(self, dag_id: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Asset, task and extra of each event that the DAG's tasks have told of."""
        query = "SELECT a.uri, e.source_task_id, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id"
        with closing(sqlite3.connect(f"file:{self.home / 'airflow.db'}?mode=ro", uri=True, timeout=60)) as database:
            rows = database.execute(f"{query} WHERE e.source_dag_id = ? ORDER BY e.id", [dag_id]).fetchall()
        return [(uri, task, json.loads(extra)) for uri, task, extra in rows]

    def _newest(self, query: str, dag_id: str) -> list[tuple[str, Any]]:
        clause = " AND " if "WHERE" in query else " WHERE "
        newest = "run_id = (SELECT run_id FROM dag_run WHERE dag_id = ? ORDER BY id DESC LIMIT 1)"
        with sqlite3.connect(f"file:{self.home / 'airflow.db'}?mode=ro", uri=True) as database:
            return database.execute(f"{query}{clause}dag_id = ? AND {newest}", [dag_id, dag_id]).fetchall()


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    """A fresh Airflow with a migrated database."""
    made = Airflow(tmp_path_factory.mktemp("airflow"))
    done = made("db", "migrate", dags=EXAMPLES)
    assert done.returncode == 0, done.stdout
    return made


@pytest.fixture
def shop_databases(pg16: Cluster, pg18: Cluster) -> Iterator[tuple[str, str]]:
    """A loaded shop on 16, and an empty database of that name on 18."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    yield shop.load(pg16, name, scale=1), shop.create_database(pg18, name)
    for cluster in (pg16, pg18):
        drop_database(cluster, name)
