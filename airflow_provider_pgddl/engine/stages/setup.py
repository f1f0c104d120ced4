"""setup: preflight, migrations, capture. When it is done every later write is in the change log, and no row has been
read yet."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from airflow_provider_pgddl.engine.capture import change_log, ddl_log, slot_log
from airflow_provider_pgddl.engine.capture.namesakes import refuse_namesake
from airflow_provider_pgddl.engine.commands import reconfigure
from airflow_provider_pgddl.engine.errors import PreflightRefused, Retry, TableChanged, UsageError, about_whole_pipeline
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following import failover
from airflow_provider_pgddl.engine.following.adopted_tables import different
from airflow_provider_pgddl.engine.following.ddl import LOOKS, captures_ddl, follow_ddl, transport
from airflow_provider_pgddl.engine.following.plans import first_plan
from airflow_provider_pgddl.engine.following.schema_comparison import KEYLESS
from airflow_provider_pgddl.engine.following.table_capture import (
    TableCapture,
    note_keyless,
    stop_capture_of,
    take_back_capture,
)
from airflow_provider_pgddl.engine.job.context import Context, workers_to_have
from airflow_provider_pgddl.engine.job.executor_dsns import executor_dsns
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.job.same_config import require_same_config
from airflow_provider_pgddl.engine.job.slot_receiver import wait_for_older_transactions
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.parallel.executor_settings import Settings
from airflow_provider_pgddl.engine.parallel.spark_settings import is_local
from airflow_provider_pgddl.engine.pipeline.contradictions import refuse_names
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.selection import check_columns, matches
from airflow_provider_pgddl.engine.pipeline.way_back import of_a_birth
from airflow_provider_pgddl.engine.preflight import preflight
from airflow_provider_pgddl.engine.preflight.executors import executors
from airflow_provider_pgddl.engine.preflight.findings import refuse
from airflow_provider_pgddl.engine.progress import Steps, say
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect, keeping_plans
from airflow_provider_pgddl.engine.server.strong_locks import with_tries
from airflow_provider_pgddl.engine.swapping import way_back_across
from airflow_provider_pgddl.engine.swapping.fence import lower_left

RECORDED_EVERY = 1.0  # seconds, in which a table that waits for its writers keeps others from being recorded


def prepare(job: Job, held: Lease, stack: ExitStack) -> Context:
    """Lock, preflight, migrations, token, record: nothing is created before preflight has passed."""
    pipeline, name = job.pipeline, job.pipeline.pipeline
    if job.tables is not None:
        raise about_whole_pipeline("setup")
    stack.enter_context(held)
    with (
        connect(job.conninfo("source"), purpose="preflight", pipeline=name) as source,
        connect(job.conninfo("target"), purpose="preflight", pipeline=name) as target,
    ):
        row = Journal(target, name).find()
        if row is not None and row.finished_at is not None and not job.again:
            raise Retry("another run of the pipeline has finished it just now", todo="run the stage again")
        planned = None  # of a pipeline that is begun now, there is nothing to change
        if job.reconfigure and row is not None and row.finished_at is None:
            planned = reconfigure.look(pipeline, source, target, row, drop=job.drop)
        if row is None or row.finished_at is not None:
            _check_before_touching(pipeline, source, target)
            if job.master is not None and not is_local(job.master):
                _check_executors(job, source, target)
        elif planned is not None:
            pipeline = planned.pipeline
        else:
            pipeline = require_same_config(pipeline, row.config)
            failover.refuse_other_source(source, name, row)
            if row.born_of is not None:
                pipeline = of_a_birth(pipeline)
        journal_name = change_log.journal_name(catalog.server(target))
        change_log.refuse_other_journal(source, name, journal_name)
        if not pipeline.in_place:
            refuse_namesake(source, target, name)
        _migrate(pipeline, target, "journal")
        failpoint("setup.before_core", source)
        _migrate(pipeline, source, "core")
        if pipeline.capture.identities:
            failpoint("setup.before_injector", source)
            _migrate(pipeline, source, "injector")
        failpoint("setup.before_name", source)
        change_log.register_pipeline(source, name, journal_name)
        if migrations.state(source, "core")["pending"]:
            raise Retry("the last pipeline of this source has just taken its capture away", todo="run it again")
    held.take(job.conninfo("source"))
    context = Context(replace(job, pipeline=pipeline), held, stack)
    way_back_across.begin(context)
    if row is not None and row.finished_at is None:
        if lost := way_back_across.lost_cut_over(context):
            raise lost
        lower_left(context)  # while the tables that it stands on are known
    if planned is None:
        _record_pipeline(context)
    else:
        reconfigure.take_up(context, planned)
    failover.look(context)
    return context


def _migrate(pipeline: Pipeline, conn: Session, set_name: str) -> None:
    """Many short tries: our tables are read by every DDL of clients, to the end of its transaction, and all others'
    would queue behind us."""
    timeout = pipeline.swap.lock_timeout
    with_tries(pipeline.swap, f"bringing set {set_name} up to date", lambda: migrations.apply(conn, set_name, timeout))


def _check_before_touching(pipeline: Pipeline, source: Session, target: Session) -> None:
    refuse_names(pipeline)
    selection = matches(pipeline, catalog.table_names(source), partitions=catalog.partitions(source))
    described = catalog.describe_all(source)
    check_columns(pipeline, {name: [c.name for c in t.columns] for name, t in described.items()})
    refuse([*preflight(pipeline, source, target, selection.rows), *different(pipeline, source, target, selection.rows)])
    for name in selection.rows:
        first_plan(pipeline, described[name])


def _check_executors(job: Job, source: Session, target: Session) -> None:
    """Whether those of a cluster can do the work that is to come: as many as there will be, as each opens a session."""
    told = job.pipeline.spark
    settings = Settings(told.wait, told.needs, partial(say, job.stage))
    workers = workers_to_have(job.pipeline, source, target, settings.say)
    _, findings = executors(job.pipeline.pipeline, executor_dsns(job), workers, settings)
    refuse(findings)


def run(context: Context) -> StageResult:
    _start_ddl_capture(context)
    if context.pipeline.by_slot:
        slot_log.start_slot(context.source, context.target, context.name, context.pipeline.capture.failover)
    changed = context.journal.reconfigurations.under_way(context.journal.run)
    if changed:
        reconfigure.release(context)
    started = _start_capture(context)
    if context.journal.stage_runs.done(context.journal.run, "snapshot"):
        follow_ddl(context, look=True)
    failpoint("setup.before_older_transactions")
    wait_for_older_transactions(context)
    if changed:
        reconfigure.end(context)
    tables = context.tables()
    state = (
        "done"
        if started or changed or not context.journal.stage_runs.done(context.journal.run, "setup")
        else "nothing_to_do"
    )
    return context.result(state, {t.qualified: {"key": list(t.plan.key.columns)} for t in tables},
                          captured=sum(not t.keyless for t in tables))  # fmt: skip


def _record_pipeline(context: Context) -> None:
    pipeline, journal = context.pipeline, context.journal
    job, config = "rewrite" if pipeline.in_place else "migrate", pipeline.to_json()
    row = journal.find()
    with context.fenced("setup.before_pipeline_commit"):
        if row is None:
            journal.record(job, config, catalog.server(context.source))
        elif row.finished_at is not None:
            journal.next_run(job, config, catalog.server(context.source))
        else:
            journal.set_config(config)


def _start_ddl_capture(context: Context) -> None:
    """Before any table is looked at, so that no change of one can pass between the two."""
    if captures_ddl(context):
        failover = context.pipeline.capture.failover
        ddl_log.start(context.source, context.name, transport(context), failover=failover)


def _start_capture(context: Context) -> int:
    """How many tables are captured that were not. What is altered between the look at it and its lock is looked at once
    more with whatever else has come."""
    started = 0
    for last in (False,) * (LOOKS - 1) + (True,):
        with keeping_plans(context.source):
            more, changed = _capture_new(context)
        started += more
        if changed is None:
            break
        if last:
            raise changed
    return started


def _capture_new(context: Context) -> tuple[int, TableChanged | None]:
    """How many tables are captured, or known to have no key, that were not; and whether one was altered on the way."""
    journal, run = context.journal, context.journal.run
    known = {t.oid: (t.schema, t.name) for t in journal.tables.of(run)}  # one may have got another name since
    half_made = change_log.captured_roots(context.source, context.name).keys() - known.keys()
    selection = matches(context.pipeline, catalog.table_names(context.source), strict=False)
    oids = catalog.oids_of(context.source, selection.rows)
    fresh = set(oids.values()) - known.keys()
    keyed = {oid for oid, table in catalog.describe(context.source, fresh).items() if table.key is not None}
    if not journal.stage_runs.done(run, "snapshot"):  # nor is there a way back yet, of which the journal keeps no table
        for oid in half_made - fresh:
            context.check_fence()
            stop_capture_of(context.source, context.pipeline, oid)
    noted, to_capture, taken = 0, list[Name](), set(known.values())
    for name in selection.rows:
        oid = oids.get(name, 0)
        if oid not in fresh:
            continue  # dropped in this moment, or captured
        if name in taken:
            context.say(f"{'.'.join(name)}: waits until what became of the table that had its name is followed")
            continue
        keyless = None if oid in keyed else _without_key(context.source, oid)
        if keyless is None:
            to_capture.append(name)
        elif context.pipeline.tables.keyless == "copy_at_swap":
            note_keyless(context, keyless)
            noted += 1
        elif captures_ddl(context) and journal.stage_runs.done(run, "snapshot"):
            continue  # stopped alone by what follows DDL, until it has one
        elif oid in catalog.still_without_key(context.source, [oid]):
            raise PreflightRefused(KEYLESS, table=".".join(name), todo="then run stage setup again")
        else:
            to_capture.append(name)
    started, changed = _capture_each(context, {name: oids[name] for name in to_capture}, {*known}, half_made)
    return noted + started, changed


def _capture_each(
    context: Context, chosen: Mapping[Name, int], known: set[int], half_made: Collection[int]
) -> tuple[int, TableChanged | None]:
    """Capture of each table in a transaction of its own, as its writers wait for that; what needs no lock of theirs is
    done for many at once. What a killed run has made without recording it is made again: no row has been read yet, and
    the table may have changed since."""
    started, changed, names = 0, None, list(chosen)
    if names:
        _refuse_lost_names(context)
    steps = Steps(context.say, "capturing", "tables")
    for first in range(0, len(names), change_log.TOGETHER):
        # As they are called now: by its name the file says what is left out of each.
        listed = names[first : first + change_log.TOGETHER]
        now = catalog.oids_of(context.source, listed)
        moved = catalog.describe(context.source, [chosen[name] for name in listed if now.get(name) != chosen[name]])
        for table in moved.values():
            changed = TableChanged("was renamed just now", table=table.qualified, todo="run it again")
        group = {now[name]: name for name in listed if name in now and now[name] not in known}
        known.update(group)
        captured: list[tuple[Table, str]] = []
        recorded = time.monotonic()
        try:
            context.check_fence()
            for oid in group.keys() & half_made:
                context.check_fence()
                stop_capture_of(context.source, context.pipeline, oid)
            capture = TableCapture(context, group)
            for number, (oid, name) in enumerate(group.items(), first):
                steps.at(number, len(names), ".".join(name))
                context.check_fence()
                try:
                    captured.append(capture.of(oid))
                except TableChanged as error:
                    take_back_capture(context, oid)
                    if catalog.describe(context.source, [oid]):  # else it is simply gone
                        changed = error
                if time.monotonic() - recorded > RECORDED_EVERY:
                    started += _record(context, captured)
                    recorded = time.monotonic()
        finally:  # those before one that fails as well
            started += _record(context, captured)
    return started, changed


def _record(context: Context, captured: list[tuple[Table, str]]) -> int:
    """Takes them out of the list; how many there were."""
    if not captured:
        return 0
    with context.fenced("setup.before_table_commit"):
        rows = [(table, log, first_plan(context.pipeline, table)) for table, log in captured]
        context.journal.tables.add_many(context.journal.run, rows)
    for table, _ in captured:
        key = ", ".join(table.key.columns) if table.key else ""
        context.say(f"{table.qualified}: changes are captured from here on, key ({key})")
    captured.clear()
    return len(rows)


def _without_key(source: Session, oid: int) -> Table | None:
    """The table, if it is there and has no key."""
    table = catalog.describe(source, [oid]).get(oid)
    return table if table is not None and table.key is None else None


def _refuse_lost_names(context: Context) -> None:
    """Of a table that is captured anew, nobody remembers which columns are left out: one that is called otherwise by
    now than in the file would be copied."""
    columns = {name: [c.name for c in t.columns] for name, t in catalog.describe_all(context.source).items()}
    known = {(t.schema, t.name) for t in context.tables()}
    check_columns(context.pipeline, {name: listed for name, listed in columns.items() if name not in known})
    if lost := context.pipeline.skipped_columns.keys() - columns.keys():
        raise UsageError(
            f"skip_columns: {'.'.join(min(lost))} is not on the source; if it has another name, nothing would be left "
            "out of it",
            todo="name it in the pipeline file as it is called now, or take it out of there",
        )
