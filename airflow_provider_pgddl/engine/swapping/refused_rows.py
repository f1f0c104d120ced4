"""Rows of the new table that the old one cannot hold, and what a person can do about them."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from airflow_provider_pgddl.engine.errors import PgddlError, StageFailed, from_postgres
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.journal.ways_back import Reverse
from airflow_provider_pgddl.engine.rights import as_owner, foreign_code
from airflow_provider_pgddl.engine.rows.pending_keys import pending_table
from airflow_provider_pgddl.engine.rows.transfer import REFUSALS
from airflow_provider_pgddl.engine.rows.windows_in_place import NAMED, LostTrack, Unproven, drain
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.giving_way import Watch


def refusal_of_rows(context: Context, backs: Sequence[tuple[TableRow, Reverse]], why: str) -> StageFailed:
    """The error that names the rows which the old one of these tables does not take, where rows are the reason. What
    keeps us from finding out which they are hides nothing of `why`."""
    todo, unseen = "the new table stays live, and nothing is lost. ", ""
    for table, way in backs:
        try:
            named = refused_rows(context, way)
        except (PgddlError, psycopg.Error) as error:
            said = error if isinstance(error, PgddlError) else from_postgres(error, doing="looking for these rows")
            unseen = f"; which rows that is about could not be seen: {said.what}"
            continue
        if named:
            more = " (the first ones)" if len(named) >= NAMED else ""
            return StageFailed(
                f"rows that the old table cannot hold{more}: " + "; ".join(named),
                table=table.qualified,
                todo=todo + f"Change or delete these rows (by {', '.join(way.row.plan.key.columns)}) and run revert "
                "again, or go on with it (stage cleanup)",
            )
    return StageFailed(
        f"cannot go back: {why}{unseen}",
        table=backs[0][0].qualified if len(backs) == 1 else None,
        todo=todo + "Undo what changed on it and run revert again, or go on with it (stage cleanup)",
    )


def refused_rows(context: Context, way: Reverse) -> list[str]:
    """Which rows the old table does not take, and why: halves of what has changed are tried, and nothing is kept of
    it."""
    conn, row = context.source, way.row
    pending, trial, key = pending_table(row.id), sql.Identifier("pg_temp", "pgddl_trial"), row.plan.key.list()
    named: list[str] = []

    def attempt(low: int, high: int) -> psycopg.Error | Unproven | None:
        try:
            with conn.transaction(force_rollback=True):
                some = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE n BETWEEN {} AND {}")
                conn.execute(sql.SQL("DELETE FROM {}").format(pending))
                conn.execute(some.format(pending, key, key, trial, sql.Literal(low), sql.Literal(high)))
                drain(conn, row, high - low + 1)
        except (Unproven, *REFUSALS) as error:
            return error
        return None

    def look(low: int, high: int) -> None:
        error = attempt(low, high) if len(named) < NAMED else None
        if isinstance(error, Unproven):
            named.extend(f"{key}: column {', '.join(error.columns)} would have another value" for key in error.keys)
        elif error is not None and low == high:
            named.append(f"{_key(conn, trial, row, low)}: {_why(conn, trial, row, low, error)}")
        elif error is not None:
            middle, before = (low + high) // 2, len(named)
            look(low, middle)
            look(middle + 1, high)
            if len(named) == before:  # each half for itself would do
                named.append(f"some of {_key(conn, trial, row, low)} to {_key(conn, trial, row, high)}: {_said(error)}")

    with conn.transaction(force_rollback=True), Watch(conn, context.replica.watcher):
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        try:
            drain(conn, row, 0)
        except LostTrack:
            return []
        number = "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT row_number() OVER () AS n, {} FROM {}"
        total = conn.execute(sql.SQL(number).format(trial, key, pending)).rowcount
        if total:
            look(1, total)
    return named[:NAMED]


def _key(conn: Session, trial: sql.Identifier, row: TableRow, number: int) -> str:
    query = sql.SQL("SELECT pg_catalog.concat_ws(', ', {}) FROM {} WHERE n = {}")
    found = conn.execute(query.format(row.plan.key.list(), trial, sql.Literal(number))).fetchone()
    return f"({found[0] if found else '?'})"


def _said(error: psycopg.Error | Unproven) -> str:
    return str(error) if isinstance(error, Unproven) else str(error.diag.message_primary)


def _why(conn: Session, trial: sql.Identifier, row: TableRow, number: int, error: psycopg.Error | Unproven) -> str:
    """With the columns whose values do not go back into their old types, which a server's error does not name."""
    plan, columns = row.plan, []
    for column, made in zip(plan.columns.names, plan.columns.expressions, strict=True):
        if column in plan.reverse.proof:
            query = sql.SQL("SELECT ({})::text FROM {} AS t WHERE EXISTS (SELECT FROM {} AS k WHERE {} AND k.n = {})")
            parts = (sql.SQL(made), plan.source, trial, plan.key.join("t", "k"), sql.Literal(number))
            try:
                with conn.transaction():
                    as_owner.fetch(conn, foreign_code.reader_of(conn, plan), query.format(*parts), ["text"], trial)
            except psycopg.DataError:
                columns.append(column)
    return _said(error) + (f" (column {', '.join(columns)})" if columns else "")
