"""Expressions of the pipeline file: what they may be, and what else a file must not say beside them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_pgddl.engine.errors import PipelineFileError
from airflow_provider_pgddl.engine.pipeline.expressions import expression, is_plain, renamed, terms
from airflow_provider_pgddl.engine.pipeline.reading import changed_keys, load_pipeline


def test_a_bad_condition_is_one_line_of_the_file() -> None:
    text = """\
pipeline: p
source: {dsn: "${A}"}
target: {dsn: "${B}"}
tables:
  include: ["s.*"]
  where:
    s.orders: "%s"
"""
    for condition, why in (
        ("tenant =", "cannot be read as SQL"),
        ("tenant = 7; DROP TABLE s.orders", "is not one expression"),
        ("tenant = 7) OR (true", "cannot be read as SQL"),
        ("tenant = 7 FROM s.other", "is not one expression"),
        ("tenant IN (SELECT id FROM s.tenants)", "a query in it is not possible"),
        ("count(*) > 1", "an aggregate or a window function"),
        ("orders.tenant = 7", "without the name of their table"),
        ("at < current_date", "changes with the time"),
        ("tenant = $1", "parameter"),
    ):
        with pytest.raises(PipelineFileError) as refused:
            load_pipeline(text % condition)
        (line,) = str(refused.value).splitlines()
        assert line.startswith("pipeline, line 7: tables.where.s.orders: ") and why in line, line


def test_where_has_no_place_in_place_or_on_the_way_back() -> None:
    base = {"pipeline": "p", "source": {"dsn": "${A}"}, "tables": {"where": {"s.t": "id = 1"}}}
    with pytest.raises(PipelineFileError, match=r"tables.where: has no place in a rewrite in place"):
        load_pipeline({**base, "rewrite": {"s.t": {}}})
    across = {**base, "target": {"dsn": "${B}"}, "tables": {"include": ["s.*"], "where": {"s.t": "id = 1"}}}
    with pytest.raises(PipelineFileError, match=r"swap.way_back: has no place beside tables.where"):
        load_pipeline({**across, "swap": {"fence": "read_only", "way_back": "back"}})
    with pytest.raises(PipelineFileError, match=r"tables.where: is about rows that are moved"):
        load_pipeline({**across, "ddl": {"ddl_only": True}})


def across(**tables: Any) -> dict[str, Any]:
    ends = {"source": {"dsn": "${A}"}, "target": {"dsn": "${B}"}}
    return {"pipeline": "p", **ends, "tables": {"include": ["s.*"], **tables}}


def test_what_a_file_says_of_values() -> None:
    made = {"s.t": {"a": None, '"B"': "md5(\"B\") || 'x'"}}
    pipeline = load_pipeline(across(where={'s."T"': "a AND b = 1"}, transform=made))
    read = pipeline.rows_read
    assert read["s", "T"].condition == "a AND b = 1" and read["s", "T"].columns == {"a", "b"}
    assert str(read["s", "t"]) == "a as NULL, B as md5(\"B\") || 'x'"
    assert read["s", "t"].transform["a"].literal and not read["s", "t"].transform["B"].literal
    again = load_pipeline(pipeline.to_json())
    assert again.rows_read == read
    other = load_pipeline(across(where={'s."T"': "a AND b = 2"}, transform=made))
    assert changed_keys(pipeline.to_json(), other.to_json()) == ['tables.where.s."T"']
    for tables, why in (
        ({"where": {"s.t": "a", "S.t": "b"}}, "is the same table as s.t"),
        ({"transform": {"s.t": {"a": "1", "A": "2"}}}, "is the same column as a"),
        ({"transform": {"s.t": {}}}, "names no column"),
        ({"transform": {"s.t": {"a": "1"}}, "skip_columns": {"s.t": ["a"]}}, "is in skip_columns as well"),
        ({"transform": {"s.t": {"a": "(SELECT 1)"}}}, "a query in it is not possible"),
        ({"where": {"s.t": None}}, "expected text"),
    ):
        with pytest.raises(PipelineFileError, match=why):
            load_pipeline(across(**tables))


def test_conditions_are_taken_apart_and_carried_over() -> None:
    assert terms("a = 1 AND (b = 2 OR c) AND NOT d") == {"a = 1", "b = 2 OR c", "NOT d"}
    assert renamed("tenant = 7 AND lower(\"T\") = 'x'", {"tenant": "owner", "T": "t"}) == "owner = 7 AND lower(t) = 'x'"
    assert renamed("tenant = 7 AND other", {"tenant": "owner"}) is None
    for text in (
        "a::numeric(5, 2) > 1",
        "a IS NOT NULL",
        "a BETWEEN 1 AND 2",
        "a ~ '^x' OR b",
        "(a).x = 1",
        "a[1] = 2",
    ):
        again = expression(expression(text).sql)
        assert again == expression(text)


@pytest.mark.parametrize(
    ("condition", "plain"),
    [
        ("tenant = 7 AND region IN ('eu', 'us') OR NOT gone", True),
        ("at BETWEEN '2020-01-01' AND '2021-01-01' AND region IS NOT NULL", True),
        ("abs(tenant) = 7", False),
        ("tenant OPERATOR(m.=) 7", False),
        ("tenant::text = '7'", False),
        ("other = 7", False),
    ],
)
def test_what_is_asked_of_the_targets_own_rows_runs_nobodys_code(condition: str, plain: bool) -> None:
    assert is_plain(expression(condition).sql, {"tenant", "region", "gone", "at"}) is plain
