"""correctness.md, part one: rows. Each test bears the number of its rule and fails where the rule is broken."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import connect as connecting
from airflow_provider_pgddl.engine import lease
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.connect import connect
from airflow_provider_pgddl.engine.errors import EXIT_REFUSED, Fenced, PgddlError, PreflightRefused, Retry, StageFailed
from airflow_provider_pgddl.engine.lease import Lease
from airflow_provider_pgddl.engine.rows import chunks, windows
from airflow_provider_pgddl.engine.stages import backfill, schema_sync
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, left_behind
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits

# So small that little data makes many chunks and many windows; one worker, so no SparkSession.
SMALL: dict[str, Any] = {"backfill": {"chunk_bytes": "64kB", "workers": 1}, "replay": {"window_rows": 40}}

Make = Callable[..., Lifecycle]

ITEMS = """
    CREATE TABLE public.items (id int PRIMARY KEY, code text UNIQUE NOT NULL, filler text NOT NULL);
    INSERT INTO items SELECT n, 'c' || n, repeat('x', 400) FROM generate_series(1, 600) n
"""


@pytest.fixture
def items(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    """A migration of one table of several chunks."""
    do(source_dsn, ITEMS)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.items"]}, **SMALL)


def before_each(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, act: Callable[[int], object]) -> list[int]:
    """Has `act(n)` happen right before the n-th call (from 1) of a step of ours; returns the list of calls."""
    step, calls = getattr(where, name), []

    def hooked(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls) + 1)
        act(calls[-1])
        return step(*args, **kwargs)

    monkeypatch.setattr(where, name, hooked)
    return calls


def after_each(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, act: Callable[[int], object]) -> list[int]:
    """Has `act(n)` happen right after the n-th call (from 1) of a step of ours; returns the list of calls."""
    step, calls = getattr(where, name), []

    def hooked(*args: Any, **kwargs: Any) -> Any:
        result = step(*args, **kwargs)
        calls.append(len(calls) + 1)
        act(calls[-1])
        return result

    monkeypatch.setattr(where, name, hooked)
    return calls


def once(*statements: str, dsn: str, at: int = 1) -> Callable[[int], None]:
    """For the two above: these statements, in a session of their own, at the given call."""
    return lambda number: do(dsn, *statements) if number == at else None


# --- C2: capture starts before the first row is read ------------------------------------------------------------------


def test_c02_a_row_in_flight_while_setup_runs_is_not_lost(items: Lifecycle) -> None:
    with in_transaction(items.source, "INSERT INTO items VALUES (1001, 'in flight', 'x')") as writer:
        with Underway(lambda: items.run("setup")) as setup:
            wait_for(lambda: waits(items.source, "ShareRowExclusiveLock", "public.items"), setup)
            writer.execute("UPDATE items SET filler = 'y' WHERE id = 1001")
            writer.commit()
    # A snapshot taken from here on shows the row; bounds read before would not have.
    items.run_all(after="setup", until="swap")
    assert differences(items.source, items.target) == []
    assert one(items.target, "SELECT filler FROM items WHERE id = 1001") == "y"


def test_c02_setup_waits_for_every_transaction_that_is_older_than_capture(items: Lifecycle) -> None:
    do(items.source, "CREATE TABLE elsewhere (n int)")
    with in_transaction(items.source, "INSERT INTO elsewhere VALUES (1)") as older:
        with Underway(lambda: items.run("setup")) as setup:
            captured = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'items'::regclass AND tgname LIKE 'pgddl%'"
            wait_for(lambda: one(items.source, captured) == 2, setup)
            asked = (
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE %s"
                " AND query LIKE '%%pg_snapshot_xip%%')"
            )
            wait_for(lambda: one(items.source, asked, f"pgddl:{items.name}:%"), setup)
            assert not setup.over
            older.execute("INSERT INTO items VALUES (1002, 'older', 'x')")
            older.commit()
    items.run_all(after="setup", until="swap")
    assert differences(items.source, items.target, [("public", "items")]) == []
    assert one(items.target, "SELECT count(*) FROM items WHERE id = 1002") == 1


# --- C3: lock before snapshot -----------------------------------------------------------------------------------------

NEW_FILES = {
    "truncated": ["TRUNCATE items", "INSERT INTO items SELECT n, 'new ' || n, 'y' FROM generate_series(1, 50) n"],
    "emptied and vacuumed": ["DELETE FROM items WHERE id % 3 > 0", "VACUUM FULL items"],
    "clustered": ["UPDATE items SET filler = repeat('z', 300) WHERE id % 7 = 0", "CLUSTER items USING items_pkey"],
}


@pytest.mark.parametrize("how", NEW_FILES)
@pytest.mark.parametrize("moment", ["between planning and copying", "between two chunks"])
def test_c03_a_table_whose_file_is_replaced_is_copied_again(
    items: Lifecycle, monkeypatch: pytest.MonkeyPatch, how: str, moment: str
) -> None:
    items.run_all(until="snapshot")
    happens = once(*NEW_FILES[how], dsn=items.source, at=1 if moment.endswith("copying") else 3)
    calls = before_each(monkeypatch, chunks._Worker, "_copy", happens)
    items.run_all(after="snapshot", until="swap")
    assert len(calls) > 3
    assert differences(items.source, items.target) == []


def test_c03_without_looking_at_the_file_rows_would_be_lost(items: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above are good for: only the comparison of files keeps those rows."""
    items.run_all(until="snapshot")
    before_each(monkeypatch, chunks._Worker, "_copy", once(*NEW_FILES["clustered"], dsn=items.source, at=3))
    monkeypatch.setattr(chunks._Worker, "_lock_and_compare", lambda *_: None)
    # Chunks done from the old file, the others from the new one: rows of the one are met again in the other.
    do(items.source, "CREATE INDEX by_code ON items (md5(code))", "CLUSTER items USING by_code")
    monkeypatch.setitem(NEW_FILES, "clustered", NEW_FILES["clustered"])
    with pytest.raises(PgddlError):
        items.run_all(after="snapshot", until="verify")


def test_c03_a_window_locks_before_it_has_a_snapshot(items: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    items.run_all(until="schema_sync")
    do(items.source, "UPDATE items SET code = 'changed ' || id WHERE id <= 30")
    snapshots: list[Any] = []
    lock = windows._lock

    def lock_and_look(replica: windows.Replica, tables: Any) -> None:
        if not snapshots:
            # The last moment at which the table can still be replaced.
            do(items.source, "TRUNCATE items", "INSERT INTO items SELECT n, 'new ' || n, 'y' FROM generate_series(1, 50) n")
        lock(replica, tables)
        query = "SELECT coalesce(backend_xmin::text, 'none') FROM pg_stat_activity WHERE pid = %s"
        snapshots.append(one(items.source, query, replica.source.info.backend_pid))

    monkeypatch.setattr(windows, "_lock", lock_and_look)
    items.run_all(after="schema_sync", until="swap")
    assert set(snapshots) == {"none"}
    assert differences(items.source, items.target) == []


@pytest.mark.parametrize("how", NEW_FILES)
def test_c03_a_table_is_replaced_during_replay(items: Lifecycle, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    items.run_all(until="schema_sync")
    do(items.source, "UPDATE items SET code = 'changed ' || id WHERE id <= 200")
    # 200 keys are several windows of 40: in between, some are pending while the file is replaced.
    calls = before_each(monkeypatch, windows, "_lock", once(*NEW_FILES[how], dsn=items.source, at=3))
    items.run_all(after="schema_sync", until="swap")
    assert len(calls) > 3
    assert differences(items.source, items.target) == []


def test_c03_in_place_a_table_is_replaced_while_it_is_copied(
    source_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(source_dsn, ITEMS)
    rewrite = lifecycle(source_dsn, rewrite={"public.items": {"alter": ["ALTER COLUMN id TYPE bigint"]}}, **SMALL)
    rewrite.run_all(until="snapshot")
    happens = once(*NEW_FILES["emptied and vacuumed"], dsn=source_dsn, at=3)
    before_each(monkeypatch, chunks._Worker, "_copy", happens)
    rewrite.run_all(after="snapshot", until="swap")
    left = "SELECT count(*) FROM pgddl_old_public.items o FULL JOIN public.items n ON o::text = n::text WHERE o.id IS NULL OR n.id IS NULL"
    assert one(source_dsn, left) == 0
    assert one(source_dsn, "SELECT count(*) FROM items") == 200
