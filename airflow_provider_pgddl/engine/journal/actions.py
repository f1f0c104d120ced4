"""What people have told a pipeline, with their names; and the last rehearsal of its swap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.journal.section import JournalSection


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a person has told it; `about`: `schema.table`, or an event's number. Times are aware datetimes."""

    at: datetime
    who: str
    action: str
    about: str | None
    note: str | None
    ended_at: datetime | None
    outcome: str | None


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A request for schema sync that no stage has seen to yet."""

    id: int
    who: str
    table: str
    digest: str


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Of a swap; `result` as the stage gives it."""

    run: int
    at: datetime
    result: dict[str, Any]


class Actions(JournalSection):
    def add(self, who: str, action: str, about: str | None, note: str | None) -> None:
        """What is over with that."""
        self._write("add_action", [self.pipeline, who, action, about, note])

    def request(self, who: str, table: str, digest: str, statements: Sequence[str]) -> None:
        """In the place of an earlier one of the table that no stage has seen to."""
        self._write("replace_request", [self.pipeline, table])
        self._write("add_request", [self.pipeline, who, table, digest, Jsonb(list(statements))])

    def requests(self) -> list[SyncRequest]:
        return self._rows(SyncRequest, "requests", [self.pipeline])

    def end(self, request_id: int, outcome: str) -> None:
        self._write("end_request", [outcome, request_id])

    def latest(self) -> list[Action]:
        """The newest first, those that wait before all."""
        return self._rows(Action, "latest_actions", [self.pipeline])

    def rehearsed(self, run: int, result: dict[str, Any]) -> None:
        self._write("set_rehearsal", [self.pipeline, run, Jsonb(result)])

    def rehearsal(self) -> Rehearsal | None:
        return self._row(Rehearsal, "rehearsal", [self.pipeline])
