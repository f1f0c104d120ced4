"""A table's indexes and constraints, built by one worker."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from airflow_provider_pgddl.engine.connect import connect
from airflow_provider_pgddl.engine.ddl.apply import apply_events
from airflow_provider_pgddl.engine.journal import EventRow
from airflow_provider_pgddl.engine.lease import Fence


@dataclass(frozen=True, slots=True)
class TableBuild:
    """One table's indexes and constraints in their order; travels to an executor."""

    dsn: str
    pipeline: str
    fence: Fence
    events: tuple[EventRow, ...]
    copies_only: bool
    analyze: sql.Composed | None


def build(part: TableBuild) -> int:
    """Without CONCURRENTLY: nothing but us uses the copy."""
    with connect(part.dsn, purpose="build", pipeline=part.pipeline, token=part.fence.token) as conn:
        applied = apply_events(conn, part.pipeline, part.fence, part.events, copies_only=part.copies_only)
        if part.analyze is not None:
            conn.execute(part.analyze)
    return applied
