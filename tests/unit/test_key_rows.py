"""A slot's stream as lines of the change logs."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.capture.key_rows import CapturedLeaf, KeyRows
from airflow_provider_pgddl.engine.capture.pgoutput import (
    Begin,
    Commit,
    Item,
    Relation,
    RelationColumn,
    Truncate,
    Unchanged,
    Values,
)

INT, TEXT = 23, 25
BEGIN = Begin(100, 7)


def relation(*columns: tuple[str, int], identity: str = "d") -> Relation:
    listed = tuple(RelationColumn(name, type_, -1, True) for name, type_ in columns)
    return Relation(1, "public", "t", identity, listed)  # type: ignore[arg-type]


def taken(leaf: CapturedLeaf, *items: Item, known: int = 0) -> list[bytes]:
    rows = KeyRows({1: leaf}, lambda xid: (1 << 32) + xid, known)
    for lsn, item in enumerate(items, 1 << 32 | 10):
        rows.take(item, lsn)
    assert rows.count == len(rows.lines["log"])
    return rows.lines["log"]


ONE = CapturedLeaf("log", [3], ["id"], [INT])
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
    leaf = CapturedLeaf("log", [3], ["id"], [TEXT])
    (line,) = taken(leaf, BEGIN, text, ("I", 1, None, (b"a\tb\\\n\r\\N",)))
    assert line == b"I\t1\t\\N\ta\\tb\\\\\\n\\r\\\\N\t4294967303\t1/C"


def test_a_column_list_is_by_attribute_number() -> None:
    """The key is (b, a), of attributes 5 and 2; a row has them in their order, whatever they were called."""
    leaf = CapturedLeaf("log", [5, 2], ["b", "a"], [TEXT, INT])
    (line,) = taken(leaf, BEGIN, relation(("a_was", INT), ("b_was", TEXT)), ("I", 1, None, (b"1", b"x")))
    assert line.split(b"\t")[4:6] == [b"x", b"1"]


@pytest.mark.parametrize("identity", ["f", "d"])  # d: on Postgres 14, whose publications have no column lists
def test_of_all_columns_the_key_is_found_by_name(identity: str) -> None:
    leaf = CapturedLeaf("log", [5, 2], ["b", "a"], [TEXT, INT])
    columns = relation(("x", TEXT), ("a", INT), ("b", TEXT), identity=identity)
    values: Values = (None, b"1", b"x")
    assert taken(leaf, BEGIN, columns, ("D", 1, values, None))[0].split(b"\t")[2:4] == [b"x", b"1"]


@pytest.mark.parametrize(
    "columns",
    [[("id", TEXT)], [("other", INT), ("more", INT)]],
    ids=["another type", "gone"],
)
def test_a_key_that_has_become_another_one_is_a_lost_track(columns: list[tuple[str, int]]) -> None:
    values: Values = tuple(b"1" for _ in columns)
    (line,) = taken(ONE, BEGIN, relation(*columns), ("U", 1, None, values))
    assert line.startswith(b"X\t")


def test_what_the_logs_have_is_not_taken_again() -> None:
    again: list[Item] = [BEGIN, ID, ("U", 1, None, (b"5",)), Commit(100, 110)]
    fresh: list[Item] = [Begin(120, 8), ("U", 1, None, (b"6",)), Commit(120, 130)]
    assert [line.split(b"\t")[2] for line in taken(ONE, *again, *fresh, known=110)] == [b"6"]


def test_relations_of_others_are_passed_over() -> None:
    other = Relation(2, "public", "u", "d", ID.columns)
    assert taken(ONE, BEGIN, other, ("U", 2, None, (b"5",)), Truncate((2,), False, False)) == []


def test_a_transaction_ends_at_its_border() -> None:
    rows = KeyRows({1: ONE}, lambda xid: xid, 0)
    assert [rows.take(item, 1) for item in (BEGIN, ID, ("U", 1, None, (b"5",)), Commit(100, 110))] == [False] * 3 + [
        True
    ]
    assert rows.border == 110
    rows.clear()
    assert (rows.count, rows.lines) == (0, {"log": []})
