"""Which rows a copy does not take: their keys, found by trying halves of what was refused, whatever the reason."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import psycopg
from psycopg import sql

from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.rows import archive, copy_only_columns, foreign_keys_and_triggers
from airflow_provider_pgddl.engine.rows.pending_keys import rows_of_keys, staging_table, take_pending
from airflow_provider_pgddl.engine.rows.transfer import REFUSALS, copy_between, read_statement, write_statement
from airflow_provider_pgddl.engine.server.connect import Session

NAMED = 5  # keys
FEW = 10_000  # keys; of more only the first is looked for, which reads each row twice at the most
_NUMBERED = sql.Identifier("pg_temp", "pgddl_numbered_keys")


def keys_refused(
    source: Session, target: Session, plan: Plan, table_id: int, limit: int, error: psycopg.Error
) -> list[str]:
    """Of the first `limit` pending keys, whose rows as the source's snapshot shows them bring about this error; nothing
    is taken or written by it. None where it takes several rows at once, or the table's code is not to be met."""
    if plan.keepers.reader or plan.keepers.writer:
        return []
    found: list[str] = []
    with (
        suppress(psycopg.Error),
        source.transaction(force_rollback=True),
        target.transaction(force_rollback=True),
        foreign_keys_and_triggers.quiet(target, {table_id: plan}),
    ):
        taken, keys = staging_table(target, "fill", plan, table_id), plan.key.list()
        count = take_pending(target, plan, table_id, taken, limit)
        numbered = sql.SQL(
            "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT row_number() OVER (ORDER BY {}) AS n, {} FROM {}"
        )
        target.execute(numbered.format(_NUMBERED, keys, keys, taken))
        refused = partial(_is_refused, source, target, plan, table_id, error)
        first = 1
        while len(found) < (NAMED if count <= FEW else 1) and first <= count and refused(first, count):
            number = _first(refused, first, count)
            if number is None:
                break
            shown = sql.SQL("SELECT concat_ws(', ', {}) FROM {} WHERE n = {}")
            ((key,),) = target.execute(shown.format(keys, _NUMBERED, sql.Literal(number)))
            found.append(f"({key})")
            first = number + 1
    return found


def _first(refused: Callable[[int, int], bool], first: int, last: int) -> int | None:
    while first < last:
        middle = (first + last) // 2
        if refused(first, middle):
            last = middle
        elif refused(middle + 1, last):
            first = middle + 1
        else:
            return None
    return first


def _is_refused(
    source: Session, target: Session, plan: Plan, table_id: int, error: psycopg.Error, first: int, last: int
) -> bool:
    wanted, keys = staging_table(source, "fill", plan, table_id), plan.key.list()
    some = sql.SQL("SELECT {} FROM {} WHERE n BETWEEN {} AND {}").format(
        keys, _NUMBERED, sql.Literal(first), sql.Literal(last)
    )
    try:
        with source.transaction(force_rollback=True), target.transaction(force_rollback=True):
            read, write = read_statement(some, plan.key.binary), write_statement(wanted, keys, plan.key.binary)
            copy_between(target, source, read, write)
            read = read_statement(rows_of_keys(plan, wanted), plan.columns.binary)
            into = copy_only_columns.create_arrivals(target, plan, table_id) if plan.operations else plan.copy
            write = write_statement(into, plan.columns.list, plan.columns.binary)
            copy_between(source, target, read, write, wordless=plan.in_part)
            if plan.operations:
                archive.merge(target, plan, table_id)
    except REFUSALS as again:
        return (again.sqlstate, again.diag.constraint_name) == (error.sqlstate, error.diag.constraint_name)
    return False
