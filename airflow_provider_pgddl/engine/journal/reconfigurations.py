"""What was changed of a pipeline under way: who, when, what it said before and what it says since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.journal.section import JournalSection

Subject = Literal["key", "table"]


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """One key of the file, or one table; times are aware datetimes."""

    subject: Subject
    name: str
    before: Any
    after: Any
    taken_at: datetime
    taken_by: str
    done_at: datetime | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Reconfigurations(JournalSection):
    def add(self, run: int, changes: Sequence[tuple[Subject, str, Any, Any]]) -> None:
        """(subject, name, before, after) of each."""

        def as_json(value: Any) -> Jsonb | None:
            return None if value is None else Jsonb(value)

        rows = [[self.pipeline, run, what, name, as_json(a), as_json(b)] for what, name, a, b in changes]
        self._write_many("insert_reconfiguration", rows)

    def every(self) -> list[Reconfiguration]:
        """First to last, of all runs."""
        return self._rows(Reconfiguration, "reconfigurations", [self.pipeline])

    def under_way(self, run: int) -> bool:
        """Whether one was taken up, and what follows from it is not done."""
        return bool(self._value("reconfiguration_under_way", [self.pipeline, run]))

    def set_done(self, run: int) -> None:
        self._write("reconfiguration_done", [self.pipeline, run])
