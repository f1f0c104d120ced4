"""C5: columns that the copy alone has keep their values, whatever becomes of the keys of their rows."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import GaveWay
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rows import copy_only_columns
from airflow_provider_pgddl.engine.rows.chunk_layout import plan_chunks
from airflow_provider_pgddl.engine.rows.chunk_rows import TableToCopy
from airflow_provider_pgddl.engine.rows.chunks import Share, copy_chunks
from airflow_provider_pgddl.engine.rows.fill import Filled, FillPart, fill_part
from airflow_provider_pgddl.engine.rows.ingest_for_ddl import clear_changed
from airflow_provider_pgddl.engine.rows.pending_keys import wait_for_kept
from airflow_provider_pgddl.engine.rows.reload import reload
from airflow_provider_pgddl.engine.rows.throttle import Limits
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.by_hand import BY_HAND, ByHand, by_hand, copied_by_chunks
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do, in_transaction, one

Make = Callable[..., Lifecycle]

# `who` tells rows apart whatever their keys become.
PEOPLE = """
    CREATE SEQUENCE whos;
    CREATE TABLE people (id int PRIMARY KEY, who bigint NOT NULL DEFAULT nextval('whos'), body text);
    INSERT INTO people SELECT n FROM generate_series(1, 20) n;
"""
# The copy's own: values of a person, a default, and what the server numbers.
OWN = """
    ALTER TABLE people ADD COLUMN note text, ADD COLUMN origin text DEFAULT 'd',
        ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY
"""
KEEP = {"keep": ("note", "origin", "number"), "keep_types": ("text", "text", "bigint")}
NOTED = "UPDATE people SET note = 'of ' || who, origin = NULLIF('from ' || who, 'from 7')"


@pytest.fixture
def people(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, PEOPLE)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.people"]}, **BY_HAND)


def take_in(hand: ByHand, name: str = "people") -> None:
    """The plan as the gate makes it once the copy has columns of its own."""
    hand.plan(name, **KEEP)
    hand.remember_shapes()


@pytest.fixture
def noted(people: Lifecycle) -> Iterator[ByHand]:
    """Replaying, with a note of every row on the target."""
    people.run_all(until="replay")
    do(people.target, OWN, NOTED)
    with by_hand(people) as hand:
        take_in(hand)
        yield hand


def rows(hand: ByHand) -> dict[int, tuple[Any, ...]]:
    """id → (who, note, origin) of the copy."""
    return {i: rest for i, *rest in map(tuple, hand.pipeline.journal("SELECT id, who, note, origin FROM people"))}  # type: ignore[misc]


def numbers(hand: ByHand) -> dict[int, int]:
    return dict(hand.pipeline.journal("SELECT who, number FROM people"))  # type: ignore[arg-type]


def settled(hand: ByHand, *, new: Sequence[int] = ()) -> None:
    """Both databases have the same rows, each has its own values and those without have none, and nothing waits."""
    (different,) = differences(hand.pipeline.source, hand.pipeline.target) or (None,)
    source = set(hand.pipeline.on_source("SELECT id, who, body FROM people"))
    target = hand.pipeline.journal("SELECT id, who, body, note, origin FROM people")
    assert {row[:3] for row in target} == source, different
    for _, who, _, note, origin in target:
        if who in new:
            assert (note, origin) == (None, "d"), who
        else:
            assert (note, origin) == (f"of {who}", f"from {who}" if who != 7 else None), who
    table = hand.table("people")
    assert one(hand.pipeline.target, f"SELECT count(*) FROM pgddl.kept_{table.id}") == 0


def swap(a: int, b: int) -> str:
    return "; ".join(f"UPDATE people SET id = {new} WHERE id = {old}" for old, new in ((a, -1), (b, a), (-1, b)))


SWAP = swap(1, 2)
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
        Journal(conn, noted.pipeline.name).tables.set_physical(table.id, table.physical)

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


# --- at random --------------------------------------------------------------------------------------------------------

Step = Callable[[psycopg.Connection[Any], random.Random], None]


def _key(rng: random.Random) -> int:
    return rng.randint(1, 30)


def _write(conn: psycopg.Connection[Any], rng: random.Random) -> None:
    conn.execute("UPDATE people SET body = %s WHERE id = %s", [str(rng.random()), _key(rng)])


def _move(conn: psycopg.Connection[Any], rng: random.Random) -> None:
    conn.execute("UPDATE people SET id = %s WHERE id = %s", [_key(rng), _key(rng)])


def _swap(conn: psycopg.Connection[Any], rng: random.Random) -> None:
    a, b, spare = _key(rng), _key(rng), -_key(rng)
    for old, new in ((a, spare), (b, a), (spare, b)):
        conn.execute("UPDATE people SET id = %s WHERE id = %s", [new, old])


def _replace(conn: psycopg.Connection[Any], rng: random.Random) -> None:
    key = _key(rng)
    conn.execute("DELETE FROM people WHERE id = %s", [key])
    if rng.random() < 0.5:
        conn.execute("INSERT INTO people (id) VALUES (%s)", [key])


def _insert(conn: psycopg.Connection[Any], rng: random.Random) -> None:
    conn.execute("INSERT INTO people (id) VALUES (%s)", [_key(rng)])


def _in_vain(conn: psycopg.Connection[Any], rng: random.Random) -> None:
    with suppress(ZeroDivisionError), conn.transaction():
        _swap(conn, rng)
        raise ZeroDivisionError


STEPS: Sequence[Step] = (_write, _move, _move, _move, _move, _swap, _swap, _swap, _in_vain, _replace, _insert)


def writer(dsn: str, seed: int, turns: threading.Semaphore, over: threading.Event) -> None:
    """Transactions of some steps each, one a turn; a step that meets a key that is taken is undone by itself."""
    rng = random.Random(seed)
    with psycopg.connect(dsn, autocommit=True) as conn:
        while turns.acquire() and not over.is_set():
            with suppress(psycopg.errors.DeadlockDetected), conn.transaction():
                for _ in range(rng.randint(1, 4)):
                    with suppress(psycopg.errors.UniqueViolation), conn.transaction():
                        rng.choice(STEPS)(conn, rng)
                if rng.random() < 0.002:
                    conn.execute("TRUNCATE people")


def test_c05_at_random(people: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("PGDDL_SEED", "1"))
    print(f"PGDDL_SEED={seed}")
    rng = random.Random(seed)
    people.run_all(until="replay")
    do(people.target, "ALTER TABLE people ADD COLUMN note text")
    with by_hand(people) as hand, psycopg.connect(people.target, autocommit=True) as target:
        hand.plan("people", keep=("note",), keep_types=("text",))
        hand.remember_shapes()
        noted: set[int] = set()
        over = threading.Event()
        turns = threading.Semaphore(0)
        writers = [threading.Thread(target=writer, args=(people.source, seed * 10 + n, turns, over)) for n in range(3)]
        for thread in writers:
            thread.start()
        try:
            for _ in range(150):
                turns.release(rng.randint(1, 12))  # few enough for rows to outlive many windows
                with monkeypatch.context() as dying:
                    if rng.random() < 0.3:  # before the target commits, or before the source does
                        where, name = rng.choice([(lease, "check"), (change_log, "acknowledge")])
                        dying.setattr(where, name, lambda *_: (_ for _ in ()).throw(RuntimeError))
                    with suppress(RuntimeError, GaveWay):
                        hand.window(fill=rng.choice([0, 5, 1000]))
                query = "UPDATE people SET note = 'of ' || who WHERE note IS NULL AND id %% 2 = %s RETURNING who"
                noted.update(who for (who,) in target.execute(query, [rng.randint(0, 1)]))
        finally:
            over.set()
            turns.release(len(writers))
            for thread in writers:
                thread.join()
        while hand.window().pending:
            pass
        found = people.journal("SELECT id, who, body, note FROM people ORDER BY id")
        assert [row[:3] for row in found] == people.on_source("SELECT id, who, body FROM people ORDER BY id")
        assert [(who, note) for _, who, _, note in found] == [
            (who, f"of {who}" if who in noted else None) for _, who, _, _ in found
        ]
        assert one(people.target, f"SELECT count(*) FROM pgddl.kept_{hand.table('people').id}") == 0


def test_c05_at_random_while_blocks_are_copied(people: Lifecycle) -> None:
    """A column that the source drops once its rows have been copied: keys were exchanged before their blocks were
    read, after, and in between."""
    seed = int(os.environ.get("PGDDL_SEED", "1"))
    print(f"PGDDL_SEED={seed}")
    rng = random.Random(seed)
    do(
        people.source,
        "ALTER TABLE people ADD COLUMN legacy text, ALTER COLUMN body SET STORAGE PLAIN",
        "UPDATE people SET legacy = 'of ' || who, body = repeat('x', 5000)",  # a block each
        "VACUUM FULL people",
    )
    people.run_all(until="snapshot")
    with by_hand(people) as hand:
        hand.remember_shapes()
        target, table = hand.replica.target, hand.table("people")
        over = threading.Event()
        turns = threading.Semaphore(0)
        writers = [threading.Thread(target=writer, args=(people.source, seed * 10 + n, turns, over)) for n in range(3)]
        for thread in writers:
            thread.start()
        try:
            turns.release(rng.randint(0, 20))
            with connect(people.source, purpose="test") as source:
                while True:
                    chunks = _chunks(hand, source)
                    turns.release(rng.randint(0, 40))
                    if not copy_chunks(chunks).rewritten:
                        break
                    with target.transaction():  # a writer has truncated it
                        target.execute("TRUNCATE people")
                        hand.journal.tables.unplan(table.id)
            turns.release(rng.randint(0, 20))
        finally:
            over.set()
            turns.release(len(writers))
            for thread in writers:
                thread.join()
        whose = dict(people.on_source("SELECT who, legacy FROM people"))
        left = [name for name in table.plan.columns.names if name != "legacy"]
        do(people.source, "ALTER TABLE people ALTER COLUMN legacy TYPE text USING NULL")  # as if it were gone
        physical = catalog.describe(hand.replica.watcher, [table.oid], change_log.trigger_names(people.name))
        hand.plan("people", columns=left, expressions=left, keep=("legacy",), keep_types=("text",))
        hand.journal.tables.set_physical(table.id, physical[table.oid].physical())
        with target.transaction():
            wait_for_kept(target, hand.table("people"))
            hand.journal.tables.set_state("backfilled", [table.id])
        while hand.window().pending or copy_only_columns.unfollowed(target, hand.table("people")):
            pass
        found = people.journal("SELECT id, who, body, legacy FROM people ORDER BY id")
        assert [row[:3] for row in found] == people.on_source("SELECT id, who, body FROM people ORDER BY id")
        # One whose new place was read before it came there has lost its value with its old place.
        assert {who: legacy for _, who, _, legacy in found if legacy not in (None, whose[who])} == {}
        assert one(people.target, f"SELECT count(*) FROM pgddl.kept_{table.id}") == 0


def _chunks(hand: ByHand, source: psycopg.Connection[Any]) -> Share:
    table, pipeline = hand.table("people"), hand.pipeline
    triggers = change_log.trigger_names(pipeline.name)
    now = catalog.describe(source, [table.oid], triggers)[table.oid]
    hand.journal.tables.set_planned({table.id: now.physical()})
    todo = TableToCopy(table.id, table.plan, table.version, now.physical(), hand.replica.fence, triggers)
    plan_chunks(hand.replica.target, source, [(todo, now)], 8192, 8192)
    limits = Limits(None, None, None)
    return Share(pipeline.source, pipeline.target, False, pipeline.name, hand.replica.fence.token, (todo,), 10, limits)


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
