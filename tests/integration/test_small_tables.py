"""Small tables are claimed and copied some together. What befalls one of them is that one's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import Retry
from airflow_provider_pgddl.engine.rows import chunks
from airflow_provider_pgddl.engine.server.giving_way import Watch
from tests.failpoints import At, once
from tests.integration.items import unequal
from tests.integration.lifecycle import Lifecycle, wait_until
from tests.integration.sessions import Underway, do, in_transaction, wait_for, waits

TABLES = 40
# Every tenth is not small, and two of a partitioned table's leaves are.
SHAPE = (
    "CREATE TABLE t_{0:02} (id int PRIMARY KEY, note text);"
    "INSERT INTO t_{0:02} SELECT n, 'note ' || n || repeat('.', {1}) FROM generate_series(1, {2}) n"
)
LEAVES = """
    CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
    CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (100) TO (200);
    INSERT INTO parted SELECT n FROM generate_series(50, 149) n;
"""
WORKERS: dict[str, Any] = {"backfill": {"chunk_bytes": "64kB", "workers": 1}}


@pytest.fixture
def many(source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]) -> Lifecycle:
    big = {n for n in range(TABLES) if n % 10 == 9}
    do(source_dsn, *(SHAPE.format(n, 400 if n in big else 0, 600 if n in big else n) for n in range(TABLES)), LEAVES)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **WORKERS)
    move.run_all(until="snapshot")
    return move


def transactions(move: Lifecycle) -> Counter[str]:
    """Of backfill: chunks by the one that wrote them."""
    return Counter(xid for (xid,) in move.journal("SELECT xid::text FROM pgddl.chunks WHERE done_at IS NOT NULL"))


def copied(move: Lifecycle) -> set[str]:
    return {name for (name,) in move.journal("SELECT table_name FROM pgddl.tables WHERE state = 'backfilled'")}


def test_they_are_copied_some_in_one_transaction(many: Lifecycle) -> None:
    many.run_all(after="snapshot", until="replay")
    by = transactions(many)
    assert max(by.values()) == chunks.TOGETHER
    ((tables, of_small),) = many.journal(
        "SELECT count(*), count(DISTINCT xid::text) FROM"
        " (SELECT min(xid::text) AS xid FROM pgddl.chunks GROUP BY table_id HAVING count(*) = 1) small"
    )
    assert tables > 30 and of_small < 10
    # A table of several chunks has one transaction for each.
    ((chunks_of_big, of_big),) = many.journal(
        "SELECT count(*), count(DISTINCT c.xid::text) FROM pgddl.chunks c JOIN pgddl.tables t ON t.id = c.table_id"
        " WHERE t.table_name = 't_09'"
    )
    assert chunks_of_big == of_big > 2
    rows = "SELECT count(*) FROM pgddl.chunks c JOIN pgddl.tables t ON t.id = c.table_id WHERE c.rows <> %s::int"
    assert many.journal(rows + " AND t.table_name = 't_07'", [7]) == [(0,)]
    assert differences(many.source, many.target) == []


def test_a_worker_that_dies_with_some_leaves_all_of_them_to_the_next(many: Lifecycle, at: At) -> None:
    for lost in (1, 3):
        with at("backfill.before_chunk_commit") as passes:
            passes.act = lambda n, passes=passes, lost=lost: passes.lose() if n == lost else None
            many.refused("backfill", Retry)
    many.run_all(after="snapshot", until="replay")
    assert differences(many.source, many.target) == []


def test_one_that_changed_starts_again_alone(many: Lifecycle, at: At) -> None:
    """By a new file, by DDL that a window brings later, and by its copy, which was altered."""

    def change() -> None:
        do(
            many.source,
            "TRUNCATE t_03",
            "INSERT INTO t_03 VALUES (-1, 'new')",
            "ALTER TABLE t_04 ADD more int DEFAULT 4",
        )
        do(many.target, "ALTER TABLE t_05 ADD theirs int")

    at("backfill.before_chunk", once(change))
    many.run("backfill")
    others = {f"t_{n:02}" for n in range(TABLES)} - {"t_04", "t_05"}
    assert others <= copied(many)
    assert max(transactions(many).values()) > 1
    do(many.target, "ALTER TABLE t_05 DROP theirs")
    many.run("setup", reconfigure=True)
    for stage in ("backfill", "schema_sync", "replay"):
        many.run(stage)
    assert differences(many.source, many.target) == []


def test_one_that_refuses_a_row_stops_alone(many: Lifecycle, at: At) -> None:
    at("backfill.before_chunk", once(lambda: do(many.target, "ALTER TABLE t_06 ADD CHECK (id <> 3)")))
    (blocked,) = many.run("backfill").blocked
    assert (blocked["table"], "t_06_id_check" in blocked["reason"]) == ("public.t_06", True)
    assert copied(many) == {"parted", *(f"t_{n:02}" for n in range(TABLES))} - {"t_06"}
    refusals = "SELECT value FROM pgddl.schema_counters WHERE label = 'constraint_violation' AND table_name = 't_06'"
    assert many.journal(refusals) == [(1,)]


def test_one_that_somebody_holds_is_waited_for_alone(many: Lifecycle, at: At) -> None:
    """The others have come by then, and whoever comes for one of them waits for nobody."""
    with in_transaction(many.source, "SELECT") as holder:
        at("backfill.before_chunk", once(lambda: holder.execute("LOCK t_08 IN ACCESS EXCLUSIVE MODE")))
        with Underway(lambda: many.run("backfill")) as backfill:
            left = "SELECT count(*) FROM pgddl.chunks WHERE done_at IS NULL"
            wait_for(lambda: many.journal(left) == [(1,)], backfill)
            holder.rollback()
    many.run_all(after="backfill", until="replay")
    assert differences(many.source, many.target) == []


def test_who_comes_for_one_is_let_through(many: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits behind a table that is still to be copied waits for none of those before it."""
    copied_one = chunks._Worker._copied
    come = list[Underway[None]]()

    def come_and_copy(worker: chunks._Worker, chunk: chunks._Chunk, coded: Any, behind: Any, watch: Watch) -> Any:
        if chunk.table.plan.name == "t_04" and not come:
            come.append(Underway(lambda: do(many.source, "LOCK t_08 IN ACCESS EXCLUSIVE MODE; SELECT")).__enter__())
            wait_until(lambda: watch.gave_way)
        return copied_one(worker, chunk, coded, behind, watch)

    monkeypatch.setattr(chunks._Worker, "_copied", come_and_copy)
    many.run("backfill")
    come[0].finish()
    assert len([xid for xid, times in transactions(many).items() if times == 1]) >= chunks.TOGETHER
    many.run_all(after="backfill", until="replay")
    assert differences(many.source, many.target) == []


def test_a_copy_that_somebody_holds_is_waited_for_alone(many: Lifecycle) -> None:
    """Whoever holds one copy and comes for another meets none that we hold meanwhile: no deadlock."""
    with in_transaction(many.target, "LOCK t_12 IN SHARE MODE") as holder:
        with Underway(lambda: many.run("backfill")) as backfill:
            wait_for(lambda: waits(many.target, "RowExclusiveLock", "t_12"), backfill)
            holder.execute("LOCK t_11 IN SHARE MODE NOWAIT; LOCK t_13 IN SHARE MODE NOWAIT")
            holder.rollback()
    many.run_all(after="backfill", until="replay")
    assert differences(many.source, many.target) == []


def test_in_place_small_tables_are_copied_together(
    source_dsn: str, lifecycle: Callable[..., Lifecycle], at: At
) -> None:
    do(source_dsn, *(SHAPE.format(n, 0, n) for n in range(1, 5)))
    asked = {f"public.t_{n:02}": {"alter": ["ALTER COLUMN id TYPE bigint"]} for n in range(1, 5)}
    rewrite = lifecycle(source_dsn, rewrite=asked, **WORKERS)
    rewrite.run_all(until="snapshot")
    with at("backfill.before_chunk_commit") as passes:
        passes.act = lambda _: passes.lose()
        rewrite.refused("backfill", Retry)
    rewrite.run("backfill")
    assert transactions(rewrite).most_common() == [(next(iter(transactions(rewrite))), 4)]
    rewrite.run_all(after="backfill", until="swap")
    assert [unequal(source_dsn, f"pgddl_old_public.t_{n:02}", f"public.t_{n:02}") for n in range(1, 5)] == [0] * 4
