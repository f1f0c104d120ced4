"""Whose runs are over, and whose sessions may be ended: by the lock that is held, never by a name alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.errors import LockHeld
from airflow_provider_pgddl.engine.journal import lease, migrations
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.calls import before_each
from tests.integration.items import ITEMS, SMALL
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import Underway, do

Make = Callable[..., Lifecycle]
LOCKED = "SELECT FROM pgddl.leases FOR SHARE"


@pytest.fixture
def journal_dsn(target_dsn: str) -> str:
    with connect(target_dsn, purpose="test") as conn:
        migrations.apply(conn, "journal")
    return target_dsn


def alive(session: psycopg.Connection[object]) -> bool:
    try:
        session.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def test_c11_a_process_that_stands_still_before_its_commit_holds_up_no_later_run(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of its sessions are ended: what it does on the source goes on no longer than its transaction here."""
    monkeypatch.setattr(lease, "TAKE_WITHIN", 1, raising=False)
    do(source_dsn, ITEMS)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.items"]}, **SMALL)
    move.run("setup")
    ((token,),) = move.journal("SELECT max(token) FROM pgddl.leases")
    with (
        connect(move.target, purpose="copy", pipeline=move.name, token=token) as there,
        connect(move.source, purpose="copy", pipeline=move.name, token=token) as here,
    ):
        with there.transaction():
            there.execute(LOCKED)
            with Underway(lambda: move.run("snapshot")) as running:
                try:
                    running.finish(60)
                finally:
                    there.cancel_safe()
                    there.close()
        assert not alive(here)


def test_who_is_not_known_to_belong_to_a_run_that_is_over_is_left_alone_and_told(
    journal_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "TAKE_WITHIN", 1)
    with (
        Lease(journal_dsn, "shop", "backfill", ["shop.a"]) as a,
        Lease(journal_dsn, "shop", "backfill", ["shop.b"]) as b,
    ):
        a.take()
        with connect(journal_dsn, purpose="copy", pipeline="shop", token=a.token) as worker, worker.transaction():
            worker.execute(LOCKED)
            with pytest.raises(LockHeld, match="is about to commit, and does not"):
                b.take(journal_dsn)
            assert alive(worker)
        b.take(journal_dsn)


def test_the_sessions_of_a_run_over_other_tables_that_begins_just_now_are_left_alone(
    journal_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Lease(journal_dsn, "shop", "backfill", ["shop.a"]) as a,
        Lease(journal_dsn, "shop", "backfill", ["shop.b"]) as b,
        connect(journal_dsn, purpose="test") as server,
    ):
        b.take()
        begun = list[psycopg.Connection[object]]()

        def begin(number: int) -> None:
            if number == 1:
                begun.append(connect(journal_dsn, purpose="copy", pipeline="shop", token=a.take()))

        before_each(monkeypatch, lease, "queries", begin)
        assert b.terminate_stale(server) == 0
        with begun[0] as worker:
            assert alive(worker)


@pytest.fixture
def another(pg18: Cluster, target_dsn: str) -> Iterator[str]:
    name = f"another_{os.getpid()}"
    do(target_dsn, f"CREATE ROLE {name} LOGIN PASSWORD '{pg18.password}'")
    yield make_conninfo(**{**conninfo_to_dict(target_dsn), "user": name})
    do(target_dsn, f"DROP ROLE {name}")


def test_a_session_of_another_role_is_left_alone_whatever_its_name(journal_dsn: str, another: str) -> None:
    with (
        Lease(journal_dsn, "shop", "replay", None) as held,
        connect(journal_dsn, purpose="test") as server,
        connect(another, purpose="copy", pipeline="shop", token=1) as theirs,
        connect(journal_dsn, purpose="copy", pipeline="shop", token=1) as ours,
    ):
        held.take()
        held.take()
        assert held.terminate_stale(server) == 1
        assert alive(theirs)
        assert not alive(ours)


def test_the_run_that_holds_the_lock_is_named_and_no_other(journal_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "TAKEOVER_WAIT", 0.1)

    def told(tables: list[str] | None) -> str:
        with pytest.raises(LockHeld) as caught:
            Lease(journal_dsn, "shop", "verify", tables).__enter__()
        return caught.value.what

    with (
        Lease(journal_dsn, "shop", "backfill", ["shop.a"]) as a,
        Lease(journal_dsn, "shop", "replay", ["shop.b"]) as b,
    ):
        a.take(), b.take()
        assert "alive: backfill on" in told(["shop.a"])
        assert "alive: replay on" in told(["shop.b", "shop.c"])
    with Lease(journal_dsn, "shop", "snapshot", None) as whole:  # which has no token yet
        assert f"alive: unknown, by session {whole.conn.info.backend_pid} of the server" in told(["shop.a"])
        whole.take()
        assert "alive: snapshot on" in told(None)
