"""cleanup: drop what was only needed on the way; keep the audit."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from airflow_provider_pgddl.engine import migrations
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, old_schema
from airflow_provider_pgddl.engine.errors import StageFailed, UsageError
from airflow_provider_pgddl.engine.journal import TableRow
from airflow_provider_pgddl.engine.pipeline import Pipeline
from airflow_provider_pgddl.engine.rows.windows import count_changes, drop_pending
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.stages.context import Context, StageResult
from airflow_provider_pgddl.engine.stages.cut_over import fenced_relations
from airflow_provider_pgddl.engine.stages.locks import limit_lock_wait, lock_all, with_tries

_Q = queries("swap")


def run(context: Context) -> StageResult:
    if context.job.tables is not None:
        raise UsageError("cleanup is about the whole pipeline", todo="run it without --tables")
    row = context.row()
    if row.finished_at is not None:
        return context.result("nothing_to_do")
    if row.cut_over_at is None:
        raise UsageError(
            "the swap has not been done", todo="run stage swap first; `pgddl reset` takes an unfinished pipeline away"
        )
    if context.journal.validations_left(row.run):
        raise UsageError("foreign keys are not validated yet", todo="run stage swap again, which finishes that")
    tables = context.tables()
    if not context.in_place:
        _refuse_late_changes(context, tables)
    stop_capture(context)
    if context.in_place:
        _drop_old(context, tables)
    with context.fenced():
        for table in tables:
            drop_pending(context.target, table)
        context.journal.set_state("cleaned", [t.id for t in tables])
        context.journal.set_finished()
    forget_capture(context.source, context.name)
    if not context.in_place and context.pipeline.swap.fence == "read_only":
        context.say("the fence on the source stays up; `pgddl reset` takes it down when nothing writes there any more")
    return context.result("done", {t.qualified: {"state": "cleaned"} for t in tables})


def _refuse_late_changes(context: Context, tables: Sequence[TableRow]) -> None:
    """Whoever still wrote to the source after the cut-over would lose those rows without a word."""
    logged = set(change_log.captured_roots(context.source, context.name))
    changes = count_changes(context.source, [t for t in tables if t.oid in logged])
    late = {t.qualified: changes[t.id] for t in tables if changes.get(t.id)}
    if late:
        listed = ", ".join(f"{name}: {n}" for name, n in late.items())
        raise StageFailed(
            f"the source was written to after the cut-over ({listed}); cleaning up would lose those changes",
            todo="carry them over by hand (the change logs name their keys), empty the logs, then run cleanup again",
            sql="\n".join(
                sql.SQL("DELETE FROM {};").format(change_log.log_table(t.log_table)).as_string()
                for t in tables
                if t.qualified in late
            ),
        )


def stop_capture(context: Context) -> None:
    """A transaction a table: DROP TRIGGER takes ACCESS EXCLUSIVE, so it waits briefly and tries often."""
    captured = change_log.captured_roots(context.source, context.name)
    for oid in captured:
        context.check_fence()
        stop_capture_of(context.source, context.pipeline, oid)


def stop_capture_of(source: Session, pipeline: Pipeline, oid: int) -> None:
    """One table's triggers, functions and log."""

    def attempt() -> None:
        with source.transaction():
            limit_lock_wait(source, pipeline.swap.lock_timeout)
            change_log.stop(source, pipeline.pipeline, oid)

    with_tries(pipeline.swap, "dropping the capture triggers", attempt)


def _drop_old(context: Context, tables: Sequence[TableRow]) -> None:
    """What was replaced, and the schemas that held it and the copies once they are empty."""
    for table in tables:
        with context.fenced(table):
            context.target.execute(
                sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(old_schema(table.schema), table.name))
            )
    for schema in {s(t.schema) for t in tables for s in (old_schema, copy_schema)}:
        drop_schema_if_empty(context.target, schema)


def drop_schema_if_empty(conn: Session, schema: str) -> None:
    row = conn.execute(_Q["schema_objects"], [schema]).fetchone()
    if row and row[0] == 0:
        conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {}").format(sql.Identifier(schema)))


def forget_capture(source: Session, pipeline: str) -> None:
    """Takes the pipeline off the source; the last one takes the core set down, unless a fence still stands on it."""
    if not migrations.state(source, "core")["applied"]:
        return
    with source.transaction():
        left, fences = change_log.forget_pipeline(source, pipeline)
    if left == 0 and not fences:
        migrations.revert(source, "core")
        migrations.revert(source, "injector")


def lower_fences(context_source: Session, pipeline: str, tables: Sequence[TableRow], lock_timeout: float) -> None:
    """In the caller's tries: all fences of the pipeline in one transaction."""
    relations = fenced_relations(context_source, tables)
    with context_source.transaction():
        lock_all(context_source, relations, "ACCESS EXCLUSIVE", lock_timeout)
        for schema, name in relations:
            change_log.lower_fence(context_source, pipeline, schema, name)
