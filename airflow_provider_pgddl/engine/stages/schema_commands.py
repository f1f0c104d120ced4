"""schema: what a person sees of two schemas, and has put right on the target.

Looking needs no setup, creates nothing and writes nothing. Nothing here takes the pipeline's lock: a stage may be at
work meanwhile, as while somebody alters the target by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine import catalog
from airflow_provider_pgddl.engine.connect import Session, connect
from airflow_provider_pgddl.engine.ddl.apply import lock_timeout
from airflow_provider_pgddl.engine.ddl.blockers import Blockers
from airflow_provider_pgddl.engine.errors import GaveWay, PgddlError, StageFailed, UsageError, from_postgres
from airflow_provider_pgddl.engine.journal import Journal
from airflow_provider_pgddl.engine.pipeline import Pipeline, column_name, load_pipeline, matches, table_name
from airflow_provider_pgddl.engine.rows.yielding import Patience
from airflow_provider_pgddl.engine.schema.casts import judge_cast
from airflow_provider_pgddl.engine.schema.compatibility import OR
from airflow_provider_pgddl.engine.schema.model import Name
from airflow_provider_pgddl.engine.schema.report import resolution
from airflow_provider_pgddl.engine.schema.verdict import Finding, Kind, TableReport, stopped
from airflow_provider_pgddl.engine.schema_journal import SchemaJournal
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.stages.compare import Evaluated, evaluate
from airflow_provider_pgddl.engine.stages.gate import gate

_Q = queries("ddl_events")

# --- looking --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compared:
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


def diff(pipeline: Pipeline, source_dsn: str, target_dsn: str, table: str) -> Compared:
    """One table with both its sides. UsageError where it is none of the pipeline's."""
    (one,) = _look(pipeline, source_dsn, target_dsn, [table])
    return one


def _look(pipeline: Pipeline, source_dsn: str, target_dsn: str, tables: Sequence[str] | None) -> list[Compared]:
    """In the order of the tables' names."""
    with (
        connect(source_dsn, purpose="schema", pipeline=pipeline.pipeline) as source,
        connect(target_dsn, purpose="schema", pipeline=pipeline.pipeline) as target,
    ):
        journal = Journal(target, pipeline.pipeline)
        if not _moving(journal):
            names = _wanted(tables, matches(pipeline, catalog.table_names(source)).rows, pipeline)
            return [_seen(name, both) for name, both in sorted(evaluate(pipeline, source, target, None, names).items())]
        rows = {(row.schema, row.name): row for row in journal.tables(journal.row().run)}
        names = _wanted(tables, rows, pipeline)
        found = evaluate(pipeline, source, target, [rows[name] for name in names], ())
        return _with_what_is_recorded(journal, {name: _seen(name, both) for name, both in sorted(found.items())})


def _moving(journal: Journal) -> bool:
    """Whether a run is between setup and its end, so that the journal knows its tables."""
    row = journal.find()
    return row is not None and row.cut_over_at is None and row.finished_at is None


def _wanted(tables: Sequence[str] | None, known: Collection[Name], pipeline: Pipeline) -> list[Name]:
    return sorted(known) if tables is None else [_named(table, known, pipeline) for table in dict.fromkeys(tables)]


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


def _seen(name: Name, both: Evaluated) -> Compared:
    findings = both.verdict.findings
    report = TableReport(
        table=".".join(name),
        status=both.verdict.status,
        findings=findings,
        source_columns=len(both.source.columns) if both.source else 0,
        target_columns=len(both.target.columns) if both.target else 0,
        resolution=resolution(findings),
    )
    return Compared(report, both)


def _with_what_is_recorded(journal: Journal, seen: Mapping[Name, Compared]) -> list[Compared]:
    """With DDL that waits for a person, which stops a table as well, and since when a verdict stands."""
    stuck = journal.stuck_tables()
    recorded = SchemaJournal(journal.conn, journal.pipeline).statuses()
    told = []
    for name, one in seen.items():
        report = one.report
        if waits := stuck.get(report.table):
            findings = (*report.findings, *(stopped(what, "ddl") for what in waits))
            report = replace(report, status="mismatch", findings=findings)
        if (row := recorded.get(name)) and row.status == report.status:
            report = replace(report, since=row.since.isoformat())
        told.append(replace(one, report=report))
    return told


# --- putting right --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """What one finding's fix is for, in words, and its statements. `changed` asks for a row whose value they would
    change: where there is one, nothing is done."""

    what: str
    statements: tuple[str, ...]
    changed: sql.Composed | None = None


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What would align one table of the target with the source, and what is `left_out`, each with its reason. `name`
    and `owner` are those on the target."""

    table: str
    name: Name
    steps: tuple[Step, ...]
    left_out: tuple[str, ...]
    owner: str
    owned: bool

    @property
    def statements(self) -> list[str]:
        return [statement for step in self.steps for statement in step.statements]


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
        work = _Work(pipeline, target_dsn, target, signals=recorded, say=say)
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


def _strict(pipeline: Pipeline) -> Pipeline:
    """The same policy where every mismatch counts as one: what is only warned of is aligned as well."""
    content = pipeline.to_json()
    content["schema"]["validation"] = "strict"
    for overrides in content["schema"]["overrides"].values():
        overrides.pop("validation", None)
    return load_pipeline(content)


_VERBS: Mapping[Kind, str] = {
    "source_added_column": "Adding", "source_removed_column": "Dropping", "renamed_column": "Renaming",
    "column_case": "Renaming",
}  # fmt: skip


def _plan(pipeline: Pipeline, one: Compared) -> TablePlan:
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
        steps.append(Step(what, _first_way(finding.fix), _changed(pipeline, one.both, finding)))
    target = one.both.target
    if target is None:
        return TablePlan(table, ("", ""), (), tuple(left_out), "", False)
    name = (target.schema, target.name)
    return TablePlan(table, name, tuple(steps), tuple(left_out), target.owner, target.owned)


def _first_way(fix: Sequence[str]) -> tuple[str, ...]:
    """The statements of the first of several ways, any of which is enough; what only a person can do is a comment."""
    end = fix.index(OR) if OR in fix else len(fix)
    return tuple(statement for statement in fix[:end] if not statement.startswith("--"))


def _why_not(pipeline: Pipeline, both: Evaluated, finding: Finding) -> str | None:
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


def _changed(pipeline: Pipeline, both: Evaluated, finding: Finding) -> sql.Composed | None:
    """Asks for a value of the target that would not be the same once its column has the source's type."""
    if finding.kind != "type_mismatch" or finding.column is None or pipeline.schema_.force:
        return None
    assert both.source is not None and both.target is not None
    source, target = both.source.column(finding.column), both.target.column(finding.column)
    if source is None or target is None or judge_cast(target.type, source.type).kind in ("same", "safe"):
        return None
    query = "SELECT FROM {} WHERE CAST(CAST({c} AS {new}) AS {old})::text IS DISTINCT FROM {c}::text LIMIT 1"
    return sql.SQL(query).format(
        sql.Identifier(both.target.schema, both.target.name),
        c=sql.Identifier(finding.column),
        new=sql.SQL(source.type.text),  # as format_type prints it
        old=sql.SQL(target.type.text),
    )


class _Work:
    """Runs plans on the target, one after the other."""

    def __init__(
        self, pipeline: Pipeline, target_dsn: str, target: Session, *, signals: bool, say: Callable[[str], None]
    ) -> None:
        self._pipeline, self._dsn, self._target, self._say = pipeline, target_dsn, target, say
        # Every signal is recorded before it is sent, and without a journal there is nowhere to.
        self._signal = pipeline.ddl.signal_blockers if signals else "off"

    def apply(self, plan: TablePlan) -> None:
        """All of a plan or nothing. StageFailed where it cannot be done, Retry where a lock was not to be had."""
        if not plan.owned:
            row = self._target.execute("SELECT current_user::text").fetchone()
            raise StageFailed(
                f"role {row[0] if row else ''} may not alter it: its owner is {plan.owner}",
                table=plan.table,
                todo=f"let {plan.owner}, or a member of that role, run this on the target",
                sql="\n".join(plan.statements),
            )
        for step in plan.steps:
            self._say(f"[INFO] {step.what}")
        ddl = self._pipeline.ddl
        blockers = Blockers(self._session, self._pipeline.pipeline, None, self._signal, ddl.lock_timeout)
        patience = Patience(ddl.retry_for)
        while True:
            try:
                return self._once(plan, blockers)
            except (pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure) as error:
                in_the_way = f": {blockers}" if str(blockers) else ""
                patience.wait(GaveWay(f"{error.diag.message_primary}{in_the_way}", table=plan.table))
            except psycopg.Error as error:
                raise self._failed(plan, error) from None

    def _once(self, plan: TablePlan, blockers: Blockers) -> None:
        timeout = f"{max(1, round(lock_timeout(self._pipeline.ddl) * 1000))}ms"
        with self._target.transaction():
            self._target.execute(_Q["assume"], [True, ["lock_timeout"], [timeout]])
            with blockers.watch(self._target):
                for step in plan.steps:
                    *first, last = step.statements  # what comes first makes the type
                    for statement in first:
                        self._target.execute(statement)
                    if step.changed is not None:
                        self._refuse_change(plan, step.changed)
                    self._target.execute(last)

    def _refuse_change(self, plan: TablePlan, changed: sql.Composed) -> None:
        """Under the lock that the statement needs in any case, so that no value comes in between."""
        self._target.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(*plan.name)))
        if self._target.execute(changed).fetchone() is not None:
            raise StageFailed(
                "a value that the target has would change with the column's type; the table is as it was",
                table=plan.table,
                todo="see what the target is to keep, then run this with --force",
                sql="\n".join(plan.statements),
            )

    def _failed(self, plan: TablePlan, error: psycopg.Error) -> PgddlError:
        if error.sqlstate is None:
            return from_postgres(error, doing="aligning the target's schema", table=plan.table)
        # What the server says of a value shows it.
        said = "values in it do not fit" if isinstance(error, psycopg.DataError) else error.diag.message_primary
        return StageFailed(
            f"{said} (SQLSTATE {error.sqlstate}, while altering the target); the table is as it was",
            table=plan.table,
            todo="make the statements possible on the target, then run this again",
            sql="\n".join(plan.statements),
        )

    def _session(self) -> Session:
        return connect(self._dsn, purpose="schema watch", pipeline=self._pipeline.pipeline)
