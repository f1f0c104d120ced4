"""DDL and a swap that a person leaves waiting, rejects, and approves, under a real scheduler; a DAG that waits for the
swap starts then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.commands import ddl, schema
from airflow_provider_pgddl.operators.approval import PgddlDdlApproval
from tests.conftest import Database
from tests.dags.conftest import Airflow, postgres_connection
from tests.dags.scheduled import CONSUMER, standalone
from tests.integration.lifecycle import Lifecycle, execute

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

DAG = """
import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, DeadlineAlert, DeadlineReference, SyncCallback
from airflow_provider_pgddl.notifications import PgddlNotifier
from airflow_provider_pgddl.task_groups import lifecycle

PIPELINE = {"pipeline": "rewrite", "source": {"conn_id": "shop"}, "ddl": {"approval": "required"},
            "rewrite": {"public.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}}}

def note(context):
    with Path(os.environ["PGDDL_TEST_NOTES"]).open("a") as notes:
        print(context["pgddl"]["subject"], file=notes)

def late(context):
    PgddlNotifier(to=note, events=["lag"], lag_limit=0, pipeline=PIPELINE)(context)

limit = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(seconds=1), SyncCallback(late))
with DAG("rewrite", schedule=None, max_active_runs=1, deadline=limit):
    lifecycle(group_id="l", pipeline=PIPELINE,
              approve_swap={"subject": "Swap orders?"}, approve_ddl=True, gate={"mode": "poke", "poke_interval": 1})
"""

ASKING = ("awaiting_input", "deferred")  # the latter by 3.2

WATCHER = """
from airflow.sdk import DAG
from airflow_provider_pgddl.assets import ddl_waits
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("watcher", schedule=[ddl_waits({"pipeline": "rewrite", "source": {"conn_id": "shop"},
                                         "rewrite": {"public.orders": {}}}, poke_interval=1)]):
    EmptyOperator(task_id="wake")
"""


def is_done(dsn: str, stage: str) -> bool:
    with psycopg.connect(dsn) as conn:
        if conn.execute("SELECT to_regclass('pgddl.stage_runs')").fetchone() == (None,):
            return False
        query = "SELECT count(*) FROM pgddl.stage_runs WHERE stage = %s AND finished_at IS NOT NULL"
        return conn.execute(query, [stage]).fetchone() != (0,)


def test_ddl_and_a_swap_wait_for_a_person(
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
        dsn, pipeline="rewrite", rewrite={"public.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}},
        ddl={"approval": "required"},
    )  # fmt: skip  # whose journal is looked at
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "rewrite.py").write_text(DAG)
    to = conninfo_to_dict(dsn)
    asset = f"postgres://{to['host']}:{to['port']}/{to['dbname']}/public/orders"
    (dags / "consumer.py").write_text(CONSUMER.format(asset=asset))
    (dags / "watcher.py").write_text(WATCHER)
    (tmp_path / "passwords.json").write_text('{"ann": "anns password"}')
    env = {
        "AIRFLOW_CONN_SHOP": postgres_connection(dsn),
        "PGDDL_TEST_NOTES": str(tmp_path / "notes"),
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

        def answered(run: int, task: str, choice: str) -> dict[str, Any]:
            """What the person was shown who answers like this."""
            where = f"dagRuns/run_{run}/taskInstances/l.{task}/-1"
            scheduled.wait_for(lambda: api("GET", where).json()["state"] in ASKING)
            # An answer that comes before the scheduler has heard that the task's first process ended fails the task.
            key = f"TaskInstanceKey(dag_id='rewrite', task_id='l.{task}', run_id='run_{run}'"
            ended = f"Received executor event with state success for task instance {key}"
            scheduled.wait_for(lambda: ended in scheduled.said())
            asked: dict[str, Any] = api("GET", f"{where}/hitlDetails").json()
            api("PATCH", f"{where}/hitlDetails", chosen_options=[choice])
            return asked

        def decided(run: int, choice: str) -> tuple[str, dict[str, str]]:
            """A run whose swap is decided like this: what the person was shown, and the states of its tasks."""
            assert scheduled.states_of("consumer") == []
            asked = answered(run, "approve", choice)
            assert asked["subject"] == "Swap orders?"
            scheduled.wait_for(lambda: api("GET", f"dagRuns/run_{run}").json()["state"] in ("success", "failed"))
            tasks = api("GET", f"dagRuns/run_{run}/taskInstances").json()["task_instances"]
            return asked["body"], {task["task_id"].removeprefix("l."): task["state"] for task in tasks}

        def events() -> list[Any]:
            return shop.journal(
                "SELECT status, notes::text FROM pgddl.ddl_events WHERE captured_id IS NOT NULL ORDER BY id"
            )

        scheduled.wait_for(scheduled.answers)
        login = {"username": "ann", "password": "anns password"}
        token = httpx.post(f"{scheduled.base}/auth/token", json=login).json()["access_token"]
        scheduled.wait_for(lambda: all(map(scheduled.knows, ("rewrite", "consumer", "watcher"))))

        # DDL that comes while the first run is under way is left waiting, and approved in the shell.
        api("POST", "dagRuns", dag_run_id="run_1", logical_date=None)
        scheduled.wait_for(lambda: is_done(dsn, "snapshot"))
        execute(dsn, "ALTER TABLE orders ADD COLUMN note text")
        asked = answered(1, "approve_ddl", "Leave waiting")
        assert "ADD COLUMN note text" in asked["body"] and "ALTER TABLE" in asked["body"], asked
        scheduled.wait_for(lambda: "left waiting by ann" in str(events()))
        scheduled.wait_for(lambda: api("GET", "dagRuns/run_1/taskInstances/l.gate/-1").json()["state"] == "running")
        scheduled.wait_for(lambda: scheduled.states_of("watcher") == ["success"])
        ddl.approve(shop.job("replay").pipeline, dsn, [], "bob")

        body, states = decided(1, "Reject")
        for words in ("Swap of pipeline **rewrite**, run 1", "| public.orders | 70 | 0 | 0 |", "Last verification: 20"):
            assert words in body, body
        assert "would have waited for" in body
        assert (states["rehearse"], states["approve"]) == ("success", "success")
        assert (states["swap"], states["cleanup"]) == ("skipped", "skipped")
        assert shop.journal("SELECT cut_over_at FROM pgddl.pipelines") == [(None,)]
        assert [(status, "approved by bob" in notes) for status, notes in events()] == [("applied", True)]

        # What came before the second is approved there, and the swap with it.
        execute(dsn, "INSERT INTO orders VALUES (71, 71)")
        execute(dsn, "ALTER TABLE orders ADD COLUMN gift boolean")
        api("POST", "dagRuns", dag_run_id="run_2", logical_date=None)
        asked = answered(2, "approve_ddl", "Approve")
        assert "gift" in asked["body"] and "note" not in asked["body"], asked
        body, states = decided(2, "Approve")
        assert [(status, "approved by ann" in notes) for status, notes in events()][1:] == [("applied", True)]
        assert "| public.orders | 7" in body, body
        assert set(states.values()) == {"success"}, states
        scheduled.wait_for(lambda: scheduled.states_of("consumer") == ["success"])
        assert "0 s is the limit" in (tmp_path / "notes").read_text(), (
            "the second run's deadline passed before its swap"
        )
    types = "SELECT format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname = 'id'"
    assert shop.journal(types) == [("bigint",)]
    assert shop.journal("SELECT count(*) FROM orders") == [(71,)]
    ((_, task, extra),) = Airflow(tmp_path).asset_events("rewrite")
    assert (task, extra["pipeline"]) == ("l.swap", "rewrite")


def test_an_answer_is_about_what_was_shown_and_still_waits(
    pg16: Cluster,
    pg18: Cluster,
    database: Database,
    lifecycle: Callable[..., Lifecycle],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of DDL, and of what auto_migrate would do; each answer is recorded with the name."""
    source, target = database(pg16), database(pg18)
    execute(source, "CREATE TABLE orders (id int PRIMARY KEY)")
    execute(source, "INSERT INTO orders SELECT n FROM generate_series(1, 7) n")
    asked = {"types": ["add_column"], "approval": "required"}
    move = lifecycle(
        source, target, tables={"include": ["public.*"]}, ddl={"approval": "required"}, schema={"auto_migrate": asked}
    )
    move.run_all(until="replay")
    execute(source, "ALTER TABLE orders ADD COLUMN a int DEFAULT 1")
    execute(source, "ALTER TABLE orders ADD COLUMN b int")
    execute(source, "UPDATE orders SET b = id")
    assert move.run("replay").blocked
    pipeline = move.job("replay").pipeline
    first, second = ddl.awaiting(pipeline, target)
    assert [c["name"] for c in first["changes"][0]["columns_added"]] == ["a"]
    task = PgddlDdlApproval(task_id="ask", pipeline=move.content)

    def answer(choice: str, shown: list[int], changes: dict[str, list[str]] | None = None) -> None:
        """As Airflow goes on with the task once Ann has answered."""
        told = {"events": shown, "changes": changes or {}}
        ti = SimpleNamespace(xcom_pull=lambda **_: told, map_index=-1)
        event = {
            "chosen_options": [choice], "params_input": {}, "responded_at": datetime.now(UTC),
            "responded_by_user": {"id": "1", "name": "Ann"},
        }  # fmt: skip
        task.execute_complete({"ti": ti, "dag": SimpleNamespace(folder="/")}, event)

    def events() -> list[tuple[str, str, str | None]]:
        return move.journal(
            "SELECT status, notes::text, note FROM pgddl.ddl_events WHERE captured_id IS NOT NULL ORDER BY id"
        )

    both = [first["id"], second["id"]]
    answer("Leave waiting", both)
    assert [(status, "left waiting by Ann" in notes) for status, notes, _ in events()] == [
        ("awaiting_approval", True)
    ] * 2
    answer("Approve", [first["id"]])
    assert [status for status, _, _ in events()] == ["pending", "awaiting_approval"]
    assert "approved by Ann" in events()[0][1]
    # Decided by somebody else between the look at what waits and the decision: the answer is about the rest.
    look, seen = ddl.awaiting, iter([[first, second]])
    with monkeypatch.context() as patch:
        patch.setattr(ddl, "awaiting", lambda *ends: next(seen, None) or look(*ends))
        answer("Skip", both)
    assert [(status, note) for status, _, note in events()] == [
        ("pending", None),
        ("skipped", "rejected in Airflow (Ann)"),
    ]

    assert move.run("replay").blocked, "the copy lacks b"
    (plan,) = schema.plan_migrations(pipeline, source, target)
    assert plan.table == "public.orders" and "ADD COLUMN b" in plan.statements[0]
    answer("Approve", [], {"public.orders": [f"{plan.statements[0]} NOT NULL"]})
    assert schema.plan_migrations(pipeline, source, target), "it is not what would be done"
    answer("Approve", [], {"public.orders": plan.statements})
    assert schema.plan_migrations(pipeline, source, target) == []
    recorded = "SELECT who, action, about, note FROM pgddl.actions"
    assert move.journal(recorded) == [("Ann", "approve", "public.orders", "; ".join(plan.statements))]
    assert not move.run("replay").blocked
    assert move.journal("SELECT sum(a), sum(b) FROM orders") == [(7, 28)]
