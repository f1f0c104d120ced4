"""capture.rows: direct_trigger (in place): when a table's writers write to its copy themselves, and when they do not.

Windows, DDL on the copy and reading a table again are made for a copy that nobody else writes to. So each of them takes
the table back first, and a replay that has caught up hands it over again."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from airflow_provider_pgddl.engine.capture import direct_function
from airflow_provider_pgddl.engine.errors import NO_SUCH_RELATION, Fenced, Retry
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs, count_changes
from airflow_provider_pgddl.engine.rows.partition_cells import NoPartition
from airflow_provider_pgddl.engine.rows.pending_keys import count_pending
from airflow_provider_pgddl.engine.rows.transfer import REFUSALS, refused_row
from airflow_provider_pgddl.engine.rows.windows import stopped_by_drift
from airflow_provider_pgddl.engine.rows.windows_in_place import LostTrack, drain
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.server.strong_locks import with_tries, writers_wait
from airflow_provider_pgddl.engine.sql import queries

LOCK = "SHARE ROW EXCLUSIVE"  # waits for every writer and keeps them out; readers go on


class _Stays(Exception):
    """Why a table cannot be handed over now."""


def hand_over(context: Context) -> None:
    """Every table that has caught up: in one short transaction the rest of its log is drained and its triggers write
    to the copy from then on (C10). One that cannot be handed over now keeps its log, which loses nothing, until the
    next replay."""
    for table in _of_the_log(context):
        if owner := table.plan.keepers.writer:
            context.say(
                f"{table.qualified}: stays with the change log: a direct trigger would run code of {owner}, who is not "
                "in trusted_roles, with our rights"
            )
            continue
        late = direct_function.late_checks(context.source, table.plan)
        if late:
            context.say(f"{table.qualified}: stays with the change log: {', '.join(late)} is checked late (DEFERRABLE)")
            continue
        try:
            _hand_over(context, table)
        except REFUSALS as error:
            context.say(f"{table.qualified}: stays with the change log for now: {refused_row(error)}")
        except Fenced:
            raise
        except (_Stays, LostTrack, NoPartition, Retry) as why:
            context.say(f"{table.qualified}: stays with the change log for now: {why}")
        else:
            context.say(f"{table.qualified}: its writers write to the copy from here on")


def take_back(context: Context, tables: Sequence[TableRow]) -> None:
    """Their writers write to the log again, and no direct write is under way any more. Retry where the lock for that
    is not to be had."""
    modes = _modes(context)
    conn = context.source
    for table in tables:
        if table.oid not in modes:
            continue

        def attempt(table: TableRow = table) -> None:
            with writers_wait(), conn.transaction():
                _keep_writers_out(context, conn, table)
                direct_function.write_to_log(conn, context.name, table.oid)
                lease.check(conn, context.fence(table))
                failpoint("direct.before_take_back_commit", conn)

        with_tries(context.pipeline.swap, f"taking {table.qualified} back from its direct trigger", attempt)


def for_a_window(context: Context, tables: Sequence[TableRow], *, compared: bool) -> list[TableRow]:
    """Those that a window has to do with: a table whose writers write to the copy themselves has nothing to replay as
    long as its log is empty. One that has something is taken back, and so is one that is going to be compared."""
    modes = _modes(context)
    handed = [t for t in tables if t.oid in modes]
    if not handed:
        return list(tables)
    changes, pending = count_changes(Logs(context.source), handed), count_pending(context.source, handed)
    back = [t for t in handed if compared or modes[t.oid] == "left" or changes[t.id] or t.id in pending]
    take_back(context, back)
    away = {t.id for t in handed} - {t.id for t in back}
    return [t for t in tables if t.id not in away]


def _modes(context: Context) -> dict[int, str]:
    if context.pipeline.capture.rows != "direct_trigger":
        return {}
    return direct_function.modes(context.source, context.name)


def _of_the_log(context: Context) -> list[TableRow]:
    if context.pipeline.capture.rows != "direct_trigger":
        return []
    modes = _modes(context)
    return [t for t in context.healthy(context.tables(), "indexed") if t.oid not in modes and not t.keyless]


def _hand_over(context: Context, table: TableRow) -> None:
    conn, most = context.source, context.pipeline.replay.window_rows

    def attempt() -> None:
        with writers_wait(), conn.transaction():
            _keep_writers_out(context, conn, table)
            _, stopped = stopped_by_drift(conn, Journal(conn, context.name), [table])
            if stopped:
                raise _Stays("; ".join(stopped[table.id]))
            if Logs(conn).at_most([table], most).ends:
                raise _Stays("too many changes came just now")
            waiting = count_changes(Logs(conn), [table])[table.id] + sum(count_pending(conn, [table]).values())
            if waiting > most:
                raise _Stays(f"{waiting} changes came just now")
            drain(conn, table, most)
            if count_pending(conn, [table]):  # a row of the log may have two keys
                raise _Stays("too many keys changed just now")
            direct_function.write_to_copy(conn, context.name, table)
            lease.check(conn, context.fence(table))
            failpoint("direct.before_hand_over_commit", conn)

    with_tries(context.pipeline.swap, f"handing {table.qualified} over to its direct trigger", attempt)
    failpoint("direct.after_hand_over")


def _keep_writers_out(context: Context, conn: Session, table: TableRow) -> None:
    """Under the name that it has now; one that was dropped has no writers."""
    limit_lock_wait(conn, context.pipeline.swap.lock_timeout)
    query = queries("capture")["relation_name"]
    name = conn.execute(query, [table.oid]).fetchone()
    if name is None:
        return
    renamed = Retry("was dropped or renamed just now", table=table.qualified, todo="run the stage again")
    try:
        only = sql.SQL("" if table.plan.partitioned else "ONLY ")
        conn.execute(sql.SQL("LOCK TABLE {}{} IN {} MODE").format(only, sql.Identifier(*name), sql.SQL(LOCK)))
    except NO_SUCH_RELATION:
        raise renamed from None
    if conn.execute(query, [table.oid]).fetchone() != name:
        raise renamed
