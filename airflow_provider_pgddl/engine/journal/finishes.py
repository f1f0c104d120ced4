"""What a target that no swap comes to has got by follow.finish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.journal.section import JournalSection
from airflow_provider_pgddl.engine.model.names import Name


@dataclass(frozen=True, slots=True)
class Finish:
    """`digest` is the source's schema's; `seq` the captured event up to which REFRESH was followed."""

    digest: str
    seq: int


@dataclass(frozen=True, slots=True)
class _Refreshed:
    upto: int
    names: list[list[str]]


class Finishes(JournalSection):
    def last(self, run: int) -> Finish | None:
        return self._row(Finish, "finish", [self.pipeline, run])

    def events(self, run: int) -> list[dict[str, Any]]:
        """The source's statements at the last one."""
        return self._values("finished_events", [self.pipeline, run])

    def set_events(self, run: int, digest: str, events: Sequence[Mapping[str, Any]]) -> None:
        self._write("set_finish", [self.pipeline, run, digest])
        self._write("forget_finished", [self.pipeline, run])
        rows = [[self.pipeline, run, number, Jsonb(event)] for number, event in enumerate(events)]
        self._write_many("insert_finished", rows)

    def look_again(self, run: int) -> None:
        """The next replay compares both sides, though the source's schema is what it was."""
        self._write("forget_finish_digest", [self.pipeline, run])

    def refreshed_since(self, run: int) -> tuple[int, set[Name]]:
        """(last captured event, materialized views that were refreshed since the last time)"""
        found = self._row(_Refreshed, "refreshed_since", {"pipeline": self.pipeline, "run": run})
        assert found is not None
        return found.upto, {(schema, name) for schema, name in found.names}

    def set_refreshed(self, run: int, upto: int) -> None:
        self._write("set_refreshed", [upto, self.pipeline, run])
