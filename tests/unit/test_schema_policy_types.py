"""What a policy makes of types that differ, and of what the target asks of rows: which of them stop a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_pgddl.engine.schema.casts import Cast
from airflow_provider_pgddl.engine.schema.difference import Difference
from airflow_provider_pgddl.engine.schema.policy import judge
from airflow_provider_pgddl.engine.schema.table_model import TableModel, TypeModel
from airflow_provider_pgddl.engine.schema.verdict import AutoMigration, SchemaFinding, Verdict
from tests.unit.policy_differences import PRICE, USERS, column, found, of_table, on_column, only, policy, retyped, table

# --- types ------------------------------------------------------------------------------------------------------


def cast_to(text: str, **schema: Any) -> Verdict:
    there = column("price", text)
    return judge(table(PRICE), table(there), [retyped(PRICE, there)], policy(**schema))


def test_a_lossy_cast_stops_and_can_be_allowed_by_name() -> None:
    verdict = cast_to("integer")
    assert (verdict.status, verdict.retyped) == ("mismatch", {"price"})
    assert [(choice.label, choice.flag) for choice in only(verdict).choices] == [
        ("Or explicitly allow cast (DATA LOSS)", "--allow-type-cast=public.users.price:integer --force"),
        ("Or allow all casts (DANGEROUS)", "--allow-schema-drift=type_casts --force"),
    ]
    spaces = cast_to("character varying(3)")
    assert only(spaces).choices[0].flag == "--allow-type-cast='public.users.price:character varying(3)' --force"


@pytest.mark.parametrize(
    ("there", "allowed"),
    [("integer", "int4"), ("integer", "INT"), ("numeric(8,1)", "decimal(8, 1)"), ("character varying(3)", "varchar(3)"),
     ("timestamp(3) with time zone", "timestamptz(3)"), ("integer[]", "int[]"), ("public.mood", "mood")],
)  # fmt: skip
def test_an_allowed_cast_is_told_by_its_type_however_it_is_written(there: str, allowed: str) -> None:
    now = replace(PRICE, type=TypeModel(there, there, "base"))
    finding = SchemaFinding("type_mismatch", "mismatch", "Casting would lose", "price")
    difference = Difference(finding, PRICE, now, Cast("lossy", "Casting would lose"))
    asked = policy(allow_type_cast={"public.users.price": allowed}, force=True)
    verdict = judge(table(PRICE), table(now), [difference], asked)
    assert only(verdict).what == f"Casting would lose. The cast is allowed (allow_type_cast: {allowed})"


def test_an_allowed_cast_is_made_on_the_way() -> None:
    verdict = cast_to("integer", allow_type_cast={"public.users.price": "int"}, force=True)
    assert (verdict.status, verdict.casts, verdict.retyped) == (
        "warning",
        {"price": 'CAST("price" AS integer)'},
        {"price"},
    )


@pytest.mark.parametrize(
    ("there", "allowed"), [("integer", "bigint"), ("numeric(8,1)", "numeric"), ("integer", "int[]")]
)
def test_a_cast_to_another_type_than_the_target_has_is_not_what_was_allowed(there: str, allowed: str) -> None:
    verdict = cast_to(there, allow_type_cast={"public.users.price": allowed}, force=True)
    assert verdict.status == "mismatch"
    assert f"A cast to {allowed} is allowed, but the target's column is {there}" in only(verdict).what


def test_lossy_casts_go_on_where_all_are_allowed() -> None:
    assert cast_to("integer", type_mismatches="cast_if_safe").status == "mismatch"
    for schema in ({"type_mismatches": "cast_always"}, {"allow_schema_drift": "type_casts"}):
        assert cast_to("integer", force=True, **schema).casts == {"price": 'CAST("price" AS integer)'}


def test_safe_casts_go_on_unless_the_file_forbids_them() -> None:
    def size(**schema: Any) -> Verdict:
        was, there = column("size", "integer"), column("size", "bigint")
        return judge(table(was), table(there), [retyped(was, there)], policy(**schema))

    assert (size().status, only(size()).severity, size().retyped) == ("compatible", "info", {"size"})
    forbidden = size(safe_casts_allowed=False)
    assert forbidden.status == "mismatch"
    assert only(forbidden).fix == ("ALTER TABLE public.users ALTER COLUMN size TYPE integer;",)
    assert size(safe_casts_allowed=False, type_mismatches="cast_if_safe").status == "compatible"
    named = {"allow_type_cast": {"public.users.size": "bigint"}, "force": True}
    assert size(safe_casts_allowed=False, **named).status == "warning"


@pytest.mark.parametrize(
    "schema",
    [{"type_mismatches": "cast_always"}, {"validation": "warn_only"}, {"allow_type_cast": {"public.users.id": "text"}}],
)
def test_a_key_is_never_cast_where_that_could_change_it(schema: dict[str, Any]) -> None:
    was, there = column("id", "bigint", not_null=True), column("id", "integer", not_null=True)
    source, target = (TableModel(1, *USERS, "r", (c,), ("id",)) for c in (was, there))
    verdict = judge(source, target, [retyped(was, there, key=True)], policy(force=True, **schema))
    assert verdict.status == "mismatch"


def test_a_type_can_be_widened_on_the_target() -> None:
    was, there = column("size", "bigint"), column("size", "integer")
    widen = {"types": ["safe_type_change"], "approval": "auto"}
    verdict = judge(table(was), table(there), [retyped(was, there)], policy(auto_migrate=widen))
    statement = "ALTER TABLE public.users ALTER COLUMN size TYPE bigint;"
    assert verdict.migrations == (AutoMigration("safe_type_change", "size", (statement,), approved=True),)
    assert verdict.status == "mismatch"  # until it is made
    # The values that are there would be changed by the same statement.
    assert cast_to("text", auto_migrate=widen).migrations == ()


# --- the target's constraints -----------------------------------------------------------------------------------


def test_constraints_of_the_target_stop_or_are_left_to_it() -> None:
    differences = [
        of_table("target_constraint"),
        on_column("not_null", column("a"), column("a", not_null=True)),
        of_table("target_constraint", "warning"),  # a foreign key
    ]
    stopped = judge(table(column("a")), table(column("a", not_null=True)), differences, policy())
    assert [f.severity for f in stopped.findings] == ["mismatch", "mismatch", "warning"]
    allowed = policy(target_added_constraints="allow")
    passed = judge(table(column("a")), table(column("a", not_null=True)), differences, allowed)
    assert [f.severity for f in passed.findings] == ["warning", "warning", "warning"]


def test_a_column_that_the_target_computes_is_left_out_where_rows_go_on() -> None:
    was, there = column("total"), column("total", generated="s", default="1")
    difference = on_column("generated", was, there)
    assert judge(table(was), table(there), [difference], policy()).status == "mismatch"
    lenient = judge(table(was), table(there), [difference], policy(validation="warn_only"))
    assert (lenient.status, lenient.skip, lenient.keep) == ("warning", {"total"}, ())
    copied = on_column("generated", there, was, "info")
    assert judge(table(there), table(was), [copied], policy()).taken == {"total"}


def test_types_that_differ_safely_can_be_made_the_same_on_the_target() -> None:
    was, there = column("size", "integer"), column("size", "text")
    verdict = found(table(was), table(there), policy(safe_casts_allowed=False))
    assert only(verdict).fix == ("ALTER TABLE public.users ALTER COLUMN size TYPE integer USING size::integer;",)
