"""snapshot: pg_dump at one snapshot → DDL events → the copies. Indexes, constraints, triggers and grants wait for
their stage."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_pgddl.engine.apply.dump_events import apply_in_groups
from airflow_provider_pgddl.engine.ddl.events import DdlEvent, without
from airflow_provider_pgddl.engine.errors import UsageError, about_whole_pipeline
from airflow_provider_pgddl.engine.following.adopted_tables import note_adopted
from airflow_provider_pgddl.engine.following.ddl import (
    follow_ddl,
    follow_what_blocks,
)
from airflow_provider_pgddl.engine.following.missing_owners import refuse_ownerless
from airflow_provider_pgddl.engine.following.partition_by import make_partitions
from airflow_provider_pgddl.engine.following.reconcile import take_copies
from airflow_provider_pgddl.engine.following.source_dump import (
    ABSENT,
    _absent,
    dump_unchanged,
    in_place_steps,
    steps_across,
)
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.journal.dump_events import EventRow
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.progress import Steps
from airflow_provider_pgddl.engine.server.encodings import Verbatim, as_is
from airflow_provider_pgddl.engine.sql import queries


def run(context: Context) -> StageResult:
    if context.job.tables is not None:
        raise about_whole_pipeline("snapshot")
    if not context.journal.stage_runs.done(context.journal.run, "setup"):
        raise UsageError("setup has not finished", todo="run stage setup first")
    journal, run_no = context.journal, context.journal.run
    _make_recorded(context)
    if journal.stage_runs.done(run_no, "snapshot"):
        follow_ddl(context, look=True)
    fresh = [t for t in context.healthy(context.tables()) if t.state == "captured"]
    if not fresh and journal.stage_runs.done(run_no, "snapshot"):
        return context.result("nothing_to_do")
    counts = journal.dump_events.counts(run_no)
    if not counts:
        note_adopted(context, fresh)
        _record_events(context, None)
    elif late := [t for t in fresh if t.id not in journal.dump_events.tables(run_no)]:
        note_adopted(context, late)
        _record_events(context, late)
    applied = _apply(context)
    take_copies(context, new := context.healthy(context.tables(), "captured"))
    follow_what_blocks(context, new)
    make_partitions(context, context.healthy(context.tables(), "created"))
    counts = journal.dump_events.counts(run_no)
    context.say(f"{applied} statements applied, {counts.get('skipped', 0)} skipped")
    return context.result("done", {t.qualified: {"state": t.state} for t in context.tables()}, applied=applied,
                          skipped=counts.get("skipped", 0), pending=counts.get("pending", 0))  # fmt: skip


def _make_recorded(context: Context) -> None:
    """Copies that a run which died has only recorded: DDL that came behind their dump would be taken for shown by a
    dump that is still to come, as long as they are not there."""
    recorded = context.journal.dump_events.tables(context.journal.run)
    if any(t.id in recorded for t in context.healthy(context.tables(), "captured")):
        _apply(context)


def _record_events(context: Context, late: Sequence[TableRow] | None) -> None:
    """The dump's statements, as they will be run, in one transaction with the note of what was skipped and why.

    `late` are tables that came after the first dump; only what belongs to them is dumped.
    """
    events = dump_unchanged(context, late)
    steps = list(in_place_steps(context, events) if context.in_place else steps_across(context, events))
    if not context.in_place:
        refuse_ownerless(context, steps)
    # A partition's statements belong to its root: an index is attached to one that has to be there first.
    ids = {
        part: t.id
        for t in context.tables()
        if t.plan.partitioned
        for part in context.source.execute(queries("swap")["partitions_of"], [t.oid]).fetchall()
    }
    ids |= {(t.schema, t.name): t.id for t in context.tables()}
    run_no = context.journal.run
    first = context.journal.dump_events.next_seq(run_no)
    with context.fenced("snapshot.before_statements_commit"), context.target.cursor() as cursor:
        context.journal.dump_events.replace_skipped(run_no, [t.id for t in late or ()])
        cursor.executemany(
            queries("journal")["insert_event"],
            [
                [context.name, run_no, n, s.event.phase, ids.get(s.event.table) if s.event.table else None,
                 as_is(s.event.to_json()), Verbatim(s.statement), s.status, s.note]
                for n, s in enumerate(steps, first)
            ],
        )  # fmt: skip
        if late is not None:
            # What stands on these tables (a view that was taken away or skipped with them) comes after them.
            _revive(context)
            context.journal.dump_events.queue_behind(run_no, first, first + len(steps))


def _revive(context: Context) -> None:
    """What was skipped on account of a table that is no longer blocked is to be done after all."""
    recorded = context.journal.dump_events.recorded(context.journal.run)
    events = {row.id: DdlEvent.from_json(row.event) for row in recorded}
    _, out = without(events.values(), _absent(context))
    still = {id(event) for event in out}
    for row in recorded:
        if row.status == "skipped" and row.note == ABSENT and id(events[row.id]) not in still:
            context.journal.dump_events.set_status(row.id, "pending")


def _apply(context: Context) -> int:
    run_no = context.journal.run
    blocked = {t.id for t in context.tables()} - {t.id for t in context.healthy(context.tables())}
    phases = ["create"] if context.moves_rows else ["create", "index", "foreign_key", "finish"]
    events = [e for e in context.journal.dump_events.to_apply(run_no, phases) if e.table_id not in blocked]
    trusted, names = context.pipeline.trusted_roles, context.table_names()
    steps = Steps(context.say, "making what is not there", "statements")

    def tell(done: int, event: EventRow) -> None:
        steps.at(done, len(events), names.get(event.table_id or 0))

    return apply_in_groups(
        context.target, context.name, context.fence(), events, trusted, copies_only=context.in_place, tell=tell
    )
