"""Rows read and written as the role that owns them, behind the wall where that is not trusted, and as ourselves where
it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_pgddl.engine.errors import GaveWay, LeftBehindTheWall
from airflow_provider_pgddl.engine.model.plan import Plan, into
from airflow_provider_pgddl.engine.rights import foreign_code, wall
from airflow_provider_pgddl.engine.rights.foreign_code import PATIENCE, RowUse
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.giving_way import Patience
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("rights")


class CodeFailed(psycopg.DataError):
    """Code of a table's owner has failed, by whatever error; to whoever moves rows one that they do not fit."""

    sqlstate = "22000"


def execute(conn: Session, role: str, statement: sql.SQL | sql.Composed, *reads: sql.Identifier) -> int:
    """Runs a statement as the role, or as ourselves (''), and returns its row count; `reads` are tables of ours."""
    if not role:
        return conn.execute(statement).rowcount
    _let_read(conn, role, reads)
    with _her_own_fault(role):
        return wall.run(conn, role, statement)


def fetch(
    conn: Session, role: str, query: sql.SQL | sql.Composed, types: Sequence[str], *reads: sql.Identifier
) -> list[tuple[Any, ...]]:
    """The same for a query's rows, whose columns are of these types."""
    if not role:
        rows: list[tuple[Any, ...]] = conn.execute(query).fetchall()
        return rows
    _let_read(conn, role, reads)
    with _her_own_fault(role):
        return wall.query(conn, role, query, types)


def fetch_held(
    conn: Session, plan: Plan, side: RowUse, query: sql.SQL | sql.Composed, types: Sequence[str]
) -> list[tuple[Any, ...]]:
    """The rows of a query on the live table or its copy, outside of any window: with the locks that it needs."""
    relation = sql.Identifier(plan.schema, plan.name) if side == "reader" else plan.copy
    patience = Patience(PATIENCE)
    while True:
        try:
            with conn.transaction():
                if getattr(plan.keepers, side):
                    foreign_code.lock(conn, [(relation, plan)], side)
                role_of = foreign_code.reader_of if side == "reader" else foreign_code.writer_of
                return fetch(conn, role_of(conn, plan, asked=False), query, types)
        except GaveWay as error:
            patience.wait(error)


@contextmanager
def selected(
    conn: Session, role: str, query: sql.Composable, types: Sequence[str], *reads: sql.Identifier
) -> Iterator[sql.Composable]:
    """The same as a query to be run once, in the block."""
    if not role:
        yield query
        return
    _let_read(conn, role, reads)
    with _her_own_fault(role), wall.rows(conn, role, query, types) as relation:
        yield sql.SQL("SELECT * FROM {}").format(relation)


@contextmanager
def _her_own_fault(role: str) -> Iterator[None]:
    """Whatever error code of a table's owner raises is about that table's rows, and ends nobody else's work. What the
    server says of locks, connections and resources stays what it is, unless it is that code which says it."""
    try:
        yield
    except LeftBehindTheWall as error:
        raise CodeFailed(error.what) from error
    except psycopg.Error as error:
        raised = error.diag.source_function == "exec_stmt_raise"
        within = wall.NAME in (error.diag.context or "")
        known = isinstance(error, (psycopg.IntegrityError, psycopg.DataError))  # to whoever moves rows, as they are
        if not within or known or (isinstance(error, psycopg.OperationalError) and not raised):
            raise
        raise CodeFailed(f"code that runs as {role}: {error.diag.message_primary}") from error


def _let_read(conn: Session, role: str, relations: Sequence[sql.Identifier]) -> None:
    if relations:
        listed = sql.SQL(", ").join(relations)
        conn.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(listed, sql.Identifier(role)))


def types_read(conn: Session, plan: Plan) -> list[str]:
    """Of the plan's columns as its expressions yield them from the live table."""
    own = {name: type_ for name, type_, _ in conn.execute(_Q["bare_types"], [plan.schema, plan.name])}
    types = []
    for column, made in zip(plan.columns.names, plan.columns.expressions, strict=True):
        plain = own.get(column) if made == sql.Identifier(column).as_string() else None
        types.append(plain or str(plan.columns.pairs[column][2]))
    return types


def as_typed(plan: Plan, types: Sequence[str]) -> Plan:
    """The same plan with every expression that is no column cast to its type."""
    made = [
        e if e == sql.Identifier(c).as_string() else f"CAST({e} AS {t})"
        for c, e, t in zip(plan.columns.names, plan.columns.expressions, types, strict=True)
    ]
    return replace(plan, columns=replace(plan.columns, expressions=tuple(made)))


def bare_arrivals(conn: Session, plan: Plan, name: str) -> tuple[sql.Identifier, sql.Composed, bool]:
    """A table of the session for rows of the copy that runs nobody's code; what is selected from it for the copy; and
    whether its types are those of the copy (else rows come as text)."""
    arrivals = sql.Identifier("pg_temp", name)
    rows = conn.execute(_Q["bare_types"], [plan.copy_schema, plan.copy_name]).fetchall()
    types = {column: (own, bare) for column, own, bare in rows}
    definitions = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(c), sql.SQL(types[c][1])) for c in plan.columns.names
    )
    conn.execute(sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP").format(arrivals, definitions))
    values = sql.SQL(", ").join(
        sql.SQL("{}::{}").format(sql.Identifier("a", c), sql.SQL(types[c][0])) for c in plan.columns.names
    )
    as_text = any(types[c][1] == "text" and types[c][0] != "text" for c in plan.columns.names)
    insert = sql.SQL("INSERT INTO {} OVERRIDING SYSTEM VALUE SELECT {} FROM {} AS a").format(
        into(plan.copy, plan.columns.list), values, arrivals
    )
    return arrivals, insert, not as_text
