"""Windows in place: ingest and fill in one transaction of one session."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.plan import Plan, into
from airflow_provider_pgddl.engine.rights import as_owner, foreign_code
from airflow_provider_pgddl.engine.rows import copy_only_columns, partition_cells
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs, summaries
from airflow_provider_pgddl.engine.rows.copy_files import note_made
from airflow_provider_pgddl.engine.rows.copy_shape import COPY_ALTERED, hold_copies
from airflow_provider_pgddl.engine.rows.partition_cells import NoPartition
from airflow_provider_pgddl.engine.rows.pending_keys import (
    ingest_keeping,
    ingest_keys,
    rows_of_keys,
    stage_keys,
    staging_table,
    take_pending,
)
from airflow_provider_pgddl.engine.rows.row_counters import count_partial
from airflow_provider_pgddl.engine.schema.drift import AGAIN
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("windows")
NAMED = 10  # rows that an error names

LOST_TRACK = f"its log does not tell which rows changed, as when its key or a key's type was altered; {AGAIN}"


class LostTrack(Exception):
    """The log of a table does not say what changed, or its copy is not what its plan was made for."""


class Unproven(LostTrack):
    """Rows would not be the same again. `keys` are theirs as text (the first ones), `columns` where they differ."""

    def __init__(self, keys: Sequence[str], columns: Sequence[str]):
        self.keys, self.columns = keys, columns
        super().__init__(f"{', '.join(columns)} of row(s) {', '.join(keys)} would have another value")


def drain(conn: Session, table: TableRow, fill: int, logs: Logs | None = None) -> tuple[int, int]:
    """Ingest and fill in one transaction of one session: windows in place, and the last one under the swap's lock.
    Where `logs` do not take the table's log as a whole, `fill` has to be 0.

    Returns (keys taken from the log, rows inserted). The log rows go in the same transaction, so there is nothing to
    acknowledge. NoPartition where rows need partitions first: roll back, make them, and do it again."""
    plan = table.plan
    behind = _behind(conn, table)
    keys = _drain_log(conn, table, behind, logs or Logs(conn))
    rows = _drain_pending(conn, table, fill, behind) if fill else 0
    if plan.reverse.echo:
        conn.execute(sql.SQL(_Q["forget_echo"]).format(log=change_log.log_table(plan.reverse.echo)))
    return keys, rows


def drain_into_partitions(
    conn: Session, pipeline: str, table: TableRow, fill: int, logs: Logs | None = None
) -> tuple[int, int]:
    """`drain`, and the partitions that its rows need, in the caller's transaction."""
    while True:
        try:
            with conn.transaction():
                keys, rows = drain(conn, table, fill, logs)
                count_partial(conn, pipeline, table.plan, rows)
                return keys, rows
        except NoPartition as none:
            try:
                with conn.transaction():
                    made = partition_cells.make(conn, table.plan, none.cells)
                    note_made(conn, table, made)
            except StageFailed as error:  # there are too many
                raise LostTrack(error.what) from None
            if not made:
                raise LostTrack("a row came that no partition of the copy takes") from none


def prepare_drain(conn: Session, tables: Sequence[TableRow]) -> None:
    """What the first `drain` of a session makes for itself, where others shall not wait for that."""
    for table in tables:
        for purpose in ("ingest", "fill"):
            staging_table(conn, purpose, table.plan, table.id)


def _behind(conn: Session, table: TableRow) -> bool:
    """Whether the table or its copy has code of its owner, so that rows are moved behind the wall."""
    plans = {table.id: table.plan}
    copies, refused = foreign_code.hold_code_of_copies(conn, plans)
    live, stops = foreign_code.code_of_live(conn, plans)
    if found := stops.get(table.id) or refused.get(table.id):
        raise LostTrack("; ".join(found))
    if (live or copies) and table.plan.columns.kept:
        raise LostTrack(copy_only_columns.NOT_BEHIND_THE_WALL)
    return bool(live or copies)


def _drain_log(conn: Session, table: TableRow, behind: bool, logs: Logs) -> int:
    plan = table.plan
    if plan.columns.kept:
        copy_only_columns.fit(conn, table)
    count, lost_track, truncated = summaries(logs, [table])[table.id]
    if lost_track:
        raise LostTrack(LOST_TRACK)
    if count == 0:
        return 0
    staging = staging_table(conn, "ingest", plan, table.id)
    stage_keys(logs, conn, table, staging)
    moves = None
    if plan.columns.kept:
        moves = copy_only_columns.read_moves(logs, conn, table, catalog.current_snapshot(conn))
    logs.forget([table])
    if moves is None:
        keys = ingest_keys(conn, table, staging, truncated, behind=behind)
    else:
        keys = ingest_keeping(conn, table, staging, moves)
    conn.execute(sql.SQL("TRUNCATE {}").format(staging))
    return keys


def _drain_pending(conn: Session, table: TableRow, fill: int, behind: bool) -> int:
    plan = table.plan
    if hold_copies(conn, {table.id: plan}):
        raise LostTrack(COPY_ALTERED)
    taken = staging_table(conn, "fill", plan, table.id)
    if take_pending(conn, plan, table.id, taken, fill) == 0:
        return 0
    conn.execute(sql.SQL("ANALYZE {}").format(taken))
    arrivals = copy_only_columns.create_arrivals(conn, plan, table.id) if plan.columns.kept else plan.copy
    rows = _insert_rows(conn, plan, taken, arrivals, plan.keepers.writer if behind else "")
    if plan.columns.kept:
        copy_only_columns.put_back(conn, plan, table.id, taken)
    if plan.reverse.proof:
        _refuse_unproven(conn, plan, taken, plan.keepers.writer if behind else "")
    conn.execute(sql.SQL("TRUNCATE {}").format(taken))
    return rows


def _refuse_unproven(conn: Session, plan: Plan, taken: sql.Identifier, role: str) -> None:
    """Whether each row that has just been written yields the row that it was made from: what a type cannot hold it may
    round or cut off without an error."""

    def value(alias: str, column: str, number: bool) -> sql.Composable:
        # Equal by its type's own equality may still be another value, but for numbers.
        return sql.SQL("{}" if number else '{}::text COLLATE "C"').format(sql.Identifier(alias, column))

    differ = {
        column: sql.SQL("{} IS DISTINCT FROM {}").format(value("c", column, number), value("m", column, number))
        for column, (_, _, number) in plan.reverse.proof.items()
    }
    rows = as_owner.fetch(
        conn,
        role,
        sql.SQL(_Q["unproven"]).format(
            keys=sql.SQL("pg_catalog.concat_ws(', ', {})").format(
                sql.SQL(", ").join(sql.Identifier("k", f"k{i}") for i in range(1, len(plan.key.columns) + 1))
            ),
            columns=sql.SQL(", ").join(
                sql.SQL("CASE WHEN {} THEN {} END").format(condition, sql.Literal(column))
                for column, condition in differ.items()
            ),
            staging=taken,
            source=plan.source,
            of_source=plan.key.join("c", "k"),
            expressions=sql.SQL(", ").join(
                sql.SQL("CAST({} AS {}) AS {}").format(sql.SQL(made), sql.SQL(type_), sql.Identifier(column))
                for column, (made, type_, _) in plan.reverse.proof.items()
            ),
            copy=plan.copy_only,
            of_copy=plan.key.join("t", "k"),
            differ=sql.SQL(" OR ").join(differ.values()),
            limit=sql.Literal(NAMED),
        ),
        ["text", "text[]"],
        taken,
    )
    if rows:
        raise Unproven([f"({key})" for key, _ in rows], sorted({c for _, columns in rows for c in columns}))


def _insert_rows(conn: Session, plan: Plan, taken: sql.Identifier, relation: sql.Identifier, role: str) -> int:
    """As the role, or as ourselves ('')."""
    target = into(relation, plan.columns.list)
    insert = sql.SQL(_Q["insert_rows"]).format(into=target, rows=rows_of_keys(plan, taken))
    if plan.split is None:
        return as_owner.execute(conn, role, insert, taken)
    try:
        with conn.transaction():
            return as_owner.execute(conn, role, insert, taken)
    except pg.CheckViolation as error:
        if not partition_cells.has_no_partition(plan, error):
            raise
        rows = sql.SQL(_Q["from_keys"]).format(source=plan.source, staging=taken, join=plan.key.join("t", "k"))
        cells = partition_cells.cells_of(conn, plan, partition_cells.values(plan, rows), taken)
        if not partition_cells.are_new(conn, plan, cells):
            raise
        raise NoPartition(cells) from None
