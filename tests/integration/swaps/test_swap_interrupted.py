"""Swaps and cleanups that fail, wait or die: the fence, the commit, writes in between, who is in the way, and what a
stage before has left undone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import psycopg
import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rows.chunks import ShareDone
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.stages import backfill, cleanup, revert
from airflow_provider_pgddl.engine.swapping import across, readiness
from airflow_provider_pgddl.engine.swapping import in_place as exchange
from tests.conftest import Database
from tests.failpoints import At
from tests.integration.calls import after_each, before_each, once
from tests.integration.items import log_of
from tests.integration.lifecycle import left_behind
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for
from tests.integration.swaps.pipelines import (
    END_SESSIONS,
    SHOP,
    SMALL,
    UNCAPTURED,
    Killed,
    Make,
    fenced,
    has_cut_over,
    run_behind_a_snapshot,
    sessions,
    type_of_id,
)

# --- the fence --------------------------------------------------------------------------------------------------------


def test_a_swap_that_is_killed_behind_its_fence_is_begun_anew(shop: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    move = shop(swap={"fence": "read_only"}, ddl={"tags": "pgl_ddl_deploy"})
    move.run_all(until="verify")

    def kill(number: int) -> None:
        if number == 1:
            for dsn in (move.source, move.target):
                one(dsn, END_SESSIONS, f"pgddl:{move.name}:%")
            raise Killed

    before_each(monkeypatch, across, "_make_ready", kill)
    with monkeypatch.context() as dead:
        dead.setattr(across, "_certainly_not_cut_over", lambda _: False)
        with pytest.raises(Killed):
            move.run("swap")
    assert fenced(move)
    do(move.source, "CREATE DOMAIN shop.beyond_the_tags AS int")
    assert "new: CREATE DOMAIN shop.beyond_the_tags" in str(move.refused("swap", PreflightRefused))
    assert not fenced(move)
    do(move.source, "DROP DOMAIN shop.beyond_the_tags")
    move.run("swap")
    assert fenced(move)
    assert differences(move.source, move.target) == []


def test_the_fence_stays_up_where_the_answer_to_the_commit_was_lost(
    shop: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleanup sees to it once more: on a standby that was promoted without it, nobody would see what is written."""
    move = shop(swap={"fence": "read_only"}, **UNCAPTURED)
    move.run_all(until="verify")

    def lose(number: int) -> None:
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as losing:
        after_each(losing, across, "_make_ready", lose)
        move.refused("swap")
    assert has_cut_over(move)
    assert fenced(move)
    assert differences(move.source, move.target) == []
    move.run("swap")
    do(move.source, f"DROP TRIGGER pgddl_fence_{move.name} ON shop.parent")
    assert move.run("cleanup").state == "done"
    assert fenced(move)


def test_the_fence_stays_up_while_the_commit_may_still_happen(shop: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is gone, and the server is still at work on the commit."""
    move = shop(swap={"fence": "read_only"})
    move.run_all(until="verify")
    note = f"UPDATE pgddl.pipelines SET cut_over_at = now() WHERE pipeline = '{move.name}'"
    at_work = threading.Event()
    with psycopg.connect(move.target) as server:

        def lose(*_: object) -> None:
            server.execute(note.encode())
            at_work.set()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(across, "_make_ready", lose)
        with Underway(lambda: move.refused("swap")) as swapping:
            wait_for(at_work.is_set, swapping)
            waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid)))"
            wait_for(lambda: one(move.target, waiting, server.info.backend_pid), swapping)
            server.commit()
    assert fenced(move)


def test_tries_behind_a_fence_open_no_sessions_of_their_own(shop: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    move = shop(swap={"fence": "read_only"})
    move.run_all(until="verify")
    counts = []

    def disturb(number: int) -> None:
        counts.append((sessions(move, move.source), sessions(move, move.target)))
        do(move.source, *(["CREATE SEQUENCE shop.seq", "DROP SEQUENCE shop.seq"] if number < 5 else []))
        if number < 5:
            raise readiness.NotYet("disturbed")

    before_each(monkeypatch, across, "_make_ready", disturb)
    move.run("swap")
    assert len(counts) == 5
    assert set(counts[1:]) == {counts[1]}


def test_a_subscription_that_would_write_behind_the_fence_is_refused(
    shop: Make, pg16: Cluster, database: Database
) -> None:
    """Apply workers fire no statement trigger, so no fence stops them."""
    move = shop(swap={"fence": "read_only"})
    publisher = database(pg16)
    do(
        publisher,
        SHOP,
        "CREATE PUBLICATION p FOR TABLE shop.parent",
        "SELECT pg_create_logical_replication_slot('pgddl_test', 'pgoutput')",
    )
    options = "slot_name = pgddl_test, create_slot = false, copy_data = false"
    do(move.source, f"CREATE SUBSCRIPTION upstream CONNECTION '{publisher}' PUBLICATION p WITH ({options})")
    try:
        move.run_all(until="verify")
        assert "subscription upstream writes into it" in str(move.refused("swap", PreflightRefused))
        assert not fenced(move)
        do(publisher, "UPDATE shop.parent SET name = 'upstream' WHERE id = 2")
        wait_for(lambda: one(move.source, "SELECT name FROM shop.parent WHERE id = 2") == "upstream")
        do(move.source, "ALTER SUBSCRIPTION upstream DISABLE")
        wait_for(
            lambda: one(move.source, "SELECT count(pid) FROM pg_stat_subscription WHERE subname = 'upstream'") == 0
        )
        move.run("swap")
        assert fenced(move)
        assert differences(move.source, move.target) == []
    finally:
        for end in ("DISABLE", "SET (slot_name = NONE)"):
            do(move.source, f"ALTER SUBSCRIPTION upstream {end}")
        do(move.source, "DROP SUBSCRIPTION upstream")


def test_a_login_trigger_that_came_late_is_refused_before_the_fence_locks_everybody_out(
    pg18: Cluster, database: Database, lifecycle: Make
) -> None:
    source = database(pg18)
    do(source, SHOP)
    move = lifecycle(source, database(pg18), tables={"include": ["shop.*"]}, swap={"fence": "read_only"}, **SMALL)
    move.run_all(until="verify")
    do(
        source,
        "CREATE FUNCTION shop.seen() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$BEGIN UPDATE shop.parent SET name = 'seen' WHERE id = 1; END$$",
        "CREATE EVENT TRIGGER seen ON login EXECUTE FUNCTION shop.seen()",
    )
    refused = str(move.refused("swap", PreflightRefused))
    assert "nobody can log in any more" in refused and "ALTER EVENT TRIGGER seen DISABLE;" in refused
    assert not fenced(move)
    do(source, "ALTER EVENT TRIGGER seen DISABLE")
    move.run("swap")
    assert fenced(move)
    assert differences(move.source, move.target) == []


# --- cleanup ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["change_log", "wal"])
def test_a_write_between_cleanups_count_and_its_lock_is_not_lost(
    shop: Make, monkeypatch: pytest.MonkeyPatch, rows: str
) -> None:
    move = shop(capture={"rows": rows})
    move.run_all(until="swap")
    with monkeypatch.context() as late:
        after_each(late, cleanup, "refuse_late_changes", once("DELETE FROM shop.parent WHERE id = 4", dsn=move.source))
        assert "shop.parent: 1" in str(move.refused("cleanup", StageFailed))
    logs = move.target if rows == "wal" else move.source
    with psycopg.connect(logs) as conn:
        named = conn.execute(f"SELECT op::text, old_1 FROM {log_of(move, 'parent')}".encode()).fetchall()
    assert named == [("D", 4)]
    do(move.target, "DELETE FROM shop.parent WHERE id = 4")
    remedy = move.refused("cleanup", StageFailed).sql
    assert remedy
    do(logs, remedy)
    assert move.run("cleanup").state == "done"
    assert left_behind(move.source) == []


def test_a_write_into_the_table_that_was_replaced_is_not_lost(rewrite: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    move = rewrite()
    stale = "UPDATE pgddl_old_public.items SET code = 'stale' WHERE id = 7"
    move.run_all(until="swap")
    do(move.source, stale)
    remedy = move.refused("cleanup", StageFailed).sql
    assert remedy
    assert one(move.source, "SELECT code FROM pgddl_old_public.items WHERE id = 7") == "stale"
    do(move.source, remedy)
    with monkeypatch.context() as late:
        after_each(late, cleanup, "refuse_late_changes", once(stale, dsn=move.source))
        move.refused("cleanup", StageFailed)
    do(move.source, remedy)
    # What comes later than that finds no table any more.
    unseen = []

    def too_late(number: int) -> None:
        try:
            do(move.source, stale)
        except pg.UndefinedTable:
            return
        unseen.append(number)

    after_each(monkeypatch, cleanup, "stop_capture", too_late)
    move.run("cleanup")
    assert unseen == []
    assert left_behind(move.source) == ["schema pgddl"]


def test_a_cleanup_that_is_killed_at_its_end_is_finished_by_the_next(
    shop: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = shop()
    move.run_all(until="swap")

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(cleanup, "forget_capture", kill)
        with pytest.raises(Killed):
            move.run("cleanup")
    assert left_behind(move.source) != []
    assert move.run("cleanup").state == "nothing_to_do"
    assert left_behind(move.source) == []


# --- the swap in place waits for others -------------------------------------------------------------------------------


def test_a_swap_that_waits_opens_no_more_sessions(rewrite: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    move = rewrite(swap={"lock_timeout": "10ms"})
    move.run_all(until="verify")
    counts = []
    with in_transaction(move.source, "SELECT count(*) FROM items") as reader:

        def count(number: int) -> None:
            counts.append(sessions(move, move.source))
            if number == 8:
                reader.commit()

        before_each(monkeypatch, exchange, "lock_all", count)
        move.run("swap")
    assert len(counts) >= 8
    assert set(counts[1:]) == {counts[1]}


SIGNALLED = "SELECT signal, pid, succeeded FROM pgddl.killed_blockers ORDER BY id"


def test_who_has_been_in_the_way_for_long_is_signalled_where_that_is_asked_for_and_nobody_else(rewrite: Make) -> None:
    move = rewrite(swap={"signal_blockers": "cancel_then_terminate"})
    do(move.source, "CREATE TABLE elsewhere (id int)", "INSERT INTO elsewhere VALUES (1)")
    move.run_all(until="verify")
    uses, over, expected = [0], threading.Event(), []

    def use() -> None:
        """The table's users, whose short transactions are in the way of many a try."""
        with psycopg.connect(move.source) as conn:
            while not over.is_set():
                conn.execute("SELECT count(*), pg_sleep(0.02) FROM items")
                conn.commit()
                uses[0] += 1

    held_elsewhere = ["UPDATE elsewhere SET id = 2", "SELECT pg_advisory_lock(7)"]
    with in_transaction(move.source, *held_elsewhere) as other, Underway(use) as using:
        for stage, becomes in (("swap", "bigint"), ("revert", "integer")):
            with psycopg.connect(move.source) as reader:
                pid = reader.info.backend_pid
                reader.execute("SELECT count(*) FROM items")
                wait_for(lambda n=uses[0]: uses[0] > n + 3, using)
                move.run(stage)
                with pytest.raises(psycopg.OperationalError):
                    reader.execute("SELECT")
            expected += [("cancel", pid, True), ("terminate", pid, True)]
            assert type_of_id(move) == becomes
        over.set()
        using.finish()
        other.commit()
    assert move.journal(SIGNALLED) == expected


def test_nobody_is_signalled_where_that_is_not_asked_for(rewrite: Make) -> None:
    move = rewrite()
    move.run_all(until="verify")
    with in_transaction(move.source, "SELECT count(*) FROM items") as reader:
        assert move.refused("swap", swap={"retries": 5}).retryable
        assert reader.execute("SELECT count(*) FROM items").fetchone() == (60,)
    assert move.journal(SIGNALLED) == []
    assert type_of_id(move) == "integer"


def test_the_swap_and_its_revert_wait_for_a_transaction_with_an_older_snapshot(
    rewrite: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = rewrite()
    move.run_all(until="verify")
    run_behind_a_snapshot(move, "swap", monkeypatch, exchange, "INSERT INTO items VALUES (1001, 'newer')")
    assert type_of_id(move) == "bigint"
    run_behind_a_snapshot(move, "revert", monkeypatch, revert, "INSERT INTO items VALUES (1002, 'newest')")
    assert type_of_id(move) == "integer"
    assert one(move.source, "SELECT count(*) FROM items") == 62


def test_tables_that_are_rewritten_once_each_are_no_table_that_never_rests(
    source_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(backfill.RESTARTS + 1)]
    for name in names:
        do(source_dsn, f"CREATE TABLE {name} AS SELECT n AS id FROM generate_series(1, 50) n")
        do(source_dsn, f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
    move = lifecycle(source_dsn, rewrite={f"public.{name}": {} for name in names}, **SMALL)
    move.run_all(until="snapshot")
    left, copy = [t.id for t in Journal(connect(source_dsn, purpose="test"), move.name).tables.of(1)], backfill._copy

    def one_more_is_rewritten(context: Context, tables: Sequence[TableRow]) -> list[ShareDone]:
        return [replace(done, rewritten=(left.pop(),) if left else ()) for done in copy(context, tables)]

    monkeypatch.setattr(backfill, "_copy", one_more_is_rewritten)
    assert set(move.run("backfill").tables) == {f"public.{name}" for name in names} and not left
    move.run_all(until="verify", after="backfill")
    assert [one(source_dsn, f"SELECT count(*) FROM pgddl_copy_public.{name}") for name in names] == [50] * len(names)


def test_a_verification_that_died_or_has_found_differences_is_none(shop: Make, at: At) -> None:
    """Differing rows are counted as far as anybody has."""
    move = shop()
    do(move.source, "INSERT INTO shop.parent SELECT n, 'p' FROM generate_series(100, 400) n")
    move.run_all(until="replay")

    def die(number: int) -> None:
        raise Killed

    with at("verify.before_compared_commit", die), pytest.raises(Killed):
        move.run("verify")
    assert "not verified to the end" in str(move.refused("swap", PreflightRefused))
    do(move.target, "UPDATE shop.parent SET name = 'other' WHERE id >= 100")
    assert "shop.parent: at least 100 rows differ" in move.refused("verify").what
    assert "at least 100 rows differ" in str(move.refused("swap"))
