"""How a verdict is told: the boxes of the requirement line by line, and no frame that breaks."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from airflow_provider_pgddl.engine.schema import report
from airflow_provider_pgddl.engine.schema.table_model import ColumnModel, TableModel, TypeModel
from airflow_provider_pgddl.engine.schema.verdict import OR, Choice, SchemaFinding, TableReport, Verdict, stopped

ADDED = SchemaFinding(
    "source_added_column",
    "mismatch",
    "Source has new column 'phone_number' not in target",
    "phone_number",
    impact="If sync continues, phone_number data will be LOST",
    source="varchar",
    fix=("ALTER TABLE public.users ADD COLUMN phone_number varchar;",),
    choices=(
        Choice(
            "Or explicitly skip this column (NOT RECOMMENDED - data loss)", "--skip-columns=public.users.phone_number"
        ),
        Choice("Or allow all source-only columns (DANGEROUS)", "--allow-schema-drift=source_superset --force"),
    ),
)
RETYPED = SchemaFinding(
    "type_mismatch",
    "mismatch",
    "Type mismatch on public.products.price: numeric(10,2) on the source, integer on the target",
    "price",
    impact="Casting would lose precision (19.99 → 20)",
    source="numeric(10,2)",
    target="integer",
    fix=("ALTER TABLE public.products ALTER COLUMN price TYPE numeric(10,2);",),
    choices=(
        Choice("Or explicitly allow cast (DATA LOSS)", "--allow-type-cast=public.products.price:integer --force"),
    ),
    reason="type_mismatch",
)
WIDENED = SchemaFinding(
    "safe_cast",
    "info",
    "Type difference on public.users.id: integer on the source, bigint on the target",
    "id",
    impact="Safe widening cast - continuing",
    source="integer",
    target="bigint",
)
EXTRA = SchemaFinding(
    "target_added_column",
    "warning",
    "Target has extra column 'created_by_system' (nullable)",
    "created_by_system",
    impact="This column will be NULL for all synced rows\nThis is OK for audit/metadata columns",
    target="text",
)
REMOVED = SchemaFinding(
    "source_removed_column",
    "mismatch",
    "Target has column 'legacy_id' that no longer exists in source",
    "legacy_id",
    fix=("ALTER TABLE public.users DROP COLUMN legacy_id;",),
    choices=(
        Choice("Keep existing values, stop updating", "--preserve-columns=public.users.legacy_id"),
        Choice("Set to NULL on all synced rows", "--null-removed-columns=public.users.legacy_id --force"),
    ),
    reason="source_removed",
)
REQUIRED = SchemaFinding(
    "target_added_column",
    "mismatch",
    "Target has new column 'created_by_system' (NOT NULL, no DEFAULT)",
    "created_by_system",
    impact="Cannot insert rows - column requires a value.",
    fix=(
        "ALTER TABLE public.users ALTER COLUMN created_by_system DROP NOT NULL;",
        OR,
        "ALTER TABLE public.users ALTER COLUMN created_by_system SET DEFAULT 'pgddl';",
    ),
    reason="target_not_null",
)


def told(*findings: SchemaFinding, table: str = "public.users") -> TableReport:
    status = "mismatch" if any(f.severity == "mismatch" for f in findings) else "warning" if findings else "compatible"
    return TableReport(table, status, findings, 15, 14, resolution=report.resolution(findings))


# --- the box of a stopped table -------------------------------------------------------------------------------------


def test_a_new_column_of_the_source_is_shown_as_the_requirement_has_it() -> None:
    shown = report.box(replace(told(ADDED), held_back=5000), pipeline_file="shop.yaml")
    assert shown.splitlines() == [
        "╔════════════════════════════════════════════════════════════════╗",
        "║ SYNC STOPPED: Schema Mismatch                                  ║",
        "╠════════════════════════════════════════════════════════════════╣",
        "║ Table: public.users                                            ║",
        "║                                                                ║",
        "║ Problem:                                                       ║",
        "║   Source database has new column 'phone_number' (varchar)      ║",
        "║   Target database does not have this column                    ║",
        "║                                                                ║",
        "║ Impact:                                                        ║",
        "║   If sync continues, phone_number data will be LOST            ║",
        "║   Rows inserted/updated since schema change: ~5,000            ║",
        "║                                                                ║",
        "║ Fix (RECOMMENDED):                                             ║",
        "║   Add column to target database:                               ║",
        "║                                                                ║",
        "║   ALTER TABLE public.users                                     ║",
        "║   ADD COLUMN phone_number varchar;                             ║",
        "║                                                                ║",
        "║ Alternative (NOT RECOMMENDED - DATA LOSS):                     ║",
        "║   Explicitly skip this column:                                 ║",
        "║                                                                ║",
        "║   pgddl run replay -p shop.yaml \\                              ║",
        "║   --skip-columns=public.users.phone_number                     ║",
        "║   (in the pipeline file: tables.skip_columns:                  ║",
        "║   [public.users.phone_number])                                 ║",
        "║                                                                ║",
        "║ Alternative (DANGEROUS):                                       ║",
        "║   Allow all source-only columns:                               ║",
        "║                                                                ║",
        "║   pgddl run replay -p shop.yaml \\                              ║",
        "║   --allow-schema-drift=source_superset --force                 ║",
        "║   (in the pipeline file: schema.allow_schema_drift:            ║",
        "║   [source_superset] with schema.force: true)                   ║",
        "║                                                                ║",
        "║ More info:                                                     ║",
        "║   pgddl schema diff -p shop.yaml --table public.users          ║",
        "╚════════════════════════════════════════════════════════════════╝",
    ]


def test_a_type_mismatch_is_shown_as_the_requirement_has_it() -> None:
    shown = inside(report.box(told(RETYPED, table="public.products"), pipeline_file="shop.yaml"))
    assert shown[:9] == [
        "SYNC STOPPED: Type Mismatch",
        "Table: public.products",
        "Column: price",
        "Problem:",
        "  Source: numeric(10,2) - e.g., 19.99",
        "  Target: integer       - e.g., 20",
        "Impact:",
        "  Casting would lose precision (19.99 → 20)",
        "Fix (RECOMMENDED):",
    ]
    assert shown[shown.index("Alternative (DATA LOSS):") + 1] == "  Explicitly allow cast:"


def inside(box: str) -> list[str]:
    """The lines within a box, without its frame and empty lines."""
    lines = [line.strip("║").rstrip() for line in box.splitlines() if line.startswith("║")]
    return [line[1:] for line in lines if line]


def test_several_findings_share_one_box() -> None:
    shown = report.box(told(ADDED, RETYPED, EXTRA))
    assert shown.count("╔") == 1
    lines = inside(shown)
    assert lines[0] == "SYNC STOPPED: Schema Mismatch"
    assert "Problem 1 of 2:" in lines
    assert "Problem 2 of 2:" in lines
    assert not any("created_by_system" in line for line in lines)


def test_what_stops_a_table_without_a_difference_is_no_schema_mismatch() -> None:
    lines = inside(report.box(told(stopped("a row was refused: check_violation"))))
    assert lines[0] == "SYNC STOPPED"
    assert "  a row was refused: check_violation" in lines


def test_without_a_file_the_commands_leave_its_place() -> None:
    assert "pgddl schema diff -p FILE --table public.users" in report.box(told(REMOVED))


def test_a_statement_can_be_copied_from_a_box_whatever_its_names_are() -> None:
    name = '"a very long name with blanks that goes on and on and on, up to 63"'
    statement = f"ALTER TABLE {name}.{name} ADD COLUMN {name} character varying(20) COLLATE \"de DE\" DEFAULT 'a  b';"
    lines = inside(report.box(told(replace(ADDED, fix=(statement,)))))
    begin = next(n for n, line in enumerate(lines) if "ALTER TABLE" in line)
    end = next(n for n, line in enumerate(lines) if line.endswith(";"))
    assert " ".join(line.strip() for line in lines[begin : end + 1]) == statement


def test_a_name_can_neither_break_the_frame_nor_speak_to_the_terminal() -> None:
    column = "a\x1b[2Jb\tc"
    finding = replace(ADDED, column=column, what=f"Source has new column '{column}' not in target")
    evil = replace(told(finding), table="public.\x1b]0;x\x07")
    shown = report.box(evil)
    assert "\x1b" not in shown
    assert "a\\x1b[2Jb\\tc" in shown
    assert_framed(shown)
    assert "\x1b" not in report.validation([evil])
    assert "\x1b" not in "\n".join(report.lines(evil))


TEXT = st.text(max_size=120)


@given(TEXT, TEXT, TEXT, TEXT, st.integers(10, 100))
def test_a_frame_is_straight_for_any_text(table: str, column: str, what: str, fix: str, width: int) -> None:
    choice = Choice(what, f"--skip-columns={shlex.quote(column)}")
    finding = replace(ADDED, column=column, what=what, impact=what, fix=(fix,), choices=(choice,))
    one = told(finding, replace(finding, kind="type_mismatch"), table=table)
    assert_framed(report.box(one, width=width))
    assert_framed(report.validation([one, told()], width=width).partition("\n\n")[0])


def assert_framed(box: str) -> None:
    lines = box.splitlines()
    assert len({cell_len(line) for line in lines}) == 1
    assert [(line[0], line[-1]) for line in lines[:3]] == [("╔", "╗"), ("║", "║"), ("╠", "╣")]
    assert (lines[-1][0], lines[-1][-1]) == ("╚", "╝")
    assert all(line[0] + line[-1] in ("║║", "╟╢") for line in lines[3:-1])


def test_colour_is_only_put_in_where_it_is_asked_for() -> None:
    one = told(ADDED)
    assert "\x1b" not in report.box(one)
    coloured = report.box(one, colour=True)
    assert "\x1b[31m" in coloured
    assert coloured.replace("\x1b[31m", "").replace("\x1b[1m", "").replace("\x1b[0m", "") == report.box(one)


def test_ddl_that_waits_is_shown_with_what_can_be_done() -> None:
    waits = replace(
        stopped("DDL event 7 (ALTER TABLE) is failed: no", "ddl"),
        statement="ALTER TABLE t ADD COLUMN c int",
        commands=("ddl show 7", "ddl retry 7"),
    )
    for shown in (
        inside(report.box(told(waits), pipeline_file="p.yaml")),
        report.lines(told(waits), pipeline_file="p.yaml"),
    ):
        text = [line.strip() for line in shown]
        assert "ALTER TABLE t ADD COLUMN c int" in " ".join(text)
        assert "pgddl ddl show 7 -p p.yaml" in text and "pgddl ddl retry 7 -p p.yaml" in text


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


def column(name: str, type_: str, *, not_null: bool = False, default: str | None = None) -> ColumnModel:
    model = TypeModel(type_.partition("(")[0], type_, "base")
    return ColumnModel(1, name, model, not_null, default, "", "", None)


def table(*columns: ColumnModel) -> TableModel:
    return TableModel(1, "public", "users", "r", columns, ("id",))


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
