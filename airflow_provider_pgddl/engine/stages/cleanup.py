"""cleanup: drop what was only needed on the way; keep the audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.capture.fence import unfenced
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, old_schema
from airflow_provider_pgddl.engine.errors import PreflightRefused, UsageError, about_whole_pipeline
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.table_capture import (
    drop_old_table,
    drop_schema_if_empty,
    forget_capture,
    refuse_late_changes,
    stop_capture,
    stop_capture_of,
)
from airflow_provider_pgddl.engine.following.unseen_writes import refuse_without_log, without_log
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rows import copy_only_columns
from airflow_provider_pgddl.engine.rows.pending_keys import drop_pending, forget_keys
from airflow_provider_pgddl.engine.swapping import replaced_back, way_back_across
from airflow_provider_pgddl.engine.swapping.fence import close_again, stays


def run(context: Context) -> StageResult:
    if context.job.tables is not None:
        raise about_whole_pipeline("cleanup")
    row = context.row()
    if row.finished_at is not None:
        forget_capture(context.source, context.name)  # where it was killed just before that
        return context.result("nothing_to_do")
    if not context.moves_rows:
        return _finish_ddl_only(context)
    if (back := way_back_across.living(context)) is not None:
        return _kept_for(context, back)
    if row.cut_over_at is None and row.born_of is not None:
        return _let_go(context)
    if row.cut_over_at is None:
        raise UsageError(
            "the swap has not been done", todo="run stage swap first; `pgddl reset` takes an unfinished pipeline away"
        )
    left = context.journal.follow_ups.left(row.run)
    if any(one.failed is None for one in left):
        raise UsageError("the swap has not been finished", todo="run stage swap again, which does what is left")
    for one in left:
        context.say(f"was left to you: {one.statement}; ({one.failed})")
    if not context.in_place:
        _note_late_ddl(context)
    tables = context.tables()
    for name, findings in context.journal.blocked_tables.mismatches().items():
        raise PreflightRefused(
            f"is blocked: {'; '.join(findings)}; cleaning up would take away what tells why", table=name,
            todo="look at its rows on both sides first; `pgddl reset` takes the pipeline away without them",
        )  # fmt: skip
    keyless = any(t.keyless for t in tables) and not context.pipeline.swap.way_back
    if change_log.captured_roots(context.source, context.name) or keyless:  # else that swap has seen to it
        _refuse_late_changes(context, tables)
    if context.pipeline.replaces:
        replaced_back.refuse_rows_of_old(context, tables)
    failpoint("cleanup.before_way_back")
    if not context.pipeline.replaces:
        _give_up_way_back(context)
    failpoint("cleanup.before_capture")
    stop_capture(context, tables)
    failpoint("cleanup.after_capture")
    if context.in_place:
        _drop_old(context, tables)
    if context.pipeline.replaces:
        replaced_back.drop_replaced(context, tables)
    with context.fenced("cleanup.before_finished_commit"):
        for table in tables:
            forget_keys(context.target, table)
        context.journal.tables.set_state("cleaned", [t.id for t in tables])
        context.journal.set_finished()
    failpoint("cleanup.before_forget", context.source)
    forget_capture(context.source, context.name)
    fenced = context.pipeline.swap.fence == "read_only" or any(t.keyless for t in tables)
    if not context.in_place and fenced:
        context.say("the fence on the source stays up; `pgddl reset` takes it down when nothing writes there any more")
    return context.result("done", {t.qualified: {"state": "cleaned"} for t in tables})


def _refuse_late_changes(context: Context, tables: Sequence[TableRow]) -> None:
    """Nobody sees what is written once capture has ended: across, the fence has to stand by then, which a failover of
    the source, or a person, may have taken away. Of a table without a key no log tells what came meanwhile. The
    fence is up before a person is asked to look: what nothing captures, as a partition that came, tells no more."""
    if not context.in_place and (open_ones := unfenced(context.source, context.name, stays(context))):
        silent = without_log(context.source, context.name, tables)
        close_again(context, context.source, context.name, open_ones)
        listed = ", ".join(".".join(name) for name in open_ones)
        context.say(f"the source had lost its fence on {listed}: it is up again")
        refuse_without_log(silent, "it is up again")  # first: nothing tells of it once more, and the logs do
    context.receive()
    refuse_late_changes(context.source, context.logs, context.name, tables, in_place=context.in_place)


def _kept_for(context: Context, back: str) -> StageResult:
    """While the way back lives, the old server's fence and what goes with it are needed."""
    why = (
        f"its way back, pipeline {back}, lives: `pgddl run cleanup` of {back} gives that up, and the old server stays "
        "as it is from then on"
    )
    blocked = [{"table": t.qualified, "reason": why} for t in context.tables()]
    context.say(f"nothing is cleaned up: {why}")
    return replace(context.result("nothing_to_do"), blocked=blocked)


def _let_go(context: Context) -> StageResult:
    """Of a way back that nobody has gone: what is still in its logs is on the new server, where applications are."""
    tables = context.tables()
    captured = (
        change_log.captured_roots(context.source, context.name)
        if migrations.state(context.source, "core")["applied"]
        else {}
    )
    for oid in captured:
        context.check_fence()
        stop_capture_of(context.source, context.pipeline, oid)
    with context.fenced("cleanup.before_let_go_commit"):
        for table in tables:
            forget_keys(context.target, table)
        context.journal.tables.set_state("cleaned", [t.id for t in tables])
        context.journal.set_finished()
    forget_capture(context.source, context.name)
    context.say("the way back is given up: the old server stays fenced, as it is now")
    return context.result("done", {t.qualified: {"state": "cleaned"} for t in tables})


def _give_up_way_back(context: Context) -> None:
    """From here on nothing can be reverted; the log that the new tables have for that goes with their capture."""
    with context.fenced("cleanup.before_way_back_commit"):
        for way in context.journal.ways_back.of(context.journal.run):
            drop_pending(context.target, way.row)
            copy_only_columns.drop_kept(context.target, way.row)
            context.journal.ways_back.forget(way)


def _note_late_ddl(context: Context) -> None:
    from airflow_provider_pgddl.engine.following.ddl import note_late

    note_late(context)


def _finish_ddl_only(context: Context) -> StageResult:
    """Nothing has to be swapped: what is left is to stop listening."""
    for name, findings in context.journal.blocked_tables.mismatches().items():
        raise PreflightRefused(
            f"is blocked: {'; '.join(findings)}", table=name, todo="`pgddl ddl list` says what waits; then run it again"
        )
    with context.fenced("cleanup.before_ddl_only_commit"):
        context.journal.set_finished()
    forget_capture(context.source, context.name)
    return context.result("done")


def _drop_old(context: Context, tables: Sequence[TableRow]) -> None:
    """What was replaced, and the schemas that held it and the copies once they are empty."""
    for table in tables:
        with context.fenced("cleanup.before_old_table_commit", table):
            drop_old_table(context, table)  # where its capture was gone before
    for schema in {s(t.schema) for t in tables for s in (old_schema, copy_schema)}:
        drop_schema_if_empty(context.target, schema)
