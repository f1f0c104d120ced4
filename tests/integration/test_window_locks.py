"""What a window locks: tables that it has something to do with, of thousands that it may be over."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import Busy
from airflow_provider_pgddl.engine.following import row_comparison
from airflow_provider_pgddl.engine.rows import window_locks
from tests.failpoints import At, Passes
from tests.integration.by_hand import by_hand
from tests.integration.calls import at_calls, before_each
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import do, one

Make = Callable[..., Lifecycle]
TABLES = range(12)
NAMES = [("public", f"t{n}") for n in TABLES]
LOCKED = """
SELECT DISTINCT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE l.pid = %s AND l.locktype = 'relation' AND c.relkind = 'r' AND c.relname ~ '^(t[0-9]+|log_.*|pending_.*)$'
"""


@pytest.fixture(params=["change_log", "wal", "in place"])
def move(request: pytest.FixtureRequest, source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    """After its first replay."""
    for n in TABLES:
        execute(source_dsn, f"CREATE TABLE t{n} (id int PRIMARY KEY, v text DEFAULT 'x'); INSERT INTO t{n} VALUES (1)")
    if request.param == "in place":
        made = lifecycle(source_dsn, rewrite={f"public.{name}": {} for _, name in NAMES}, capture={"ddl": "off"})
    else:
        capture = {"rows": request.param, "ddl": "off"}
        made = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture=capture)
    made.run_all(until="replay")
    return made


class Locks:
    """What the sessions of a window have locked at its end, window by window: tables, and whether it is a log's or of
    pending keys."""

    def __init__(self, move: Lifecycle, at: At) -> None:
        self.tables, self.ours = list[set[str]](), list[set[str]]()
        for name, dsn in (("replay.before_source_commit", move.source), ("replay.before_target_commit", move.target)):
            passes: list[Passes] = []
            passes.append(at(name, lambda _, dsn=dsn, passes=passes: self._note(dsn, passes[0]), perhaps=True))

    def _note(self, dsn: str, passes: Passes) -> None:
        with psycopg.connect(dsn) as conn:
            for ours in passes.connections:
                found = {name for (name,) in conn.execute(LOCKED.encode(), [ours.info.backend_pid])}
                self.ours.append({name for name in found if "_" in name})
                self.tables.append(found - self.ours[-1])


def test_of_many_tables_those_that_have_changed_are_locked(move: Lifecycle, at: At) -> None:
    for n in TABLES:  # so that no log is a file without a block
        do(move.source, f"UPDATE t{n} SET v = 'before'")
    move.run("replay")
    locks = Locks(move, at)
    do(move.source, *(f"UPDATE t{n} SET v = 'changed'" for n in (1, 5)))
    move.run("replay")
    assert {name for window in locks.tables for name in window} == {"t1", "t5"}
    assert all(len(window) <= 4 for window in locks.ours), locks.ours
    move.run("verify")
    move.run("swap")
    if move.source != move.target:
        assert differences(move.source, move.target, NAMES) == []


def test_a_transaction_over_tables_that_had_not_changed_comes_whole(
    move: Lifecycle, at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits between the question which tables have changed and the snapshot."""
    seen: list[tuple[str, ...]] = []
    copies = "pgddl_copy_public" if move.source == move.target else "public"
    values = ", ".join(f"(SELECT v FROM {copies}.t{n})" for n in TABLES[:4])

    def look(_: int) -> None:
        seen.append(*move.journal(f"SELECT {values}"))

    at("replay.before_target_commit", perhaps=True)
    at("stage.before_result_commit", look)
    at("replay.before_acknowledge", look, perhaps=True)
    late = {n: [f"UPDATE t1 SET v = 'by {n}'; UPDATE t{n + 1} SET v = 'by {n}'"] for n in (1, 2)}
    calls = before_each(monkeypatch, window_locks, "lock_tables", at_calls(move.source, late))
    do(move.source, "UPDATE t1 SET v = 'first'")
    move.run("replay")
    assert seen[0] == ("x", "by 2", "by 1", "by 2"), seen
    assert len(calls) >= window_locks.TRIES


def test_one_that_nobody_has_changed_may_be_kept_by_others(move: Lifecycle) -> None:
    if move.content["capture"].get("rows") == "wal":
        pytest.skip("a slot is read by the stage alone")
    do(move.source, "UPDATE t1 SET v = 'changed'", "ALTER TABLE t7 ALTER v DROP DEFAULT")
    with psycopg.connect(move.source) as other, by_hand(move, in_place=move.source == move.target) as hand:
        other.execute("LOCK TABLE t7 IN ACCESS EXCLUSIVE MODE")
        assert hand.window().keys == 1
        other.rollback()
        other.execute("LOCK TABLE t8 IN ACCESS EXCLUSIVE MODE")  # whose default the server prints under a lock
        with pytest.raises(Busy, match="locked by another session"):
            hand.window()


def test_verify_locks_so_many_tables_a_window(move: Lifecycle, at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_comparison, "TABLES_A_WINDOW", 5)
    locks = Locks(move, at)
    assert not move.run("verify").blocked
    assert max(map(len, locks.tables)) == 5
    assert len(set[str]().union(*locks.tables)) == len(TABLES)
    assert one(move.target, "SELECT count(DISTINCT table_id) FROM pgddl.verifications WHERE differ = '[]'") == len(
        TABLES
    )
