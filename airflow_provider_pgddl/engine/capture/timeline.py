"""The source's timelines: where the one that was followed ended, once a standby has been promoted."""

from __future__ import annotations

import psycopg

from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.server.connect import Session, connect_replication


def current(replication: Session) -> int:
    """The one that the server writes now; asked over the replication protocol."""
    row = replication.execute("IDENTIFY_SYSTEM").fetchone()
    assert row is not None
    return int(row[1])


def left_at(dsn: str, pipeline: str, was: int, now: int) -> str | None:
    """The LSN from which on timeline `now` has another WAL than timeline `was`, which it descends from; None where it
    does not, or where our role is not told, which takes a connection for replication."""
    try:
        with connect_replication(dsn, purpose="timeline", pipeline=pipeline) as conn:
            row = conn.execute(f"TIMELINE_HISTORY {int(now)}".encode()).fetchone()
    except (PgddlError, psycopg.Error):
        return None
    assert row is not None
    return switch_point(row[1] if isinstance(row[1], str) else bytes(row[1]).decode(), was)


def switch_point(history: str, timeline: int) -> str | None:
    """Of a history file's text: where a timeline was left."""
    for line in history.splitlines():
        number, *rest = line.split()[:2] or [""]
        if number == str(timeline) and rest:
            return rest[0]
    return None
