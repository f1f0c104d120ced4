"""reset: take a pipeline, or some of its tables, away: copies, capture, journal. Live tables are never touched."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_pgddl.engine import migrations
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.connect import Session, connect
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, old_schema
from airflow_provider_pgddl.engine.ddl.undo import undo
from airflow_provider_pgddl.engine.errors import UsageError, from_postgres
from airflow_provider_pgddl.engine.journal import Journal, PipelineRow, TableRow
from airflow_provider_pgddl.engine.lease import Lease
from airflow_provider_pgddl.engine.pipeline import Pipeline, table_name
from airflow_provider_pgddl.engine.rows.windows import drop_pending
from airflow_provider_pgddl.engine.stages.cleanup import (
    drop_schema_if_empty,
    forget_capture,
    lower_fences,
    stop_capture_of,
)
from airflow_provider_pgddl.engine.stages.locks import with_tries


def reset(pipeline: Pipeline, source_dsn: str, target_dsn: str, tables: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns what was taken away. Refused between a swap in place and its cleanup: the old tables are the only way
    back."""
    name = pipeline.pipeline
    with ExitStack() as stack:
        source = stack.enter_context(connect(source_dsn, purpose="reset", pipeline=name))
        target = (
            source if pipeline.in_place else stack.enter_context(connect(target_dsn, purpose="reset", pipeline=name))
        )
        held = stack.enter_context(Lease(target_dsn, name, "reset", None))
        journal = Journal(target, name)
        row = journal.find()
        if row is None:
            return {"pipeline": name, "dropped": _drop_capture(pipeline, source, [], None)}
        held.take()
        held.terminate_stale(*{id(s): s for s in (source, target)}.values())
        if pipeline.in_place and row.cut_over_at and not row.finished_at:
            raise UsageError(f"pipeline {name!r} has swapped its tables", todo="run stage cleanup, which ends it")
        chosen = _chosen(journal.tables(row.run), tables)
        if tables is not None:
            return {"pipeline": name, "dropped": _reset_tables(pipeline, source, journal, row, chosen)}
        return {"pipeline": name, "dropped": _reset_all(pipeline, source, journal, row, chosen)}


def _chosen(tables: Sequence[TableRow], names: Sequence[str] | None) -> list[TableRow]:
    if names is None:
        return list(tables)
    wanted = {table_name(n) for n in names}
    unknown = wanted - {(t.schema, t.name) for t in tables}
    if unknown:
        raise UsageError(f"{'.'.join(min(unknown))} is not a table of this pipeline", todo="see `pgddl status`")
    return [t for t in tables if (t.schema, t.name) in wanted]


def _reset_tables(
    pipeline: Pipeline, source: Session, journal: Journal, row: PipelineRow, tables: Sequence[TableRow]
) -> list[str]:
    """The next setup captures these anew, the next snapshot makes their copies again; the others go on."""
    if row.cut_over_at:
        raise UsageError("the pipeline has cut over", todo="reset the whole pipeline, without --tables")
    dropped = _drop_capture(pipeline, source, tables, [t.oid for t in tables])
    for table in tables:
        with journal.conn.transaction():
            journal.conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table.plan.copy))
            drop_pending(journal.conn, table)
            journal.forget_table(table)
        dropped.append(f"copy of {table.qualified}")
    return dropped


def _reset_all(
    pipeline: Pipeline, source: Session, journal: Journal, row: PipelineRow, tables: Sequence[TableRow]
) -> list[str]:
    dropped: list[str] = []
    if row.finished_at is None or pipeline.swap.fence == "read_only":
        dropped += _drop_capture(pipeline, source, tables, None)
    if row.cut_over_at is None:
        if pipeline.in_place:
            for table in tables:
                journal.conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table.plan.copy))
                dropped.append(f"copy of {table.qualified}")
        else:
            dropped += _undo(journal, row.run)
    for table in tables:
        drop_pending(journal.conn, table)
    if pipeline.in_place:
        for schema in {s(t.schema) for t in tables for s in (copy_schema, old_schema)}:
            drop_schema_if_empty(journal.conn, schema)
    with journal.conn.transaction():
        others = journal.purge()
    forget_capture(source, pipeline.pipeline)
    if others == 0:
        migrations.revert(journal.conn, "journal")
    return dropped


def _drop_capture(
    pipeline: Pipeline, source: Session, tables: Sequence[TableRow], oids: Sequence[int] | None
) -> list[str]:
    """Triggers, functions and logs of these roots (None: all of the pipeline's), and its fences."""
    known = source.execute("SELECT pg_catalog.to_regclass('pgddl.captured') IS NOT NULL").fetchone()
    if not (known and known[0]):
        return []
    name, swap, dropped = pipeline.pipeline, pipeline.swap, []
    for oid, log in change_log.captured_roots(source, name).items():
        if oids is None or oid in oids:
            stop_capture_of(source, pipeline, oid)
            dropped.append(f"capture into {log}")
    if oids is None and tables and swap.fence == "read_only":
        with_tries(swap, "lowering the fence", lambda: lower_fences(source, name, tables, swap.lock_timeout))
    return dropped


def _undo(journal: Journal, run: int) -> list[str]:
    """Drops on the target what the pipeline made there, last first; what else came to depend on it keeps it, with an
    error."""
    dropped = []
    for event_id, event in journal.applied_events(run):
        statement = undo(DdlEvent.from_json(event))
        if statement is None:
            continue
        try:
            with journal.conn.transaction():
                journal.conn.execute(statement)
                journal.event_status(event_id, "pending")
        except psycopg.Error as error:
            raise from_postgres(error, doing=f"undoing with {statement}") from None
        dropped.append(statement)
    return dropped
