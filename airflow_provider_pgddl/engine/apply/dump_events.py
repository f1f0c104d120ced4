"""Applies recorded DDL events to the target: each in one transaction with its bookkeeping."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psycopg
from psycopg import errors as pg

from airflow_provider_pgddl.engine.apply.as_client import run_as
from airflow_provider_pgddl.engine.errors import StageFailed, from_postgres, remedy_for
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.dump_events import EventRow
from airflow_provider_pgddl.engine.journal.lease import Fence
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.rights.alter_as_owner import alter
from airflow_provider_pgddl.engine.server.connect import Session, keeping_plans
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("ddl_events")

# So many that a transaction's own cost no longer counts, and so few that the server has locks for what they make.
GROUP = 50


def run_event(conn: Session, event: EventRow, trusted: Sequence[str]) -> None:
    """Its statement, in the caller's transaction; without any mark."""
    if grantor := event.event.get("grantor"):
        run_as(conn, grantor, event.statement)
    else:
        alter(conn, event.statement, trusted)


def apply_event(
    conn: Session, pipeline: str, fence: Fence, event: EventRow, trusted: Sequence[str], *, copies_only: bool = False
) -> None:
    """Runs one statement and marks it applied in the same transaction; does nothing where it is marked (C29).

    `trusted` are the pipeline's trusted_roles. `copies_only`: in place, a statement that would act on a live table
    after all is rolled back (C8). What cannot succeed is marked failed, with the server's words, and raised; what a
    retry may cure stays pending.
    """
    journal = Journal(conn, pipeline)
    try:
        with conn.transaction():
            if not journal.dump_events.lock([event.id]):
                return
            run_event(conn, event, trusted)
            if copies_only:
                refuse_locks_outside(conn, event.statement)
            journal.dump_events.set_status(event.id, "applied")
            lease.check(conn, fence)
            failpoint("apply.before_statement_commit", conn)
    except pg.DuplicateSchema:
        with lease.fenced(conn, fence, "apply.before_skipped_commit"):
            journal.dump_events.set_status(event.id, "skipped", "the schema is there already")
    except psycopg.Error as error:
        remedy = remedy_for(error)
        if remedy is not None and remedy.retryable:
            raise
        failure = _cannot_apply(event, error)
        with lease.fenced(conn, fence, "apply.before_failed_commit"):
            journal.dump_events.set_failed(event.id, failure.what)
        raise failure from None


def _cannot_apply(event: EventRow, error: psycopg.Error) -> StageFailed:
    message = from_postgres(error, doing=f"applying {event.event['tag']}")
    table = event.event.get("table")
    todo = "make the statement possible on the target (put aside what stands in its way), then run the stage again"
    if event.event["kind"] == "rewrite":
        # Setup has found it possible: the table has changed since, and what is asked of it is fixed now.
        todo = "`pgddl reset` the pipeline, then start again with a rewrite.alter for the table as it is now"
    return StageFailed(message.what, table=".".join(table) if table else None, todo=todo, sql=event.statement)


def refuse_locks_outside(conn: Session, statement: str) -> None:
    """What a statement locked says what it acted on, whatever its text says."""
    touched = conn.execute(queries("catalog")["strong_locks_outside"]).fetchone()
    if touched is not None:
        raise StageFailed(
            "a statement for the copy would act on this live relation; it was rolled back",
            table=".".join(touched),
            todo="leave the table out, or drop what makes its definition reach beyond it",
            sql=statement,
        )


def apply_together(conn: Session, pipeline: str, events: Sequence[EventRow], trusted: Sequence[str]) -> None:
    """Applies events in the caller's transaction: all or none, with what else it does."""
    journal = Journal(conn, pipeline)
    left = journal.dump_events.lock([event.id for event in events])
    for event in (e for e in events if e.id in left):
        try:
            run_event(conn, event, trusted)
        except psycopg.Error as error:
            remedy = remedy_for(error)
            if remedy is not None and remedy.retryable:
                raise
            raise _cannot_apply(event, error) from None
        journal.dump_events.set_status(event.id, "applied")


def apply_events(
    conn: Session,
    pipeline: str,
    fence: Fence,
    events: Sequence[EventRow],
    trusted: Sequence[str],
    *,
    copies_only: bool = False,
) -> int:
    """Applies events in their order; returns how many, with those that were applied before."""
    for event in events:
        apply_event(conn, pipeline, fence, event, trusted, copies_only=copies_only)
    return len(events)


def apply_in_groups(
    conn: Session,
    pipeline: str,
    fence: Fence,
    events: Sequence[EventRow],
    trusted: Sequence[str],
    *,
    copies_only: bool = False,
    tell: Callable[[int, EventRow], None] | None = None,
) -> int:
    """`apply_events` for many quick statements about what nobody uses yet: as many as GROUP in one transaction, which
    costs more than they do. Where one of them does not succeed, each of its group has a transaction of its own. `tell`
    is told how many are done, and which is next."""
    journal = Journal(conn, pipeline)
    for first in range(0, len(events), GROUP):
        group = events[first : first + GROUP]
        if tell:
            tell(first, group[0])
        try:
            with lease.fenced(conn, fence, "apply.before_group_commit"), keeping_plans(conn):
                left = journal.dump_events.lock([event.id for event in group])
                for event in (e for e in group if e.id in left):
                    run_event(conn, event, trusted)
                    if copies_only:
                        refuse_locks_outside(conn, event.statement)
                journal.dump_events.set_applied(sorted(left))
        except (psycopg.Error, StageFailed):
            if conn.closed:
                raise
            apply_events(conn, pipeline, fence, group, trusted, copies_only=copies_only)
    return len(events)
