"""The change logs as a window reads them: what one snapshot of the source shows of them.

Triggers write them on the source, in whose session that snapshot is kept. Those that a slot fills are on the target,
and hold also what the snapshot does not show yet: a commit can be decoded before it becomes visible (C1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.plan import PlanKey
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

if TYPE_CHECKING:  # workers import this, and need no parser of files
    from airflow_provider_pgddl.engine.pipeline.model import Pipeline

_Q = queries("windows")
TABLES_A_QUERY = 100  # tables whose logs or pending keys are summed up in one query


@dataclass(frozen=True, slots=True)
class Logs:
    """`session` is where they are; `shown` None: what it sees, else the source's snapshot whose changes belong.

    `ends` has, by table id, the place at which to stop in a log that is not taken as a whole: rows that stand before it
    are all that is read and forgotten. Nobody moves a log's row; what others write into free space before that place
    the snapshot does not show, so it is neither."""

    session: Session
    shown: str | None = None
    ends: Mapping[int, str] = field(default_factory=dict)

    @property
    def on_target(self) -> bool:
        return self.shown is not None

    def of(self, table: TableRow) -> sql.Composable:
        where = self._where(table)
        log = change_log.log_table(table.log_table)
        return sql.SQL("(SELECT * FROM {}{})").format(log, where) if where else log

    def lost_track(self, table: TableRow) -> list[str]:
        """Where in the log it says that track of the table was lost."""
        query = sql.SQL("SELECT ctid::text FROM {} AS l WHERE op = 'X'").format(change_log.log_table(table.log_table))
        return [place for (place,) in self.session.execute(query)]

    def forget(self, tables: Iterable[TableRow], *, read_again: Sequence[str] = ()) -> None:
        """What has been taken, and nothing else: in the transaction that has read it, or one with its snapshot.

        That track of a table was lost only who has `read_again` all of it may forget, as far as that was said, at these
        places, before the snapshot that he has read it at. Whoever takes a log has found no such row in it; another run
        may have put one there since, which every snapshot shows."""
        for table in tables:
            statement = sql.SQL("DELETE FROM {}{}").format(
                change_log.log_table(table.log_table), self._where(table) or sql.SQL(" WHERE true")
            )
            said_before = sql.SQL(" AND (op <> 'X' OR ctid = ANY(%s::pg_catalog.tid[]))")
            self.session.execute(statement + said_before, [list(read_again)])

    def _where(self, table: TableRow) -> sql.Composable | None:
        terms = list[sql.Composable]()
        if self.shown is not None:
            visible = sql.SQL("pg_catalog.pg_visible_in_snapshot(xid, {}::pg_catalog.pg_snapshot)")
            terms.append(visible.format(sql.Literal(self.shown)))
        if table.id in self.ends:
            terms.append(sql.SQL("ctid < {}::pg_catalog.tid").format(sql.Literal(self.ends[table.id])))
        return sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(terms)) if terms else None

    def at_most(self, tables: Sequence[TableRow], rows: int | None) -> Self:
        """The same, of which no more than so many rows a table are taken (None: all), wherever they stand.

        A table with columns that its copy alone has is taken as a whole: their values follow the keys in order."""
        if rows is None:
            return self
        ends: dict[int, str] = {}
        with self.session.transaction(force_rollback=True):  # with it go the settings
            # Rows in the order in which they stand, from the first on.
            self.session.execute("SET LOCAL synchronize_seqscans = off; SET LOCAL max_parallel_workers_per_gather = 0")
            _, filled = _there(self, [t for t in tables if not t.plan.columns.kept])
            for batch in batches(filled):
                query = sql.SQL(" UNION ALL ").join(self._end(table, rows) for table in batch)
                ends |= {table_id: end for table_id, end in self.session.execute(query) if end}
        return replace(self, ends=ends)

    def _end(self, table: TableRow, rows: int) -> sql.Composed:
        log = change_log.log_table(table.log_table) + (self._where(table) or sql.SQL(""))
        return sql.SQL(_Q["log_end"]).format(id=sql.Literal(table.id), log=log, rows=sql.Literal(rows))

    def left(self, tables: Iterable[TableRow], most: int) -> dict[int, int]:
        """How many rows are not taken of each log that is not taken as a whole; none is counted further than `most`."""
        behind = [t for t in tables if t.id in self.ends]
        whole, found = replace(self, ends={}), dict[int, int]()
        for batch in batches(behind):
            query = sql.SQL(" UNION ALL ").join(
                sql.SQL(_Q["log_left"]).format(
                    id=sql.Literal(t.id), log=change_log.log_table(t.log_table), rows=sql.Literal(most),
                    end=sql.Literal(self.ends[t.id]), shown=whole._where(t) or sql.SQL(" WHERE true"),
                )
                for t in batch
            )  # fmt: skip
            # At least one, also where somebody has packed the log since `at_most`: such a table is looked at once more.
            found |= {table_id: max(1, rows) for table_id, rows in self.session.execute(query)}
        return found


def logs_now(pipeline: Pipeline, source: Session, target: Session) -> Logs:
    """As they are now, whatever has been decoded into them."""
    return Logs(target if pipeline.by_slot else source)


def count_changes(logs: Logs, tables: Sequence[TableRow]) -> dict[int, int]:
    """Log rows a table."""
    return {table_id: summary[0] for table_id, summary in summaries(logs, tables).items()}


def lost_tracks(logs: Logs, tables: Sequence[TableRow]) -> set[int]:
    """The ids of the tables whose log says that it does not know what changed."""
    followed = [t for t in tables if not t.keyless]
    return {table_id for table_id, (_, lost, _) in summaries(logs, followed).items() if lost}


def summaries(logs: Logs, tables: Sequence[TableRow]) -> dict[int, tuple[int, bool, list[int]]]:
    """Table id → (log rows, whether one says 'X', leaves that were truncated). A log that is not there, since a run
    died while it made a new one, does not know anything."""
    there, filled = _there(logs, tables)
    found: dict[int, tuple[int, bool, list[int]]] = {t.id: (0, True, []) for t in tables}
    found |= {t.id: (0, False, []) for t in there}
    for batch in batches(filled):
        query = sql.SQL(" UNION ALL ").join(
            sql.SQL(_Q["log_summary"]).format(id=sql.Literal(t.id), log=logs.of(t)) for t in batch
        )
        found |= {row[0]: (row[1], row[2], row[3]) for row in logs.session.execute(query)}
    return found


def may_hold_rows(session: Session, names: Iterable[str]) -> dict[str, bool]:
    """Of these tables in our schema, whether one may hold rows for whatever snapshot; one that is not there is left
    out. Nothing is locked by it for longer than it takes."""
    return dict(session.execute(_Q["may_hold_rows"], [list(names)]).fetchall())


def logged(logs: Logs, tables: Sequence[TableRow]) -> set[int]:
    """The ids of the tables whose log shows a row, or is not there: it does not know anything. No lock is left."""
    there, filled = _there(logs, tables)
    found = {t.id for t in tables} - {t.id for t in there}
    for batch in batches(filled):
        query = sql.SQL(" UNION ALL ").join(
            sql.SQL(_Q["log_shows"]).format(id=sql.Literal(t.id), log=logs.of(t)) for t in batch
        )
        with logs.session.transaction(force_rollback=True):
            found |= {table_id for (table_id,) in logs.session.execute(query)}
    return found


def _there(logs: Logs, tables: Sequence[TableRow]) -> tuple[list[TableRow], list[TableRow]]:
    """(those whose log is there, those of them whose log may hold rows)"""
    may_hold = may_hold_rows(logs.session, [t.log_table for t in tables])
    there = [t for t in tables if t.log_table in may_hold]
    return there, [t for t in there if may_hold[t.log_table]]


def batches(tables: Sequence[TableRow]) -> Iterable[Sequence[TableRow]]:
    return (tables[i : i + TABLES_A_QUERY] for i in range(0, len(tables), TABLES_A_QUERY))


def log_keys(logs: Logs, table: TableRow, staging: sql.Identifier) -> sql.Composed:
    """Every key that the log names; `staging` is the table that takes them."""
    key = table.plan.key
    old, new, same = key.list("old_"), key.list("new_"), unmoved(logs, key)
    return read_as(logs, key, staging, sql.SQL(_Q["log_keys"]).format(old=old, new=new, same=same, log=logs.of(table)))


def unmoved(logs: Logs, key: PlanKey) -> sql.Composed:
    """Whether a row `l` of the log names one key twice."""
    if logs.on_target and key.has_user_types:
        return sql.SQL(_Q["same_text"]).format(old=key.list("old_"), new=key.list("new_"))
    return key.same("l", "old_", "l", "new_")


def read_as(logs: Logs, key: PlanKey, relation: sql.Identifier, rows: sql.Composed) -> sql.Composed:
    """Rows of the log as rows of this relation, where a slot has left keys as text: through the types' own input, as
    COPY reads them, for a cast may be somebody's function."""
    if not (logs.on_target and key.has_user_types):
        return rows
    return sql.SQL(_Q["read_as"]).format(relation=relation, rows=rows)
