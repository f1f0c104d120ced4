"""How far a target is behind a snapshot of its source; which snapshot that is, `journal.windows` says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries


@dataclass(frozen=True, slots=True)
class Lag:
    """Since a snapshot of the source: bytes of WAL that its server has written, and seconds.

    The bytes are those of the whole server, so they are an upper bound of what the pipeline has to bring."""

    bytes: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s and {_size(self.bytes)} behind"


def behind(source: Session, lsn: str, taken_at: datetime) -> Lag:
    """Since the snapshot that was taken then, with the WAL at `lsn`."""
    row = source.execute(queries("lag")["behind"], [lsn, taken_at]).fetchone()
    assert row is not None
    return Lag(*row)


def _size(value: int) -> str:
    for limit, unit in ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")):
        if value >= limit:
            return f"{value / limit:.1f} {unit}"
    return f"{value} bytes"
