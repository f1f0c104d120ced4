"""The schema gate as Airflow runs it: each way of waiting, over one pipeline from 16 to 18."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.commands import ddl
from tests.conftest import Database
from tests.dags.conftest import Airflow, Shell, postgres_connection
from tests.dags.gated import Gated, no_secret, set_up
from tests.integration.lifecycle import execute

pytestmark = pytest.mark.airflow

FOLDER = Path(__file__).parent / "folder"
BOX = "SYNC STOPPED: Schema Mismatch"


@pytest.fixture(scope="module")
def gated(pg16: Cluster, pg18: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    with set_up(pg16, pg18, tmp_path_factory.mktemp("notes") / "notes.txt") as pipeline:
        yield pipeline


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
