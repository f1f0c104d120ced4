"""Parts of one piece of work: what came of each, and the errors of several as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Generic, TypeVar

import psycopg

from airflow_provider_pgddl.engine.errors import PgddlError, from_postgres

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    value: R


@dataclass(frozen=True, slots=True)
class Failed:
    error: PgddlError | psycopg.Error


def attempt(work: Callable[[T], R], part: T) -> Done[R] | Failed:
    """What came of a part. An error of ours, or of Postgres, comes back as itself: from another process it would come
    as text."""
    try:
        return Done(work(part))
    except (PgddlError, psycopg.Error) as error:
        return Failed(error)


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


def beside_each_other(work: Callable[[T], R], parts: Sequence[T], *, doing: str) -> list[R]:
    """`work` of each part in a thread of this process: for what only waits for a server. Results in the order of
    `parts`, errors as `results` has them; anything else is a bug and comes as it is.

    Whoever is stopped while it waits here leaves the threads behind, which end with the process.
    """
    ended: list[Done[R] | Failed | BaseException | None] = [None] * len(parts)

    def run(index: int) -> None:
        try:
            ended[index] = attempt(work, parts[index])
        except BaseException as error:  # noqa: BLE001 - raised again below
            ended[index] = error

    threads = [Thread(target=run, args=(n,), name=f"pgddl-part-{n}", daemon=True) for n in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    return results((one for one in ended if isinstance(one, (Done, Failed))), doing)
