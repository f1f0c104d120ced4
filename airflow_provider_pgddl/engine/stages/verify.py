"""verify: counts and checksums, range by range, each at a window's snapshot, at which the copy must equal the source."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from airflow_provider_pgddl.engine import catalog
from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.journal import TableRow
from airflow_provider_pgddl.engine.progress import amount
from airflow_provider_pgddl.engine.rows.checksums import Range, Sides, boundaries, compare
from airflow_provider_pgddl.engine.rows.windows import Window
from airflow_provider_pgddl.engine.stages.context import Context, StageResult
from airflow_provider_pgddl.engine.stages.replay import one_window, ready

WINDOW_SECONDS = 10.0  # how long one window's snapshot is used for comparing before the next is taken
BYTES_A_ROW = 100  # for cutting ranges, where the size of rows is not known any better


def run(context: Context) -> StageResult:
    if context.row().cut_over_at is not None:
        return context.result("nothing_to_do")
    tables = ready(context)
    if _is_current(context, tables):
        return context.result("nothing_to_do", _verdicts(context, tables))
    _cut_ranges(context, tables)
    _compare_all(context, tables)
    tables = context.healthy(tables)
    verdicts = _verdicts(context, tables)
    differing = {name: v for name, v in verdicts.items() if v["differ"]}
    if differing:
        _raise_difference(context, tables, differing)
    with context.fenced():
        context.journal.require_verify(None)
    return context.result("done", verdicts, rows=sum(v["rows"] for v in verdicts.values()), differ=0,
                          window=context.row().window_no)  # fmt: skip


def unverified(context: Context, tables: Sequence[TableRow]) -> dict[str, str]:
    """Tables that the swap must refuse, each with the reason: never compared, not to the end, or differing."""
    found = context.journal.verification([t.id for t in tables])
    reasons = {}
    for table in tables:
        left, _, differ = found.get(table.id, (1, 0, 0))
        if differ:
            reasons[table.qualified] = f"{differ} rows differ"
        elif left:
            reasons[table.qualified] = "it was not verified to the end"
    return reasons


def _is_current(context: Context, tables: Sequence[TableRow]) -> bool:
    """Whether the last verification stands: complete, equal, and no window has changed a copy since."""
    row = context.row()
    if row.verify_needed or unverified(context, tables):
        return False
    last = [s["result"] for s in context.journal.stages(row.run) if s["stage"] == "verify" and s["result"]]
    return bool(last) and last[0]["figures"].get("window") == row.window_no


def _cut_ranges(context: Context, tables: Sequence[TableRow]) -> None:
    rows = max(10_000, context.pipeline.backfill.chunk_bytes // BYTES_A_ROW)
    for table in tables:
        cuts = boundaries(context.target, table.plan, rows)
        edges = [None, *cuts, None]
        with context.fenced(table):
            for number, (low, high) in enumerate(zip(edges, edges[1:], strict=False)):
                context.journal.add_range(table.id, context.job.id, number, low, high)


def _compare_all(context: Context, tables: Sequence[TableRow]) -> None:
    """Window after window: each brings the copy to its snapshot, then as many ranges as fit its time are compared there."""
    replica = context.replica()
    journal, job = context.journal, context.job.id
    total = len(journal.ranges_left([t.id for t in tables], job))
    sides = {t.id: _sides(context, t) for t in tables}
    while True:
        tables = context.healthy(tables)
        left = journal.ranges_left([t.id for t in tables], job)
        if not left:
            return
        compared: list[tuple[int, int, tuple[str, ...]]] = []

        def inside(done: Window, left: Sequence[tuple[Any, ...]] = left, compared: list[Any] = compared) -> None:
            compared.clear()
            compared += _compare_some(replica.source, replica.target, sides, left, done)

        one_window(context, replica, tables, inside=inside)
        with context.fenced():
            for range_id, rows, differ in compared:
                journal.range_done(range_id, rows, differ)
        seen = total - len(left) + len(compared)
        context.say(f"{seen}/{total} ranges, {amount(sum(r for _, r, _ in compared))} rows compared")


def _compare_some(
    source: Session, copy: Session, sides: dict[int, Sides], left: Sequence[tuple[Any, ...]], done: Window
) -> list[tuple[int, int, tuple[str, ...]]]:
    if done.pending:
        return []  # some keys are still to be read; the next window has fewer
    compared: list[tuple[int, int, tuple[str, ...]]] = []
    deadline = time.monotonic() + WINDOW_SECONDS
    for range_id, table_id, low, high in left:
        if table_id in done.stopped:
            continue
        if time.monotonic() > deadline:
            break
        result = compare(source, copy, sides[table_id], Range(range_id, low, high))
        compared.append((range_id, result.rows, result.differ))
    return compared


def _sides(context: Context, table: TableRow) -> Sides:
    plan = table.plan
    oid = catalog.oid_of(context.target, plan.copy_schema, plan.copy_name)
    copy = catalog.describe(context.target, [oid]).get(oid) if oid else None
    if copy is None:
        raise StageFailed("its copy is gone", table=table.qualified, todo="`pgddl reset` the pipeline and start again")
    source_types = {name: c["type"] for name, c in table.version["columns"].items()}
    return Sides.of(plan, source_types, {c.name: c.type for c in copy.columns})


def _verdicts(context: Context, tables: Sequence[TableRow]) -> dict[str, dict[str, Any]]:
    found = context.journal.verification([t.id for t in tables])
    return {t.qualified: {"rows": found[t.id][1], "differ": found[t.id][2]} for t in tables if t.id in found}


def _raise_difference(context: Context, tables: Sequence[TableRow], differing: dict[str, dict[str, Any]]) -> None:
    by_name = {t.qualified: t for t in tables}
    lines = []
    for name in differing:
        keys = context.journal.differing(by_name[name].id)
        lines.append(f"{name}: {len(keys)} rows differ, such as {', '.join(keys[:5])}")
    raise StageFailed(
        "the copy does not equal the source: " + "; ".join(lines),
        todo="do not swap. Find out who else writes to the copy; then `pgddl reset` and start again",
        sql="SELECT t.schema_name, t.table_name, v.differ FROM pgddl.verifications v JOIN pgddl.tables t ON t.id = v.table_id "
        "WHERE v.differ <> '[]' ORDER BY v.id DESC;",
    )
