"""replay: windows, until the copy is less than `until_lag` behind the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_pgddl.engine.following.catch_up import catch_up, ready, tell_lost_commits
from airflow_provider_pgddl.engine.following.ddl import follow_ddl
from airflow_provider_pgddl.engine.following.direct_trigger import hand_over
from airflow_provider_pgddl.engine.following.finish import finish_all
from airflow_provider_pgddl.engine.following.schema_comparison import AT_SWAP
from airflow_provider_pgddl.engine.job.context import Context, StageResult
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rows.throttle import limits
from airflow_provider_pgddl.engine.rows.windows import Window
from airflow_provider_pgddl.engine.server.lag import behind


def run(context: Context) -> StageResult:
    row = context.row()
    if row.cut_over_at is not None:
        return context.result("nothing_to_do")
    follow_ddl(context, look=True)
    if not context.moves_rows:
        return context.result("done", events=sum(context.journal.dump_events.counts(row.run).values()))
    tables = ready(context)
    for table in (t for t in context.tables() if t.keyless):
        context.say(f"{table.qualified}: {AT_SWAP}")
    finish_all(context, first=False)  # what hides rows comes before the rows that it hides
    windows = catch_up(context, border=context.border(limits(context.pipeline)))
    hand_over(context)
    unfinished = finish_all(context)
    last = windows[-1]
    moved = any(w.keys or w.rows for w in windows)
    lag = behind(context.source, last.lsn, last.taken_at)
    state = "done" if moved or not context.journal.stage_runs.done(row.run, "replay") else "nothing_to_do"
    result = tell_lost_commits(context, context.result(
        state, _tables(context, tables, windows), windows=len(windows),
        keys=sum(w.keys for w in windows), rows=sum(w.rows for w in windows), pending=last.pending,
        lag_seconds=round(last.seconds, 3), lag_bytes=lag.bytes,
    ))  # fmt: skip
    return replace(result, blocked=[*result.blocked, *unfinished])


def _tables(context: Context, tables: Sequence[TableRow], windows: Sequence[Window]) -> dict[str, dict[str, Any]]:
    """What the result says of each table; of one whose rows have changed also how many keys, and in which window
    last."""
    changed = dict[int, dict[str, Any]]()
    for window in windows:
        for table_id, keys in window.changed.items():
            before = changed.get(table_id, {"keys": 0})["keys"]
            changed[table_id] = {"keys": before + keys, "window": window.number}
    known = {t.id for t in tables}
    return {
        t.qualified: {"state": t.state, **changed.get(t.id, {})}
        for t in context.healthy(context.tables(), "indexed")
        if t.id in known or t.id in changed
    }
