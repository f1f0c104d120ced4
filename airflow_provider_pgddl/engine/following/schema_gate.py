"""The schema gate: looks at both catalogs itself, records what it finds, and says which tables are blocked."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import PgddlError, UsageError, from_postgres, not_of_pipeline
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.schema_comparison import (
    COPY_LEFT,
    KEYLESS,
    LOST_KEY,
    Evaluated,
    evaluate,
    recorded,
)
from airflow_provider_pgddl.engine.following.uneven_partitions import uneven_partitions
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.lease import Fence
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.schema import GateResult, Recorded, StatusRow
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import table_name
from airflow_provider_pgddl.engine.progress import repeating
from airflow_provider_pgddl.engine.rows.change_log_reading import count_changes, logs_now
from airflow_provider_pgddl.engine.rows.pending_keys import count_pending
from airflow_provider_pgddl.engine.schema.drift import drift
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding, TableReport, stopped
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect

WITH_PENDING = ("created", "backfilled", "indexed")
MEND = "run verify --mend"  # compares, and reads again what differs
GONE = "It is gone on both sides: the next stage forgets it"
MIGRATED = "The next stage alters the target, which the policy has approved, before rows go on"
ASKED = "Somebody has asked for a schema sync: the next stage runs it, before rows go on"
UNREAD = "It was altered since it was stopped: the next stage applies what was captured, and judges again"
# Stages that begin with a look at every table, alter what the policy has approved and settle what has changed.
SETTLING = frozenset({"setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap"})
# Those that run what a person has asked for. Setup has not read what was captured, and behind a swap's fence nobody
# waits for somebody's lock.
SYNCING = frozenset({"backfill", "schema_sync", "replay", "verify"})
_MIGRATED = ("source_added_column", "missing_type", "type_mismatch", "safe_cast", "source_removed_column")
STUCK = "see `pgddl ddl list`"  # how a table gets on that waits behind DDL


@dataclass(frozen=True, slots=True)
class ShownVerdict:
    """What blocks a table now, and how the next stage settles it by itself; None where a person has to."""

    findings: tuple[SchemaFinding, ...]
    settled: str | None


def gate(
    pipeline: Pipeline, source_dsn: str, target_dsn: str, tables: Sequence[str] | None = None, *,
    announce: bool = False, required: bool = False, fence: Fence | None = None, behind: Collection[str] = (),
) -> list[TableReport]:  # fmt: skip
    """What is known of every table (of these `schema.table`, where some are named) after having looked at both
    catalogs now; the gate is open where none of the reports is a mismatch.

    What was blocked and is right again is recorded as compatible. Nothing is judged before
    setup, which is UsageError where it is `required` to have been there, after the swap, or in a run that is finished.
    `announce`: the caller tells somebody of the mismatches that are new, so they are new to no other caller.
    `fence`: of a run that looks beside its work, and records nothing once it is not the newest.
    `behind`: the stages that wait for this gate. What the next of them settles by itself does not close it: a gate that
    waits for a task behind it never opens.
    """
    name = pipeline.pipeline
    with (
        connect(source_dsn, purpose="gate", pipeline=name) as source,
        connect(target_dsn, purpose="gate", pipeline=name) as target,
    ):
        journal = Journal(target, name)
        row = journal.row() if required else journal.find()
        if row is None or row.cut_over_at is not None or row.finished_at is not None:
            return []
        rows = journal.tables.of(row.run)
        _forget_newcomers(source, journal, {(t.schema, t.name) for t in rows}, fence)
        stuck = journal.blocked_tables.by_ddl()
        evaluated, now = evaluate_and_record(
            pipeline, source, journal, [t for t in rows if t.qualified not in stuck], fence
        )
        wanted = None if tables is None else _named(tables, {(t.schema, t.name) for t in rows})
        reports = _reports(pipeline, journal, rows, evaluated, stuck, source, wanted, announce=announce)
        for request in () if SYNCING.isdisjoint(behind) else journal.actions.requests():
            if request.table in reports and request.table not in stuck:
                now |= {(t.schema, t.name): ShownVerdict(reports[request.table].findings, ASKED)
                        for t in rows if t.qualified == request.table}  # fmt: skip
        _show(reports, now, passing=not SETTLING.isdisjoint(behind))
        if row.verify_needed and "verify" not in behind:
            lost = [t for t in rows if t.state == "indexed" and not t.keyless]
            lost = [t for t in lost if wanted is None or (t.schema, t.name) in wanted]
            _add_lost_commits(journal, reports, lost, row.verify_needed, announce=announce)
        return list(reports.values())


def _named(tables: Sequence[str], known: Collection[Name]) -> set[Name]:
    try:
        wanted = {table_name(t) for t in tables}
    except ValueError as error:
        raise UsageError(str(error)) from None
    if unknown := wanted - set(known):
        raise not_of_pipeline(".".join(min(unknown)))
    return wanted


def _forget_newcomers(source: Session, journal: Journal, mine: Collection[Name], fence: Fence | None) -> None:
    """What stopped tables that are none of the run yet, and does so no more: the next replay takes them in. It cannot
    see that first where it waits for this gate."""
    statuses = journal.schema.statuses().items()
    others = {name: row for name, row in statuses if name not in mine and row.status == "mismatch"}
    there = catalog.describe_all(source) if others else {}
    for name, row in others.items():
        if any(finding.what == KEYLESS for finding in row.findings):
            stands = name in there and there[name].key is None
        else:  # left behind on the target
            stands = name in there and catalog.oid_of(journal.conn, *name) is not None
        if not stands:
            with _recording(journal.conn, fence, "gate.before_forgotten_commit"):
                journal.schema.forget(name)


@contextmanager
def _recording(conn: Session, fence: Fence | None, before_commit: str) -> Iterator[None]:
    """A verdict is about both catalogs now, whoever looks: without a run there is nothing to be fenced."""
    with conn.transaction():
        yield
        if fence is not None:
            lease.check(conn, fence)
        failpoint(before_commit, conn)


def evaluate_and_record(
    pipeline: Pipeline, source: Session, journal: Journal, rows: Sequence[TableRow], fence: Fence | None = None
) -> tuple[dict[Name, Evaluated], dict[Name, ShownVerdict]]:
    """Compares these tables as they are now, and records the verdicts. Returns what was compared, and of blocked
    tables what blocks them."""
    started = time.monotonic()
    found = evaluate(pipeline, source, journal.conn, rows, ())
    now = catalog.describe(source, [t.oid for t in rows], change_log.capture_names(pipeline.pipeline))
    known = journal.schema.statuses()
    verdicts: dict[Name, Recorded] = {}
    shown: dict[Name, ShownVerdict] = {}
    for table in rows:
        name = (table.schema, table.name)
        there = now.get(table.oid)
        blocked = name in known and known[name].status == "mismatch"
        drifts = pipeline.capture.ddl != "off" and bool(drift(table.version, table.physical, there))
        if drifts and not blocked:
            continue  # the next replay applies what was captured, or stops the table
        more = []
        if there is not None and there.key is None and not table.keyless:
            at_swap = pipeline.tables.keyless == "copy_at_swap"
            more.append(stopped(LOST_KEY if at_swap else KEYLESS, "data_loss_risk"))
        if there is not None and table.state != "captured":
            more += uneven_partitions(pipeline, journal.conn, there, table.plan, table.plan)
        verdict = recorded(found[name], *more)
        if verdict[0] == "mismatch":
            # What came after it was stopped may be captured DDL that no stage has read yet: no gate stops it for that.
            # But for a drop that nothing captured: no stage takes its copy away.
            left = there is None and any(f.what == COPY_LEFT for f in known[name].findings) if blocked else False
            old = _that_stand(known[name], verdict[1]) if drifts and not left else list(verdict[1])
            how = _how_settled(found[name], old, there)
            if how is not None or len(old) < len(verdict[1]):
                shown[name] = ShownVerdict(tuple(verdict[1]), how)
            if how == UNREAD:
                continue
            verdict = ("mismatch", old, *verdict[2:])
        verdicts[name] = verdict
    with _recording(journal.conn, fence, "gate.before_verdicts_commit"):
        changed = journal.schema.record_many(verdicts)
        journal.schema.touch([n for n in verdicts if n not in changed])
        journal.schema.validated(_result(verdicts.values()), time.monotonic() - started)
    return found, shown


def _how_settled(evaluated: Evaluated, findings: Iterable[SchemaFinding], there: Table | None) -> str | None:
    """How the next stage that looks at the table ends each of its mismatches by itself; None where a person has to."""
    if there is None and evaluated.target is None:
        return GONE
    stopping = [f for f in findings if f.severity == "mismatch"]
    if not stopping:
        return UNREAD
    approved = {m.column for m in evaluated.verdict.migrations if m.approved}
    return MIGRATED if all(f.column in approved and f.kind in _MIGRATED for f in stopping) else None


def _that_stand(row: StatusRow, findings: Iterable[SchemaFinding]) -> list[SchemaFinding]:
    """These findings but for mismatches that are new."""
    known = {(f.kind, f.column, f.what) for f in row.findings if f.severity == "mismatch"}
    return [f for f in findings if f.severity != "mismatch" or (f.kind, f.column, f.what) in known]


def _show(reports: dict[str, TableReport], now: Mapping[Name, ShownVerdict], *, passing: bool) -> None:
    """What these tables differ in now. Those that a stage settles do not close the gate where they are `passing`; the
    journal has them as blocked, and no row is written to them before."""
    for name, of in now.items():
        report = reports.get(".".join(name))
        if report is None or report.status != "mismatch":
            continue
        if not passing or of.settled is None:
            reports[report.table] = replace(report, findings=of.findings)
            continue
        others = (replace(f, severity="warning") if f.severity == "mismatch" else f for f in of.findings)
        findings = (*others, SchemaFinding("stopped", "warning", of.settled))
        reports[report.table] = replace(report, status="warning", findings=findings, new=False)


def _result(verdicts: Iterable[Recorded]) -> GateResult:
    """`fail_unsafe`: going on would lose or corrupt data."""
    listed = list(verdicts)
    reasons = {f.reason for _, findings, _, _ in listed for f in findings if f.severity == "mismatch"}
    if reasons:
        return "fail_unsafe" if reasons & {"data_loss_risk", "type_mismatch", "source_removed"} else "fail_safe"
    return "warning" if any(status == "warning" for status, _, _, _ in listed) else "pass"


def _reports(
    pipeline: Pipeline, journal: Journal, rows: Sequence[TableRow], evaluated: Mapping[Name, Evaluated],
    stuck: Mapping[str, list[SchemaFinding]], source: Session, wanted: Collection[Name] | None, *, announce: bool,
) -> dict[str, TableReport]:  # fmt: skip
    statuses = {n: s for n, s in journal.schema.statuses().items() if wanted is None or n in wanted}
    new = set(journal.schema.claim_new(statuses)) if announce else set()
    held = held_back(pipeline, journal, source, [t for t in rows if t.qualified in stuck or _is_closed(statuses, t)])
    reports = {}
    for name, status in statuses.items():
        sides = evaluated.get(name)
        reports[".".join(name)] = TableReport(
            ".".join(name), status.status, status.findings,
            len(sides.source.columns) if sides and sides.source else 0,
            len(sides.target.columns) if sides and sides.target else 0,
            status.since.isoformat(), status.resolution, name in new, held.get(".".join(name)),
        )  # fmt: skip
    names = {".".join(name) for name in wanted or ()}
    for table, why in stuck.items():
        if wanted is not None and table not in names:
            continue
        is_new = announce and not journal.schema.shown(f"announced {table}", "\n".join(f.what for f in why))
        known = reports.get(table, TableReport(table, "mismatch"))
        reports[table] = replace(
            known, status="mismatch", findings=(*known.findings, *why),
            since=known.since if known.status == "mismatch" else None, resolution=STUCK,
            new=known.new or is_new, held_back=held.get(table),
        )  # fmt: skip
    return reports


def _add_lost_commits(
    journal: Journal, reports: dict[str, TableReport], tables: Sequence[TableRow], why: str, *, announce: bool
) -> None:
    """Nobody knows whether these are equal. No verdict of the journal's: windows and verify go on with them."""
    finding = replace(stopped(why, "lost_commits"), commands=(MEND,))
    for name in (t.qualified for t in tables):
        is_new = announce and not journal.schema.shown(f"lost commits {name}", why)
        known = reports.get(name, TableReport(name, "mismatch"))
        reports[name] = replace(
            known, status="mismatch", findings=(*known.findings, finding),
            since=known.since if known.status == "mismatch" else None, resolution=f"pgddl {MEND}",
            new=known.new or is_new,
        )  # fmt: skip


def _is_closed(statuses: Mapping[Name, StatusRow], table: TableRow) -> bool:
    row = statuses.get((table.schema, table.name))
    return row is not None and row.status == "mismatch"


def held_back(pipeline: Pipeline, journal: Journal, source: Session, tables: Sequence[TableRow]) -> dict[str, int]:
    """Rows that were written on the source and wait, by table, where that is known."""
    logs = set(change_log.captured_roots(source, pipeline.pipeline).values()) if tables else set()
    changes = count_changes(logs_now(pipeline, source, journal.conn), [t for t in tables if t.log_table in logs])
    pending = count_pending(journal.conn, [t for t in tables if t.state in WITH_PENDING])
    return {t.qualified: changes.get(t.id, 0) + pending.get(t.id, 0) for t in tables if t.log_table in logs}


def shown_already(pipeline: Pipeline, target_dsn: str, who: str, digest: str) -> bool:
    """Whether `who` (a sensor's task) was shown this digest last; from here on it was."""
    with connect(target_dsn, purpose="gate", pipeline=pipeline.pipeline) as target:
        return Journal(target, pipeline.pipeline).schema.shown(who, digest)


@contextmanager
def validating(context: Context) -> Iterator[None]:
    """Looks at the schemas every `schema.validation_interval` while the block runs: rows are copied for hours, and no
    chunk of a table is begun that the gate has closed for."""

    def validate() -> None:
        try:
            gate(context.pipeline, context.source_dsn, context.target_dsn, fence=context.fence())
        except (PgddlError, psycopg.Error) as error:
            failure = error if isinstance(error, PgddlError) else from_postgres(error, doing="comparing schemas")
            context.say(f"the schemas could not be compared, which is tried again: {failure.what}")

    with repeating("pgddl-validation", context.pipeline.schema_.validation_interval, validate):
        yield
