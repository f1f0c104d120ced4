"""The throttle: a query, a busy source or a standby that lags holds chunks and windows, and says why."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import progress
from airflow_provider_pgddl.engine.errors import Cancelled, Retry, StageFailed
from airflow_provider_pgddl.engine.journal import control
from airflow_provider_pgddl.engine.rows.throttle import Limits, Throttling
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.controls import SMALL, TABLE, cancel, finish, held, shown, under_way
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.progress import CHUNKS_DONE


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
