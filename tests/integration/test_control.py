"""Pause, resume and cancel while writers write."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl import cli
from airflow_provider_pgddl.engine import progress, stages
from airflow_provider_pgddl.engine.errors import Cancelled, UsageError
from airflow_provider_pgddl.engine.journal import control
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.swapping import across
from tests.integration.controls import SMALL, TABLE, cancel, finish, held, pause, resume, shown, under_way
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.progress import CHUNKS_DONE
from tests.table_writers import TableWriters


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that holds looks often, so that the tests need not wait for it."""
    monkeypatch.setattr(control, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(control, "SHORTEST", 0.02)
    monkeypatch.setattr(control, "LONGEST", 0.05)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.05)


@pytest.fixture
def move(source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]) -> Lifecycle:
    """A table of many chunks, snapshotted."""
    execute(source_dsn, TABLE)
    made = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)
    made.run_all(until="snapshot")
    return made


def test_a_paused_backfill_holds_without_a_lock_and_goes_on(
    move: Lifecycle, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    said: list[str] = []

    def says(words: str) -> bool:
        said.append(capsys.readouterr().out)
        return words in "".join(said)

    with TableWriters([move.source], [("public", "t")], seed=seed) as writers:
        with under_way(move, "backfill") as backfill:
            wait_until(lambda: move.journal(CHUNKS_DONE)[0][0] > 5)
            answer = pause(move, "the nightly report")
            assert [run["stage"] for run in answer["under_way"]] == ["backfill"]
            wait_until(lambda: held(move))
            wait_until(lambda: says("UTC: the nightly report (`pgddl resume` lets it go on)"))
            done = move.journal(CHUNKS_DONE)
            assert not backfill.done()
            assert shown(move)["paused_because"] == "the nightly report"
            # What would have to wait for a chunk under way, or for its snapshot.
            execute(move.source, "SET lock_timeout = '10s'; LOCK TABLE public.t IN ACCESS EXCLUSIVE MODE")
            assert move.journal(CHUNKS_DONE) == done
            assert resume(move)["was_paused"] is True
            wait_until(lambda: says("pgddl backfill: goes on"))
            assert backfill.result(60).state == "done"
        assert "".join(said).count("the nightly report") == 1
    assert writers.notes.failures == []
    finish(move)


def test_a_stage_that_begins_while_paused_holds_at_once(move: Lifecycle) -> None:
    pause(move)
    with under_way(move, "backfill") as backfill:
        wait_until(lambda: [run["stage"] for run in shown(move)["under_way"]] == ["backfill"])
        wait_until(lambda: held(move))
        assert move.journal(CHUNKS_DONE) == [(0,)]
        assert not backfill.done()
        resume(move)
        assert backfill.result(60).figures["rows"] == 3000
    assert shown(move) == {"paused_at": None, "paused_because": None, "throttled": None, "under_way": []}


def test_replay_holds_between_windows(move: Lifecycle) -> None:
    move.run("backfill")
    move.run("schema_sync")
    execute(move.source, "UPDATE public.t SET v = 'changed'")
    windows = "SELECT count(*) FROM pgddl.windows"
    with under_way(move, "replay") as replay:
        wait_until(lambda: move.journal(windows)[0][0] > 1)
        pause(move)
        wait_until(lambda: held(move))
        before = move.journal(windows)
        execute(move.source, "UPDATE public.t SET v = 'once more' WHERE id % 2 = 0")
        assert held(move)
        assert move.journal(windows) == before
        assert not replay.done()
        resume(move)
        assert replay.result(60).figures["pending"] == 0
    finish(move)


def test_a_cancelled_run_ends_and_the_next_goes_on_where_it_stopped(move: Lifecycle) -> None:
    with under_way(move, "backfill") as backfill:
        wait_until(lambda: move.journal(CHUNKS_DONE)[0][0] > 5)
        assert [run["stage"] for run in cancel(move)["cancelled"]] == ["backfill"]
        with pytest.raises(Cancelled) as caught:
            backfill.result(60)
    assert (caught.value.exit_code, caught.value.retryable) == (1, False)
    done = move.journal(CHUNKS_DONE)[0][0]
    assert 5 < done < move.journal("SELECT count(*) FROM pgddl.chunks")[0][0]
    assert cancel(move)["cancelled"] == []
    assert move.run("backfill").figures["rows"] == 3000
    finish(move)


def test_a_paused_run_can_be_cancelled_and_the_pause_stays(move: Lifecycle) -> None:
    pause(move, "later")
    with under_way(move, "backfill") as backfill:
        wait_until(lambda: shown(move)["under_way"])
        wait_until(lambda: held(move))
        cancel(move)
        with pytest.raises(Cancelled):
            backfill.result(60)
        assert shown(move)["paused_because"] == "later"
    assert resume(move)["was_paused"] is False


def test_verify_stops_between_its_windows(move: Lifecycle) -> None:
    move.run_all(until="replay", after="snapshot")
    pause(move)
    with under_way(move, "verify") as verify:
        wait_until(lambda: shown(move)["under_way"])
        cancel(move)
        with pytest.raises(Cancelled):
            verify.result(60)
    move.run("verify")


def test_a_paused_rewrite_holds_in_place(source_dsn: str, lifecycle: Callable[..., Lifecycle]) -> None:
    execute(source_dsn, TABLE)
    rewrite = lifecycle(source_dsn, rewrite={"public.t": {"alter": ["ALTER COLUMN id TYPE bigint"]}}, **SMALL)
    rewrite.run_all(until="snapshot")
    with under_way(rewrite, "backfill") as backfill:
        wait_until(lambda: rewrite.journal(CHUNKS_DONE)[0][0] > 5)
        pause(rewrite)
        wait_until(lambda: held(rewrite))
        execute(source_dsn, "SET lock_timeout = '10s'; LOCK TABLE public.t IN ACCESS EXCLUSIVE MODE")
        assert not backfill.done()
        resume(rewrite)
        backfill.result(60)
    rewrite.run_all(after="backfill")
    assert rewrite.on_source("SELECT count(*), pg_typeof(min(id))::text FROM public.t") == [(3000, "bigint")]


def test_a_paused_swap_leaves_no_fence_standing(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(source_dsn, TABLE)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, swap={"fence": "read_only"})
    move.run_all(until="verify")
    with pytest.MonkeyPatch.context() as died:  # behind its fence, as by kill -9: nobody has lowered it
        died.setattr(across, "_make_ready", lambda *_: move.on_source("SELECT 1 / 0"))
        died.setattr(across, "_certainly_not_cut_over", lambda _: False)
        move.refused("swap")
    with pytest.raises(psycopg.Error):
        execute(source_dsn, "UPDATE public.t SET v = 'fenced' WHERE id = 1")
    pause(move)
    with under_way(move, "swap") as swap:
        wait_until(lambda: not move.on_source("SELECT 1 FROM pg_trigger WHERE tgname LIKE 'pgddl_fence%'"))
        wait_until(lambda: held(move))
        execute(source_dsn, "UPDATE public.t SET v = 'free' WHERE id = 1")
        resume(move)
        assert swap.result(60).state == "done"
    assert move.journal("SELECT v FROM public.t WHERE id = 1") == [("free",)]


def test_a_reset_forgets_the_pause(move: Lifecycle) -> None:
    pause(move)
    stages.reset(load_pipeline(move.content), move.source, move.target, None)
    execute(move.target, "DROP TABLE IF EXISTS public.t")
    move.run_all(until="verify")


def test_a_kill_while_paused_leaves_a_pause_that_the_next_run_obeys(move: Lifecycle, tmp_path: Path) -> None:
    pause(move, "maintenance")
    job = tmp_path / "job.json"
    job.write_text(json.dumps(move.content))
    code = (
        "import json, sys\n"
        "from airflow_provider_pgddl.engine import stages\n"
        "from airflow_provider_pgddl.engine.job.file import Job\n"
        "from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline\n"
        "stages.run(Job('backfill', load_pipeline(json.load(open(sys.argv[1]))), None))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(job)], env=os.environ) as process:
        wait_until(lambda: shown(move)["under_way"])
        wait_until(lambda: held(move))
        process.kill()
    wait_until(lambda: shown(move)["under_way"] == [])
    assert shown(move)["paused_because"] == "maintenance"
    with under_way(move, "backfill") as backfill:
        wait_until(lambda: shown(move)["under_way"])
        wait_until(lambda: held(move))
        assert move.journal(CHUNKS_DONE) == [(0,)]
        resume(move)
        backfill.result(60)
    finish(move)


def test_the_shell_says_what_it_did(move: Lifecycle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(json.dumps(move.content))
    capsys.readouterr()

    def pgddl(*words: str) -> dict[str, Any]:
        assert cli.main([*words, "-p", str(file), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert isinstance(found, dict)
        return found

    first = pgddl("pause", "--reason", "the nightly report")
    again = pgddl("pause")
    assert (again["paused_at"], again["paused_because"]) == (first["paused_at"], "the nightly report")
    assert pgddl("status")["control"]["paused_because"] == "the nightly report"
    assert pgddl("resume")["was_paused"] is True
    assert pgddl("resume")["was_paused"] is False
    assert pgddl("cancel") == {"pipeline": move.name, "cancelled": []}
    assert cli.main(["status", "-p", str(file)]) == 0
    assert "control:\n  paused_at: -\n" in capsys.readouterr().out


def test_what_has_not_been_set_up_cannot_be_paused(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    with pytest.raises(UsageError, match="has not been set up"):
        pause(move)
