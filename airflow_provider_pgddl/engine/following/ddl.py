"""DDL that developers run meanwhile: read at one snapshot, judged, recorded, applied in commit order, settled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from psycopg import errors as pg

from airflow_provider_pgddl.engine.apply.captured_events import apply_captured
from airflow_provider_pgddl.engine.capture import ddl_log, slot_log
from airflow_provider_pgddl.engine.ddl.altered_types import changes_values_as_text
from airflow_provider_pgddl.engine.ddl.captured_events import (
    TOLD_BY_A_DUMP,
    CapturedEvent,
    TableMeta,
    changes_a_dump,
    is_about,
)
from airflow_provider_pgddl.engine.ddl.decide import decide
from airflow_provider_pgddl.engine.ddl.decision_json import without_old_values
from airflow_provider_pgddl.engine.ddl.left_out import LeftOut
from airflow_provider_pgddl.engine.ddl.scope import Rules
from airflow_provider_pgddl.engine.errors import Retry, StageFailed, gone_meanwhile
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.altered_types import lose_track_of_altered_types
from airflow_provider_pgddl.engine.following.copies_ddl import (
    is_about_copies,
)
from airflow_provider_pgddl.engine.following.direct_trigger import take_back
from airflow_provider_pgddl.engine.following.due_parts import due, take_names
from airflow_provider_pgddl.engine.following.left_out import left_out_before, left_out_now
from airflow_provider_pgddl.engine.following.new_tables import take_in_late_tables
from airflow_provider_pgddl.engine.following.old_server import kept_closed
from airflow_provider_pgddl.engine.following.reconcile import reconcile
from airflow_provider_pgddl.engine.following.sequences import in_reach
from airflow_provider_pgddl.engine.job.context import Context, insistently, patiently
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.ddl_history import SHOWN
from airflow_provider_pgddl.engine.journal.ddl_rows import DdlRow
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.rights.trust import is_trusted, powers
from airflow_provider_pgddl.engine.rows.ingest_for_ddl import clear_changed, clear_whole
from airflow_provider_pgddl.engine.rows.truncated_leaves import PARTED_OTHERWISE
from airflow_provider_pgddl.engine.rows.wal_flush import flush
from airflow_provider_pgddl.engine.rows.windows import TYPE_ALTERED
from airflow_provider_pgddl.engine.schema.table_model import Schemas
from airflow_provider_pgddl.engine.schema.table_versions import mask
from airflow_provider_pgddl.engine.server import catalog, schema_reading
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.turns import one_at_a_time

T = TypeVar("T")

LOOKS = 5
LATE = "it was run on the source after the cut-over: do it on the target and resolve it here, or skip it"


@dataclass(frozen=True)
class _Seen:
    """What one snapshot of the source showed."""

    tables: dict[int, Table]
    names: dict[Name, int]
    schemas: Schemas


def captures_ddl(context: Context) -> bool:
    return context.pipeline.capture.ddl != "off"


def follow_ddl(context: Context, *, look: bool = False) -> None:
    """Brings the target's schema to what the source shows now, and the tables' plans in line with it.

    What fails, waits for a person or is not understood stops the tables that it is about and what comes after it.
    `look`: at every table and its copy, also where no new event says so (a window or a chunk has met one that changed).
    """
    if not captures_ddl(context):
        if look and context.moves_rows:
            with ddl_lock(context):
                _settle_as_it_is(context)
        return
    with ddl_lock(context):
        seen = _patient_look(lambda: _read(context, look=look))
        applied = _apply(context)
        if seen is None and applied:
            seen = _patient_look(lambda: _read(context, look=True))
            applied += _apply(context)  # no plan may be ahead of what its copy has become
        if seen is not None and context.moves_rows:
            reconcile(context, seen.tables, seen.schemas, again=applied > 0 or not context.looked)
            context.looked = True
            if context.job.tables is None and not context.in_place:
                take_in_late_tables(context, seen.names, seen.tables)


def follow_what_blocks(context: Context, tables: Sequence[TableRow]) -> None:
    """Where a table, judged as it is now, is blocked on account of DDL that has only just come."""
    if captures_ddl(context) and len(context.healthy(tables)) < len(tables):
        follow_ddl(context, look=True)


def stop(context: Context, stopped: Mapping[int, list[str]]) -> None:
    """What windows and chunks could not go on with: looked at first, since what was followed, fixed or allowed goes on
    with a new plan. What is as it was is blocked for the reason that was met."""
    if not stopped:
        return
    before = {t.id: t for t in context.tables() if t.id in stopped}
    if parted := [t for t in before.values() if stopped[t.id] == [PARTED_OTHERWISE]]:
        for table in parted:
            context.say(f"{table.qualified}: {PARTED_OTHERWISE}")
        with context.fenced("follow.before_lost_track_commit"):  # from here on its log asks for all of it
            there = context.target if context.pipeline.by_slot else context.session_once("source", "ddl marker")
            slot_log.lose_track(there, parted)
    for _ in range(LOOKS):
        context.changed_again.clear()
        follow_ddl(context, look=True)
        if context.changed_again.isdisjoint(stopped):
            break  # else it is as it was only because the next change came too soon
    mismatches = context.journal.blocked_tables.mismatches()
    now = {t.id: t for t in context.tables() if t.qualified not in mismatches}
    # A type is followed by its own event, which leaves the tables that use it as they are.
    still = {i: why for i, why in stopped.items() if why != [TYPE_ALTERED]}
    context.block({i: why for i, why in still.items() if i in now and now[i] == before.get(i)})


def _settle_as_it_is(context: Context) -> None:
    """Where nobody captures DDL, a change is met by looking at the tables."""
    seen = _patient_look(lambda: _look_now(context))
    reconcile(context, seen.tables, seen.schemas, again=not context.looked)
    context.looked = True


def _look_now(context: Context) -> _Seen:
    source = context.looking
    with source.transaction():
        source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return _look(context, source, {t.oid for t in context.journal.tables.of(context.journal.run)}, {})


def _look(context: Context, source: Session, oids: Collection[int], names: dict[Name, int]) -> _Seen:
    """The tables as the snapshot of the caller's transaction shows them."""
    tables = catalog.describe(source, oids, context.trigger_names)
    schemas = schema_reading.read(source, [(t.schema, t.name) for t in tables.values()])
    return _Seen(tables, names, schemas)


def _patient_look(look: Callable[[], T]) -> T:
    """At a new snapshot where a table was altered while it was read: expressions are printed as of now."""
    for left in reversed(range(LOOKS)):
        try:
            return look()
        except (Retry, pg.InternalError_) as error:
            if left == 0 or not (isinstance(error, Retry) or gone_meanwhile(error)):
                raise
    raise AssertionError("never ends but by a result or an error")


@contextmanager
def ddl_lock(context: Context) -> Iterator[None]:
    """Runs over different tables share the pipeline; its DDL is consumed by one at a time. In the lease's session, in
    which nobody's code runs that could let go of it; where that session is lost, so is the lock."""
    with one_at_a_time(context.lease.conn, f"pgddl ddl {context.name}", context.say):
        yield


def _read(context: Context, *, look: bool) -> _Seen | None:
    """New events into the journal, and what the same snapshot shows of the tables; None where there is nothing new."""
    ddl = DdlJournal(context.target, context.name, context.journal.run)
    source, other = context.looking, partial(context.session_once, "source", "ddl marker")
    if transport(context) == "wal":
        other()  # opened before there is a snapshot (C32)
    with source.transaction():
        source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if transport(context) == "queue" and ddl_log.is_confirmed_beyond(source, context.name, ddl.position()):
            raise StageFailed(
                "the source has let go of DDL that the target's journal does not know: the target was failed over to "
                "an older state",
                todo="compare the schemas of both, then `pgddl reset` the pipeline and start again",
            )
        read = ddl_log.read(source, other, context.name, transport(context), ddl.position())
        news = bool(read.events or read.lost)
        if news or look:
            names = catalog.table_oids(source)
            mine = {t.oid for t in context.journal.tables.of(context.journal.run)}
            if context.moves_rows and not context.in_place:
                mine |= {names[name] for name in matches(context.pipeline, names, strict=False).rows}
            seen = _look(context, source, mine, names)
    if news:
        record(context, ddl, read)
    context.types = read.types
    if news or read.confirm_lsn is not None:  # also of nothing: the slot lets go of its WAL
        ddl_log.confirm(other(), context.name, read)
    return seen if news or look else None


@dataclass(frozen=True)
class ShownDdl:
    """What the snapshot of the dump shows: events that are in it, every relation's first version, the tables."""

    read: ddl_log.Read
    versions: dict[int, TableMeta]
    tables: dict[int, Table]
    schemas: Schemas
    left_out: LeftOut


def read_shown(context: Context, source: Session) -> ShownDdl:
    """Inside the dump's own transaction, so at its very snapshot. Retry where a table is altered just now."""
    ddl = DdlJournal(context.target, context.name, context.journal.run)
    other = partial(context.session_once, "source", "ddl marker")
    read = ddl_log.read(source, other, context.name, transport(context), ddl.position())
    seen = _look(context, source, {t.oid for t in context.journal.tables.of(context.journal.run)}, {})
    versions = ddl_log.describe_relations(source, catalog.all_relations(source))
    return ShownDdl(read, versions, seen.tables, seen.schemas, left_out_now(context, source))


@contextmanager
def ddl_held(context: Context, *, everything: bool = False) -> Iterator[None]:
    """Clients' DDL waits meanwhile; see `ddl_log.held`."""
    with context.brief_session("source", "ddl hold") as session, ddl_log.held(session, everything=everything):
        yield


def came_since(context: Context, position: str | None, there: Collection[int]) -> bool:
    """Whether DDL has committed since that a dump may show, of a snapshot that shows these (C24); what else came is
    told by its event."""
    source = context.looking
    with source.transaction():
        source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return any(changes_a_dump(event, there) for event in _more(context, source, position))


def is_followed(context: Context, source: Session, there: Collection[int]) -> bool:
    """Whether the snapshot of the caller's transaction on `source`, which shows these, shows no DDL about them that the
    journal has not; but for what comes by a dump at the swap, whatever the journal has."""
    position = DdlJournal(context.target, context.name, context.journal.run).position()
    more = _more(context, source, position)
    return not any(event["tag"] not in TOLD_BY_A_DUMP and is_about(event, there) for event in more)


def _more(context: Context, source: Session, position: str | None) -> list[CapturedEvent]:
    other = partial(context.session_once, "source", "ddl marker")
    read = ddl_log.read(source, other, context.name, transport(context), position)
    ddl = DdlJournal(context.target, context.name, context.journal.run)
    known = ddl.known([event["id"] for event in read.events])
    return [event for event in read.events if event["id"] not in known]


def record_shown(context: Context, shown: ShownDdl) -> None:
    """From here on the pipeline follows what the snapshot does not show."""
    ddl = DdlJournal(context.target, context.name, context.journal.run)
    record(context, ddl, shown.read, shown=True)
    with context.fenced("snapshot.before_versions_commit"):
        ddl.set_left_out(shown.left_out.to_json())
        for oid, meta in shown.versions.items():
            kept = without_old_values(meta) if context.pipeline.rows_read else meta
            ddl.save_version(oid, shown.read.lsn, kept, mask(meta, _skipped(context, meta)))
    ddl_log.confirm(context.session_once("source", "ddl marker"), context.name, shown.read)
    reconcile(context, shown.tables, shown.schemas, again=False)


def transport(context: Context) -> ddl_log.Transport:
    transport = context.pipeline.capture.ddl
    assert transport in ("queue", "wal")
    return transport


def note_late(context: Context) -> None:
    """What was run on the source although applications belong on the target by now: a person has to look at it."""
    if not captures_ddl(context) or not ddl_log.is_on(context.source, context.name):
        return
    with ddl_lock(context):
        ddl = DdlJournal(context.target, context.name, context.journal.run)
        source, other = context.looking, partial(context.session_once, "source", "ddl marker")
        with source.transaction():
            source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            read = ddl_log.read(source, other, context.name, transport(context), ddl.position())
        record(context, ddl, read, late=True)
        ddl_log.confirm(other(), context.name, read)


def record(context: Context, ddl: DdlJournal, read: ddl_log.Read, *, shown: bool = False, late: bool = False) -> None:
    """What was read, judged, and the position behind it, in one transaction. `shown`: by the snapshot that the dump is
    taken at, so there is nothing left to do for it."""
    failpoint("follow.before_flush")
    flush(context.session_once("source", "ddl marker"), read.lsn)  # what can still be lost is not followed
    known = ddl.known([event["id"] for event in read.events])
    events = [event for event in read.events if event["id"] not in known]
    versions = ddl.load_versions(ddl.lsn())
    mine = [(t.schema, t.name) for t in context.journal.tables.of(context.journal.run)]
    rules = Rules.of(context.pipeline, mine, context.source.info.server_version // 10_000)
    failpoint("follow.after_flush")
    left_out = left_out_before(context, ddl)
    before = dict(versions)
    decisions = decide(events, rules, versions, left_out)
    in_part = bool(context.pipeline.rows_read)
    with context.fenced("follow.before_events_commit"):
        rows = {t.oid: t for t in context.journal.tables.of(context.journal.run)}
        names = {(t.schema, t.name): t for t in rows.values()}
        take_names(names, rows, before)
        for decided in decisions:
            past = shown and decided.verdict != "skip"
            decision = decided.skipped(SHOWN) if past else decided
            if late and decided.verdict == "apply":
                decision = replace(decided, verdict="unhandled", rule=LATE, statements=())
            masks = {int(oid): mask(m, _skipped(context, m)) for oid, m in decision.event["tables"].items()}
            take_names(names, rows, decision.event["tables"])
            approval = context.pipeline.ddl.approval
            ddl.record(due(context, decision, names), approval=approval, masks=masks, in_part=in_part)
        lose_track_of_altered_types(context, events)
        for lost in read.lost:
            ddl.record_lost(lost, in_part=in_part)
        ddl.set_position(read.position, read.lsn)
        ddl.set_left_out(left_out.to_json())
        ddl.prune_versions()


def _skipped(context: Context, meta: TableMeta) -> Sequence[str]:
    return context.pipeline.skipped_columns.get((meta["schema"], meta["name"]), ())


def _apply(context: Context) -> int:
    """In commit order, each event by itself, up to the first that cannot be applied; returns how many were."""
    applied = 0
    ddl = DdlJournal(context.target, context.name, context.journal.run)
    waiting = ddl.waiting()
    close = kept_closed(context.pipeline, context.row(), context.target) if waiting else None
    if context.moves_rows:
        _make_room(context, ddl, _to_be_tried(context, waiting))
    for row in waiting:
        done = row.status in ("unhandled", "awaiting_approval") or row.id in context.tried
        if not done:
            context.tried.add(row.id)
            failpoint("ddl.before_event", context.target)
            with in_reach(context, row.statements):
                outcome = apply_captured(
                    context.target, lambda: context.brief_session("target", "watch"), context.pipeline, ddl,
                    context.fence(), row, trusted_on_source=lambda role: _is_trusted(context, role),
                    powers_on_source=lambda role: _powers(context, role),
                    copies_only=is_about_copies(context.pipeline, row), then=partial(close, row) if close else None,
                )  # fmt: skip
            context.say(f"DDL event {row.id}, {row.tag}: {': '.join(filter(None, [outcome.status, outcome.message]))}")
            if outcome.over:
                applied += outcome.status == "applied"
                continue
        status = row.status if done else outcome.status
        if not context.journal.passes_over(status, row.object_kind):
            break
    if applied:
        context.look_at_owners_again()
    return applied


def _is_trusted(context: Context, role: str) -> bool:
    return is_trusted(context.looking, role, context.pipeline.trusted_roles)


def _powers(context: Context, role: str) -> set[str]:
    return powers(context.looking, [role]).get(role, set())


def _to_be_tried(context: Context, waiting: Sequence[DdlRow]) -> list[DdlRow]:
    """Up to the first that waits for a person: what is behind it comes another time."""
    rows = []
    for row in waiting:
        if row.status not in ("unhandled", "awaiting_approval") and row.id not in context.tried:
            rows.append(row)
        elif not context.journal.passes_over(row.status, row.object_kind):
            break
    return rows


def _make_room(context: Context, ddl: DdlJournal, rows: Sequence[DdlRow]) -> None:
    """What these are about is left with rows that the source has seen fit for them; with none where the table has gone
    with its log, and its copy goes with one of these."""
    rows = [row for row in rows if row.tag != "ALTER TYPE" or changes_values_as_text(ddl.captured(row.id))]
    names = {name for row in rows for name in row.touches}  # one more label asks for none
    # Of the job's tables only: the others' rows are in the hands of the run that holds their lease.
    tables = [t for t in context.tables() if (t.schema, t.name) in names]
    known = [t for t in tables if t.state in ("created", "backfilled", "indexed") and not t.keyless]
    if known and not context.in_place:
        there = catalog.describe(context.looking, [t.oid for t in known])
        gone = [t for t in known if t.oid not in there]
        dropped = {each["objid"] for row in rows if gone for each in ddl.captured(row.id)["dropped"]}
        patiently(context, lambda: clear_whole(context.replica, [t for t in gone if t.oid in dropped]))
        known = _without_rows_of_others(context, [t for t in known if t.oid in there])
    if known:
        take_back(context, known)
        # A run that died between an event and the plan that follows from it has left names that are no more.
        with suppress(pg.UndefinedTable, pg.UndefinedColumn):
            while insistently(context, lambda e: clear_changed(context.replica, known, e.of(context.log_rows), e)):
                pass  # more of the log is to be taken


def _without_rows_of_others(context: Context, tables: Sequence[TableRow]) -> list[TableRow]:
    """But for those whose copy has kept rows, and another table's copy for a partition: that was attached and is not
    taken in, which is refused, and the rows that this one keeps are known by its own plan alone."""
    if not any(t.plan.extra and t.plan.partitioned for t in tables):
        return list(tables)
    roots = catalog.partitions(context.target)
    copies = {t.oid: (t.plan.copy_schema, t.plan.copy_name) for t in context.journal.tables.of(context.journal.run)}
    of_others = {roots.get(copy) for copy in copies.values()}
    return [t for t in tables if not (t.plan.extra and copies.get(t.oid) in of_others)]
