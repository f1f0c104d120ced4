"""Applies recorded DDL events to the target: each in one transaction with its bookkeeping."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import errors as pg

from airflow_provider_pgddl.engine import lease
from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.errors import StageFailed, from_postgres, remedy_for
from airflow_provider_pgddl.engine.journal import EventRow, Journal
from airflow_provider_pgddl.engine.lease import Fence
from airflow_provider_pgddl.engine.sql import queries


def apply_event(conn: Session, pipeline: str, fence: Fence, event: EventRow, *, copies_only: bool = False) -> None:
    """Runs one statement and marks it applied in the same transaction.

    `copies_only`: in place, a statement that would act on a live table after all is rolled back (C8).
    What cannot succeed is marked failed, with the server's words, and raised; what a retry may cure stays pending.
    """
    journal = Journal(conn, pipeline)
    try:
        with conn.transaction():
            conn.execute(event.statement)
            if copies_only:
                _refuse_locks_outside(conn, event)
            journal.event_status(event.id, "applied")
            lease.check(conn, fence)
    except pg.DuplicateSchema:
        journal.event_status(event.id, "skipped", "the schema is there already")
    except psycopg.Error as error:
        remedy = remedy_for(error)
        if remedy is not None and remedy.retryable:
            raise
        failure = _cannot_apply(event, error)
        journal.event_status(event.id, "failed", failure.what)
        raise failure from None


def _cannot_apply(event: EventRow, error: psycopg.Error) -> StageFailed:
    message = from_postgres(error, doing=f"applying {event.event['tag']}")
    table = event.event.get("table")
    return StageFailed(
        message.what,
        table=".".join(table) if table else None,
        todo="make the statement possible on the target (or drop what stands in its way), then run the stage again",
        sql=event.statement,
    )


def _refuse_locks_outside(conn: Session, event: EventRow) -> None:
    """What a statement locked says what it acted on, whatever its text says."""
    touched = conn.execute(queries("catalog")["strong_locks_outside"]).fetchone()
    if touched is not None:
        raise StageFailed(
            "a statement for the copy would act on this live relation; it was rolled back",
            table=".".join(touched),
            todo="leave the table out, or drop what makes its definition reach beyond it",
            sql=event.statement,
        )


def apply_together(conn: Session, pipeline: str, events: Sequence[EventRow]) -> None:
    """Applies events in the caller's transaction: all or none, with what else it does."""
    journal = Journal(conn, pipeline)
    for event in events:
        try:
            conn.execute(event.statement)
        except psycopg.Error as error:
            remedy = remedy_for(error)
            if remedy is not None and remedy.retryable:
                raise
            raise _cannot_apply(event, error) from None
        journal.event_status(event.id, "applied")


def apply_events(
    conn: Session, pipeline: str, fence: Fence, events: Sequence[EventRow], *, copies_only: bool = False
) -> int:
    """Applies events in their order; returns how many."""
    for event in events:
        apply_event(conn, pipeline, fence, event, copies_only=copies_only)
    return len(events)
