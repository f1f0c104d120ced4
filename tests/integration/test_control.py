"""Pause, resume and cancel while writers write, and the throttle against a real standby."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl import cli
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import progress, stages
from airflow_provider_pgddl.engine.errors import Cancelled, Retry, StageFailed, UsageError
from airflow_provider_pgddl.engine.journal import control
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.rows.throttle import Limits, Throttling
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.stages import StageResult
from airflow_provider_pgddl.engine.swapping import across
from tests.integration.controls import cancel, finish, held, pause, resume, shown
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.progress import CHUNKS_DONE
from tests.table_writers import TableWriters

TABLE = """
CREATE TABLE public.t (id int PRIMARY KEY, v text);
INSERT INTO public.t SELECT i, repeat('x', 500) FROM generate_series(1, 3000) i;
"""
SMALL: dict[str, Any] = {"backfill": {"chunk_bytes": "16kB", "workers": 1}, "replay": {"window_rows": 200}}


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


@contextmanager
def under_way(move: Lifecycle, stage: str, **changed: Any) -> Iterator[Future[StageResult]]:
    with ThreadPoolExecutor() as pool:
        try:
            yield pool.submit(move.run, stage, **changed)
        finally:
            resume(move)  # else a failed test would wait for a run that holds


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


# --- throttle -------------------------------------------------------------------------------------------------------


def test_a_query_holds_chunks_and_windows_and_the_status_says_why(move: Lifecycle) -> None:
    execute(move.source, "CREATE SCHEMA jobs; CREATE TABLE jobs.busy AS SELECT 1")
    asked = SMALL["backfill"] | {"throttle": {"query": "SELECT count(*) > 0 FROM jobs.busy"}}
    why = "throttled: backfill.throttle.query says so"
    with under_way(move, "backfill", backfill=asked) as backfill:
        wait_until(lambda: (shown(move)["throttled"] or {}).get("why") == why)
        wait_until(lambda: held(move))
        assert move.journal(CHUNKS_DONE) == [(0,)]
        since = shown(move)["throttled"]["since"]
        wait_until(lambda: held(move))
        assert shown(move)["throttled"]["since"] == since
        execute(move.source, "DELETE FROM jobs.busy")
        backfill.result(60)
    assert shown(move)["throttled"] is None
    move.run("schema_sync")
    execute(move.source, "INSERT INTO jobs.busy VALUES (1); UPDATE public.t SET v = 'changed'")
    with under_way(move, "replay", backfill=asked) as replay:
        wait_until(lambda: (shown(move)["throttled"] or {}).get("by") == "query")
        cancel(move)  # also a run that waits for its throttle
        with pytest.raises(Cancelled):
            replay.result(60)
    assert shown(move)["throttled"] is None  # of a run that is over
    finish(move)


def test_a_swap_is_never_throttled(move: Lifecycle) -> None:
    asked = SMALL["backfill"] | {"throttle": {"query": "SELECT true"}}
    move.run_all(until="verify", after="snapshot")
    assert move.run("swap", backfill=asked).state == "done"


@pytest.fixture
def look(source_dsn: str) -> Iterator[Callable[..., control.Hold | None]]:
    with connect(source_dsn, purpose="watch", pipeline="t") as session:

        def ask(**limits: Any) -> control.Hold | None:
            none = {"max_replica_lag": None, "max_active_backends": None, "query": None}
            return Throttling(session, Limits(**(none | limits))).look()

        yield ask


@pytest.mark.parametrize("query", ["SELECT false", "SELECT NULL::boolean", "SELECT true WHERE false"])
def test_a_query_that_does_not_say_true_lets_it_go_on(look: Callable[..., Any], query: str) -> None:
    assert look(query=query) is None


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT 7", "must answer with a boolean"),
        ("SELECT 'true'", "must answer with a boolean"),
        ("DO $$ BEGIN END $$", "must answer with a boolean"),
        ("SELECT nonsense", "backfill.throttle.query"),
        ("SELECT true FROM t", "backfill.throttle.query"),
        ("CREATE TABLE public.x ()", "read-only"),
        ("COMMIT; CREATE TABLE public.x ()", "multiple commands"),
    ],
)
def test_a_query_that_is_none_is_refused(look: Callable[..., Any], source_dsn: str, query: str, says: str) -> None:
    with pytest.raises((StageFailed, Retry), match=says):
        look(query=query)
    with psycopg.connect(source_dsn) as conn:
        assert conn.execute("SELECT to_regclass('public.x')").fetchone() == (None,)


def test_a_query_that_takes_too_long_is_told_apart(look: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_pgddl.engine.rows.throttle.QUERY_TIMEOUT", 1)
    with pytest.raises(Retry, match=r"backfill\.throttle\.query took longer than 1 s"):
        look(query="SELECT pg_sleep(60) IS NULL")


def test_a_busy_source_holds(look: Callable[..., Any], source_dsn: str) -> None:
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(61)'"

    def sleep(conn: psycopg.Connection[Any]) -> None:
        with pytest.raises(psycopg.errors.QueryCanceled):
            conn.execute("SELECT pg_sleep(61)")

    with ThreadPoolExecutor() as pool, psycopg.connect(source_dsn) as one, psycopg.connect(source_dsn) as two:
        sleeping = [pool.submit(sleep, conn) for conn in (one, two)]
        try:
            with psycopg.connect(source_dsn, autocommit=True) as seen:
                wait_until(lambda: seen.execute(asleep).fetchone() == (2,))
            hold = look(max_active_backends=1)
            assert hold is not None
            assert hold.by == "max_active_backends"
            assert "sessions are active on the source (backfill.throttle.max_active_backends: 1)" in hold.why
            assert look(max_active_backends=90) is None
        finally:
            one.cancel()
            two.cancel()
        for done in sleeping:
            done.result(30)


def test_a_role_that_sees_too_little_is_told_so(source_dsn: str, pg16: Cluster) -> None:
    role = f"blind_{os.getpid()}"
    execute(source_dsn, f"CREATE ROLE {role} LOGIN PASSWORD '{pg16.password}'")
    blind = pg16.conninfo(psycopg.conninfo.conninfo_to_dict(source_dsn)["dbname"], role)  # type: ignore[arg-type]
    try:
        with connect(blind, purpose="watch", pipeline="t") as session:
            for limits in (Limits(1.0, None, None), Limits(None, 5, None)):
                with pytest.raises(StageFailed, match="may not see") as caught:
                    Throttling(session, limits).look()
                assert caught.value.sql == f'GRANT pg_read_all_stats TO "{role}";'
        execute(source_dsn, f"GRANT pg_read_all_stats TO {role}")
        with connect(blind, purpose="watch", pipeline="t") as session:
            assert Throttling(session, Limits(1.0, 90, None)).look() is None
    finally:
        execute(source_dsn, f"DROP ROLE {role}")


@pytest.fixture
def replicated() -> Iterator[tuple[Cluster, Cluster]]:
    """A primary of its own, and its standby."""
    with Cluster(16, settings={"shared_buffers": "16MB"}) as primary:
        standby = Cluster(16, settings={"shared_buffers": "16MB"})
        standby.folder.mkdir(parents=True, exist_ok=True)
        (standby.folder / "password").write_text(primary.password)
        command = [primary.bin("pg_basebackup"), "-d", primary.conninfo(), "-D", standby.data, "-R", "-c", "fast"]
        made = subprocess.run(command, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        owner = primary.data.stat()
        for path in (standby.folder, *standby.folder.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)
        with standby:
            yield primary, standby


def test_a_standby_that_stands_still_holds_and_then_lets_go(replicated: tuple[Cluster, Cluster]) -> None:
    """The server itself reports the last lag of a standby that applies nothing for ever; here it grows."""
    primary, standby = replicated
    now = [0.0]
    execute(primary.conninfo(), "CREATE TABLE t (id int)")
    with (
        connect(primary.conninfo(), purpose="watch", pipeline="t") as session,
        psycopg.connect(standby.conninfo(), autocommit=True) as replica,
        psycopg.connect(primary.conninfo(), autocommit=True) as writer,
    ):
        streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
        wait_until(lambda: writer.execute(streaming).fetchone() == (1,))
        throttle = Throttling(session, Limits(10.0, None, None), clock=lambda: now[0])
        assert throttle.look() is None
        replica.execute("SELECT pg_wal_replay_pause()")
        wait_until(lambda: replica.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() == ("paused",))
        writer.execute("INSERT INTO t SELECT generate_series(1, 1000)")
        assert throttle.look() is None
        now[0] += 9
        assert throttle.look() is None
        now[0] += 2
        hold = throttle.look()
        assert hold is not None
        assert (hold.by, hold.why) == (
            "max_replica_lag",
            "throttled: replica walreceiver is 11.0 s behind (backfill.throttle.max_replica_lag: 10 s)",
        )
        replica.execute("SELECT pg_wal_replay_resume()")
        wait_until(lambda: throttle.look() is None)


def test_the_lag_that_the_server_reports_holds(replicated: tuple[Cluster, Cluster]) -> None:
    primary, standby = replicated
    with (
        connect(primary.conninfo(), purpose="watch", pipeline="t") as session,
        psycopg.connect(standby.conninfo(), autocommit=True) as replica,
        psycopg.connect(primary.conninfo(), autocommit=True) as writer,
    ):
        writer.execute("CREATE TABLE t (id int)")
        replica.execute("SELECT pg_wal_replay_pause()")
        wait_until(lambda: replica.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() == ("paused",))
        writer.execute("INSERT INTO t VALUES (1)")
        written = time.monotonic()
        wait_until(lambda: time.monotonic() - written > 0.3)
        replica.execute("SELECT pg_wal_replay_resume()")
        reported = "SELECT max(replay_lag) > '0.2 s' FROM pg_stat_replication"
        wait_until(lambda: writer.execute(reported).fetchone() == (True,))
        hold = Throttling(session, Limits(0.2, None, None)).look()
        assert hold is not None
        assert hold.by == "max_replica_lag"
