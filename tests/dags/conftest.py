"""Airflow as a person has it: a home folder, a migrated database, and the `airflow` command."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.conftest import REPOSITORY

# Importing Airflow writes a configuration into its home; it must not be the developer's.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="pgddl-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

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


@dataclass(frozen=True)
class Airflow:
    """`airflow` with its own home; connections come from the environment, as `AIRFLOW_CONN_<ID>`."""

    home: Path

    def __call__(self, *args: str, dags: Path, timeout: float = 280, **env: str) -> subprocess.CompletedProcess[str]:
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
