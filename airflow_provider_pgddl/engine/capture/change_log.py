"""The change log by triggers: which keys of a table changed since capture began, one log table a captured table.

Row triggers on every leaf (a statement on a leaf does not fire its parent's), ENABLE ALWAYS so that sessions in
replica role are seen too, and one for TRUNCATE. A log row holds the key before and after; a window deletes exactly
the log rows that its snapshot shows, so there is no position to keep and no order to rely on. """

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql

from airflow_provider_pgddl.engine import catalog
from airflow_provider_pgddl.engine.catalog import Leaf, Table
from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("capture")
SCHEMA = "pgddl"


def trigger_names(pipeline: str) -> tuple[str, str]:
    """(row trigger, truncate trigger)"""
    return f"pgddl_row_{pipeline}", f"pgddl_truncate_{pipeline}"


def fence_name(pipeline: str) -> str:
    return f"pgddl_fence_{pipeline}"


def log_name(pipeline: str, root: int) -> str:
    return f"log_{pipeline}_{root}"


def log_table(name: str) -> sql.Identifier:
    return sql.Identifier(SCHEMA, name)


def window_no(source: Session, pipeline: str) -> int | None:
    row = source.execute(_Q["window_no"], [pipeline]).fetchone()
    return int(row[0]) if row else None


def acknowledge(source: Session, pipeline: str, number: int, logs: Sequence[str]) -> None:
    """Deletes the log rows that the caller's transaction sees under its snapshot, and notes the window."""
    for log in logs:
        source.execute(sql.SQL("DELETE FROM {}").format(log_table(log)))
    source.execute(_Q["set_window_no"], [number, pipeline])


def register_pipeline(source: Session, pipeline: str) -> None:
    source.execute(_Q["register_pipeline"], [pipeline])


def captured_roots(source: Session, pipeline: str) -> dict[int, str]:
    """Root oid → log table of what is captured already."""
    return {root: log for root, _, log, _ in source.execute(_Q["captured"], [pipeline])}


def start(source: Session, pipeline: str, oid: int, lock_timeout: float) -> tuple[Table, str]:
    """Starts capture of one table in one transaction; returns the table as described under the same lock, and its log.

    CREATE TRIGGER takes SHARE ROW EXCLUSIVE, which waits for every writer, so no write escapes both the log and the
    chunks (C2). `lock_timeout` (seconds) bounds how long writers can queue behind us; LockNotAvailable when it runs
    out. """
    with source.transaction():
        source.execute("SELECT pg_catalog.set_config('lock_timeout', %s, true)", [f"{int(lock_timeout * 1000)}ms"])
        table = _locked(source, pipeline, oid)
        log = log_name(pipeline, oid)
        _create_log(source, table, log)
        for leaf in table.leaves:
            _create_triggers(source, pipeline, table, leaf, log)
        (table,) = catalog.describe(source, [oid], trigger_names(pipeline)).values()
    return table, log


def _locked(source: Session, pipeline: str, oid: int) -> Table:
    """The table, described after its leaves are locked against writers and DDL."""
    name = source.execute(_Q["relation_name"], [oid]).fetchone()
    if name is None:
        raise StageFailed(f"the table with oid {oid} was dropped meanwhile", todo="run setup again")
    # A table that was renamed in between makes this fail with UndefinedTable, which a retry resolves.
    source.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(sql.Identifier(*name)))
    described = catalog.describe(source, [oid], trigger_names(pipeline))
    if oid not in described:
        raise StageFailed("was dropped meanwhile", table=".".join(name), todo="run setup again")
    return described[oid]


def _create_log(source: Session, table: Table, log: str) -> None:
    assert table.key is not None
    types = {c.name: c.base_type for c in table.columns}
    keys = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(f"{prefix}{i}"), sql.SQL(types[k]))
        for prefix in ("old_", "new_")
        for i, k in enumerate(table.key.columns, 1)
    )
    source.execute(sql.SQL(_Q["log_table"]).format(log=log_table(log), keys=keys))
    source.execute(sql.SQL(_Q["log_replica_identity"]).format(log=log_table(log)))


def _create_triggers(source: Session, pipeline: str, table: Table, leaf: Leaf, log: str) -> None:
    assert table.key is not None
    # A leaf may have its columns at other positions than its root.
    (as_leaf,) = catalog.describe(source, [leaf.oid]).values()
    by_name = {c.name: c for c in as_leaf.columns}
    keys = [by_name[k] for k in table.key.columns]
    numbers = range(1, len(keys) + 1)

    def names(prefix: str) -> sql.Composed:
        return sql.SQL(", ").join(sql.Identifier(f"{prefix}{i}") for i in numbers)

    def values(record: str) -> sql.Composed:
        return sql.SQL(", ").join(sql.SQL("{}.{}").format(sql.SQL(record), sql.Identifier(k.name)) for k in keys)

    guard = sql.SQL(" AND ").join(
        sql.SQL(_Q["guard"]).format(
            name=sql.Literal(k.name), type=sql.Literal(k.type_oid), attnum=sql.Literal(k.attnum)
        )
        for k in keys
    )
    body = sql.SQL(_Q["function_body"]).format(
        log=log_table(log), guard=guard, old_columns=names("old_"), new_columns=names("new_"),
        old_values=values("OLD"), new_values=values("NEW"),
    )  # fmt: skip
    function = f"capture_{pipeline}_{leaf.oid}"
    relation = sql.Identifier(leaf.schema, leaf.name)
    parts: dict[str, Any] = {"relation": relation, "function": sql.Identifier(SCHEMA, function)}
    source.execute(sql.SQL(_Q["function"]).format(body=sql.Literal(body.as_string(source)), **parts))
    for kind, trigger in zip(("row_trigger", "truncate_trigger"), trigger_names(pipeline), strict=True):
        source.execute(sql.SQL(_Q[kind]).format(trigger=sql.Identifier(trigger), **parts))
        source.execute(sql.SQL(_Q["enable_always"]).format(trigger=sql.Identifier(trigger), relation=relation))
    source.execute(_Q["register"], [pipeline, table.oid, leaf.oid, log, function])


def stop(source: Session, pipeline: str, root: int) -> None:
    """Takes the capture of one table away, in the caller's transaction. DROP TRIGGER is ACCESS EXCLUSIVE: bound the
    wait."""
    captured = [row for row in source.execute(_Q["captured"], [pipeline]) if row[0] == root]
    for _, leaf, _, function in captured:
        name = source.execute(_Q["relation_name"], [leaf]).fetchone()
        if name is not None:
            for trigger in trigger_names(pipeline):
                source.execute(
                    sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(sql.Identifier(trigger), sql.Identifier(*name))
                )
        source.execute(sql.SQL("DROP FUNCTION IF EXISTS {}()").format(sql.Identifier(SCHEMA, function)))
    for log in {row[2] for row in captured}:
        source.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(log_table(log)))
    source.execute(_Q["forget"], [pipeline, root])


def forget_pipeline(source: Session, pipeline: str) -> tuple[int, bool]:
    """Takes the pipeline off the source's list; returns how many others capture here, and whether fences stand."""
    source.execute(_Q["forget_pipeline"], [pipeline])
    left = source.execute(_Q["captures_left"]).fetchone()
    fences = source.execute(_Q["fences_left"]).fetchone()
    return int(left[0]) if left else 0, bool(fences and fences[0])


def raise_fence(source: Session, pipeline: str, schema: str, name: str) -> None:
    """From this transaction's commit on every write to the relation fails with SQLSTATE 25006."""
    parts = {"trigger": sql.Identifier(fence_name(pipeline)), "relation": sql.Identifier(schema, name)}
    source.execute(sql.SQL(_Q["fence"]).format(pipeline=sql.Literal(pipeline), **parts))
    source.execute(sql.SQL(_Q["enable_always"]).format(**parts))


def lower_fence(source: Session, pipeline: str, schema: str, name: str) -> None:
    source.execute(
        sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(
            sql.Identifier(fence_name(pipeline)), sql.Identifier(schema, name)
        )
    )
