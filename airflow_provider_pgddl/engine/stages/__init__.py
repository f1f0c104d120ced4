"""The stages, exactly one module each, and the one way to run them.

What more than one of them does belongs to `following`; the transaction of a swap, to `swapping`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.commands.check import check
from airflow_provider_pgddl.engine.commands.control import cancel, pause, resume
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.commands.status import status
from airflow_provider_pgddl.engine.errors import Retry, UsageError
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.schema_gate import SYNCING, gate, shown_already
from airflow_provider_pgddl.engine.job import at_work
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.job.idle import BEFORE_SWAP, finished
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.job.same_config import require_same_config
from airflow_provider_pgddl.engine.job.stage_names import ALL_STAGES, STAGES
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal, PipelineRow
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import table_name
from airflow_provider_pgddl.engine.pipeline.way_back import of_a_birth
from airflow_provider_pgddl.engine.server.lock_timeout import waits_measured
from airflow_provider_pgddl.engine.server.strong_locks import tries_told
from airflow_provider_pgddl.engine.swapping import way_back_across
from airflow_provider_pgddl.engine.swapping.fence import lower_left

__all__ = [
    "ALL_STAGES", "STAGES", "StageResult", "cancel", "check", "gate", "pause", "plan", "reset",
    "resume", "run", "shown_already", "status",
]  # fmt: skip


def plan(pipeline: Pipeline, source_dsn: str, target_dsn: str) -> dict[str, Any]:
    """See `commands.plan.plan`; what it imports is nearly every stage, which a run of one need not read."""
    from airflow_provider_pgddl.engine.commands.plan import plan

    return plan(pipeline, source_dsn, target_dsn)


def run(job: Job) -> StageResult:
    """Runs one stage and records its result. Whatever it raises leaves the database as a retry expects it.

    LockHeld while another run is alive, UsageError for a stage that is not its turn, and each stage's own errors.
    """
    if job.stage not in ALL_STAGES:
        raise UsageError(f"there is no stage {job.stage!r}", todo=f"one of: {', '.join(ALL_STAGES)}")
    if job.again and job.stage != "setup":
        raise UsageError(f"{job.stage} begins no run", todo="run stage setup with --again, then the others as ever")
    if (job.reconfigure or job.drop) and job.stage != "setup":
        raise UsageError(f"{job.stage} takes up no changed file", todo="run stage setup with --reconfigure")
    if job.mend and job.stage != "verify":
        raise UsageError(f"{job.stage} mends nothing", todo="run stage verify with --mend")
    if job.dry_run and job.stage != "swap":
        raise UsageError(f"{job.stage} has no dry run", todo="`pgddl plan` lists what each stage does")
    stage = import_module(f"airflow_provider_pgddl.engine.stages.{job.stage}")
    with ExitStack() as stack:
        # Before the journal exists there is only the lock; setup itself takes the token once it has made it.
        held = Lease(job.conninfo("target"), job.pipeline.pipeline, job.stage, _tables(job))
        stack.callback(held.close)
        if over := _finished(job, held):
            return over
        context = stage.prepare(job, held, stack) if job.stage == "setup" else _context(job, held, stack)
        journal = context.journal
        number = journal.run
        stack.enter_context(at_work.told(context))
        if job.dry_run:
            context.border().wait()
            rehearsed: StageResult = stage.run(context)
            if rehearsed.state == "rehearsed":
                with context.fenced("swap.before_rehearsal_commit"):
                    journal.actions.rehearsed(number, rehearsed.to_json())
            return rehearsed
        with context.fenced("stage.before_start_commit"):
            journal.stage_runs.start(job.id, number, job.stage, context.lease.token)
        with waits_measured() as waits, tries_told(context.say_that_locks_are_waited_for):
            lower_left(context)
            context.border().wait()
            result = _run(context, stage)
        if waits:
            result = replace(result, figures={**result.figures, "longest_wait_ms": round(max(waits))})
        acknowledged = _acknowledged_since(context)
        with context.fenced("stage.before_result_commit"):
            if acknowledged is not None:
                journal.note_acknowledged(acknowledged)
            journal.stage_runs.finish(job.id, number, job.stage, result.to_json())
    failpoint("stage.after_result_commit")
    return result


def _run(context: Context, stage: ModuleType) -> StageResult:
    if context.job.stage in BEFORE_SWAP and context.row().cut_over_at is not None:
        return context.result("nothing_to_do")
    if context.job.stage in SYNCING and context.journal.actions.requests():
        _sync_as_asked(context)
    result: StageResult = stage.run(context)
    return result


def _acknowledged_since(context: Context) -> int | None:
    """Imported late: that takes a while, and a stage that runs has paid for it."""
    from airflow_provider_pgddl.engine.following.failover import acknowledged_since

    return acknowledged_since(context)


def _sync_as_asked(context: Context) -> None:
    """Few runs have to, and what it imports takes a while."""
    from airflow_provider_pgddl.engine.commands.sync_requests import settle

    settle(context)


def _tables(job: Job) -> list[str] | None:
    return None if job.tables is None else [".".join(table_name(t)) for t in job.tables]


def _finished(job: Job, held: Lease) -> StageResult | None:
    journal = Journal(held.conn, job.pipeline.pipeline)
    over = finished(job, journal.find())
    if over is not None and not migrations.state(held.conn, "journal")["pending"]:
        with held.conn.transaction():  # whoever began this stage looks for its result there
            journal.stage_runs.start(job.id, over.run, job.stage, 0)
            journal.stage_runs.finish(job.id, over.run, job.stage, over.to_json())
            failpoint("stage.before_nothing_to_do_commit", held.conn)
    return over


def _context(job: Job, held: Lease, stack: ExitStack) -> Context:
    name = job.pipeline.pipeline
    _as_recorded(job.pipeline, Journal(held.conn, name).row())  # said at once, whoever holds the lock
    if migrations.state(held.conn, "journal")["pending"]:
        raise UsageError("the journal is an older version's", todo="run stage setup, which brings it up to date")
    stack.enter_context(held)
    journal = Journal(held.conn, name)
    row = journal.row()
    if finished(job, row) is not None:
        raise Retry("another run of the pipeline has finished it just now", todo="run the stage again")
    pipeline = _as_recorded(job.pipeline, row)  # whoever held the lock may have taken up a changed file
    if journal.reconfigurations.under_way(row.run):
        raise UsageError(
            "a changed file was taken up, and what follows from it is not done",
            todo="run stage setup, which goes on there",
        )
    held.take(job.conninfo("source"))
    context = Context(replace(job, pipeline=pipeline), held, stack)
    _refuse_other_source(context)
    way_back_across.begin(context)
    return context


def _as_recorded(pipeline: Pipeline, row: PipelineRow) -> Pipeline:
    """UsageError for a file that is not the one that the run goes by."""
    if row.finished_at is not None:
        return pipeline
    pipeline = require_same_config(pipeline, row.config)
    return pipeline if row.born_of is None else of_a_birth(pipeline)


def _refuse_other_source(context: Context) -> None:
    from airflow_provider_pgddl.engine.following import failover
    from airflow_provider_pgddl.engine.server.catalog import server

    change_log.refuse_other_journal(context.source, context.name, change_log.journal_name(server(context.target)))
    failover.refuse_other_source(context.source, context.name, context.row())
    if lost := way_back_across.lost_cut_over(context):
        if context.job.stage == "cleanup":
            return  # which is how a person ends it
        raise lost
    failover.look(context)
