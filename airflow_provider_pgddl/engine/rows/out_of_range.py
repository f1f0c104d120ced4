"""Whose value a copy does not take: keys of rows with a number beyond the type that the copy has for it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

import psycopg
from psycopg import sql

from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.rows.pending_keys import rows_of_keys, staging_table, take_pending
from airflow_provider_pgddl.engine.rows.transfer import copy_between, read_statement, write_statement
from airflow_provider_pgddl.engine.server.connect import Session

RANGES = {"smallint": (-(2**15), 2**15 - 1), "integer": (-(2**31), 2**31 - 1), "bigint": (-(2**63), 2**63 - 1)}
_CAST = re.compile(rf"CAST\((?P<column>.+) AS (?P<type>{'|'.join(RANGES)})\)")
NAMED = 5  # keys


def keys_out_of_range(source: Session, target: Session, plan: Plan, table_id: int, limit: int) -> list[str]:
    """Of the first `limit` pending keys, as the source's snapshot shows their rows; nothing is taken by it. None where
    another error was the reason, or the table's code is not to be met."""
    casts = [found for made in plan.columns.expressions if (found := _CAST.fullmatch(made))]
    if not casts or plan.keepers.reader:
        return []
    key = [sql.Identifier(name).as_string() for name in plan.key.columns]
    values = [found["column"] for found in casts]
    shown = replace(plan, columns=replace(plan.columns, expressions=(*(f"{name}::text" for name in key), *values)))
    names = [*(f"k{n}" for n in range(len(key))), *(f"v{n}" for n in range(len(values)))]
    beyond = [
        sql.SQL("v{} NOT BETWEEN {} AND {}").format(sql.SQL(str(n)), *map(sql.Literal, RANGES[found["type"]]))
        for n, found in enumerate(casts)
    ]
    with (
        suppress(psycopg.Error),
        source.transaction(force_rollback=True),
        target.transaction(force_rollback=True),
    ):
        taken = staging_table(target, "fill", plan, table_id)
        take_pending(target, plan, table_id, taken, limit)
        wanted = staging_table(source, "fill", plan, table_id)
        read = read_statement(sql.SQL("SELECT {} FROM {}").format(plan.key.list(), taken), plan.key.binary)
        copy_between(target, source, read, write_statement(wanted, plan.key.list(), plan.key.binary))
        query = sql.SQL("SELECT concat_ws(', ', {}) FROM ({}) AS r({}) WHERE {} LIMIT {}").format(
            sql.SQL(", ").join(map(sql.SQL, names[: len(key)])),
            rows_of_keys(shown, wanted),
            sql.SQL(", ").join(map(sql.SQL, names)),
            sql.SQL(" OR ").join(beyond),
            sql.Literal(NAMED),
        )
        return [f"({found})" for (found,) in source.execute(query).fetchall()]
    return []
