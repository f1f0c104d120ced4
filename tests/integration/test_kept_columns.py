"""C5: columns that the copy alone has keep their values, whatever becomes of the keys of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rows import copy_only_columns
from airflow_provider_pgddl.engine.rows.fill import Filled, FillPart, fill_part
from airflow_provider_pgddl.engine.rows.ingest_for_ddl import clear_changed
from airflow_provider_pgddl.engine.rows.pending_keys import wait_for_kept
from airflow_provider_pgddl.engine.rows.reload import reload
from tests.integration.by_hand import BY_HAND, ByHand, by_hand, copied_by_chunks
from tests.integration.lifecycle import Lifecycle
from tests.integration.people import NOTED, OWN, PEOPLE, SWAP, Make, numbers, rows, settled, swap, take_in
from tests.integration.sessions import do, in_transaction, one


@pytest.fixture
def people(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, PEOPLE)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.people"]}, **BY_HAND)


@pytest.fixture
def noted(people: Lifecycle) -> Iterator[ByHand]:
    """Replaying, with a note of every row on the target."""
    people.run_all(until="replay")
    do(people.target, OWN, NOTED)
    with by_hand(people) as hand:
        take_in(hand)
        yield hand


IN_VAIN = "DELETE FROM people WHERE id = 9; SAVEPOINT a; UPDATE people SET id = 9 WHERE id = 101; ROLLBACK TO a"


@pytest.mark.parametrize(
    "changes",
    [
        ["UPDATE people SET body = 'x' WHERE id IN (1, 7)"],
        ["UPDATE people SET id = 101 WHERE id = 1", "UPDATE people SET id = 102 WHERE id = 101"],
        ["UPDATE people SET id = 101 WHERE id = 1", "UPDATE people SET id = 1 WHERE id = 2"],
        [SWAP],
        [swap(1, 2), swap(3, 4)],
        [SWAP, SWAP],
        ["UPDATE people SET id = id + 100", "UPDATE people SET id = id - 99"],
        ["UPDATE people SET id = 101 WHERE id = 1; DELETE FROM people WHERE id = 101"],
        ["DELETE FROM people WHERE id = 2; UPDATE people SET id = 2 WHERE id = 1"],
        [f"BEGIN; UPDATE people SET id = 101 WHERE id = 1; {IN_VAIN}; UPDATE people SET id = 9 WHERE id = 101; COMMIT"],
        ["TRUNCATE people"],
    ],
)
@pytest.mark.parametrize("between", [False, True], ids=["one_window", "a_window_each"])
def test_c05_values_follow_their_rows(noted: ByHand, changes: Sequence[str], between: bool) -> None:
    before = numbers(noted)
    for change in changes:
        do(noted.pipeline.source, change)
        if between:
            noted.window(fill=0)
    noted.window()
    settled(noted)
    assert numbers(noted).items() <= before.items()


@pytest.mark.parametrize("between", [False, True])
def test_c05_a_new_row_at_an_old_key_begins_without_them(noted: ByHand, between: bool) -> None:
    source = noted.pipeline.source
    do(source, "DELETE FROM people WHERE id IN (1, 2)")
    if between:
        noted.window()
    do(source, "INSERT INTO people VALUES (1), (30)", "UPDATE people SET id = 2 WHERE id = 30")
    noted.window()
    settled(noted, new=[21, 22])


def test_c05_rows_that_come_after_a_truncate_begin_without_them(noted: ByHand) -> None:
    do(noted.pipeline.source, "TRUNCATE people", "INSERT INTO people SELECT n FROM generate_series(1, 5) n")
    noted.window()
    settled(noted, new=range(21, 26))


@pytest.mark.parametrize("change", [SWAP, "TRUNCATE people; INSERT INTO people VALUES (1)"])
def test_c05_keys_are_not_followed_twice_where_a_window_died_unacknowledged(
    noted: ByHand, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    do(noted.pipeline.source, change)
    with monkeypatch.context() as dying, pytest.raises(RuntimeError):
        dying.setattr(change_log, "acknowledge", lambda *_: (_ for _ in ()).throw(RuntimeError))
        noted.window()
    do(noted.pipeline.target, NOTED)  # the row that has come new has a note by now
    noted.window()
    settled(noted)


def test_c05_without_looking_at_the_snapshot_they_would_be(noted: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above is good for."""
    do(noted.pipeline.source, SWAP)
    with monkeypatch.context() as dying, pytest.raises(RuntimeError):
        dying.setattr(change_log, "acknowledge", lambda *_: (_ for _ in ()).throw(RuntimeError))
        noted.window()
    do(noted.pipeline.target, f"DELETE FROM pgddl.kept_until_{noted.table('people').id}")
    noted.window()
    assert [rows(noted)[i][1] for i in (1, 2)] == ["of 1", "of 2"]  # as before the swap


def test_c05_a_window_that_is_rolled_back_has_kept_nothing(noted: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    do(noted.pipeline.source, SWAP)
    with monkeypatch.context() as broken, pytest.raises(RuntimeError):
        broken.setattr(lease, "check", lambda *_: (_ for _ in ()).throw(RuntimeError))
        noted.window()
    assert rows(noted)[1] == [1, "of 1", "from 1"]
    noted.window()
    settled(noted)


def test_c05_parts_of_a_fill_take_what_is_theirs(noted: ByHand) -> None:
    """In transactions of their own, few keys at a time, while keys go on changing."""
    pipeline = noted.pipeline

    def fill(snapshot: str, tables: Sequence[TableRow], limit: int, _: Callable[[], bool]) -> Filled:
        shares = tuple((t.id, t.plan) for t in tables)
        part = FillPart(pipeline.source, pipeline.target, pipeline.name, snapshot, noted.replica.fence, shares, limit)
        return fill_part(part)

    do(pipeline.source, "UPDATE people SET id = id + 100")
    noted.window(fill=3, fill_elsewhere=fill)
    do(pipeline.source, "UPDATE people SET id = id - 99")
    while noted.window(fill=3, fill_elsewhere=fill).pending:
        pass
    settled(noted)


def test_c05_a_part_of_a_log_is_never_taken(noted: ByHand) -> None:
    """Keys follow each other in order: what only came to its place is told from what was there by the rows behind."""
    do(noted.pipeline.source, SWAP, "UPDATE people SET id = id + 100")
    while noted.window(take=1).pending:
        pass
    settled(noted)


def test_c05_ddl_that_makes_room_loses_nothing(noted: ByHand) -> None:
    do(noted.pipeline.source, SWAP)
    clear_changed(noted.replica, noted.tables())
    assert {1, 2}.isdisjoint(rows(noted))
    do(noted.pipeline.source, "UPDATE people SET id = 101 WHERE id = 1")
    noted.window()
    settled(noted)


def test_c05_a_table_that_is_read_again_keeps_them(noted: ByHand) -> None:
    do(noted.pipeline.source, "UPDATE people SET body = 'x' WHERE id = 3")
    noted.window(fill=0)
    do(noted.pipeline.source, SWAP, "UPDATE people SET id = 103 WHERE id = 3", "DELETE FROM people WHERE id = 4")
    table = noted.table("people")

    def record(conn: psycopg.Connection[Any]) -> None:
        Journal(conn, noted.pipeline.name).tables.set_physical(table, table.physical)

    assert reload(noted.replica, table, record) == 19
    do(noted.pipeline.source, "UPDATE people SET id = 104 WHERE id = 103")
    noted.window()
    settled(noted)


@pytest.mark.parametrize("changed", [False, True])
def test_c05_a_table_that_starts_over_keeps_them(people: Lifecycle, changed: bool) -> None:
    """Emptied, copied by blocks once more while keys change, and put together again."""
    people.run_all(until="snapshot")
    do(people.target, OWN)
    with by_hand(people) as hand:
        take_in(hand)
        copied_by_chunks(hand, "people")
        do(people.target, NOTED)
        table, target = hand.table("people"), hand.replica.target
        with target.transaction():
            copy_only_columns.save_all(target, table)
            target.execute("TRUNCATE public.people")
            hand.journal.tables.unplan(table.id)
        if changed:
            do(people.source, SWAP, "UPDATE people SET id = 103 WHERE id = 3", "DELETE FROM people WHERE id = 4")
        copied_by_chunks(hand, "people")
        if changed:
            do(people.source, "UPDATE people SET id = 104 WHERE id = 103", "UPDATE people SET id = 4 WHERE id = 5")
        clear_changed(hand.replica, hand.tables())
        with target.transaction():
            wait_for_kept(target, table)
            hand.journal.tables.set_state("backfilled", [table.id])
        hand.window()
        settled(hand)


def test_c05_a_partition_that_is_truncated_or_read_again(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    parts = " ".join(
        f"CREATE TABLE people_{n} PARTITION OF people FOR VALUES FROM ({n * 100}) TO ({n * 100 + 100});" for n in (0, 1)
    )
    made = "id int PRIMARY KEY, who bigint NOT NULL DEFAULT nextval('whos'), body text) PARTITION BY RANGE (id);"
    do(
        source_dsn,
        f"CREATE SEQUENCE whos; CREATE TABLE people ({made} {parts}"
        " INSERT INTO people SELECT n FROM generate_series(90, 109) n",
    )
    pipeline = lifecycle(source_dsn, target_dsn, tables={"include": ["public.people"]}, **BY_HAND)
    pipeline.run_all(until="replay")
    own = OWN.split(", ADD COLUMN number", maxsplit=1)[0]  # before 17 no identity column on a partitioned table
    do(target_dsn, own, NOTED)
    with by_hand(pipeline) as hand:
        hand.plan("people", keep=("note", "origin"), keep_types=("text", "text"))
        hand.remember_shapes()
        do(source_dsn, "UPDATE people SET id = 80 WHERE id = 90", "UPDATE people SET id = 180 WHERE id = 100")
        hand.window(fill=0)
        do(source_dsn, "TRUNCATE people_1", "INSERT INTO people VALUES (180)", "UPDATE people SET body = 'x'")
        hand.window()
        settled(hand, new=[21])
        do(target_dsn, NOTED)
        table = hand.table("people")
        leaf = one(source_dsn, "SELECT 'people_0'::regclass::oid")
        reload(hand.replica, table, lambda _: None, [leaf])
        hand.window()
        settled(hand)


def test_c05_the_key_may_have_more_columns_and_other_types_on_the_copy(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    do(
        source_dsn,
        "CREATE DOMAIN code AS varchar(10); CREATE SEQUENCE whos;"
        "CREATE TABLE people (id numeric, c code, who bigint NOT NULL DEFAULT nextval('whos'), body text,"
        " PRIMARY KEY (c, id)); INSERT INTO people SELECT n, 'c' || n % 3 FROM generate_series(1, 20) n",
    )
    pipeline = lifecycle(source_dsn, target_dsn, tables={"include": ["public.people"]}, **BY_HAND)
    pipeline.run_all(until="replay")
    do(target_dsn, OWN, NOTED)
    with by_hand(pipeline) as hand:
        take_in(hand)
        do(
            source_dsn,
            "UPDATE people SET id = 1.00 WHERE id = 1",  # another value of the same key
            "UPDATE people SET c = 'x', id = 100 WHERE id = 2; UPDATE people SET c = 'y' WHERE id = 100",
            "UPDATE people SET id = id + 100 WHERE id BETWEEN 3 AND 9; UPDATE people SET id = id - 99 WHERE id > 100",
        )
        hand.window()
        settled(hand)


def test_c05_rows_without_values_are_not_kept(people: Lifecycle) -> None:
    people.run_all(until="replay")
    do(people.target, "ALTER TABLE people ADD COLUMN note text", "UPDATE people SET note = 'x' WHERE id = 1")
    with by_hand(people) as hand:
        hand.plan("people", keep=("note",), keep_types=("text",))
        hand.remember_shapes()
        do(people.source, "UPDATE people SET body = 'x'")
        hand.window(fill=0)
        key = f'SELECT "pgddl key 1", note FROM pgddl.kept_{hand.table("people").id}'
        assert people.journal(key) == [(1, "x")]


def test_c05_the_kept_columns_change_while_rows_are_away(noted: ByHand) -> None:
    target, table = noted.pipeline.target, noted.table("people")
    do(noted.pipeline.source, "UPDATE people SET body = 'x'")
    noted.window(fill=0)
    do(
        target,
        "ALTER TABLE people ADD COLUMN score int NOT NULL DEFAULT 5, DROP COLUMN number,"
        " ALTER COLUMN note TYPE varchar(100)",
    )
    noted.plan(
        "people",
        keep=("note", "origin", "score"),
        keep_types=("character varying(100)", "text", "integer"),
    )
    noted.remember_shapes()
    noted.window()
    settled(noted)
    assert noted.pipeline.journal("SELECT DISTINCT score FROM people") == [(5,)]
    with noted.replica.target.transaction():
        copy_only_columns.fit(noted.replica.target, noted.table("people"))
        columns = replace(table.plan.columns, kept=(), kept_types=())
        copy_only_columns.fit(noted.replica.target, replace(table, plan=replace(table.plan, columns=columns)))
    assert noted.pipeline.journal("SELECT relname FROM pg_class WHERE relname LIKE 'kept%' AND relkind = 'r'") == []


def test_c05_somebody_elses_publication_of_all_tables_hinders_nothing(noted: ByHand) -> None:
    do(noted.pipeline.target, "CREATE PUBLICATION everything FOR ALL TABLES")
    do(noted.pipeline.source, SWAP)
    noted.window()
    settled(noted)


@pytest.mark.parametrize("then", [[], [SWAP], ["UPDATE people SET id = id + 100"], ["DELETE FROM people WHERE id = 2"]])
@pytest.mark.parametrize(
    "before", [[SWAP], ["DELETE FROM people WHERE id = 2", "UPDATE people SET id = 2 WHERE id = 1"]]
)
def test_c05_keys_exchanged_before_their_blocks_are_read_are_not_followed_again(
    people: Lifecycle, before: Sequence[str], then: Sequence[str]
) -> None:
    people.run_all(until="snapshot")
    do(people.source, *before)
    do(people.target, OWN)
    with by_hand(people) as hand:
        take_in(hand)
        copied_by_chunks(hand, "people")
        do(people.target, NOTED)
        hand.journal.tables.set_state("backfilled", [hand.table("people").id])
        do(people.source, *then)
        hand.window()
        settled(hand, new=[21])


def test_c05_a_row_that_two_transactions_move_in_turn(noted: ByHand) -> None:
    """The one with the lower transaction id commits last, so ids do not tell the order."""
    source = noted.pipeline.source
    with in_transaction(source, "INSERT INTO people VALUES (50)") as lower:
        do(source, "UPDATE people SET id = 51 WHERE id = 1", "UPDATE people SET id = 1 WHERE id = 2")
        lower.execute("UPDATE people SET id = 2 WHERE id = 51")
        lower.execute("UPDATE people SET id = 51 WHERE id = 1")
        lower.execute("DELETE FROM people WHERE id = 50")
        lower.commit()
    noted.window()
    settled(noted)
