"""An archive: a copy that keeps what its source deletes (`tables.operations` without delete).

Nothing leaves it. Keys of the log wait as ever, and their rows stay what they are until a window fills them: a row that
the source's snapshot shows is inserted or takes the place of what is there, in the transaction in which its key leaves
the pending set. Of a key that the snapshot shows no row for, the copy's row is the source's no more: its key is noted
among those of rows that only the target has (`Plan.extra`), which comparing passes over. Should the source come to
have such a key again, the row is its own again. So a row that came once is never away, whatever dies in between."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import psycopg
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.model.plan import Plan, equal, into
from airflow_provider_pgddl.engine.rows import copy_only_columns
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("archive")
NOT_BEHIND_THE_WALL = (
    "it keeps what the source deletes (tables.operations), and has code of its owner, as whom rows cannot be brought "
    "into line: name the owner in trusted_roles"
)
_ROWS_NOT_BEHIND_THE_WALL = (
    "it keeps rows that only the target has (tables.keep_extra), and has code of its owner, as whom they cannot be "
    "told from the others: name the owner in trusted_roles"
)
_IN_PARTITIONS = (
    "is partitioned, and rows that the target keeps (tables.operations) would go with a partition that is dropped"
)
_UNIQUE = (
    "has {}, which is unique beside the key: a row that the target keeps (tables.operations) may have the value that a"
    " new one needs"
)
# What a row that the source has may meet in one that it has deleted.
MEETINGS = (pg.UniqueViolation, pg.ExclusionViolation)


def not_behind_the_wall(plan: Plan) -> list[str]:
    """Why rows cannot be brought to a copy that has code of its owner, of whatever it keeps."""
    kept = [copy_only_columns.NOT_BEHIND_THE_WALL] if plan.columns.kept else []
    if plan.operations:
        kept.append(NOT_BEHIND_THE_WALL)
    elif plan.extra:
        kept.append(_ROWS_NOT_BEHIND_THE_WALL)
    return kept


def refused_row(error: psycopg.Error, keys: Sequence[str] = ()) -> str:
    """As `transfer.refused_row`, of a row that cannot be beside another."""
    said = f"{error.diag.message_primary or error}{', key ' if keys else ''}{', '.join(keys)}"
    return (
        f"the copy refused a row of the source ({said}): a row that the target keeps has a value that has to be unique;"
        " drop that index or constraint on the target, or change the row that is kept, and run the stage again"
    )


def unfit(conn: Session, keys: Mapping[int, Sequence[str]]) -> list[tuple[int, str]]:
    """By oid, with the columns of its key: why a table cannot be kept so. Partitions go in one piece, and a row that is
    kept may have a value that another one needs."""
    args = {"oids": list(keys), "keys": [json.dumps(list(columns)) for columns in keys.values()]}
    found = conn.execute(_Q["unfit"], args).fetchall()
    return [(oid, _UNIQUE.format(index) if index else _IN_PARTITIONS) for oid, index in found]


def all_wait(target: Session, plan: Plan, pending: sql.Identifier) -> None:
    """Every row that counts as the source's waits to be looked for there, and stays meanwhile."""
    key = zip(plan.key.columns, plan.key.types, strict=True)
    typed = [sql.SQL("{}::{}").format(sql.Identifier("c", c), sql.SQL(t)) for c, t in key]
    query = sql.SQL(_Q["all_wait"])
    target.execute(
        query.format(pending=pending, keys=plan.key.list(), typed=sql.SQL(", ").join(typed), copy=plan.copy_shown)
    )


def merge(target: Session, plan: Plan, table_id: int, taken: sql.Identifier | None = None) -> None:
    """The arrived rows (`copy_only_columns.create_arrivals`) into the copy; `taken` are the keys that they were looked
    for by, of which those without a row are noted."""
    arrivals = copy_only_columns.arrivals_of(table_id)
    target.execute(sql.SQL("ANALYZE {}").format(arrivals))
    parts = {"arrivals": arrivals, "copy": plan.copy_only, "extra": plan.extra_keys, "keys": plan.key.list()}
    target.execute(sql.SQL(_Q["forget_extra"]).format(same=plan.key.join("a", "x"), **parts))
    if taken is not None:
        note = sql.SQL(_Q["note_extra"]).format(
            taken=taken, in_copy=plan.key.join("c", "k"), arrived=plan.key.join("a", "k"),
            names=sql.SQL(", ").join(sql.Identifier("k", f"k{i}") for i in range(1, len(plan.key.columns) + 1)),
            **parts,
        )  # fmt: skip
        target.execute(note)
    same = _same_row(plan)
    if plan.is_updated:
        fixed = {name for (name,) in target.execute(_Q["always_identity"], [plan.copy_schema, plan.copy_name])}
        columns = [sql.Identifier(name) for name in plan.columns.names if name not in fixed]
        assignments = [sql.SQL("{0} = a.{0}").format(column) for column in columns]
        if assignments:
            update = sql.SQL(_Q["update"]).format(set=sql.SQL(", ").join(assignments), same=same, **parts)
            target.execute(update)
    target.execute(sql.SQL(_Q["forget_arrived"]).format(same=same, **parts))
    if plan.columns.kept:
        copy_only_columns.put_back(target, plan, table_id, taken)
        return
    target.execute(
        sql.SQL(_Q["insert"]).format(
            columns=plan.columns.list, into=into(plan.copy, plan.columns.list), arrivals=arrivals
        )
    )
    target.execute(sql.SQL("DROP TABLE {}").format(arrivals))


def _same_row(plan: Plan) -> sql.Composed:
    """Between a row of the copy and one that has arrived, with the key's own equality."""
    key = zip(plan.key.columns, plan.key.types, plan.key.domains, plan.key.operators, strict=True)
    return sql.SQL(" AND ").join(
        equal(
            operator,
            *(sql.Identifier(row, c) + sql.SQL("::" + type_ if domain else "") for row in ("c", "a")),
        )
        for c, type_, domain, operator in key
    )
