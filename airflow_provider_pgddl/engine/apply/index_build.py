"""Indexes and constraints of tables, built by one worker."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from airflow_provider_pgddl.engine.apply.dump_events import apply_events, apply_in_groups
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.journal.dump_events import EventRow
from airflow_provider_pgddl.engine.journal.lease import Fence
from airflow_provider_pgddl.engine.server.connect import connect

BUILD = "build"  # the purpose of a worker's session


@dataclass(frozen=True, slots=True)
class Build:
    """Indexes and constraints in their order, of one table, or of several `quick` ones; travels to an executor.

    `copies` are analyzed afterwards."""

    dsn: str
    pipeline: str
    fence: Fence
    events: tuple[EventRow, ...]
    copies_only: bool
    copies: tuple[sql.Identifier, ...]
    quick: bool
    trusted: tuple[str, ...]


def is_shared(event: EventRow) -> bool:
    """Whether its table can have others of the kind made at the same time.

    CREATE INDEX takes SHARE, which lets another one in, and waits for no constraint; what adds a constraint, or says
    something of an index, wants the table for itself."""
    return bool(event.event["tag"] == "CREATE INDEX")


def build(part: Build) -> int:
    """Without CONCURRENTLY: nothing but us uses the copies."""
    apply = apply_in_groups if part.quick else apply_events
    with connect(part.dsn, purpose=BUILD, pipeline=part.pipeline, token=part.fence.token) as conn:
        # What stands on them, as the note that a table is indexed, commits behind them and waits for the WAL.
        conn.execute("SET synchronous_commit = off")
        applied = apply(conn, part.pipeline, part.fence, part.events, part.trusted, copies_only=part.copies_only)
        failpoint("schema_sync.before_analyze", conn)
        if part.copies:
            conn.execute(sql.SQL("ANALYZE {}").format(sql.SQL(", ").join(part.copies)))
    return applied
