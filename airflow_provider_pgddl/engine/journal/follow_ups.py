"""What is run once a swap has committed."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_pgddl.engine.journal.section import JournalSection


@dataclass(frozen=True, slots=True)
class FollowUp:
    """`failed`: why it is left to a person."""

    statement: str
    failed: str | None


class FollowUps(JournalSection):
    def add(self, run: int, statement: str) -> None:
        self._write("insert_follow_up", [self.pipeline, run, statement])

    def left(self, run: int) -> list[FollowUp]:
        """In their order."""
        return self._rows(FollowUp, "follow_ups_left", [self.pipeline, run])

    def set_failed(self, run: int, statement: str, why: str) -> None:
        self._write("follow_up_failed", [why, self.pipeline, run, statement])

    def set_done(self, run: int, statement: str) -> None:
        self._write("follow_up_done", [self.pipeline, run, statement])
