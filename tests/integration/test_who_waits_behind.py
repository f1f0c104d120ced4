"""The question who waits behind a session (C17), which each worker asks five times a second on the source."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.apply.blockers import Blockers
from airflow_provider_pgddl.engine.errors import GaveWay, Retry
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.server.giving_way import Watch
from airflow_provider_pgddl.engine.sql import queries
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits

ASKED = queries("catalog")["waiting_behind"]
SLEEPING = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep')"


@pytest.fixture
def plain(pg16: Cluster, source_dsn: str) -> Iterator[str]:
    """A role that sees nothing of other roles' sessions."""
    name = f"plain_{os.getpid()}"
    do(source_dsn, f"CREATE ROLE {name} LOGIN PASSWORD '{pg16.password}'")
    yield make_conninfo(**{**conninfo_to_dict(source_dsn), "user": name})
    do(source_dsn, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_whoever_waits_is_seen_by_any_role_and_locks_are_read_only_where_somebody_does(
    source_dsn: str, plain: str
) -> None:
    do(source_dsn, "CREATE TABLE public.t (id int)", "GRANT SELECT ON public.t TO PUBLIC")
    with (
        in_transaction(plain, "LOCK TABLE public.t IN ACCESS SHARE MODE") as holder,
        connect(source_dsn, purpose="watch") as admin,
        connect(plain, purpose="watch") as watcher,
    ):
        me = [holder.info.backend_pid]
        assert [one.execute(ASKED, me).fetchone() for one in (admin, watcher)] == [None, None]
        assert not reads_locks(admin, me)
        alter = Underway(lambda: do(source_dsn, "ALTER TABLE public.t ADD COLUMN v text"))
        with alter:
            wait_for(lambda: waits(source_dsn, "AccessExclusiveLock", "public.t"), alter)
            for session in (admin, watcher):
                wait_for(lambda asking=session: asking.execute(ASKED, me).fetchone(), alter)  # type: ignore[misc]
            row = admin.execute(ASKED, me).fetchone()
            assert row is not None and row[2] == "ALTER TABLE public.t ADD COLUMN v text"
            assert reads_locks(admin, me)
            assert admin.execute(ASKED, [watcher.info.backend_pid]).fetchone() is None  # nobody waits for that one
            holder.rollback()


@pytest.fixture(params=["direct", "behind a pooler"])
def way(request: pytest.FixtureRequest, source_dsn: str, pgbouncer: Callable[[str, str], str]) -> str:
    """A pooler in session mode greets us with a number of its own."""
    return source_dsn if request.param == "direct" else pgbouncer(source_dsn, "session")


def test_c17_we_give_way_whatever_number_greeted_us(source_dsn: str, way: str) -> None:
    do(source_dsn, "CREATE TABLE public.t (id int)")
    with connect(way, purpose="test") as holder, connect(way, purpose="watch") as watcher:
        with Underway(lambda: held(holder, watcher)) as holding:
            wait_for(lambda: one(source_dsn, SLEEPING), holding)
            do(source_dsn, "ALTER TABLE public.t ADD COLUMN v text")
            assert "ALTER TABLE" in holding.fails(GaveWay).what


@pytest.mark.parametrize("tolerance", [0.0, 0.5])
def test_c17_we_give_way_though_the_clock_of_the_server_was_set_back(
    source_dsn: str, monkeypatch: pytest.MonkeyPatch, tolerance: float
) -> None:
    do(source_dsn, "CREATE TABLE public.t (id int)")
    monkeypatch.setitem(
        queries("catalog"),
        "waiting_behind",
        ASKED.replace("clock_timestamp()", "clock_timestamp() + interval '-1 hour'"),
    )
    with connect(source_dsn, purpose="test") as holder, connect(source_dsn, purpose="watch") as watcher:
        with Underway(lambda: held(holder, watcher, tolerance)) as holding:
            wait_for(lambda: one(source_dsn, SLEEPING), holding)
            do(source_dsn, "ALTER TABLE public.t ADD COLUMN v text")
            assert "ALTER TABLE" in holding.fails(GaveWay).what


def test_c17_a_cancellation_that_does_not_get_through_is_tried_again(
    source_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(source_dsn, "CREATE TABLE public.t (id int)")
    cancel, lost = psycopg.Connection.cancel_safe, list[int]()

    def at_second(session: psycopg.Connection[Any], **options: Any) -> None:
        if not lost:
            lost.append(1)
            raise psycopg.OperationalError("connection refused")
        cancel(session, **options)

    monkeypatch.setattr(psycopg.Connection, "cancel_safe", at_second)
    with connect(source_dsn, purpose="test") as holder, connect(source_dsn, purpose="watch") as watcher:
        with Underway(lambda: held(holder, watcher)) as holding:
            wait_for(lambda: one(source_dsn, SLEEPING), holding)
            do(source_dsn, "ALTER TABLE public.t ADD COLUMN v text")
            holding.fails(GaveWay)
    assert lost


@pytest.mark.parametrize("working", [True, False])
def test_c17_who_cannot_look_any_more_lets_go(source_dsn: str, working: bool) -> None:
    do(source_dsn, "CREATE TABLE public.t (id int)")
    with connect(source_dsn, purpose="test") as holder, connect(source_dsn, purpose="watch") as watcher:
        if working:
            with Underway(lambda: held(holder, watcher)) as holding:
                wait_for(lambda: one(source_dsn, SLEEPING), holding)
                ended(source_dsn, watcher)
                error = holding.fails(Retry)
        else:
            with pytest.raises(Retry) as caught, Watch(holder, watcher) as watch:
                ended(source_dsn, watcher)
                wait_for(lambda: watcher.broken)
                watch.check()
            error = caught.value
    assert "looking who waits behind us" in error.what


def ended(dsn: str, session: psycopg.Connection[Any]) -> None:
    assert one(dsn, "SELECT pg_terminate_backend(%s, 5000)", session.info.backend_pid)


def held(holder: psycopg.Connection[Any], watcher: psycopg.Connection[Any], tolerance: float = 0.0) -> None:
    with holder.transaction():
        holder.execute("LOCK TABLE public.t IN ACCESS SHARE MODE")
        with Watch(holder, watcher, tolerance=tolerance):
            holder.execute("SELECT pg_catalog.pg_sleep(30)")


def test_who_is_in_the_way_is_seen_whatever_number_greeted_us(source_dsn: str, way: str) -> None:
    do(source_dsn, "CREATE TABLE public.t (id int)")
    blockers = Blockers(lambda: connect(way, purpose="watch"), "shop", None, "off", 0.1)
    with (
        in_transaction(source_dsn, "LOCK TABLE public.t") as blocker,
        connect(way, purpose="test") as waiter,
        Underway(lambda: looked_for(blockers, waiter)) as waiting,
    ):
        try:
            wait_for(lambda: f"session {blocker.info.backend_pid} " in str(blockers), waiting, 20)
        finally:
            blocker.rollback()


def looked_for(blockers: Blockers, waiter: psycopg.Connection[Any]) -> None:
    with blockers.watch(waiter):
        waiter.execute("ALTER TABLE public.t ADD COLUMN v text")


def reads_locks(conn: psycopg.Connection[object], args: list[int]) -> bool:
    """Whether the server copies its locks for the question."""
    with psycopg.ClientCursor(conn) as cursor:
        cursor.execute(b"EXPLAIN (ANALYZE, FORMAT json) " + ASKED.encode(), args)
        (plan,) = cursor.fetchone() or ("[]",)
    found = [n for n in nodes((plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"])
             if n.get("Function Name") == "pg_lock_status"]  # fmt: skip
    assert len(found) == 1
    return bool(found[0]["Actual Loops"] > 0)


def nodes(plan: dict[str, object]) -> Iterator[dict[str, object]]:
    yield plan
    for child in plan.get("Plans", ()):  # type: ignore[attr-defined]
        yield from nodes(child)
