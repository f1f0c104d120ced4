"""The DDL events of the source's dumps, and how far each has come. Those captured live are in `ddl`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.journal.ddl_history import FOUND
from airflow_provider_pgddl.engine.journal.section import JournalSection

REPLACED = "a later dump took its place"  # so it needs nothing of its own any more


@dataclass(frozen=True, slots=True)
class EventRow:
    """A statement that is still to be run."""

    id: int
    table_id: int | None
    event: dict[str, Any]
    statement: str


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """What a dump has shown, and what became of it."""

    id: int
    table_id: int | None
    event: dict[str, Any]
    status: str
    note: str | None


@dataclass(frozen=True, slots=True)
class AppliedEvent:
    id: int
    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _StatusCount:
    status: str
    count: int


class DumpEvents(JournalSection):
    def to_apply(self, run: int, phases: Sequence[str]) -> list[EventRow]:
        """What waits for its stage."""
        return self._rows(EventRow, "events_to_apply", [self.pipeline, run, list(phases)])

    def set_status(self, event_id: int, status: str, note: str | None = None) -> None:
        self._write("event_status", [status, note, status, event_id])

    def set_failed(self, event_id: int, note: str) -> None:
        """Unless the same task, started once more, has done it meanwhile."""
        self._write("event_failed", [note, event_id])

    def lock(self, ids: Sequence[int]) -> set[int]:
        """Those of the events that are to be done, for this transaction alone (C29)."""
        return set(self._values("lock_events", [list(ids)]))

    def set_applied(self, ids: Sequence[int]) -> None:
        self._write("events_applied", [list(ids)])

    def applied(self, run: int) -> list[AppliedEvent]:
        """Captured ones as well, the last first; without those that found on the target what they were to make."""
        return self._rows(AppliedEvent, "applied_events", [self.pipeline, run, FOUND])

    def recorded(self, run: int) -> list[RecordedEvent]:
        """What the run's dumps have shown, first to last."""
        return self._rows(RecordedEvent, "all_events", [self.pipeline, run])

    def has_made(self, run: int, table_id: int) -> bool:
        """Whether a statement of the run's dumps has made this table's copy."""
        return bool(self._value("dump_has_made", [self.pipeline, run, table_id]))

    def queue_behind(self, run: int, first: int, last: int) -> None:
        """Puts what was pending before event number `first` behind `last`, in its order."""
        self._write("queue_behind", {"pipeline": self.pipeline, "run": run, "first": first, "by": last + 1})

    def as_dumped(self, run: int) -> list[DdlEvent]:
        """What the source's dumps showed, as it stood there; without what a later dump has replaced, and without
        indexes that are still to be built: a swap that died may have been about to."""
        return [DdlEvent.from_json(event) for event in self._values("dumped_events", [self.pipeline, run, REPLACED])]

    def tables(self, run: int) -> set[int]:
        """The ids of the tables that any was about and not skipped."""
        return set(self._values("tables_with_events", [self.pipeline, run]))

    def replace_skipped(self, run: int, tables: Iterable[int]) -> None:
        """What an earlier dump showed of tables that were blocked then."""
        self._write("replace_skipped", [REPLACED, self.pipeline, run, list(tables)])

    def next_seq(self, run: int) -> int:
        return int(self._value("next_seq", [self.pipeline, run]))

    def counts(self, run: int) -> dict[str, int]:
        return {one.status: one.count for one in self._rows(_StatusCount, "event_counts", [self.pipeline, run])}
