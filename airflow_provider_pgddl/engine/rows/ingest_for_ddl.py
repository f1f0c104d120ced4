"""Ingest alone, which makes room for DDL: what has changed leaves the copies."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rights import foreign_code
from airflow_provider_pgddl.engine.rows import archive, copy_only_columns, foreign_keys_and_triggers, window_locks
from airflow_provider_pgddl.engine.rows.adopted_rows import empty_copy, spare_extra
from airflow_provider_pgddl.engine.rows.change_log_reading import summaries
from airflow_provider_pgddl.engine.rows.copy_shape import hold_copies
from airflow_provider_pgddl.engine.rows.pending_keys import (
    delete_from_copy,
    leave_pending,
    pending_table,
    stage_keys,
    staging_table,
)
from airflow_provider_pgddl.engine.rows.wal_flush import flush
from airflow_provider_pgddl.engine.rows.window_locks import Replica, logs_of, watched
from airflow_provider_pgddl.engine.rows.windows import Window, ingest_across, note_window, untied
from airflow_provider_pgddl.engine.rows.windows_in_place import LostTrack, drain
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.giving_way import POLITE, Effort
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("windows")


def clear_changed(
    replica: Replica, tables: Sequence[TableRow], take: int | None = None, effort: Effort = POLITE
) -> int:
    """Ingest alone, before DDL is applied: every row that has changed leaves its copy and becomes pending.

    What is left has not changed since the last window, so it was there when the source ran the statement and checked
    it: SET NOT NULL, ADD UNIQUE, ATTACH succeed on it as they did there. Also of tables that DDL has changed by now,
    since log and copy still are what the plan says. One whose log does not know its keys is emptied: it is read again.

    Where blocks are still being copied the keys stay in the log: a block can bring such a row once more.

    Returns how many log rows are left, of which no more than `take` a table are taken: there is room once it is 0.
    """
    with watched(replica, effort):
        window_locks.lock_tables(replica, tables, effort.wait)
        tables = _emptied_where_captured_anew(replica, tables)
        _forget_changed(replica, [t for t in tables if t.state == "created"])
        tables = [t for t in tables if t.state != "created"]
        if not replica.in_place:
            return _clear_across(replica, tables, take)
        logs = logs_of(replica).at_most(tables, take)
        left = logs.left(tables, take or 1)
        for table in tables:
            try:
                with replica.source.transaction():
                    drain(replica.source, table, 0, logs)
            except LostTrack:
                _empty(replica, table)
                left.pop(table.id, None)
        return sum(left.values())


def clear_whole(replica: Replica, tables: Sequence[TableRow]) -> None:
    """Every row leaves its copy, where nobody knows which ones have changed."""
    for table in tables:
        with replica.target.transaction():
            if _keepable(replica.target, [table]):
                _empty(replica, table)
            lease.check(replica.target, replica.fence)
            failpoint("ddl.before_whole_room_commit", replica.target)


def _emptied_where_captured_anew(replica: Replica, tables: Sequence[TableRow]) -> list[TableRow]:
    """The tables without those that are gone, and those whose log is no longer the one that the plan was made for:
    these are going to be read as a whole."""
    now = catalog.describe(replica.source, [t.oid for t in tables], change_log.capture_names(replica.pipeline))
    left = []
    for table in tables:
        leaves = now[table.oid].leaves if table.oid in now else ()
        if any(x.triggers != table.physical[str(x.oid)][2] for x in leaves if str(x.oid) in table.physical):
            clear_whole(replica, [table])
        elif leaves:
            left.append(table)
    return left


def _forget_changed(replica: Replica, tables: Sequence[TableRow]) -> None:
    if not tables:
        return
    logs = logs_of(replica)
    with replica.target.transaction():
        tables = _keepable(replica.target, tables)
        tables, behind = _allowed(replica.target, tables)
        with foreign_keys_and_triggers.quiet(replica.target, foreign_keys_and_triggers.by_id(tables)) as tied:
            for table in (t for t in tables if t.id not in tied.triggers):
                count, lost_track, _ = summaries(logs, [table])[table.id]
                if not (count or lost_track):
                    continue
                staging = staging_table(replica.target, "ingest", table.plan, table.id)
                if lost_track or stage_keys(logs, replica.target, table, staging) is None:
                    _empty(replica, table)
                else:
                    spare_extra(replica.source, replica.target, table, staging)
                    delete_from_copy(replica.target, table, staging, behind=table.id in behind)
                    replica.target.execute(sql.SQL("TRUNCATE {}").format(staging))
        lease.check(replica.target, replica.fence)
        failpoint("ddl.before_block_room_commit", replica.target)


def _clear_across(replica: Replica, tables: Sequence[TableRow], take: int | None) -> int:
    source, target = replica.source, replica.target
    row = source.execute(_Q["take_snapshot"]).fetchone()
    assert row is not None
    _, lsn, taken_at = row
    acknowledged = change_log.window_no(source, replica.pipeline) or 0
    done = Window(taken_at, lsn)
    logs = logs_of(replica).at_most(tables, take)
    with target.transaction():
        tables = _keepable(target, tables)
        tables, behind = _allowed(target, tables)
        with foreign_keys_and_triggers.quiet(target, foreign_keys_and_triggers.by_id(tables)) as firing:
            tables, tied, _ = untied(target, tables, firing, Window(taken_at, lsn))
            tables = [t for t in tables if t.id not in tied.tied & behind]
            changed, staged = ingest_across(replica, logs, tables, done, tied, behind)
            leave_pending(target, tables, staged)
            for table in tables:
                if table.id in done.stopped:
                    _empty(replica, table)
        if logs.on_target:
            logs.forget(changed)
        flush(replica.watcher, lsn)
        journal = Journal(target, replica.pipeline)
        left = logs.left([t for t in tables if t.id not in done.stopped], take or 1)
        done.left = sum(left.values())
        done.pending = done.keys + done.left
        done.number = note_window(journal, replica, done, acknowledged, False)
        lease.check(target, replica.fence)
        failpoint("ddl.before_room_commit", target)
    if not logs.on_target:
        logs.forget(changed)
    change_log.acknowledge(source, replica.pipeline, done.number)
    return done.left


def _keepable(target: Session, tables: Sequence[TableRow]) -> list[TableRow]:
    """Without those whose copy was altered and has values to keep, which might not fit any more. Of others rows are
    only deleted by key, whatever became of their copies: a run that died between an event and the plan that follows
    from it has left such, and DDL still wants room."""
    altered = hold_copies(target, {t.id: t.plan for t in tables if t.plan.columns.kept})
    return [t for t in tables if t.id not in altered]


def _allowed(target: Session, tables: Sequence[TableRow]) -> tuple[list[TableRow], set[int]]:
    """Without those that must not be touched; and which are written to behind the wall."""
    behind, stops = foreign_code.hold_code_of_copies(target, {t.id: t.plan for t in tables})
    keeping = {t.id for t in tables if t.id in behind and archive.not_behind_the_wall(t.plan)}
    return [t for t in tables if t.id not in stops.keys() | keeping], behind


def _empty(replica: Replica, table: TableRow) -> None:
    """Not where foreign keys or triggers would fire: what wants room is tried again, and the table is read again."""
    target, plan = replica.target, table.plan
    if plan.operations:
        return  # nothing leaves, and what waits goes on to wait
    if plan.adopted not in ("", "compared"):
        return  # nobody knows yet what is in it: it is compared, whatever is read again
    (allowed, behind) = _allowed(target, [table])
    with foreign_keys_and_triggers.quiet(target, {table.id: plan}) as tied:
        if tied.tied or tied.triggers or not allowed:
            return
        copy_only_columns.save_all(target, table)
        role = plan.keepers.writer if behind else ""
        empty_copy(target, plan, role)
        target.execute(sql.SQL("TRUNCATE {}").format(pending_table(table.id)))


def empty_again(target: Session, table: TableRow) -> None:
    """Empties a copy whose rows are all to be read again, in the caller's transaction; the values that it alone has are
    kept. StageFailed where that would run code of its owner as us."""
    plan = table.plan
    refuse_code(target, table)
    with foreign_keys_and_triggers.quiet(target, {table.id: plan}) as tied:
        if plan.keepers.writer and (stops := foreign_keys_and_triggers.told(tied.stops((), target.info.user))):
            raise StageFailed("; ".join(stops[table.id]), table=table.qualified)
        copy_only_columns.save_all(target, table)
        target.execute(sql.SQL("TRUNCATE {}").format(plan.copy_only))


def refuse_code(target: Session, table: TableRow) -> None:
    """Locks a copy that is not trusted; StageFailed where it must not be touched, or has values to keep and code of its
    owner."""
    if foreign_code.writer_of(target, table.plan) and table.plan.columns.kept:
        raise StageFailed(copy_only_columns.NOT_BEHIND_THE_WALL, table=table.qualified)
