"""How people are told of captured DDL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_pgddl.cli_ddl import _change, _events, age, aligned, cut, first_line
from airflow_provider_pgddl.engine.schema.table_versions import table_diff

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ago", "said"),
    [
        (timedelta(seconds=0), "0 s"),
        (timedelta(seconds=59), "59 s"),
        (timedelta(seconds=60), "1 min"),
        (timedelta(minutes=59, seconds=59), "59 min"),
        (timedelta(hours=1), "1 h"),
        (timedelta(hours=23, minutes=59), "23 h"),
        (timedelta(days=400), "400 d"),
        (timedelta(seconds=-5), "0 s"),
    ],
)
def test_age_is_in_its_largest_unit(ago: timedelta, said: str) -> None:
    assert age(NOW - ago, NOW) == said
    assert age((NOW - ago).isoformat(), NOW) == said


def test_what_has_no_time_has_no_age() -> None:
    assert age(None) == "-"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("  \n ", ""),
        ("ALTER TABLE a ADD b int", "ALTER TABLE a ADD b int"),
        ("\n\nCREATE VIEW v AS\n  SELECT 1", "CREATE VIEW v AS …"),
        ("DROP TABLE a\n", "DROP TABLE a"),
    ],
)
def test_the_first_line_says_whether_there_is_more(text: str, said: str) -> None:
    assert first_line(text) == said


def test_a_line_is_cut_to_the_room_there_is() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 6) == "abcde…"


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    lines = list(aligned(["ID", "STATUS", "STATEMENT"], [["1", "failed", "x" * 500], ["1000", "pending", ""]]))
    assert lines[0] == "ID    STATUS   STATEMENT"
    assert lines[1].startswith("1     failed   xxx")
    assert lines[1].endswith("x…")
    assert len(lines[1]) == 160
    assert lines[2] == "1000  pending"


def event(number: int, status: str, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "status": status,
        "tag": "ALTER TABLE",
        "recorded_at": "2026-11-20T02:00:00+00:00",
        "touches": ["shop.orders"],
        "statement": "ALTER TABLE shop.orders\n  ADD note text",
        "reason": None,
        "todo": None,
        **more,
    }


def test_a_list_says_reason_and_next_step_below_each_event() -> None:
    found = {
        "pipeline": "shop",
        "run": 2,
        "counts": {"pending": 1, "awaiting_approval": 0, "failed": 1, "applied": 1200},
        "events": [
            event(7, "failed", reason="column exists\n(while applying)", todo="put it right"),
            event(12, "pending", touches=["shop.a", "shop.b", "shop.c"]),
        ],
    }
    head, *lines, last = _events(found)
    assert head.split() == ["ID", "STATUS", "AGE", "COMMAND", "ON", "STATEMENT"]
    assert lines[0].split()[:2] == ["7", "failed"]
    assert lines[0].endswith("ALTER TABLE shop.orders …")
    assert lines[1:3] == ["      column exists …", "      → put it right"]
    assert "shop.a, shop.b …" in lines[3]
    assert last == "shop, run 2: 1 pending, 1 failed, 1200 applied"


def test_an_empty_list_is_one_line() -> None:
    found = {"pipeline": "shop", "run": 1, "counts": {"failed": 0}, "events": []}
    assert list(_events(found)) == ["shop, run 1: no DDL has been captured yet"]


def table(**changed: Any) -> Any:
    column = {
        "attnum": 1,
        "name": "id",
        "type": "integer",
        "type_oid": 23,
        "typmod": -1,
        "collation": None,
        "not_null": True,
        "default": None,
        "generated": "",
        "identity": "",
        "missing": None,
        "local": True,
    }
    return {"oid": 1, "schema": "shop", "name": "orders", "kind": "r", "persistence": "p", "owner": "app",
            "columns": [column], "key": {"index": "orders_pkey", "columns": [1]}, "replica_identity": "d",
            "replica_index": None, "constraints": [], "indexes": [], "partition_key": None, "bound": None,
            "parents": [], "descendants": [], "definition": None, "options": [], **changed}  # fmt: skip


def said(before: Any, after: Any) -> list[str]:
    return list(_change(table_diff(before, after).to_json()))


def test_a_change_of_a_table_is_said_in_short_lines() -> None:
    (column,) = table()["columns"]
    wider = {**column, "type": "bigint", "type_oid": 20, "default": "7", "not_null": False, "name": "key"}
    added = {**column, "attnum": 2, "name": "note", "not_null": False}
    assert said(None, table()) == ["shop.orders: created"]
    assert said(table(), None) == ["shop.orders: dropped"]
    assert said(table(), table(columns=[wider, added])) == [
        "shop.orders: column note added",
        "shop.orders: column key: default none → 7, was id, not null true → false, type integer → bigint",
    ]
    assert said(table(), table(name="sales", owner="boss", key=None)) == [
        "shop.sales: renamed orders → sales",
        "shop.sales: key",
        "shop.sales: owner app → boss",
    ]
