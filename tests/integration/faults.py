"""Connections that are lost by chance, and stages that get done all the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.rows import transfer
from tests.integration.lifecycle import Lifecycle, wait_until

ATTEMPTS = 60  # for one stage


class Faults:
    """Loses connections of the engine, one in `one_in` statements."""

    def __init__(self, seed: int, one_in: float) -> None:
        self._chance, self._one_in = random.Random(seed), one_in
        self.slack = 1.0
        self.lost: Counter[str] = Counter()

    def strikes(self, weight: float = 1) -> bool:
        return self._chance.random() * self._one_in * self.slack < weight

    def lose(self, conn: psycopg.Connection[Any], when: str) -> None:
        self.lost[when] += 1
        conn.close()
        raise psycopg.OperationalError(f"lost by this test, {when}")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            self._patch(patch)
            yield

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        execute, command = psycopg.Connection.execute, psycopg.Connection._exec_command

        def losing_execute(conn: psycopg.Connection[Any], *args: Any, **kwargs: Any) -> Any:
            if not _ours(conn):
                return execute(conn, *args, **kwargs)
            if self.strikes():
                self.lose(conn, "before a statement")
            cursor = execute(conn, *args, **kwargs)
            if self.strikes():
                self.lose(conn, "after a statement")
            return cursor

        def losing_command(conn: psycopg.Connection[Any], what: Any, *args: Any) -> Any:
            commit = what == b"COMMIT" and _ours(conn)
            if commit and self.strikes(6):
                self.lose(conn, "before a commit")
            result = yield from command(conn, what, *args)
            if commit and self.strikes(6):
                self.lose(conn, "after a commit")
            return result

        finish = transfer._finish

        def losing_finish(conn: psycopg.Connection[Any]) -> int:
            if _ours(conn) and self.strikes(3):
                self.lose(conn, "in a COPY")
            return finish(conn)

        patch.setattr(transfer, "_finish", losing_finish)
        patch.setattr(psycopg.Connection, "execute", losing_execute)
        patch.setattr(psycopg.Connection, "_exec_command", losing_command)


def _ours(conn: psycopg.Connection[Any]) -> bool:
    """As the server has reported it: to ask libpq for a connection's parameters takes longer than most statements."""
    return not conn.closed and (conn.info.parameter_status("application_name") or "").startswith("pgddl:")


def until_done(move: Lifecycle, stage: str, faults: Faults) -> None:
    """Connections get better from attempt to attempt, or a long stage would never end."""
    for attempt in range(ATTEMPTS):
        faults.slack = 1 + attempt / 4
        try:
            with faults.at_work():
                result = move.run(stage)
        except PgddlError as error:
            if not error.retryable:
                raise
            # Airflow waits between its attempts; here a server that starts would see all of them refused.
            wait_until(lambda: all(answers(dsn) for dsn in (move.source, move.target)))
        else:
            assert not result.blocked
            return
    raise AssertionError(f"{stage} did not get done in {ATTEMPTS} attempts")


def answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True
