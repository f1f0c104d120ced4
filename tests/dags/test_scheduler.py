"""What people and machines do to tasks of a pipeline, under one real scheduler: kill, mark, clear, trigger twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.conftest import Database
from tests.dags.conftest import Airflow, postgres_connection
from tests.dags.scheduled import standalone
from tests.integration.lifecycle import execute, wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

DAG = """
from datetime import timedelta
from airflow.sdk import DAG
from airflow_provider_pgddl.task_groups import lifecycle

with DAG("rewrite", schedule=None, max_active_runs=2, default_args={"retry_delay": timedelta(seconds=1)}):
    lifecycle(group_id="l", gate={"mode": "reschedule", "poke_interval": 1},
              pipeline={"pipeline": "rewrite", "source": {"conn_id": "shop"},
                        "rewrite": {"public.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}}})
"""
ORDERS = """
CREATE TABLE orders (id int PRIMARY KEY, total int);
INSERT INTO orders SELECT n, n FROM generate_series(1, 5000) n;
"""
SESSIONS = """
SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgddl:rewrite:%' AND datname = current_database()
"""
TYPE = "SELECT format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname = 'id'"
PROCESSES = ("spark-submit", "SparkSubmit", "spark_jobs", "pyspark")


def family(home: Path) -> Iterator[psutil.Process]:
    """Each JVM, driver and worker of this Airflow's tasks that lives."""
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("AIRFLOW_HOME") == str(home)
            if (
                mine
                and process.status() != psutil.STATUS_ZOMBIE
                and any(word in " ".join(process.cmdline()) for word in PROCESSES)
            ):
                yield process
        except psutil.Error:
            continue


def test_a_pipeline_outlives_what_is_done_to_its_tasks(
    airflow: Airflow, pg18: Cluster, database: Database, tmp_path: Path
) -> None:
    dsn = database(pg18)
    execute(dsn, ORDERS)
    dags, marks = tmp_path / "dags", tmp_path / "marks"
    dags.mkdir()
    marks.mkdir()
    (dags / "rewrite.py").write_text(DAG)
    (tmp_path / "passwords.json").write_text('{"ann": "anns password"}')
    held = ("backfill.before_chunk_commit", "replay.before_lock")
    env = {
        "AIRFLOW_CONN_SHOP": postgres_connection(dsn),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:user",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(tmp_path / "passwords.json"),
        "PGDDL_FAILPOINTS": " ".join([str(marks), *(f"{name}=wait" for name in held)]),
    }
    with standalone(airflow, tmp_path, dags, **env) as scheduled:

        def api(method: str, path: str, **content: Any) -> Any:
            answer = httpx.request(
                method, f"{scheduled.base}/api/v2/dags/rewrite/{path}", json=content or None,
                headers={"Authorization": f"Bearer {token}"}, timeout=60,
            )  # fmt: skip
            assert answer.is_success, answer.text
            return answer.json()

        def task(name: str, run: int = 1) -> dict[str, Any]:
            return dict(api("GET", f"dagRuns/run_{run}/taskInstances/l.{name}"))

        def state(run: int = 1) -> str:
            return str(api("GET", f"dagRuns/run_{run}")["state"])

        def clear(**which: Any) -> None:
            api("POST", "clearTaskInstances", dry_run=False, dag_run_id="run_1", reset_dag_runs=True, **which)

        scheduled.wait_for(scheduled.answers)
        login = {"username": "ann", "password": "anns password"}
        token = httpx.post(f"{scheduled.base}/auth/token", json=login, timeout=60).json()["access_token"]
        scheduled.wait_for(lambda: scheduled.knows("rewrite"))
        api("POST", "dagRuns", dag_run_id="run_1", logical_date=None)

        # The task's process is killed in the middle of a chunk; what it had started ends by itself.
        scheduled.wait_for((marks / held[0]).exists)
        before = list(family(tmp_path))
        submit = next(p for p in before if p.parent() not in before)
        parent = submit.parent()
        assert parent is not None
        parent.send_signal(signal.SIGKILL)
        psutil.wait_procs(before, timeout=120)
        assert not [p for p in before if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

        # A person marks as failed what runs: nothing of it is left, its lock included.
        scheduled.wait_for((marks / held[1]).exists)
        assert task("backfill")["try_number"] == 2 and task("backfill")["state"] == "success"
        tasks = api("GET", "dagRuns/run_1/taskInstances")["task_instances"]
        (running,) = (one["task_id"] for one in tasks if one["state"] == "running")
        api("PATCH", f"dagRuns/run_1/taskInstances/{running}", new_state="failed")
        wait_until(lambda: not list(family(tmp_path)), seconds=120, every=0.5)
        with psycopg.connect(dsn, autocommit=True) as conn:
            wait_until(lambda: conn.execute(SESSIONS.encode()).fetchone() == (0,), seconds=60)
        scheduled.wait_for(lambda: state() == "failed")

        # Cleared as failed, the run goes on to its end; cleared as done, a task has nothing to do.
        clear(only_failed=True, task_ids=[running], include_downstream=True)
        scheduled.wait_for(lambda: state() == "success")
        clear(only_failed=False, task_ids=["l.verify"])
        scheduled.wait_for(lambda: task("verify")["try_number"] > 1 and state() == "success")

        # Twice at once.
        for run in (2, 3):
            api("POST", "dagRuns", dag_run_id=f"run_{run}", logical_date=None)
        scheduled.wait_for(lambda: {state(2), state(3)} == {"success"})
    with psycopg.connect(dsn) as conn:
        assert conn.execute(TYPE.encode()).fetchone() == ("bigint",)
        assert conn.execute(b"SELECT count(*), sum(total) FROM orders").fetchone() == (5000, 5000 * 5001 // 2)
