"""Reading a table again: its rows leave the copy, and every key that the source has becomes pending.

The copy stays a subset of the source at each window's snapshot, so its indexes can stand, and windows bring the rows.
For what the change log cannot tell: a rewrite that computed new values, a key that is another one now, a table or a
partition that held rows before it was captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.rights import as_owner, foreign_code
from airflow_provider_pgddl.engine.rows import archive, copy_only_columns, foreign_keys_and_triggers
from airflow_provider_pgddl.engine.rows.adopted_rows import empty_copy
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs
from airflow_provider_pgddl.engine.rows.chunk_rows import leaf_rows
from airflow_provider_pgddl.engine.rows.copy_shape import COPY_ALTERED, hold_copies
from airflow_provider_pgddl.engine.rows.foreign_keys_and_triggers import Ties
from airflow_provider_pgddl.engine.rows.pending_keys import (
    create_pending,
    delete_from_copy,
    drop_pending,
    ingest_keys,
    pending_table,
    staging_table,
)
from airflow_provider_pgddl.engine.rows.transfer import copy_between, read_statement, write_statement
from airflow_provider_pgddl.engine.rows.wal_flush import flush, insert_lsn
from airflow_provider_pgddl.engine.rows.window_locks import Replica, lock_tables, logs_of, watched
from airflow_provider_pgddl.engine.rows.windows import Window, moves_in_window, note_window
from airflow_provider_pgddl.engine.schema.drift import drift
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.giving_way import POLITE, Effort

NOT_LIMITED = sql.SQL("")


class Tied(Exception):
    """Why the copy cannot be emptied."""


class ChangedAgain(Exception):
    """The table or its copy has changed since it was looked at: what changed it comes first."""


def reload(
    replica: Replica,
    table: TableRow,
    record: Callable[[Session], None],
    leaves: Sequence[int] = (),
    effort: Effort = POLITE,
) -> int:
    """Makes all keys pending (of these leaves only, where some are named); returns how many rows those are.

    `table` is as it is to be recorded, and `record` records it, in the transaction that empties the copy. ChangedAgain
    where the table or its copy is not that any more, Tied where its copy cannot be emptied, GaveWay where somebody
    waits for it.
    """
    lost = Logs(replica.target).lost_track(table) if replica.receive is not None else None
    with watched(replica, effort):
        lock_tables(replica, [table], effort.wait)
        triggers = change_log.capture_names(replica.pipeline)
        now = catalog.describe(replica.source, [table.oid], triggers).get(table.oid)
        if findings := drift(table.version, table.physical, now):
            raise ChangedAgain("; ".join(findings))
        assert now is not None
        names = {leaf.oid: sql.Identifier(leaf.schema, leaf.name) for leaf in now.leaves}
        logs = logs_of(replica)
        if lost is None:
            lost = logs.lost_track(table)
        if replica.in_place:
            keys = _make_pending(replica, logs, table, record, {oid: names[oid] for oid in leaves})
        else:
            with replica.target.transaction():
                with foreign_keys_and_triggers.quiet(replica.target, {table.id: table.plan}) as tied:
                    _refuse_tied(tied)
                    keys = _make_pending(replica, logs, table, record, {oid: names[oid] for oid in leaves})
                if not leaves and logs.on_target:
                    logs.forget([table], read_again=lost)
                flush(replica.watcher, insert_lsn(replica.source))
                number = _note_as_window(replica, keys)
                lease.check(replica.target, replica.fence)
                failpoint("settle.before_reload_commit", replica.target)
        if not leaves and not logs.on_target:
            logs.forget([table], read_again=lost)
        if not replica.in_place:
            change_log.acknowledge(replica.source, replica.pipeline, number)
    return keys


def reload_part(
    replica: Replica, table: TableRow, was: Plan, record: Callable[[Session], None], effort: Effort = POLITE
) -> int:
    """Makes the keys pending of rows that belong on the target by the plan of `table` and did not by the plan that
    `was`, or the other way, and takes them out of the copy; returns how many those are. Of rows that have changed since
    the copy's window the log tells as ever. As `reload` otherwise; never in place."""
    with watched(replica, effort):
        lock_tables(replica, [table], effort.wait)
        now = catalog.describe(replica.source, [table.oid], change_log.capture_names(replica.pipeline)).get(table.oid)
        if findings := drift(table.version, table.physical, now):
            raise ChangedAgain("; ".join(findings))
        logs_of(replica)  # nothing is taken of them, but as far as this snapshot shows they have been read
        with replica.target.transaction():
            with foreign_keys_and_triggers.quiet(replica.target, {table.id: table.plan}) as tied:
                _refuse_tied(tied)
                coded = _hold_copy(replica, table)
                record(replica.target)
                staging = staging_table(replica.target, "ingest", table.plan, table.id)
                differ = replace(table.plan, where=_one_alone(was.where, table.plan.where))
                keys = copy_keys(replica, differ, differ.rows, staging)
                ingest_keys(replica.target, table, staging, (), behind=coded)
            flush(replica.watcher, insert_lsn(replica.source))
            number = _note_as_window(replica, keys)
            lease.check(replica.target, replica.fence)
            failpoint("settle.before_part_commit", replica.target)
        change_log.acknowledge(replica.source, replica.pipeline, number)
    return keys


def _note_as_window(replica: Replica, keys: int) -> int:
    """Which keys there are was read, and the log of what was before is forgotten: a server that is failed over to a
    state without this has lost as much as one without a window (C33). Returns the number."""
    now = replica.source.execute("SELECT pg_catalog.clock_timestamp()").fetchone()
    assert now is not None
    acknowledged = change_log.window_no(replica.source, replica.pipeline) or 0
    done = Window(now[0], "", pending=keys)
    return note_window(Journal(replica.target, replica.pipeline), replica, done, acknowledged, False)


def _one_alone(one: str, other: str) -> str:
    """The condition of rows for which one of two conditions is true, and the other is not; none is always true."""
    return " IS DISTINCT FROM ".join(f"(({condition or 'true'}) IS TRUE)" for condition in (one, other))


def _refuse_tied(tied: Ties) -> None:
    if tied.tied or tied.triggers:
        names = [key.name for key in tied.inner] + [
            n for on in (tied.triggers or {}).values() for _, ns in on for n in ns
        ]
        raise Tied(
            f"has to be read again, for which its copy has to be emptied: {', '.join(names)} on the target would fire,"
            " and our role may not prevent it: drop it, or GRANT SET ON PARAMETER session_replication_role"
        )


def _hold_copy(replica: Replica, table: TableRow) -> bool:
    """The copy as it is, until the transaction ends; whether code of its owner runs for its rows. Tied where it does
    and there is something to keep, which the owner has no rights on."""
    if hold_copies(replica.target, {table.id: table.plan}):
        raise ChangedAgain(COPY_ALTERED)
    coded, stops = foreign_code.code_of_copies(replica.target, {table.id: table.plan})
    if stops:
        raise ChangedAgain("; ".join(stops[table.id]))
    if coded and (why := archive.not_behind_the_wall(table.plan)):
        raise Tied("; ".join(why))
    return bool(coded)


def _make_pending(
    replica: Replica,
    logs: Logs,
    table: TableRow,
    record: Callable[[Session], None],
    leaves: Mapping[int, sql.Identifier],
) -> int:
    coded = _hold_copy(replica, table)
    record(replica.target)
    if not leaves:
        if table.plan.columns.kept:
            moves = moves_in_window(replica, logs, table)
            copy_only_columns.save_all(replica.target, table)
            copy_only_columns.forget_truncated(replica.target, table, moves.truncated)
            copy_only_columns.follow(replica.target, table, moves)
        role = table.plan.keepers.writer if coded else ""
        empty_copy(replica.target, table.plan, role)
        drop_pending(replica.target, table)  # its columns may be another key's
        create_pending(replica.target, table)
        keys = copy_keys(replica, table.plan, table.plan.rows, pending_table(table.id))
        # A key of those that waited may be of a row that is gone; and the source may just have come to have rows that
        # only the target had: the log that said so has been forgotten.
        if table.plan.operations:
            archive.all_wait(replica.target, table.plan, pending_table(table.id))
        elif table.plan.extra:
            delete_from_copy(replica.target, table, pending_table(table.id), behind=coded)
        return keys
    staging = staging_table(replica.target, "ingest", table.plan, table.id)
    parts = [leaf_rows(table.plan, table.version, leaf) for leaf in leaves.values()]
    rows = sum(copy_keys(replica, table.plan, part, staging) for part in parts)
    copy_only_columns.save_leaves(replica.target, table, leaves)
    # A partition that was away may have lost rows meanwhile that no log tells of.
    ingest_keys(replica.target, table, staging, list(leaves), behind=coded)
    return rows


def copy_keys(
    replica: Replica,
    plan: Plan,
    rows: sql.Composable,
    into: sql.Identifier,
    limited: sql.Composable = NOT_LIMITED,
) -> int:
    """The keys of rows of the source (`Plan.rows`, `leaf_rows`); of a range by `limited`, its WHERE."""
    names = sql.SQL(", ").join(map(sql.Identifier, plan.key.columns))
    query = sql.SQL("SELECT {} FROM {} AS t{}").format(names, rows, limited)
    # This is no window, and the last one may have had nothing to do with the table.
    role = foreign_code.reader_of(replica.source, plan, asked=False)
    with as_owner.selected(replica.source, role, query, plan.key.types) as keys:
        if replica.in_place:
            return _insert(replica.source, into, plan, keys)
        read = read_statement(keys, plan.key.binary)
        write = write_statement(into, plan.key.list(), plan.key.binary)
        return copy_between(replica.source, replica.target, read, write, wordless=plan.in_part).rows


def _insert(conn: Session, into: sql.Identifier, plan: Plan, keys: sql.Composable) -> int:
    return conn.execute(sql.SQL("INSERT INTO {} ({}) {}").format(into, plan.key.list(), keys)).rowcount
