"""What a chunk reads: FROM and WHERE of its rows, and what a worker needs to know of their table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from airflow_provider_pgddl.engine.journal.lease import Fence
from airflow_provider_pgddl.engine.model.plan import Plan


@dataclass(frozen=True, slots=True)
class TableToCopy:
    """What a worker needs to know of a table; `version` and `physical` are those that the chunks were planned for."""

    id: int
    plan: Plan
    version: dict[str, object]
    physical: dict[str, list[object]]
    fence: Fence
    triggers: tuple[str, ...]


def select(plan: Plan, rows_of: sql.Composed) -> sql.Composed:
    select = sql.SQL("SELECT {} {}").format(plan.columns.select_list, rows_of)
    if plan.order:
        # Of the source: an unqualified name would mean what is selected under it.
        columns = sql.SQL(", ").join(sql.Identifier("t", column) for column in plan.order)
        select += sql.SQL(" ORDER BY {}").format(columns)
    return select


def rows_of(
    table: TableToCopy, leaf: sql.Identifier, first: int, end: int, kind: str, low: str | None, high: str | None
) -> sql.Composed:
    """FROM and WHERE of a chunk's rows: those in blocks [first, end), or with values in [low, high), or with none; of
    one leaf, its own only (C4)."""
    terms: list[sql.Composable]
    if kind == "blocks":
        terms = [
            sql.SQL("ctid {} {}::pg_catalog.tid").format(sql.SQL(op), sql.Literal(f"({block},0)"))
            for op, block in ((">=", first), ("<", end))
        ]
    else:
        name = table.plan.order[0]
        column, type_ = sql.Identifier("t", name), sql.SQL(_type_of(table, name))
        terms = [
            sql.SQL("{} {} {}::{}").format(column, sql.SQL(op), sql.Literal(value), type_)
            for op, value in ((">=", low), ("<", high))
            if value is not None
        ] or [sql.SQL("{} IS {}NULL").format(column, sql.SQL("NOT " if kind == "values" else ""))]
    rows = leaf_rows(table.plan, table.version, leaf)
    return sql.SQL("FROM {} AS t WHERE {}").format(rows, sql.SQL(" AND ").join(terms))


def leaf_rows(plan: Plan, version: Mapping[str, Any], leaf: sql.Identifier) -> sql.Composable:
    """A leaf's own rows that belong on the target, in FROM, where an alias has to follow; with their ctid.

    A partition may compute a virtual column otherwise than its root does, by which rows are read everywhere else."""
    only = sql.SQL("ONLY {}").format(leaf)
    columns = version["columns"]
    if not plan.partitioned or all(column["generated"] != "v" for column in columns.values()):
        return plan.rows_of(only)
    shown = [
        _computed(name, column) if column["generated"] == "v" else sql.Identifier(name)
        for name, column in columns.items()
    ]
    rows = sql.SQL("(SELECT {}, ctid FROM {})").format(sql.SQL(", ").join(shown), only)
    return sql.SQL("(SELECT r.* FROM {} AS r WHERE ({}))").format(rows, sql.SQL(plan.where)) if plan.where else rows


def _computed(name: str, column: Mapping[str, Any]) -> sql.Composed:
    """In the column's own type, to which the server casts what it computes without printing that."""
    parts = {"value": sql.SQL(column["default"]), "type": sql.SQL(column["type"]), "name": sql.Identifier(name)}
    if column["collation"] is None:
        return sql.SQL("({value})::{type} AS {name}").format(**parts)
    collation = sql.Identifier(*column["collation"].split(".", 1))
    return sql.SQL("({value})::{type} COLLATE {collation} AS {name}").format(collation=collation, **parts)


def _type_of(table: TableToCopy, column: str) -> str:
    columns: Any = table.version["columns"]
    return str(columns[column]["type"])
