"""A slot's stream as lines of the change logs."""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from collections.abc import Iterator

import pytest

from airflow_provider_pgddl.engine.capture import key_rows
from airflow_provider_pgddl.engine.capture.key_rows import CapturedLeaf, KeyRows, NotVisibleYet
from airflow_provider_pgddl.engine.capture.pgoutput import (
    Begin,
    Commit,
    Item,
    RelationColumn,
    RelationMessage,
    Truncate,
    Unchanged,
    UnknownMessage,
    Values,
    decode,
)
from airflow_provider_pgddl.engine.capture.snapshot_visibility import Snapshot

INT, TEXT = 23, 25
BEGIN = Begin(100, 7)
ALL = Snapshot(1000, 1000, frozenset())  # shows all that there is


def relation(*columns: tuple[str, int], identity: str = "d", without: str = "") -> RelationMessage:
    listed = tuple(RelationColumn(name, type_, -1, name != without) for name, type_ in columns)
    return RelationMessage(1, "public", "t", identity, listed)  # type: ignore[arg-type]


def taken(leaf: CapturedLeaf, *items: Item, known: int = 0) -> list[bytes]:
    rows = KeyRows({1: leaf}, Snapshot((1 << 32) + 99, (1 << 32) + 99, frozenset()), known, {})
    for lsn, item in enumerate(items, 1 << 32 | 10):
        rows.take(item, lsn)
    assert rows.count == len(rows.lines["log"])
    return rows.lines["log"]


ONE = CapturedLeaf("log", [3], [INT], {1: "v", 2: "w", 3: "id"})
ID = relation(("id", INT))


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (("U", 1, None, (b"5",)), b"U\t1\t5\t5\t4294967303\t1/C"),
        (("U", 1, None, (b"-5",)), b"U\t1\t-5\t-5\t4294967303\t1/C"),
        (("U", 1, (b"4",), (b"5",)), b"U\t1\t4\t5\t4294967303\t1/C"),
        (("I", 1, None, (b"5",)), b"I\t1\t\\N\t5\t4294967303\t1/C"),
        (("D", 1, (b"5",), None), b"D\t1\t5\t\\N\t4294967303\t1/C"),
        (("D", 1, (None,), None), b"X\t1\t\\N\t\\N\t4294967303\t1/C"),  # an identity that is not the key
        (("U", 1, (b"5",), (Unchanged.TOAST,)), b"U\t1\t5\t5\t4294967303\t1/C"),
        (("U", 1, None, (Unchanged.TOAST,)), b"X\t1\t\\N\t\\N\t4294967303\t1/C"),
        (Truncate((1, 2), True, False), b"T\t1\t\\N\t\\N\t4294967303\t1/C"),
    ],
)
def test_a_change_is_a_line(row: Item, line: bytes) -> None:
    assert taken(ONE, BEGIN, ID, row) == [line]


def test_what_copy_takes_for_something_else_is_escaped() -> None:
    text = relation(("id", TEXT))
    leaf = CapturedLeaf("log", [3], [TEXT], {3: "id"})
    (line,) = taken(leaf, BEGIN, text, ("I", 1, None, (b"a\tb\\\n\r\\N",)))
    assert line == b"I\t1\t\\N\ta\\tb\\\\\\n\\r\\\\N\t4294967303\t1/C"


def test_a_column_list_is_by_attribute_number() -> None:
    """The key is (b, a), of attributes 5 and 2; a row has them in their order, whatever they were called."""
    leaf = CapturedLeaf("log", [5, 2], [TEXT, INT], {2: "a", 5: "b"})
    (line,) = taken(leaf, BEGIN, relation(("a_was", INT), ("b_was", TEXT)), ("I", 1, None, (b"1", b"x")))
    assert line.split(b"\t")[4:6] == [b"x", b"1"]


@pytest.mark.parametrize("identity", ["f", "d"])  # d: on Postgres 14, whose publications have no column lists
def test_of_all_columns_the_key_is_found(identity: str) -> None:
    leaf = CapturedLeaf("log", [5, 2], [TEXT, INT], {1: "x", 2: "a", 5: "b"}, dropped=True)
    columns = relation(("x", TEXT), ("a", INT), ("b", TEXT), identity=identity)
    values: Values = (None, b"1", b"x")
    assert taken(leaf, BEGIN, columns, ("D", 1, values, None))[0].split(b"\t")[2:4] == [b"x", b"1"]


@pytest.mark.parametrize(
    ("columns", "said", "key"),
    [
        ({1: "ref", 2: "id"}, ["id", "ref"], b"0"),  # names that were exchanged since
        ({1: "id", 2: "more"}, ["id"], b"0"),
        ({1: "id", 2: "v2", 4: "w"}, ["id", "v"], b"0"),  # 3 was dropped before
        ({1: "id", 3: "v"}, ["id", "gone", "v"], b"0"),
        ({2: "v", 3: "id"}, ["gone", "v", "id"], b"2"),
        ({1: "v", 3: "id"}, ["v", "id"], b"1"),
        ({2: "v", 3: "id"}, ["gone", "w", "id"], None),  # w may be what is v, or id now
    ],
)
def test_a_key_is_found_in_rows_that_are_older_than_its_name(
    columns: dict[int, str], said: list[str], key: bytes | None
) -> None:
    number = next(n for n, name in columns.items() if name == ("ref" if "ref" in said else "id"))
    leaf = CapturedLeaf("log", [number], [INT], columns, dropped=len(columns) < max(columns))
    values: Values = tuple(b"%d" % n for n in range(len(said)))
    (line,) = taken(leaf, BEGIN, relation(*((name, INT) for name in said), identity="f"), ("D", 1, values, None))
    assert line.split(b"\t")[:3] == ([b"D", b"1", key] if key else [b"X", b"1", b"\\N"])


@pytest.mark.parametrize(
    "item", [("I", 2, None, (b"5",)), ("U", 2, (b"4",), (b"5",)), Truncate((1, 2), False, False)], ids=repr
)
def test_whether_a_row_is_captured_is_not_decided_by_a_transaction_that_nobody_sees(item: Item) -> None:
    """As one that has made a partition, filled it, and waits for a standby."""
    other = RelationMessage(2, "public", "u", "d", ID.columns)
    for shown, known in ((False, 0), (False, 110), (True, 0)):
        now = Snapshot(5, 10, frozenset() if shown else frozenset({7}))
        rows = KeyRows({1: ONE}, now, known, {})
        for before in (BEGIN, ID, other):
            rows.take(before, 1)
        if shown or known:
            rows.take(item, 1)
        else:
            with pytest.raises(NotVisibleYet):
                rows.take(item, 1)


@pytest.mark.parametrize(
    "columns",
    [[("id", TEXT)], [("other", INT), ("more", INT)]],
    ids=["another type", "gone"],
)
def test_a_key_that_has_become_another_one_is_a_lost_track(columns: list[tuple[str, int]]) -> None:
    values: Values = tuple(b"1" for _ in columns)
    (line,) = taken(ONE, BEGIN, relation(*columns), ("U", 1, None, values))
    assert line.startswith(b"X\t")


@pytest.mark.parametrize(
    ("row", "op"),
    [
        (("U", 1, None, (b"1", b"2")), b"X"),  # of the same key, or of one that was other there
        (("U", 1, (b"1", None), (b"3", b"2")), b"X"),
        (("D", 1, (b"1", None), None), b"X"),
        (("I", 1, None, (b"1", b"2")), b"I"),
    ],
)
def test_an_identity_that_is_not_all_of_the_key_does_not_tell_the_old_one(row: Item, op: bytes) -> None:
    leaf = CapturedLeaf("log", [1, 2], [INT, INT], {1: "id", 2: "day"})
    narrow, whole = (relation(("id", INT), ("day", INT), identity="i", without=gone) for gone in ("day", ""))
    same: Item = ("U", 1, None, (b"1", b"2"))
    lines = taken(leaf, BEGIN, whole, same, narrow, row, whole, same)
    assert [line[:1] for line in lines] == [b"U", op, b"U"]


def test_values_that_may_be_in_no_log_are_a_lost_track() -> None:
    leaf = CapturedLeaf("log", [3], [INT], {3: "id"}, unread=True)
    (line,) = taken(leaf, BEGIN, ID, ("U", 1, (b"4",), (b"5",)))
    assert line.split(b"\t")[:4] == [b"X", b"1", b"\\N", b"\\N"]


def test_what_the_logs_have_is_not_taken_again() -> None:
    again: list[Item] = [BEGIN, ID, ("U", 1, None, (b"5",)), Commit(100, 110)]
    fresh: list[Item] = [Begin(120, 8), ("U", 1, None, (b"6",)), Commit(120, 130)]
    assert [line.split(b"\t")[2] for line in taken(ONE, *again, *fresh, known=110)] == [b"6"]


def test_relations_of_others_are_passed_over() -> None:
    other = RelationMessage(2, "public", "u", "d", ID.columns)
    assert taken(ONE, BEGIN, other, ("U", 2, None, (b"5",)), Truncate((2,), False, False)) == []


def test_a_transaction_ends_at_its_border() -> None:
    rows = KeyRows({1: ONE}, ALL, 0, {})
    assert [rows.take(item, 1) for item in (BEGIN, ID, ("U", 1, None, (b"5",)), Commit(100, 110))] == [False] * 3 + [
        True
    ]
    assert rows.border == 110
    rows.clear()
    assert (rows.count, rows.lines) == (0, {"log": []})


def begin(xid: int, commit_lsn: int) -> bytes:
    return struct.pack("!cQQI", b"B", commit_lsn, 0, xid)


def commit(lsn: int) -> bytes:
    return struct.pack("!cBQQQ", b"C", 0, lsn, lsn + 1, 0)


def describe(oid: int = 1, type_: int = INT, in_identity: bool = True) -> bytes:
    return (
        struct.pack("!cI", b"R", oid)
        + b"public\0t\0d"
        + struct.pack("!HB", 1, in_identity)
        + b"id\0"
        + struct.pack("!Ii", type_, -1)
    )


def update(key: bytes, oid: int = 1) -> bytes:
    return struct.pack("!cIcHcI", b"U", oid, b"N", 1, b"t", len(key)) + key


def read(messages: list[bytes], known: int = 0) -> KeyRows:
    rows = KeyRows({1: ONE}, ALL, known, {})
    for item in decode(rows.others(messages)):
        rows.take(item, 5)
    rows.settle()
    assert rows.count == len(rows.lines["log"])
    return rows


def keys_of(rows: KeyRows) -> list[tuple[bytes, int]]:
    """(key, transaction) of each line."""
    return [(line.split(b"\t")[2], int(line.split(b"\t")[4])) for line in rows.lines["log"]]


def test_of_one_keys_plain_updates_the_first_and_the_last_are_lines() -> None:
    stream = [begin(1, 10), describe(), update(b"5"), update(b"5"), commit(10)]
    assert read(stream).lines["log"] == [b"U\t1\t5\t5\t1\t0/A"]
    for xid in (2, 3, 4):
        stream += [begin(xid, 10 * xid), update(b"5"), update(b"5"), commit(10 * xid)]
    stream += [begin(5, 50), update(b"-6"), commit(50)]
    assert keys_of(read(stream)) == [(b"5", 1), (b"-6", 5), (b"5", 4)]


def test_what_is_known_is_no_first_one() -> None:
    stream = [begin(1, 10), describe(), update(b"5"), commit(10), begin(2, 20), update(b"5"), commit(20)]
    assert keys_of(read(stream, known=20)) == [(b"5", 2)]


def test_a_plain_update_is_of_the_relation_as_it_was_described_last() -> None:
    stream = [begin(1, 10), describe(), update(b"5"), describe(), update(b"5"), commit(10)]
    stream += [begin(2, 20), describe(type_=TEXT), update(b"5"), update(b"5"), commit(20)]
    stream += [begin(3, 30), describe(in_identity=False), update(b"5"), commit(30)]
    assert [line[:1] for line in read(stream).lines["log"]] == [b"U", b"X", b"X", b"X"]


def test_relations_that_nobody_captures_are_passed_over_when_plain() -> None:
    assert read([begin(1, 10), describe(2), update(b"5", 2), update(b"5", 2), commit(10)]).count == 0


def test_a_plain_update_that_is_cut_short_is_none() -> None:
    with pytest.raises(UnknownMessage):
        read([begin(1, 10), describe(), update(b"555")[:-1], commit(10)])


def test_it_is_full_before_memory_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction of any number of rows: whoever reads gets to write."""
    monkeypatch.setattr(key_rows, "KEYS_AT_ONCE", 10)
    rows = KeyRows({1: ONE}, ALL, 0, {})
    keys = [b"%d" % n for n in range(100)]

    def stream() -> Iterator[bytes]:
        yield from [begin(1, 10), describe()]
        yield from (update(key) for key in keys)

    written, most = [], 0
    for item in decode(rows.others(stream())):
        rows.take(item, 5)
        if rows.full:
            rows.settle()
            most = max(most, rows.count)
            written += keys_of(rows)
            rows.clear()
    rows.settle()
    assert sorted(key for key, _ in written + keys_of(rows)) == sorted(keys)
    assert most == 11


def test_every_snapshot_takes_the_keys_and_leaves_the_keys_that_all_lines_would() -> None:
    """A snapshot shows of each key's transactions the first ones, any number: they waited for each other."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    stream, all_lines = [begin(1, 10), describe(), commit(10)], defaultdict[bytes, list[int]](list)
    for xid in range(2, 40):
        stream.append(begin(xid, 10 * xid))
        for key in (b"%d" % rng.randrange(12) for _ in range(rng.randrange(6))):
            stream.append(update(key))
            all_lines[key].append(xid)
        stream.append(commit(10 * xid))
    kept = defaultdict[bytes, list[int]](list)
    for key, xid in keys_of(read(stream)):
        kept[key].append(xid)
    assert kept.keys() == all_lines.keys()
    for key, xids in all_lines.items():
        assert len(kept[key]) == min(2, len(set(xids)))
        for shown in (set(xids[:n]) for n in range(len(xids) + 1)):
            assert any(x in shown for x in kept[key]) == any(x in shown for x in xids)
            assert any(x not in shown for x in kept[key]) == any(x not in shown for x in xids)
