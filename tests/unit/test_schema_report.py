"""How a verdict is told: the boxes of the requirement line by line, and no frame that breaks."""

from __future__ import annotations

import shlex
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgddl.engine.schema import report
from airflow_provider_pgddl.engine.schema.verdict import Choice, stopped
from tests.unit.told_findings import ADDED, EXTRA, REMOVED, RETYPED, assert_framed, inside, told

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
