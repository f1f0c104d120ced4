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
from airflow_provider_pgddl.engine.capture.pgoutput import (
    Begin,
    Commit,
    Item,
    LogicalMessage,
    RelationMessage,
    Truncate,
    Unchanged,
    decode,
    parse_lsn,
)
from airflow_provider_pgddl.engine.capture.slot_stream import SlotStream, marker
from airflow_provider_pgddl.engine.capture.snapshot_visibility import Snapshot
from airflow_provider_pgddl.engine.errors import PgddlError, Retry, SlotLost, StageFailed, Unreachable
from airflow_provider_pgddl.engine.server.connect import Session, connect, connect_replication
from tests.combinations import matrix
from tests.conftest import Database, database_name
from tests.integration.lifecycle import wait_until
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for

TABLES = ("one", "two", "three")
WRITERS = 8


@pytest.fixture(params=matrix(16, 18))
def source(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Database) -> str:
    return database(pg16 if request.param == 16 else pg18)


def slot_name(dsn: str) -> str:
    return f"pgddl_{database_name(dsn)}"


def capture(dsn: str, *statements: str, publish: str = "ALL TABLES") -> None:
    """After the statements, a publication and a slot."""
    name = slot_name(dsn)
    do(dsn, *statements, f"CREATE PUBLICATION {name} FOR {publish}")
    do(dsn, f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")


def stream_of(dsn: str) -> SlotStream:
    return SlotStream(dsn, slot_name(dsn), slot_name(dsn), pipeline="test", token=7)


@contextmanager
def session_of(dsn: str) -> Iterator[Session]:
    with connect(dsn, purpose="test") as session:
        yield session


def read(stream: SlotStream, dsn: str) -> list[Item]:
    """All that has committed so far, without what only frames it."""
    with session_of(dsn) as session:
        items = decode(stream.messages(marker(session)))
        return [
            item
            for item in items
            if not isinstance(item, (Begin, Commit, RelationMessage))
            and not (isinstance(item, LogicalMessage) and item.prefix == "pgddl.marker")
        ]


def rows(items: list[Item]) -> list[tuple[Any, ...]]:
    """(operation, old row, new row)"""
    return [(item[0], item[2], item[3]) for item in items if isinstance(item, tuple)]


def confirmed(dsn: str) -> int:
    return parse_lsn(
        one(dsn, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", slot_name(dsn))
    )


def is_active(dsn: str) -> bool:
    return bool(one(dsn, "SELECT active FROM pg_replication_slots WHERE slot_name = %s", slot_name(dsn)))


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


def one_of(session: Session, query: str) -> Any:
    row = session.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


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


# What there is in a slot


def test_messages_come_between_the_rows_of_their_transaction(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(source) as conn:
        conn.execute("INSERT INTO t VALUES (1)")
        conn.execute(
            "SELECT pg_logical_emit_message(true, 'pgddl', 'é'), pg_logical_emit_message(false, 'pgddl', 'no')"
        )
        conn.execute("INSERT INTO t VALUES (2)")
    do(source, "SELECT pg_logical_emit_message(false, 'pgddl', 'no')")
    with stream_of(source) as stream:
        first, message, second = read(stream, source)
    assert isinstance(message, LogicalMessage)
    assert (message.prefix, message.content) == ("pgddl", "é".encode())
    assert rows([first, second]) == [("I", None, (b"1",)), ("I", None, (b"2",))]


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        (
            "DEFAULT",
            [
                ("U", None, (b"1", b"a", b"v", Unchanged.TOAST)),
                ("U", (b"1", None, None, None), (b"2", b"a", b"v", Unchanged.TOAST)),
                ("D", (b"2", None, None, None), None),
            ],
        ),
        (
            "USING INDEX by_code",
            [
                ("U", None, (b"1", b"a", b"v", Unchanged.TOAST)),
                ("U", None, (b"2", b"a", b"v", Unchanged.TOAST)),
                ("D", (None, b"a", None, None), None),
            ],
        ),
        (
            "FULL",
            [
                ("U", (b"1", b"a", None, b"big"), (b"1", b"a", b"v", Unchanged.TOAST)),
                ("U", (b"1", b"a", b"v", b"big"), (b"2", b"a", b"v", Unchanged.TOAST)),
                ("D", (b"2", b"a", b"v", b"big"), None),
            ],
        ),
    ],
)
def test_what_is_known_of_the_old_row_is_its_replica_identity(
    source: str, identity: str, expected: list[tuple[Any, ...]]
) -> None:
    capture(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, v text, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "CREATE UNIQUE INDEX by_code ON t (code)",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "INSERT INTO t VALUES (1, 'a', NULL, repeat('big', 4000))",
    )
    do(source, "UPDATE t SET v = 'v'", "UPDATE t SET id = 2", "DELETE FROM t")
    with stream_of(source) as stream:
        found = rows(read(stream, source))

    def shortened(row: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        return row and tuple(b"big" if value == b"big" * 4000 else value for value in row)

    assert [(op, shortened(old), shortened(new)) for op, old, new in found] == expected


def test_without_a_replica_identity_only_new_rows_can_come(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING")
    do(source, "INSERT INTO t VALUES (1)")
    for refused in ("UPDATE t SET id = 2", "DELETE FROM t"):  # so such a table must not be published (C19)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="replica identity"):
            do(source, refused)
    with stream_of(source) as stream, session_of(source) as session:
        items = list(decode(stream.messages(marker(session))))
    assert [item.replica_identity for item in items if isinstance(item, RelationMessage)] == ["n"]
    assert rows(items) == [("I", None, (b"1",))]


def test_a_key_that_is_out_of_line_comes_with_the_old_row(source: str) -> None:
    capture(
        source,
        "CREATE TABLE t (id text PRIMARY KEY, v text)",
        "ALTER TABLE t ALTER id SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (repeat('k', 2500), 'a')",
    )
    do(source, "UPDATE t SET v = 'b'")
    with stream_of(source) as stream:
        assert rows(read(stream, source)) == [("U", (b"k" * 2500, None), (Unchanged.TOAST, b"b"))]


def test_only_the_columns_of_the_publications_list_come(source: str) -> None:
    table = "CREATE TABLE t (a text, id int, b text, part int, PRIMARY KEY (part, id))"
    capture(source, table, publish="TABLE t (id, part)")
    do(source, "INSERT INTO t VALUES ('a', 1, 'b', 2)", "UPDATE t SET a = 'x', part = 3", "UPDATE t SET a = 'y'")
    do(source, "DELETE FROM t")
    with stream_of(source) as stream, session_of(source) as session:
        items = list(decode(stream.messages(marker(session))))
    (relation,) = [item for item in items if isinstance(item, RelationMessage)]
    assert [(c.name, c.in_identity) for c in relation.columns] == [("id", True), ("part", True)]
    assert rows(items) == [
        ("I", None, (b"1", b"2")),
        ("U", (b"1", b"2"), (b"1", b"3")),
        ("U", None, (b"1", b"3")),
        ("D", (b"1", b"3"), None),
    ]


def test_a_table_that_is_changed_is_described_again(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    do(source, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "ALTER TABLE t RENAME id TO key")
    do(source, "ALTER TABLE t RENAME TO u", "INSERT INTO u VALUES (3)")
    with stream_of(source) as stream, session_of(source) as session:
        items = list(decode(stream.messages(marker(session))))
    described = [(item.name, item.columns[0].name) for item in items if isinstance(item, RelationMessage)]
    assert described == [("t", "id"), ("u", "key")]


def test_one_truncate_of_two_tables(source: str) -> None:
    capture(
        source,
        "CREATE TABLE a (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY REFERENCES a)",
        "CREATE TABLE c (id int PRIMARY KEY)",
    )
    do(source, "TRUNCATE a RESTART IDENTITY CASCADE", "TRUNCATE c, b")
    oids = [one(source, "SELECT %s::regclass::oid::bigint", name) for name in "abc"]
    with stream_of(source) as stream:
        found = read(stream, source)
    assert found == [
        Truncate((oids[0], oids[1]), cascade=True, restart_identity=True),
        Truncate((oids[2], oids[1]), cascade=False, restart_identity=False),
    ]


def test_values_are_printed_as_by_every_session_of_ours(source: str) -> None:
    name = database_name(source)
    odd = {"DateStyle": "German", "TimeZone": "Asia/Tokyo", "bytea_output": "escape", "client_encoding": "LATIN1",
           "IntervalStyle": "sql_standard", "extra_float_digits": "-3"}  # fmt: skip
    capture(
        source,
        "CREATE TABLE t (at timestamptz, b bytea, c text, i interval, f float8, PRIMARY KEY (at, b, c, i, f))",
        *(f"ALTER DATABASE {name} SET {key} = '{value}'" for key, value in odd.items()),
    )
    with psycopg.connect(source, client_encoding="UTF8") as conn:
        conn.execute(r"INSERT INTO t VALUES ('2024-02-01 00:00Z', '\x00ff', 'é', '1 day 2 hours', 0.1::float4)")
    with stream_of(source) as stream, session_of(source) as session:
        ((_, _, row),) = rows(read(stream, source))
        texts = session.execute("SELECT at::text, b::text, c, i::text, f::text FROM public.t").fetchone()
    assert tuple(value.decode() for value in row) == texts
    assert row[2] == "é".encode()


# What can be wrong


def test_a_slot_in_use_says_by_whom_and_is_worth_a_retry(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_pgddl.engine.capture.slot_stream.RELEASE_WAIT", 0.1)
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    with stream_of(source):
        pid = one(source, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", slot_name(source))
        with pytest.raises(Retry, match=f"active for PID {pid}"), stream_of(source):
            pass


def test_a_slot_that_is_gone_or_somebody_elses_is_final(source: str) -> None:
    with pytest.raises(SlotLost, match="was dropped") as gone, stream_of(source):
        pass
    assert gone.value.todo and not gone.value.retryable
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    do(source, f"SELECT pg_drop_replication_slot('{slot_name(source)}')")
    do(source, f"SELECT pg_create_physical_replication_slot('{slot_name(source)}')")
    with pytest.raises(StageFailed, match="somebody else's"), stream_of(source):
        pass
    do(source, f"SELECT pg_drop_replication_slot('{slot_name(source)}')")


def test_a_publication_that_was_gone_while_rows_changed_is_final(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    name = slot_name(source)
    do(source, f"DROP PUBLICATION {name}", "INSERT INTO t VALUES (1)", f"CREATE PUBLICATION {name} FOR ALL TABLES")
    with pytest.raises(SlotLost, match=f"publication '{name}' was dropped"), stream_of(source) as stream:
        read(stream, source)


def test_a_role_that_may_not_replicate_is_told_what_it_lacks(source: str, pg16: Cluster, pg18: Cluster) -> None:
    cluster = pg16 if f"port={pg16.port}" in source else pg18
    do(source, "DROP ROLE IF EXISTS plain_reader", f"CREATE ROLE plain_reader LOGIN PASSWORD '{cluster.password}'")
    try:
        with pytest.raises(PgddlError, match="refuses") as error:
            connect_replication(cluster.conninfo(database_name(source), user="plain_reader"), purpose="test")
        assert not error.value.retryable and "REPLICATION" in str(error.value.todo)
        assert cluster.password not in str(error.value)
    finally:
        do(source, "DROP ROLE plain_reader")


def test_a_slot_that_has_lost_its_wal_is_told_from_one_that_was_dropped() -> None:
    with Cluster(16, settings={"max_slot_wal_keep_size": "1MB", "wal_keep_size": "0"}) as cluster:
        dsn = cluster.conninfo()
        capture(dsn, "CREATE TABLE t (id int PRIMARY KEY)")
        for _ in range(3):
            do(dsn, "INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t", "SELECT pg_switch_wal()")
        do(dsn, "CHECKPOINT")
        assert one(dsn, "SELECT wal_status FROM pg_replication_slots") == "lost"
        with pytest.raises(SlotLost, match="has lost WAL that it needs") as error, stream_of(dsn):
            pass
        assert error.value.todo


def test_a_server_that_shuts_down_does_not_wait_for_us_and_the_next_one_goes_on() -> None:
    with Cluster(18) as cluster:
        dsn = cluster.conninfo()
        capture(dsn, "CREATE TABLE t (id int PRIMARY KEY)")
        do(dsn, "INSERT INTO t VALUES (1)")

        def read_on() -> None:
            with stream_of(dsn) as stream:
                for _ in stream.messages(2**63):
                    pass

        with Underway(read_on) as reader:
            wait_for(lambda: is_active(dsn), reader)
            cluster.stop("fast")
            reader.fails(Retry)
        cluster.start()
        with stream_of(dsn) as stream:
            assert rows(read(stream, dsn)) == [("I", None, (b"1",))]
        cluster.stop("immediate")
        with pytest.raises(Unreachable), stream_of(dsn):
            pass
