"""The change logs as a window reads them: what one snapshot of the source shows of them.

Triggers write them on the source, in whose session that snapshot is kept. Those that a slot fills are on the target,
and hold also what the snapshot does not show yet: a commit can be decoded before it becomes visible (C1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.journal import TableRow
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("windows")
TABLES_A_QUERY = 100  # tables whose logs or pending keys are summed up in one query


@dataclass(frozen=True, slots=True)
class Logs:
    """`session` is where they are; `shown` None: what it sees, else the source's snapshot whose changes belong."""

    session: Session
    shown: str | None = None

    def of(self, table: TableRow) -> sql.Composable:
        log = change_log.log_table(table.log_table)
        if self.shown is None:
            return log
        return sql.SQL(
            "(SELECT * FROM {} WHERE pg_catalog.pg_visible_in_snapshot(xid, {}::pg_catalog.pg_snapshot))"
        ).format(log, sql.Literal(self.shown))

    def forget(self, tables: Iterable[TableRow]) -> None:
        """In the target's own transaction, where they are there: what this snapshot shows has been taken."""
        for table in tables if self.shown is not None else ():
            shown = sql.SQL("DELETE FROM {} WHERE pg_catalog.pg_visible_in_snapshot(xid, {}::pg_catalog.pg_snapshot)")
            self.session.execute(shown.format(change_log.log_table(table.log_table), sql.Literal(self.shown)))


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
    rows = logs.session.execute(_Q["logs_there"], [[t.log_table for t in tables]]).fetchall()
    there = {row[0] for row in rows}
    found: dict[int, tuple[int, bool, list[int]]] = {t.id: (0, True, []) for t in tables if t.log_table not in there}
    for batch in batches([t for t in tables if t.log_table in there]):
        query = sql.SQL(" UNION ALL ").join(
            sql.SQL(_Q["log_summary"]).format(id=sql.Literal(t.id), log=logs.of(t)) for t in batch
        )
        found |= {row[0]: (row[1], row[2], row[3]) for row in logs.session.execute(query)}
    return found


def batches(tables: Sequence[TableRow]) -> Iterable[Sequence[TableRow]]:
    return (tables[i : i + TABLES_A_QUERY] for i in range(0, len(tables), TABLES_A_QUERY))


def log_keys(logs: Logs, table: TableRow) -> sql.Composed:
    plan = table.plan
    old, new, same = plan.key_list("old_"), plan.key_list("new_"), plan.same_key("l", "old_", "l", "new_")
    return sql.SQL(_Q["log_keys"]).format(old=old, new=new, same=same, log=logs.of(table))
