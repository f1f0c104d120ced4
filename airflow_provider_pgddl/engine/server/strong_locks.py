"""Strong locks, briefly: a short timeout and many tries with jitter, so that writers never queue behind us for long
(C15)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.errors import Retry
from airflow_provider_pgddl.engine.pipeline.model import Swap
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.lock_timeout import PREPARED, limit_lock_wait, note_waits

T = TypeVar("T")

_LONG = (
    "SELECT pid, usename, xact_start, query FROM pg_stat_activity WHERE xact_start < now() - interval '1 s' ORDER BY 3;"
)
SAY_EVERY = 10.0  # seconds of tries after which it is said that they go on
_tell: ContextVar[Callable[[str], None]] = ContextVar("tell", default=lambda _: None)


@contextmanager
def tries_told(tell: Callable[[str], None]) -> Iterator[None]:
    """What is said while `with_tries` does not get its locks goes there."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


@contextmanager
def writers_wait(*, later: bool = False) -> Iterator[Callable[[], None]]:
    """Around a transaction whose first statement asks for a lock that writers wait for; where that comes `later`, what
    is yielded is called before it.

    Whoever comes after that request queues behind it, so the longest that anybody waits for us is from the request to
    the end, whether the lock was to be had or not."""
    began = [] if later else [time.monotonic()]
    try:
        yield lambda: began.append(time.monotonic())
    finally:
        if began:
            note_waits([time.monotonic() - began[0]])


def lock_all(conn: Session, relations: Sequence[tuple[str, str]], mode: str, timeout: float) -> None:
    """One LOCK over all relations, sorted, so that two of us cannot deadlock; inside the caller's transaction."""
    limit_lock_wait(conn, timeout)
    conn.execute(lock_statement(relations, mode))


def lock_unseen(conn: Session, relations: Sequence[tuple[str, str]], timeout: float) -> None:
    """First in a transaction that takes locks which somebody waits for: what no application uses. Who else has it is
    an autovacuum, which gives way after a moment. The timeout is for all of the transaction."""
    limit_lock_wait(conn, timeout)
    if relations:
        conn.execute(lock_statement(relations, "ACCESS EXCLUSIVE"))


def lock_statement(relations: Iterable[tuple[str, str]], mode: str) -> sql.Composed:
    """LOCK TABLE of these (schema, name), sorted, and of nothing else: neither what inherits from them nor their
    partitions."""
    names = sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*name)) for name in sorted(set(relations)))
    return sql.SQL("LOCK TABLE {} IN {} MODE").format(names, sql.SQL(mode))


def with_tries(
    swap: Swap, what: str, attempt: Callable[[], T], *, again: type[Exception] | tuple[type[Exception], ...] = ()
) -> T:
    """`attempt`, until it gets its locks (and does not raise `again`); Retry after `swap.retries` tries."""
    why = "the locks were not to be had"
    began = said = time.monotonic()
    for number in range(swap.retries):
        try:
            return attempt()
        except (pg.LockNotAvailable, pg.DeadlockDetected) as error:
            why = str(error.diag.message_primary)
        except again as reason:
            why = str(reason)
        if (now := time.monotonic()) - said >= SAY_EVERY:
            said = now
            _tell.get()(f"{what}: {number + 1} of {swap.retries} tries in {now - began:.0f} s: {why}")
        if number < swap.retries - 1:
            time.sleep(min(0.02 * 1.5**number, 1.0) * random.uniform(0.5, 1.5))
    raise Retry(
        f"{what}: not possible in {swap.retries} tries of {swap.lock_timeout * 1000:.0f} ms: {why}",
        todo="end the long transactions that use the tables, prepared ones too, or raise swap.lock_timeout; then run"
        " the stage again",
        sql=f"{_LONG}\n{PREPARED}",
    )
