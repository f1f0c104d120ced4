"""Windows, until the copy is as near to the source as is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from airflow_provider_pgddl.engine.capture.fence import FOLLOW, left_to, old_since
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.following import archives
from airflow_provider_pgddl.engine.following.ddl import follow_ddl, stop
from airflow_provider_pgddl.engine.following.direct_trigger import for_a_window
from airflow_provider_pgddl.engine.following.failover import TODO
from airflow_provider_pgddl.engine.following.sequences import keep_ahead
from airflow_provider_pgddl.engine.following.tables_behind import LATE_TRIES, bring_late, late, not_yet, refuse_waiting
from airflow_provider_pgddl.engine.following.window_lines import WindowsLeft
from airflow_provider_pgddl.engine.following.workers_at_snapshot import FillWorkers
from airflow_provider_pgddl.engine.job.context import Context, insistently
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.job.slot_receiver import one_stream, receive_backlog
from airflow_provider_pgddl.engine.journal.control import Border
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.progress import TELL_EVERY
from airflow_provider_pgddl.engine.rows.fill import FillElsewhere
from airflow_provider_pgddl.engine.rows.pending_keys import count_pending
from airflow_provider_pgddl.engine.rows.window_locks import Replica
from airflow_provider_pgddl.engine.rows.windows import Window, window
from airflow_provider_pgddl.engine.server.giving_way import POLITE, Effort
from airflow_provider_pgddl.engine.server.lag import behind

WINDOWS_TO_SEE_A_TREND = 4


def ready(context: Context) -> list[TableRow]:
    """The tables that windows can run over; UsageError while there is none or some are on their way."""
    for _ in range(LATE_TRIES):
        bring_late(context, "schema_sync")
        if not late(context) and not not_yet(context, "captured", "created", "backfilled"):
            break
        follow_ddl(context, look=True)
    tables = context.tables()
    if waiting := not_yet(context, "captured", "created", "backfilled"):
        refuse_waiting(context, waiting, "schema_sync", "is not indexed yet")
    if not tables:
        raise UsageError("there is no table", todo="run stage schema_sync first")
    return context.healthy(tables, "indexed")


def tell_doubts(context: Context, result: StageResult) -> StageResult:
    """The result blocks what nobody knows to be equal: rows go on, and it takes a verification to say more. And what
    applications have left by another pipeline's cut-over: nothing comes from there any more."""
    indexed = [t for t in context.tables() if t.state == "indexed"]
    why = {b["table"]: b["reason"] for b in result.blocked}

    def add(name: str, reason: str) -> None:
        why[name] = "; ".join([*([why[name]] if name in why else []), reason])

    if needed := context.row().verify_needed:
        for table in (t for t in indexed if not t.keyless):
            add(table.qualified, f"{needed}; {TODO}")
    names = [(t.schema, t.name) for t in indexed]
    for (schema, name), by in left_to(context.source, context.name, names, certainly=True):
        add(f"{schema}.{name}", f"{old_since(by)}; {FOLLOW.format(by=by)}")
    return replace(result, blocked=[{"table": name, "reason": reason} for name, reason in why.items()])


def followed_tables(context: Context) -> list[TableRow]:
    """The tables that a window runs over now: DDL may have changed, stopped or added some since the last. One without
    a key is none of them."""
    return [t for t in context.healthy(context.tables(), "indexed") if not t.keyless]


def catch_up(
    context: Context, *, until_quiet: bool = False, border: Border | None = None, tell: bool = True
) -> list[Window]:
    """Windows until the lag is small; `until_quiet`: until one finds nothing at all (behind a fence).

    `border` is passed before each; a swap has none: nothing may hold it up behind its fence. `tell`: a line for each
    that found something; else only where they go on for long."""
    with one_stream(context):
        return _windows(context, until_quiet, border, tell)


def _windows(context: Context, until_quiet: bool, border: Border | None, tell: bool) -> list[Window]:
    replica = context.replica
    settings = context.pipeline.replay
    waiting = sum(count_pending(context.target, followed_tables(context)).values())
    workers = FillWorkers(context)
    windows, left = list[Window](), WindowsLeft(context.table_names)
    looked = said = time.monotonic()
    while True:
        if border is not None:
            border.wait()
        look = time.monotonic() - looked >= context.pipeline.schema_.validation_interval
        looked = time.monotonic() if look else looked
        follow_ddl(context, look=look)
        archives.begin(context, followed_tables(context))
        if not context.beside and not until_quiet:  # the cut-over sets them itself, behind its fence
            keep_ahead(context)
        whole = context.job.tables is None
        with_workers = workers.is_worth(waiting)
        done = one_window(
            context, replica, followed_tables(context), before_snapshot=workers.prepare if with_workers else None,
            behind_snapshot=workers.end, fill_elsewhere=workers.fill if with_workers else None, whole=whole,
        )  # fmt: skip
        windows.append(done)
        workers.took(done)
        waiting = done.pending
        rest = left.after(done)
        if tell:
            to_say = bool(done.keys or done.rows or done.pending or len(windows) == 1)
        else:
            to_say = done.pending > 0 and time.monotonic() - said >= TELL_EVERY
        if to_say:
            said, lag = time.monotonic(), behind(context.source, done.lsn, done.taken_at)
            context.say(
                f"window {done.number}: {done.keys} keys, {done.rows} rows, {done.pending} pending, {lag}{rest}"
            )
        if done.stopped and any(t.id in done.stopped for t in followed_tables(context)):
            continue  # it was left out of this window, and goes on
        if until_quiet:
            if not done.keys and not done.pending:
                return windows
        elif not done.pending and (done.seconds <= settings.until_lag or no_shorter(windows)):
            return windows


def no_shorter(windows: Sequence[Window]) -> bool:
    """Whether more windows would not bring the lag down: one over many tables takes its time, changes or not."""
    if not (windows[-1].keys or windows[-1].rows):
        return True  # all that it took was looking
    last = windows[-WINDOWS_TO_SEE_A_TREND:]
    even = len(last) == WINDOWS_TO_SEE_A_TREND and not any(w.pending for w in last)
    return even and last[-1].seconds > 0.9 * last[0].seconds


def one_window(
    context: Context,
    replica: Replica,
    tables: Sequence[TableRow],
    *,
    before_snapshot: Callable[[], None] | None = None,
    behind_snapshot: Callable[[], None] | None = None,
    fill_elsewhere: FillElsewhere | None = None,
    inside: Callable[[Window], None] | None = None,
    reads: Collection[int] | None = None,
    whole: bool = False,
    fill: bool = True,
) -> Window:
    """One window of at most `window_rows` rows, tried again where it gave way; what it had to stop is recorded, and
    goes on in the next one where captured DDL explains it. `before_snapshot` is done before each try: what must be
    there once there is a snapshot; `behind_snapshot` once nobody can take the snapshot up any more. Without `fill` no
    rows come, they wait."""
    receive_backlog(context)
    rows = context.pipeline.replay.window_rows if fill else 0
    tables = for_a_window(context, tables, compared=inside is not None)

    def attempt(effort: Effort) -> Window:
        elsewhere = fill_elsewhere if effort == POLITE else None  # else there is no time for that
        with_workers = inside is not None or elsewhere is not None
        if before_snapshot is not None and with_workers:
            before_snapshot()
        try:
            return window(
                replica, tables, fill=effort.of(rows) if rows else 0, take=context.part_of_log(effort),
                fill_elsewhere=elsewhere, inside=inside, reads=reads, whole=whole, effort=effort,
            )  # fmt: skip
        finally:
            if behind_snapshot is not None and with_workers:
                behind_snapshot()

    done = insistently(context, attempt)
    stop(context, done.stopped)
    return done
