"""Names, patterns and quantities of the pipeline file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgddl.engine.errors import PipelineFileError
from airflow_provider_pgddl.engine.pipeline.fields import seconds, size_bytes
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import column_name, sql_type, table_name, table_pattern, written
from airflow_provider_pgddl.engine.pipeline.reading import (
    load_pipeline,
)
from airflow_provider_pgddl.engine.pipeline.selection import check_columns, matches
from tests.unit.pipelines import IN_PLACE, MIGRATE, migrate

# --- names and patterns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("public.orders", ("public", "orders")),
        ("Public.ORDERS", ("public", "orders")),
        ('"Sales"."Order.Items"', ("Sales", "Order.Items")),
        ('"Sales".items', ("Sales", "items")),
        ('a."say ""hi"""', ("a", 'say "hi"')),
        ("größe.naïve$1", ("größe", "naïve$1")),
        ("ÄRGER.X", ("Ärger", "x")),
    ],
)
def test_tables_are_written_as_in_sql(text: str, expected: tuple[str, str]) -> None:
    assert table_name(text) == expected
    assert table_name(written(*expected)) == expected


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=15)


@given(NAMES, NAMES)
def test_any_name_can_be_written_and_read_back(schema: str, table: str) -> None:
    assert table_name(written(schema, table)) == (schema, table)
    patterns = table_pattern(written(schema, table))
    assert patterns[0].fullmatch(schema)
    assert patterns[1].fullmatch(table)
    assert column_name(written(table)) == table


def test_names_longer_than_postgres_keeps_are_refused() -> None:
    assert table_name("public." + "a" * 63)
    with pytest.raises(ValueError, match="63 bytes"):
        table_name("public." + "a" * 64)
    with pytest.raises(ValueError, match="63 bytes"):
        table_name("public." + "ä" * 32)


TABLES = [
    ("public", "orders"), ("public", "order_items"), ("public", "tmp_a"), ("public", "audit_1"), ("billing", "invoice"),
    ("Sales", "Order.Items"), ("Sales", "order"), ("public", "a*b"), ("pg_catalog", "pg_class"),
    ("information_schema", "tables"), ("pgddl", "runs"), ("pgddl_copy_public", "orders"), ("pg_toast", "x"),
]  # fmt: skip


def chosen(**tables: list[str]) -> list[tuple[str, str]]:
    return matches(load_pipeline(migrate(tables=tables)), TABLES).rows


def test_patterns_choose_tables() -> None:
    assert chosen(include=["public.order*"]) == [("public", "order_items"), ("public", "orders")]
    assert chosen(include=["public.order?"]) == [("public", "orders")]
    assert chosen(include=["*.INVOICE"]) == [("billing", "invoice")]
    assert chosen(include=['"Sales".*']) == [("Sales", "Order.Items"), ("Sales", "order")]
    assert chosen(include=['"Sales"."Order.Items"']) == [("Sales", "Order.Items")]
    assert chosen(include=['public."a*b"']) == [("public", "a*b")]
    assert chosen(include=["public.*"], exclude=["public.tmp_*", "public.a*"]) == [
        ("public", "order_items"),
        ("public", "orders"),
    ]


def test_all_tables_leave_out_system_schemas_and_our_own() -> None:
    everything = chosen(include=["*.*"])
    assert len(everything) == 8
    assert {schema for schema, _ in everything} == {"public", "billing", "Sales"}


def test_schema_only_tables_send_no_rows() -> None:
    selection = matches(
        load_pipeline(migrate(tables={"include": ["public.*"], "schema_only": ["public.audit_*", "billing.*"]})), TABLES
    )
    assert selection.schema_only == [("billing", "invoice"), ("public", "audit_1")]
    assert ("public", "audit_1") not in selection.rows


def test_in_place_takes_exactly_the_tables_under_rewrite() -> None:
    assert matches(load_pipeline(IN_PLACE), TABLES).rows == [("public", "orders")]


def test_what_matches_nothing_is_refused_with_its_line_and_the_nearest_name() -> None:
    text = "pipeline: shop\nsource: {conn_id: a}\ntarget: {conn_id: b}\n"
    text += 'tables:\n  include:\n    - "publik.*"\n    - sales.order\n'
    text += "  exclude: [public.nothing]\n  skip_columns: {public.ordrs: [a]}\n"
    with pytest.raises(PipelineFileError) as caught:
        matches(load_pipeline(text), TABLES)
    assert str(caught.value).splitlines() == [
        "pipeline, line 6: tables.include[0]: publik.* matches no table; did you mean public.*?",
        'pipeline, line 7: tables.include[1]: sales.order matches no table; did you mean "Sales".order?',
        "pipeline, line 8: tables.exclude[0]: public.nothing matches no table",
        (
            "pipeline, line 9: tables.skip_columns.public.ordrs: there is no table public.ordrs; "
            "did you mean public.orders?"
        ),
    ]
    with pytest.raises(PipelineFileError, match=r"line 3: rewrite.public.orders: there is no table public.orders"):
        matches(load_pipeline(IN_PLACE), [("public", "other")])
    with pytest.raises(PipelineFileError, match="no table is left"):
        matches(load_pipeline(migrate(tables={"include": ["public.orders"], "exclude": ["public.o*"]})), TABLES)
    with pytest.raises(PipelineFileError, match="is not among the tables"):
        matches(
            load_pipeline(migrate(tables={"include": ["public.orders"], "skip_columns": {"billing.invoice": ["a"]}})),
            TABLES,
        )


def test_a_running_pipeline_may_lose_tables() -> None:
    assert matches(load_pipeline(MIGRATE), [], strict=False).rows == []


def test_a_line_survives_the_job_file() -> None:
    text = MIGRATE.replace("public.*", "publik.*")
    carried = load_pipeline(json.loads(json.dumps(load_pipeline(text).to_json())))
    with pytest.raises(PipelineFileError, match=r"pipeline, line 4: tables.include\[0\]"):
        matches(carried, TABLES)


def test_tables_of_the_gate_must_exist_and_columns_that_the_source_has_lost_need_not() -> None:
    def gate(**schema: Any) -> Pipeline:
        return load_pipeline(migrate(schema={"force": True, **schema}))

    for key in ("preserve_columns", "null_removed_columns"):
        with pytest.raises(PipelineFileError, match=f"{key}.public.ordrs: there is no table public.ordrs"):
            matches(gate(**{key: {"public.ordrs": ["a"]}}), TABLES)
        check_columns(gate(**{key: {"public.orders": ["gone"]}}), {("public", "orders"): ["id"]})
    for own in ({"skip_columns": ["ssn"]}, {"allow_type_cast": {"ssn": "text"}}):
        with pytest.raises(PipelineFileError, match=r"public\.orders has no column ssn"):
            check_columns(gate(overrides={"public.orders": own}), {("public", "orders"): ["id"]})


def test_columns_that_do_not_exist_are_refused() -> None:
    columns = {("public", "orders"): ["id", "customer_id", "Total"]}
    pipeline = load_pipeline(
        IN_PLACE.replace("{}", "{order_by: [customer], partition_by: {column: created_at, range: month}}")
    )
    with pytest.raises(PipelineFileError) as caught:
        check_columns(pipeline, columns)
    assert (
        "line 3: rewrite.public.orders.order_by[0]: public.orders has no column customer; did you mean customer_id?"
        in str(caught.value)
    )
    assert "partition_by.column: public.orders has no column created_at" in str(caught.value)
    check_columns(load_pipeline(IN_PLACE.replace("{}", """{order_by: ['"Total"']}""")), columns)
    skip = load_pipeline(migrate(tables={"include": ["public.*"], "skip_columns": {"public.orders": ["total"]}}))
    with pytest.raises(PipelineFileError, match="no column total"):
        check_columns(skip, columns)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("integer", "int4"), ("INT", "integer"), ("decimal(10, 2)", "numeric(10,2)"), ("varchar", "character varying"),
        ("timestamptz(3)", "timestamp(3) with time zone"), ("float", "double precision"), ("char", "character(1)"),
        ("int[]", "integer[]"), ("bool", "pg_catalog.bool"), ("interval(3)", "interval (3)"),
    ],
)  # fmt: skip
def test_types_that_are_written_in_two_ways_are_one(one: str, other: str) -> None:
    assert sql_type(one) == sql_type(other)


def test_types_differ_by_their_modifiers_and_schemas() -> None:
    names = [
        "integer", "integer[]", "numeric", "numeric(10)", "numeric(10,2)", "char", '"char"', "text", "public.text",
        "public.geometry", "public.geometry(Point,4326)", "public.geometry(Line,4326)", "interval day", "interval hour",
    ]  # fmt: skip
    assert len({sql_type(name) for name in names}) == len(names)


# --- quantities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("50ms", 0.05), ("3s", 3), ("10min", 600), ("1.5 h", 5400), ("2d", 172800), ("0us", 0), (0, 0)],
)
def test_durations(text: object, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["50", 50, "3 parsecs", "-1s", True, None, "1s 2ms", "٣s"])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        seconds(text)


@pytest.mark.parametrize(("text", "expected"), [("64MB", 64 << 20), ("1 kB", 1024), ("1.5gb", 3 << 29), (8192, 8192)])
def test_sizes(text: object, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["64", "64 MiB", -1, True, None])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(ValueError, match="size"):
        size_bytes(text)


@given(st.integers(min_value=0, max_value=10**12))
def test_a_duration_survives_json(micros: int) -> None:
    lag = load_pipeline(migrate(replay={"until_lag": f"{micros}us"})).to_json()
    assert round(load_pipeline(lag).replay.until_lag * 1e6) == micros
    assert load_pipeline(lag).to_json() == lag
