"""A dry run: a stage's transaction is run as it would be, noted statement by statement, and rolled back."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from airflow_provider_pgddl.engine.ddl.lock_modes import MODES
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("dry_run")


@dataclass(frozen=True, slots=True)
class Noted:
    """One statement that changes something, how long it took, and the locks that it took on relations of users:
    (relation, mode), the strongest that no earlier statement had taken. `bookkeeping` is about our own tables."""

    statement: str
    ms: float
    locks: tuple[tuple[str, str], ...]
    bookkeeping: bool

    def to_json(self) -> dict[str, Any]:
        locks = [{"relation": relation, "mode": mode} for relation, mode in self.locks]
        return {"statement": self.statement, "ms": round(self.ms, 1), "locks": locks}

    def __str__(self) -> str:
        locks = "".join(f"\n    -- {mode} on {relation}" for relation, mode in self.locks)
        return f"{self.statement};{locks}"


class Rehearsed(Exception):
    """The transaction would have committed here. `locked_ms` is for how long writers would have waited at most."""

    def __init__(self, statements: Sequence[Noted], locked_ms: int):
        self.statements, self.locked_ms = statements, locked_ms


_WRITERS_WAIT = MODES.index("SHARE")


@contextmanager
def rehearsed(context: Context, conn: Session, transaction: AbstractContextManager[object]) -> Iterator[None]:
    """`transaction` as it is; in a dry run with every statement noted, and `Rehearsed` in place of its commit."""
    with transaction:
        if not context.job.dry_run:
            yield
            return
        notes = Notes(conn)
        before, conn.cursor_factory = conn.cursor_factory, notes.cursor_factory()
        try:
            yield
        finally:
            conn.cursor_factory = before
        raise Rehearsed(notes.statements, notes.locked_ms())


class Notes:
    """What was run on one session since, by cursors of its `cursor_factory`."""

    def __init__(self, conn: Session):
        self.statements: list[Noted] = []
        self._conn = conn
        self._held: dict[int, int] = {}  # relation → the strongest mode's place in MODES
        self._locked_at: float | None = None
        self._noting = 0.0  # seconds since then, which a swap would not take

    def cursor_factory(self) -> type[psycopg.Cursor[Any]]:
        notes = self

        class NotingCursor(psycopg.Cursor[Any]):
            def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
                began = time.monotonic()
                super().execute(query, params, **options)
                notes.take(psycopg.ClientCursor(notes._conn).mogrify(query, params), self.statusmessage or "", began)
                return self

        return NotingCursor

    def take(self, statement: str, status: str, began: float) -> None:
        ended = time.monotonic()
        ms, new, strong = (ended - began) * 1000, dict[str, str](), list[int]()
        for oid, relation, held in psycopg.Cursor(self._conn).execute(_Q["locks"]):
            mode = _in_words(held)
            place = MODES.index(mode)
            if place > self._held.get(oid, 0):
                self._held[oid], new[relation] = place, mode
                if place >= _WRITERS_WAIT:
                    strong.append(oid)
        if strong and self._locked_at is None and self._are_met(strong):
            self._locked_at = began
        if new or not status.startswith("SELECT"):
            locks = tuple(sorted(new.items()))
            bookkeeping = not locks and status.startswith(("INSERT", "UPDATE", "DELETE"))
            self.statements.append(Noted(statement, ms, locks, bookkeeping))
        if self._locked_at is not None:
            self._noting += time.monotonic() - ended

    def _are_met(self, oids: list[int]) -> bool:
        """By writers, one of them."""
        return psycopg.Cursor(self._conn).execute(_Q["met_by_writers"], [oids]).fetchone() == (True,)

    def locked_ms(self) -> int:
        if self._locked_at is None:
            return 0
        return round((time.monotonic() - self._locked_at - self._noting) * 1000)


def _in_words(mode: str) -> str:
    """ShareRowExclusiveLock → SHARE ROW EXCLUSIVE, as LOCK TABLE takes it."""
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", mode.removesuffix("Lock")).upper()
