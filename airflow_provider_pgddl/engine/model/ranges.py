"""Ranges of a table's key."""

from __future__ import annotations

from dataclasses import dataclass

Bound = tuple[str, ...]  # values of the first key columns, as their types' text


@dataclass(frozen=True, slots=True)
class Range:
    """Rows whose first key columns are in [low, high); None is open. `id` is the journal's. One that is `cuttable` may
    take so long only. `neighbours`: with how many from here on, itself among them, it is tried as one first."""

    id: int
    low: Bound | None = None
    high: Bound | None = None
    cuttable: bool = True
    neighbours: int = 1

    @property
    def bounded(self) -> bool:
        return self.low is not None or self.high is not None

    @property
    def limited(self) -> bool:
        """Whether there is an end to the time for it. One that is a whole table was made so for being short, or because
        its key cannot be cut."""
        return self.cuttable and self.bounded
