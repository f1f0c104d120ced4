"""Letting go of a table when somebody waits for it: we are guests (C17).

Postgres sees a wait of one of our sessions, not that our sessions wait for each other. So whoever holds a lock on the
source while it moves rows is watched from a second session, and its statement is cancelled once anyone queues behind
it.

Giving way has an end (C36): who has done so again and again asks once for its lock, for a moment, and lets others wait
for as long; and each time that it had to let go it tries less at once, until that fits into the time there is. Where a
little takes as long as much, as over many tables or on a machine that is slow, others wait longer: else what we follow
would grow faster than we do."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, Self

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.pq import TransactionStatus

from airflow_provider_pgddl.engine.errors import Busy, GaveWay, TookTooLong, from_postgres
from airflow_provider_pgddl.engine.server.connect import Session, backend_pid
from airflow_provider_pgddl.engine.server.lock_timeout import PREPARED, process_shown
from airflow_provider_pgddl.engine.sql import queries

_HOLDERS = "SELECT pid, usename, query FROM pg_stat_activity\nWHERE pid IN (SELECT pid FROM pg_locks WHERE granted);"
LOOK_EVERY = 0.2  # seconds; the longest that somebody waits behind us beyond what they are let, and the cancellation
INSIST_FROM = 5  # times of giving way, one after the other, from which on we ask for a lock
ASKED_FOR = 0.5  # seconds at most: we may hold another table's, and the server looks for deadlocks after one
SMALLEST = 1024  # the part of the usual amount below which nothing is tried
LITTLE = 16  # the part of it from which on it is time that is lacking
LONGEST = 1.0  # seconds that others may wait for us then
SAY_EVERY = 10.0  # seconds after which it is said again that nothing goes on


@dataclass(frozen=True, slots=True)
class Effort:
    """How one attempt goes about it: for how many seconds it may wait for its locks, and let others wait for them (0:
    not at all), and by what the usual amount is divided."""

    wait: float = 0.0
    share: int = 1

    def of(self, amount: int) -> int:
        return max(1, amount // self.share)


POLITE = Effort()


class Watch:
    """While active, cancels what we do when somebody waits behind `holder` for a table, a leaf or an index, for longer
    than `tolerance` (seconds), where it takes longer than `limit` seconds (TookTooLong), and where nobody can look
    any more.

    `with Watch(holder, watcher, target) as watch: …`; a QueryCanceled inside becomes GaveWay if it was ours. `others`
    are sessions that the holder waits for: a server that sends rows nobody takes does not listen to a cancellation,
    and one that is idle while the target works has nothing to cancel.
    """

    def __init__(
        self,
        holder: Session,
        watcher: Session,
        *others: Session,
        limit: float | None = None,
        tolerance: float = 0.0,
    ):
        self._holder, self._watcher, self._others, self._tolerance = holder, watcher, others, tolerance
        self._until = time.monotonic() + limit if limit else float("inf")
        self._pid = backend_pid(holder)
        self._over = threading.Event()
        self.gave_way = self._too_long = False
        self._unseen: psycopg.Error | None = None  # why it cannot be seen whether anybody waits
        self._who = ""
        self._since: float | None = None  # when the one began to wait who is waiting now
        # His process and since when he waits, by the server's clock; and when he was seen to do so first, by ours.
        self._behind: tuple[tuple[int, datetime | None], float] | None = None
        self._waits = list[float]()
        self._thread = threading.Thread(target=self._look, name="pgddl-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._over.set()
        self._thread.join()
        if isinstance(error, pg.QueryCanceled) and self._ends:
            self._leave_no_transaction()
            self.check()
            raise TookTooLong("was under way for too long", todo="nothing: smaller parts are tried") from None
        if isinstance(error, Busy):  # a worker met whoever waits behind us
            self.check()

    def check(self) -> None:
        """Between statements, where there is nothing to cancel. GaveWay, or the watcher's own error: nobody is to wait
        behind us unseen."""
        if self.gave_way:
            what = f"gave way to {self._who}, which waits for the table"
            raise GaveWay(what, todo="nothing: this part is tried again")
        if self._unseen is not None:
            raise from_postgres(self._unseen, doing="looking who waits behind us") from None

    def waited(self) -> list[float]:
        """For how many seconds others have waited behind the holder, once its locks are gone."""
        self._note(None)
        return self._waits

    def _note(self, since: float | None) -> None:
        if self._since is not None and since is None:
            self._waits.append(time.monotonic() - self._since)
        self._since = since

    def _look(self) -> None:
        while not self._over.wait(LOOK_EVERY):
            others = self._others if self._ends else ()
            if self._unseen is None:
                self._ask()
            self._too_long |= time.monotonic() > self._until
            if self._ends:
                # First the holder, where it works; if that has not helped by the next look, whom it waits for as well.
                for session in (self._holder, *others):
                    with suppress(psycopg.Error):  # the next look tries again
                        session.cancel_safe()

    def _ask(self) -> None:
        try:
            row = self._watcher.execute(queries("catalog")["waiting_behind"], [self._pid]).fetchone()
        except psycopg.Error as error:
            self._unseen = error
            return
        if row is None:
            self._behind = None
            self._note(None)
            return
        now = time.monotonic()
        if self._behind is None or self._behind[0] != (row[1], row[3]):
            self._behind = (row[1], row[3]), now
        waited = max(row[0], now - self._behind[1])  # the server's own clock may have been set back meanwhile
        self._note(now - waited)
        if waited >= self._tolerance:
            self._who = process_shown(row[1], row[2])
            self.gave_way = True

    @property
    def _ends(self) -> bool:
        """Whether what the holder does is to end."""
        return self.gave_way or self._too_long or self._unseen is not None

    def _leave_no_transaction(self) -> None:
        """A cancellation that met the ROLLBACK itself has left the transaction open."""
        for session in (self._holder, *self._others):
            if session.info.transaction_status == TransactionStatus.INERROR:
                with suppress(psycopg.ProgrammingError):  # it is in the hands of a block further out
                    session.rollback()


def lock_briefly(
    conn: Session, relations: Sequence[sql.Composable], mode: LiteralString = "ACCESS SHARE", *, wait: float = 0.0
) -> None:
    """Locks relations, or Busy: at once where other sessions of ours may hold something (C17), else after `wait`
    seconds. No statement of it takes a snapshot."""
    if not relations:
        return
    lock = sql.SQL("LOCK TABLE {} IN {} MODE").format(sql.SQL(", ").join(relations), sql.SQL(mode))
    timeout = sql.SQL("SET LOCAL lock_timeout = {}")
    try:
        if wait > 0:
            conn.execute(timeout.format(sql.Literal(f"{max(1, round(min(wait, ASKED_FOR) * 1000))}ms")))
            conn.execute(lock)
            conn.execute(timeout.format(sql.Literal("0")))
        else:
            conn.execute(lock + sql.SQL(" NOWAIT"))
    except pg.LockNotAvailable:
        raise Busy("is locked by another session", todo="nothing: this part is tried again") from None


@contextmanager
def at_snapshot(source: Session, watcher: Session, target: Session, snapshot: str) -> Iterator[None]:
    """A transaction at a window's exported snapshot. Tables that are locked in it, without waiting, are let go of as
    soon as somebody waits for them. No relation is replaced under the snapshot: the window's own locks keep everybody
    out."""
    with source.transaction():
        source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        source.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        with Watch(source, watcher, target) as watch:
            yield
        watch.check()


class Patience:
    """Waits between attempts that gave way: longer each time, with jitter, and with an end: `limit` seconds of waiting
    without success, in which the attempts' own time does not count. What goes on meanwhile it may `say`.

    `effort` is how to go about the next attempt, where others may wait for us for `let_wait` seconds (0: never), and
    longer where that is too short for anything.
    `insists`: from the first one on."""

    def __init__(
        self, limit: float, say: Callable[[str], None] | None = None, let_wait: float = 0.0, *, insists: bool = False
    ):
        self._limit, self._say, self._let_wait = limit, say, let_wait
        self._times, self._share, self._said = INSIST_FROM if insists else 0, 1, 0.0
        self.at_peace = True  # nothing has given way so far
        # The try between two that insist tells whether somebody waits, and nothing of how much fits into the time there
        # is: where each of them failed, and halved it, what is tried would stay at its least for good.
        self._probing = False
        self._longer = 1
        self.begin()

    def begin(self) -> None:
        """From here on time counts; what it has learned about how busy the tables are it keeps."""
        self._pause, self._waited, self._since, self._all, self._why = 0.1, 0.0, time.monotonic(), 0, ""

    @property
    def effort(self) -> Effort:
        let_wait = max(self._let_wait, min(self._let_wait * self._longer, LONGEST))
        return Effort(let_wait if self._insists else 0.0, self._share)

    @property
    def _insists(self) -> bool:
        return self._let_wait > 0 and self._times >= INSIST_FROM

    def succeeded(self) -> None:
        """Twice as much is tried next time. What had to insist tries once without: only if that succeeds, too,
        the tables are as free as they were, else we would give way for long again and fall behind."""
        if not (self._insists or self._probing):
            self._longer = 1
        self._probing = self._insists
        self._times = INSIST_FROM - 1 if self._insists else 0
        self._share = max(1, self._share // 2)
        self.begin()

    @property
    def so_far(self) -> str:
        """What there is to say of an attempt that goes on, or has not succeeded."""
        seconds = time.monotonic() - self._since
        if not self._all:
            return f"this has been under way for {seconds:.0f} s"
        return f"gave way {self._all} times in {seconds:.0f} s: {self._why}"

    def wait(self, error: GaveWay, waited: float = 0.0) -> None:
        """`waited`: for how many seconds the attempt itself has waited for a lock."""
        if isinstance(error, Busy):
            waited += min(self.effort.wait, ASKED_FOR)
        elif self._insists and self._share >= LITTLE:
            self._longer *= 2
        elif not self._probing:
            self._share = min(self._share * 2, SMALLEST)
        self.at_peace = self._probing = False
        self._times += 1
        self._all += 1
        self._why = error.what
        if self._say is not None and time.monotonic() - max(self._since, self._said) >= SAY_EVERY:
            self._said = time.monotonic()
            self._say(self.so_far)
        if self._waited > self._limit:
            raise GaveWay(
                f"could not get at the table for {self._limit:.0f} s: {error.what}",
                table=error.table,
                todo="see who holds it, then run the stage again",
                sql=f"{_HOLDERS}\n{PREPARED}",
            )
        if self._times == INSIST_FROM:
            self._pause = 0.1
        pause = self._pause * random.uniform(0.5, 1.5)
        time.sleep(pause)
        self._waited += pause + waited
        self._pause = min(self._pause * 2, 0.5 if self._insists else 5.0)
