"""The direct trigger: after the hand-over, the function that kept a table's log writes each row to its copy itself.

In place only, where both are in one database. The triggers stay as they are (DROP TRIGGER is ACCESS EXCLUSIVE), only
what they call is replaced; and the change log stays too, for every key that the copy does not take.

**What holds.** At every commit a key's row in the copy is what the source's row makes of it, or the key is in the log.
Who takes the log's keys up (a window, the swap) does so while nobody writes directly, so a copy with a direct trigger
has no pending keys and its windows never meet its writers: `write_to_log` comes first, under a lock that waits for
them.

**No client fails for the copy.** What the copy answers is caught in a subtransaction. Each of these takes an xid, and
a transaction with more than 64 of them makes every snapshot slower; so only the first `MOST_ROWS` rows of a
transaction go to the copy, and the rest to the log, where none is needed. Nor does a client wait for it: whoever
writes a key's row in the copy holds that row of the source, and whoever holds one of its unique values there holds it
on the source as well, so there is nobody to wait for but a transaction that moves a row which is in the log: for
`LOCK_TIMEOUT`, which is far shorter than deadlock_timeout.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from airflow_provider_pgddl.engine.capture.change_log import SCHEMA, log_table
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.plan import Plan, equal, into
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import PINNED, Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("direct_function")
MOST_ROWS = 32
LOCK_TIMEOUT = "10ms"

# Those of our own sessions that the value of an expression may depend on.
_VALUES = (
    "row_security", "DateStyle", "IntervalStyle", "TimeZone", "extra_float_digits", "bytea_output", "xmlbinary",
    "lc_monetary", "lc_numeric", "standard_conforming_strings", "array_nulls", "transform_null_equals", "xmloption",
)  # fmt: skip
# A plan that a session made while the copy was small stays with it.
_SETTINGS = {name: PINNED[name] for name in _VALUES} | {"lock_timeout": "0", "enable_seqscan": "off"}


def modes(source: Session, pipeline: str) -> dict[int, str]:
    """Root oid → 'direct', or 'left' where DDL has brought the log back and older writers may still be under way."""
    return dict(source.execute(_Q["modes"], [pipeline]).fetchall())


def files(source: Session, pipeline: str) -> dict[int, dict[str, int]]:
    """Of the tables whose writers write to their copies: by root, the file of each leaf, by oid as text."""
    found: dict[int, dict[str, int]] = {}
    for root, leaf, filenode in source.execute(_Q["files"], [pipeline]):
        found.setdefault(root, {})[leaf] = filenode
    return found


def late_checks(source: Session, plan: Plan) -> list[str]:
    """Indexes of the copy behind constraints that are checked later than with each row (DEFERRABLE)."""
    oid = catalog.oid_of(source, plan.copy_schema, plan.copy_name)
    return [name for (name,) in source.execute(_Q["late_checks"], [oid])]


def write_to_copy(source: Session, pipeline: str, table: TableRow) -> None:
    """From this transaction's commit on, writers write to the copy. The caller holds a lock that keeps them out, and
    has emptied the log and the pending keys under it."""
    for leaf, function in source.execute(_Q["leaves"], [pipeline, table.oid]).fetchall():
        _make_log_function(source, pipeline, leaf)
        row = source.execute(_Q["log_body"], [function]).fetchone()
        assert row is not None
        body = _body(source, table, leaf).as_string(source) + f"\n{row[0].strip()};\nEND\n"
        settings = sql.SQL(" ").join(
            sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value)) for name, value in _SETTINGS.items()
        )
        source.execute(
            sql.SQL(_Q["create"]).format(
                function=sql.Identifier(SCHEMA, function),
                settings=sql.SQL("SET search_path = pg_catalog, pg_temp ") + settings,
                body=sql.Literal(body),
            )
        )
        source.execute(_Q["set_mode"], ["direct", pipeline, leaf])


def write_to_log(source: Session, pipeline: str, root: int) -> None:
    """From this transaction's commit on, writers write to the log again. The caller holds a lock that keeps them out,
    so that no direct write is under way any more."""
    for leaf, _ in source.execute(_Q["leaves"], [pipeline, root]).fetchall():
        _make_log_function(source, pipeline, leaf)
        source.execute(_Q["set_mode"], ["log", pipeline, leaf])


def _make_log_function(source: Session, pipeline: str, leaf: int) -> None:
    source.execute(queries("capture")["make_functions"], [pipeline, [leaf]])


def _body(source: Session, table: TableRow, leaf: int) -> sql.Composed:
    plan = table.plan
    relations = [leaf, catalog.oid_of(source, plan.copy_schema, plan.copy_name)]
    row = source.execute(_Q["versions"], {"relations": relations}).fetchone()
    assert row is not None
    count, versions, owners = row
    as_made_for = sql.SQL(_Q["as_made_for"]).format(
        count=sql.Literal(count), versions=sql.Literal(versions), relations=sql.Literal(relations),
        owners=sql.Literal(owners),
    )  # fmt: skip
    return sql.SQL(_Q["body"]).format(
        copy_only=plan.copy_only,
        log=log_table(table.log_table),
        most=sql.Literal(MOST_ROWS),
        as_made_for=as_made_for,
        lock_timeout=sql.Literal(LOCK_TIMEOUT),
        into=into(plan.copy, plan.columns.list),
        expressions=plan.columns.select_list,
        source=plan.source,
        copy_old=_same(plan, "c", "old"),
        source_new=_same(plan, "t", "new"),
        source_old=_same(plan, "t", "old"),
        same_key=_same(plan, "new", "old"),
    )


def _same(plan: Plan, row: str, record: str) -> sql.Composed:
    """`row.id = old.id::bigint AND …` as in Plan.key_join; the trigger's records are called old and new."""
    keys: Sequence[tuple[str, str, bool, str]] = tuple(
        zip(plan.key.columns, plan.key.types, plan.key.domains, plan.key.operators, strict=True)
    )
    return sql.SQL(" AND ").join(
        equal(
            operator,
            sql.Identifier(row, column) + sql.SQL(f"::{type_}" if domain or row == "new" else ""),
            sql.SQL("{}::{}").format(sql.Identifier(record, column), sql.SQL(type_)),
        )
        for column, type_, domain, operator in keys
    )
