"""Applications that keep writing while their tables are moved, and tell what they noticed of it.

They behave as a decent application does: short transactions, a retry after a deadlock or a serialization failure, and
when the source refuses writes because it has been cut over, the same operation again on the target. Every other error
that an application would not expect is a failure of the move, and is kept.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import errors as pg

Connection = psycopg.Connection[tuple[Any, ...]]

# With prepared statements an application would see "cached plan must not change result type" once a column's type has
# changed under it, with any tool that changes one: these do without.
_SESSION: dict[str, Any] = {
    "prepare_threshold": None,
    "application_name": "shop writer",
    "options": "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=postgres -c statement_timeout=60s",
}

_LOST = (pg.AdminShutdown, pg.CrashShutdown, pg.CannotConnectNow)
_AGAIN = (pg.DeadlockDetected, pg.SerializationFailure)

LONGEST_REST = 0.5  # seconds behind one operation: what waited for a fence says nothing of the machine
GIVE_UP_AFTER = 120.0  # seconds for one operation; an application's users have left long before


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that the application does, as one transaction.

    `run` gets a connection in a transaction and a source of chance which is the same at each attempt. What it
    returns is handed to `Traffic.committed` after the commit. `outcomes` are errors that it may bring about itself.
    """

    name: str
    weight: float
    run: Callable[[Connection, random.Random], Any]
    outcomes: tuple[type[psycopg.Error], ...] = ()


@dataclass(slots=True)
class Notes:
    """What the writers noticed. Times are seconds; moments are seconds since the epoch."""

    committed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # outcomes that the application brought about itself
    retried: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    latencies: list[tuple[float, float, str]] = field(default_factory=list)  # (begin, seconds, operation)
    rejected_at: float | None = None  # the first write that the fence turned away
    accepted_at: float | None = None  # the first write that the other server took; both of the last cut-over

    @property
    def cut_over_stall(self) -> float | None:
        """From the first write that the source refused to the first that the target took."""
        if self.rejected_at is None or self.accepted_at is None:
            return None
        return self.accepted_at - self.rejected_at

    def longest(self, since: float = 0.0, until: float = float("inf")) -> float:
        """The longest operation that was under way at some moment between the two."""
        overlapping = (s for begin, s, _ in self.latencies.copy() if begin <= until and begin + s >= since)
        return max(overlapping, default=0.0)


class Traffic:
    """Threads that carry out operations at a limited rate, on the first of `dsns` until that one is cut over. Who gets
    slow answers asks less: each rests for as long as its operation took.

    pipeline, journal: whose cut-over to follow, and where it is recorded (by default in the last of `dsns`).
    on_cut_over: called once the journal records it and before any writer goes on against the target.
    tolerate_lost: a lost connection is reconnected and is no failure (for tests that restart servers).
    rate: operations a second, all threads together.
    """

    def __init__(
        self,
        dsns: Sequence[str],
        *,
        threads: int = 4,
        rate: float = 120.0,
        seed: int | None = None,
        pipeline: str | None = None,
        journal: str | None = None,
        on_cut_over: Callable[[], None] | None = None,
        tolerate_lost: bool = False,
    ) -> None:
        self.seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        self.notes = Notes()
        self.accepted = threading.Event()  # the target has taken a first write
        self._dsns = list(dsns)
        self._current, self._next = 0, 1
        self._rate = rate / threads
        self._pipeline = pipeline
        self._journal = journal or self._dsns[-1]
        self.on_cut_over = on_cut_over
        self._tolerate_lost = tolerate_lost
        self._threads = [
            threading.Thread(target=self._write, args=(number,), name=f"writer {number}", daemon=True)
            for number in range(threads)
        ]
        self._follower = self._new_follower()
        self._fenced = threading.Event()
        self._switched = threading.Event()
        self._stopping = threading.Event()
        self._state = threading.Condition()
        self._paused = False
        self._at_work = 0
        self._sessions = threading.local()

    # What a kind of traffic says about itself

    def prepare(self, conn: Connection) -> list[Operation]:
        """Looks around once, before the first operation."""
        raise NotImplementedError

    def committed(self, result: Any) -> None:
        """Learns what an operation did, once it is known to be committed."""

    def unknown(self, result: Any) -> None:
        """Learns what an operation may have done: the connection was lost during its commit."""

    # What one does with it

    def start(self) -> Self:
        with self._connect(0) as conn:
            self._operations = self.prepare(conn)
        for thread in self._threads:
            thread.start()
        if len(self._dsns) > 1 and self._pipeline is not None:
            self._follower.start()
        return self

    def expect(self, pipeline: str, journal: str, on_cut_over: Callable[[], None]) -> None:
        """The next cut-over: of another pipeline, to the other of both servers. The last one has to be over."""
        self._follower.join()
        self._pipeline, self._journal, self.on_cut_over = pipeline, journal, on_cut_over
        self._next = 1 - self._current
        self.notes.rejected_at = self.notes.accepted_at = None
        for event in (self.accepted, self._fenced, self._switched):
            event.clear()
        self._follower = self._new_follower()
        self._follower.start()

    def _new_follower(self) -> threading.Thread:
        return threading.Thread(target=self._follow_cut_over, name="cut-over", daemon=True)

    def stop(self) -> Notes:
        """Lets each writer finish its operation; one that waits for a cut-over is given up."""
        self._stopping.set()
        self._fenced.set()
        with self._state:
            self._state.notify_all()
        for thread in (*self._threads, self._follower):
            if thread.ident is not None:
                thread.join()
        return self.notes

    def pause(self) -> None:
        """Returns once no writer has a transaction open."""
        with self._state:
            self._paused = True
            self._state.wait_for(lambda: self._at_work == 0)

    def resume(self) -> None:
        with self._state:
            self._paused = False
            self._state.notify_all()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """No writer has a transaction open within this block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    @property
    def cut_over(self) -> bool:
        """Whether the writers go on against the server to which they were to go."""
        return self._switched.is_set()

    @property
    def side(self) -> int:
        """Which of `dsns` they write to."""
        return self._current

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # One writer

    def _write(self, number: int) -> None:
        chance = random.Random(f"{self.seed}:{number}")
        weights = [operation.weight for operation in self._operations]
        due = time.monotonic()
        try:
            while not self._stopping.is_set():
                due = max(due + chance.expovariate(self._rate), time.monotonic() - 1.0)
                if self._stopping.wait(max(0.0, due - time.monotonic())):
                    break
                (operation,) = chance.choices(self._operations, weights)
                began = time.monotonic()
                self._carry_out(operation, chance.getrandbits(64))
                due = max(due, time.monotonic() + min(time.monotonic() - began, LONGEST_REST) - 1 / self._rate)
        except Exception as error:  # noqa: BLE001 - a thread that ends unseen would look like a quiet success
            self._fail(f"a writer ended: {type(error).__name__}: {error}")
        finally:
            for conn in self._open_connections().values():
                conn.close()

    def _carry_out(self, operation: Operation, seed: int) -> None:
        begin, paused = time.time(), 0.0
        while True:
            paused += self._begin_work()
            try:
                if self._stopping.is_set():
                    return
                done = self._attempt(operation, seed)
            finally:
                self._end_work()
            if done:
                self.notes.latencies.append((begin, time.time() - begin - paused, operation.name))
                return
            if time.time() - begin - paused > GIVE_UP_AFTER:
                self._fail(f"{operation.name}: gave up after {GIVE_UP_AFTER:.0f} s")
                return
            if self._fenced.is_set() and not self._switched.is_set():
                # The fence may also go away again, when the cut-over did not come off: look at the source as well.
                self._switched.wait(0.1)

    def _attempt(self, operation: Operation, seed: int) -> bool:
        """Whether the operation is over with; if not, it is to be tried again."""
        side, result, committing = self._current, None, False
        conn: Connection | None = None
        try:
            conn = self._connection(side)
            result = operation.run(conn, random.Random(seed))
            committing = True
            conn.commit()
        except psycopg.Error as error:
            if conn is not None and not conn.closed:
                # Lost in between, it is rolled back just the same, and the next operation connects again.
                with contextlib.suppress(psycopg.OperationalError):
                    conn.rollback()
            return self._judge(operation, error, result if committing else None)
        self.notes.committed[operation.name] += 1
        if side != self._next and self._fenced.is_set() and not self._switched.is_set():
            self._fenced.clear()  # the source takes writes again
        if side == self._next and self.notes.accepted_at is None:
            self.notes.accepted_at = time.time()
            self.accepted.set()
        self.committed(result)
        return True

    def _judge(self, operation: Operation, error: psycopg.Error, uncertain: Any) -> bool:
        kind = type(error).__name__
        if _is_fence(error):
            self.notes.retried["fence"] += 1
            if self.notes.rejected_at is None:
                self.notes.rejected_at = time.time()
            self._fenced.set()
            return False
        if isinstance(error, _AGAIN):
            self.notes.retried[kind] += 1
            return False
        if isinstance(error, operation.outcomes):
            self.notes.refused[kind] += 1
            return True
        if isinstance(error, _LOST) or (isinstance(error, psycopg.OperationalError) and error.sqlstate is None):
            self.notes.retried[kind] += 1
            if uncertain is not None:
                self.unknown(uncertain)
            if not self._tolerate_lost:
                self._fail(f"{operation.name}: lost its connection: {error}")
                return True
            self._stopping.wait(0.05)
            return uncertain is not None
        self._fail(f"{operation.name}: {kind} ({error.sqlstate}): {error.diag.message_primary or error}")
        return True

    def _fail(self, what: str) -> None:
        self.notes.failures.append(what)

    # Pausing

    def _begin_work(self) -> float:
        """Waits while the writers are paused, and says for how long."""
        begin = time.monotonic()
        with self._state:
            self._state.wait_for(lambda: not self._paused or self._stopping.is_set())
            self._at_work += 1
        return time.monotonic() - begin

    def _end_work(self) -> None:
        with self._state:
            self._at_work -= 1
            self._state.notify_all()

    # Cut-over

    def _follow_cut_over(self) -> None:
        """Once the fence has turned a write away: when is the target ours to write to?"""
        try:
            while not self._stopping.is_set():
                self._fenced.wait()
                if self._is_cut_over():
                    if self.on_cut_over is not None:
                        self.on_cut_over()
                    self._current = self._next
                    self._switched.set()
                    return
                self._stopping.wait(0.01)
        except Exception as error:  # noqa: BLE001 - as for a writer
            self._fail(f"the cut-over could not be followed: {type(error).__name__}: {error}")

    def _is_cut_over(self) -> bool:
        with psycopg.connect(self._journal, autocommit=True) as conn:
            while self._fenced.is_set() and not self._stopping.is_set():
                with contextlib.suppress(pg.UndefinedTable, pg.InvalidSchemaName):
                    query = "SELECT cut_over_at IS NOT NULL FROM pgddl.pipelines WHERE pipeline = %s"
                    row = conn.execute(query, [self._pipeline]).fetchone()
                    if row is not None and row[0]:
                        return True
                self._stopping.wait(0.01)
        return False

    # Connections, one a thread and side

    def _connect(self, side: int) -> Connection:
        return psycopg.connect(self._dsns[side], **_SESSION)

    def _open_connections(self) -> dict[int, Connection]:
        if not hasattr(self._sessions, "connections"):
            self._sessions.connections = {}
        connections: dict[int, Connection] = self._sessions.connections
        return connections

    def _connection(self, side: int) -> Connection:
        connections = self._open_connections()
        if side not in connections or connections[side].closed:
            connections[side] = self._connect(side)
        return connections[side]


def _is_fence(error: psycopg.Error) -> bool:
    return isinstance(error, pg.ReadOnlySqlTransaction) and (error.diag.message_primary or "").startswith("pgddl:")
