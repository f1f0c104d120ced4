"""A swap that a person rejects, then approves, under a real scheduler; a DAG that waits for it starts then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.conftest import Database
from tests.dags.conftest import Airflow, postgres_connection
from tests.dags.test_follow import CONSUMER, standalone
from tests.integration.lifecycle import Lifecycle, execute

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

DAG = """
from airflow.sdk import DAG
from airflow_provider_pgddl.task_groups import lifecycle

with DAG("rewrite", schedule=None, max_active_runs=1):
    lifecycle(group_id="l", pipeline={"pipeline": "rewrite", "source": {"conn_id": "shop"},
                                      "rewrite": {"public.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}}},
              approve_swap={"subject": "Swap orders?"}, gate={"mode": "poke"})
"""


def test_a_swap_waits_for_a_person(
    airflow: Airflow,
    pg18: Cluster,
    database: Database,
    lifecycle: Callable[..., Lifecycle],
    tmp_path: Path,
) -> None:
    dsn = database(pg18)
    execute(dsn, "CREATE TABLE orders (id int PRIMARY KEY, total int)")
    execute(dsn, "INSERT INTO orders SELECT n, n FROM generate_series(1, 70) n")
    shop = lifecycle(
        dsn, pipeline="rewrite", rewrite={"public.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}}
    )  # whose journal is looked at
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "rewrite.py").write_text(DAG)
    to = conninfo_to_dict(dsn)
    asset = f"postgres://{to['host']}:{to['port']}/{to['dbname']}/public/orders"
    (dags / "consumer.py").write_text(CONSUMER.format(asset=asset))
    (tmp_path / "passwords.json").write_text('{"ann": "anns password"}')
    env = {
        "AIRFLOW_CONN_SHOP": postgres_connection(dsn),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:user",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(tmp_path / "passwords.json"),
    }
    with standalone(airflow, tmp_path, dags, **env) as scheduled:

        def api(method: str, path: str, **content: object) -> httpx.Response:
            answer = httpx.request(
                method, f"{scheduled.base}/api/v2/dags/rewrite/{path}", json=content or None,
                headers={"Authorization": f"Bearer {token}"}, timeout=60,
            )  # fmt: skip
            assert answer.is_success, answer.text
            return answer

        def decided(run: int, choice: str) -> tuple[str, dict[str, str]]:
            """A run whose swap is decided like this: what the person was shown, and the states of its tasks."""
            api("POST", "dagRuns", dag_run_id=f"run_{run}", logical_date=None)
            where = f"dagRuns/run_{run}/taskInstances/l.approve/-1"
            scheduled.wait_for(lambda: api("GET", where).json()["state"] == "awaiting_input")
            # An answer that comes before the scheduler has heard that the task's first process ended fails the task.
            task = f"TaskInstanceKey(dag_id='rewrite', task_id='l.approve', run_id='run_{run}'"
            ended = f"Received executor event with state success for task instance {task}"
            scheduled.wait_for(lambda: ended in scheduled.said())
            asked = api("GET", f"{where}/hitlDetails").json()
            assert asked["subject"] == "Swap orders?"
            assert scheduled.states_of("consumer") == []
            api("PATCH", f"{where}/hitlDetails", chosen_options=[choice])
            scheduled.wait_for(lambda: api("GET", f"dagRuns/run_{run}").json()["state"] in ("success", "failed"))
            tasks = api("GET", f"dagRuns/run_{run}/taskInstances").json()["task_instances"]
            return asked["body"], {task["task_id"].removeprefix("l."): task["state"] for task in tasks}

        scheduled.wait_for(scheduled.answers)
        login = {"username": "ann", "password": "anns password"}
        token = httpx.post(f"{scheduled.base}/auth/token", json=login).json()["access_token"]
        scheduled.wait_for(lambda: scheduled.knows("rewrite") and scheduled.knows("consumer"))

        body, states = decided(1, "Reject")
        for words in ("Swap of pipeline **rewrite**, run 1", "| public.orders | 70 | 0 | 0 |", "Last verification: 20"):
            assert words in body, body
        assert "would have waited for" in body
        assert (states["rehearse"], states["approve"]) == ("success", "success")
        assert (states["swap"], states["cleanup"]) == ("skipped", "skipped")
        assert shop.journal("SELECT cut_over_at FROM pgddl.pipelines") == [(None,)]
        execute(dsn, "INSERT INTO orders VALUES (71, 71)")

        body, states = decided(2, "Approve")
        assert "| public.orders | 7" in body, body
        assert set(states.values()) == {"success"}, states
        scheduled.wait_for(lambda: scheduled.states_of("consumer") == ["success"])
    types = "SELECT format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname = 'id'"
    assert shop.journal(types) == [("bigint",)]
    assert shop.journal("SELECT count(*) FROM orders") == [(71,)]
    ((_, task, extra),) = Airflow(tmp_path).asset_events("rewrite")
    assert (task, extra["pipeline"]) == ("l.swap", "rewrite")
