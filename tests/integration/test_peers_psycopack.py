"""What psycopack, run on Postgres 15, loses, corrupts or cannot do, each as a test that it would fail.

Shown elsewhere, and not repeated here:

- all that it loses at the swap (grants, owner, row security and policies, comments, extended statistics, publications,
  replica identity, storage options, columns' storage and statistics targets, CLUSTER mark, UNLOGGED, sequences'
  increment, cache, owner and type, identity of other columns than the key's, DEFERRABLE), and what it breaks on (views
  over the table, serials of other columns, generated columns, inheritance parents, names in mixed case, sequences in
  other schemas): test_rewrite_keeps.py, test_everything_is_as_it_was; an index predicate that holds ' ON' (8) is in it,
  too;
- keys that it refuses (composite, text, uuid), under writers: test_rewrite.py,
  test_tables_are_rewritten_under_writers_and_rewritten_again, which also shows that replay deadlocks with no
  application;
- an INSERT after the hand-over whose value a stale row holds (5), in more ways: test_direct_trigger.py,
  test_what_the_copy_cannot_take_goes_into_the_log;
- a crash after the swap's commit: test_rewrite.py, test_a_swap_that_is_killed_anywhere_is_done_by_a_retry, and
  test_rewrite_meanwhile.py, test_a_crash_right_behind_the_commit_leaves_nothing_half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.rows import chunks
from airflow_provider_pgddl.engine.swapping import in_place
from tests.combinations import matrix
from tests.integration.calls import before_each, once
from tests.integration.lifecycle import Lifecycle, left_behind
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits

Make = Callable[..., Lifecycle]

SHOP = """
    CREATE TABLE orders (id int PRIMARY KEY, code text NOT NULL UNIQUE, amount int);
    CREATE TABLE lines (id int PRIMARY KEY, o int NOT NULL REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE);
    INSERT INTO orders SELECT n, 'c' || n, n FROM generate_series(1, 60) n;
    INSERT INTO lines SELECT n, n FROM generate_series(1, 60) n
"""
ROWS = "SELECT string_agg(o::text, ' ' ORDER BY id) FROM {} o"
WRITERS = ["change_log", "direct_trigger"]


@pytest.fixture
def rewrite(source_dsn: str, lifecycle: Make) -> Make:
    """A rewrite of orders, int → bigint; what is given is the pipeline's."""
    do(source_dsn, SHOP)

    def make(rows: str = "change_log", **pipeline: Any) -> Lifecycle:
        alter = {"alter": ["ALTER COLUMN id TYPE bigint"]}
        options = {"backfill": {"workers": 1}, "capture": {"rows": rows}, **pipeline}
        return lifecycle(source_dsn, rewrite={"public.orders": alter}, **options)

    return make


def swapped_as_it_was(move: Lifecycle, after: str) -> str:
    """Runs what is left, up to the swap; the new table's rows, which must be the old one's."""
    move.run_all(after=after, until="verify")
    rows = str(one(move.source, ROWS.format("orders")))
    move.run("swap")
    assert one(move.source, "SELECT pg_typeof(id)::text FROM orders LIMIT 1") == "bigint"
    assert one(move.source, ROWS.format("orders")) == rows
    assert one(move.source, "SELECT count(*) FROM lines l LEFT JOIN orders o ON o.id = l.o WHERE o.id IS NULL") == 0
    move.run("cleanup")
    return rows


@pytest.mark.parametrize("rows", WRITERS)
def test_1_a_row_of_a_transaction_in_flight_during_setup(rewrite: Make, rows: str) -> None:
    """Bounds are read before the trigger exists."""
    move = rewrite(rows)
    with in_transaction(move.source, "INSERT INTO orders VALUES (1000, 'in flight', 1)") as writer:
        with Underway(lambda: move.run("setup")) as setup:
            wait_for(lambda: waits(move.source, "ShareRowExclusiveLock", "public.orders"), setup)
            writer.execute("UPDATE orders SET amount = -1 WHERE id IN (1, 1000)")
            writer.commit()
    found = swapped_as_it_was(move, "setup")
    assert '(1000,"in flight",-1)' in found
    assert "(1,c1,-1)" in found


@pytest.mark.parametrize("rows", WRITERS)
def test_2_an_update_and_a_delete_beside_an_uncommitted_batch(
    rewrite: Make, monkeypatch: pytest.MonkeyPatch, rows: str
) -> None:
    """The direct trigger finds no row in the copy to change; what the batch has read comes later, and stays."""
    move = rewrite(rows)
    move.run_all(until="snapshot")
    copy = chunks._Worker._copy

    def copied_and_then(*args: Any) -> Any:
        done = copy(*args)
        do(move.source, "UPDATE orders SET amount = -7 WHERE id = 7", "DELETE FROM orders WHERE id = 8")
        return done

    with monkeypatch.context() as beside:
        beside.setattr(chunks._Worker, "_copy", copied_and_then)
        move.run("backfill")
    found = swapped_as_it_was(move, "backfill")
    assert "(7,c7,-7)" in found
    assert "(8," not in found


@pytest.mark.parametrize("rows", WRITERS)
def test_3_children_survive_the_replay_of_their_parents(rewrite: Make, rows: str) -> None:
    """Delete and insert, on a copy that foreign keys refer to already, deletes their children."""
    move = rewrite(rows)
    move.run_all(until="backfill")
    do(move.source, "UPDATE orders SET amount = amount + 1")
    move.run_all(after="backfill", until="schema_sync")
    do(move.source, "UPDATE orders SET amount = amount + 1", "DELETE FROM orders WHERE id = 60")
    swapped_as_it_was(move, "schema_sync")
    assert one(move.source, "SELECT count(*) FROM lines") == 59


@pytest.mark.parametrize("rows", WRITERS)
def test_4_a_key_that_changes_leaves_no_ghost(rewrite: Make, rows: str) -> None:
    """The old key is not logged."""
    move = rewrite(rows)
    move.run_all(until="backfill")
    do(move.source, "UPDATE orders SET id = id + 1000 WHERE id <= 5")
    move.run_all(after="backfill", until="schema_sync")
    do(move.source, "UPDATE orders SET id = id + 1000 WHERE id <= 10 OR id > 1000")
    found = swapped_as_it_was(move, "schema_sync")
    assert found.count("(") == 60
    assert "(2001,c1,1)" in found


@pytest.mark.parametrize("rows", WRITERS)
def test_5_an_insert_of_a_value_that_a_stale_row_holds_is_not_swallowed(rewrite: Make, rows: str) -> None:
    """ON CONFLICT DO NOTHING leaves the new row out. Here the copy is never stale when it is handed over."""
    move = rewrite(rows)
    move.run_all(until="backfill")
    do(move.source, "UPDATE orders SET code = 'free' WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    move.run_all(after="backfill", until="schema_sync")
    do(move.source, "INSERT INTO orders VALUES (1001, 'c1', 0), (1002, 'c2', 0)")
    do(move.source, "UPDATE orders SET code = 'handed on' WHERE id = 3", "INSERT INTO orders VALUES (1003, 'c3', 0)")
    found = swapped_as_it_was(move, "schema_sync")
    assert all(row in found for row in ("(1001,c1,0)", "(1002,c2,0)", "(1003,c3,0)", "(1,free,1)"))


@pytest.mark.parametrize("rows", matrix(*WRITERS))
@pytest.mark.parametrize("stage", ["snapshot", "backfill", "schema_sync", "verify"])
def test_6_truncate_and_what_a_replication_role_writes(rewrite: Make, rows: str, stage: str) -> None:
    move = rewrite(rows)
    move.run_all(until=stage)
    do(
        move.source,
        "TRUNCATE orders, lines",
        "INSERT INTO orders VALUES (1, 'one', 1), (2, 'two', 2)",
        "SET session_replication_role = replica; INSERT INTO orders VALUES (3, 'three', 3);"
        " UPDATE orders SET amount = 0 WHERE id = 1",
    )
    if stage == "verify":
        move.run("replay")
        move.run("verify")
    assert swapped_as_it_was(move, stage) == "(1,one,0) (2,two,2) (3,three,3)"


@pytest.mark.parametrize("rows", matrix(*WRITERS))
@pytest.mark.parametrize("stage", ["setup", "backfill", "schema_sync", "verify"])
def test_7_a_column_that_comes_or_goes_during_the_run(rewrite: Make, rows: str, stage: str) -> None:
    """One that comes is lost without a word, one that goes makes every write fail."""
    move = rewrite(rows)
    move.run_all(until=stage)
    do(
        move.source,
        "ALTER TABLE orders ADD late text DEFAULT 'late'",
        "UPDATE orders SET late = 'written' WHERE id = 4",
        "ALTER TABLE orders DROP amount",
        "INSERT INTO orders VALUES (1000, 'without amount', 'new')",
        "UPDATE orders SET code = 'changed' WHERE id = 5",
    )
    if stage == "verify":
        move.run("replay")
        move.run("verify")
    found = swapped_as_it_was(move, stage)
    assert all(row in found for row in ("(4,c4,written)", "(5,changed,late)", '(1000,"without amount",new)'))


def test_8_an_index_predicate_with_on_in_it(rewrite: Make) -> None:
    move = rewrite()
    definition = "CREATE INDEX odd ON public.orders USING btree (code) WHERE (code <> ' ON orders USING'::text)"
    do(move.source, definition)
    move.run("setup")
    swapped_as_it_was(move, "setup")
    assert one(move.source, "SELECT pg_get_indexdef('odd'::regclass)") == definition


@pytest.mark.parametrize("rows", WRITERS)
def test_unique_values_handed_from_row_to_row_between_batches(rewrite: Make, rows: str) -> None:
    """Each batch of replay violates the unique index, whatever their order."""
    move = rewrite(rows, replay={"window_rows": 3})
    move.run_all(until="schema_sync")
    ring = (
        "BEGIN; UPDATE orders SET code = 'x' || code;"
        " UPDATE orders SET code = 'c' || CASE WHEN id = {0} THEN 1 ELSE id + 1 END WHERE id <= {0}; COMMIT"
    )
    do(move.source, ring.format(60))
    found = swapped_as_it_was(move, "schema_sync")
    assert "(60,c1,60)" in found


def test_settings_and_locks_do_not_outlive_an_error(rewrite: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work and bookkeeping are one commit: after an error in the middle of the swap all is as before, and a retry does
    all of it."""
    move = rewrite()
    move.run_all(until="verify")
    catalog = "SELECT string_agg(c::text, ',' ORDER BY oid) FROM pg_class c WHERE relnamespace = 'public'::regnamespace"
    before = one(move.source, catalog)

    def fail(_: int) -> None:
        raise PgddlError("this test's")

    with monkeypatch.context() as failing:
        before_each(failing, lease, "check", fail)
        move.refused("swap")
    assert one(move.source, catalog) == before
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    assert not any(line.startswith("session ") for line in left_behind(move.source))
    assert one(move.source, locks) == 0
    late = once("UPDATE orders SET amount = -1 WHERE id = 1", dsn=move.source)
    before_each(monkeypatch, in_place, "lock_all", late)
    move.run("swap")
    assert one(move.source, "SELECT amount FROM orders WHERE id = 1") == -1
