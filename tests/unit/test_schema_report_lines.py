"""How verdicts are told beside boxes: lines of a log, the validation report, a diff, and what a migration would do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_pgddl.engine.schema import report
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding, TableReport, Verdict, stopped
from tests.unit.told_findings import (
    ADDED,
    EXTRA,
    REMOVED,
    REQUIRED,
    RETYPED,
    WIDENED,
    assert_framed,
    column,
    inside,
    table,
    told,
)

# --- lines of a log -------------------------------------------------------------------------------------------------


def test_lines_are_those_of_the_scenarios() -> None:
    assert report.lines(told(ADDED), pipeline_file="shop.yaml") == [
        "[ERROR] Schema mismatch detected on public.users",
        "  Source has new column: 'phone_number' (type: varchar)",
        "  Target does not have this column",
        "",
        "  Sync STOPPED to prevent data loss.",
        "",
        "  Actions:",
        "    1. Add column to target (RECOMMENDED):",
        "       ALTER TABLE public.users ADD COLUMN phone_number varchar;",
        "    2. Or explicitly skip this column (NOT RECOMMENDED - data loss):",
        "       pgddl run replay -p shop.yaml --skip-columns=public.users.phone_number",
        "       (in the pipeline file: tables.skip_columns: [public.users.phone_number])",
        "    3. Or allow all source-only columns (DANGEROUS):",
        "       pgddl run replay -p shop.yaml --allow-schema-drift=source_superset --force",
        "       (in the pipeline file: schema.allow_schema_drift: [source_superset] with schema.force: true)",
    ]
    assert report.lines(told(EXTRA)) == [
        "[WARN] Schema difference on public.users",
        "  Target has extra column 'created_by_system' (nullable)",
        "  This column will be NULL for all synced rows",
        "  This is OK for audit/metadata columns",
    ]
    assert report.lines(told(REQUIRED)) == [
        "[ERROR] Schema mismatch on public.users",
        "  Target has new column 'created_by_system' (NOT NULL, no DEFAULT)",
        "  Source does not have this column",
        "",
        "  Cannot insert rows - column requires a value.",
        "",
        "  Fix:",
        "    ALTER TABLE public.users ALTER COLUMN created_by_system DROP NOT NULL;",
        "    -- OR --",
        "    ALTER TABLE public.users ALTER COLUMN created_by_system SET DEFAULT 'pgddl';",
    ]
    assert report.lines(told(RETYPED, table="public.products"))[:5] == [
        "[ERROR] Type mismatch on public.products.price",
        "  Source: numeric(10,2)",
        "  Target: integer",
        "",
        "  Casting would lose precision (19.99 → 20)",
    ]
    assert report.lines(told(WIDENED)) == [
        "[INFO] Type difference on public.users.id",
        "  Source: integer",
        "  Target: bigint",
        "  Safe widening cast - continuing",
    ]
    assert report.lines(told(REMOVED))[:5] == [
        "[ERROR] Schema mismatch on public.users",
        "  Target has column 'legacy_id' that no longer exists in source",
        "",
        "  Decide what to do with target column:",
        "    1. Remove from target:",
    ]


def test_what_a_policy_adds_is_told_everywhere() -> None:
    waits = "The change of the target waits for approval: pgddl schema sync --apply"
    for finding in (ADDED, RETYPED, REMOVED, REQUIRED):
        one = told(replace(finding, what=f"{finding.what}. {waits}"))
        assert waits in "\n".join(report.lines(one))
        assert "pgddl schema sync --apply" in " ".join(" ".join(inside(report.box(one))).split())
    passed = replace(ADDED, severity="warning", what=f"{ADDED.what}. It is left out: its data is not copied")
    assert "  It is left out: its data is not copied" in report.lines(told(passed))


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ((ADDED,), "Add column to target or use --skip-columns"),
        ((EXTRA, RETYPED), "Fix target schema or use --allow-type-cast"),
        ((REMOVED,), "Remove from target or use --preserve-columns"),
        ((REQUIRED,), "Fix target schema"),
        ((stopped("its copy is gone"),), None),
        ((EXTRA,), None),
    ],
)
def test_a_resolution_is_short(findings: tuple[SchemaFinding, ...], said: str | None) -> None:
    assert report.resolution(findings) == said


# --- the validation report ------------------------------------------------------------------------------------------


def test_the_report_names_every_table_with_what_becomes_of_it() -> None:
    same = TableReport("public.orders", "compatible", (), 12, 12)
    shown = report.validation([told(ADDED), same, told(EXTRA), told(RETYPED, table="public.products")])
    assert_framed(shown.partition("\n\n")[0])
    lines = [" ".join(line.split()) for line in inside(shown)]
    assert lines == [
        "Schema Validation Report",
        "public.users ❌ ERROR",
        "15 source columns, 14 target columns",
        "⚠ Source has 'phone_number' (not in target) - WILL STOP SYNC",
        "Action: Add column to target or use --skip-columns",
        "public.orders ✓ OK",
        "All 12 columns match perfectly",
        "public.users ⚠ WARNING",
        "15 source columns, 14 target columns",
        "⚠ Target has extra column 'created_by_system' (nullable)",
        "public.products ❌ ERROR",
        "15 source columns, 14 target columns",
        "Type mismatch: price (numeric(10,2) vs integer) - WILL STOP",
        "SYNC",
        "Action: Fix target schema or use --allow-type-cast",
    ]
    assert shown.splitlines()[-6:] == [
        "Summary:",
        "  ✓ 1 table fully compatible",
        "  ⚠ 1 table compatible with warnings",
        "  ❌ 2 tables INCOMPATIBLE",
        "",
        "Recommendation: Fix issues before running sync",
    ]


# --- a diff ---------------------------------------------------------------------------------------------------------


def test_a_diff_goes_column_by_column() -> None:
    source = table(column("id", "integer"), column("price", "numeric(10,2)"), column("phone_number", "varchar(20)"))
    target = table(
        column("id", "bigint"),
        column("price", "numeric(10,2)"),
        column("created_by", "text", default="'pgddl'::text"),
        column("note", "text"),
    )
    verdict = Verdict("mismatch", (ADDED, WIDENED, EXTRA))
    shown = report.diff(told(*verdict.findings), source, target, verdict)
    assert shown.splitlines() == [
        "Table: public.users",
        "",
        "Columns in common: 2",
        "  ✓ price (numeric(10,2)) - types match",
        "",
        "Source only: 1 column",
        "  + phone_number  varchar(20)  ⚠ Data loss risk",
        "",
        "Target only: 2 columns",
        "  + created_by  text DEFAULT 'pgddl'::text  ✓ Safe (has default)",
        "  + note        text                        ✓ Safe (nullable)",
        "",
        "Type mismatches: 1",
        "  ✓ id (integer vs bigint) - safe cast",
        "",
        "Other differences: 1",
        "  ⚠ Target has extra column 'created_by_system' (nullable)",
        "",
        "Sync status: INCOMPATIBLE",
        "Reason: Source has columns not in target (data loss risk)",
        "",
        "Fix:",
        "  ALTER TABLE public.users ADD COLUMN phone_number varchar;",
    ]


def test_a_side_that_is_not_there_has_no_columns() -> None:
    finding = SchemaFinding("missing_on_target", "mismatch", "there is no table", reason="missing_table")
    verdict = Verdict("mismatch", (finding,))
    shown = report.diff(told(finding), table(column("id", "integer")), None, verdict).splitlines()
    assert "Columns in common: 0" in shown
    assert "Source only: 1 column" in shown
    assert "Target only: 0 columns" in shown


def test_a_column_that_the_policy_handles_is_no_risk() -> None:
    source = table(column("id", "integer"), column("phone_number", "text"))
    target = table(column("id", "integer"), column("legacy_id", "integer"), column("old", "integer", not_null=True))
    verdict = Verdict("warning", (), skip=frozenset({"phone_number"}), nulls=("legacy_id",))
    shown = report.diff(told(), source, target, verdict)
    assert "phone_number  text  ✓ Left out by the policy" in shown
    assert "legacy_id  integer  ⚠ Set to NULL on all synced rows" in shown
    assert "old        integer  ❌ NOT NULL, no DEFAULT" in shown


# --- a migration ----------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_executed_and_how() -> None:
    shown = report.migration(
        {"public.users": ADDED.fix, "public.products": RETYPED.fix},
        {"public.users": ["Target has column 'legacy_id': its values would be gone"]},
        pipeline_file="my shop.yaml",
    )
    assert shown.splitlines() == [
        "[DRY RUN] Would execute on target:",
        "",
        "-- Table: public.users",
        "ALTER TABLE public.users ADD COLUMN phone_number varchar;",
        "-- left out: Target has column 'legacy_id': its values would be gone",
        "",
        "-- Table: public.products",
        "ALTER TABLE public.products ALTER COLUMN price TYPE numeric(10,2);",
        "",
        "-- Apply with:",
        "pgddl schema sync -p 'my shop.yaml' --apply",
    ]


def test_a_dry_run_without_anything_to_do_says_so() -> None:
    assert report.migration({}) == "[DRY RUN] Nothing to execute"
