"""Windows of replay: their numbers, what each has moved, and which snapshot of the source it has shown."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_pgddl.engine.journal.section import JournalSection


@dataclass(frozen=True, slots=True)
class ShownSnapshot:
    """A snapshot of the source that the target has shown the rows of in full."""

    lsn: str
    taken_at: datetime


@dataclass(frozen=True, slots=True)
class WindowsSummary:
    windows: int
    keys: int
    rows: int
    last: datetime | None


KEPT = 20_000  # of each run, at least; the sum of those before is enough
SUMMED_UP_EVERY = 1000
# How the reason begins for which a verification is needed then.
LOST_WINDOWS = "the source has acknowledged window"


class Windows(JournalSection):
    def add(
        self, after: int, run: int, keys: int, rows: int, pending: int, taken_at: datetime, lsn: str | None = None
    ) -> int:
        """Notes a window under the next number (above `after`, the last that the source has acknowledged), late in its
        transaction: runs over other tables number theirs in the same row. Returns the number, which hides from then on
        that windows were lost, so that is noted first.

        `lsn`: where the source's WAL was at the snapshot of a window over all tables that rows are followed of."""
        self.note_lost(after)
        number = int(self._value("next_window", {"after": after, "pipeline": self.pipeline}))
        self._write("insert_window", [self.pipeline, number, run, keys, rows, pending, taken_at, lsn])
        if number % SUMMED_UP_EVERY == 0:
            self._write("sum_up_windows", {"pipeline": self.pipeline, "run": run, "upto": number - KEPT})
        return number

    def note_lost(self, acknowledged: int) -> None:
        """Where this journal does not know of the window that the source has acknowledged last, a verification is
        needed."""
        args = {"lost": LOST_WINDOWS, "acknowledged": acknowledged, "pipeline": self.pipeline}
        self._write("note_lost_windows", args)

    def last_complete(self, run: int) -> ShownSnapshot | None:
        return self._row(ShownSnapshot, "last_complete", [self.pipeline, run])

    def last_read(self, run: int) -> str | None:
        """Where the source's WAL was at the last window's snapshot; None where that is not known."""
        lsn: str | None = self._value("last_read", [self.pipeline, run])
        return lsn

    def furthest(self) -> str | None:
        """Where the source's WAL was, on its disk, when it was read: it is never below that again, unless the source
        went back."""
        lsn: str | None = self._value("furthest", [self.pipeline])
        return lsn

    def forget_lsns(self, run: int, behind: str) -> None:
        """Snapshots from behind there are of a source that is no more."""
        self._write("forget_lsns", [self.pipeline, run, behind])

    def summary(self, run: int) -> WindowsSummary:
        summary = self._row(WindowsSummary, "windows", [self.pipeline, run])
        assert summary is not None
        return summary
