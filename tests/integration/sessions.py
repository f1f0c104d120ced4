"""Sessions beside ours, and stages under way: what concurrency is told with, by conditions and never by time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import psycopg
import pytest

from tests.integration.lifecycle import wait_until

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class Underway(Generic[T]):
    """Something that runs in a thread of its own; `finish()` gives its result, or raises what it raised."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._outcome: tuple[T] | BaseException | None = None
        self._expected = False  # whether the error that it ended with was asked for
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._outcome = (self._work(),)
        except BaseException as error:  # noqa: BLE001 - raised again by `finish`
            self._outcome = error

    @property
    def over(self) -> bool:
        return self._outcome is not None

    def finish(self, seconds: float = 300) -> T:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "still under way"
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome[0]

    def fails(self, kind: type[E] | tuple[type[E], ...], seconds: float = 300) -> E:
        """The error that it must end with."""
        with pytest.raises(kind) as caught:
            self.finish(seconds)
        self._expected = True
        return caught.value

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._thread.join(120)
        elif not self._expected:
            self.finish()


def rounds(over: threading.Event, pause: float = 0.0) -> Iterator[None]:
    """Round after round of an application in a thread, until it is `over`. Behind each it rests for thrice as long as
    the round took, or for `pause` seconds: the cores are for what is tested, and a slow machine is so for both."""
    while not over.is_set():
        began = time.monotonic()
        yield
        over.wait(max(pause, min(3 * (time.monotonic() - began), 0.3)))


def one(dsn: str, query: str, *args: Any) -> Any:
    """The only value of a query."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(query.encode(), args or None).fetchone()
        assert row is not None
        return row[0]


def do(dsn: str, *statements: str) -> None:
    """Statements as an application runs them, each in a transaction of its own."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement.encode())


@contextmanager
def in_transaction(dsn: str, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    """An application's transaction that stays open for the block, or until it is committed there."""
    with psycopg.connect(dsn) as conn:
        for statement in statements:
            conn.execute(statement.encode())
        yield conn


def waits(dsn: str, mode: str, relation: str) -> bool:
    """Whether somebody waits for this lock (`AccessExclusiveLock`) on this relation."""
    query = (
        "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND mode = %s AND relation = to_regclass(%s)"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
    )
    return bool(one(dsn, query, mode, relation))


def waits_for_anything(dsn: str) -> bool:
    """Whether one of our sessions waits for a lock, whatever that is on."""
    query = (
        "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " WHERE NOT l.granted AND a.datname = current_database() AND a.application_name LIKE 'pgddl:%')"
    )
    return bool(one(dsn, query))


def holds(dsn: str, relation: str, mode: str = "AccessShareLock") -> bool:
    """Whether one of our sessions holds this lock on this relation."""
    query = (
        "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.granted AND l.mode = %s"
        " AND l.relation = to_regclass(%s) AND a.application_name LIKE 'pgddl:%%' AND a.datname = current_database())"
    )
    return bool(one(dsn, query, mode, relation))


def wait_for(condition: Callable[[], object], underway: Underway[Any] | None = None, seconds: float = 120) -> None:
    """Until it is so; at once an error where what should bring it about has ended without it."""

    def true() -> bool:
        ended = underway is not None and underway.over
        if condition():
            return True
        if ended and underway is not None:
            underway.finish()
            raise AssertionError("it ended, and it never came to that")
        return False

    wait_until(true, seconds)
