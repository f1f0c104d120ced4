"""What people and machines do to tasks of a pipeline, under one real scheduler with its metadata in Postgres: kill,
mark, clear, trigger twice, end the scheduler; each way in which the gate waits; an example DAG on a busy shop."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo import compare, shop
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.writers import Writers, broken_invariants
from tests.conftest import drop_database
from tests.dags.conftest import Airflow, postgres_connection
from tests.dags.scheduled import Scheduled, lives, only, standalone
from tests.integration.lifecycle import Lifecycle, execute, wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

DAGS = """
import json
import os
from datetime import timedelta
from airflow.sdk import DAG
from airflow_provider_pgddl.operators.stages import PgddlReplayOperator
from airflow_provider_pgddl.sensors.schema import PgddlSchemaSensor
from airflow_provider_pgddl.task_groups import lifecycle

with DAG("rewrite", schedule=None, max_active_runs=2, default_args={"retry_delay": timedelta(seconds=1)}):
    lifecycle(group_id="l", gate={"mode": "reschedule", "poke_interval": 1},
              pipeline={"pipeline": "rewrite", "source": {"conn_id": "shop"},
                        "rewrite": {"public.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}}})

STAYS = json.loads(os.environ["PGDDL_TEST_STAYS"])
with DAG("stay", schedule=None, max_active_runs=2):
    PgddlReplayOperator(task_id="replay", pipeline=STAYS, on_blocked="go_on", retries=1000,
                        retry_delay=timedelta(seconds=3), max_retry_delay=timedelta(seconds=3))
with DAG("gates", schedule=None, default_args={"retries": 100, "retry_delay": timedelta(seconds=1)}):
    PgddlSchemaSensor(task_id="reschedule", pipeline=STAYS, mode="reschedule", poke_interval=2)
    PgddlSchemaSensor(task_id="deferrable", pipeline=STAYS, deferrable=True, poke_interval=1)
"""
ORDERS = """
CREATE TABLE orders (id int PRIMARY KEY, total int);
INSERT INTO orders SELECT n, n FROM generate_series(1, 5000) n;
"""
SESSIONS = """
SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgddl:rewrite:%' AND datname = current_database()
"""
TYPE = "SELECT format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname = 'id'"
STAYS = """
CREATE TABLE users (id int PRIMARY KEY, name text);
CREATE TABLE orders (id int PRIMARY KEY);
INSERT INTO users SELECT n, 'user ' || n FROM generate_series(1, 100) n;
"""
HELD = ("backfill.before_chunk_commit", "replay.before_lock")
LIFECYCLE = ["setup", "snapshot", "backfill", "schema_sync", "replay", "gate", "catch_up", "verify", "swap", "cleanup"]
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


@dataclass
class World:
    """Airflow, and the databases that its connections lead to."""

    scheduled: Scheduled
    token: str
    rewritten: str
    stays: Lifecycle
    shop: tuple[str, str]
    marks: Path

    def api(self, method: str, path: str, **content: Any) -> Any:
        """What is below `dags/`."""
        answer = httpx.request(
            method, f"{self.scheduled.base}/api/v2/dags/{path}", json=content or None,
            headers={"Authorization": f"Bearer {self.token}"}, timeout=60,
        )  # fmt: skip
        assert answer.is_success, answer.text
        return answer.json()

    def trigger(self, dag_id: str, run: int = 1) -> None:
        self.scheduled.wait_for(lambda: self.scheduled.knows(dag_id))
        self.api("POST", f"{dag_id}/dagRuns", dag_run_id=f"run_{run}", logical_date=None)

    def state(self, dag_id: str, run: int = 1) -> str:
        return str(self.api("GET", f"{dag_id}/dagRuns/run_{run}")["state"])

    def task(self, dag_id: str, name: str, run: int = 1) -> dict[str, Any]:
        return dict(self.api("GET", f"{dag_id}/dagRuns/run_{run}/taskInstances/{name}"))

    def clear(self, dag_id: str, **which: Any) -> None:
        known = {"dry_run": False, "dag_run_id": "run_1", "reset_dag_runs": True}
        self.api("POST", f"{dag_id}/clearTaskInstances", **known, **which)

    def family(self) -> list[psutil.Process]:
        return list(family(self.scheduled.home))


@pytest.fixture(scope="module")
def world(airflow: Airflow, pg16: Cluster, pg18: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home, unique = tmp_path_factory.mktemp("scheduler"), uuid.uuid4().hex[:8]
    name = f"shop_{unique}"
    shops = shop.load(pg16, name, scale=1), shop.create_database(pg18, name)
    others = {what: f"{what}_{unique}" for what in ("metadata", "rewritten", "stays")}
    made = [(pg18, each) for each in others.values()] + [(pg16, others["stays"])]
    for cluster, each in made:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {each}".encode())
    patch = pytest.MonkeyPatch()
    move = Lifecycle(
        patch, pg16.conninfo(others["stays"]), pg18.conninfo(others["stays"]), pipeline="stays",
        tables={"include": ["public.*"]}, capture={"ddl": "off"}, replay={"run_for": "1h"},
    )  # fmt: skip
    dags, marks = only(home, "migrate_shop", "rewrite_orders"), home / "marks"
    (dags / "others.py").write_text(DAGS)
    marks.mkdir()
    for each in HELD:  # nothing is held but in the test that takes these away
        (marks / each).touch()
    (home / "passwords.json").write_text('{"ann": "anns password"}')
    ends = {"SHOP": pg18.conninfo(others["rewritten"]), "SHOP_PG16": shops[0], "SHOP_PG18": shops[1]}
    env = {
        **{f"AIRFLOW_CONN_{each}": postgres_connection(dsn) for each, dsn in ends.items()},
        "AIRFLOW__CORE__PARALLELISM": "3",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:user",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "PGDDL_TEST_STAYS": json.dumps(move.content),
        "PGDDL_FAILPOINTS": " ".join([str(marks), *(f"{each}=wait" for each in HELD)]),
    }
    with standalone(airflow, home, dags, metadata=pg18.conninfo(others["metadata"]), **env) as scheduled:
        scheduled.wait_for(scheduled.answers)
        login = {"username": "ann", "password": "anns password"}
        token = httpx.post(f"{scheduled.base}/auth/token", json=login, timeout=60).json()["access_token"]
        yield World(scheduled, token, ends["SHOP"], move, shops, marks)
    patch.undo()
    for cluster, each in (*made, (pg16, name), (pg18, name)):
        drop_database(cluster, each)


def test_a_pipeline_outlives_what_is_done_to_its_tasks(world: World) -> None:
    dsn, scheduled, marks = world.rewritten, world.scheduled, world.marks
    execute(dsn, ORDERS)
    for each in HELD:
        (marks / each).unlink()
    world.trigger("rewrite")

    # The task's process is killed in the middle of a chunk; what it had started ends by itself.
    scheduled.wait_for((marks / HELD[0]).exists)
    before = world.family()
    submit = next(p for p in before if p.parent() not in before)
    parent = submit.parent()
    assert parent is not None
    parent.send_signal(signal.SIGKILL)
    psutil.wait_procs(before, timeout=120)
    assert not any(map(lives, before))

    # A person marks as failed what runs: nothing of it is left, its lock included.
    scheduled.wait_for((marks / HELD[1]).exists)
    backfill = world.task("rewrite", "l.backfill")
    assert backfill["try_number"] == 2 and backfill["state"] == "success"
    tasks = world.api("GET", "rewrite/dagRuns/run_1/taskInstances")["task_instances"]
    (running,) = (one["task_id"] for one in tasks if one["state"] == "running")
    world.api("PATCH", f"rewrite/dagRuns/run_1/taskInstances/{running}", new_state="failed")
    wait_until(lambda: not world.family(), seconds=400, every=0.5)
    with psycopg.connect(dsn, autocommit=True) as conn:
        wait_until(lambda: conn.execute(SESSIONS.encode()).fetchone() == (0,), seconds=240)
    scheduled.wait_for(lambda: world.state("rewrite") == "failed")

    # Cleared as failed, the run goes on to its end; cleared as done, a task has nothing to do.
    world.clear("rewrite", only_failed=True, task_ids=[running], include_downstream=True)
    scheduled.wait_for(lambda: world.state("rewrite") == "success")
    world.clear("rewrite", only_failed=False, task_ids=["l.verify"])
    verified = "rewrite", "l.verify"
    scheduled.wait_for(lambda: world.task(*verified)["try_number"] > 1 and world.state("rewrite") == "success")

    # Twice at once.
    for run in (2, 3):
        world.trigger("rewrite", run)
    scheduled.wait_for(lambda: {world.state("rewrite", 2), world.state("rewrite", 3)} == {"success"})
    with psycopg.connect(dsn) as conn:
        assert conn.execute(TYPE.encode()).fetchone() == ("bigint",)
        assert conn.execute(b"SELECT count(*), sum(total) FROM orders").fetchone() == (5000, 5000 * 5001 // 2)


def test_a_replay_that_stays_and_gates_that_wait_outlive_their_scheduler(world: World) -> None:
    scheduled, move = world.scheduled, world.stays
    source, target = move.source, move.target
    execute(source, STAYS)
    move.run_all(until="schema_sync")
    brought = 0

    def brings() -> None:
        """Somebody's row comes to the target."""
        nonlocal brought
        brought += 1
        execute(source, f"INSERT INTO orders VALUES ({brought})")
        seen = f"SELECT count(*) FROM orders WHERE id = {brought}"
        scheduled.wait_for(lambda: move.journal(seen) == [(1,)])

    # Each gate waits in its own way, and the replay goes on without the table.
    execute(source, "ALTER TABLE users ADD COLUMN phone text")
    world.trigger("gates")
    world.trigger("stay")
    scheduled.wait_for(lambda: world.task("gates", "deferrable")["state"] == "deferred")
    scheduled.wait_for(lambda: world.task("gates", "reschedule")["state"] == "up_for_reschedule")
    brings()
    brings()
    assert world.state("stay") == "running"

    # Cleared while it runs: what it had started is gone, and it goes on.
    before = world.family()
    assert before
    world.clear("stay", only_failed=False, task_ids=["replay"])
    scheduled.wait_for(lambda: not any(map(lives, before)))
    scheduled.wait_for(lambda: world.task("stay", "replay")["try_number"] > 1)
    brings()

    # Triggered again meanwhile, the other waits for its turn.
    world.trigger("stay", 2)
    scheduled.wait_for(lambda: world.task("stay", "replay", 2)["state"] == "up_for_retry")
    brings()
    assert "another run of pipeline" in scheduled.logs("stay"), scheduled.logs("stay")[-3000:]

    # The scheduler is killed, and another one begins.
    before = world.family()
    scheduled.kill_scheduler()
    brings()
    scheduled.wait_for(lambda: not any(map(lives, before)))
    brings()

    # Marked as failed, both runs end, with all that they had started.
    for run in (1, 2):
        world.api("PATCH", f"stay/dagRuns/run_{run}", state="failed")
    scheduled.wait_for(lambda: not world.family())
    assert compare.differences(source, target, [("public", "orders")]) == []

    # Mended, the gates open, in whichever process they are looked at by now.
    execute(target, "ALTER TABLE users ADD COLUMN phone text")
    scheduled.wait_for(lambda: world.state("gates") == "success")


def test_an_example_dag_moves_a_busy_shop(world: World) -> None:
    """Its writers never stop, and go on against 18 after the cut-over."""
    scheduled, (source, target) = world.scheduled, world.shop
    found: list[str] = []

    def compare_at_cut_over() -> None:
        found.extend(map(str, compare.differences(source, target)))
        found.extend(map(str, compare.compare_sequences(source, target, ahead=True)))

    with Writers(world.shop, pipeline="migrate_shop", on_cut_over=compare_at_cut_over, rate=60) as writers:
        world.trigger("migrate_shop")
        scheduled.wait_for(lambda: world.state("migrate_shop") in ("success", "failed"))
        ((_, state, states),) = scheduled.runs("migrate_shop")
        said = scheduled.logs("migrate_shop")
        assert state == "success", said[-6000:]
        assert writers.accepted.wait(30), "no writer went on against the target"
    assert states == {f"migrate.{name}": "success" for name in LIFECYCLE}
    assert writers.cut_over and found == []
    assert writers.notes.failures == []
    with psycopg.connect(target) as conn:
        assert writers.ledger.check(conn) == []
    assert broken_invariants(target) == []
    for conninfo in world.shop:
        password = str(conninfo_to_dict(conninfo)["password"])
        assert password not in said and password not in scheduled.said()

    told = scheduled.xcoms("migrate_shop")
    assert told.keys() == {f"migrate.{name}" for name in LIFECYCLE if name != "gate"}
    for task, result in told.items():
        assert (result["pipeline"], result["run"], result["blocked"]) == ("migrate_shop", 1, []), task
        assert len(json.dumps(result)) < 4096, task
    assert told["migrate.backfill"]["state"] == "done"
    assert told["migrate.backfill"]["tables"] > 5

    # The swap is an event of each table.
    to, events = conninfo_to_dict(target), scheduled.asset_events("migrate_shop")
    assert {uri for uri, _, _ in events} >= {
        f"postgres://{to['host']}:{to['port']}/{to['dbname']}/shop/{table}" for table in ("orders", "customers")
    }
    assert {task for _, task, _ in events} == {"migrate.swap"}
    known = {"pipeline": "migrate_shop", "run": 1, "stage": "swap"}
    assert all({**extra, **known} == extra and extra.keys() - known <= {"state", "rows"} for _, _, extra in events)
    rows = {uri.rpartition("/")[2]: extra.get("rows") for uri, _, extra in events}
    assert min(rows["orders"], rows["customers"]) > 100, rows
    assert len(events) == told["migrate.swap"]["tables"]


def test_another_rewrites_a_table_there(world: World) -> None:
    """Where the first has brought the shop to, and its applications write."""
    scheduled, target = world.scheduled, world.shop[1]
    with Writers([target], rate=60) as writers:
        world.trigger("rewrite_orders")
        scheduled.wait_for(lambda: world.state("rewrite_orders") in ("success", "failed"))
        ((_, state, states),) = scheduled.runs("rewrite_orders")
        assert state == "success", scheduled.logs("rewrite_orders")[-6000:]
    assert states == {f"rewrite.{name}": "success" for name in LIFECYCLE}
    assert writers.notes.failures == []
    with psycopg.connect(target) as conn:
        assert conn.execute(TYPE.replace("'orders'", "'shop.orders'").encode()).fetchone() == ("bigint",)
        assert writers.ledger.check(conn) == []
    assert broken_invariants(target) == []
