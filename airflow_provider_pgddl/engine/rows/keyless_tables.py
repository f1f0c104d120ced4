"""Tables without a key, copied whole: under the swap's lock, in the transaction that records the swap.

Nothing is left of it where that transaction fails, so a retry copies again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from psycopg import sql

from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.plan import Plan, into
from airflow_provider_pgddl.engine.rights import as_owner, foreign_code
from airflow_provider_pgddl.engine.rows.copy_shape import COPY_ALTERED, hold_copies
from airflow_provider_pgddl.engine.rows.fill import copy_behind
from airflow_provider_pgddl.engine.rows.foreign_keys_and_triggers import empty, quiet, told
from airflow_provider_pgddl.engine.rows.range_checksums import Sides, count_and_sum
from airflow_provider_pgddl.engine.rows.source_errors import told_without_values
from airflow_provider_pgddl.engine.rows.transfer import (
    REFUSALS,
    copy_between,
    read_statement,
    refused_row,
    write_statement,
)
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries


def copy_over(source: Session, target: Session, tables: Sequence[tuple[TableRow, Sides]]) -> dict[str, Any]:
    """`copy_all` into tables that rows have come from once: what they hold is what their rows were then. Nothing fires
    on them, as for replayed rows."""
    plans = {t.id: t.plan for t, _ in tables}
    with quiet(target, plans) as fires:
        if stopped := told(fires.stops((), target.info.user)):
            (table,) = (t for t, _ in tables if t.id == min(stopped))
            raise StageFailed("; ".join(stopped[table.id]), table=table.qualified)
        for table, _ in tables:
            writer = foreign_code.writer_of(target, table.plan)
            empty(target, [table.plan.copy_only], [(table.plan.copy_schema, table.plan.copy_name)], writer)
        figures = copy_all(source, target, tables)
    if fires.silenced:
        target.execute("SET LOCAL session_replication_role = origin")
    return figures


def copy_all(source: Session, target: Session, tables: Sequence[tuple[TableRow, Sides]]) -> dict[str, Any]:
    """Copies and compares them in the caller's transactions, the source's of which keeps every writer out; returns the
    figures. In place both sessions are one.

    StageFailed where a copy holds rows already, refuses one, or is not equal afterwards."""
    started, rows = time.monotonic(), 0
    plans = {t.id: t.plan for t, _ in tables}
    altered = hold_copies(target, plans)
    live, stops = foreign_code.code_of_live(source, plans)
    copies, refused = foreign_code.code_of_copies(target, plans)
    for table, sides in tables:
        if table.id in altered:
            raise StageFailed(COPY_ALTERED, table=table.qualified, todo="run stage replay, then swap again")
        if found := stops.get(table.id) or refused.get(table.id):
            raise StageFailed("; ".join(found), table=table.qualified)
        try:
            keepers = table.plan.keepers
            reader = keepers.reader if table.id in live else ""
            rows += _copy(source, target, table, sides, reader, keepers.writer if table.id in copies else "")
        except REFUSALS as error:
            raise StageFailed(refused_row(error), table=table.qualified) from error
    return {"keyless_rows": rows, "keyless_ms": round((time.monotonic() - started) * 1000)}


def _copy(source: Session, target: Session, table: TableRow, sides: Sides, reader: str, writer: str) -> int:
    """`reader` and `writer` are the roles behind the wall, '' for ourselves."""
    plan = table.plan
    _refuse_rows_of_others(target, table)
    if source is target:
        parts = {"into": into(plan.copy, plan.columns.list), "rows": _rows(plan)}
        insert = sql.SQL(queries("windows")["insert_rows"]).format(**parts)
        as_owner.execute(target, reader or writer, insert)
    else:
        types = as_owner.types_read(source, plan) if reader else ()
        query = _rows(as_owner.as_typed(plan, types) if reader else plan)
        with as_owner.selected(source, reader, query, types) as rows:
            if writer:
                copy_behind(source, target, plan, rows, "pgddl_bare")
            else:
                write = write_statement(plan.copy, plan.columns.list, plan.columns.binary)
                read = read_statement(rows, plan.columns.binary)
                copy_between(source, target, read, write, wordless=plan.in_part)
    there = told_without_values(plan.in_part, lambda: count_and_sum(source, sides.source_hash(), plan.rows, reader))
    here = count_and_sum(target, sides.copy_hash(), plan.copy_only, writer)
    if there != here:
        raise StageFailed(
            f"the copy does not equal the source: {here[0]} rows of {there[0]}, and another checksum",
            table=table.qualified,
            todo="nothing was swapped. Look for what changes rows on their way, such as a trigger or rule on the copy",
        )
    return there[0]


def _rows(plan: Plan) -> sql.Composed:
    return sql.SQL("SELECT {} FROM {} AS t").format(plan.columns.select_list, plan.rows)


def _refuse_rows_of_others(target: Session, table: TableRow) -> None:
    """Nobody can say of a row without a key where it came from."""
    query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(table.plan.copy_only)
    if as_owner.fetch(target, foreign_code.writer_of(target, table.plan), query, ["boolean"]) == [(True,)]:
        empty = sql.SQL("TRUNCATE {};").format(table.plan.copy_only).as_string(target)
        raise StageFailed(
            "its copy has rows already, which are none of the source's",
            table=table.qualified,
            todo="keep them elsewhere and empty it, then run stage swap again",
            sql=empty,
        )


def analyze(conn: Session, table: sql.Identifier) -> str:
    """The statement that brings the planner's statistics, for after the swap."""
    return sql.SQL("ANALYZE {}").format(table).as_string(conn)
