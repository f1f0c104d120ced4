"""Nothing is committed on the target that the source could still forget: an asynchronous commit is seen
before it is on disk (C11)."""

from __future__ import annotations

from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("wal_flush")


def insert_lsn(source: Session) -> str:
    """Behind everything that any session of the source can have seen so far."""
    row = source.execute(_Q["insert_lsn"]).fetchone()
    assert row is not None
    return str(row[0])


def snapshot_and_lsn(source: Session) -> tuple[str, str]:
    """The snapshot of a transaction that keeps one, and `insert_lsn`."""
    row = source.execute(_Q["snapshot_and_lsn"]).fetchone()
    assert row is not None
    return str(row[0]), str(row[1])


def flush(source: Session, lsn: str) -> None:
    """Flushes the source's WAL up to there.

    By a commit of ours behind it, since the WAL writer leaves a page that is not full as it is for as long as nobody
    commits. On a session that is not in a transaction.
    """
    row = source.execute(_Q["flushed"], [lsn]).fetchone()
    if not (row and row[0]):
        source.execute(_Q["flush"])
