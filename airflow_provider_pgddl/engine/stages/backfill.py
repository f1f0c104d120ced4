"""backfill: every row of the source once into the copy, in chunks that workers claim; what changes meanwhile is in
the change log."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from airflow_provider_pgddl.engine.apply.dump_events import GROUP
from airflow_provider_pgddl.engine.errors import GaveWay, Retry, UsageError
from airflow_provider_pgddl.engine.following.ddl import follow_ddl, stop
from airflow_provider_pgddl.engine.following.schema_gate import validating
from airflow_provider_pgddl.engine.following.workers_at_snapshot import end_workers
from airflow_provider_pgddl.engine.job.context import Context, patiently, worth_spreading
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.job.slot_receiver import receiving
from airflow_provider_pgddl.engine.job.takeover import take_over, time_left
from airflow_provider_pgddl.engine.journal.control import Control, Told
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.parallel.part_results import Threads, beside_each_other
from airflow_provider_pgddl.engine.progress import amount, duration, reporting
from airflow_provider_pgddl.engine.rows.adopted_rows import uncompared
from airflow_provider_pgddl.engine.rows.chunk_layout import plan_chunks
from airflow_provider_pgddl.engine.rows.chunk_rows import TableToCopy
from airflow_provider_pgddl.engine.rows.chunks import COPY, LONGEST, Share, ShareDone, copy_chunks
from airflow_provider_pgddl.engine.rows.copy_shape import hold_copies
from airflow_provider_pgddl.engine.rows.ingest_for_ddl import empty_again, refuse_code
from airflow_provider_pgddl.engine.rows.pending_keys import wait_for_kept
from airflow_provider_pgddl.engine.rows.throttle import limits
from airflow_provider_pgddl.engine.rows.windows import stopped_by_drift
from airflow_provider_pgddl.engine.schema.drift import drift
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import application_name
from airflow_provider_pgddl.engine.server.giving_way import Patience
from airflow_provider_pgddl.engine.sql import queries

# Of less than this, a thread is not through with its sessions before the others are through with the work.
CHUNKS_OF_A_THREAD = 50
BYTES_OF_A_THREAD = 16 * 1024 * 1024

WAITING_EVERY = 10.0  # seconds between two lines that say so
RESTARTS = 5  # how often one table's file may be replaced under a backfill before we ask for a quieter moment


def run(context: Context) -> StageResult:
    _require_snapshot(context)
    if not context.moves_rows:
        return context.result("nothing_to_do")
    follow_ddl(context, look=True)
    todo = context.healthy(context.tables(), "created")
    if not todo:
        return context.result("nothing_to_do")
    rows = size = 0
    restarts = Counter[int]()
    while todo:
        todo = _lay_out(context, todo)
        finished = _copy(context, todo)
        rows, size = rows + sum(d.rows for d in finished), size + sum(d.bytes for d in finished)
        # At this barrier no chunk is under way: what changed a table is applied to its copy, and it goes on.
        stop(context, {table: findings for d in finished for table, findings in d.stopped.items()})
        rewritten = {table for d in finished for table in d.rewritten}
        restarts.update(rewritten)
        for table in (t for t in context.tables() if restarts[t.id] == RESTARTS):
            what = f"was rewritten or truncated {RESTARTS} times during the backfill"
            raise Retry(what, table=table.qualified, todo="run the stage again in a quieter moment")
        _start_again(context, [t for t in context.tables() if t.id in rewritten])
        follow_ddl(context)
        todo = context.healthy(context.tables(), "created")
        left = context.journal.chunks.left([t.id for t in todo])
        todo = [t for t in todo if not t.planned or (t.id in left and left[t.id].chunks)]
    done = _mark_finished(context)
    progress = context.journal.chunks.progress([t.id for t in context.tables()])
    return context.result("done", {t.qualified: {"state": "backfilled"} for t in done}, rows=progress.rows_done,
                          chunks=progress.chunks_done, rows_now=rows, bytes_now=size)  # fmt: skip


def _require_snapshot(context: Context) -> None:
    if not context.journal.stage_runs.done(context.journal.run, "snapshot"):
        raise UsageError("the snapshot has not been taken", todo="run stage snapshot first")


def _lay_out(context: Context, tables: Sequence[TableRow]) -> list[TableRow]:
    """Chunks of every table that has none yet, in one transaction with the note that they are laid out; as many tables
    as GROUP in each. One that is put in another order is sampled for that, and so locked: it has its own."""
    with context.fenced("backfill.before_look_commit"):
        healthy, stopped = stopped_by_drift(context.source, context.journal, tables)
    stop(context, stopped)
    ids = {t.id for t in healthy}
    healthy = context.healthy([t for t in context.tables() if t.id in ids], "created")
    block_size = catalog.server(context.source).block_size
    fresh = [t for t in healthy if not t.planned]
    unordered = [t for t in fresh if not t.plan.order]
    groups = [[t] for t in fresh if t.plan.order]
    groups += [unordered[first : first + GROUP] for first in range(0, len(unordered), GROUP)]
    for group in groups:
        with context.fenced("backfill.before_chunks_commit"):
            described = catalog.describe(context.source, [t.oid for t in group], context.trigger_names)
            found = []
            for table in group:
                now = described.get(table.oid)
                findings = drift(table.version, table.physical, now)
                if findings or now is None:
                    raise GaveWay(
                        "; ".join(findings), table=table.qualified, todo="run the stage again, which records it"
                    )
                found.append((table, now))
            # One that is to be compared schema_sync compares, and what differs is read.
            to_copy = [(_to_copy(context, t), now) for t, now in found if not t.plan.is_to_be_compared]
            chunk_bytes = context.pipeline.backfill.chunk_bytes
            plan_chunks(context.target, context.source, to_copy, chunk_bytes, block_size)
            context.journal.tables.set_planned({table.id: now.physical() for table, now in found})
    if fresh:
        context.journal.chunks.analyze()
    ids = {t.id for t in healthy}
    return [t for t in context.tables() if t.id in ids]


def _to_copy(context: Context, table: TableRow) -> TableToCopy:
    return TableToCopy(table.id, table.plan, table.version, table.physical, context.fence(table), context.trigger_names)


def _copy(context: Context, tables: Sequence[TableRow]) -> list[ShareDone]:
    """Round after round until no chunk is left to claim: one that a dead worker's session still holds is passed over,
    and comes back once the server has noticed."""
    patience, finished, todo = Patience(context.pipeline.ddl.retry_for, context.say), list[ShareDone](), list(tables)
    progress: Journal | None = None
    # What the gate has closed for meanwhile keeps its chunks for later.
    while left := context.journal.chunks.left([t.id for t in context.healthy(todo)]):
        chunks, size = sum(one.chunks for one in left.values()), sum(one.bytes for one in left.values())
        if chunks == 0:
            break
        if progress is None:
            progress = Journal(context.session("target", "progress"), context.name)
        # Of thousands of tables most may be empty, and every worker gets the plans of those that it is to copy.
        having_chunks = [t for t in todo if t.id in left and left[t.id].chunks]
        done = _one_round(context, progress, having_chunks, chunks, size)
        end_workers(context, COPY)  # what Spark has lost sight of holds chunks that others are to copy
        finished += done
        if cut := sum(d.cut for d in done):
            context.say(f"{cut} chunks would have taken more than {LONGEST / 2:.0f} s each, and were read in parts")
        over = {table for d in done for table in (*d.stopped, *d.rewritten)}
        todo = [t for t in todo if t.id not in over]
        if any(d.chunks for d in done):
            patience.succeeded()
        else:
            patience.wait(GaveWay("chunks are held by sessions that another run has left behind"))
    return finished


def _one_round(
    context: Context, progress: Journal, tables: Sequence[TableRow], chunks: int, size: int
) -> list[ShareDone]:
    """Until no chunk is left to claim, in threads of this process; over Spark where there is much to copy."""
    work = Share(
        context.source_dsn, context.target_dsn, context.in_place, context.name, context.lease.token,
        tuple(_to_copy(context, t) for t in tables), context.pipeline.ddl.retry_for, limits(context.pipeline),
    )  # fmt: skip
    context.say(f"{len(tables)} tables, {chunks} chunks, {amount(size)}B")
    line = _progress_line(context, progress, {t.id: t.qualified for t in tables})
    with reporting("backfill", line), validating(context), receiving(context):
        workers = min(context.workers, chunks)
        if not context.in_place and worth_spreading(context.pipeline, chunks, size):
            return _with_spark(context, progress, work, workers)
        if not context.in_place:
            workers = min(workers, 1 + max(chunks // CHUNKS_OF_A_THREAD, size // BYTES_OF_A_THREAD))
        if workers == 1:
            return [copy_chunks(work)]
        return beside_each_other(copy_chunks, [work] * workers, doing="running backfill")


def _with_spark(context: Context, progress: Journal, work: Share, workers: int) -> list[ShareDone]:
    """Threads of the driver begin, and Spark's workers go on where that takes long. In place there is none of it: no
    row comes to a worker, which only waits for the server."""
    app, ids = f"pgddl backfill {context.name}", [t.id for t in work.tables]
    before, began = progress.chunks.progress(ids), time.monotonic()

    def begin(stop: threading.Event) -> Threads[Share, ShareDone]:
        return Threads(partial(copy_chunks, stop=stop), [work] * workers)

    def seconds_left() -> float:
        now = progress.chunks.progress(ids)
        done = now.bytes_done - before.bytes_done
        return time_left(done, time.monotonic() - began, now.bytes - now.bytes_done)

    threads, slots = take_over(context, app, workers, begin, seconds_left)
    finished = threads.results("running backfill") if threads else []
    if slots:
        from airflow_provider_pgddl.engine.parallel.spark import spread

        source_dsn, target_dsn = context.elsewhere
        there = replace(work, source_dsn=source_dsn, target_dsn=target_dsn)
        finished += spread(copy_chunks, [there] * slots, workers=workers, app=app, settings=context.spark)
    return finished


def _progress_line(context: Context, journal: Journal, tables: Mapping[int, str]):  # type: ignore[no-untyped-def]
    ids = list(tables)
    start = last = journal.chunks.progress(ids)
    control, told, token = Control(journal.conn, journal.pipeline), Told(), context.lease.token
    workers, said_at = application_name(journal.pipeline, token, COPY), -WAITING_EVERY

    def line(seconds: float) -> str | None:
        nonlocal last, said_at
        hold = control.row().hold_of(token)  # workers wait for its end, wherever they are
        text = told.line(hold)
        if hold or text:
            return text
        now = journal.chunks.progress(ids)
        done, rows = now.chunks_done, now.rows_done
        idle = done == start.chunks_done
        if idle and journal.conn.execute(queries("catalog")["workers"], [workers]).fetchone() == (0,):
            if seconds - said_at < WAITING_EVERY:
                return None
            said_at = seconds
            return f"waiting for workers to begin: {duration(seconds)} so far, {now.chunks - done} chunks to copy"
        in_front = context.in_front() if now == last else ""  # whom workers wait for, wherever they are
        last = now
        rate = (rows - start.rows_done) / seconds
        byte_rate = (now.bytes_done - start.bytes_done) / seconds
        left = f", {duration((now.bytes - now.bytes_done) / byte_rate)} left" if byte_rate else ""
        at = f"; at {tables[now.at_table]}" if now.at_table else ""
        return f"{done}/{now.chunks} chunks, {amount(rows)} rows, {amount(rate)} rows/s{left}{at}{in_front}"

    return line


def _start_again(context: Context, tables: Iterable[TableRow]) -> None:
    """A table whose file was replaced (VACUUM FULL, CLUSTER, TRUNCATE) has its rows elsewhere: its chunks mean
    nothing now."""
    for table in tables:
        again = "what differs is read" if table.plan.adopted else "its copy starts again"
        context.say(f"{table.qualified}: its file was replaced meanwhile, {again}")

        def attempt(table: TableRow = table) -> None:
            with context.fenced("backfill.before_restart_commit", table):
                if table.plan.adopted:
                    context.journal.tables.set_copy(uncompared(table))
                else:
                    empty_again(context.target, table)
                context.journal.tables.unplan(table.id)

        patiently(context, attempt)


def _mark_finished(context: Context) -> list[TableRow]:
    tables = [t for t in context.healthy(context.tables(), "created") if t.planned]
    left = context.journal.chunks.left([t.id for t in tables])
    done = [t for t in tables if t.id not in left or left[t.id].chunks == 0]
    with context.fenced("backfill.before_finished_commit"):
        altered = hold_copies(context.target, {t.id: t.plan for t in done if t.plan.columns.kept})
        done = [t for t in done if t.id not in altered]
        for table in done:
            if table.plan.columns.kept:
                refuse_code(context.target, table)
                wait_for_kept(context.target, table)
        context.journal.tables.set_state("backfilled", [t.id for t in done])
    return done
