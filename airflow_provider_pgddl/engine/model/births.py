"""The mark of a run that was born complete, as the server has it from whose cut-over it comes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Birth:
    """A mark on the source: `run` was born complete by a cut-over of this server, and has behind it the DDL that
    `position`, a snapshot, shows; `lsn` is where the server's WAL was then."""

    run: int
    position: str
    lsn: str
