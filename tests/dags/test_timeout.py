"""Airflow ends a task that takes too long: JVM, driver, workers, and what the server does for them."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.dags.conftest import Airflow, postgres_connection

pytestmark = pytest.mark.airflow


def test_a_timeout_ends_every_process_of_the_run(airflow: Airflow, source_dsn: str) -> None:
    folder = Path(__file__).parent / "folder"
    done = airflow("dags", "test", "slow", dags=folder, AIRFLOW_CONN_SHOP=postgres_connection(source_dsn))
    assert done.returncode == 1, done.stdout
    assert "AirflowTaskTimeout" in done.stdout
    assert "at work" in done.stdout, "the timeout came before the application was at work"
    assert airflow.states("slow") == {"backfill": "failed"}
    assert not [p for p in psutil.process_iter(["cmdline", "environ"]) if _is_of_the_run(p, airflow)]
    deadline = time.monotonic() + 10
    with psycopg.connect(source_dsn, autocommit=True) as server:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgddl-test:%'"
        while server.execute(query).fetchone() != (0,):
            assert time.monotonic() < deadline, "the server works on for nobody"
            time.sleep(0.1)


def _is_of_the_run(process: psutil.Process, airflow: Airflow) -> bool:
    """Another test may run the same application meanwhile, elsewhere than in this Airflow."""
    command, environment = process.info["cmdline"] or [], process.info["environ"] or {}
    in_it = environment.get("AIRFLOW_HOME") == str(airflow.home)
    return in_it and any("sleeping_backfill.py" in part for part in command)
