"""One writer a pipeline and table: an advisory lock says who may start, a fencing token who may commit.

The lock goes with its session, so a killed run never leaves it behind; but processes that outlive their run (an
executor without its driver, a backend that has not noticed its dead client) do not need the lock to commit. Therefore
every transaction of ours reads its scope's token again as its last statement, FOR SHARE, so that a takeover waits for
it or is seen by it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from psycopg import errors as pg

from airflow_provider_pgddl.engine.errors import Fenced, LockHeld
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.server.connect import Session, application_name, connect
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("lease")

# A driver whose task process died notices within a second or two and lets go; a retry waits that long and some more.
TAKEOVER_WAIT = 15.0
TAKE_WITHIN = 10  # seconds; a transaction that has looked at its token has only to commit


@dataclass(frozen=True, slots=True)
class Fence:
    """What a transaction checks before it commits; travels to executors. Scope '' is the whole pipeline. Not the fence
    against writers, which is `swapping.across`'s."""

    pipeline: str
    scopes: tuple[str, ...]
    token: int


def check(conn: Session, fence: Fence) -> None:
    """The last statement of a transaction on the journal's database. Fenced if a newer run has taken over."""
    tokens = conn.execute(_Q["check"], [fence.pipeline, list(fence.scopes)], prepare=True).fetchall()
    if len(tokens) != len(fence.scopes) or any(token != fence.token for (token,) in tokens):
        raise Fenced(
            f"pipeline {fence.pipeline!r}: a newer run took over (token {fence.token} is no longer valid)",
            todo="nothing: this transaction was rolled back, and the newer run does the work",
        )


@contextmanager
def fenced(conn: Session, fence: Fence, before_commit: str) -> Iterator[None]:
    """A transaction on the journal's database that commits only while the token is valid; `before_commit` is the name
    of the failpoint right before that."""
    with conn.transaction():
        yield
        check(conn, fence)
        failpoint(before_commit, conn)


@contextmanager
def kept(conn: Session, fence: Fence) -> Iterator[None]:
    """Around work on another server that is the newest run's alone, and brief: Fenced before it where a newer one has
    taken over; one that is about to does not get its token before the end."""
    with conn.transaction():
        check(conn, fence)
        yield


class Lease:
    """Holds the lock for a `with` block; `take` gives the token. `fence` is for the whole run, `fence_for(scope)` for
    one table. `conn` is its session, open before it waits for the lock."""

    def __init__(self, dsn: str, pipeline: str, stage: str, tables: Sequence[str] | None):
        self.pipeline, self.tables = pipeline, tuple(sorted(set(tables))) if tables is not None else None
        self._holder = f"{stage} on {socket.gethostname()}, process {os.getpid()}"
        self.token = 0
        self.conn = connect(dsn, purpose="lease", pipeline=pipeline)

    def _wait_for_lock(self) -> None:
        deadline = time.monotonic() + TAKEOVER_WAIT
        while not self._try_lock():
            if time.monotonic() > deadline:
                raise LockHeld(
                    f"another run of pipeline {self.pipeline!r} is alive: {self._in_front()}",
                    todo="wait for it, or end that process; the lock goes with it",
                )
            time.sleep(0.2)

    def _in_front(self) -> str:
        tables = [f"{self.pipeline}:{table}" for table in self.tables or ()]
        locks = {"names": [self.pipeline, *tables], "shared": self.tables is None}
        front = self.conn.execute(_Q["in_front"], locks).fetchone()
        if front is None:
            return "unknown, and its session has ended just now"
        pid, since = front
        known = self.conn.execute("SELECT pg_catalog.to_regclass('pgddl.leases') IS NOT NULL").fetchone()
        args = {"pid": pid, "pipeline": self.pipeline, "since": since}
        row = self.conn.execute(_Q["holder"], args).fetchone() if known and known[0] else None
        if row is None:
            return f"unknown, by session {pid} of the server"
        return f"{row[0]}, since {row[1]:%Y-%m-%d %H:%M:%S} UTC"

    def _try_lock(self) -> bool:
        """Whole runs lock the pipeline exclusively; runs over tables share it and lock their tables."""
        if self.tables is None:
            return self._lock("lock_exclusive", self.pipeline)
        taken = self._lock("lock_shared", self.pipeline) and all(
            self._lock("lock_exclusive", f"{self.pipeline}:{table}") for table in self.tables
        )
        if not taken:
            self.conn.execute("SELECT pg_catalog.pg_advisory_unlock_all()")
        return taken

    def _lock(self, query: str, what: str) -> bool:
        row = self.conn.execute(_Q[query], [what]).fetchone()
        return bool(row and row[0])

    def take(self, *elsewhere: str) -> int:
        """A new token: from here on nothing that an older one started can commit. Needs the journal to exist.

        What is about to commit is waited for. Where that takes long, as of a process that stands still, the sessions of
        runs that are over are ended: first `elsewhere`, the servers (connection strings) that they may work on as well.
        LockHeld where that does not help, or nothing is said of these."""
        try:
            self.token = self._take()
        except (pg.LockNotAvailable, pg.DeadlockDetected):
            for dsn in elsewhere:
                with connect(dsn, purpose="lease", pipeline=self.pipeline) as server:
                    self._end(server, self._others_tokens)
            if elsewhere:
                self._end(self.conn, self._others_tokens)
            try:
                self.token = self._take()
            except (pg.LockNotAvailable, pg.DeadlockDetected):
                raise LockHeld(
                    f"a session of an older run of pipeline {self.pipeline!r} is about to commit, and does not",
                    todo="end it where it belongs to no run that is alive, then run this again",
                    sql="SELECT pid, application_name, state, state_change FROM pg_stat_activity\n"
                    "WHERE application_name LIKE 'pgddl:%' AND xact_start IS NOT NULL;",
                ) from None
        return self.token

    def _take(self) -> int:
        args = {"pipeline": self.pipeline, "holder": self._holder, "scopes": list(self.tables or ())}
        with self.conn.transaction():
            failpoint("stage.before_token", self.conn)
            self.conn.execute("SELECT pg_catalog.set_config('lock_timeout', %s, true)", [f"{TAKE_WITHIN}s"])
            row = self.conn.execute(_Q["take_all" if self.tables is None else "take_tables"], args).fetchone()
        assert row is not None
        return int(row[0])

    def terminate_stale(self, *servers: Session) -> int:
        """Ends the backends that older tokens of this pipeline left behind; returns how many."""
        return sum(self._end(server, self._live_tokens) for server in servers)

    def _end(self, server: Session, live: Callable[[], set[str]]) -> int:
        """Tokens are asked for behind the sessions: a run beside this one has none before its token is committed."""
        but = ["0", str(self.token)]
        working = server.execute(queries("catalog")["working"], {"prefix": self._sessions, "but": but}).fetchall()
        spared = live() if working else set()
        stale = [session for session in working if session[2] not in spared]
        if not stale:
            return 0
        pids, began = ([each[i] for each in stale] for i in (0, 1))
        row = server.execute(queries("catalog")["terminate"], [pids, began]).fetchone()
        return int(row[0]) if row else 0

    @property
    def _sessions(self) -> str:
        """The pattern of their names."""
        return application_name(self.pipeline, 0, "").removesuffix("0:").replace("_", r"\_") + "%"

    def _live_tokens(self) -> set[str]:
        return {row[0] for row in self.conn.execute(_Q["live_tokens"], [self.pipeline])}

    def _others_tokens(self) -> set[str]:
        if self.tables is None:
            return set()
        args = {"pipeline": self.pipeline, "scopes": list(self.tables)}
        return {row[0] for row in self.conn.execute(_Q["others_tokens"], args)}

    @property
    def fence(self) -> Fence:
        """For what concerns the run as a whole: every scope that it took is still its own."""
        return Fence(self.pipeline, self.tables or ("",), self.token)

    def fence_for(self, table: str) -> Fence:
        return Fence(self.pipeline, (table if self.tables is not None else "",), self.token)

    def close(self) -> None:
        self.conn.close()

    def __enter__(self) -> Self:
        try:
            self._wait_for_lock()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
