"""Whom a statement of ours waits for: seen from a second session, and signalled where the pipeline asks for it.

The server says who is in the way, so partitions, children, a DROP's dependents and old transactions are all covered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self

import psycopg

from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.server.connect import Session, application_name, backend_pid
from airflow_provider_pgddl.engine.server.lock_timeout import prepared_shown
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("ddl_events")

Signal = Literal["off", "cancel", "terminate", "cancel_then_terminate"]

LOOK_EVERY = 0.1
GRACE = 1.0  # seconds that a cancelled session has before it is terminated
PATIENCE = 2 * GRACE + 0.5  # what a wait takes longer at most for the signals to take effect


@dataclass(frozen=True, slots=True)
class Blocker:
    pid: int
    usename: str | None
    application_name: str | None
    client_addr: str | None
    state: str | None
    query: str | None
    xact_start: datetime | None
    backend_start: datetime | None
    waited: float
    """Seconds for which it has been waited for."""

    def __str__(self) -> str:
        since = f", in a transaction since {self.xact_start:%Y-%m-%d %H:%M:%S %Z}" if self.xact_start else ""
        who = f"{self.usename or 'unknown'}, {self.application_name or 'no application name'}"
        return f"session {self.pid} ({who}, {self.state or 'unknown'}{since})"


class Blockers:
    """For one event (None: for statements of no event) and all its tries: `with blockers.watch(conn): …`.

    Signals are sent once somebody has been waited for `after` seconds: each session once for each of its transactions,
    recorded before it is sent. Our own pipeline's sessions are never signalled, and a prepared transaction cannot be.
    """

    look_after, look_every = 2 * LOOK_EVERY, LOOK_EVERY

    def __init__(
        self, connect: Callable[[], Session], pipeline: str, event_id: int | None, signal: Signal, after: float
    ):
        self.connect, self._pipeline, self._event_id = connect, pipeline, event_id
        self._signal, self._after = signal, after
        self._ours = application_name(pipeline, 0, "").removesuffix("0:")
        self._sent: dict[tuple[int, datetime | None, datetime | None, str], float] = {}
        self._seen: Sequence[str] = ()
        self._trouble: str | None = None

    def watch(self, waiter: Session) -> _Watch:
        return _Watch(self, backend_pid(waiter))

    def __str__(self) -> str:
        """Who was in the way when last looked; '' if nobody was."""
        return "; ".join([*self._seen, *([self._trouble] if self._trouble else [])])

    def look(self, session: Session, waiter: int) -> None:
        found = [Blocker(*row) for row in session.execute(_Q["blockers"], [waiter])]
        if not found:
            return
        described = [str(blocker) for blocker in found if blocker.pid]
        if any(blocker.pid == 0 for blocker in found):
            gids = [gid for (gid,) in session.execute(_Q["prepared_blockers"], [waiter])]
            if not gids and self._seen:
                return  # The wait ended between the two questions: what was seen before says more.
            described.append(prepared_shown(gids))
        self._seen = described
        for blocker in found:
            ours = (blocker.application_name or "").startswith(self._ours)
            if blocker.pid and not ours and self._signal != "off" and self.is_long(blocker):
                self._send(session, blocker, waiter)

    def is_long(self, blocker: Blocker) -> bool:
        """Whether we have waited for it long enough to signal it."""
        return blocker.waited >= self._after

    def finish(self, session: Session) -> None:
        """The end of a watch."""
        with suppress(psycopg.Error):
            session.close()

    def _send(self, session: Session, blocker: Blocker, waiter: int) -> None:
        which: Literal["cancel", "terminate"] = "terminate" if self._signal == "terminate" else "cancel"
        session_of = (blocker.pid, blocker.backend_start, blocker.xact_start)
        cancelled = self._sent.get((*session_of, "cancel"))
        if self._signal == "cancel_then_terminate" and cancelled is not None:
            if time.monotonic() - cancelled < GRACE:
                return
            which = "terminate"
        if (*session_of, which) in self._sent:
            return
        args = [self._pipeline, self._event_id, blocker.pid, blocker.usename, blocker.application_name,
                blocker.client_addr, blocker.state, blocker.query, blocker.xact_start, which]  # fmt: skip
        row = session.execute(_Q["killing"], args).fetchone()
        assert row is not None
        self._sent[(*session_of, which)] = time.monotonic()
        try:
            sent = session.execute(
                _Q[which], {"pid": blocker.pid, "started": blocker.backend_start, "waiter": waiter}
            ).fetchone()
        except psycopg.errors.InsufficientPrivilege as error:
            session.execute(_Q["killed_so"], [False, error.diag.message_primary, row[0]])
            return
        if sent is None:  # it has let go meanwhile, and nothing was sent
            session.execute(_Q["not_killed"], row)
            del self._sent[(*session_of, which)]
            return
        session.execute(_Q["killed_so"], [bool(sent[0]), None, row[0]])

    def failed(self, error: Exception) -> None:
        self._trouble = f"(who is in the way could not be watched: {error})"


class BlockersOfTries(Blockers):
    """For tries that are shorter than anybody is to be signalled for: who has been in the way for `after` seconds, in
    one and the same transaction, whenever we tried. All looks are through one session, which stays open."""

    def __init__(self, session: Session, pipeline: str, signal: Signal, after: float, one_try: float):
        super().__init__(lambda: session, pipeline, None, signal, after)
        self.look_after = self.look_every = max(one_try / 4, 0.002)
        self._first: dict[tuple[int, datetime | None, datetime], float] = {}

    def is_long(self, blocker: Blocker) -> bool:
        if blocker.xact_start is None:
            return False  # not ours to see, so nobody knows whether it is still the same transaction
        transaction = (blocker.pid, blocker.backend_start, blocker.xact_start)
        return time.monotonic() - self._first.setdefault(transaction, time.monotonic()) >= self._after

    def finish(self, session: Session) -> None:
        pass


class _Watch:
    """One wait of one session, looked at from a thread until the block ends."""

    def __init__(self, blockers: Blockers, waiter: int):
        self._blockers, self._waiter = blockers, waiter
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="pgddl-blockers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        if self._over.wait(self._blockers.look_after):
            return  # a statement that waits for nobody costs no second session
        try:
            session = self._blockers.connect()
        except PgddlError as error:
            self._blockers.failed(error)
            return
        try:
            while not self._over.wait(self._blockers.look_every):
                self._blockers.look(session, self._waiter)
        except psycopg.Error as error:
            self._blockers.failed(error)
        finally:
            self._blockers.finish(session)
