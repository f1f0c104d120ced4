"""A server that was failed over to a state without its last commits (C33): found by whoever runs next, told by
everything that tells, until a verification has compared, or read again, what both have."""

from __future__ import annotations

from functools import partial

from airflow_provider_pgddl.engine.capture import change_log, ddl_log, slot_log, timeline
from airflow_provider_pgddl.engine.capture.pgoutput import parse_lsn
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.following.ddl import captures_ddl, ddl_lock, transport
from airflow_provider_pgddl.engine.following.schema_gate import MEND
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.pipelines import PipelineRow
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.tables import Server
from airflow_provider_pgddl.engine.server import catalog

TODO = f"`pgddl {MEND}` compares both, and reads again what differs"
NEVER_WAS = (
    "the source was failed over to a state that never had this statement: undo it on the target by hand, then resolve "
    "this event"
)


def refuse_other_cluster(name: str, recorded: PipelineRow, now: Server) -> None:
    """A connection that now leads somewhere else would look like a source that lost every row."""
    if recorded.source_system != now.system:
        raise StageFailed(
            f"the source is not the cluster that pipeline {name!r} was set up on "
            f"(system identifier {now.system}, was {recorded.source_system})",
            todo="correct the connection, or `pgddl reset` the pipeline and start again",
        )


def look(context: Context) -> None:
    """What every stage begins with, before it reads, takes or follows anything: whether one of the servers has lost
    what the other one has of it."""
    note_lost_windows(context)
    meet(context)


def note_lost_windows(context: Context) -> None:
    """A target that was failed over to an older state has lost windows whose log rows are gone (C11): only verify can
    tell. The next window would tell as well, but what it is to make room for comes first."""
    if context.in_place:
        return
    acknowledged = change_log.window_no(context.source, context.name)
    row = context.row()
    if acknowledged is not None and acknowledged > row.window_no and row.cut_over_at is None:
        with context.fenced("failover.before_lost_windows_commit"):
            context.journal.windows.note_lost(acknowledged)


def meet(context: Context) -> None:
    """Where the source is on another timeline than the one that is recorded. What was read beyond the point where that
    was left never was: a verification is needed, the slot is read again from there, and so is DDL. The old timeline
    stays recorded until all of this is, in one transaction."""
    recorded, now = context.row(), catalog.server(context.source)
    if recorded.source_timeline == now.timeline:
        return
    changed = f"timeline {recorded.source_timeline} → {now.timeline}"
    if context.in_place:  # the rows that were read, and what was made of them, went or stayed together
        with context.fenced("failover.before_in_place_commit"):
            context.journal.set_timeline(now.timeline)
        return
    switch = timeline.left_at(context.source_dsn, context.name, recorded.source_timeline, now.timeline)
    with ddl_lock(context):
        ddl = _ddl_that_never_was(context, switch)
        with context.fenced("failover.before_timeline_commit"):
            row = context.journal.lock()
            if row.source_timeline == now.timeline:
                return  # another run was first
            if row.cut_over_at is not None:
                context.say(f"the source was failed over ({changed}) at {switch}; applications are on the target")
            elif not _read_beyond(context, switch):
                context.say(f"the source was failed over ({changed}) at {switch}: nothing that was read is lost")
            elif context.moves_rows:
                context.journal.require_verify(
                    f"the source was failed over ({changed}): rows that the new primary never had may have been copied"
                )
            if context.pipeline.by_slot:
                slot_log.go_back(context.source, context.target, context.name, _logs(context), switch)
            if ddl is not None:
                _go_back(context, ddl, switch)
            context.journal.set_timeline(now.timeline)


def _read_beyond(context: Context, switch: str | None) -> bool:
    """Whether rows may have been read of what was written behind there."""
    if switch is None:
        return True
    journal, tables = context.journal, context.journal.tables.of(context.journal.run)
    if any(t.state in ("created", "backfilled") and not t.keyless for t in tables):
        return True  # of blocks it is not kept when they were read
    by_slot = context.pipeline.by_slot
    read = slot_log.received(context.target, context.name) if by_slot else journal.windows.last_read(journal.run)
    no_window = read is None and journal.windows.summary(journal.run).windows == 0
    birth = change_log.birth(context.source, context.name) if no_window else None
    if birth is not None and birth.run == journal.run:
        read = birth.lsn  # behind the fence both were equal, and no window has been since
    some = any(t.state == "indexed" and not t.keyless for t in tables)
    return some and (read is None or parse_lsn(read) > parse_lsn(switch))


def _logs(context: Context) -> list[TableRow]:
    return [t for t in context.journal.tables.of(context.journal.run) if not t.keyless]


def _ddl_that_never_was(context: Context, switch: str | None) -> tuple[str | None, list[int]] | None:
    """The position that the new primary knows to be read, and the events behind it that the journal has and it has not;
    None where no DDL was read that can be lost. Transactions get the numbers of lost ones again: the journal's own
    position would hide what they do."""
    ddl = DdlJournal(context.target, context.name, context.journal.run)
    position, lsn = ddl.position(), ddl.lsn()
    if not captures_ddl(context) or position is None:
        return None
    if switch is not None and lsn is not None and parse_lsn(lsn) <= parse_lsn(switch):
        return None
    source, other = context.looking, partial(context.session_once, "source", "ddl marker")
    with source.transaction():
        source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        confirmed = ddl_log.confirmed(source, context.name)
        read = ddl_log.read(source, other, context.name, transport(context), confirmed)
    there = {(event["id"], event["lsn"]) for event in read.events}
    return confirmed, [i for i, *event in ddl.behind(confirmed) if tuple(event) not in there]


def _go_back(context: Context, ddl: tuple[str | None, list[int]], switch: str | None) -> None:
    confirmed, never = ddl
    journal = DdlJournal(context.target, context.name, context.journal.run)
    lsn = journal.lsn()
    if switch is not None:
        journal.forget_versions(switch)
        lsn = min(lsn, switch, key=parse_lsn) if lsn else switch
    journal.set_position(confirmed, lsn)
    journal.set_left_out(None)  # of a source that is no more
    for event_id in journal.never_was(never, NEVER_WAS):
        context.say(f"DDL event {event_id}: {NEVER_WAS}")
