"""C36: windows take a bounded part of a log, giving way has an end, and who gets nowhere says so."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import Busy, GaveWay
from airflow_provider_pgddl.engine.following import catch_up, row_comparison
from airflow_provider_pgddl.engine.job import context
from airflow_provider_pgddl.engine.parallel import spark
from airflow_provider_pgddl.engine.rows import window_locks, windows
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs
from airflow_provider_pgddl.engine.server import giving_way, strong_locks
from airflow_provider_pgddl.engine.stages import backfill
from tests.combinations import matrix
from tests.integration.calls import before_each
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import Underway, do, holds, in_transaction, one, wait_for, waits

Make = Callable[..., Lifecycle]


# --- a part of a log --------------------------------------------------------------------------------------------------

ITEMS = """
    CREATE TABLE items (id int PRIMARY KEY, code text UNIQUE, body text);
    INSERT INTO items SELECT n, 'c' || n, 'x' FROM generate_series(1, 300) n
"""
WAYS = ["change_log", "wal", "in place"]


@pytest.fixture
def make(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Lifecycle]:
    """A pipeline whose windows take ten rows of a log."""
    monkeypatch.setattr(context, "LEAST_TAKEN", 1)
    monkeypatch.setattr(context, "TAKEN_IN_PEACE", 1)
    do(source_dsn, ITEMS)
    small = {"replay": {"window_rows": 10, "until_lag": "30s"}, "backfill": {"workers": 1}}

    def made(way: str, **more: Any) -> Lifecycle:
        if way == "in place":
            return lifecycle(source_dsn, rewrite={"public.items": {}}, **small | more)
        capture = {"rows": way, "ddl": "queue"}
        return lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture=capture, **small | more)

    return made


def equal(move: Lifecycle) -> bool:
    if move.source != move.target:
        return differences(move.source, move.target) == []
    copied = "SELECT count(*) FROM (SELECT * FROM {} EXCEPT SELECT * FROM {}) d"
    there = ("items", "pgddl_copy_public.items")
    return all(one(move.source, copied.format(*each)) == 0 for each in (there, there[::-1]))


def every_window(monkeypatch: pytest.MonkeyPatch) -> list[windows.Window]:
    """Collects what the windows from now on have done."""
    done, number = list[windows.Window](), windows.note_window

    def noted(journal: Any, replica: Any, window: windows.Window, *rest: Any) -> int:
        done.append(window)
        return number(journal, replica, window, *rest)

    monkeypatch.setattr(windows, "note_window", noted)
    return done


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("way", matrix(*WAYS))
def test_c36_a_unique_value_that_moves_across_the_end_of_what_is_taken(
    make: Callable[..., Lifecycle], monkeypatch: pytest.MonkeyPatch, way: str, guarded: bool
) -> None:
    """Who has the value now is in the first part of the log, and who had it is not: nothing may be filled before both
    have left the copy."""
    move = make(way)
    move.run_all(until="schema_sync")
    do(
        move.source,
        "UPDATE items SET body = 'early' WHERE id = 2",
        "UPDATE items SET body = 'between' WHERE id BETWEEN 100 AND 130",
        "UPDATE items SET code = 'gone' WHERE id = 1; UPDATE items SET code = 'c1' WHERE id = 2",
    )
    done = every_window(monkeypatch)
    if not guarded:
        monkeypatch.setattr(Logs, "left", lambda *_: {})
    result = move.run("replay")
    assert bool(result.blocked) is not guarded
    if guarded:
        assert sum(1 for w in done if w.left) >= 3
        assert all(w.pending >= w.left and not w.rows for w in done if w.left)
        assert equal(move)
        move.run_all(after="replay", until="swap")
        assert differences(move.source, move.target) == []


class Killed(BaseException):
    """As by a signal: nothing of ours handles it."""


@pytest.mark.parametrize("border", ["between two", "before the source commits"])
@pytest.mark.parametrize("way", matrix(*WAYS))
def test_c36_killed_after_the_second_of_three_parts(
    make: Callable[..., Lifecycle], monkeypatch: pytest.MonkeyPatch, way: str, border: str
) -> None:
    move = make(way)
    move.run_all(until="backfill")
    do(move.source, "UPDATE items SET body = 'changed', code = 'd' || id WHERE id <= 25")
    where, step, number = (
        (window_locks, "lock_tables", 3) if border == "between two" else (change_log, "acknowledge", 2)
    )

    def kill(n: int) -> None:
        if n == number:
            raise Killed

    with monkeypatch.context() as patch:
        before_each(patch, where, step, kill)
        with pytest.raises(Killed):
            move.run("schema_sync")
    pending = one(
        move.target, f"SELECT count(*) FROM pgddl.pending_{move.journal('SELECT id FROM pgddl.tables')[0][0]}"
    )
    # In place both are one transaction.
    assert pending == (10 if (way, border) == ("in place", "before the source commits") else 20)
    do(move.source, "UPDATE items SET code = 'e' || id WHERE id BETWEEN 20 AND 30")
    done = every_window(monkeypatch)
    move.run("schema_sync")
    assert done[-1].left == 0
    move.run("replay")
    assert equal(move)
    move.run_all(after="replay", until="swap")
    assert differences(move.source, move.target) == []


@pytest.mark.parametrize("way", WAYS)
def test_c36_what_comes_into_free_space_of_a_log_is_not_forgotten(
    make: Callable[..., Lifecycle], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It stands before the end of what is taken, and the snapshot does not show it."""
    move = make(way)
    move.run_all(until="schema_sync")
    log = f"pgddl.{move.journal('SELECT log_table FROM pgddl.tables')[0][0]}"
    side = move.target if way == "wal" else move.source
    late = iter(range(200, 300))

    def write(_: int) -> None:
        do(move.source, f"UPDATE items SET code = 'late ' || id WHERE id = {next(late)}")

    do(move.source, "UPDATE items SET body = 'changed' WHERE id <= 25")
    with monkeypatch.context() as patch:  # one window, whose part leaves free space
        patch.setattr(catch_up, "no_shorter", lambda _: True)
        before_each(patch, window_locks, "lock_tables", lambda n: _raise(Killed) if n == 2 else None)
        with pytest.raises(Killed):
            move.run("replay")
    do(side, f"VACUUM {log}")
    places: list[str] = []
    from airflow_provider_pgddl.engine.rows import windows_in_place

    def look(n: int) -> None:
        if n < 4:
            write(n)
            if way != "wal":  # whose log has it once the next window reads the slot
                places.extend(place for (place,) in move.on_source(f"SELECT ctid::text FROM {log}"))

    before_each(monkeypatch, windows_in_place if way == "in place" else windows, "stage_keys", look)
    move.run("replay")
    assert way == "wal" or any(place.startswith("(0,") for place in places)
    move.run("replay")
    assert equal(move)
    move.run_all(after="replay", until="swap")
    assert differences(move.source, move.target) == []


def _raise(error: type[BaseException]) -> None:
    raise error


def test_c36_ddl_finds_room_after_as_many_parts_as_it_takes(
    make: Callable[..., Lifecycle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NULLs that the source has no more have all left the copy before SET NOT NULL."""
    move = make("change_log")
    do(move.source, "UPDATE items SET body = NULL")
    move.run_all(until="schema_sync")
    do(move.source, "UPDATE items SET body = 'filled'", "ALTER TABLE items ALTER body SET NOT NULL")
    move.run("replay")
    assert equal(move)


def test_c36_revert_takes_parts_as_well(make: Callable[..., Lifecycle], monkeypatch: pytest.MonkeyPatch) -> None:
    move = make("in place")
    move.run_all(until="swap")
    do(move.source, "UPDATE items SET body = 'new', code = 'n' || id")
    before = move.on_source("SELECT * FROM items ORDER BY id")
    done = every_window(monkeypatch)
    move.run("revert")
    assert sum(1 for w in done if w.left) >= 20
    assert move.on_source("SELECT * FROM items ORDER BY id") == before


# --- giving way has an end --------------------------------------------------------------------------------------------


@pytest.fixture
def insisting(monkeypatch: pytest.MonkeyPatch) -> list[GaveWay]:
    """From the first try on; collects what was given way to."""
    monkeypatch.setattr(giving_way, "INSIST_FROM", 0)
    monkeypatch.setattr(giving_way, "ASKED_FOR", 60)
    given, wait = list[GaveWay](), giving_way.Patience.wait

    def waited(self: giving_way.Patience, error: GaveWay, *rest: float) -> None:
        given.append(error)
        wait(self, error, *rest)

    monkeypatch.setattr(giving_way.Patience, "wait", waited)
    return given


@pytest.mark.parametrize("way", ["change_log", "in place"])
def test_c36_who_insists_waits_for_its_lock_and_lets_others_wait(
    make: Callable[..., Lifecycle], insisting: list[GaveWay], way: str
) -> None:
    move = make(way, swap={"lock_timeout": "20s"})
    move.run_all(until="schema_sync")
    do(move.source, "UPDATE items SET body = 'changed' WHERE id < 5")
    copy = "items" if way == "change_log" else "pgddl_copy_public.items"
    with in_transaction(move.target, f"LOCK TABLE {copy} IN EXCLUSIVE MODE") as slow:
        with in_transaction(move.source, "LOCK TABLE items IN ACCESS EXCLUSIVE MODE") as application:
            with Underway(lambda: move.run("replay")) as running:
                wait_for(lambda: waits(move.source, "AccessShareLock", "items"), running)
                application.rollback()
                wait_for(lambda: holds(move.source, "items"), running)
                with Underway(lambda: do(move.source, "BEGIN; LOCK TABLE items; COMMIT")) as asking:
                    wait_for(lambda: waits(move.source, "AccessExclusiveLock", "items"), asking)
                    seen = time.monotonic()
                    wait_for(lambda: time.monotonic() - seen > 3 * giving_way.LOOK_EVERY, asking)
                    assert not asking.over
                    at_least = (time.monotonic() - seen) * 1000
                    slow.rollback()
                    asking.finish(60)
                result = running.finish()
    assert insisting == []
    assert result.figures["longest_wait_ms"] >= round(at_least)
    assert equal(move)


@pytest.mark.parametrize("way", ["change_log", "in place"])
def test_c36_who_insists_lets_nobody_wait_for_longer_than_a_swap(
    make: Callable[..., Lifecycle], insisting: list[GaveWay], way: str
) -> None:
    move = make(way)
    move.run_all(until="schema_sync")
    do(move.source, "UPDATE items SET body = 'changed' WHERE id < 5")
    copy = "items" if way == "change_log" else "pgddl_copy_public.items"
    with in_transaction(move.target, f"LOCK TABLE {copy} IN EXCLUSIVE MODE") as slow:
        with Underway(lambda: move.run("replay")) as running:
            wait_for(lambda: holds(move.source, "items"), running)
            do(move.source, "BEGIN; LOCK TABLE items; COMMIT")
            wait_for(lambda: insisting, running)
            slow.rollback()
            result = running.finish()
    assert re.search(r"gave way to process \d+ \((BEGIN|LOCK TABLE items)", insisting[0].what)
    assert result.figures["longest_wait_ms"] >= 50
    assert equal(move)


# --- who gets nowhere says so -----------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (context, strong_locks, giving_way):
        monkeypatch.setattr(module, "SAY_EVERY", 0.1)


def said(capsys: pytest.CaptureFixture[str], line: str, so_far: list[str]) -> bool:
    so_far.append(capsys.readouterr().out)
    return re.search(line, "".join(so_far), re.MULTILINE) is not None


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("stage", ["schema_sync", "replay"])
def test_c36_a_window_that_gets_nowhere_says_why(
    make: Callable[..., Lifecycle], capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    move, lines = make("in place"), list[str]()
    move.run_all(until="backfill" if stage == "schema_sync" else "schema_sync")
    do(move.source, "UPDATE items SET body = 'changed' WHERE id < 5")
    with in_transaction(move.source, "LOCK TABLE items IN ACCESS EXCLUSIVE MODE -- of 'x'") as application:
        pid = application.info.backend_pid
        line = (
            rf"^pgddl {stage}: gave way \d+ times in \d+ s: is locked by another session; in front: process {pid}"
            r" \(LOCK TABLE items IN ACCESS EXCLUSIVE MODE -- of\)"
        )
        with Underway(lambda: move.run(stage)) as running:
            wait_for(lambda: said(capsys, line, lines), running)
            application.rollback()


@pytest.mark.usefixtures("soon")
def test_c36_a_window_that_waits_on_the_target_says_for_whom(
    make: Callable[..., Lifecycle], capsys: pytest.CaptureFixture[str]
) -> None:
    move, lines = make("change_log"), list[str]()
    move.run_all(until="schema_sync")
    do(move.source, "UPDATE items SET body = 'changed' WHERE id < 5")
    with in_transaction(move.target, "LOCK TABLE items IN EXCLUSIVE MODE") as slow:
        line = rf"^pgddl replay: this has been under way for \d+ s; in front: process {slow.info.backend_pid} \(LOCK"
        with Underway(lambda: move.run("replay")) as running:
            wait_for(lambda: said(capsys, line, lines), running)
            slow.rollback()


@pytest.mark.usefixtures("soon")
def test_c36_a_swap_that_does_not_get_its_locks_says_who_has_them(
    make: Callable[..., Lifecycle], capsys: pytest.CaptureFixture[str]
) -> None:
    move, lines = make("in place", swap={"retries": 1000}), list[str]()
    move.run_all(until="verify")
    with in_transaction(move.source, "SELECT count(*) FROM items") as reader:
        pid = reader.info.backend_pid
        line = rf"^pgddl swap: swap: \d+ of 1000 tries in \d+ s: .*; in front: process {pid} \(SELECT count\)"
        with Underway(lambda: move.run("swap")) as running:
            wait_for(lambda: said(capsys, line, lines), running)
            reader.rollback()


@pytest.mark.parametrize("side", ["source", "target"])
def test_c36_chunks_that_wait_say_for_whom(
    make: Callable[..., Lifecycle], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    monkeypatch.setattr("airflow_provider_pgddl.engine.progress.LINE_EVERY", 0.1)
    move, lines = make("change_log"), list[str]()
    move.run_all(until="snapshot")
    dsn, mode = (move.source, "ACCESS EXCLUSIVE") if side == "source" else (move.target, "EXCLUSIVE")
    with in_transaction(dsn) as slow:
        lock = f"LOCK TABLE items IN {mode} MODE".encode()
        before_each(monkeypatch, backfill, "_one_round", lambda n: slow.execute(lock) if n == 1 else None)
        line = rf"^pgddl backfill: 0/1 chunks, .*; in front: process {slow.info.backend_pid} \(LOCK TABLE items"
        with Underway(lambda: move.run("backfill")) as running:
            wait_for(lambda: said(capsys, line, lines), running)
            slow.rollback()


# --- over Spark -------------------------------------------------------------------------------------------------------


def test_c32_workers_are_there_before_each_window_that_needs_them(
    make: Callable[..., Lifecycle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark is played: its workers take longer than `ddl.retry_for` each time, and once they are taken by others."""
    move = make("change_log", ddl={"retry_for": "1s"}, backfill={"workers": 2, "chunk_bytes": "8kB"})
    move.run_all(until="backfill")
    do(move.source, "UPDATE items SET body = 'changed'")
    move.run("schema_sync")
    move.content["spark"] = {"begin": "at_once"}
    steps = list[str]()
    snapshots = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE backend_xmin IS NOT NULL AND application_name LIKE 'pgddl:%:window'"
    )

    def start(app: str, *, workers: int, **_: Any) -> int:
        assert one(move.source, snapshots) == 0
        steps.append(app.split()[1])
        time.sleep(0.3)
        return workers

    def spread(work: Callable[[Any], Any], parts: Sequence[Any], **options: Any) -> list[Any]:
        assert options["begin_within"] > 0
        steps.append("spread")
        if steps.count("spread") == 2:
            raise Busy("Spark had no core free within 5 s")
        return [work(part) for part in parts]

    monkeypatch.setattr(spark, "start", start)
    monkeypatch.setattr(spark, "spread", spread)
    monkeypatch.setattr(row_comparison, "_worth_spreading", lambda *_: True)
    move.run("replay")
    assert steps.count("spread") > 10  # 300 keys, ten a window
    assert steps == ["replay", "spread"] * steps.count("spread")
    steps.clear()
    move.run("verify")
    assert "spread" in steps
    assert steps == ["verify", "spread"] * steps.count("spread")
    assert equal(move)
