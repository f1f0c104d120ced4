"""Letting go of a table when somebody waits for it: we are guests (C17).

Postgres sees a wait of one of our sessions, not that our sessions wait for each other. So whoever holds a lock on the
source while it moves rows is watched from a second session, and its statement is cancelled once anyone queues behind
it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import LiteralString, Self

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.pq import TransactionStatus

from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.errors import GaveWay
from airflow_provider_pgddl.engine.sql import queries

LOOK_EVERY = 0.2  # seconds; the longest that somebody waits behind us beyond the cancellation itself


class TookTooLong(GaveWay):
    """Work under a `Watch` had not ended by its limit, and was cancelled."""


class Watch:
    """While active, cancels what we do when somebody waits behind `holder` for a table, a leaf or an index, and where
    it takes longer than `limit` seconds: TookTooLong then.

    `with Watch(holder, watcher, target) as watch: …`; a QueryCanceled inside becomes GaveWay if it was ours. `others`
    are sessions that the holder waits for: a server that sends rows nobody takes does not listen to a cancellation,
    and one that is idle while the target works has nothing to cancel.
    """

    def __init__(self, holder: Session, watcher: Session, *others: Session, limit: float | None = None):
        self._holder, self._watcher, self._others = holder, watcher, others
        self._until = time.monotonic() + limit if limit else float("inf")
        self._pid = holder.info.backend_pid
        self._over = threading.Event()
        self.gave_way = self._too_long = False
        self._thread = threading.Thread(target=self._look, name="pgddl-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._over.set()
        self._thread.join()
        if isinstance(error, pg.QueryCanceled) and (self.gave_way or self._too_long):
            self._leave_no_transaction()
            self.check()
            raise TookTooLong("was under way for too long", todo="nothing: smaller parts are tried") from None

    def check(self) -> None:
        """Between statements, where there is nothing to cancel."""
        if self.gave_way:
            raise GaveWay("gave way to a session that waits for the table", todo="nothing: this part is tried again")

    def _look(self) -> None:
        query = queries("catalog")["waiting_behind"]
        while not self._over.wait(LOOK_EVERY):
            try:
                row = self._watcher.execute(query, [self._pid]).fetchone()
            except psycopg.Error:
                return  # the watcher's session is gone; the holder's next statement meets the same trouble
            waiting, late = bool(row and row[0]), time.monotonic() > self._until
            if waiting or late:
                # First the holder, where it works; if that has not helped by the next look, whom it waits for as well.
                for session in (self._holder, *(self._others if self.gave_way or self._too_long else ())):
                    session.cancel_safe()
                self.gave_way |= waiting
                self._too_long |= late

    def _leave_no_transaction(self) -> None:
        """A cancellation that met the ROLLBACK itself has left the transaction open."""
        for session in (self._holder, *self._others):
            if session.info.transaction_status == TransactionStatus.INERROR:
                with suppress(psycopg.ProgrammingError):  # it is in the hands of a block further out
                    session.rollback()


def lock_nowait(conn: Session, relations: Sequence[sql.Composable], mode: LiteralString = "ACCESS SHARE") -> None:
    """Locks relations, or GaveWay at once: never queue while other sessions of ours hold something (C17)."""
    if not relations:
        return
    listed = sql.SQL(", ").join(relations)
    try:
        conn.execute(sql.SQL("LOCK TABLE {} IN {} MODE NOWAIT").format(listed, sql.SQL(mode)))
    except pg.LockNotAvailable:
        raise GaveWay("is locked by another session", todo="nothing: this part is tried again") from None


@contextmanager
def at_snapshot(
    source: Session, watcher: Session, target: Session, snapshot: str, tables: Sequence[sql.Identifier]
) -> Iterator[None]:
    """A transaction at a window's exported snapshot, in which `tables` are locked without waiting, and let go of as
    soon as somebody waits for them. No relation is replaced under the snapshot: the window's own locks keep everybody
    out."""
    with source.transaction():
        source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        source.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        with Watch(source, watcher, target) as watch:
            lock_nowait(source, tables)
            yield
        watch.check()


class Patience:
    """Waits between attempts that gave way: longer each time, with jitter, and with an end (`limit` seconds without
    success)."""

    def __init__(self, limit: float):
        self._limit = limit
        self.succeeded()

    def succeeded(self) -> None:
        self._pause, self._since = 0.1, time.monotonic()

    def wait(self, error: GaveWay) -> None:
        if time.monotonic() - self._since > self._limit:
            raise GaveWay(
                f"could not get at the table for {self._limit:.0f} s: {error.what}",
                table=error.table,
                todo="see who holds it, then run the stage again",
                sql="SELECT pid, usename, query FROM pg_stat_activity\n"
                "WHERE pid IN (SELECT pid FROM pg_locks WHERE granted);",
            )
        time.sleep(self._pause * random.uniform(0.5, 1.5))
        self._pause = min(self._pause * 2, 5.0)
