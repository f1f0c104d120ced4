"""C5 at random: columns that the copy alone has keep their values, whatever writers do to keys."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import GaveWay
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.rows import copy_only_columns
from airflow_provider_pgddl.engine.rows.chunk_layout import plan_chunks
from airflow_provider_pgddl.engine.rows.chunk_rows import TableToCopy
from airflow_provider_pgddl.engine.rows.chunks import Share, copy_chunks
from airflow_provider_pgddl.engine.rows.pending_keys import wait_for_kept
from airflow_provider_pgddl.engine.rows.throttle import Limits
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.by_hand import BY_HAND, ByHand, by_hand
from tests.integration.lifecycle import Lifecycle
from tests.integration.people import PEOPLE, Make
from tests.integration.sessions import do, one


@pytest.fixture
def people(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, PEOPLE)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.people"]}, **BY_HAND)


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
        hand.journal.tables.set_physical(table, physical[table.oid].physical())
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
