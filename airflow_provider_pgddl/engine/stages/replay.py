"""replay: windows, until one takes less than `until_lag` or further ones would not be shorter, or for as long as
`run_for` says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_pgddl.engine.following.catch_up import catch_up, ready, tell_doubts
from airflow_provider_pgddl.engine.following.ddl import follow_ddl
from airflow_provider_pgddl.engine.following.direct_trigger import hand_over
from airflow_provider_pgddl.engine.following.finish import finish_all
from airflow_provider_pgddl.engine.following.log_room import give_back
from airflow_provider_pgddl.engine.following.schema_comparison import AT_SWAP
from airflow_provider_pgddl.engine.following.staying import stay
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.job.slot_receiver import one_stream
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rows.throttle import limits
from airflow_provider_pgddl.engine.rows.windows import Window
from airflow_provider_pgddl.engine.server.lag import behind


def run(context: Context) -> StageResult:
    row = context.row()
    follow_ddl(context, look=True)
    if not context.moves_rows:
        return context.result("done", events=sum(context.journal.dump_events.counts(row.run).values()))
    tables = ready(context)
    for table in (t for t in context.tables() if t.keyless):
        context.say(f"{table.qualified}: {AT_SWAP}")
    finish_all(context, first=False)  # what hides rows comes before the rows that it hides
    border, done = context.border(limits(context.pipeline)), _Done()
    until = time.monotonic() + context.pipeline.replay.run_for
    with one_stream(context):
        done.took(catch_up(context, border=border))
        give_back(context)
        hand_over(context)
        unfinished = finish_all(context)
        if context.pipeline.replay.run_for:
            stay(context, border, until, done.took)
            hand_over(context)
            unfinished = finish_all(context)
    with context.fenced("replay.before_fold_commit"):
        context.journal.schema.fold()  # where columns are left out each window has counted its rows
    last = done.last
    lag = behind(context.source, last.lsn, last.taken_at)
    moved = done.keys or done.rows
    state = "done" if moved or not context.journal.stage_runs.done(row.run, "replay") else "nothing_to_do"
    result = tell_doubts(context, context.result(
        state, _tables(context, tables, done), windows=done.windows, keys=done.keys, rows=done.rows,
        pending=last.pending, lag_seconds=round(lag.seconds, 3), lag_bytes=lag.bytes,
    ))  # fmt: skip
    return replace(result, blocked=[*result.blocked, *unfinished])


class _Done:
    """What all windows have done: of each table whose rows have changed, by id, how many keys and rows, and in which
    window last."""

    last: Window

    def __init__(self) -> None:
        self.windows = self.keys = self.rows = 0
        self.changed = dict[int, dict[str, Any]]()

    def took(self, windows: Sequence[Window]) -> None:
        for window in windows:
            self.windows, self.keys, self.rows = self.windows + 1, self.keys + window.keys, self.rows + window.rows
            self.last = window
            for table_id, keys in window.changed.items():
                before = self.changed.get(table_id, {"keys": 0, "rows": 0})
                self.changed[table_id] = {
                    "keys": before["keys"] + keys, "rows": before["rows"] + window.filled[table_id],
                    "window": window.number,
                }  # fmt: skip


def _tables(context: Context, tables: Sequence[TableRow], done: _Done) -> dict[str, dict[str, Any]]:
    """What the result says of each table."""
    known = {t.id for t in tables}
    return {
        t.qualified: {"state": t.state, **done.changed.get(t.id, {})}
        for t in context.healthy(context.tables(), "indexed")
        if t.id in known or t.id in done.changed
    }
