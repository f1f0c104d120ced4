"""cleanup: drop what was only needed on the way; keep the audit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, old_schema
from airflow_provider_pgddl.engine.errors import PreflightRefused, UsageError
from airflow_provider_pgddl.engine.following.table_capture import (
    drop_schema_if_empty,
    forget_capture,
    refuse_late_changes,
    stop_capture_of,
)
from airflow_provider_pgddl.engine.job.context import Context, StageResult
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rows import copy_only_columns
from airflow_provider_pgddl.engine.rows.change_log_reading import count_changes
from airflow_provider_pgddl.engine.rows.pending_keys import drop_pending, forget_keys
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.server.strong_locks import with_tries, writers_wait
from airflow_provider_pgddl.engine.sql import queries


def run(context: Context) -> StageResult:
    if context.job.tables is not None:
        raise UsageError("cleanup is about the whole pipeline", todo="run it without --tables")
    row = context.row()
    if row.finished_at is not None:
        forget_capture(context.source, context.name)  # where it was killed just before that
        return context.result("nothing_to_do")
    if not context.moves_rows:
        return _finish_ddl_only(context)
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
    context.receive()
    refuse_late_changes(context.source, context.logs, context.name, tables)
    _give_up_way_back(context)
    stop_capture(context, tables)
    if context.in_place:
        _drop_old(context, tables)
    with context.fenced():
        for table in tables:
            forget_keys(context.target, table)
        context.journal.tables.set_state("cleaned", [t.id for t in tables])
        context.journal.set_finished()
    forget_capture(context.source, context.name)
    fenced = context.pipeline.swap.fence == "read_only" or any(t.keyless for t in tables)
    if not context.in_place and fenced:
        context.say("the fence on the source stays up; `pgddl reset` takes it down when nothing writes there any more")
    return context.result("done", {t.qualified: {"state": "cleaned"} for t in tables})


def _give_up_way_back(context: Context) -> None:
    """From here on nothing can be reverted; the log that the new tables have for that goes with their capture."""
    with context.fenced():
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
    with context.fenced():
        context.journal.set_finished()
    forget_capture(context.source, context.name)
    return context.result("done")


def stop_capture(context: Context, tables: Sequence[TableRow]) -> None:
    """A transaction a table: DROP TRIGGER takes ACCESS EXCLUSIVE, so it waits briefly and tries often. In place the old
    table goes with it: nobody can write to one that is no longer captured."""
    captured = change_log.captured_roots(context.source, context.name)
    replaced = {t.oid: t for t in tables} if context.in_place else {}

    def drop_replaced(table: TableRow | None) -> None:
        if table is not None:
            _drop_old_table(context, table)
            lease.check(context.source, context.fence())

    for oid in captured:
        context.check_fence()
        then = partial(drop_replaced, replaced.get(oid))
        try:
            if context.pipeline.by_slot:
                _stop_slot_capture_of(context, oid, [t for t in tables if t.oid == oid])
                continue
            # What is captured of the new table, for a revert, is not needed any more.
            only_if_empty = not context.in_place or oid in replaced
            stop_capture_of(context.source, context.pipeline, oid, only_if_empty=only_if_empty, then=then)
        except change_log.LateChanges:
            refuse_late_changes(context.source, context.logs, context.name, tables)
            raise


def _stop_slot_capture_of(context: Context, oid: int, tables: Sequence[TableRow]) -> None:
    """Under a lock that keeps writers out, what they have written is read before nobody reads it any more."""

    def attempt() -> None:
        with writers_wait(), context.source.transaction():
            limit_lock_wait(context.source, context.pipeline.swap.lock_timeout)
            name = context.source.execute(queries("capture")["relation_name"], [oid]).fetchone()
            if name is not None:
                lock = sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE")
                context.source.execute(lock.format(sql.Identifier(*name)))
            context.receive()
            if any(count_changes(context.logs, tables).values()):
                raise change_log.LateChanges(oid)
            change_log.stop(context.source, context.name, oid)

    with_tries(context.pipeline.swap, "taking a table out of the publication", attempt)


def _drop_old(context: Context, tables: Sequence[TableRow]) -> None:
    """What was replaced, and the schemas that held it and the copies once they are empty."""
    for table in tables:
        with context.fenced(table):
            _drop_old_table(context, table)  # where its capture was gone before
    for schema in {s(t.schema) for t in tables for s in (old_schema, copy_schema)}:
        drop_schema_if_empty(context.target, schema)


def _drop_old_table(context: Context, table: TableRow) -> None:
    context.source.execute(
        sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(old_schema(table.schema), table.name))
    )
