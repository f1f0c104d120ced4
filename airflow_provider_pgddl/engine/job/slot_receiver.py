"""What a slot yields, brought into the change logs: before every window, and while blocks are copied."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from airflow_provider_pgddl.engine.capture import slot_log
from airflow_provider_pgddl.engine.capture.kept_stream import KeptStream
from airflow_provider_pgddl.engine.capture.slot_stream import SlotStream
from airflow_provider_pgddl.engine.errors import PgddlError, ReadBeyond, Retry, SlotLost, from_postgres
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.progress import amount, repeating
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.lock_timeout import PREPARED
from airflow_provider_pgddl.engine.sql import queries

if TYPE_CHECKING:
    from airflow_provider_pgddl.engine.job.context import Context

_WRITERS = (
    "SELECT pid, usename, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start;"
)
RECEIVE_EVERY = 10.0  # seconds, while blocks are copied
BACKLOG = 16 << 20  # bytes of WAL, which a window reads in a fraction of a second
OLDER_TRANSACTIONS_WAIT = 60.0  # seconds; then a retryable error names who is in the way


def receive(context: Context) -> None:
    """All that the source has committed by now, where a slot fills the change logs. SlotLost where changes are gone,
    but with `capture.on_slot_lost: restart_tables`, which reads the tables again; Retry where the slot keeps back too
    much of the source's WAL."""
    if not context.pipeline.by_slot:
        return
    source, target = context.session_once("source", "receive"), context.session_once("target", "receive")
    kept = context.stream
    stream = kept.taken if kept is not None else partial(_stream_of, context)
    tables = context.journal.tables.of(context.journal.run)
    masked = {t.oid: t.log_table for t in tables if t.plan.transformed}
    try:
        slot_log.receive_into_logs(source, target, stream, context.name, context.lease.fence, masked, context.say)
    except SlotLost as lost:
        if kept is not None:
            kept.close()
        if context.pipeline.capture.on_slot_lost == "restart_tables":
            context.say(f"{lost.what}: a new one is made, and every table is read again")
            slot_log.begin_anew(source, target, context.name, context.pipeline.capture.failover, context.lease.fence)
            wait_for_older_transactions(context)
        elif isinstance(lost, ReadBeyond) and context.row().cut_over_at is None:
            _note_lost_changes(context, target, lost)
        else:
            raise
        slot_log.receive_into_logs(source, target, stream, context.name, context.lease.fence, masked, context.say)
    _refuse_much_wal(context, source)


def _note_lost_changes(context: Context, target: Session, lost: ReadBeyond) -> None:
    """A copy without indexes is read again: built they would be on rows of different times. Of the others only a
    verification can tell which rows differ (C33)."""
    context.say(lost.what)
    journal = Journal(target, context.name)
    tables = [t for t in journal.tables.of(journal.run) if not t.keyless]
    with lease.fenced(target, context.lease.fence, "slot.before_lost_changes_commit"):
        slot_log.lose_track(target, [t for t in tables if t.state in ("created", "backfilled")])
        if any(t.state == "indexed" for t in tables):
            journal.require_verify(lost.what)
        slot_log.go_on(target, context.name, lost.begins)


def _stream_of(context: Context) -> SlotStream:
    slot = slot_log.slot_name(context.name)
    return SlotStream(context.source_dsn, slot, slot, pipeline=context.name, token=context.lease.token)


@contextmanager
def one_stream(context: Context) -> Iterator[None]:
    """While the block runs, the slot is read by one stream. Not where runs over other tables may want it as well, nor
    may the block drop the slot."""
    if not context.pipeline.by_slot or context.job.tables is not None or context.stream is not None:
        yield
        return
    with KeptStream(partial(_stream_of, context)) as kept:
        context.stream = kept
        try:
            yield
        finally:
            context.stream = None


def receive_backlog(context: Context) -> None:
    """Where much has not been read, before a window keeps a snapshot and locks for it."""
    if context.pipeline.by_slot and slot_log.backlog(context.source, context.target, context.name) > BACKLOG:
        receive(context)


def _refuse_much_wal(context: Context, source: Session) -> None:
    """All has been read: what is kept back now is a transaction's that has not ended, and would fill the disk."""
    limit = context.pipeline.capture.max_retained_wal
    retained = slot_log.retained(source, slot_log.slot_name(context.name))
    if retained > limit and source.execute(queries("slot_log")["in_progress"]).fetchone() == (True,):
        raise Retry(
            f"the slot keeps back {amount(retained)}B of the source's WAL, more than capture.max_retained_wal"
            f" ({amount(limit)}B), for a transaction that has not ended",
            todo="end the source's oldest transactions, or raise capture.max_retained_wal; then run the stage again",
            sql=f"{_WRITERS}\n{PREPARED}",
        )


@contextmanager
def receiving(context: Context) -> Iterator[None]:
    """Goes on receiving while the block runs: a backfill takes hours, for which the source would keep its WAL."""
    if not context.pipeline.by_slot:
        yield
        return

    def again() -> None:
        try:
            receive(context)
        except (PgddlError, psycopg.Error) as error:
            failure = error if isinstance(error, PgddlError) else from_postgres(error, doing="reading the slot")
            context.say(f"the slot could not be read, which is tried again: {failure.what}")

    with one_stream(context), repeating("pgddl-receive", RECEIVE_EVERY, again):
        yield


def wait_for_older_transactions(context: Context) -> None:
    """Until every transaction that was in progress when capture was complete has ended (C2)."""
    source = context.source
    snapshot = catalog.current_snapshot(source)
    deadline, said = time.monotonic() + OLDER_TRANSACTIONS_WAIT, False
    while True:
        older = source.execute(queries("catalog")["transactions_before"], {"snapshot": snapshot}).fetchall()
        if not older:
            return
        who = ", ".join(
            f"prepared transaction {gid!r}" if gid else f"process {pid} of {user}" for _, pid, user, gid in older
        )
        if not said:
            context.say(f"waiting for transactions that are older than capture: {who}")
            said = True
        if time.monotonic() > deadline:
            raise Retry(
                f"transactions that are older than capture did not end within {OLDER_TRANSACTIONS_WAIT:.0f} s: {who}",
                todo="commit, roll back or end them; then run setup again (capture goes on meanwhile, nothing is lost)",
            )
        time.sleep(0.1)
