"""The trigger of the schema gate, by which a deferred sensor waits; and the sensor behind it, without a run."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowSensorTimeout, TaskDeferred

from airflow_provider_pgddl.assets import mismatch_stands
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.sensors.schema import PgddlSchemaSensor
from airflow_provider_pgddl.triggers.schema import PgddlSchemaTrigger, ends_of, look
from airflow_provider_pgddl.triggers.watch import PgddlWatchTrigger
from tests.dags.conftest import context
from tests.dags.folder.gates import GATED
from tests.dags.gated import Gated, no_secret, set_up
from tests.integration.lifecycle import execute, wait_until

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def gated(pg16: Cluster, pg18: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    with set_up(pg16, pg18, tmp_path_factory.mktemp("notes") / "notes.txt") as pipeline:
        yield pipeline


@pytest.fixture
def here(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> Gated:
    """This process may reach the databases."""
    monkeypatch.setenv("GATED_SOURCE", gated.source)
    monkeypatch.setenv("GATED_TARGET", gated.target)
    return gated


def seen(gated: Gated) -> str:
    return asyncio.run(look("gated", gated.source, gated.target, None))


def trigger(gated: Gated, **changed: Any) -> PgddlSchemaTrigger:
    """As the triggerer makes it from what was serialized."""
    made = PgddlSchemaTrigger(
        **{
            "pipeline": ends_of(load_pipeline(gated.dsns)),
            "tables": None,
            "seen": "",
            "poke_interval": 0.05,
            "validation_interval": 3600,
            "started": 17.0,
            **changed,
        }
    )
    path, kwargs = made.serialize()
    assert path == "airflow_provider_pgddl.triggers.schema.PgddlSchemaTrigger"
    return PgddlSchemaTrigger(**json.loads(json.dumps(kwargs)))


async def fired(one: PgddlSchemaTrigger) -> Any:
    return (await anext(one.run())).payload


def sessions(gated: Gated) -> int:
    """Sessions of looks, on both servers."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgddl:gated:0:wait'"
    found = 0
    for dsn in (gated.source, gated.target):
        with psycopg.connect(dsn) as conn:
            found += conn.execute(query).fetchone()[0]
    return found


def test_a_watcher_wakes_for_each_mismatch_that_is_new(here: Gated) -> None:
    """Not for one that stood before, and again for one that has come back."""
    (watcher,) = mismatch_stands(here.dsns, poke_interval=0.05).watchers
    path, kwargs = watcher.trigger.serialize()
    assert path == "airflow_provider_pgddl.triggers.watch.PgddlWatchTrigger"
    pipeline = load_pipeline(here.dsns)

    async def woken() -> list[list[str]]:
        events, told = PgddlWatchTrigger(**json.loads(json.dumps(kwargs))).run(), []
        for table in ("users", "orders", "users"):
            with here.mismatch(table):
                await asyncio.to_thread(stages.gate, pipeline, here.source, here.target)
                told.append((await asyncio.wait_for(anext(events), 60)).payload["new"])
            await asyncio.to_thread(stages.gate, pipeline, here.source, here.target)
        return told

    assert asyncio.run(woken()) == [["public.users"], ["public.orders"], ["public.users"]]


def test_the_trigger_sleeps_while_nothing_differs_and_wakes_when_it_does(here: Gated) -> None:
    async def change() -> Any:
        waiting = asyncio.create_task(fired(trigger(here, seen=await look("gated", here.source, here.target, None))))
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert not done, "it woke for nothing"
        await asyncio.to_thread(here.fix, column)
        return await asyncio.wait_for(waiting, 30)

    with here.mismatch() as column:
        assert asyncio.run(change()) == {"started": 17.0, "error": None}


@pytest.mark.parametrize("statement", [
    "ALTER TABLE public.users ADD CONSTRAINT named CHECK (name <> '')",
    "ALTER TABLE public.users DROP CONSTRAINT named",
    "UPDATE pgddl.schema_status SET findings = '[]', status = 'warning' WHERE table_name = 'users'",
    "CREATE TYPE public.mood AS ENUM ('fine')",
])  # fmt: skip
def test_what_may_open_the_gate_is_seen(here: Gated, statement: str) -> None:
    before = seen(here)
    assert before == seen(here)
    execute(here.target, statement)
    assert before != seen(here)


def test_of_named_tables_only_those_are_seen(here: Gated) -> None:
    def orders() -> str:
        return asyncio.run(look("gated", here.source, here.target, ["public.orders"]))

    before, all_before = orders(), seen(here)
    with here.mismatch("users"):
        assert orders() == before
        assert seen(here) != all_before


def test_the_trigger_fires_when_it_is_time_although_nothing_differs(here: Gated) -> None:
    often = trigger(here, seen=seen(here), poke_interval=60, validation_interval=0.1)
    assert asyncio.run(fired(often)) == {"started": 17.0, "error": None}


def test_a_server_that_does_not_answer_is_waited_for(
    here: Gated, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ""

    async def come_back() -> Any:
        nonlocal said
        waiting = asyncio.create_task(fired(trigger(here, validation_interval=0.1)))
        deadline = time.monotonic() + 30
        while said.count("127.0.0.1:1/") < 3:
            assert not waiting.done()
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
            said += capsys.readouterr().out
        monkeypatch.setenv("GATED_TARGET", here.target)
        return await asyncio.wait_for(waiting, 30)

    nobody = psycopg.conninfo.make_conninfo(here.target, host="127.0.0.1", port=1)
    monkeypatch.setenv("GATED_TARGET", nobody)
    assert asyncio.run(come_back()) == {"started": 17.0, "error": None}
    assert no_secret(said, here)


def test_what_the_triggerer_lacks_is_said(here: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATED_TARGET")
    event = asyncio.run(fired(trigger(here)))
    assert "the environment variable GATED_TARGET is not set" in event["error"]


def test_a_cancelled_trigger_leaves_no_session(here: Gated) -> None:
    async def cancel() -> None:
        with closing(psycopg.connect(here.target)) as holder:
            holder.execute("LOCK TABLE pgddl.pipelines IN ACCESS EXCLUSIVE MODE")
            waiting = asyncio.create_task(fired(trigger(here)))
            deadline = time.monotonic() + 30
            while not holder.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0]:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait([waiting])
            holder.rollback()

    asyncio.run(cancel())
    wait_until(lambda: sessions(here) == 0)


def test_nothing_secret_is_serialized(here: Gated) -> None:
    _, kwargs = trigger(here).serialize()
    assert no_secret(json.dumps(kwargs), here)
    assert kwargs["pipeline"]["source"] == {"dsn": "${GATED_SOURCE}"}
    assert ends_of(load_pipeline(GATED)) == {
        "pipeline": "gated",
        "source": {"conn_id": "gated_source"},
        "target": {"conn_id": "gated_target"},
    }


# --- the sensor, without a run ----------------------------------------------------------------------------------------


def gate(gated: Gated, **settings: Any) -> PgddlSchemaSensor:
    return PgddlSchemaSensor(task_id="gate", pipeline=gated.dsns, deferrable=True, poke_interval=1, **settings)


def test_a_closed_gate_defers_for_what_is_left_of_its_timeout(here: Gated) -> None:
    event = {"started": time.time() - 100, "error": None}
    with here.mismatch():
        with pytest.raises(TaskDeferred) as deferred:
            gate(here, timeout=160).execute_complete(context(), event)
        assert 0 < deferred.value.timeout.total_seconds() <= 60
        assert deferred.value.trigger.started == event["started"]
        assert deferred.value.trigger.validation_interval <= 60
        with pytest.raises(AirflowSensorTimeout):
            gate(here, timeout=90).execute_complete(context(), event)


def test_an_open_gate_does_not_care_that_the_triggerer_could_not_look(here: Gated) -> None:
    event = {"started": time.time(), "error": "GATED_SOURCE is not set"}
    gate(here).execute_complete(context(), event)
    with here.mismatch():
        with pytest.raises(AirflowException, match="the triggerer cannot look at the schemas: GATED_SOURCE is not set"):
            gate(here).execute_complete(context(), event)


@pytest.mark.parametrize("option", ["soft_fail", "never_fail", "silent_fail"])
def test_a_gate_that_opens_by_failing_is_refused_wherever_it_is_asked_for(option: str) -> None:
    with DAG("d", default_args={option: True}):
        with pytest.raises(ValueError, match=f"refuses {option}: it "):
            PgddlSchemaSensor(task_id="gate", pipeline=GATED)


def test_what_to_do_about_a_mismatch_is_one_of_two_words() -> None:
    with pytest.raises(ValueError, match="on_mismatch is wait, fail or report, not 'skip'"):
        PgddlSchemaSensor(task_id="gate", pipeline=GATED, on_mismatch="skip")


def test_a_failover_that_lost_commits_is_seen_and_closes_the_gate(here: Gated) -> None:
    assert gate(here, on_mismatch="fail").poke(context())  # its verdicts are there
    before = seen(here)
    execute(here.target, "UPDATE pgddl.pipelines SET verify_needed = 'the source was failed over'")
    try:
        assert seen(here) != before
        with pytest.raises(AirflowException, match="failed over"):
            gate(here, on_mismatch="fail").poke(context())
    finally:
        execute(here.target, "UPDATE pgddl.pipelines SET verify_needed = NULL")
    assert seen(here) == before


def test_a_look_without_a_journal_is_a_look(here: Gated, database: Any, pg18: Cluster) -> None:
    empty = database(pg18)
    assert asyncio.run(look("gated", here.source, empty, None)) != seen(here)
    with pytest.raises(PgddlError, match="no_table: write it as schema"):
        asyncio.run(look("gated", here.source, empty, ["no_table"]))
