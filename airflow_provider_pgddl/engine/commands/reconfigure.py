"""reconfigure: a changed file is taken up by a pipeline under way, without a reset.

What it comes to is told first (`look`), all of it or nothing. It is recorded in one transaction of the target
(`take_up`): the file, what was changed, and that tables were taken out. What follows is setup's, by the ways that DDL
goes anyway: tables that are new are captured, capture of tables that went is dropped, and rows that another condition
or another expression concerns are read again. Whoever dies behind that transaction leaves the rest to the next setup;
no other stage begins before that has ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.commands.reset import (
    is_the_targets_own,
    lacking,
    refuse_archives,
    refuse_values_away,
    take_back_finished,
)
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed, UsageError
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.clones import clone_beside
from airflow_provider_pgddl.engine.following.direct_trigger import take_back
from airflow_provider_pgddl.engine.following.plans import first_plan
from airflow_provider_pgddl.engine.following.rows_read import NOT_TOLD_THERE, NOTHING, TELL_THERE, condition_there
from airflow_provider_pgddl.engine.following.table_capture import RENAMED, stop_capture_of
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.same_config import refuse_reset_keys
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.pipelines import Journal, PipelineRow
from airflow_provider_pgddl.engine.journal.reconfigurations import Subject
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.later import later_of
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.pipeline.reading import KeyChange, as_recorded, as_set_up, differences
from airflow_provider_pgddl.engine.pipeline.selection import Selection, check_columns, matches
from airflow_provider_pgddl.engine.preflight import preflight
from airflow_provider_pgddl.engine.preflight.findings import Finding, refuse
from airflow_provider_pgddl.engine.preflight.unsupported_keys import unsupported
from airflow_provider_pgddl.engine.rows.pending_keys import count_pending, forget_keys
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.server.strong_locks import with_tries, writers_wait
from airflow_provider_pgddl.engine.sql import queries

TAKEN_OUT = "its table was taken out of the pipeline by a changed file"
OF_TABLES = ("tables.include", "tables.exclude", "tables.schema_only", "tables.where", "tables.transform", "rewrite")
OF_ENDS = ("source.", "target.")


@dataclass(frozen=True)
class ChangedFile:
    """What a changed file comes to. `added` are by name, `out` and `again` as recorded; `drop`: the copies of those
    that are taken out go as well."""

    pipeline: Pipeline
    before: Pipeline
    differences: Sequence[KeyChange]
    added: Sequence[Name] = ()
    out: Sequence[TableRow] = ()
    again: Sequence[TableRow] = ()
    drop: bool = False
    under_way: bool = False
    theirs: Collection[int] = ()
    """The ids of those that go with nothing on the target that the pipeline has made."""
    away: Mapping[int, int] = field(default_factory=dict)
    """By id, how many rows of those that go wait to be read again."""

    def drops(self, table: TableRow) -> bool:
        """Whether its copy goes with it. Beside the table that it is to replace it is nothing that anybody else knows
        of; one that the target had before the pipeline is not ours, nor is another pipeline's."""
        return table.id not in self.theirs and (self.pipeline.beside or self.drop)

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline.pipeline,
            "changes": [one.to_json() for one in self.differences],
            "tables": [{"table": table, "does": does} for table, does in self.steps()],
            "under_way": self.under_way,
        }

    def steps(self) -> Iterator[tuple[str, str]]:
        """What is done about each table, in words."""
        for table in self.out:
            copy = f"{table.plan.copy_schema}.{table.plan.copy_name}"
            if self.drops(table):
                then = f"{copy} is dropped"
            elif self.pipeline.beside and not table.plan.adopted:
                then = "it has no copy yet"
            elif table.id in self.theirs or table.state == "indexed" or table.keyless:
                then = f"{copy} stays as it is{lacking(self.away.get(table.id, 0))}"
            else:
                then = f"{copy} stays as it is, which is not complete"
            yield table.qualified, f"released: its changes are captured no longer; {then}"
        for name in self.added:
            yield ".".join(name), "captured by setup; snapshot, backfill, schema_sync and replay bring it"
        for table in self.again:
            which = "all its rows"
            if _of(self.pipeline, table).transform == _of(self.before, table).transform:
                which = "the rows that come or go"
            yield table.qualified, f"on the target: {_of(self.pipeline, table)}; {which} are read again"

    def rows(self) -> list[tuple[Subject, str, Any, Any]]:
        """What the journal keeps of it."""
        keys: list[tuple[Subject, str, Any, Any]] = [("key", d.key, d.before, d.after) for d in self.differences]
        done = dict(self.steps())
        states = {table.qualified: {"state": table.state} for table in (*self.out, *self.again)}
        return keys + [("table", table, states.get(table), {"does": does}) for table, does in done.items()]


def look_at(pipeline: Pipeline, source_dsn: str, target_dsn: str, *, drop: bool = False) -> ChangedFile:
    """The same with sessions of its own, without a lock: what reconfigure would do now."""
    name = pipeline.pipeline
    with (
        connect(source_dsn, purpose="reconfigure", pipeline=name) as source,
        connect(target_dsn, purpose="reconfigure", pipeline=name) as target,
    ):
        return look(pipeline, source, target, Journal(target, name).find(), drop=drop)


def look(
    pipeline: Pipeline, source: Session, target: Session, row: PipelineRow | None, *, drop: bool = False
) -> ChangedFile:
    """What the file changes of the run that is recorded. UsageError for what no run under way can take up, and
    PreflightRefused for what the servers say against it; nothing is touched."""
    if row is None:
        raise UsageError(
            f"pipeline {pipeline.pipeline!r} has not been set up on this target",
            todo="run stage setup; or, if the target has moved, point the file at the server that it is now",
        )
    if row.finished_at is not None:
        raise UsageError(
            f"run {row.run} of pipeline {pipeline.pipeline!r} is finished",
            todo="`pgddl run setup --again` takes the file",
        )
    refuse(unsupported(pipeline), under_way=True)
    pipeline = as_set_up(pipeline, row.config)
    before = as_recorded(row.config)
    found = differences(row.config, pipeline.to_json())
    _refuse_phase(row, [one for one in found if later_of(one.key).how != "free"])
    refuse_reset_keys(pipeline, [one.key for one in found])
    _refuse_ends(pipeline, before, source, target, row)
    journal = Journal(target, pipeline.pipeline)
    planned = ChangedFile(pipeline, before, found, drop=drop, under_way=_under_way(journal, row.run))
    tables = journal.tables.of(row.run)
    _refuse_values(pipeline, before, tables)
    if any(one.key == key or one.key.startswith(f"{key}.") for one in found for key in OF_TABLES):
        planned = _with_tables(planned, source, target, tables)
        theirs = {t.id for t in planned.out if is_the_targets_own(pipeline, journal, row.run, t)}
        away = count_pending(target, [t for t in planned.out if t.state != "captured"])
        planned = replace(planned, theirs=theirs, away=away)
        refuse_archives(journal, [t for t in planned.out if planned.drops(t)], "--drop")
        refuse_values_away(journal, [t for t in planned.out if not planned.drops(t)])
    if pipeline.follow.finish and not before.follow.finish:
        refuse([f for f in preflight(pipeline, source, target, ()) if f.code == "firing"], under_way=True)
    return planned


def _under_way(journal: Journal, run: int) -> bool:
    there = journal.conn.execute(queries("journal")["reconfigurations_there"]).fetchone()
    return bool(there and there[0]) and journal.reconfigurations.under_way(run)


def _of(pipeline: Pipeline, table: TableRow) -> Any:
    return pipeline.rows_read.get((table.schema, table.name), NOTHING)


def _refuse_phase(row: PipelineRow, found: Sequence[KeyChange]) -> None:
    keys = ", ".join(one.key for one in found)
    if found and row.cut_over_at is not None:
        raise UsageError(
            f"{keys}: the pipeline has cut over, and what is left of it is about the tables as they were then",
            todo="put the old value back; or end this run (stage cleanup, or revert in place) and begin another",
        )
    if found and row.born_of is not None:
        raise UsageError(
            f"{keys}: the run was born by the cut-over of pipeline {row.born_of!r}, and goes back the way that it came",
            todo="put the old value back (`pgddl way-back` prints the file); or end this run (stage cleanup)",
        )


def _refuse_ends(pipeline: Pipeline, before: Pipeline, source: Session, target: Session, row: PipelineRow) -> None:
    """A source or a target may have moved, and may not be another."""
    if pipeline.in_place != before.in_place:
        raise UsageError(
            "target: a pipeline in place, and one to another server, are two pipelines",
            todo="put the old value back, or give the other one a name of its own",
        )
    now = catalog.server(source)
    if now.system != row.source_system:
        raise UsageError(
            f"the source is another cluster than the one that was set up (system identifier {now.system}, was "
            f"{row.source_system})",
            todo="point it at that cluster, or at a standby of it that was promoted; another one takes `pgddl reset`",
        )
    if clone := clone_beside(source, pipeline.pipeline, now, row):
        raise clone
    if now.timeline < row.source_timeline:
        raise UsageError(
            f"the source is on timeline {now.timeline}, and was followed on timeline {row.source_timeline} already: it "
            "is the server that was left behind",
            todo="point it at the server that was promoted",
        )
    for side, conn in (("source", source), ("target", target)):
        if conn.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone() == (True,):
            raise UsageError(f"the {side} is a standby", todo="promote it, or point the file at the primary")
    journal = change_log.journal_name(catalog.server(target))
    if change_log.journal_of(source, pipeline.pipeline) != journal:
        raise UsageError(
            "source and target do not belong together: the source captures for another target, or not at all",
            todo="point both at the databases that setup has seen, wherever they are by now",
        )


def _refuse_values(pipeline: Pipeline, before: Pipeline, tables: Sequence[TableRow]) -> None:
    """Keys that can be taken up, but not with any value."""
    if before.follow.finish and not pipeline.follow.finish:
        raise UsageError(
            "follow.finish: what it has brought would be brought a second time by a swap",
            todo="leave it on; what is not wanted on the target can be dropped on the source, or `pgddl reset`",
        )
    keyless = [table.qualified for table in tables if table.keyless]
    if keyless and pipeline.tables.keyless != before.tables.keyless:
        raise UsageError(
            f"tables.keyless: {', '.join(keyless)} is to be copied at the swap",
            todo="take it out first (tables.exclude)",
        )
    for table in tables if pipeline.in_place else ():
        name = (table.schema, table.name)
        if name in pipeline.rewrites and pipeline.rewrites[name] != before.rewrites.get(name):
            raise UsageError(
                f"rewrite.{written(*name)}: its copy is made as the file said",
                table=table.qualified,
                todo=f"`pgddl reset --tables {written(*name)}` takes the copy away; then run this again",
            )


def _with_tables(planned: ChangedFile, source: Session, target: Session, tables: Sequence[TableRow]) -> ChangedFile:
    """Which tables come, go, or are read in another way."""
    pipeline, before = planned.pipeline, planned.before
    names, partitions = catalog.table_oids(source), catalog.partitions(source)
    now = matches(pipeline, names, partitions=partitions)
    was = matches(before, names, strict=False)
    recorded = {table.oid: table for table in tables}
    out = [t for n, oid in names.items() if n in was.rows and n not in now.rows and (t := recorded.get(oid))]
    added = [n for n in now.rows if n not in was.rows and names[n] not in recorded]
    stays = [t for t in tables if t not in out]
    again = [t for t in stays if _of(pipeline, t) != _of(before, t)]
    _refuse_structure(target, now, was)
    described = catalog.describe_all(source)
    about = {*added, *((t.schema, t.name) for t in again)}
    check_columns(pipeline, {n: [c.name for c in t.columns] for n, t in described.items() if n in about})
    for name in sorted(about & described.keys()):
        left_out = next((t.plan.columns.left_out for t in again if (t.schema, t.name) == name), None)
        first_plan(pipeline, described[name], left_out)
    _refuse_not_told_there(pipeline, target, again, described)
    if about:
        found = preflight(pipeline, source, target, sorted(about))
        new = [*added, *(part for part, root in partitions.items() if root in added)]
        refuse([f for f in found if _counts(f, new, was.schema_only)], under_way=True)
    if planned.drop and (kept := [t.qualified for t in out if (t.schema, t.name) in now.schema_only]):
        raise UsageError(
            f"--drop: the structure of {', '.join(kept)} stays, by tables.schema_only", todo="run it without --drop"
        )
    return replace(planned, added=added, out=out, again=again)


def _refuse_not_told_there(
    pipeline: Pipeline, target: Session, again: Sequence[TableRow], described: Mapping[Name, Table]
) -> None:
    """Where the target's own rows are still to be told from the source's, by the condition that there is now."""
    if pipeline.tables.keep_extra is False:
        return
    open_ = [t for t in again if t.plan.adopted == "uncompared" and (t.schema, t.name) in described]
    there = catalog.oids_of(target, [(t.plan.copy_schema, t.plan.copy_name) for t in open_])
    on_target = catalog.describe(target, there.values())
    for table in open_:
        source, oid = described[table.schema, table.name], there.get((table.plan.copy_schema, table.plan.copy_name), 0)
        plan = first_plan(pipeline, source, table.plan.columns.left_out)
        if plan.where and oid in on_target and not condition_there(plan, source.types, on_target[oid].types):
            raise PreflightRefused(NOT_TOLD_THERE, table=table.qualified, todo=f"{TELL_THERE}; then run this again")


def _counts(finding: Finding, added: Collection[Name], structure: Collection[Name]) -> bool:
    """Whether what preflight says is about what the file changes, and no work of the run itself."""
    if finding.code == "expression":
        return True
    if finding.code == "existing" and finding.table in {written(*name) for name in structure}:
        return False
    return finding.table in {written(*name) for name in added}


def _refuse_structure(target: Session, now: Selection, was: Selection) -> None:
    """Structure alone comes by the snapshot, and by DDL from then on."""
    new = [name for name in now.schema_only if name not in was.schema_only and name not in was.rows]
    for name in new:
        if catalog.oid_of(target, *name) is None:
            raise UsageError(
                f"tables.schema_only: {written(*name)} is not on the target, and the structure of tables without rows "
                "was dumped by the snapshot",
                todo=f"pg_dump --schema-only --table={written(*name)} to the target, then run this again",
            )


def take_up(context: Context, planned: ChangedFile) -> None:
    """Records the file, with all that it changes, in one transaction; `context` is of the new file."""
    journal, run, out = context.journal, context.journal.run, planned.out
    if context.in_place and out:
        take_back(context, out)  # writers may not write to a copy that goes
    dropped = [table for table in out if planned.drops(table)]
    if dropped and planned.before.follow.finish:
        with context.fenced("reconfigure.before_look_again_commit"):  # what is taken back, and stays, comes again
            journal.finishes.look_again(run)
        take_back_finished(planned.before, journal, run, {(t.schema, t.name) for t in dropped})

    def attempt() -> None:
        with writers_wait(), context.fenced("reconfigure.before_taken_commit"):
            if journal.lock().cut_over_at is not None:
                raise UsageError("the pipeline has cut over just now", todo="put the old values back")
            limit_lock_wait(context.target, context.pipeline.swap.lock_timeout)
            ddl = DdlJournal(context.target, context.name, run)
            for event_id in _events_about(context, ddl, out):
                ddl.set_status(event_id, "skipped", TAKEN_OUT)
            for table in out:
                if context.in_place:  # its log goes here and now, so its triggers have to
                    change_log.stop(context.source, context.name, table.oid)
                if table in dropped:
                    context.target.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table.plan.copy))
                forget_keys(context.target, table)
                journal.tables.forget(table)
            if out and planned.before.follow.finish:
                _keep_what_was_brought(context, {(t.schema, t.name) for t in out})
            if planned.added or out:
                ddl.set_left_out(None)  # what needs these tables is to be seen anew
            journal.set_config(context.pipeline.to_json())
            journal.reconfigurations.add(run, planned.rows())

    try:
        with_tries(context.pipeline.swap, "taking tables out", attempt, again=RENAMED)
    except pg.DependentObjectsStillExist as error:
        raise StageFailed(
            f"what was to be dropped is needed: {error.diag.message_primary} ({error.diag.message_detail})",
            todo="drop on the target what depends on it, or run this without --drop; nothing has been changed",
        ) from None
    for one in planned.differences:
        context.say(f"{one.key}: {shown(one.before)} → {shown(one.after)}")
    for table, does in planned.steps():
        context.say(f"{table}: {does}")


def shown(value: Any) -> str:
    """A value of a file as a person reads it."""
    return "–" if value is None else ", ".join(map(str, value)) or "[]" if isinstance(value, list) else str(value)


def _events_about(context: Context, ddl: DdlJournal, out: Sequence[TableRow]) -> list[int]:
    """DDL that is not over and is about tables that go, and about none that stays."""
    if not out:
        return []
    names: set[Name] = set()
    for table in out:
        parts = context.source.execute(queries("swap")["partitions_of"], [table.oid]).fetchall()
        names |= {(table.schema, table.name), *((schema, name) for schema, name in parts)}
    gone = {table.id for table in out}
    stays = {(t.schema, t.name) for t in context.journal.tables.of(context.journal.run) if t.id not in gone}
    return [row.id for row in ddl.waiting() if {*row.touches} & names and not {*row.touches} & stays]


def _keep_what_was_brought(context: Context, gone: Collection[Name]) -> None:
    """What is on tables that are left alone stays there; foreign keys of others to them go, as nobody keeps what they
    say true."""
    journal, run = context.journal, context.journal.run
    events = [event for event in journal.finishes.events(run) if DdlEvent.from_json(event).table not in gone]
    if journal.finishes.last(run) is not None:
        journal.finishes.set_events(run, "", events)


def release(context: Context) -> int:
    """Drops the capture of what the file has taken out; returns of how many tables."""
    names = catalog.table_oids(context.source)
    wanted = {names[name] for name in matches(context.pipeline, names, strict=False).rows}
    known = {table.oid for table in context.journal.tables.of(context.journal.run)}
    released = 0
    for oid in change_log.captured_roots(context.source, context.name):
        if oid not in known | wanted:
            context.check_fence()
            failpoint("reconfigure.before_release", context.source)
            stop_capture_of(context.source, context.pipeline, oid)
            released += 1
    return released


def end(context: Context) -> None:
    """All that follows from it is done."""
    with context.fenced("reconfigure.before_done_commit"):
        context.journal.reconfigurations.set_done(context.journal.run)
