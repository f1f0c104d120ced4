"""The schema gate as Airflow runs it: each way of waiting, over one pipeline from 16 to 18; and its trigger."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowSensorTimeout, TaskDeferred
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.assets import mismatch_stands
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands import ddl
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.sensors.schema import PgddlSchemaSensor
from airflow_provider_pgddl.triggers.schema import PgddlSchemaTrigger, ends_of, look
from airflow_provider_pgddl.triggers.watch import PgddlWatchTrigger
from tests.conftest import Database, drop_database
from tests.dags.conftest import Airflow, Shell, context, postgres_connection
from tests.dags.folder.gates import GATED
from tests.integration.lifecycle import Lifecycle, execute, wait_until

pytestmark = pytest.mark.airflow

FOLDER = Path(__file__).parent / "folder"
BOX = "SYNC STOPPED: Schema Mismatch"

_numbers = itertools.count(1)


@dataclass
class Gated:
    """The pipeline `gated`, set up and replayed; every mismatch is a column of its own."""

    source: str
    target: str
    notes: Path
    content: dict[str, Any]  # of the pipeline, as it was set up

    @contextmanager
    def mismatch(self, table: str = "users") -> Iterator[str]:
        """A column of the source which the target gets at the end."""
        column = f"phone_{next(_numbers)}"
        execute(self.source, f"ALTER TABLE public.{table} ADD COLUMN {column} varchar")
        try:
            yield column
        finally:
            execute(self.target, f"ALTER TABLE public.{table} ADD COLUMN IF NOT EXISTS {column} varchar")

    def fix(self, column: str, table: str = "users") -> None:
        execute(self.target, f"ALTER TABLE public.{table} ADD COLUMN {column} varchar")

    def wait_for_looks(self, count: int) -> None:
        """Until the gate has been judged so often."""
        looks = {self._checked()}

        def enough() -> bool:
            looks.add(self._checked())
            return len(looks) > count

        wait_until(enough)

    def _checked(self) -> object:
        with psycopg.connect(self.target) as conn:
            return conn.execute("SELECT max(checked_at) FROM pgddl.schema_status").fetchone()

    @property
    def dsns(self) -> dict[str, Any]:
        """The pipeline as a process sees it that has no Airflow connections."""
        return {**GATED, "source": {"dsn": "${GATED_SOURCE}"}, "target": {"dsn": "${GATED_TARGET}"}}


@pytest.fixture(scope="module")
def gated(pg16: Cluster, pg18: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    name = f"gated_{uuid.uuid4().hex[:8]}"
    for cluster in (pg16, pg18):
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    source, target = pg16.conninfo(name), pg18.conninfo(name)
    execute(
        source,
        "CREATE TABLE public.users (id int PRIMARY KEY, name text);"
        "CREATE TABLE public.orders (id int PRIMARY KEY, placed_at timestamptz);"
        "INSERT INTO public.users SELECT n, 'user ' || n FROM generate_series(1, 100) n",
    )
    with pytest.MonkeyPatch.context() as patch:
        keys = {key: value for key, value in GATED.items() if key not in ("source", "target", "schema")}
        move = Lifecycle(patch, source, target, **keys)
        move.run_all(until="replay")
    yield Gated(source, target, tmp_path_factory.mktemp("notes") / "notes.txt", move.content)
    for cluster in (pg16, pg18):
        drop_database(cluster, name)


@pytest.fixture(scope="module")
def shell(airflow: Airflow, gated: Gated) -> Iterator[Shell]:
    with airflow.shell(
        FOLDER,
        AIRFLOW_CONN_GATED_SOURCE=postgres_connection(gated.source),
        AIRFLOW_CONN_GATED_TARGET=postgres_connection(gated.target),
        PGDDL_TEST_NOTES=str(gated.notes),
        PGDDL_TEST_SET_UP=json.dumps(gated.content),
        **{gated.content[side]["dsn"][2:-1]: dsn for side, dsn in (("source", gated.source), ("target", gated.target))},
    ) as running:
        yield running


@pytest.mark.parametrize("way", ["poke", "reschedule", "deferrable", "validated"])
def test_it_waits_says_why_once_and_opens_by_itself(way: str, gated: Gated, shell: Shell, airflow: Airflow) -> None:
    with gated.mismatch() as column:
        shell.start("dags", "test", f"gate_{way}")
        said = shell.until(BOX)
        if way != "deferrable":  # its trigger lets it sleep as long as nothing changes
            gated.wait_for_looks(3)
        gated.fix(column)
        code, more = shell.end()
    assert code == 0, more
    said += more
    assert said.count(BOX) == 1, said
    assert column in said
    assert f"ADD COLUMN {column} character varying;" in said
    assert "in the pipeline file: tables.skip_columns:" in said
    assert "open: 2 tables looked at" in said
    assert ("still closed: public.users: " in said) == (way == "reschedule")
    assert airflow.states(f"gate_{way}") == {"gate": "success"}
    assert no_secret(said, gated)


def test_a_second_mismatch_is_said_and_the_first_is_not_repeated(gated: Gated, shell: Shell) -> None:
    with gated.mismatch(), gated.mismatch("orders"):
        shell.start("dags", "test", "gate_reschedule")
        said = shell.until("public.orders") + shell.until(BOX)
    code, more = shell.end()
    assert code == 0
    assert (said + more).count(BOX) == 2


def test_it_does_not_open_for_a_pipeline_that_was_never_set_up(shell: Shell) -> None:
    assert "pipeline 'unknown' has not been set up here" in failed(shell, "gate_unknown")


def test_a_task_that_left_a_table_out_shows_it(gated: Gated, shell: Shell, airflow: Airflow) -> None:
    with gated.mismatch() as column:
        said = failed(shell, "on_blocked")
    assert airflow.states("on_blocked") == {"skip": "skipped", "fail": "failed", "behind": "skipped"}, said
    assert "replay went on without public.users, which is blocked" in said
    result = airflow.xcoms("on_blocked")["skip"]
    assert result["tables"] == 1
    assert [entry["table"] for entry in result["blocked"]] == ["public.users"] and column in str(result["blocked"])


def test_it_fails_at_once_where_that_is_asked_for(gated: Gated, shell: Shell, airflow: Airflow) -> None:
    for way in ("fail", "fail_deferrable"):
        with gated.mismatch() as column:
            said = failed(shell, f"gate_{way}")
        assert "AirflowFailException" in said
        assert column in said.partition("AirflowFailException")[2], said
        assert airflow.states(f"gate_{way}") == {"gate": "failed"}
        assert airflow.tries(f"gate_{way}") == {"gate": 1}


def test_it_reports_and_is_skipped_where_that_is_asked_for(gated: Gated, shell: Shell, airflow: Airflow) -> None:
    with gated.mismatch() as column:
        code, said = shell("dags", "test", "gate_report")
    assert code == 0 and "DagRun failed" not in said, said
    assert BOX in said and column in said
    assert airflow.states("gate_report") == {"gate": "skipped"}
    assert airflow.tries("gate_report") == {"gate": 1}


def test_it_looks_at_the_named_tables_only(gated: Gated, shell: Shell) -> None:
    with gated.mismatch("users"):
        code, said = shell("dags", "test", "gate_one_table")
        assert code == 0, said
        assert BOX not in said


def test_its_timeout_counts_from_the_first_look_on(gated: Gated, shell: Shell, airflow: Airflow) -> None:
    with gated.mismatch():
        said = failed(shell, "gate_timeout")
    assert "AirflowSensorTimeout: the gate was still closed after 2 seconds" in said
    assert airflow.tries("gate_timeout") == {"gate": 1}


def test_a_new_mismatch_is_announced_once_and_a_broken_notifier_changes_nothing(gated: Gated, shell: Shell) -> None:
    gated.notes.write_text("")
    with gated.mismatch(), gated.mismatch("orders"):
        shell.start("dags", "test", "gate_notify")
        shell.until(BOX)
        gated.wait_for_looks(3)
    code, said = shell.end()
    assert code == 0, said
    assert "the notifier <function broken" in said
    notes = gated.notes.read_text()
    assert notes.count("gated: public.users: mismatch; 1 findings; [ERROR]") == 1, notes
    assert notes.count("gated: public.orders: mismatch; 1 findings; [ERROR]") == 1, notes


def test_a_notifier_tells_each_thing_once_as_a_callback_too(gated: Gated, shell: Shell) -> None:
    """As the gate's `notify`, as a failure's callback, in a second run; what a receiver did not take comes again."""
    gated.notes.write_text("")
    with gated.mismatch() as column:
        for _ in range(2):
            failed(shell, "gate_told")
    notes = gated.notes.read_text()
    assert notes.count("told: mismatch: gated: pgddl gated: public.users is stopped: ") == 1, notes
    assert notes.count("told to the other: pgddl gated: public.users is stopped: ") == 2, "as one of both has failed"
    assert notes.count("told: failure: None: pgddl: gate_told: gate failed: the schema gate is closed") == 2
    assert f"ADD COLUMN {column} character varying" in notes, "what to do"
    assert no_secret(notes, gated)


def test_for_ddl_that_waits_it_shows_event_statement_and_command(
    airflow: Airflow, pg16: Cluster, pg18: Cluster, database: Database, lifecycle: Any
) -> None:
    source, target = database(pg16), database(pg18)
    execute(source, "CREATE TABLE public.users (id int PRIMARY KEY, name text)")
    move = lifecycle(source, target, tables={"include": ["public.*"]}, capture={"ddl": "queue"})
    move.run_all(until="replay")
    execute(target, "CREATE VIEW public.seen AS SELECT name FROM public.users")
    execute(source, "ALTER TABLE public.users DROP COLUMN name")
    assert move.run("replay").blocked
    ((event,),) = move.journal("SELECT id FROM pgddl.ddl_events WHERE status = 'failed'")
    ends = {move.content[side]["dsn"][2:-1]: dsn for side, dsn in (("source", source), ("target", target))}
    with airflow.shell(FOLDER, PGDDL_TEST_QUEUED=json.dumps(move.content), **ends) as shell:
        said = failed(shell, "gate_queued")
        assert f"DDL event {event}" in said
        ((statement,),) = move.journal("SELECT statement FROM pgddl.ddl_events WHERE id = %s", [event])
        assert "users DROP" in statement and statement in " ".join(said.replace("║", " ").split()), said
        assert f"pgddl ddl retry {event}" in said
        execute(target, "DROP VIEW public.seen")
        ddl.retry(move.job("replay").pipeline, source, target, event)
        assert not move.run("replay").blocked
        code, said = shell("dags", "test", "gate_queued")
    assert code == 0 and "DagRun failed" not in said, said


def failed(shell: Shell, dag_id: str) -> str:
    """What a run said that must not succeed."""
    shell.start("dags", "test", dag_id)
    said = shell.until("=== airflow ended with ")
    assert said.endswith("DagRun failed\n"), said
    return said


def no_secret(text: str, gated: Gated) -> bool:
    return not any(str(conninfo_to_dict(dsn)["password"]) in text for dsn in (gated.source, gated.target))


# --- the trigger ------------------------------------------------------------------------------------------------------


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
