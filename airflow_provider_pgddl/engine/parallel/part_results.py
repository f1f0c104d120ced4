"""Parts of one piece of work: what came of each, and the errors of several as one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from threading import Thread
from typing import Any, Generic, TypeVar

import psycopg

from airflow_provider_pgddl.engine.errors import PgddlError, from_postgres

T = TypeVar("T")
R = TypeVar("R")
_NONE: Any = object()


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    value: R


@dataclass(frozen=True, slots=True)
class Failed:
    error: PgddlError | psycopg.Error


def be_there(_: None) -> None:
    """What a worker does that is only to be there."""


def attempt(work: Callable[[T], R], part: T) -> Done[R] | Failed:
    """What came of a part. An error of ours, or of Postgres, comes back as itself: from another process it would come
    as text."""
    try:
        return Done(work(part))
    except (PgddlError, psycopg.Error) as error:
        return Failed(error)


def dealt(parts: Sequence[T], shares: int) -> list[Sequence[T]]:
    """The parts in at most so many shares, one round after the other."""
    return [parts[n::shares] for n in range(min(shares, len(parts)))]


def attempt_each(work: Callable[[T], R], share: Sequence[T]) -> list[Done[R] | Failed]:
    """A share's parts, one behind the other."""
    return [attempt(work, part) for part in share]


def gathered(shares: Sequence[Sequence[R]]) -> list[R]:
    """What `dealt` has dealt, in its order."""
    rounds = zip_longest(*shares, fillvalue=_NONE)
    return [one for turn in rounds for one in turn if one is not _NONE]


def results(ended: Iterable[Done[R] | Failed], doing: str) -> list[R]:
    """The values, or the error to raise once every part has ended: a final one before one that a retry may cure."""
    values, failures = list[R](), list[PgddlError]()
    for one in ended:
        if isinstance(one, Done):
            values.append(one.value)
        else:
            failures.append(one.error if isinstance(one.error, PgddlError) else from_postgres(one.error, doing=doing))
    if failures:
        raise min(failures, key=lambda error: error.retryable)
    return values


class Threads(Generic[T, R]):
    """`work` of each part in a thread of this process: for what only waits for a server. They begin at once.

    Whoever is stopped while it waits here leaves the threads behind, which end with the process."""

    def __init__(self, work: Callable[[T], R], parts: Sequence[T]):
        self._work, self._parts = work, parts
        self._ended: list[Done[R] | Failed | BaseException | None] = [None] * len(parts)
        self._threads = [
            Thread(target=self._run, args=(n,), name=f"pgddl-part-{n}", daemon=True) for n in range(len(parts))
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, index: int) -> None:
        try:
            self._ended[index] = attempt(self._work, self._parts[index])
        except BaseException as error:  # noqa: BLE001 - raised again in `results`
            self._ended[index] = error

    def over(self, seconds: float | None = None) -> bool:
        """Whether all have ended, within so many seconds."""
        until = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def results(self, doing: str) -> list[R]:
        """Once all have ended, in the order of the parts, errors as the function `results` has them; anything else is a
        bug and comes as it is."""
        self.over()
        for one in self._ended:
            if isinstance(one, BaseException):
                raise one
        return results((one for one in self._ended if isinstance(one, (Done, Failed))), doing)


def beside_each_other(work: Callable[[T], R], parts: Sequence[T], *, doing: str) -> list[R]:
    """See `Threads`: waits for their end."""
    return Threads(work, parts).results(doing)
