"""C11: nobody who outlives his run or his window commits, and nothing is believed that either server may have lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import Fenced, PgddlError, PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.following import ddl as following
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.parallel import spark
from airflow_provider_pgddl.engine.rows import fill, ingest_for_ddl, reload, window_locks, windows
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.stages import StageResult
from tests.conftest import Database, database_name
from tests.failpoints import At
from tests.integration.calls import Paused, before_each
from tests.integration.items import ITEMS, SMALL
from tests.integration.lifecycle import Lifecycle, left_behind, wait_until
from tests.integration.sessions import Underway, do, one, wait_for

Make = Callable[..., Lifecycle]


@pytest.fixture
def items(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    """A migration of one table of several chunks."""
    do(source_dsn, ITEMS)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.items"]}, **SMALL)


def end_driver(pipeline: Lifecycle) -> None:
    """What is left of a run whose driver died while its worker lives on: everything but the lock."""
    end = (
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
        " WHERE application_name = %s AND datname = current_database()"
    )
    assert one(pipeline.target, end, f"pgddl:{pipeline.name}:0:lease") == 1


def sessions_of(pipeline: Lifecycle, dsn: str) -> set[int]:
    """The tokens that our sessions in a database work with."""
    query = (
        "SELECT split_part(application_name, ':', 3)::int FROM pg_stat_activity"
        " WHERE application_name LIKE %s AND datname = current_database()"
    )
    with psycopg.connect(dsn) as conn:
        return {token for (token,) in conn.execute(query, [f"pgddl:{pipeline.name}:%"])} - {0}


def test_c11_a_zombie_of_an_old_window_cannot_commit(items: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where its backends live on: what an old snapshot shows must not overwrite what a newer run has read."""
    items.run_all(until="schema_sync")
    do(items.source, "UPDATE items SET code = 'old' WHERE id = 1")
    paused = Paused(monkeypatch, "window")
    with Underway(lambda: items.run("replay")) as zombie:
        wait_for(paused.reached.is_set, zombie)
        do(items.source, "UPDATE items SET code = 'new' WHERE id = 1")
        monkeypatch.setattr(Lease, "terminate_stale", lambda *_: 0)
        end_driver(items)
        with Underway(lambda: items.run("replay")) as retry:
            blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            wait_for(lambda: one(items.target, blocked), retry)
            paused.go_on.set()
            zombie.fails(Fenced)
            retry.finish()
    assert one(items.target, "SELECT code FROM items WHERE id = 1") == "new"
    assert differences(items.source, items.target) == []


def test_c11_the_next_run_ends_the_backends_that_an_older_one_left(
    items: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    items.run_all(until="snapshot")
    paused = Paused(monkeypatch, "copy")
    with Underway(lambda: items.run("backfill")) as zombie:
        wait_for(paused.reached.is_set, zombie)
        (old,) = sessions_of(items, items.source)
        end_driver(items)
        items.run("backfill")
        assert old not in sessions_of(items, items.source) | sessions_of(items, items.target)
        paused.go_on.set()
        zombie.fails(PgddlError)
    items.run_all(after="backfill", until="verify")
    assert differences(items.source, items.target) == []


def test_c11_a_worker_that_outlives_its_window_cannot_commit(items: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark lost sight of it, and a second worker has done its part: both have the same token."""
    items.content |= {"backfill": {"chunk_bytes": "1MB", "workers": 2}, "replay": {"window_rows": 140}}
    items.content |= {"spark": {"begin": "at_once"}}
    items.run_all(until="backfill")
    do(items.source, "UPDATE items SET code = 'old ' || id")
    items.run("schema_sync")
    paused = Paused(monkeypatch, ":fill")
    lost: list[Underway[Any]] = []

    def spread(work: Callable[[Any], Any], parts: Sequence[Any], **_: Any) -> list[Any]:
        if lost:
            return [work(part) for part in parts]
        lost.append(Underway(lambda: work(parts[0])).__enter__())
        wait_for(paused.reached.is_set, lost[0])
        # What it read is over before the next window.
        do(items.source, "DELETE FROM items WHERE id % 2 = 0", "UPDATE items SET code = 'new ' || id")
        return [work(part) for part in parts[1:]]

    monkeypatch.setattr(spark, "spread", spread)
    monkeypatch.setattr(spark, "start", lambda *_, **__: 2)
    before_each(monkeypatch, window_locks, "lock_tables", lambda n: paused.go_on.set() if n == 3 else None)
    blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
    with Underway(lambda: wait_until(lambda: paused.go_on.is_set() or one(items.target, blocked))) as meeting:
        with Underway(lambda: items.run("replay")) as replay:
            meeting.finish()  # the next window meets what the lost worker holds, or is over
            paused.go_on.set()
            replay.finish()
    lost[0].fails((PgddlError, psycopg.Error))
    items.run_all(after="replay", until="swap")
    assert differences(items.source, items.target) == []


def test_c11_a_worker_that_comes_late_to_its_window_cannot_commit(
    items: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second attempt at a part, while the window has all that it waited for and still counts what is left: it can
    take the snapshot up, and reads what is over by the next window."""
    items.content |= {"backfill": {"chunk_bytes": "1MB", "workers": 2}, "replay": {"window_rows": 140}}
    items.content |= {"spark": {"begin": "at_once"}}
    items.run_all(until="backfill")
    do(items.source, "UPDATE items SET code = 'old ' || id")
    items.run("schema_sync")
    given, late, lock = list[Any](), list[Underway[Any]](), fill.foreign_code.lock
    reached, go_on = threading.Event(), threading.Event()

    def spread(work: Callable[[Any], Any], parts: Sequence[Any], **_: Any) -> list[Any]:
        given.append(partial(work, parts[0]))
        return [work(part) for part in parts[1:]]

    def lock_and_wait(conn: Session, *args: Any, **options: Any) -> None:
        lock(conn, *args, **options)
        if late and not reached.is_set() and conn.info.get_parameters()["application_name"].endswith(":fill read"):
            reached.set()
            assert go_on.wait(60)

    def begin_late(_: int) -> None:
        if given and not late:
            late.append(Underway(given[0]).__enter__())
            wait_for(reached.is_set, late[0])
            do(items.source, "DELETE FROM items WHERE id % 2 = 0", "UPDATE items SET code = 'new ' || id")

    monkeypatch.setattr(spark, "spread", spread)
    monkeypatch.setattr(spark, "start", lambda *_, **__: 2)
    monkeypatch.setattr(fill.foreign_code, "lock", lock_and_wait)
    before_each(monkeypatch, windows, "count_pending", begin_late)
    before_each(monkeypatch, window_locks, "lock_tables", lambda n: go_on.set() if n == 3 else None)
    items.run("replay")
    go_on.set()
    late[0].fails((PgddlError, psycopg.Error))
    assert differences(items.source, items.target) == []


def test_c11_the_sessions_of_a_namesake_in_another_database_are_left_alone(
    items: Lifecycle, pg18: Cluster, database: Database
) -> None:
    items.run_all(until="snapshot")
    with connect(database(pg18), purpose="copy", pipeline=items.name, token=4711) as namesake:
        items.run("backfill")
        assert namesake.execute("SELECT 1").fetchone() == (1,)


def test_c11_a_takeover_waits_for_a_transaction_that_has_looked_at_its_token(items: Lifecycle) -> None:
    items.run("setup")
    with Lease(items.target, items.name, "first", None) as first:
        first.take()
        with connect(items.target, purpose="copy", pipeline=items.name, token=first.token) as worker:
            with worker.transaction():
                lease.check(worker, first.fence)
                first.close()
                with Lease(items.target, items.name, "second", None) as second, Underway(second.take) as taking:
                    blocked = (
                        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                        " AND datname = current_database()"
                    )
                    wait_for(lambda: one(items.target, blocked), taking)
                    worker.execute("COMMIT")
                    taking.finish()
                    with pytest.raises(Fenced):
                        lease.check(worker, first.fence)


FLUSHED = "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn"


@contextmanager
def without_wal_writer(dsn: str) -> Iterator[None]:
    """Nobody but a committing session flushes; a checkpoint does, but there is none within a test."""
    pid = one(dsn, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("guarded", [True, False])
def test_c11_a_commit_that_can_still_be_lost_is_not_copied(
    items: Lifecycle, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """synchronous_commit = off can be seen before it is on disk; without the guard the target had it first."""
    items.run_all(until="schema_sync")
    flushed: list[bool] = []
    acknowledge = change_log.acknowledge

    def look_and_acknowledge(*args: Any) -> None:
        if one(items.target, "SELECT count(*) FROM items WHERE code = 'asynchronous'"):
            flushed.append(one(items.source, FLUSHED, lsn))
        acknowledge(*args)

    monkeypatch.setattr(change_log, "acknowledge", look_and_acknowledge)
    if not guarded:
        monkeypatch.setattr(windows, "flush", lambda *_: None)
    with without_wal_writer(items.source):
        do(items.source, "SET synchronous_commit = off; UPDATE items SET code = 'asynchronous' WHERE id = 1")
        lsn = one(items.source, "SELECT pg_current_wal_insert_lsn()::text")
        items.run("replay")
    assert flushed[:1] == [guarded]


@pytest.mark.parametrize("guarded", [True, False])
def test_c11_ddl_that_can_still_be_lost_is_not_followed(
    items: Lifecycle, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    items.run_all(until="schema_sync")
    flushed: list[bool] = []
    decide = following.decide

    def look_and_decide(*args: Any) -> Any:
        flushed.append(one(items.source, FLUSHED, lsn))
        return decide(*args)

    monkeypatch.setattr(following, "decide", look_and_decide)
    if not guarded:
        monkeypatch.setattr(following, "flush", lambda *_: None)
    with without_wal_writer(items.source):
        do(items.source, "SET synchronous_commit = off; ALTER TABLE items ALTER filler SET DEFAULT 'asynchronous'")
        lsn = one(items.source, "SELECT pg_current_wal_insert_lsn()::text")
        items.run("replay")
    assert flushed[:1] == [guarded]


def test_c11_what_is_read_beside_windows_is_on_the_sources_disk_first(
    items: Lifecycle, monkeypatch: pytest.MonkeyPatch, at: At
) -> None:
    """Blocks, room for DDL, all keys of a table, and those of another part of its rows."""
    written, flushed = list[str](), dict[str, bool]()

    def write(number: int) -> None:
        if number == 1:
            do(items.source, "SET synchronous_commit = off; UPDATE items SET code = code || '.' WHERE id = 1")
            written.append(one(items.source, "SELECT pg_current_wal_insert_lsn()::text"))

    def look(before_commit: str) -> None:
        flushed.setdefault(before_commit, one(items.source, FLUSHED, written[-1]))

    items.content["replay"] = {"window_rows": 1000}
    items.run_all(until="snapshot")
    with without_wal_writer(items.source):
        write(1)
        with at("backfill.before_chunk_commit", lambda _: look("blocks")):
            items.run("backfill")
        items.run("schema_sync")
        steps: list[tuple[str, Any, str, Callable[[Lifecycle], object]]] = [
            ("ddl.before_room_commit", ingest_for_ddl, "_clear_across", followed_ddl),
            ("settle.before_part_commit", reload, "lock_tables", read_in_part),
            ("settle.before_reload_commit", reload, "lock_tables", read_again),
        ]
        for before_commit, module, reads, step in steps:
            with monkeypatch.context() as patched, at(before_commit, lambda _, name=before_commit: look(name)):
                before_each(patched, module, reads, write)
                step(items)
    assert flushed == dict.fromkeys(["blocks", *(before_commit for before_commit, *_ in steps)], True)


def test_c11_a_window_flushes_what_nobody_else_would(items: Lifecycle) -> None:
    """A page of WAL that is not full stays in memory while nobody commits: a window must not wait for others."""
    items.run_all(until="schema_sync")
    with without_wal_writer(items.source):
        do(items.source, "SET synchronous_commit = off; UPDATE items SET code = 'asynchronous' WHERE id = 1")
        assert items.run("replay").figures["keys"] == 1


@pytest.fixture
def restore() -> Callable[[str, str], None]:
    """``restore(dsn, backup)``: the database is what its backup was, as after a failover that lost some."""

    def bring_back(dsn: str, backup: str) -> None:
        name, older = database_name(dsn), database_name(backup)
        oid = one(dsn, "SELECT oid::int FROM pg_database WHERE datname = current_database()")
        do(
            make_conninfo(dsn, dbname="postgres"),
            f"DROP DATABASE {name} WITH (FORCE)",
            f"CREATE DATABASE {name} TEMPLATE {older} OID {oid}",
        )

    return bring_back


@pytest.mark.parametrize("lost", ["schema_sync", "replay"])
def test_c11_a_target_restored_to_an_older_state_has_to_be_verified(
    pg18: Cluster, items: Lifecycle, database: Database, restore: Callable[[str, str], None], lost: str
) -> None:
    items.content["verify"] = {"before_swap": False}
    items.run_all(until={"schema_sync": "backfill", "replay": "schema_sync"}[lost])
    backup = database(pg18, template=database_name(items.target))
    do(items.source, "UPDATE items SET filler = 'in a window that gets lost' WHERE id <= 3")
    items.run(lost)
    restore(items.target, backup)
    if lost == "schema_sync":
        items.run("schema_sync")
    assert "failed over to an older state" in str(items.run("replay").blocked)
    assert "failed over to an older state" in str(items.refused("swap", PreflightRefused))
    assert "rows differ" in str(items.refused("verify", StageFailed))
    assert "failed over to an older state" in str(items.refused("swap", PreflightRefused))
    assert items.run("verify", mend=True).figures["mended"]
    assert differences(items.source, items.target) == []
    items.run("swap")


def followed_ddl(items: Lifecycle) -> StageResult:
    do(items.source, "ALTER TABLE items ADD COLUMN x int")
    return items.run("replay")


def read_in_part(items: Lifecycle) -> StageResult:
    items.content["tables"] = {"include": ["public.items"], "where": {"public.items": "id < 500"}}
    items.run("setup", reconfigure=True)
    return items.run("replay")


def read_again(items: Lifecycle) -> StageResult:
    do(items.target, "ALTER TABLE items ADD COLUMN made uuid DEFAULT gen_random_uuid()")  # which rewrites the copy
    return items.run("replay")


@pytest.mark.parametrize("next_one", [followed_ddl, read_in_part, read_again])
def test_c11_lost_windows_are_told_whatever_comes_before_the_next(
    pg18: Cluster, items: Lifecycle, database: Database, restore: Callable[[str, str], None],
    next_one: Callable[[Lifecycle], StageResult],
) -> None:  # fmt: skip
    """Making room for DDL, and reading a table again, count as windows, and lift the journal's number."""
    items.run_all(until="replay")
    backup = database(pg18, template=database_name(items.target))
    for n in (1, 2, 3):
        do(items.source, f"UPDATE items SET filler = 'in a window that gets lost' WHERE id = {n}")
        items.run("replay")
    restore(items.target, backup)
    assert "failed over to an older state" in str(next_one(items).blocked)


def test_c11_a_window_that_somebody_else_has_taken_is_told_by_the_next(items: Lifecycle, at: At) -> None:
    """As where a clone of the target is replayed under a run: the log rows are gone, and this journal knows nothing."""
    items.run_all(until="replay")

    def take(_: int) -> None:
        do(items.source, "UPDATE pgddl.captures SET window_no = window_no + 1")

    lost = "failed over to an older state"
    with at("replay.after_lock", take):
        assert lost in str(items.run("replay").blocked)
    items.run("verify")
    assert not items.run("replay").blocked
    do(items.source, "UPDATE items SET filler = 'to be compared again' WHERE id = 7")
    with at("replay.after_lock", take):
        items.run("verify")
    assert lost in str(items.run("replay").blocked), "ranges that were compared before say nothing of it"
    items.run("verify")
    with at("cut_over.behind_fence", take):
        assert lost in str(items.refused("swap", PreflightRefused))


def test_c11_a_source_that_a_clone_took_the_place_of_has_to_be_verified(
    pg16: Cluster, items: Lifecycle, database: Database, restore: Callable[[str, str], None]
) -> None:
    """The same cluster and timeline, the same oids: only the number of windows is another one."""
    items.content["verify"] = {"before_swap": False}
    items.run_all(until="replay")
    backup = database(pg16, template=database_name(items.source))
    do(items.source, "UPDATE items SET filler = 'never was' WHERE id <= 3", "DELETE FROM items WHERE id = 10")
    items.run("replay")
    restore(items.source, backup)
    do(items.source, "UPDATE items SET filler = 'after it' WHERE id = 20")
    assert "went back to an older state" in str(items.refused("swap", PreflightRefused))
    assert "went back to an older state" in str(items.run("replay").blocked)
    assert items.run("verify", mend=True).figures["mended"]
    assert differences(items.source, items.target) == []
    assert not items.run("replay").blocked


def test_c11_another_source_is_refused_before_anything_is_made_there(
    pg16: Cluster, pg18: Cluster, items: Lifecycle, database: Database
) -> None:
    items.run_all(until="replay")
    before = items.source
    for cluster, why in ((pg18, "is not the cluster"), (pg16, "does not know pipeline")):
        another = database(cluster)
        do(another, ITEMS)
        items.moved(another)
        for stage in ("setup", "replay"):
            assert why in str(items.refused(stage, StageFailed))
        assert left_behind(another) == []
    assert differences(before, items.target) == []


def test_c11_a_source_that_was_failed_over_has_to_be_verified(items: Lifecycle) -> None:
    items.content["verify"] = {"before_swap": False}
    items.run_all(until="replay")
    timeline = one(items.source, "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int")
    assert items.journal("SELECT source_timeline FROM pgddl.pipelines") == [(timeline,)]
    items.journal("UPDATE pgddl.pipelines SET source_timeline = %s", [timeline - 1])
    assert f"timeline {timeline - 1} → {timeline}" in str(items.refused("swap", PreflightRefused))
    assert "failed over" in str(items.run("replay").blocked)
    assert "failed over" in str(items.refused("swap", PreflightRefused))
    items.run("verify")
    assert not items.run("replay").blocked
    items.run("swap")
