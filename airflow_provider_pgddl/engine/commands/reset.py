"""reset: take a pipeline, or some of its tables, away: copies, capture, journal. Live tables are never touched."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from psycopg import sql

from airflow_provider_pgddl.engine.apply.dump_events import run_event
from airflow_provider_pgddl.engine.capture import change_log, slot_log
from airflow_provider_pgddl.engine.capture.fence import fenced
from airflow_provider_pgddl.engine.capture.slot_stream import SlotStream
from airflow_provider_pgddl.engine.commands.undoing import GONE, Applied, Undoing, run_undoings, undo_all, undoings
from airflow_provider_pgddl.engine.ddl.events import DdlEvent, without
from airflow_provider_pgddl.engine.ddl.finish_statements import ORDER, group_of, key_of, undone
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, old_schema
from airflow_provider_pgddl.engine.errors import SlotLost, UsageError, not_of_pipeline
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.clones import clone_beside
from airflow_provider_pgddl.engine.following.table_capture import (
    drop_schema_if_empty,
    forget_capture,
    refuse_late_changes,
    refuse_unseen,
    stop_capture_of,
    stop_slot_capture_of,
)
from airflow_provider_pgddl.engine.following.unseen_writes import refuse_without_log, without_log
from airflow_provider_pgddl.engine.journal import lease, migrations
from airflow_provider_pgddl.engine.journal.births import Births, way_back_that_lives
from airflow_provider_pgddl.engine.journal.dump_events import EventRow
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal, PipelineRow
from airflow_provider_pgddl.engine.journal.pipelines import exists as journal_exists
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import table_name, written
from airflow_provider_pgddl.engine.progress import say
from airflow_provider_pgddl.engine.rows.change_log_reading import count_changes, logs_now
from airflow_provider_pgddl.engine.rows.copy_only_columns import count_kept, kept_table
from airflow_provider_pgddl.engine.rows.pending_keys import count_pending, forget_keys
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.swapping.fence import lower_fences
from airflow_provider_pgddl.engine.swapping.way_back_across import is_alive, unmake


def reset(
    pipeline: Pipeline,
    source_dsn: str,
    target_dsn: str,
    tables: Sequence[str] | None = None,
    *,
    source_gone: bool = False,
) -> dict[str, Any]:
    """Returns what was taken away. Refused between a swap in place and its cleanup: the old tables are the only way
    back; and where the source is not the one that captures, unless that is gone for good (`source_gone`)."""
    name = pipeline.pipeline
    with ExitStack() as stack:
        source = stack.enter_context(connect(source_dsn, purpose="reset", pipeline=name))
        target = (
            source if pipeline.in_place else stack.enter_context(connect(target_dsn, purpose="reset", pipeline=name))
        )
        held = stack.enter_context(Lease(target_dsn, name, "reset", None))
        change_log.refuse_other_journal(source, name, change_log.journal_name(catalog.server(target)))
        journal = Journal(target, name)
        row = journal.find()
        if row is None:
            return {"pipeline": name, "dropped": _sweep(pipeline, source, target)}
        _refuse_elsewhere(source, name, row, gone=source_gone)
        if row.unborn:
            held.close()
            unmake(name, target, target_dsn, source)
            return {"pipeline": name, "dropped": ["what was prepared for a cut-over that has not come about"]}
        held.take(source_dsn)
        if row.finished_at is None:  # else a pipeline of this name may go on from the target by now
            held.terminate_stale(*{id(s): s for s in (source, target)}.values())
        _refuse_other_way(pipeline, source, source_dsn, target, row)
        if pipeline.beside and row.cut_over_at and not row.finished_at:
            back = "run stage revert, then reset, which leaves them as they were; or cleanup, which keeps the new ones"
            raise UsageError(
                f"pipeline {name!r} has swapped its tables",
                todo=back if pipeline.swap.keep_old else "run stage cleanup, which ends it",
            )
        chosen = _chosen(journal.tables.of(row.run), tables)
        if row.cut_over_at is None:
            refuse_archives(journal, chosen, "a reset")
            refuse_values_away(journal, [t for t in chosen if t.plan.adopted])
        if tables is not None:
            return {"pipeline": name, "dropped": _reset_tables(pipeline, source, journal, row, chosen)}
        read: Callable[[], None] = _read_nothing
        if pipeline.by_slot:
            reading = stack.enter_context(connect(source_dsn, purpose="reset", pipeline=name))
            read = partial(_read_slot, pipeline, reading, source_dsn, journal, held, chosen)
        if row.cut_over_at is not None and row.finished_at is None:
            _refuse_late_changes(pipeline, source, journal, chosen, read)
        return {"pipeline": name, "dropped": _reset_all(pipeline, source, journal, row, chosen, held, read)}


def _refuse_elsewhere(source: Session, name: str, row: PipelineRow, *, gone: bool) -> None:
    """Triggers, logs and slots of a source that the file does not name any more would stay there, and nobody would know
    of them: a change log grows, and a slot keeps WAL, until the disk is full. Who has a clone of it is another person,
    perhaps, than who has the copies: nor is the source `gone` then."""
    now, known = catalog.server(source), change_log.journal_of(source, name) is not None
    if known and row.finished_at is None and (clone := clone_beside(source, name, now, row)):
        raise clone
    if gone:
        return
    if now.system != row.source_system:
        elsewhere = f"another cluster (system identifier {now.system}) than the one that captures ({row.source_system})"
    elif row.finished_at is None and not known:
        elsewhere = f"a database ({now.database}) that does not know the pipeline; the one that captures is another"
    else:
        return
    raise UsageError(
        f"the source is {elsewhere}: what captures there would go on for ever",
        todo="point the source at the database that was set up, wherever it is by now; if that is gone for good, or was"
        " put back to what it was before setup, `pgddl reset --source-gone` goes on without it",
    )


def _refuse_other_way(pipeline: Pipeline, source: Session, source_dsn: str, target: Session, row: PipelineRow) -> None:
    """The tables of a run that was born complete are none that it made; and while a way back lives, what it goes back
    to is not to be touched. What was only prepared goes."""
    if row.born_of is not None and not row.unborn and not row.finished_at:
        raise UsageError(
            f"pipeline {pipeline.pipeline!r} is the way back of {row.born_of!r}: its tables are none that it has made",
            todo="run stage cleanup of it, which gives the way back up",
        )
    back = None if pipeline.in_place else way_back_that_lives(source, pipeline.pipeline) or pipeline.swap.way_back
    found = Births(source, back).find() if back else None
    if back is None or found is None or found.of != pipeline.pipeline or found.finished:
        return
    if not found.unborn and (row.cut_over_at or is_alive(found, pipeline.pipeline)):
        raise UsageError(
            f"the way back of pipeline {pipeline.pipeline!r} lives: {back}",
            todo=f"run stage cleanup of {back} first, which gives the way back up",
        )
    if found.unborn:
        unmake(back, source, source_dsn, target)


def _sweep(pipeline: Pipeline, source: Session, target: Session) -> list[str]:
    """What a setup or a reset that was killed leaves behind: the sets of migrations, without the pipeline in them."""
    dropped = _drop_capture(pipeline, source, None)
    forget_capture(source, pipeline.pipeline)
    if journal_exists(target) and Journal(target, pipeline.pipeline).others() == 0:
        migrations.revert(target, "journal", unless_in="pipelines")
    return dropped


def _chosen(tables: Sequence[TableRow], names: Sequence[str] | None) -> list[TableRow]:
    if names is None:
        return list(tables)
    wanted = {table_name(n) for n in names}
    unknown = wanted - {(t.schema, t.name) for t in tables}
    if unknown:
        raise not_of_pipeline(".".join(min(unknown)))
    return [t for t in tables if (t.schema, t.name) in wanted]


def _read_nothing() -> None:
    """Triggers write their logs by themselves."""


def _read_slot(
    pipeline: Pipeline, reading: Session, source_dsn: str, journal: Journal, held: Lease, tables: Sequence[TableRow]
) -> None:
    """What nobody has read from the slot yet, into the logs, with a session of the source that is in no transaction; of
    a slot that is lost nobody can tell that."""
    slot = slot_log.slot_name(pipeline.pipeline)
    stream = partial(SlotStream, source_dsn, slot, slot, pipeline=pipeline.pipeline, token=held.token)
    masked = {t.oid: t.log_table for t in tables if t.plan.transformed}
    with suppress(SlotLost):
        slot_log.receive_into_logs(
            reading, journal.conn, stream, pipeline.pipeline, held.fence, masked, partial(say, "reset")
        )


def _refuse_late_changes(
    pipeline: Pipeline, source: Session, journal: Journal, tables: Sequence[TableRow], read: Callable[[], None]
) -> None:
    """What was written to the source after the cut-over. Where neither a capture nor a fence is left, a reset that was
    killed has taken them away: it has looked before that."""
    name = pipeline.pipeline
    if not migrations.state(source, "core")["applied"]:
        return
    if captured := change_log.captured_roots(source, name):
        read()
        refuse_late_changes(source, logs_now(pipeline, source, journal.conn), name, tables)
    if captured or fenced(source, name):
        refuse_without_log(without_log(source, name, tables), "run stage cleanup, which raises it again")


def refuse_archives(journal: Journal, tables: Sequence[TableRow], what: str) -> None:
    """Where the target keeps what the source has deleted, only a person drops it, and not `what`."""
    for table in (t for t in tables if t.plan.operations):
        name = [table.plan.copy_schema, table.plan.copy_name]
        if journal.conn.execute(queries("adopted_rows")["may_have_rows"], name).fetchone() == (True,):
            raise UsageError(
                f"{what} would drop rows on the target that the source may have deleted (tables.operations)",
                table=table.qualified,
                todo="move the table to a schema of your own, or drop it yourself; then run this again. One whose rows"
                " were deleted by hand counts as empty once VACUUM has given its file back",
                sql=sql.SQL("CREATE SCHEMA kept;\nALTER TABLE {} SET SCHEMA kept;").format(table.plan.copy).as_string(),
            )  # fmt: skip


def refuse_values_away(journal: Journal, tables: Sequence[TableRow]) -> None:
    """Of tables that stay: values that the target alone has, while their rows wait to be read again."""
    for table in tables:
        if rows := count_kept(journal.conn, table):
            columns = ", ".join(map(written, table.plan.columns.kept))
            raise UsageError(
                f"{rows} rows of it are away, to be read again, and the values that only the target has of them "
                f"({columns}) would be lost",
                table=table.qualified,
                todo="run the stages up to replay first, which bring these rows back with them; then run this again."
                " What can never come back, or is to come without, takes this on the target",
                sql=sql.SQL("TRUNCATE {};").format(kept_table(table.id)).as_string(),
            )  # fmt: skip


def _reset_tables(
    pipeline: Pipeline, source: Session, journal: Journal, row: PipelineRow, tables: Sequence[TableRow]
) -> list[str]:
    """The next setup captures these anew, the next snapshot makes their copies again; the others go on."""
    if row.cut_over_at:
        raise UsageError("the pipeline has cut over", todo="reset the whole pipeline, without --tables")
    ours = [t for t in tables if not t.plan.adopted]
    standing = [] if pipeline.in_place else _standing_on(journal, row.run, ours)
    if pipeline.replaces:
        standing = _of_no_table(standing, tables)  # a table of such a name is the target's own
    dropped = _drop_capture(pipeline, source, [t.oid for t in tables])
    if pipeline.follow.finish:
        journal.finishes.look_again(row.run)  # first: what a reset that dies has taken back comes again
    take_back_finished(pipeline, journal, row.run, {(t.schema, t.name) for t in tables})
    dropped += undo_all(journal, standing)
    for table in tables:
        theirs = is_the_targets_own(pipeline, journal, row.run, table)
        away = [f"copy of {table.qualified}"]
        if theirs:
            away = [] if pipeline.beside else _rows_away(journal, table) or away
        with journal.conn.transaction():
            if not theirs:
                journal.conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table.plan.copy))
            forget_keys(journal.conn, table)
            journal.tables.forget(table)
            failpoint("reset.before_table_commit", journal.conn)
        dropped += away
    return dropped


def is_the_targets_own(pipeline: Pipeline, journal: Journal, run: int, table: TableRow) -> bool:
    """Whether what has its copy's name, if anything, is none that this run has made, so is to stay with its rows: the
    target had it, or beside a table it is another pipeline's copy. No copy was made of a table that is only captured,
    but by its own DDL; what a snapshot that died has made, its events tell."""
    if table.plan.adopted or table.state != "captured":
        return bool(table.plan.adopted)
    if pipeline.beside and journal.dump_events.has_made(run, table.id):
        return False
    return pipeline.in_place or not journal.ddl_history.has_made(run, table.oid)


def _rows_away(journal: Journal, table: TableRow) -> list[str]:
    """Of a table that was the target's own, which stays: what it lacks for now."""
    if catalog.oid_of(journal.conn, table.plan.copy_schema, table.plan.copy_name) is None:
        return []
    pending = count_pending(journal.conn, [table]).get(table.id, 0) if table.state != "captured" else 0
    return [f"what followed {table.qualified}: it stays with its rows{lacking(pending)}"]


def lacking(pending: int) -> str:
    """What a table that stays has not got, behind what is said of it."""
    return f", but for {pending} rows that were to be read again, which the source has" if pending else ""


def take_back_finished(pipeline: Pipeline, journal: Journal, run: int, tables: Collection[Name] | None) -> None:
    """What follow.finish has brought that is about these tables, or all of it: foreign keys of others, and policies
    that look at them, would keep them from being dropped. What stays with the pipeline comes again with the next
    replay."""
    events = [DdlEvent.from_json(e) for e in journal.finishes.events(run)] if pipeline.follow.finish else []
    for event in sorted(events, key=lambda e: -ORDER.index(group_of(e) or "told")):
        if tables is not None and (key_of(event) is None or not {event.table, *event.references} & {*tables}):
            continue
        back = EventRow(0, None, event.to_json(), undone(event))
        with suppress(*GONE), journal.conn.transaction():
            run_event(journal.conn, back, pipeline.trusted_roles)
            failpoint("reset.before_finished_commit", journal.conn)


def _standing_on(journal: Journal, run: int, tables: Sequence[TableRow]) -> list[Applied]:
    """What was applied of these tables' events and of all that cannot be there without them: views, functions over
    their rows. The latter are pending again, and wait for the next snapshot."""
    events = [
        (row.id, row.table_id, DdlEvent.from_json(row.event), row.status) for row in journal.dump_events.recorded(run)
    ]
    chosen = {t.id for t in tables}
    names = {event.table for _, table_id, event, _ in events if table_id in chosen and event.table}
    _, gone = without([e for _, _, e, _ in events], names)
    gone_ids = {id(e) for e in gone}
    found = [x for x in events if id(x[2]) in gone_ids and x[3] == "applied"]
    by_id = {t.id: t for t in journal.tables.of(run)}
    for _, table_id, event, _ in found:
        if event.tag == "CREATE TABLE" and table_id in by_id and table_id not in chosen:
            raise UsageError(
                f"{by_id[table_id].qualified} cannot be there without what is to be reset",
                todo=f"name {by_id[table_id].qualified} as well",
            )
    return [(i, event) for i, _, event, _ in reversed(found)]


def _reset_all(
    pipeline: Pipeline, source: Session, journal: Journal, row: PipelineRow, tables: Sequence[TableRow], held: Lease,
    read: Callable[[], None],
) -> list[str]:  # fmt: skip
    dropped, logs = list[str](), logs_now(pipeline, source, journal.conn)

    def late(oid: int) -> bool:
        read()
        return any(count_changes(logs, [t for t in tables if t.oid == oid]).values())

    def look(oid: int) -> None:
        refuse_unseen(source, pipeline.pipeline, [t for t in tables if t.oid == oid])

    left = None if row.cut_over_at is None else _Left(late, look)
    if row.finished_at is None or pipeline.swap.fence != "none":
        try:
            dropped += _drop_capture(pipeline, source, None, left)
        except change_log.LateChanges:
            refuse_late_changes(source, logs, pipeline.pipeline, tables)
            raise
        lower_fences(source, pipeline, None, lambda: lease.kept(journal.conn, held.fence))
    if row.cut_over_at is None and row.born_of is None:  # else none of it is what the run has made for a cut-over
        if pipeline.replaces:
            dropped += _undo_beside(pipeline, journal, row.run, tables)
        elif pipeline.in_place:
            for table in _with_copies(pipeline, journal, row.run, tables):
                failpoint("reset.before_copy", journal.conn)
                journal.conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table.plan.copy))
                dropped.append(f"copy of {table.qualified}")
        else:
            take_back_finished(pipeline, journal, row.run, None)
            applied = [(one.id, DdlEvent.from_json(one.event)) for one in journal.dump_events.applied(row.run)]
            dropped += undo_all(journal, applied)
    for table in tables:
        dropped += _rows_away(journal, table) if table.plan.adopted else []
        failpoint("reset.before_keys", journal.conn)
        forget_keys(journal.conn, table)
    if pipeline.beside:
        for schema in {s(t.schema) for t in tables for s in (copy_schema, old_schema)}:
            drop_schema_if_empty(journal.conn, schema)
    with journal.conn.transaction():
        others = journal.purge()
        failpoint("reset.before_journal_commit", journal.conn)
    failpoint("reset.before_forget", source)
    forget_capture(source, pipeline.pipeline)
    if pipeline.replaces:
        forget_capture(journal.conn, change_log.of_new(pipeline.pipeline))
    if others == 0:
        failpoint("reset.before_journal_down", journal.conn)
        migrations.revert(journal.conn, "journal", unless_in="pipelines")
    return dropped


def _with_copies(pipeline: Pipeline, journal: Journal, run: int, tables: Sequence[TableRow]) -> list[TableRow]:
    return [t for t in tables if not is_the_targets_own(pipeline, journal, run, t)]


def _undo_beside(pipeline: Pipeline, journal: Journal, run: int, tables: Sequence[TableRow]) -> list[str]:
    """What was made for `tables.existing: replace`: copies by the names that they have, never a table of their name,
    and what is no part of a table as anywhere."""
    applied = [(one.id, DdlEvent.from_json(one.event)) for one in journal.dump_events.applied(run)]
    others = _of_no_table(applied, tables)
    made = _with_copies(pipeline, journal, run, tables)
    drop = sql.SQL("DROP TABLE IF EXISTS {}")
    copies = [Undoing(0, drop.format(t.plan.copy).as_string(), table=True) for t in made]
    return run_undoings(journal, [*copies, *undoings(others)])


def _of_no_table(events: Sequence[Applied], tables: Sequence[TableRow]) -> list[Applied]:
    """Those that made no part of a copy, nor the copies' schemas."""
    names = {(t.schema, t.name) for t in tables}
    homes = {copy_schema(t.schema) for t in tables}
    return [
        (event_id, event)
        for event_id, event in events
        if event.table not in names
        and not (event.table and event.table[0] in homes)
        and not (event.kind == "schema" and event.section is None)
    ]


@dataclass(frozen=True, slots=True)
class _Left:
    """What is asked for a root under its lock, where applications have left it: `late` tells what has come by a slot
    (what triggers have written shows by itself), `look` refuses what no log tells."""

    late: Callable[[int], bool]
    look: Callable[[int], None]


def _drop_capture(
    pipeline: Pipeline, source: Session, oids: Sequence[int] | None, left: _Left | None = None
) -> list[str]:
    """Triggers, functions and logs of these roots (None: all of the pipeline's). With `left`, LateChanges where a log
    holds some under the lock."""
    known = source.execute("SELECT pg_catalog.to_regclass('pgddl.captured') IS NOT NULL").fetchone()
    if not (known and known[0]):
        return []
    name, dropped = pipeline.pipeline, list[str]()
    for oid, log in change_log.captured_roots(source, name).items():
        if oids is None or oid in oids:
            failpoint("reset.before_capture", source)
            if left is None:
                stop_capture_of(source, pipeline, oid)
            elif pipeline.by_slot:
                stop_slot_capture_of(source, pipeline, oid, partial(left.late, oid), look=partial(left.look, oid))
            else:
                stop_capture_of(source, pipeline, oid, only_if_empty=True, look=partial(left.look, oid))
            dropped.append(f"capture into {log}")
    return dropped
