"""The way back of a cut-over: a pipeline of its own, from the new server to the old one, born with every copy complete.

Behind the fence both sides are equal, so nothing has to be copied. Before the fence goes up everything is made: the
journal on the old server, and on the new one capture of rows and DDL. Until the cut-over has committed, and the mark of
the birth with it, the run is void. What the way there still writes to the new server comes into the new log as well:
the first window back reads it again and finds the same rows, so no row depends on which of the two was first. Values of
columns that the old server alone has stand at the keys of the birth, and follow nothing from before it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import psycopg

from airflow_provider_pgddl.engine import preflight
from airflow_provider_pgddl.engine.capture import change_log, ddl_log, fence, slot_log
from airflow_provider_pgddl.engine.capture.namesakes import refuse_namesake
from airflow_provider_pgddl.engine.errors import PgddlError, PreflightRefused, Retry, StageFailed, UsageError
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.ddl import captures_ddl, note_late, transport
from airflow_provider_pgddl.engine.following.plans import first_plan
from airflow_provider_pgddl.engine.following.reconcile import take_copies
from airflow_provider_pgddl.engine.following.source_dump import dump_unchanged, schema_digest, steps_across
from airflow_provider_pgddl.engine.following.table_capture import (
    TableCapture,
    forget_capture,
    note_keyless,
    refuse_late_changes,
    stop_capture,
    stop_capture_of,
)
from airflow_provider_pgddl.engine.job.context import Context, patiently
from airflow_provider_pgddl.engine.job.slot_receiver import wait_for_older_transactions
from airflow_provider_pgddl.engine.journal import lease, migrations
from airflow_provider_pgddl.engine.journal.births import Births, Run, way_back_that_lives
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.way_back import way_back_of
from airflow_provider_pgddl.engine.preflight import way_back as way_back_checks
from airflow_provider_pgddl.engine.preflight.findings import refuse
from airflow_provider_pgddl.engine.rights import foreign_code
from airflow_provider_pgddl.engine.rows.pending_keys import forget_keys
from airflow_provider_pgddl.engine.server import catalog, credentials, schema_reading
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.encodings import Verbatim, as_is
from airflow_provider_pgddl.engine.server.strong_locks import lock_all
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.swapping.lost_fence import close_behind, held_for, keep_closed

# What the cut-over has done for the run that is born by it.
DONE = ("setup", "snapshot", "backfill", "schema_sync")
THERE = "the old server has it: it came from there"


class WayBackAcross:
    """`prepare` before the fence, `is_ready` behind it, `note_birth` in the cut-over's transaction."""

    def __init__(self, context: Context):
        self._context = context
        self._digest: str | None = None
        self.name = str(context.pipeline.swap.way_back)
        self._run = 0

    def prepare(self, tables: Sequence[TableRow]) -> None:
        """All of it, idempotent: anew where the target's schema has changed since the last try."""
        if self._digest is not None and self.is_ready():
            return
        context = self._context
        pipeline = _pipeline(context, tables)
        self.take_away()
        names = [_copy(t) for t in tables]
        refuse(preflight.what_keeps_from_going_back(pipeline, context.source, context.target, names), under_way=True)
        journal_name = change_log.journal_name(catalog.server(context.source))
        change_log.refuse_other_journal(context.target, self.name, journal_name)
        refuse_namesake(context.target, context.source, self.name)
        migrations.apply(context.source, "journal")
        migrations.apply(context.target, "core")
        if pipeline.capture.identities:
            migrations.apply(context.target, "injector")
        change_log.register_pipeline(context.target, self.name, journal_name)
        with held_for(context, pipeline) as held:
            births = Births(context.source, self.name)
            with lease.fenced(context.source, held.fence, "way_back.before_unborn_commit"):
                _forget_former_keys(context, births)
                self._run = births.make_unborn(pipeline.to_json(), catalog.server(context.target), context.name)
            with _opened(context, pipeline, held) as back:
                _capture(back, names)
                _adopt(back)
                with back.fenced("way_back.before_prepared_commit"):
                    births_there = Births(back.target, self.name)
                    births_there.stages_done(self._run, DONE, held.token, context.name)
                self._digest = schema_digest(back, back.source)
        context.say(f"the way back is prepared: pipeline {self.name}, void until the cut-over")

    def is_ready(self) -> bool:
        """Whether the target is still what it was prepared for."""
        return schema_digest(self._context, self._context.target) == self._digest

    def note_birth(self) -> None:
        """Last in the transaction of the cut-over, on the target."""
        change_log.note_birth(self._context.target, self.name, self._run)

    def take_away(self) -> None:
        """What was prepared for a cut-over that has not come about, by whichever process."""
        context = self._context
        found = Births(context.source, self.name).find()
        if found is None or not found.unborn:
            _refuse_taken(context, self.name)
        else:
            unmake(self.name, context.source, context.source_dsn, context.target)
        self._digest = None


@contextmanager
def prepared(context: Context) -> Iterator[WayBackAcross | None]:
    """Around the tries of a cut-over: None where there is to be no way back. What fails takes away what was prepared;
    while nobody can tell whether it happened, nothing is."""
    if context.pipeline.swap.way_back is None or context.job.dry_run:
        yield None
        return
    way_back = WayBackAcross(context)
    try:
        yield way_back
    except BaseException:
        try:
            if context.row().cut_over_at is None:
                way_back.take_away()
        except (PgddlError, psycopg.Error) as error:
            context.say(f"the way back stays prepared, and void, until swap is run again: {error}")
        raise


def unmake(name: str, old: Session, old_dsn: str, new: Session) -> None:
    """Takes a run that is void away from both servers."""
    migrations.apply(old, "journal")  # it may be from before an upgrade, which setup has not told it of
    journal = Journal(old, name)
    row = journal.row()
    pipeline = load_pipeline(row.config)
    with Lease(old_dsn, name, "swap", None) as held:
        held.take(credentials.dsn_of(new))
        for oid in change_log.captured_roots(new, name):
            stop_capture_of(new, pipeline, oid)
        ddl_log.stop(new, name)
        slot_log.stop_slot(new, name)
        with old.transaction():
            lease.check(old, held.fence)  # first: the journal forgets the token as well
            for table in journal.tables.of(row.run):
                forget_keys(old, table)
            Births(old, name).unmake(row.run)
            failpoint("way_back.before_unmade_commit", old)
        if Births(old, name).find() is None:
            forget_capture(new, name)


def hand_over(context: Context) -> None:
    """Behind the cut-over, and again by whoever finds it unfinished: what has come with it ends, what goes back begins.

    Capture on the old server ends once its log is shown to be empty: what windows write there from now on is no change
    of an application. Only then may the first of them run."""
    if context.in_place or (name := _way_back_of(context)) is None:
        return
    tables = context.tables()
    close_behind(context, name)
    note_late(context)
    if change_log.captured_roots(context.source, context.name):
        context.receive()
        refuse_late_changes(context.source, context.logs, context.name, tables)
        stop_capture(context, tables)
    ddl_log.stop(context.source, context.name)
    slot_log.stop_slot(context.source, context.name)
    found = Births(context.source, name).find()
    if found is not None and found.unborn:
        pipeline = load_pipeline(Journal(context.source, name).row().config)
        with held_for(context, pipeline) as held, _opened(context, pipeline, held) as back:
            begin(back)


def begin(context: Context) -> None:
    """First of all in every stage: a run that is the way back of another is one like any other from its birth on.
    UsageError while it is void."""
    births = Births(context.target, context.name)
    found = births.find()
    if found is None or found.of is None:
        return
    if not found.unborn:
        if is_alive(found, found.of):
            keep_closed(context, found.of)
        return
    birth = change_log.birth(context.source, context.name)
    if birth is None or birth.run != found.run:
        raise UsageError(
            f"pipeline {context.name!r} is the way back of {found.of!r}, which has not cut over",
            todo=f"run stage swap of {found.of} first; until then there is nothing to go back from",
        )
    of = str(found.of)
    if change_log.captured_roots(context.target, of) or ddl_log.is_on(context.target, of):
        raise Retry(
            f"the swap of pipeline {found.of!r} has not ended its capture yet",
            todo=f"run stage swap of {found.of} again, which does what is left",
        )
    with context.fenced("way_back.before_birth_commit"):
        births.be_born(birth)
    context.say(f"born complete by the cut-over of {found.of}: nothing has to be copied")


def lost_cut_over(context: Context) -> StageFailed | None:
    """Where the server that applications had cut over to was failed over to a state from before that: neither way may
    go on. The server that was left has all that was committed up to the cut-over, and what has come back since; rows
    of the other one would take its place, and its fence would fall while applications write elsewhere."""
    name = context.name
    found = Births(context.target, name).find()
    if found is not None and found.of is not None and is_alive(found, found.of):
        mark = change_log.birth(context.source, name)
        return _lost("source", name, found.of) if mark is None or mark.run != found.run else None
    if context.in_place or context.row().cut_over_at is not None or (way_back := _way_back_of(context)) is None:
        return None
    return _lost("target", way_back, name) if is_alive(Births(context.source, way_back).find(), name) else None


def is_alive(way_back: Run | None, of: str) -> bool:
    """Whether it lives: then the cut-over of `of` has been, whatever the other server says."""
    return way_back is not None and way_back.of == of and not (
        way_back.unborn or way_back.cut_over or way_back.finished
    )  # fmt: skip


def _lost(side: str, way_back: str, of: str) -> StageFailed:
    return StageFailed(
        f"the {side} has lost the cut-over of pipeline {of!r}, by which {way_back!r} was born: it was failed over to a "
        "state from before that",
        todo="the server that applications had left has all that was committed until then, and what has come back "
        "since; it stays fenced. Look, by hand, what applications have written elsewhere since the failover. Then run "
        f"stage cleanup of {way_back}, which ends it, and `pgddl reset` {of}, which takes the fence down; {of} begins "
        "anew from setup",
    )


def lower_fence_there(context: Context) -> None:
    """In the transaction that goes back, on the old server: it takes writes again at this very commit."""
    of = born_of(context)
    fenced = fence.fenced(context.target, of) if of else []
    if of and fenced:
        lock_all(context.target, fenced, "ACCESS EXCLUSIVE", context.pipeline.swap.lock_timeout)
        for relation in fenced:
            fence.lower_fence(context.target, of, relation)


def end_way_there(context: Context) -> None:
    """Once applications are back: the pipeline whose way back this was is over. Where that one is this one's own way
    back, its next run has been born by now."""
    of = born_of(context)
    found = Births(context.source, of).find() if of else None
    if of is None or found is None or not found.cut_over or found.finished:
        return
    pipeline = load_pipeline(Journal(context.source, of).row().config)
    with (
        held_for(context, pipeline) as held,
        lease.fenced(context.source, held.fence, "way_back.before_gone_back_commit"),
    ):
        for table in Journal(context.source, of).tables.of(found.run):
            forget_keys(context.source, table)
        Births(context.source, of).end_gone_back()
    context.say(f"pipeline {of} has gone back")


def born_of(context: Context) -> str | None:
    """The pipeline whose way back this is."""
    found = Births(context.target, context.name).find()
    return found.of if found else None


def living(context: Context) -> str | None:
    """The pipeline that is this one's way back, from its cut-over on and while it lives."""
    if context.in_place or context.row().cut_over_at is None or (name := _way_back_of(context)) is None:
        return None
    found = Births(context.source, name).find()
    return name if found is not None and found.of == context.name and not found.finished else None


def _way_back_of(context: Context) -> str | None:
    """The one that lives: the file may have another name by now, or none. Else, for one that does not live yet or any
    more, by the file."""
    return way_back_that_lives(context.source, context.name) or context.pipeline.swap.way_back


# --- preparing --------------------------------------------------------------------------------------------------------


def _pipeline(context: Context, tables: Sequence[TableRow]) -> Pipeline:
    """With what is to become of columns that are not the same on both sides."""
    there = schema_reading.read(context.source, [(t.schema, t.name) for t in tables])
    here = schema_reading.read(context.target, [_copy(t) for t in tables])
    only, retyped = dict[tuple[str, str], list[str]](), dict[tuple[str, str], dict[str, str]]()
    for table in tables:
        old, new = there.tables.get((table.schema, table.name)), here.tables.get(_copy(table))
        if old is None or new is None:
            raise Retry("was dropped or renamed just now", table=table.qualified, todo="run stage swap again")
        for column in new.columns:
            was = old.column(column.name)
            if was is None:
                only.setdefault(_copy(table), []).append(column.name)
            elif was.type != column.type and column.name in table.plan.columns.names:
                if way_back_checks.what_comes_back_differs(was.type, column.type):
                    what = way_back_checks.said(column.name, was.type, column.type)
                    raise PreflightRefused(what, table=table.qualified, todo=way_back_checks.TODO)
                retyped.setdefault(_copy(table), {})[column.name] = was.type.text
    return way_back_of(context.pipeline, only, retyped)


def _copy(table: TableRow) -> Name:
    return table.plan.copy_schema, table.plan.copy_name


@contextmanager
def _opened(context: Context, pipeline: Pipeline, held: Lease) -> Iterator[Context]:
    """The other pipeline as its own stages see it."""
    ends = {"source": "target", "target": "source"}
    secrets = {ends[side]: variable for side, variable in context.job.secrets.items()}
    job = replace(context.job, pipeline=pipeline, id=uuid.uuid4().hex, tables=None, secrets=secrets)
    with ExitStack() as stack:
        yield Context(job, held, stack)


def _refuse_taken(context: Context, name: str) -> None:
    """A pipeline of this name that is under way on the old server is somebody else's."""
    found = Births(context.source, name).find()
    over = found is None or found.finished or (found.of == context.name and found.cut_over)
    mine = found is not None and context.row().born_of == name and found.cut_over
    if not (over or mine):
        raise UsageError(
            f"the source has a pipeline {name!r} already, which is under way",
            todo="give swap.way_back another name, or end that one first",
        )


def _forget_former_keys(context: Context, births: Births) -> None:
    """What an earlier run of it, which is over, has kept by key."""
    found, journal = births.find(), Journal(context.source, births.pipeline)
    tables = journal.tables.of(found.run) if found else []
    for table in tables:
        forget_keys(context.source, table)
    journal.tables.set_state("cleaned", [t.id for t in tables])


def _capture(back: Context, tables: Sequence[Name]) -> None:
    """As setup does: DDL first, then each table in a transaction of its own."""
    failover = back.pipeline.capture.failover
    if captures_ddl(back):
        ddl_log.start(back.source, back.name, transport(back), failover=failover)
    if back.pipeline.by_slot:
        slot_log.start_slot(back.source, back.target, back.name, failover)
    oids = catalog.oids_of(back.source, tables)
    described = catalog.describe(back.source, oids.values())
    keyed: dict[int, Name | None] = {}
    for (schema, name), oid in oids.items():
        if oid not in described:
            raise Retry("was dropped just now", table=f"{schema}.{name}", todo="run stage swap again")
        if described[oid].key is None:
            note_keyless(back, described[oid])
            continue
        keyed[oid] = None  # what the file leaves out is named as on the other server
    capture = TableCapture(back, keyed)
    for oid in keyed:
        table, log = capture.of(oid)
        with back.fenced("way_back.before_table_commit"):  # each: what takes them back knows them by the journal
            back.journal.tables.add(back.journal.run, table, log, first_plan(back.pipeline, table))
    wait_for_older_transactions(back)


def _adopt(back: Context) -> None:
    """The old server's tables are complete copies. PreflightRefused where they could not take what comes back."""
    steps = list(steps_across(back, dump_unchanged(back, None)))
    tables = back.tables()
    ids = {(t.schema, t.name): t.id for t in tables}
    with back.fenced("way_back.before_statements_commit"), back.target.cursor() as cursor:
        cursor.executemany(
            queries("journal")["insert_event"],
            [
                [
                    back.name,
                    back.journal.run,
                    number,
                    step.event.phase,
                    ids.get(step.event.table) if step.event.table else None,
                    as_is(step.event.to_json()),
                    Verbatim(step.statement),
                    "skipped",
                    step.note or THERE,
                ]
                for number, step in enumerate(steps)
            ],
        )
    take_copies(back, tables)
    for name, findings in back.journal.blocked_tables.mismatches().items():
        raise PreflightRefused(
            f"the way back: {'; '.join(findings)}",
            table=name,
            todo="make both sides alike, or leave swap.way_back out",
        )
    patiently(back, partial(_refuse_traps, back))
    with back.fenced("way_back.before_indexed_commit"):
        back.journal.tables.set_state("indexed", [t.id for t in tables])


def _refuse_traps(back: Context) -> None:
    """What on the old server's tables would act on rows that come back, and no window keeps from it."""
    plans = {t.id: t.plan for t in back.tables() if not t.keyless}
    with back.target.transaction(force_rollback=True):
        _, stops = foreign_code.hold_code_of_copies(back.target, plans)
    for found, why in stops.items():
        raise PreflightRefused(
            f"the way back: {'; '.join(why)}",
            table=plans[found].qualified,
            todo="put it right on the source, or leave swap.way_back out",
        )
