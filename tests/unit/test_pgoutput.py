"""Decoding what a slot yields."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import pytest

from airflow_provider_pgddl.engine.capture.pgoutput import (
    Begin,
    Commit,
    Item,
    LogicalMessage,
    RelationColumn,
    RelationMessage,
    Truncate,
    Unchanged,
    UnknownMessage,
    decode,
    format_lsn,
    logical_messages,
    parse_lsn,
)

Value = str | Unchanged | None


def begin(commit_lsn: int, xid: int = 7) -> bytes:
    return struct.pack("!cQqI", b"B", commit_lsn, 0, xid)


def commit(commit_lsn: int) -> bytes:
    return struct.pack("!cBQQq", b"C", 0, commit_lsn, commit_lsn + 8, 0)


def message(lsn: int, content: bytes, *, prefix: str = "pgddl", transactional: bool = True) -> bytes:
    head = struct.pack("!cBQ", b"M", int(transactional), lsn)
    return head + prefix.encode() + b"\0" + struct.pack("!I", len(content)) + content


def origin() -> bytes:
    return b"O" + struct.pack("!Q", 5) + b"elsewhere\0"


def type_name() -> bytes:
    return b"Y" + struct.pack("!I", 99999) + b"public\0mood\0"


def relation(oid: int, name: str, *columns: RelationColumn, schema: str = "public", identity: str = "d") -> bytes:
    head = b"R" + struct.pack("!I", oid) + f"{schema}\0{name}\0{identity}".encode() + struct.pack("!H", len(columns))
    return head + b"".join(
        struct.pack("!B", c.in_identity) + f"{c.name}\0".encode() + struct.pack("!Ii", c.type_oid, c.typmod)
        for c in columns
    )


def values(*row: Value) -> bytes:
    def one(value: Value) -> bytes:
        if value is None:
            return b"n"
        if isinstance(value, Unchanged):
            return b"u"
        return b"t" + struct.pack("!I", len(value.encode())) + value.encode()

    return struct.pack("!H", len(row)) + b"".join(map(one, row))


def insert(oid: int, *row: Value) -> bytes:
    return b"I" + struct.pack("!I", oid) + b"N" + values(*row)


def update(oid: int, *row: Value, old: tuple[str, tuple[Value, ...]] | None = None) -> bytes:
    before = old[0].encode() + values(*old[1]) if old else b""
    return b"U" + struct.pack("!I", oid) + before + b"N" + values(*row)


def delete(oid: int, *row: Value, kind: str = "K") -> bytes:
    return b"D" + struct.pack("!I", oid) + kind.encode() + values(*row)


def truncate(options: int, *oids: int) -> bytes:
    return b"T" + struct.pack(f"!IB{len(oids)}I", len(oids), options, *oids)


COLUMNS = (RelationColumn("id", 23, -1, True), RelationColumn("größe", 1043, 24, False))
TRANSACTION: list[tuple[bytes, Item | None]] = [
    (begin(1 << 63 | 100, xid=2**32 - 1), Begin(1 << 63 | 100, 2**32 - 1)),
    (origin(), None),
    (type_name(), None),
    (relation(16384, "o.d d", *COLUMNS, identity="f"), RelationMessage(16384, "public", "o.d d", "f", COLUMNS)),
    (relation(1247, "pg_type", schema=""), RelationMessage(1247, "pg_catalog", "pg_type", "d", ())),
    (insert(16384, "1", "Füße"), ("I", 16384, None, (b"1", "Füße".encode()))),
    (insert(16384, "", None), ("I", 16384, None, (b"", None))),
    (insert(4_000_000_000), ("I", 4_000_000_000, None, ())),
    (update(16384, "1", Unchanged.TOAST), ("U", 16384, None, (b"1", Unchanged.TOAST))),
    (update(16384, "2", "x", old=("K", ("1", None))), ("U", 16384, (b"1", None), (b"2", b"x"))),
    (update(16384, "2", "y", old=("O", ("2", "x"))), ("U", 16384, (b"2", b"x"), (b"2", b"y"))),
    (delete(16384, "2", None), ("D", 16384, (b"2", None), None)),
    (delete(16384, None, None, kind="O"), ("D", 16384, (None, None), None)),
    (truncate(0, 16384), Truncate((16384,), cascade=False, restart_identity=False)),
    (truncate(1, 16384, 16390), Truncate((16384, 16390), cascade=True, restart_identity=False)),
    (truncate(2, 16384), Truncate((16384,), cascade=False, restart_identity=True)),
    (message(60, b"{}\0"), LogicalMessage(1 << 63 | 100, 60, "pgddl", b"{}\0")),
    (message(61, b"x", transactional=False), None),
    (commit(1 << 63 | 100), Commit(1 << 63 | 100, (1 << 63 | 100) + 8)),
]


def test_every_kind_of_message() -> None:
    stream = [data for data, _ in TRANSACTION]
    assert list(decode(stream)) == [item for _, item in TRANSACTION if item is not None]


@pytest.mark.parametrize("data", [data for data, item in TRANSACTION if item is not None], ids=lambda d: chr(d[0]))
def test_what_is_cut_short_or_goes_on_behind_its_end_is_an_error(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(UnknownMessage):
            list(decode([data[:length]]))
    with pytest.raises(UnknownMessage):
        list(decode([data + b"\0"]))


@pytest.mark.parametrize(
    "odd",
    [
        b"?",
        b"S" + bytes(5),  # a stream of a later version, which is not asked for
        insert(1, "x").replace(b"N", b"K"),
        delete(1, "x").replace(b"K", b"N"),
        update(1, "x", old=("K", ("y",))).replace(b"N", b"O"),
        insert(1, "x").replace(b"t", b"b"),  # binary is not asked for
    ],
)
def test_what_this_protocol_does_not_know_is_an_error_without_its_values(odd: bytes) -> None:
    with pytest.raises(UnknownMessage) as error:
        list(decode([odd]))
    assert str(error.value) == f"pgoutput message {odd[:1]!r} of {len(odd)} bytes"


def test_random_bytes_are_an_error_or_items_and_nothing_else() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(20_000):
        data = bytearray(chance.choice(TRANSACTION)[0])
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with suppress(ValueError):  # UnknownMessage, or a name that is not UTF-8
            list(decode([bytes(data)]))


def test_rows_come_as_they_are_read() -> None:
    def endless() -> Iterator[bytes]:
        yield begin(9)
        while True:
            yield insert(1, "x")

    assert len(list(islice(decode(endless()), 1000))) == 1000


def test_messages_come_with_their_transactions_commit() -> None:
    stream = [begin(100), message(60, b"{}"), message(70, "é\0".encode()), commit(100), begin(200), commit(200)]
    stream += [begin(1 << 40), insert(1, "x"), message(90, b"", prefix="other"), commit(1 << 40)]
    assert list(logical_messages(stream)) == [
        LogicalMessage(100, 60, "pgddl", b"{}"),
        LogicalMessage(100, 70, "pgddl", "é\0".encode()),
        LogicalMessage(1 << 40, 90, "other", b""),
    ]


def test_what_no_transaction_can_take_back_is_not_ours() -> None:
    stream = [message(10, b"x", transactional=False), begin(50), message(20, b"y", transactional=False), commit(50)]
    assert list(logical_messages(stream)) == []


def test_a_message_that_is_cut_short_is_an_error() -> None:
    with pytest.raises(UnknownMessage, match="a message of 5 bytes in 4"):
        list(logical_messages([begin(9), message(1, b"12345")[:-1]]))


@pytest.mark.parametrize(
    ("text", "number"), [("0/0", 0), ("16/B374D848", 0x16B374D848), ("FFFFFFFF/FFFFFFFF", 2**64 - 1)]
)
def test_positions_are_printed_and_read_as_the_server_does(text: str, number: int) -> None:
    assert format_lsn(number) == text
    assert parse_lsn(text) == number
