"""A slot over the replication protocol: every transaction, in windows that lose nothing, and nothing confirmed that was
not said to be."""

from __future__ import annotations

import itertools
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.capture.pgoutput import Begin, RelationMessage, decode, parse_lsn
from airflow_provider_pgddl.engine.capture.slot_stream import marker
from airflow_provider_pgddl.engine.capture.snapshot_visibility import Snapshot
from airflow_provider_pgddl.engine.errors import Retry
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.lifecycle import wait_until
from tests.integration.sessions import Underway, do, in_transaction, one
from tests.integration.streams import capture, is_active, one_of, read, rows, session_of, slot_name, stream_of

TABLES = ("one", "two", "three")
WRITERS = 8


@pytest.fixture(params=matrix(16, 18))
def source(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Database) -> str:
    return database(pg16 if request.param == 16 else pg18)


def confirmed(dsn: str) -> int:
    return parse_lsn(
        one(dsn, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", slot_name(dsn))
    )


# Windows

Key = tuple[str, int]
Transaction = tuple[Begin, list[Key]]


class Replay:
    """A copy that is fed by windows: the keys that the slot yields, read again at each window's snapshot."""

    def __init__(self, dsn: str, chance: random.Random) -> None:
        self.dsn, self.chance = dsn, chance
        self.copy = dict[Key, int]()
        self._relations = dict[int, str]()
        self._left = list[Transaction]()  # yielded by this stream, and not shown yet
        self._stack = ExitStack()
        self.reader = self._stack.enter_context(session_of(dsn))
        self.other = self._stack.enter_context(session_of(dsn))
        self._open()

    def _open(self) -> None:
        self.stream = stream_of(self.dsn).__enter__()
        self._relations.clear()
        self._left.clear()

    def close(self) -> None:
        self.stream.__exit__(None, None, None)
        self._stack.close()

    def restart(self) -> None:
        self.stream.__exit__(None, None, None)
        self._open()

    def transactions(self, upto: int) -> list[Transaction]:
        found = list[Transaction]()
        for item in decode(self.stream.messages(upto)):
            match item:
                case Begin():
                    found.append((item, []))
                case RelationMessage():
                    self._relations[item.oid] = item.name
                case (_, relation, old, new):
                    for row in (old, new):
                        if row is not None:
                            assert isinstance(row[0], bytes)
                            found[-1][1].append((self._relations[relation], int(row[0])))
        return found

    def window(self) -> int:
        """As C1 says; how many transactions it had to leave for later."""
        with self._snapshot() as snapshot:
            end = marker(self.other)
            decoded = [*self._left, *self.transactions(end)]
            self._left = [t for t in decoded if not snapshot.shows(snapshot.widen(t[0].xid))]
            self._bring(key for t in decoded if t not in self._left for key in t[1])
        self.stream.confirm(min((begin.commit_lsn for begin, _ in self._left), default=end))
        return len(self._left)

    def naive_window(self) -> list[Key]:
        """The position read before the snapshot is where the next window starts; the keys that it took too early."""
        end = parse_lsn(str(one_of(self.other, "SELECT pg_current_wal_insert_lsn()::text")))
        with self._snapshot() as snapshot:
            decoded = self.transactions(end)
            self._bring(key for _, keys in decoded for key in keys)
        self.stream.confirm(end)
        return [key for begin, keys in decoded if not snapshot.shows(snapshot.widen(begin.xid)) for key in keys]

    @contextmanager
    def _snapshot(self) -> Iterator[Snapshot]:
        with self.reader.transaction():
            self.reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield Snapshot.parse(one_of(self.reader, "SELECT pg_current_snapshot()::text"))

    def _bring(self, keys: Iterator[Key]) -> None:
        for table, of_table in itertools.groupby(sorted(set(keys)), key=lambda key: key[0]):
            ids = [key[1] for key in of_table]
            for id_ in ids:
                self.copy.pop((table, id_), None)
            query = sql.SQL("SELECT id, v FROM {} WHERE id = ANY(%s)").format(sql.Identifier("public", table))
            self.copy.update({(table, id_): v for id_, v in self.reader.execute(query, [ids])})

    def source(self) -> dict[Key, int]:
        return {
            (table, id_): v
            for table in TABLES
            for id_, v in self.reader.execute(
                sql.SQL("SELECT id, v FROM {}").format(sql.Identifier("public", table))
            ).fetchall()
        }


@contextmanager
def writers(
    dsn: str, seed: int, transaction: Callable[[psycopg.Connection[Any], random.Random, int], None]
) -> Iterator[None]:
    """For the block, WRITERS applications that commit one small transaction after the other; each is numbered."""
    over = threading.Event()

    def write(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        with psycopg.connect(dsn) as conn:
            for n in itertools.count():
                if over.is_set():
                    return
                transaction(conn, chance, WRITERS * n + number)
                conn.commit()

    with ExitStack() as stack:
        for number in range(WRITERS):
            stack.enter_context(Underway(lambda number=number: write(number)))  # type: ignore[misc]
        stack.callback(over.set)
        yield


def change_anything(conn: psycopg.Connection[Any], chance: random.Random, number: int) -> None:
    """New rows, changed and deleted ones, changed keys and none at all, on one table or several."""
    for table in sorted(chance.sample(TABLES, chance.randint(1, 3))):
        kind, id_ = chance.randrange(4), chance.randrange(1000)
        new = [
            f"INSERT INTO {table} VALUES ({id_}, {number}) ON CONFLICT (id) DO UPDATE SET v = {number}",
            f"INSERT INTO {table} VALUES ({1000 + number}, {number})",
            f"DELETE FROM {table} WHERE id = {id_}",
            f"UPDATE {table} SET id = {1_000_000 + number}, v = {number} WHERE id = {id_}",
        ][kind]
        conn.execute(new.encode())


def insert_new_keys(conn: psycopg.Connection[Any], chance: random.Random, number: int) -> None:
    """Keys that no later transaction touches, so that what is lost once stays lost."""
    conn.execute(f"INSERT INTO {chance.choice(TABLES)} VALUES ({number}, {number})".encode())


@pytest.fixture
def replay(source: str) -> Iterator[Callable[[int], Replay]]:
    """`replay(seed)`: a copy of three tables with keys."""
    with ExitStack() as stack:

        def make(seed: int) -> Replay:
            capture(source, *(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)" for table in TABLES))
            made = Replay(source, random.Random(seed))
            stack.callback(made.close)
            return made

        yield make


@pytest.mark.every_combination
def test_c01_windows_by_the_snapshot_lose_nothing(source: str, replay: Callable[[int], Replay]) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    copy = replay(seed)
    with writers(source, seed, change_anything):
        for _ in range(150):
            copy.window()
            if copy.chance.random() < 0.1:
                copy.restart()
    assert copy.window() == 0
    assert copy.copy == copy.source() and copy.copy


@pytest.mark.every_combination
def test_c01_windows_by_position_lose_keys(source: str, replay: Callable[[int], Replay]) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    copy = replay(seed)
    with writers(source, seed, insert_new_keys):
        too_early = next(filter(None, (copy.naive_window() for _ in range(3000))), [])
    copy.naive_window()
    lost = copy.source().keys() - copy.copy.keys()
    assert lost and lost <= set(too_early)


def test_a_snapshot_shows_what_the_server_says(source: str) -> None:
    do(source, *(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)" for table in TABLES))
    with writers(source, 0, insert_new_keys), session_of(source) as session:
        for _ in range(50):
            text = one_of(session, "SELECT pg_current_snapshot()::text")
            snapshot = Snapshot.parse(text)
            xids = range(snapshot.xmin - 3, snapshot.xmax + 3)
            query = "SELECT pg_visible_in_snapshot(x::text::xid8, %s::pg_snapshot) FROM unnest(%s::bigint[]) x"
            assert [snapshot.shows(x) for x in xids] == [v for (v,) in session.execute(query, [text, list(xids)])]
            assert all(snapshot.widen(x % 2**32) == x for x in xids)


def test_a_transaction_that_ends_behind_a_marker_comes_whole_with_the_next(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    with stream_of(source) as stream:
        with in_transaction(source, "INSERT INTO t VALUES (1)") as slow:
            do(source, "INSERT INTO t VALUES (2)")
            assert rows(read(stream, source)) == [("I", None, (b"2",))]
            slow.execute("INSERT INTO t VALUES (3)")
            slow.commit()
        assert rows(read(stream, source)) == [("I", None, (b"1",)), ("I", None, (b"3",))]
        assert read(stream, source) == []


def test_a_position_that_nothing_comes_behind_is_reached_all_the_same(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    do(source, "INSERT INTO t VALUES (1)")
    with stream_of(source) as stream, session_of(source) as session:
        upto = parse_lsn(one_of(session, "SELECT pg_current_wal_flush_lsn()::text"))
        assert rows(list(decode(stream.messages(upto)))) == [("I", None, (b"1",))]
        assert list(stream.messages(upto)) == []


def test_a_marker_is_committed_at_once_or_refused(source: str) -> None:
    with session_of(source) as session:
        first = marker(session)
        assert first < marker(session) <= parse_lsn(one_of(session, "SELECT pg_current_wal_flush_lsn()::text"))
        with pytest.raises(AssertionError, match="committed at once"), session.transaction():
            marker(session)


# Confirming


def test_what_is_not_confirmed_comes_again(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    do(source, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
    before = confirmed(source)
    with stream_of(source) as stream, session_of(source) as session:
        begins = [item for item in decode(stream.messages(marker(session))) if isinstance(item, Begin)]
    assert confirmed(source) == before and not is_active(source)
    with stream_of(source) as stream:
        assert len(rows(read(stream, source))) == 3
        stream.confirm(begins[1].commit_lsn)
    assert confirmed(source) == begins[1].commit_lsn and not is_active(source)
    with stream_of(source) as stream:
        assert rows(read(stream, source)) == [("I", None, (b"2",)), ("I", None, (b"3",))]
        stream.confirm(before)
        stream.confirm(0)
    assert confirmed(source) == begins[1].commit_lsn


def test_confirming_is_seen_while_the_stream_is_open_and_nobody_waits_for_us_to_flush(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    with stream_of(source) as stream, session_of(source) as session:
        end = marker(session)
        assert list(stream.messages(end)) == []
        stream.confirm(end)
        wait_until(lambda: confirmed(source) == end)
        query = "SELECT application_name, flush_lsn::text FROM pg_stat_replication WHERE application_name LIKE 'pgddl%'"
        assert session.execute(query).fetchall() == [("pgddl:test:7:stream", None)]


def test_a_stream_that_is_ended_in_the_middle_loses_nothing(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY, filler text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    do(
        source,
        "INSERT INTO t VALUES (-1, '')",
        "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 200000) g",
    )
    with session_of(source) as session:
        end = marker(session)
        with pytest.raises(Retry, match="terminating connection"), stream_of(source) as stream:
            items = decode(stream.messages(end))
            for item in items:
                if isinstance(item, tuple) and item[3] and item[3][0] == b"1000":
                    session.execute(
                        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s",
                        [slot_name(source)],
                    )
    with stream_of(source) as stream:  # at once, while the other may still hold it
        ids = [new[0] for _, _, new in rows(read(stream, source))]
    assert ids == [b"-1", *(str(n).encode() for n in range(1, 200_001))]


def test_a_large_transaction_is_read_as_it_comes(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY, filler text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    do(source, "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 200000) g")
    waits = "SELECT wait_event FROM pg_stat_activity WHERE application_name = 'pgddl:test:7:stream'"
    with stream_of(source) as stream, session_of(source) as session:
        messages = stream.messages(marker(session))
        tracemalloc.start()
        try:
            first = next(item for item in decode(messages) if isinstance(item, tuple))
            assert first[3] == (b"1", b"x" * 200)
            # The server cannot send the rest before we read on.
            wait_until(lambda: one_of(session, waits) == "WalSenderWriteData")
            assert sum(1 for data in messages if data[:1] == b"I") == 199_999
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
