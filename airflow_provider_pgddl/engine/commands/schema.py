"""schema: what a person sees of two schemas, and has put right on the target.

Looking needs no setup, creates nothing and writes nothing. Nothing here takes the pipeline's lock: a stage may be at
work meanwhile, as while somebody alters the target by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from airflow_provider_pgddl.engine.apply.target_alterations import Alteration, Alterations, TablePlan
from airflow_provider_pgddl.engine.capture import ddl_log
from airflow_provider_pgddl.engine.errors import PgddlError, UsageError
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.schema_comparison import Evaluated, evaluate
from airflow_provider_pgddl.engine.following.schema_gate import gate
from airflow_provider_pgddl.engine.journal.actions import Actions
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.schema import SchemaJournal
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import column_name, table_name
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.schema.casts import judge_cast
from airflow_provider_pgddl.engine.schema.report import resolution
from airflow_provider_pgddl.engine.schema.verdict import OR, FindingKind, SchemaFinding, TableReport
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("ddl_events")

# --- looking --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableCompared:
    """One table: its report, and both sides as they were read."""

    report: TableReport
    both: Evaluated


def validate(
    pipeline: Pipeline, source_dsn: str, target_dsn: str, tables: Sequence[str] | None = None
) -> list[TableReport]:
    """The verdict on every table that the pipeline moves, or on `tables`, as both servers are now.

    UsageError where one of `tables` is none of the pipeline's.
    """
    return [one.report for one in _look(pipeline, source_dsn, target_dsn, tables)]


def diff(pipeline: Pipeline, source_dsn: str, target_dsn: str, table: str) -> TableCompared:
    """One table with both its sides. UsageError where it is none of the pipeline's."""
    (one,) = _look(pipeline, source_dsn, target_dsn, [table])
    return one


def _look(pipeline: Pipeline, source_dsn: str, target_dsn: str, tables: Sequence[str] | None) -> list[TableCompared]:
    """In the order of the tables' names."""
    with (
        connect(source_dsn, purpose="schema", pipeline=pipeline.pipeline) as source,
        connect(target_dsn, purpose="schema", pipeline=pipeline.pipeline) as target,
    ):
        journal = Journal(target, pipeline.pipeline)
        if not _moving(journal):
            chosen = matches(pipeline, catalog.table_names(source), partitions=catalog.partitions(source))
            names = _wanted(tables, chosen.rows, pipeline)
            return [_seen(name, both) for name, both in sorted(evaluate(pipeline, source, target, None, names).items())]
        rows = {(row.schema, row.name): row for row in journal.tables.of(journal.run)}
        names = _wanted(tables, rows, pipeline)
        found = evaluate(pipeline, source, target, [rows[name] for name in names], ())
        return _with_what_is_recorded(journal, {name: _seen(name, both) for name, both in sorted(found.items())})


def _moving(journal: Journal) -> bool:
    """Whether a run is between setup and its end, so that the journal knows its tables."""
    row = journal.find()
    return row is not None and row.cut_over_at is None and row.finished_at is None


def _wanted(tables: Sequence[str] | None, known: Collection[Name], pipeline: Pipeline) -> list[Name]:
    return sorted(known) if tables is None else [*dict.fromkeys(_named(table, known, pipeline) for table in tables)]


def _named(text: str, known: Collection[Name], pipeline: Pipeline) -> Name:
    """A table as reports name it, as SQL writes it, or by its own name where only one schema has it."""
    for name in known:
        if text == ".".join(name):
            return name
    try:
        found = {table_name(text)} & set(known)
    except ValueError:
        try:
            alone = column_name(text)
        except ValueError as error:
            raise UsageError(str(error)) from None
        found = {name for name in known if name[1] == alone}
    if len(found) != 1:
        what = "is in more than one schema" if found else f"is not a table of pipeline {pipeline.pipeline!r}"
        todo = "name its schema as well" if found else "`pgddl schema validate` lists the tables"
        raise UsageError(f"{text} {what}", todo=todo)
    return found.pop()


def _seen(name: Name, both: Evaluated) -> TableCompared:
    findings = both.verdict.findings
    report = TableReport(
        table=".".join(name),
        status=both.verdict.status,
        findings=findings,
        source_columns=len(both.source.columns) if both.source else 0,
        target_columns=len(both.target.columns) if both.target else 0,
        resolution=resolution(findings),
    )
    return TableCompared(report, both)


def _with_what_is_recorded(journal: Journal, seen: Mapping[Name, TableCompared]) -> list[TableCompared]:
    """With DDL that waits for a person, which stops a table as well, and since when a verdict stands."""
    stuck = journal.blocked_tables.by_ddl()
    recorded = SchemaJournal(journal.conn, journal.pipeline).statuses()
    told = []
    for name, one in seen.items():
        report = one.report
        if waits := stuck.get(report.table):
            findings = (*report.findings, *waits)
            report = replace(report, status="mismatch", findings=findings)
        if (row := recorded.get(name)) and row.status == report.status:
            report = replace(report, since=row.since.isoformat())
        told.append(replace(one, report=report))
    return told


# --- putting right --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Synced:
    """What `apply_sync` did: the statements of each table that got them, the errors of those that did not, and the
    verdicts afterwards. `recorded`: these are in the journal."""

    plans: Sequence[TablePlan]
    applied: Mapping[str, Sequence[str]]
    errors: Sequence[PgddlError]
    reports: Sequence[TableReport]
    recorded: bool


def plan_sync(
    pipeline: Pipeline, source_dsn: str, target_dsn: str, tables: Sequence[str] | None = None
) -> list[TablePlan]:
    """What `apply_sync` would do to each table that differs; what the policy lets pass is left as it is."""
    strict = _strict(pipeline)
    found = _look(strict, source_dsn, target_dsn, tables)
    plans = [_plan(strict, one) for one in found]
    return [plan for plan in plans if plan.steps or plan.left_out]


def apply_sync(
    pipeline: Pipeline,
    source_dsn: str,
    target_dsn: str,
    tables: Sequence[str] | None = None,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> Synced:
    """Aligns the target with the source, each table in one transaction, and looks at them again.

    A table that cannot be altered stops alone. Locks are taken as for captured DDL: `ddl.lock_timeout` for each try,
    `ddl.retry_for` in all, and `ddl.signal_blockers` for whoever is in the way.
    """
    plans = plan_sync(pipeline, source_dsn, target_dsn, tables)
    with connect(target_dsn, purpose="schema", pipeline=pipeline.pipeline) as target:
        recorded = _moving(Journal(target, pipeline.pipeline))
        applied: dict[str, Sequence[str]] = {}
        errors: list[PgddlError] = []
        work = Alterations(pipeline, target_dsn, target, signals=recorded, say=say)
        for plan in plans:
            if not plan.steps:
                continue
            try:
                work.apply(plan)
                applied[plan.table] = plan.statements
            except PgddlError as error:
                errors.append(error)
    look = gate if recorded else validate
    return Synced(plans, applied, errors, look(pipeline, source_dsn, target_dsn, tables), recorded)


def plan_migrations(pipeline: Pipeline, source_dsn: str, target_dsn: str) -> list[TablePlan]:
    """The changes of the target that `schema.auto_migrate` allows once a person has approved them; none where no run
    is under way. Of a table none either while captured DDL about it is under way, which would find there what it is to
    make."""
    with connect(target_dsn, purpose="schema", pipeline=pipeline.pipeline) as target:
        journal = Journal(target, pipeline.pipeline)
        if not _moving(journal):
            return []
        seen = _look(pipeline, source_dsn, target_dsn, None)
        altering = _being_altered(pipeline, source_dsn, journal)  # what was seen is captured by now
    plans = []
    for one in (one for one in seen if one.report.table not in altering):
        steps = [m for m in one.both.verdict.migrations if not m.approved]
        if one.both.target is not None and steps:
            made = [Alteration(f"{m.kind} {one.report.table}.{m.column}", m.statements) for m in steps]
            plans.append(replace(_plan(pipeline, one), steps=tuple(made), left_out=()))
    return plans


def _being_altered(pipeline: Pipeline, source_dsn: str, journal: Journal) -> set[str]:
    """Tables with captured DDL that no stage has applied yet."""
    transport, waiting = pipeline.capture.ddl, set(journal.blocked_tables.by_ddl())
    if transport is None or transport == "off":
        return waiting
    run = journal.row().run
    ddl = DdlJournal(journal.conn, pipeline.pipeline, run)
    with (
        connect(source_dsn, purpose="schema", pipeline=pipeline.pipeline) as source,
        connect(source_dsn, purpose="schema", pipeline=pipeline.pipeline) as other,
        source.transaction(),
    ):
        source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        events = ddl_log.read(source, lambda: other, pipeline.pipeline, transport, ddl.position()).events
    known = ddl.known([event["id"] for event in events])
    altered = {
        one["table"] or one["objid"]
        for event in events
        if event["id"] not in known
        for one in event["objects"]
        if one["table"] or one["classid"] == "pg_class"
    }
    return waiting | {table.qualified for table in journal.tables.of(run) if table.oid in altered}


def apply_migrations(
    pipeline: Pipeline,
    source_dsn: str,
    target_dsn: str,
    approved: Mapping[str, Sequence[str]],
    who: str,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Runs what was approved of these: `schema.table` → the statements that were shown, each table in one transaction.
    Returns the tables that got them; one for which they are not the same any more is left as it is. The journal keeps
    who has approved what, before it is run."""
    plans = plan_migrations(pipeline, source_dsn, target_dsn)
    with connect(target_dsn, purpose="schema", pipeline=pipeline.pipeline) as target:
        work = Alterations(pipeline, target_dsn, target, signals=True, say=say)
        same = [plan for plan in plans if plan.statements == list(approved.get(plan.table, ()))]
        for plan in same:
            with target.transaction():
                Actions(target, pipeline.pipeline).add(who, "approve", plan.table, "; ".join(plan.statements))
                failpoint("schema.before_approved_commit", target)
            work.apply(plan)
    gate(pipeline, source_dsn, target_dsn)
    return [plan.table for plan in same]


def _strict(pipeline: Pipeline) -> Pipeline:
    """The same policy where every mismatch counts as one: what is only warned of is aligned as well."""
    content = pipeline.to_json()
    content["schema"]["validation"] = "strict"
    for overrides in content["schema"]["overrides"].values():
        overrides.pop("validation", None)
    return load_pipeline(content)


_VERBS: Mapping[FindingKind, str] = {
    "source_added_column": "Adding", "source_removed_column": "Dropping", "renamed_column": "Renaming",
    "column_case": "Renaming",
}  # fmt: skip


def _plan(pipeline: Pipeline, one: TableCompared) -> TablePlan:
    steps, left_out = [], []
    table = one.report.table
    for finding in one.report.findings:
        if finding.severity != "mismatch":
            continue
        if why := _why_not(pipeline, one.both, finding):
            left_out.append(f"{finding.what.splitlines()[0]}: {why}")
            continue
        about = f"column {table}.{finding.column}" if finding.column else f"table {table}"
        what = f"{_VERBS.get(finding.kind, 'Altering')} {about}"
        steps.append(Alteration(what, _first_way(finding.fix), _changed(pipeline, one.both, finding)))
    target = one.both.target
    if target is None:
        return TablePlan(table, ("", ""), (), tuple(left_out), "", False)
    name = (target.schema, target.name)
    return TablePlan(table, name, tuple(steps), tuple(left_out), target.owner, target.owned)


def _first_way(fix: Sequence[str]) -> tuple[str, ...]:
    """The statements of the first of several ways, any of which is enough; what only a person can do is a comment."""
    end = fix.index(OR) if OR in fix else len(fix)
    return tuple(statement for statement in fix[:end] if not statement.startswith("--"))


def _why_not(pipeline: Pipeline, both: Evaluated, finding: SchemaFinding) -> str | None:
    """Why the fix of a mismatch is not to be run by us; None where it is."""
    force = pipeline.schema_.force
    if not _first_way(finding.fix) or finding.kind == "not_a_table":
        return "no statement on the target alone puts it right"
    if both.target is None:
        return "stage snapshot makes tables; `pgddl reset --tables` starts one over that is gone"
    if finding.kind == "source_removed_column":
        if any(m.kind == "drop_column" and m.column == finding.column for m in both.verdict.migrations):
            return None
        return "its values would be gone; schema.source_removed_columns: drop lets them go"
    if finding.kind in ("target_constraint", "key") and not force:
        return f"somebody made it so on the target; --force runs: {' '.join(finding.fix)}"
    return None


def _changed(pipeline: Pipeline, both: Evaluated, finding: SchemaFinding) -> sql.Composed | None:
    """Asks for a value of the target that would not be the same once its column has the source's type."""
    if finding.kind != "type_mismatch" or finding.column is None or pipeline.schema_.force:
        return None
    assert both.source is not None and both.target is not None
    source, target = both.source.column(finding.column), both.target.column(finding.column)
    if source is None or target is None or judge_cast(target.type, source.type).kind in ("same", "safe"):
        return None
    query = "SELECT true FROM {} WHERE CAST(CAST({c} AS {new}) AS {old})::text IS DISTINCT FROM {c}::text LIMIT 1"
    return sql.SQL(query).format(
        sql.Identifier(both.target.schema, both.target.name),
        c=sql.Identifier(finding.column),
        new=sql.SQL(source.type.text),  # as format_type prints it
        old=sql.SQL(target.type.text),
    )
