"""correctness.md, part two: applications neither fail nor wait because of us, and what they do last is not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import psycopg
import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import EXIT_REFUSED, PreflightRefused
from airflow_provider_pgddl.engine.server import giving_way
from airflow_provider_pgddl.engine.swapping import fence, in_place
from tests.integration.calls import at_calls, before_each, once
from tests.integration.items import ITEMS, SMALL
from tests.integration.lifecycle import Lifecycle, left_behind
from tests.integration.sessions import Underway, do, holds, in_transaction, one, rounds, wait_for

Make = Callable[..., Lifecycle]

SHOP = """
    CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL);
    CREATE TABLE orders (id serial PRIMARY KEY, customer int NOT NULL REFERENCES customers, note text);
    CREATE TABLE lines (id int, n int, sku text, PRIMARY KEY (id, n));
    ALTER TABLE lines ADD FOREIGN KEY (id) REFERENCES orders ON DELETE CASCADE;
    INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(1, 200) n;
    INSERT INTO orders (customer, note) SELECT n, repeat('o', 200) FROM generate_series(1, 200) n;
    INSERT INTO lines SELECT id, n, 'sku' FROM orders, generate_series(1, 2) n
"""

BIGINT: dict[str, Any] = {"alter": ["ALTER COLUMN id TYPE bigint"]}

FOREIGN_KEYS = (
    "SELECT conrelid::regclass::text, confrelid::regclass::text, convalidated FROM pg_constraint"
    " WHERE contype = 'f' AND connamespace = 'public'::regnamespace ORDER BY 1, 2"
)


@pytest.fixture
def move(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    """A migration of the shop."""
    do(source_dsn, SHOP)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, swap={"fence": "read_only"}, **SMALL)


@pytest.fixture
def rewrite(source_dsn: str, lifecycle: Make) -> Lifecycle:
    """A rewrite of the table in the middle of the shop, with foreign keys in both directions."""
    do(source_dsn, SHOP)
    return lifecycle(source_dsn, rewrite={"public.orders": BIGINT}, **SMALL)


# --- C15: foreign keys, and the locks of the swap ---------------------------------------------------------------------

DELETE_BOTH = ["DELETE FROM orders WHERE customer = {0}", "DELETE FROM customers WHERE id = {0}"]


def test_c15_in_place_no_foreign_key_stands_in_the_way_before_or_after_the_swap(rewrite: Lifecycle) -> None:
    ours = r"SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conrelid::regclass::text LIKE 'pgddl\_%'"
    for customer, stage in enumerate(["setup", "snapshot", "backfill", "schema_sync", "replay", "verify"], 1):
        rewrite.run(stage)
        assert one(rewrite.source, ours) == 0
        do(rewrite.source, *(s.format(customer) for s in DELETE_BOTH))
    rewrite.run("verify")
    rewrite.run("swap")
    assert one(rewrite.source, ours) == 0
    do(rewrite.source, *(s.format(100) for s in DELETE_BOTH))
    assert rewrite.on_source(FOREIGN_KEYS) == [("lines", "orders", True), ("orders", "customers", True)]
    with pytest.raises(pg.ForeignKeyViolation):
        do(rewrite.source, "DELETE FROM customers WHERE id = 101")
    with pytest.raises(pg.ForeignKeyViolation):
        do(rewrite.source, "INSERT INTO lines VALUES (100, 9, 'of an order that is gone')")
    rewrite.run("cleanup")
    do(rewrite.source, *(s.format(102) for s in DELETE_BOTH))
    assert one(rewrite.source, "SELECT count(*) FROM lines WHERE id IN (100, 102)") == 0


def test_c15_across_clusters_foreign_keys_come_last(move: Lifecycle) -> None:
    for customer, stage in enumerate(["setup", "snapshot", "backfill", "schema_sync", "replay", "verify"], 1):
        move.run(stage)
        assert move.journal(FOREIGN_KEYS) == []
        do(move.source, *(s.format(customer) for s in DELETE_BOTH))
    move.run_all(after="replay", until="swap")
    assert move.journal(FOREIGN_KEYS) == [("lines", "orders", True), ("orders", "customers", True)]
    assert differences(move.source, move.target) == []
    do(move.target, *(s.format(100) for s in DELETE_BOTH))


class Writer:
    """An application that writes all the time, to all tables of the shop, and counts."""

    def __init__(self, dsn: str) -> None:
        self.committed = 0
        self._dsn, self._stop = dsn, threading.Event()
        self._work = Underway(self._write)

    def _write(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            for _ in rounds(self._stop):
                number = self.committed
                with suppress(pg.ReadOnlySqlTransaction), conn.transaction():  # behind the fence
                    conn.execute("INSERT INTO orders (customer, note) VALUES (150, %s)", [f"written {number}"])
                    conn.execute("UPDATE lines SET sku = %s WHERE id = 150", [f"sku {number}"])
                    conn.execute("UPDATE customers SET name = %s WHERE id = 150", [f"name {number}"])
                self.committed += 1

    def __enter__(self) -> Self:
        self._work.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._work.finish()


@contextmanager
def nobody_queues(
    monkeypatch: pytest.MonkeyPatch, pipeline: Lifecycle, stage: str, module: Any, step: str, holding: str
) -> Iterator[None]:
    """Runs a stage whose lock cannot be had, since an application's transaction holds the table: the others go on
    writing for as long as that lasts. The stage succeeds once that transaction has ended."""
    tries: list[int] = []
    with monkeypatch.context() as watched, Writer(pipeline.source) as writer:
        tries = before_each(watched, module, step, lambda _: None)
        with in_transaction(pipeline.source, holding) as holder, Underway(lambda: pipeline.run(stage)) as running:
            wait_for(lambda: tries, running)
            before = writer.committed
            wait_for(lambda: len(tries) > 3 and writer.committed > before + 30, running)
            holder.rollback()
    yield


def test_c15_the_swap_does_not_make_writers_queue_behind_a_long_reader(
    rewrite: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = "SELECT count(*) FROM customers, orders, lines"
    rewrite.content["replay"] = {"window_rows": 10_000}
    rewrite.run_all(until="verify")
    with nobody_queues(monkeypatch, rewrite, "swap", in_place, "lock_all", reading):
        assert one(rewrite.source, "SELECT pg_typeof(id)::text FROM orders LIMIT 1") == "bigint"
    reading = "SELECT FROM pgddl_old_public.orders"
    with nobody_queues(monkeypatch, rewrite, "cleanup", change_log, "lock_root", reading):
        assert left_behind(rewrite.source) == ["schema pgddl"]


def test_c15_setup_does_not_make_writers_queue_behind_a_long_writer(
    rewrite: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = "UPDATE orders SET note = 'for long' WHERE id = 1"
    with nobody_queues(monkeypatch, rewrite, "setup", change_log, "start", writing):
        rewrite.run_all(after="setup", until="verify")


def test_c15_the_fence_does_not_make_writers_queue_behind_a_long_writer(
    move: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    move.content["replay"] = {"window_rows": 10_000}
    move.run_all(until="verify")
    writing = "UPDATE orders SET note = 'for long' WHERE id = 1"
    with nobody_queues(monkeypatch, move, "swap", fence, "lock_all", writing):
        assert differences(move.source, move.target) == []


# --- C16: the last drain ----------------------------------------------------------------------------------------------


def test_c16_in_place_the_last_drain_sees_what_was_committed_just_before_the_lock(
    rewrite: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is more than may be read under the lock: then there is one more window first."""
    rewrite.run_all(until="verify")
    writes = {
        1: ["INSERT INTO orders (customer, note) SELECT 7, 'many' FROM generate_series(1, 60)"],
        2: [
            "INSERT INTO orders (customer, note) VALUES (7, 'the last one')",
            "DELETE FROM orders WHERE id = 2",
            "UPDATE orders SET note = 'last' WHERE id = 3",
        ],
    }
    tries = before_each(monkeypatch, in_place, "lock_all", at_calls(rewrite.source, writes))
    result = rewrite.run("swap")
    assert len(tries) == 2
    assert result.figures["drained"] == 3
    assert one(rewrite.source, "SELECT count(*) FROM orders WHERE note = 'many'") == 60
    assert one(rewrite.source, "SELECT count(*) FROM orders WHERE note = 'the last one'") == 1
    assert one(rewrite.source, "SELECT count(*) FROM orders WHERE id = 2") == 0
    assert one(rewrite.source, "SELECT note FROM orders WHERE id = 3") == "last"


def test_c16_in_place_a_transaction_that_the_lock_waits_for_is_not_lost(rewrite: Lifecycle) -> None:
    rewrite.content["swap"] = {"lock_timeout": "20s"}
    rewrite.run_all(until="verify")
    with in_transaction(rewrite.source, "UPDATE orders SET note = 'in flight' WHERE id = 5") as writer:
        with Underway(lambda: rewrite.run("swap")) as swap:
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass"
            wait_for(lambda: one(rewrite.source, waiting), swap)
            writer.execute("INSERT INTO orders (customer, note) VALUES (9, 'in flight')")
            writer.commit()
    assert one(rewrite.source, "SELECT count(*) FROM orders WHERE note = 'in flight'") == 2


def test_c16_across_clusters_the_drain_behind_the_fence_sees_the_last_rows(
    move: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    move.run_all(until="verify")
    last = once(
        "INSERT INTO orders (customer, note) SELECT 7, 'many' FROM generate_series(1, 60)",
        "DELETE FROM orders WHERE id = 2",
        dsn=move.source,
    )
    before_each(monkeypatch, fence, "lock_all", last)
    move.run("swap")
    with pytest.raises(pg.ReadOnlySqlTransaction):
        do(move.source, "INSERT INTO orders (customer, note) VALUES (7, 'too late')")
    assert differences(move.source, move.target) == []
    assert one(move.target, "SELECT count(*) FROM orders WHERE note = 'many'") == 60


# --- C17: hangs that Postgres cannot see ------------------------------------------------------------------------------

# What somebody asks for while we hold ACCESS SHARE; each would make all others queue behind it.
ASKED = {
    "a table": "LOCK TABLE items IN ACCESS EXCLUSIVE MODE",
    "a partition": "TRUNCATE january",
    "an index": "REINDEX INDEX readings_v",
}


@pytest.fixture
def held(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(
        source_dsn,
        ITEMS,
        "CREATE TABLE readings (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE january PARTITION OF readings FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "CREATE TABLE february PARTITION OF readings FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
        "CREATE INDEX readings_v ON february (v)",
        "INSERT INTO readings SELECT n, date '2026-01-01' + n % 50, 'r' FROM generate_series(1, 500) n",
    )
    large_windows = {**SMALL, "replay": {"window_rows": 10_000}}
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **large_windows)


def asks(dsn: str, statement: str) -> Underway[None]:
    return Underway(lambda: do(dsn, statement))


def test_c17_a_chunk_lets_go_of_a_table_that_somebody_waits_for(held: Lifecycle) -> None:
    """The target does not take the bytes, so nothing moves: whoever waits on the source must not wait for that."""
    held.run_all(until="snapshot")
    with in_transaction(held.target, "LOCK TABLE items IN EXCLUSIVE MODE") as slow:
        with Underway(lambda: held.run("backfill")) as backfill:
            wait_for(lambda: holds(held.source, "items"), backfill)
            with asks(held.source, "BEGIN; LOCK TABLE items IN ACCESS EXCLUSIVE MODE; COMMIT") as asking:
                asking.finish(60)
            assert not backfill.over
            wait_for(lambda: holds(held.source, "items"), backfill)  # it tries again
            slow.rollback()
    held.run_all(after="backfill", until="swap")
    assert differences(held.source, held.target) == []


@pytest.mark.parametrize("what", ASKED)
def test_c17_a_window_lets_go_of_what_somebody_waits_for(held: Lifecycle, what: str) -> None:
    held.run_all(until="backfill")
    do(held.source, "UPDATE items SET code = 'changed ' || id", "UPDATE readings SET v = 'changed'")
    held.run("schema_sync")
    # Ingest is done: the window reads pending keys from source to target, table after table.
    table = "items" if what == "a table" else "readings"
    with in_transaction(held.target, f"LOCK TABLE {table} IN EXCLUSIVE MODE") as slow:
        with Underway(lambda: held.run("replay")) as replay:
            stuck = (
                "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted"
                " AND a.application_name LIKE 'pgddl:%%:window' AND a.datname = current_database()"
            )
            wait_for(lambda: one(held.target, stuck), replay)
            with asks(held.source, f"BEGIN; {ASKED[what]}; COMMIT") as asking:
                asking.finish(60)
            assert not replay.over
            slow.rollback()
    held.run_all(after="replay", until="swap")
    assert differences(held.source, held.target) == []


@pytest.mark.parametrize("captured", [True, False])
def test_c17_ddl_that_was_let_through_is_followed_or_stops_its_table_with_a_clear_message(
    held: Lifecycle, captured: bool
) -> None:
    if not captured:
        held.content["capture"] = {"ddl": "off"}
    held.run_all(until="snapshot")
    with in_transaction(held.target, "LOCK TABLE items IN EXCLUSIVE MODE") as slow:
        with Underway(lambda: held.run("backfill")) as backfill:
            wait_for(lambda: holds(held.source, "items"), backfill)
            with asks(held.source, "ALTER TABLE items ADD COLUMN late int DEFAULT 7") as asking:
                asking.finish(60)
            slow.rollback()
            result = backfill.finish()
    blocked = [{"table": "public.items", "reason": "Source has new column 'late' not in target"}]
    assert [dict(b) for b in result.blocked] == ([] if captured else blocked)
    assert held.journal("SELECT state FROM pgddl.tables WHERE table_name = 'readings'") == [("backfilled",)]
    if captured:
        held.run_all(after="backfill", until="swap")
        assert differences(held.source, held.target) == []


def test_c17_we_never_queue_behind_an_application(held: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    held.run_all(until="schema_sync")
    do(held.source, "UPDATE items SET filler = 'y' WHERE id = 1")  # else the window has nothing to do with it
    ours = (
        "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted"
        " AND a.application_name LIKE 'pgddl:%%' AND a.datname = current_database()"
    )
    waiting: list[int] = []
    before_each(monkeypatch, giving_way.Patience, "wait", lambda _: waiting.append(one(held.source, ours)))
    with in_transaction(held.source, "LOCK TABLE items IN ACCESS EXCLUSIVE MODE") as application:
        with Underway(lambda: held.run("replay")) as replay:
            wait_for(lambda: len(waiting) > 1, replay)
            application.rollback()
    assert set(waiting) == {0}


# --- C20: publications ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["source", "target"])
def test_c20_somebody_elses_publication_for_all_tables_is_refused(
    source_dsn: str, target_dsn: str, lifecycle: Make, side: str
) -> None:
    do(source_dsn, ITEMS)
    do({"source": source_dsn, "target": target_dsn}[side], "CREATE PUBLICATION everything FOR ALL TABLES")
    across = lifecycle(source_dsn, target_dsn, tables={"include": ["public.items"]}, **SMALL)
    pipelines = [across] if side == "target" else [across, lifecycle(source_dsn, rewrite={"public.items": {}}, **SMALL)]
    for pipeline in pipelines:
        error = pipeline.refused("setup", PreflightRefused)
        assert error.exit_code == EXIT_REFUSED
        assert "everything" in str(error)
        assert "DROP PUBLICATION everything" in str(error)
        assert left_behind(source_dsn) == left_behind(target_dsn) == []


def test_c20_one_that_comes_later_does_not_break_us_nor_clients(move: Lifecycle) -> None:
    """Without REPLICA IDENTITY FULL on the log, taking its rows away would fail."""
    move.run("setup")
    do(move.source, "CREATE PUBLICATION everything FOR ALL TABLES", "UPDATE orders SET note = 'logged' WHERE id < 20")
    move.run_all(after="setup", until="schema_sync")
    do(move.target, "CREATE PUBLICATION everything FOR ALL TABLES")
    do(move.source, "DELETE FROM lines WHERE n = 2", "UPDATE lines SET n = 3 WHERE id = 50")
    move.run_all(after="schema_sync", until="swap")
    assert differences(move.source, move.target) == []
    move.run("cleanup")
