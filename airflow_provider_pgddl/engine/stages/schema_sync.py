"""schema_sync: ingest, so that what is left is a subset of one consistent state; then indexes and constraints; then
the verdict."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue

from airflow_provider_pgddl.engine.apply.dump_events import GROUP, apply_events
from airflow_provider_pgddl.engine.apply.index_build import BUILD, Build, build, is_shared
from airflow_provider_pgddl.engine.ddl.events import DdlEvent, without
from airflow_provider_pgddl.engine.following.adopted_tables import attach
from airflow_provider_pgddl.engine.following.catch_up import catch_up
from airflow_provider_pgddl.engine.following.ddl import captures_ddl, follow_ddl, follow_what_blocks, stop
from airflow_provider_pgddl.engine.following.direct_trigger import hand_over
from airflow_provider_pgddl.engine.following.reconcile import reconcile_built
from airflow_provider_pgddl.engine.following.source_dump import settled_dump
from airflow_provider_pgddl.engine.following.tables_behind import LATE_TRIES, bring_late, not_yet, refuse_waiting
from airflow_provider_pgddl.engine.following.waiting_statements import parts_of, replace_pending
from airflow_provider_pgddl.engine.following.window_lines import WindowsLeft
from airflow_provider_pgddl.engine.following.workers_at_snapshot import end_workers
from airflow_provider_pgddl.engine.job.context import Context, insistently, worth_spreading
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.job.slot_receiver import one_stream, receive_backlog
from airflow_provider_pgddl.engine.job.takeover import take_over, time_left
from airflow_provider_pgddl.engine.journal.dump_events import REPLACED, EventRow
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.parallel.part_results import Threads
from airflow_provider_pgddl.engine.progress import pace, reporting
from airflow_provider_pgddl.engine.rows.windows import Window, window
from airflow_provider_pgddl.engine.server.connect import application_name
from airflow_provider_pgddl.engine.server.giving_way import SAY_EVERY, Effort
from airflow_provider_pgddl.engine.sql import queries

# Bytes of a table below which its indexes take less time than a session of their own.
SMALL = 1024 * 1024


def run(context: Context) -> StageResult:
    if not context.moves_rows:
        return context.result("nothing_to_do")
    for _ in range(LATE_TRIES):
        follow_ddl(context, look=True)
        bring_late(context, "backfill")
        if not not_yet(context, "captured", "created"):
            break
    tables = context.healthy(context.tables(), "backfilled")
    waiting = not_yet(context, "captured", "created")
    if not tables and not waiting:
        return context.result("nothing_to_do")
    if waiting:
        refuse_waiting(context, waiting, "backfill", "is not backfilled yet")
    with one_stream(context):
        ingested = _ingest(context)
        attached = attach(context)
    tables = context.healthy(context.tables(), "backfilled")
    if captures_ddl(context) and context.journal.ddl_history.touched(context.journal.run)[0]:
        # What waits to be built may be about columns that have another name by now.
        dumped = [e for e in settled_dump(context) if e.phase != "noise"]
        tables = context.healthy(context.tables(), "backfilled")
        done = [t for t in context.journal.tables.of(context.journal.run) if t.state == "indexed"]
        names = {(t.schema, t.name) for t in done} | parts_of(context, done)
        replace_pending(context, dumped, ["index"], but_not=names)
    built = _build(context, tables)
    reconcile_built(context, tables)
    follow_what_blocks(context, tables)
    ready = [t for t in context.healthy(context.tables(), "indexed") if t.id in {built.id for built in tables}]
    if context.pipeline.capture.rows == "direct_trigger":
        catch_up(context)
        hand_over(context)
    figures = {"differed": attached} if any(t.plan.adopted for t in ready) else {}
    return context.result("done", {t.qualified: {"state": "indexed"} for t in ready}, keys=ingested, statements=built,
                          **figures)  # fmt: skip


def _ingest(context: Context) -> int:
    """Every key that changed since capture began leaves the copy: a unique index on the rest cannot fail."""
    replica, border = context.replica, context.border()
    keys, said, rest = 0, time.monotonic(), WindowsLeft(context.table_names)

    def attempt(effort: Effort) -> Window:
        return window(replica, tables, fill=0, take=context.part_of_log(effort), effort=effort)

    while True:
        border.wait()
        receive_backlog(context)
        tables = _to_ingest(context)
        done = insistently(context, attempt)
        stop(context, done.stopped)
        keys, more = keys + done.keys, rest.after(done)
        if done.stopped and any(t.id in done.stopped for t in _to_ingest(context)):
            continue  # it was left out of this window, and is going to be built
        if not done.left:
            context.say(f"{keys} keys changed since capture began, {done.pending} pending")
            return keys
        if time.monotonic() - said >= SAY_EVERY:
            said = time.monotonic()
            context.say(f"{keys} keys of the change log taken, at least {done.left} rows of it are left{more}")


def _to_ingest(context: Context) -> list[TableRow]:
    return [t for t in context.healthy(context.tables(), "backfilled") if not t.keyless]


def _build(context: Context, tables: Sequence[TableRow]) -> int:
    """The indexes of large tables first, all beside each other; then table beside table what wants one for itself.
    Small tables share a session."""
    events = context.journal.dump_events.to_apply(context.journal.run, ["index"])
    own: dict[int | None, list[EventRow]] = {}
    late = _late(events)
    for event in events:
        own.setdefault(None if event.id in late else event.table_id, []).append(event)
    sizes = context.journal.chunks.bytes([t.id for t in tables])
    small = [t for t in tables if sizes.get(t.id, 0) < SMALL]
    first, last = list[Build](), list[Build]()
    for table in (t for t in tables if sizes.get(t.id, 0) >= SMALL):
        ours = own.get(table.id, [])
        first += [_part(context, [table], [event]) for event in ours if is_shared(event)]
        last.append(_part(context, [table], [e for e in ours if not is_shared(e)], analyze=True))
    for group in (small[n : n + GROUP] for n in range(0, len(small), GROUP)):
        last.append(_part(context, group, [e for t in group for e in own.get(t.id, ())], analyze=True))
    total = sum(len(part.events) for part in (*first, *last))
    context.say(f"{total} indexes and constraints on {len(tables)} tables")
    spreads = worth_spreading(context.pipeline, len(last), sum(sizes.values()))
    built = sum(_build_parts(context, parts, len(tables), sizes, spreads) for parts in (first, last) if parts)
    trusted = context.pipeline.trusted_roles
    due = _due(context, tables, own.get(None, []))
    return built + apply_events(context.target, context.name, context.fence(), due, trusted)


def _late(events: Sequence[EventRow]) -> set[int]:
    """The ids of what belongs to no table, and of what of a table cannot be built without (an index by such a
    function)."""
    late, made = set[int](), set[tuple[str, str]]()
    for row in events:
        event = DdlEvent.from_json(row.event)
        if row.table_id is None or made.intersection((*event.functions, *event.references)):
            late.add(row.id)
            made.add((event.schema or "", event.name or ""))
    return late


def _due(context: Context, built: Sequence[TableRow], events: Sequence[EventRow]) -> list[EventRow]:
    """What belongs to no table and needs none that is still without its indexes: pg_dump puts a view behind the key by
    which it groups, and what stands on the view behind that. The rest comes with the last of the tables that it needs.
    """
    done = {t.id for t in built}
    behind = [t for t in context.journal.tables.of(context.journal.run) if t.id not in done and t.state in _BEFORE]
    if not events or not behind:
        return list(events)
    names = {(t.schema, t.name) for t in behind} | parts_of(context, behind)
    recorded = [row for row in context.journal.dump_events.recorded(context.journal.run) if row.note != REPLACED]
    by_id = {row.id: DdlEvent.from_json(row.event) for row in recorded}
    waiting = {id(event) for event in without(by_id.values(), names)[1]}
    return [event for event in events if id(by_id[event.id]) not in waiting]


_BEFORE = ("captured", "created", "backfilled")


def _part(context: Context, tables: Sequence[TableRow], events: Sequence[EventRow], *, analyze: bool = False) -> Build:
    return Build(
        context.target_dsn, context.name, context.fence(tables[0]) if len(tables) == 1 else context.fence(),
        tuple(events), context.in_place, tuple(t.plan.copy for t in tables if analyze), quick=len(tables) > 1,
        trusted=context.pipeline.trusted_roles,
    )  # fmt: skip


def _build_parts(context: Context, parts: Sequence[Build], tables: int, sizes: Mapping[int, int], spreads: bool) -> int:
    """As many at a time as there are workers; returns how many statements ran."""
    workers = min(context.workers, len(parts))
    done, waiting = list[Build](), SimpleQueue[Build]()
    for part in parts:
        waiting.put(part)
    began = time.monotonic()

    def work_of(some: Sequence[Build]) -> float:
        """Bytes gone through: of each statement its table's."""
        return sum(1 + sizes.get(event.table_id or 0, 0) for part in some for event in part.events)

    look, ours = context.session_once("target", "progress"), application_name(context.name, context.lease.token, BUILD)
    copies = {(t.plan.copy_schema, t.plan.copy_name): t for t in context.tables()}
    count, all_work = sum(len(part.events) for part in parts), work_of(parts)

    def line(seconds: float) -> str:
        building = look.execute(queries("at_work")["index_builds"], {"ours": ours}).fetchall()
        found = [(copies.get((schema, name)), f"{schema}.{name}", part) for schema, name, part in building]
        work = work_of(done) + sum(part * sizes.get(table.id, 0) for table, _, part in found if table)
        at = ", ".join(f"{table.qualified if table else name} ({part:.0%})" for table, name, part in found)
        finished = sum(len(part.copies) for part in done)
        return (
            f"{sum(len(part.events) for part in done)}/{count} statements, {finished}/{tables} tables indexed"
            f"{pace(work, all_work - work, seconds, 'bytes')}{f'; at {at}' if at else ''}"
        )

    def seconds_left() -> float:
        not_begun = waiting.qsize()
        return time_left(work_of(done), time.monotonic() - began, work_of(parts[len(parts) - not_begun :]))

    def build_some(stop: threading.Event, _: int) -> int:
        built = 0
        with suppress(Empty):
            while not stop.is_set():
                part = waiting.get_nowait()
                built += build(part)
                done.append(part)
        return built

    def begin(stop: threading.Event) -> Threads[int, int]:
        return Threads(partial(build_some, stop), range(workers))

    app = f"pgddl schema_sync {context.name}"
    with reporting("schema_sync", line):
        if not spreads:
            return sum(begin(threading.Event()).results("running schema_sync"))
        threads, slots = take_over(context, app, workers, begin, seconds_left)
        built = sum(threads.results("running schema_sync")) if threads else 0
        if rest := parts[len(parts) - waiting.qsize() :]:
            from airflow_provider_pgddl.engine.parallel.spark import spread

            there = [replace(part, dsn=context.elsewhere[1]) for part in rest]
            built += sum(spread(build, there, workers=slots, app=app, settings=context.spark))
            end_workers(context, BUILD)
        return built
