"""A window's sessions, and what it locks: the tables that it has something to do with.

A server has few locks, of tables a pipeline may have thousands, and whoever keeps one of them to himself should not be
in the way of all others. A table whose log T shows empty, and of which no key is pending, is at T what its copy is:
nothing of it is read or written, so nothing has to be kept from it. Which tables those are is asked before there is a
snapshot, as locks come first (C3), and once more under it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.errors import Busy, GaveWay, gone_meanwhile
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.lease import Fence
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rights import foreign_code
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs, logged, may_hold_rows
from airflow_provider_pgddl.engine.rows.foreign_keys_and_triggers import may_silence, read_ties
from airflow_provider_pgddl.engine.rows.pending_keys import count_pending
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.giving_way import ASKED_FOR, Effort, Watch
from airflow_provider_pgddl.engine.server.lock_timeout import holders, note_waits
from airflow_provider_pgddl.engine.sql import queries

TRIES = 3  # the last of which locks all of a window's tables, whichever it has to do with


@dataclass(frozen=True, slots=True)
class Replica:
    """One pipeline's sessions for windows: `source` holds the snapshot, `target` writes, `watcher` watches the
    source."""

    pipeline: str
    run: int
    source: Session
    target: Session
    watcher: Session
    fence: Fence
    in_place: bool
    receive: Callable[[], None] | None = None
    """Where a slot fills the change logs: brings them, on the target, to what the source has committed by now."""
    fenced: bool = False
    """Whether a session of ours holds all tables against writers, in mode EXCLUSIVE."""
    types: Callable[[], Mapping[int, str]] = dict[int, str]
    """Of the source, as far as DDL by a slot has been followed."""


class NotLocked(Exception):
    """A window has to do with tables, by their ids, that it has not locked: it is begun again with them."""

    def __init__(self, tables: set[int]):
        self.tables = tables
        super().__init__("a window has to lock more tables")


def logs_of(replica: Replica) -> Logs:
    """As the snapshot of the source's transaction shows them."""
    failpoint("replay.after_snapshot", replica.source)
    if replica.receive is None:
        return Logs(replica.source)
    shown = catalog.current_snapshot(replica.source)
    replica.receive()  # after the snapshot: every commit that it shows is below what is read now
    return Logs(replica.target, shown)


def logs_before(replica: Replica) -> Logs:
    """As they are before there is a snapshot."""
    if replica.receive is None:
        return Logs(replica.watcher)
    replica.receive()
    return Logs(replica.target)


def concerned(replica: Replica, tables: Sequence[TableRow], logs: Logs) -> set[int]:
    """The ids of the tables that a window has something to do with, by what `logs` show: their log is not empty, or not
    there; keys are pending; or the copy has values that nobody else knows. No lock is left by the question."""
    pending = {f"pending_{t.id}": t for t in tables if not t.keyless}
    filled = may_hold_rows(replica.target, pending)
    found = logged(logs, tables) | {t.id for t in tables if t.plan.columns.kept}
    with replica.target.transaction(force_rollback=True):
        found |= count_pending(replica.target, [t for name, t in pending.items() if filled.get(name)]).keys()
    return found if replica.in_place else _with_tied(replica.target, tables, found)


def _with_tied(target: Session, tables: Sequence[TableRow], found: set[int]) -> set[int]:
    """With those whose rows leave and come together with rows of these (C13), where our role cannot keep foreign keys
    of the target from being checked."""
    if not found or may_silence(target):
        return found
    keys = read_ties(target, {t.id: (t.plan.copy_schema, t.plan.copy_name) for t in tables}).inner
    while more := {end for k in keys for end in (k.parent, k.child) if end and {k.parent, k.child} & found} - found:
        found = found | more
    return found


@contextmanager
def watched(replica: Replica, effort: Effort) -> Iterator[Watch]:
    """A transaction of the source that has one snapshot and is to lock tables: let go of when others have waited for
    longer than this `effort` lets them, and, in place, committed only while the token is valid."""
    others = () if replica.in_place else (replica.target,)
    watch = Watch(replica.source, replica.watcher, *others, tolerance=effort.wait)
    try:
        with replica.source.transaction():
            replica.source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            with watch:
                yield watch
            watch.check()
            if replica.in_place:
                lease.check(replica.source, replica.fence)
            failpoint("replay.before_source_commit", replica.source)
    finally:
        note_waits(watch.waited())


def lock_tables(replica: Replica, tables: Iterable[TableRow], wait: float = 0.0) -> None:
    """Before the first query, so before the snapshot (C3): under these locks no rewrite or TRUNCATE can pass between
    the two. They are waited for as long as `wait` says."""
    plans = {t.oid: t.plan for t in tables if t.plan}
    if plans:
        # Their present names, asked from the other session so that ours has no snapshot yet; a renamed one is stopped
        # by drift, and of one that has just been dropped drift says so.
        rows = replica.watcher.execute(queries("catalog")["relations"], {"oids": [*plans]}).fetchall()
        live = [(replace(plans[oid], schema=schema, name=name).source, plans[oid]) for oid, schema, name, _, _ in rows]
        failpoint("replay.before_lock", replica.source)
        try:
            foreign_code.lock(replica.source, live, "reader", wait, fenced=replica.fenced)
        except Busy as busy:
            front = holders(replica.watcher, replica.pipeline, ["AccessExclusiveLock"])
            raise Busy(f"{busy.what}{front}", todo=busy.todo) from None
        except (pg.UndefinedTable, pg.InvalidSchemaName):  # between the question and the lock
            raise GaveWay("a table was dropped or renamed just now", todo="nothing: this is tried again") from None
        if replica.in_place:  # what is looked for in a guarded copy must not be newer than the snapshot either
            guarded = [(plan.copy_only, plan) for plan in plans.values() if plan.keepers.writer]
            foreign_code.lock(replica.source, guarded, "writer")


@contextmanager
def described(replica: Replica, wait: float) -> Iterator[None]:
    """Around a look at tables of the source that are not locked: the server prints expressions under a lock on their
    table, and as they are by then. Busy where somebody keeps one to himself for longer than `wait`, GaveWay where one
    is being altered."""
    timeout, again = sql.SQL("SET LOCAL lock_timeout = {}"), "nothing: this is tried again"
    replica.source.execute(timeout.format(sql.Literal(f"{max(1, round(min(wait, ASKED_FOR) * 1000))}ms")))
    try:
        yield
    except pg.LockNotAvailable:
        front = holders(replica.watcher, replica.pipeline, ["AccessExclusiveLock"])
        raise Busy(f"a table is locked by another session{front}", todo=again) from None
    except psycopg.Error as error:
        if not (
            gone_meanwhile(error) or isinstance(error, (pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedObject))
        ):
            raise
        raise GaveWay("a table is being altered just now", todo=again) from None
    replica.source.execute(timeout.format(sql.Literal("0")))
