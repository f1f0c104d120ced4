"""One writer a pipeline and table: an advisory lock says who may start, a fencing token who may commit.

The lock goes with its session, so a killed run never leaves it behind; but processes that outlive their run (an
executor without its driver, a backend that has not noticed its dead client) do not need the lock to commit. Therefore
every transaction of ours reads its scope's token again as its last statement, FOR SHARE, so that a takeover waits for
it or is seen by it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from airflow_provider_pgddl.engine.errors import Fenced, LockHeld
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.server.connect import Session, application_name, connect
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("lease")

# A driver whose task process died notices within a second or two and lets go; a retry waits that long and some more.
TAKEOVER_WAIT = 15.0


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
        self.pipeline, self.tables = pipeline, tuple(sorted(tables)) if tables is not None else None
        self._holder = f"{stage} on {socket.gethostname()}, process {os.getpid()}"
        self.token = 0
        self.conn = connect(dsn, purpose="lease", pipeline=pipeline)

    def _wait_for_lock(self) -> None:
        deadline = time.monotonic() + TAKEOVER_WAIT
        while not self._try_lock():
            if time.monotonic() > deadline:
                known = self.conn.execute("SELECT pg_catalog.to_regclass('pgddl.leases') IS NOT NULL").fetchone()
                row = self.conn.execute(_Q["holder"], [self.pipeline]).fetchone() if known and known[0] else None
                who = f"{row[1]}, since {row[2]:%Y-%m-%d %H:%M:%S} UTC" if row else "unknown"
                raise LockHeld(
                    f"another run of pipeline {self.pipeline!r} is alive: {who}",
                    todo="wait for it, or end that process; the lock goes with it",
                )
            time.sleep(0.2)

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

    def take(self) -> int:
        """A new token: from here on nothing that an older one started can commit. Needs the journal to exist."""
        failpoint("stage.before_token", self.conn)
        args = {"pipeline": self.pipeline, "holder": self._holder, "scopes": list(self.tables or ())}
        row = self.conn.execute(_Q["take_all" if self.tables is None else "take_tables"], args).fetchone()
        assert row is not None
        self.token = int(row[0])
        return self.token

    def terminate_stale(self, *servers: Session) -> int:
        """Ends the backends that older tokens of this pipeline left behind; returns how many."""
        live = [row[0] for row in self.conn.execute(_Q["live_tokens"], [self.pipeline])]
        prefix = application_name(self.pipeline, 0, "").removesuffix("0:").replace("_", r"\_") + "%"
        ended = 0
        for server in servers:
            row = server.execute(queries("catalog")["terminate_stale"], {"prefix": prefix, "live": live}).fetchone()
            ended += row[0] if row else 0
        return ended

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
