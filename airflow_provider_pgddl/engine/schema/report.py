"""How a verdict is told: the box of a stopped table, lines of a log, the validation report, a diff, a migration. Pure.

Everything comes from findings, so that the sensor, the command line and the stages tell the same."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml
from rich.cells import cell_len

from airflow_provider_pgddl.engine.schema.finding_words import FindingWords, finding_words
from airflow_provider_pgddl.engine.schema.frames import WIDTH, Frame, coloured, one_line, padded
from airflow_provider_pgddl.engine.schema.table_model import ColumnModel, TableModel
from airflow_provider_pgddl.engine.schema.verdict import (
    Choice,
    Reason,
    SchemaFinding,
    Severity,
    TableReport,
    Verdict,
    VerdictStatus,
)

# --- words ----------------------------------------------------------------------------------------------------------


_REASONS: Mapping[Reason, str] = {
    "data_loss_risk": "Source has columns not in target (data loss risk)",
    "type_mismatch": "Types differ (values would be changed or refused)",
    "target_not_null": "Target requires values that source does not have",
    "source_removed": "Target has columns that no longer exist in source",
    "target_constraint": "Target has constraints that source does not have",
    "missing_table": "There is no table on both sides",
    "privileges": "Our role lacks rights on the target",
    "ddl": "DDL waits for a person",
    "stopped": "The table was stopped",
}
_LEVELS: Mapping[Severity, str] = {"mismatch": "ERROR", "warning": "WARN", "info": "INFO"}
_VERDICTS: Mapping[VerdictStatus, str] = {"compatible": "✓ OK", "warning": "⚠ WARNING", "mismatch": "❌ ERROR"}
_SUMMARY: Mapping[VerdictStatus, str] = {
    "compatible": "✓ {} fully compatible",
    "warning": "⚠ {} compatible with warnings",
    "mismatch": "❌ {} INCOMPATIBLE",
}


def _problem(finding: SchemaFinding, lines: Sequence[str]) -> list[str]:
    """The finding's sentence, with the prescribed lines in place of what they tell; what a policy has added stays."""
    sides = {"column": finding.column, "source": finding.source, "target": finding.target}
    own = finding_words(finding).own.format_map(sides)
    if not (lines and own and own in finding.what):
        return finding.what.split("\n")
    more = finding.what.partition(own)[2].lstrip("., ")
    return [line.format_map(sides) for line in lines] + ([more[:1].upper() + more[1:]] if more else [])


def resolution(findings: Iterable[SchemaFinding]) -> str | None:
    """How to get on, in short: the first mismatch's fix, or its first flag; None where there is neither."""
    for finding in findings:
        if finding.severity == "mismatch" and (finding.fix or finding.choices):
            ways = [finding_words(finding).short] if finding.fix else []
            ways += [f"use {choice.flag.partition('=')[0].split()[0]}" for choice in finding.choices[:1]]
            return " or ".join(ways)
    return None


# --- one table ------------------------------------------------------------------------------------------------------


def lines(report: TableReport, *, pipeline_file: str | None = None) -> list[str]:
    """A table's findings as a log tells them: each begins with [ERROR], [WARN] or [INFO], and goes on indented."""
    told: list[str] = []
    for finding in report.findings:
        told += _told(report.table, finding, pipeline_file)
    return [one_line(line) for line in told]


def _told(table: str, finding: SchemaFinding, pipeline_file: str | None) -> Iterator[str]:
    said, stops = finding_words(finding), finding.severity == "mismatch"
    about = f"{table}.{finding.column}" if finding.kind in ("type_mismatch", "safe_cast") else table
    difference = "Type difference" if finding.kind in ("type_mismatch", "safe_cast") else "Schema difference"
    yield f"[{_LEVELS[finding.severity]}] {said.heading if stops else difference} on {about}"
    yield from (f"  {line}" for line in _problem(finding, said.problem))
    if outcome := said.stop if stops and said.stop is not None else finding.impact:
        if stops:
            yield ""
        yield from (f"  {line}" for line in outcome.split("\n"))
    if stops and (finding.fix or finding.choices):
        yield ""
        yield f"  {said.ask}:"
        yield from _ways(finding, said, pipeline_file)
    if finding.statement:
        yield ""
        yield "  Statement:"
        yield from (f"    {line}" for line in finding.statement.split("\n"))
    if finding.commands:
        yield ""
        yield "  Commands:"
        yield from (f"    {whole_command(command, pipeline_file)}" for command in finding.commands)


def _ways(finding: SchemaFinding, said: FindingWords, pipeline_file: str | None) -> Iterator[str]:
    """The fix alone as it stands; numbered where there is more than one way out."""
    if not finding.choices:
        yield from (f"    {line}" for statement in finding.fix for line in statement.split("\n"))
        return
    ways = [(said.fix, list(finding.fix))] if finding.fix else []
    ways += [(c.label, [allowing(c.flag, pipeline_file), f"({in_file(c.flag)})"]) for c in finding.choices]
    for number, (label, does) in enumerate(ways, 1):
        yield f"    {number}. {label}:"
        yield from (f"       {line}" for statement in does for line in statement.split("\n"))


def box(report: TableReport, *, pipeline_file: str | None = None, colour: bool = False, width: int = WIDTH) -> str:
    """What stops one table, in a frame. `width` is what the frame takes at least: names in SQL are never broken.

    `pipeline_file` is named in the commands; `colour` puts terminal colours in (see `coloured`)."""
    stops = [f for f in report.findings if f.severity == "mismatch"]
    frame = Frame(width, colour)
    frame.title(_title(stops), report.status)
    frame.text(one_line(f"Table: {report.table}"))
    shown = stops or list(report.findings)
    for number, finding in enumerate(shown, 1):
        said = finding_words(finding)
        if number > 1:
            frame.rule()
        if finding.column and finding.kind == "type_mismatch":
            frame.text(one_line(f"Column: {finding.column}"))
        frame.blank()
        frame.text(f"Problem {number} of {len(shown)}:" if len(shown) > 1 else "Problem:", "bold")
        for line in _boxed(finding):
            frame.text(line, indent=2)
        _impact(frame, finding, report.held_back if number == 1 else None)
        if finding.fix:
            frame.blank()
            frame.text("Fix (RECOMMENDED):", "bold")
            frame.text(f"{said.boxed_fix}:", indent=2)
            frame.blank()
            for statement in finding.fix:
                frame.sql(statement, indent=2)
        for choice in finding.choices:
            frame.blank()
            label, cost = _label(choice)
            frame.text(f"Alternative{cost.upper()}:", "bold")
            frame.text(f"{label}:", indent=2)
            frame.blank()
            frame.command(allowing(choice.flag, pipeline_file), indent=2)
            frame.text(f"({in_file(choice.flag)})", indent=2)
        if finding.statement:
            frame.blank()
            frame.text("Statement:", "bold")
            frame.sql(finding.statement, indent=2)
        if finding.commands:
            frame.blank()
            frame.text("Commands:", "bold")
            for command in finding.commands:
                frame.command(whole_command(command, pipeline_file), indent=2)
    if len(shown) > 1:
        frame.rule()
    else:
        frame.blank()
    frame.text("More info:", "bold")
    frame.command(whole_command("schema diff", pipeline_file, "--table", report.table), indent=2)
    return frame.drawn()


def _title(stops: Sequence[SchemaFinding]) -> str:
    kinds = {finding.kind for finding in stops}
    if not kinds:
        return "Schema Difference"
    if kinds == {"stopped"}:
        return "SYNC STOPPED"
    return f"SYNC STOPPED: {'Type' if kinds == {'type_mismatch'} else 'Schema'} Mismatch"


_EXAMPLE = re.compile(r"\(([^()]+) → ([^()]+)\)$")


def _boxed(finding: SchemaFinding) -> list[str]:
    """The problem; both types below each other, with the example that the impact gives."""
    told = _problem(finding, finding_words(finding).boxed)
    example = _EXAMPLE.search(finding.impact or "")
    if finding.kind != "type_mismatch" or example is None or len(told) < 2:
        return told
    wide = max(map(cell_len, told[:2]))
    beside = [f"{padded(line, wide)} - e.g., {value}" for line, value in zip(told, example.groups(), strict=False)]
    return beside + told[2:]


def _impact(frame: Frame, finding: SchemaFinding, held_back: int | None) -> None:
    if finding.impact is None and held_back is None:
        return
    frame.blank()
    frame.text("Impact:", "bold")
    for line in (finding.impact or "").split("\n"):
        frame.text(line, indent=2)
    if held_back is not None:
        frame.text(f"Rows inserted/updated since schema change: ~{held_back:,}", indent=2)


def allowing(flag: str, pipeline_file: str | None) -> str:
    """The command by which a run goes on with what this flag allows."""
    return f"{whole_command('run replay', pipeline_file)} {flag}"


def in_file(flag: str) -> str:
    """The same as a key of the pipeline file."""
    (option, _, value), *more = [word.partition("=") for word in shlex.split(flag)]
    key = option.removeprefix("--").replace("-", "_")
    section = "tables" if key == "skip_columns" else "schema"
    said: Any = [value]
    if key == "allow_type_cast":
        column, _, to = value.rpartition(":")
        said = {column: to}
    written = yaml.safe_dump({key: said}, default_flow_style=True, width=1000).strip()[1:-1]
    force = " with schema.force: true" if ("--force", "", "") in more else ""
    return f"in the pipeline file: {section}.{written}{force}"


def whole_command(command: str, pipeline_file: str | None, *args: str) -> str:
    """As a shell takes it; FILE where the file has no name."""
    return f"pgddl {command} -p {shlex.join([pipeline_file or 'FILE', *args])}"


def _label(choice: Choice) -> tuple[str, str]:
    """What a choice does, and what it costs in its parentheses: as a box has them, apart."""
    text = choice.label.removeprefix("Or ")
    does, parenthesis, cost = text.partition(" (")
    return does[:1].upper() + does[1:], parenthesis + cost


# --- all tables -----------------------------------------------------------------------------------------------------


def validation(reports: Sequence[TableReport], *, colour: bool = False, width: int = WIDTH) -> str:
    """The report of `pgddl schema validate`: each table with its verdict, a summary, and what to do."""
    frame = Frame(width, colour)
    frame.title("Schema Validation Report", "bold")
    for number, report in enumerate(reports):
        if number:
            frame.blank()
        frame.sides(report.table, _VERDICTS[report.status], report.status)
        for line in _noted(report):
            frame.text(line, indent=2)
    if not reports:
        frame.text("no tables")
    found = Counter(report.status for report in reports)
    summary = ["", "Summary:"]
    for status, said in _SUMMARY.items():
        if number := found[status]:
            summary.append(coloured(f"  {said.format(_count(number, 'table'))}", status, colour))
    if found["mismatch"]:
        summary += ["", "Recommendation: Fix issues before running sync"]
    elif found["warning"]:
        summary += ["", "Recommendation: Look at the warnings; sync goes on"]
    return "\n".join([frame.drawn(), *summary])


def _noted(report: TableReport) -> Iterator[str]:
    if not report.findings and report.source_columns == report.target_columns:
        yield f"All {_count(report.source_columns, 'column')} match perfectly"
        return
    yield f"{_count(report.source_columns, 'source column')}, {_count(report.target_columns, 'target column')}"
    for finding in report.findings:
        yield from _note(finding)
    if report.resolution and report.status == "mismatch":
        yield f"Action: {report.resolution}"


def _note(finding: SchemaFinding) -> Iterator[str]:
    stops = " - WILL STOP SYNC" if finding.severity == "mismatch" else ""
    if finding.kind == "source_added_column" and stops:
        yield f"⚠  Source has '{finding.column}' (not in target){stops}"
    elif finding.kind == "type_mismatch" and finding.source and finding.target:
        yield f"Type mismatch: {finding.column} ({finding.source} vs {finding.target}){stops}"
    else:
        sign = "✓" if finding.severity == "info" else "⚠"
        first, *more = finding.what.split("\n")
        yield f"{sign}  {first}{stops}"
        yield from (f"   {line}" for line in more)


# --- a diff ---------------------------------------------------------------------------------------------------------


def diff(
    report: TableReport, source: TableModel | None, target: TableModel | None, verdict: Verdict, *, colour: bool = False
) -> str:
    """Both sides of one table, column by column, with what the policy makes of each difference. A side that is not
    there has no columns. The report may say more than the verdict, as that DDL waits."""
    ours = source.columns if source else ()
    theirs = target.columns if target else ()
    common = [(c, b) for c in ours if (b := target.column(c.name) if target else None)]
    only_source = [c for c in ours if target is None or target.column(c.name) is None]
    only_target = [c for c in theirs if source is None or source.column(c.name) is None]
    stops = [f for f in report.findings if f.severity == "mismatch"]
    retyped = [(a, b) for a, b in common if a.type.text != b.type.text]
    told = [f"Table: {report.table}", "", f"Columns in common: {len(common)}"]
    told += [f"  ✓ {a.name} ({a.type.text}) - types match" for a, b in common if a.type.text == b.type.text]
    told += ["", f"Source only: {_count(len(only_source), 'column')}"]
    told += _beside([(column, _fate(column.name, verdict, "⚠ Data loss risk")) for column in only_source])
    told += ["", f"Target only: {_count(len(only_target), 'column')}"]
    told += _beside([(column, _fate(column.name, verdict, _harmless(column))) for column in only_target])
    told += ["", f"Type mismatches: {len(retyped)}"]
    told += [f"  {_retyped(a, b, verdict)}" for a, b in retyped]
    columns = {c.name for c in (*only_source, *only_target)} | {a.name for a, _ in retyped}
    others = [f for f in report.findings if f.column not in columns]
    if others:
        told += ["", f"Other differences: {len(others)}"]
        told += [f"  {_SIGNS[f.severity]} {f.what}" for f in others]
    told += ["", f"Sync status: {_STATUS_WORDS[report.status]}"]
    status = len(told) - 1
    reasons = list(dict.fromkeys(_reason(f) for f in stops))
    if reasons:
        told.append(f"Reason: {'; '.join(reasons)}")
    fixes = [line for f in stops for statement in f.fix for line in statement.split("\n")]
    if fixes:
        told += ["", "Fix:", *(f"  {line}" for line in fixes)]
    told = [one_line(line) for line in told]
    told[status] = coloured(told[status], report.status, colour)
    return "\n".join(told)


_SIGNS: Mapping[Severity, str] = {"mismatch": "❌", "warning": "⚠", "info": "✓"}
_STATUS_WORDS: Mapping[VerdictStatus, str] = {
    "compatible": "COMPATIBLE",
    "warning": "COMPATIBLE WITH WARNINGS",
    "mismatch": "INCOMPATIBLE",
}


def _reason(finding: SchemaFinding) -> str:
    if finding.reason == "data_loss_risk" and finding.kind != "source_added_column":
        return finding.what.split("\n")[0]
    return _REASONS[finding.reason]


def _fate(column: str, verdict: Verdict, otherwise: str) -> str:
    """What becomes of a column that only one side has."""
    found = [f for f in verdict.findings if f.column == column]
    if any(f.kind == "source_removed_column" and f.severity == "mismatch" for f in found):
        return "❌ No longer in source"
    if any(f.kind == "target_added_column" and f.severity == "mismatch" for f in found):
        return "❌ NOT NULL, no DEFAULT" if otherwise.startswith("❌") else "❌ Not allowed by the policy"
    if column in verdict.skip:
        return "✓ Left out by the policy"
    if column in verdict.nulls:
        return "⚠ Set to NULL on all synced rows"
    if any(f.kind == "source_removed_column" for f in found):
        return "✓ Kept as it is"
    return otherwise


def _harmless(column: ColumnModel) -> str:
    if column.generated:
        return "✓ Safe (generated)"
    if column.identity:
        return "✓ Safe (identity)"
    if column.default is not None:
        return "✓ Safe (has default)"
    return "❌ NOT NULL, no DEFAULT" if column.not_null else "✓ Safe (nullable)"


def _beside(columns: Sequence[tuple[ColumnModel, str]]) -> list[str]:
    shown = [
        (c.name, c.type.text + (f" DEFAULT {c.default}" if c.default and not c.generated else ""), fate)
        for c, fate in columns
    ]
    names = max((cell_len(name) for name, _, _ in shown), default=0)
    types = max((cell_len(type_) for _, type_, _ in shown), default=0)
    return [f"  + {padded(name, names)}  {padded(type_, types)}  {fate}" for name, type_, fate in shown]


def _retyped(source: ColumnModel, target: ColumnModel, verdict: Verdict) -> str:
    found = [f for f in verdict.findings if f.column == source.name and f.kind in ("type_mismatch", "safe_cast")]
    severity: Severity = found[0].severity if found else "info"
    fate = {"mismatch": "WILL STOP SYNC", "warning": "cast, values may change", "info": "safe cast"}[severity]
    if source.name in verdict.skip:
        fate = "left out by the policy"
    return f"{_SIGNS[severity]} {source.name} ({source.type.text} vs {target.type.text}) - {fate}"


# --- a migration ----------------------------------------------------------------------------------------------------


def migration(
    statements: Mapping[str, Sequence[str]],
    left_out: Mapping[str, Sequence[str]] | None = None,
    *,
    pipeline_file: str | None = None,
) -> str:
    """What `pgddl schema sync --apply` would execute, by table, and why something of a table is `left_out`."""
    told = ["[DRY RUN] Would execute on target:"] if any(statements.values()) else ["[DRY RUN] Nothing to execute"]
    shown: set[str] = set()  # two tables may lack the same type
    for table in dict.fromkeys([*statements, *(left_out or ())]):
        told += ["", f"-- Table: {table}"]
        own = [statement for statement in statements.get(table, ()) if statement not in shown]
        told += [line for statement in own for line in statement.split("\n")]
        shown.update(own)
        told += [f"-- left out: {line}" for why in (left_out or {}).get(table, ()) for line in why.split("\n")]
    if any(statements.values()):
        told += ["", "-- Apply with:", whole_command("schema sync", pipeline_file, "--apply")]
    return "\n".join(map(one_line, told))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
