"""A server that was failed over to a state without its last commits (C33): found by whoever runs next, told by
everything that tells, until a verification has compared, or read again, what both have."""

from __future__ import annotations

from functools import partial

from airflow_provider_pgddl.engine.capture import change_log, ddl_log, slot_log, timeline
from airflow_provider_pgddl.engine.capture.pgoutput import parse_lsn
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.following.clones import clone_beside
from airflow_provider_pgddl.engine.following.ddl import captures_ddl, ddl_lock, transport
from airflow_provider_pgddl.engine.following.schema_gate import MEND
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.pipelines import PipelineRow
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.journal.windows import LOST_WINDOWS
from airflow_provider_pgddl.engine.model.tables import Server
from airflow_provider_pgddl.engine.rows.wal_flush import insert_lsn
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session

TODO = f"`pgddl {MEND}` compares both, and reads again what differs"
NEVER_WAS = (
    "the source is in a state that never had this statement, by a failover or a restore: undo it on the target by "
    "hand, then resolve this event"
)


def refuse_other_source(source: Session, name: str, row: PipelineRow) -> None:
    """A connection that now leads somewhere else would look like a source that lost every row. A way back whose source
    has lost all of ours is told by the cut-over that this one has lost."""
    now = catalog.server(source)
    if row.source_system != now.system:
        what = (
            f"the source is not the cluster that pipeline {name!r} was set up on "
            f"(system identifier {now.system}, was {row.source_system})"
        )
    elif row.finished_at:
        return
    elif row.born_of or change_log.journal_of(source, name) is not None:
        if clone := clone_beside(source, name, now, row):
            raise StageFailed(clone.what, todo=clone.todo, sql=clone.sql)
        return
    else:
        what = (
            f"the source, database {now.database!r}, does not know pipeline {name!r}: another one was set up, or it "
            "was put back to what it was before that"
        )
    raise StageFailed(
        what,
        todo="correct the connection; if what was set up is gone for good, `pgddl reset --source-gone`, then begin "
        "again with setup",
    )


def look(context: Context) -> None:
    """What every stage begins with, before it reads, takes or follows anything: whether one of the servers has lost
    what the other one has of it. In place there is one server, and all went or stayed together."""
    recorded, now = context.row(), catalog.server(context.source)
    if context.in_place:
        if (recorded.source_timeline, recorded.source_database) != (now.timeline, now.database_oid):
            with context.fenced("failover.before_in_place_commit"):
                context.journal.set_source_state(now, 0)
        return
    known = acknowledged(context)  # asked second, as both only rise
    if known > recorded.window_no and recorded.cut_over_at is None:
        with context.fenced("failover.before_lost_windows_commit"):
            context.journal.windows.note_lost(known)
    if recorded.source_timeline != now.timeline or _went_back(context, recorded, known) is not None:
        _meet(context, recorded, now)
    elif recorded.source_database != now.database_oid:
        with context.fenced("failover.before_database_commit"):
            context.journal.set_source_database(now)


def acknowledged(context: Context) -> int:
    """The last window that the source knows to be on the target; 0 for none."""
    if change_log.journal_of(context.source, context.name) is None:
        return 0
    return change_log.window_no(context.source, context.name) or 0


def has_lost_commits(context: Context) -> bool:
    """Whether the target was failed over to a state without windows that it had, or that is not compared yet."""
    row = context.row()
    return acknowledged(context) > row.window_no or (row.verify_needed or "").startswith(LOST_WINDOWS)


def acknowledged_since(context: Context) -> int | None:
    """At the end of a stage, to be noted with its result: the source that the next one finds knows of as many, or has
    gone back. None where there is nothing new; after a cut-over, which takes the source's memory away; in place."""
    row = context.row()
    if row.window_no == row.acknowledged or row.cut_over_at is not None or context.in_place:
        return None
    return acknowledged(context)


def _went_back(context: Context, row: PipelineRow, known: int) -> str | None:
    """How one sees that the source, on its timeline, is in a state from before what was read: by a storage that was
    rolled back, a clone that took its place. None where it is not. What it has acknowledged is on its disk, and so is
    the WAL of what was read. Nobody can tell of a run that is void, or over."""
    if row.unborn or row.cut_over_at is not None or row.finished_at is not None:
        return None
    if known < row.acknowledged:
        return f"went back to an older state (it had acknowledged window {row.acknowledged}, and knows of {known} only)"
    furthest, here = context.journal.windows.furthest(), insert_lsn(context.source)
    if furthest is not None and parse_lsn(furthest) > parse_lsn(here):
        return f"went back to an older state (its WAL was read up to {furthest}, and is at {here})"
    return None


def _meet(context: Context, recorded: PipelineRow, now: Server) -> None:
    """Where the source is on another timeline than the one that is recorded, or has gone back on the same. What was
    read beyond the point where it was left never was: a verification is needed, the slot is read again from there, and
    so is DDL. The old state stays recorded until all of this is, in one transaction."""
    moved, switch = recorded.source_timeline != now.timeline, None
    if moved:
        switch = timeline.left_at(context.source_dsn, context.name, recorded.source_timeline, now.timeline)
    with ddl_lock(context):
        ddl = _ddl_that_never_was(context, switch)
        with context.fenced("failover.before_timeline_commit"):
            row = context.journal.lock()
            known, here = acknowledged(context), insert_lsn(context.source)
            if row.source_timeline != now.timeline:
                why = f"was failed over (timeline {row.source_timeline} → {now.timeline})"
            elif moved or (back := _went_back(context, row, known)) is None:
                return  # another run was first
            else:
                why = back
            at = f"the source {why}{f' at {switch}' if switch else ''}"
            if row.cut_over_at is not None:
                context.say(f"{at}; applications are on the target")
            elif moved and not _read_beyond(context, switch):
                context.say(f"{at}: nothing that was read is lost")
            elif context.moves_rows:
                context.journal.require_verify(f"the source {why}: rows that it never had may have been copied")
            if context.pipeline.by_slot:
                slot_log.go_back(context.source, context.target, context.name, _logs(context), switch)
            if ddl is not None:
                _go_back(context, ddl, switch, here)
            context.journal.windows.forget_lsns(row.run, switch or here)
            context.journal.set_source_state(now, known)


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


def _go_back(context: Context, ddl: tuple[str | None, list[int]], switch: str | None, here: str) -> None:
    confirmed, never = ddl
    journal = DdlJournal(context.target, context.name, context.journal.run)
    lsn = min(journal.lsn() or here, switch or here, key=parse_lsn)
    journal.forget_versions(switch or here)  # what is above is of another history
    journal.set_position(confirmed, lsn)
    journal.set_left_out(None)  # of a source that is no more
    for event_id in journal.never_was(never, NEVER_WAS):
        context.say(f"DDL event {event_id}: {NEVER_WAS}")
