"""What a policy makes of differences: which of them stop a table, and what becomes of each column."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.schema.difference import Difference
from airflow_provider_pgddl.engine.schema.policy import judge, judge_missing
from airflow_provider_pgddl.engine.schema.table_model import TableModel, TypeModel
from airflow_provider_pgddl.engine.schema.table_policy import TablePolicy
from airflow_provider_pgddl.engine.schema.verdict import AutoMigration, Verdict
from tests.unit.policy_differences import (
    ID,
    PRICE,
    SKIP,
    USERS,
    added,
    column,
    extra,
    found,
    of_table,
    on_column,
    only,
    policy,
    removed,
    retyped,
    table,
    type_of,
)

# --- what a file says of a table --------------------------------------------------------------------------------


def test_without_a_word_everything_that_could_lose_data_stops() -> None:
    plain = policy()
    assert plain == TablePolicy(USERS)
    assert not plain.lenient


def test_a_tables_own_settings_win() -> None:
    own = {"source_added_columns": "stop", "source_removed_columns": "preserve", "target_added_constraints": "allow",
           "safe_casts_allowed": True, "skip_columns": ["ssn"], "allow_type_cast": {"Price": "int"}}  # fmt: skip
    found = policy(
        skip=["phone"],
        overrides={"PUBLIC.users": own},
        force=True,
        source_added_columns="skip",
        safe_casts_allowed=False,
        allow_type_cast={"public.users.price": "text", "public.other.a": "text"},
    )
    assert (found.source_added, found.source_removed, found.target_constraints) == ("stop", "preserve", "allow")
    assert found.safe_casts_allowed
    assert found.skip == {"phone", "ssn"}
    assert found.allow_type_cast == {"price": "int"}


def test_allowed_drift_loosens_only_what_stops() -> None:
    assert policy(allow_schema_drift="target_superset").source_removed == "preserve"
    dropped = policy(allow_schema_drift="target_superset", source_removed_columns="drop", force=True)
    assert dropped.source_removed == "drop"
    assert policy(allow_schema_drift=["source_superset"], force=True).source_added == "skip"
    assert policy(allow_schema_drift="all", force=True).target_constraints == "allow"


# --- a column that only the source has --------------------------------------------------------------------------


def test_a_new_column_stops_the_table_and_the_ways_out_are_flags() -> None:
    verdict = judge(table(column("phone")), table(), [added()], policy())
    assert verdict.status == "mismatch"
    assert [(choice.label, choice.flag) for choice in only(verdict).choices] == [
        ("Or explicitly skip this column (NOT RECOMMENDED - data loss)", "--skip-columns=public.users.phone"),
        ("Or allow all source-only columns (DANGEROUS)", "--allow-schema-drift=source_superset --force"),
    ]


@pytest.mark.parametrize("schema", [SKIP, {"allow_schema_drift": "source_superset", "force": True}])
def test_a_new_column_can_be_left_out(schema: dict[str, Any]) -> None:
    verdict = judge(table(column("phone")), table(), [added()], policy(**schema))
    assert (verdict.status, verdict.skip) == ("warning", {"phone"})
    assert "its data is not copied" in only(verdict).what


def test_a_column_that_the_file_skips_is_no_mismatch() -> None:
    verdict = judge(table(column("phone")), table(), [added()], policy(skip=["phone"]))
    assert (verdict.status, verdict.skip, verdict.keep) == ("compatible", {"phone"}, ())
    assert only(verdict).severity == "info"
    there = column("phone", "integer")
    differs = [retyped(column("phone"), there), on_column("collation", column("phone"), there, "warning")]
    kept = judge(table(column("phone")), table(there), differs, policy(skip=["phone"]))
    assert (kept.status, kept.keep, kept.casts, kept.retyped) == ("compatible", ("phone",), {}, frozenset())


def test_a_skipped_column_must_not_be_needed_on_the_target() -> None:
    verdict = judge(table(column("phone")), table(column("phone", not_null=True)), [], policy(skip=["phone"]))
    assert verdict.status == "mismatch"
    assert only(verdict).fix == ("ALTER TABLE public.users ALTER COLUMN phone DROP NOT NULL;",)
    assert only(verdict).reason == "target_not_null"
    ready = table(column("phone", not_null=True, default="''::text"))
    assert judge(table(column("phone")), ready, [], policy(skip=["phone"])).keep == ("phone",)


def test_a_key_is_never_left_out() -> None:
    lost = added("id")
    assert judge(table(), table(key=()), [lost], policy(**SKIP)).status == "mismatch"
    assert only(judge(table(), table(key=()), [lost], policy())).choices == ()
    skipped = judge(table(), table(), [], policy(skip=["id"]))
    assert (skipped.status, skipped.skip, only(skipped).kind) == ("mismatch", frozenset(), "key")


def test_a_new_column_can_be_added_to_the_target() -> None:
    def migrations(**schema: Any) -> tuple[str, tuple[AutoMigration, ...], str]:
        verdict = judge(table(column("phone")), table(), [added()], policy(**schema))
        return verdict.status, verdict.migrations, only(verdict).what

    made = AutoMigration("add_column", "phone", ("ALTER TABLE public.users ADD COLUMN phone text;",), approved=True)
    assert migrations(source_added_columns="add")[:2] == ("mismatch", (made,))
    auto = {"types": ["add_column"], "approval": "auto"}
    assert migrations(auto_migrate=auto)[:2] == ("mismatch", (made,))
    status, waiting, what = migrations(auto_migrate={"types": ["add_column"]})
    assert (status, waiting) == ("mismatch", (replace(made, approved=False),))
    assert "waits for approval: pgddl schema sync --apply" in what
    assert migrations(auto_migrate={"types": ["safe_type_change"]})[1] == ()
    assert migrations(auto_migrate=auto, **SKIP)[1] == ()


# --- a column that only the target has --------------------------------------------------------------------------


def test_an_extra_column_of_the_target_keeps_its_values() -> None:
    there = column("note")
    verdict = judge(table(), table(there), [extra(there)], policy())
    assert (verdict.status, verdict.keep) == ("warning", ("note",))
    stopped = judge(table(), table(there), [extra(there)], policy(target_added_columns="stop"))
    assert stopped.status == "mismatch"
    assert [choice.flag for choice in only(stopped).choices] == [
        "--preserve-columns=public.users.note",
        "--allow-schema-drift=target_superset",
    ]
    named = policy(target_added_columns="stop", preserve_columns={"public.users": ["note"]})
    assert judge(table(), table(there), [extra(there)], named).status == "warning"


@pytest.mark.parametrize("validation", ["strict", "warn_only", "disabled"])
def test_an_extra_column_that_must_have_a_value_always_stops(validation: str) -> None:
    there = column("note", not_null=True)
    found = policy(validation=validation, allow_schema_drift="all", force=True)
    assert judge(table(), table(there), [extra(there)], found).status == "mismatch"


def test_generated_columns_are_not_kept_and_those_of_the_source_are_taken() -> None:
    source = table(column("total", generated="s", default="1"), column("both", generated="s", default="1"))
    target = table(column("total"), column("both", generated="s", default="1"), column("own", generated="s"))
    verdict = judge(source, target, [], policy())
    assert (verdict.taken, verdict.keep) == ({"total"}, ())


# --- a column that the source has lost --------------------------------------------------------------------------


def test_a_removed_column_stops_until_somebody_decides() -> None:
    there = column("legacy_id")
    verdict = judge(table(), table(there), [removed(there)], policy())
    assert verdict.status == "mismatch"
    assert [(choice.label, choice.flag) for choice in only(verdict).choices] == [
        ("Keep existing values, stop updating", "--preserve-columns=public.users.legacy_id"),
        ("Set to NULL on all synced rows", "--null-removed-columns=public.users.legacy_id --force"),
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"source_removed_columns": "preserve"},
        {"preserve_columns": {"public.users": ["legacy_id"]}},
        {"preserve_columns": {"public.users": ["legacy_id"]}, "source_removed_columns": "null", "force": True},
        {"allow_schema_drift": "target_superset"},
    ],
)
def test_a_removed_column_can_keep_its_values(schema: dict[str, Any]) -> None:
    there = column("legacy_id")
    verdict = judge(table(), table(there), [removed(there)], policy(**schema))
    assert (verdict.status, verdict.keep, verdict.nulls) == ("warning", ("legacy_id",), ())
    needed = column("legacy_id", not_null=True)
    refused = judge(table(), table(needed), [removed(needed)], policy(**schema))
    assert refused.status == "mismatch"
    assert only(refused).fix == ("ALTER TABLE public.users ALTER COLUMN legacy_id DROP NOT NULL;",)
    ready = column("legacy_id", not_null=True, default="0")
    assert judge(table(), table(ready), [removed(ready)], policy(**schema)).status == "warning"


@pytest.mark.parametrize(
    "schema", [{"source_removed_columns": "null"}, {"null_removed_columns": {"public.users": ["legacy_id"]}}]
)
def test_a_removed_column_can_become_null(schema: dict[str, Any]) -> None:
    there, asked = column("legacy_id"), policy(force=True, **schema)
    verdict = judge(table(), table(there), [removed(there)], asked)
    assert (verdict.status, verdict.keep, verdict.nulls) == ("warning", (), ("legacy_id",))
    needed = column("legacy_id", not_null=True, identity="a")
    refused = judge(table(), table(needed), [removed(needed)], asked)
    assert (refused.status, refused.nulls, only(refused).reason) == ("mismatch", (), "target_not_null")
    assert only(refused).fix == (
        "ALTER TABLE public.users ALTER COLUMN legacy_id DROP IDENTITY;",
        "ALTER TABLE public.users ALTER COLUMN legacy_id DROP NOT NULL;",
    )
    computed = column("legacy_id", generated="s", default="1")
    assert judge(table(), table(computed), [removed(computed)], asked).status == "mismatch"


def test_columns_named_to_become_null_do_so_though_nobody_knows_that_the_source_had_them() -> None:
    there = column("legacy_id")
    asked = policy(force=True, null_removed_columns={"public.users": ["legacy_id"]})
    assert judge(table(), table(there), [extra(there)], asked).nulls == ("legacy_id",)


def test_a_removed_column_can_be_dropped() -> None:
    there = column("legacy_id", not_null=True)
    verdict = judge(table(), table(there), [removed(there)], policy(source_removed_columns="drop", force=True))
    drop = AutoMigration(
        "drop_column", "legacy_id", ("ALTER TABLE public.users DROP COLUMN legacy_id;",), approved=True
    )
    assert (verdict.status, verdict.migrations) == ("mismatch", (drop,))


def test_a_removed_column_of_the_targets_key_is_neither_dropped_nor_made_null() -> None:
    there = column("legacy_id")
    for wish in ("drop", "null"):
        target = TableModel(1, *USERS, "r", (ID, there), ("legacy_id",))
        verdict = judge(table(), target, [removed(there)], policy(source_removed_columns=wish, force=True))
        assert (verdict.status, verdict.migrations, verdict.nulls) == ("mismatch", (), ())


# --- one column under two names ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "stays"), [("renamed_column", "source_removed_columns"), ("column_case", None)])
def test_another_name_stops_unless_both_sides_are_allowed(kind: Any, stays: str | None) -> None:
    source, target = table(column("phone")), table(column("Phone"))
    difference = on_column(kind, source.columns[1], target.columns[1])
    assert judge(source, target, [difference], policy()).status == "mismatch"
    allowed = policy(**SKIP, **({stays: "preserve"} if stays else {}))
    verdict = judge(source, target, [difference], allowed)
    assert (verdict.status, verdict.skip, verdict.keep) == ("warning", {"phone"}, ("Phone",))
    if stays:
        assert judge(source, target, [difference], policy(**SKIP)).status == "mismatch"
    needed = table(column("Phone", not_null=True))
    difference = on_column(kind, source.columns[1], needed.columns[1])
    assert judge(source, needed, [difference], allowed).status == "mismatch"


# --- validation -------------------------------------------------------------------------------------------------


def everything() -> tuple[TableModel, TableModel, list[Difference]]:
    source = table(column("phone"), PRICE, column("a"))
    there = table(column("price", "integer"), column("a", not_null=True), column("note"), column("legacy_id"))
    differences = [
        added(), retyped(PRICE, there.columns[1]), on_column("not_null", source.columns[3], there.columns[2]),
        extra(there.columns[3]), removed(there.columns[4]), of_table("target_constraint"),
    ]  # fmt: skip
    return source, there, differences


def test_warn_only_goes_on_with_what_both_sides_have() -> None:
    verdict = judge(*everything(), policy(validation="warn_only"))
    assert verdict.status == "warning"
    assert (verdict.skip, verdict.keep) == ({"phone"}, ("note", "legacy_id"))
    assert verdict.casts == {"price": 'CAST("price" AS integer)'}
    said = [f.what for f in verdict.findings if f.kind != "target_added_column"]
    assert len(said) == 5
    assert all("This will become a blocking error" in what and "warn-only" in what for what in said)


def test_disabled_finds_nothing_and_goes_on_in_the_same_way() -> None:
    warned = judge(*everything(), policy(validation="warn_only"))
    verdict = judge(*everything(), policy(validation="disabled", force=True))
    assert verdict == replace(warned, status="compatible", findings=())


@pytest.mark.parametrize("validation", ["warn_only", "disabled"])
@pytest.mark.parametrize("kind", ["key", "collation", "privileges"])
def test_what_rows_cannot_be_written_with_stops_the_table_all_the_same(kind: Any, validation: str) -> None:
    found = policy(validation=validation, force=True)
    assert judge(table(), table(), [of_table(kind)], found).status == "mismatch"
    assert judge_missing([of_table(kind)], found).status == "mismatch"


def test_a_removed_column_that_must_have_a_value_stops_the_table_all_the_same() -> None:
    there = column("legacy_id", not_null=True)
    verdict = judge(table(), table(there), [removed(there)], policy(validation="warn_only"))
    assert (verdict.status, only(verdict).reason) == ("mismatch", "target_not_null")


@pytest.mark.parametrize("kind", ["missing_on_target", "missing_on_source", "not_a_table"])
def test_without_a_table_on_both_sides_there_is_nowhere_to_go(kind: Any) -> None:
    verdict = judge_missing([of_table(kind, "warning")], policy(validation="warn_only"))
    assert (verdict.status, only(verdict).severity) == ("mismatch", "mismatch")


def test_in_place_no_flag_is_offered() -> None:
    content = {"pipeline": "p", "source": {"conn_id": "a"}, "rewrite": {"public.users": {}}}
    in_place = TablePolicy.of(load_pipeline(content), USERS)
    assert only(judge(table(column("phone")), table(), [added()], in_place)).choices == ()


def test_two_tables_that_agree_are_compatible() -> None:
    assert judge(table(PRICE), table(PRICE), [], policy()) == Verdict("compatible")


# --- with what compare finds ------------------------------------------------------------------------------------


def test_everything_at_once_stops_and_each_finding_is_of_its_kind() -> None:
    source = table(column("phone"), PRICE, column("a"), column("Total"), column("now"), column("size", "integer"))
    target = table(
        column("price", "integer"),
        column("a", not_null=True),
        column("total"),
        column("was"),
        column("size", "bigint"),
        column("note"),
        column("legacy_id"),
    )
    history = {"removed": ["legacy_id"], "renamed": {"was": "now"}}
    strict = found(source, target, policy(), **history)
    assert sorted((f.kind, f.severity) for f in strict.findings) == [
        ("column_case", "mismatch"),
        ("not_null", "mismatch"),
        ("renamed_column", "mismatch"),
        ("safe_cast", "info"),
        ("source_added_column", "mismatch"),
        ("source_removed_column", "mismatch"),
        ("target_added_column", "warning"),
        ("type_mismatch", "mismatch"),
    ]
    lenient = found(source, target, policy(validation="warn_only"), **history)
    assert lenient.status == "warning"
    assert lenient.skip == {"phone", "Total", "now"}
    assert lenient.keep == ("total", "was", "note", "legacy_id")
    assert lenient.retyped == {"price", "size"}
    assert "price" in lenient.casts


def test_a_fix_quotes_words_that_sql_has_taken() -> None:
    verdict = judge(table(column("order")), table(column("order", not_null=True)), [], policy(skip=["order"]))
    assert only(verdict).fix == ('ALTER TABLE public.users ALTER COLUMN "order" DROP NOT NULL;',)


def test_a_domain_that_is_not_null_needs_a_value_as_well() -> None:
    domain = TypeModel("public.d", "public.d", "domain", builtin=False, base=type_of("text"), not_null=True)
    there = replace(column("note"), type=domain)
    verdict = found(table(), table(there), policy(source_removed_columns="preserve"), removed=["note"])
    assert (verdict.status, only(verdict).reason, only(verdict).fix) == ("mismatch", "target_not_null", ())
