"""Comparing tables with their copies, range by range, each at a window's snapshot."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any

from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following import archives
from airflow_provider_pgddl.engine.following.catch_up import followed_tables, one_window
from airflow_provider_pgddl.engine.following.copies_replaced import UNLOGGED, unlogged
from airflow_provider_pgddl.engine.following.ddl import follow_ddl
from airflow_provider_pgddl.engine.following.failover import TODO
from airflow_provider_pgddl.engine.following.workers_at_snapshot import CompareWorkers
from airflow_provider_pgddl.engine.job.context import Context, worth_spreading
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.journal.verification import RangeRow
from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.preflight import what_hides_damage
from airflow_provider_pgddl.engine.preflight.findings import refuse
from airflow_provider_pgddl.engine.progress import Steps, amount, pace
from airflow_provider_pgddl.engine.rows.adopted_rows import count_extra
from airflow_provider_pgddl.engine.rows.mend import take_out
from airflow_provider_pgddl.engine.rows.range_checksums import LISTED, Sides, hashes_alike
from airflow_provider_pgddl.engine.rows.ranges import boundaries, parts, scattered, sizes
from airflow_provider_pgddl.engine.rows.timed_comparison import RangeResult, compare_ranges
from airflow_provider_pgddl.engine.rows.windows import Window
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session

FEW_ROWS = 1000  # of a range that differs, which are read again as they are
ROWS_A_DIFFERENCE = 20  # from which on it is cut first
WINDOW_SECONDS = 10.0  # how long one window's snapshot is used for comparing before the next is taken
TABLES_A_WINDOW = 1000  # that are compared in one: all of them are locked, and a server has few locks
JUST_NOW = 600.0  # seconds since a verification, in which a run that no person has asked for does not compare again
SHORTEST_SECONDS = 0.25  # the same where windows have to be short to succeed


def compare_rows(context: Context, again: Sequence[TableRow] = ()) -> int:
    """Compares every table, or those in `again` only; StageFailed where one differs. Where the job says to mend, what
    differs is read again first: returns how many rows were."""
    chosen = {t.id for t in again}

    def tables_now() -> list[TableRow]:
        return [t for t in followed_tables(context) if not chosen or t.id in chosen]

    refuse(what_hides_damage(context.source, context.target), under_way=True)
    mended = 0
    compare_all(context, tables_now, mend=context.job.mend)
    if context.job.mend and (mended := _take_out(context, tables_now)):
        context.say(f"{mended} rows are read again, and compared once more")
        compare_all(context, tables_now)
    tables = followed_tables(context)
    context.compared |= {t.id for t in tables_now()}
    verdicts = verdicts_of(context, tables)
    differing = {name: v for name, v in verdicts.items() if v["differ"]}
    if differing:
        _raise_difference(context, tables, differing)
    return mended


def unverified(context: Context, tables: Sequence[TableRow]) -> dict[str, str]:
    """Tables that the swap must refuse, each with the reason: never compared, not to the end, or differing; or by
    another run, and a crash may have emptied the copy."""
    found = context.journal.verification.of_tables([t.id for t in tables])
    may_be_empty = unlogged(context, tables) - context.compared
    reasons = {}
    for table in (t for t in tables if not t.keyless):  # such are compared when they are copied
        last = found.get(table.id)
        if last is not None and last.differ:
            reasons[table.qualified] = f"{_counted(last.differ)} rows differ"
        elif last is None or last.ranges_left:
            reasons[table.qualified] = "it was not verified to the end"
        elif table.id in may_be_empty:
            reasons[table.qualified] = UNLOGGED
    return reasons


def may_be_empty(context: Context, tables: Sequence[TableRow]) -> list[TableRow]:
    """Those of which nothing but that is to be feared: compared to the end, equal, and UNLOGGED."""
    reasons = unverified(context, tables)
    return [t for t in tables if reasons.get(t.qualified) == UNLOGGED]


def is_current(context: Context, tables: Sequence[TableRow]) -> bool:
    """Whether the last verification stands, but for those that `may_be_empty`: of all of these, equal, and no window
    has changed a copy since. It is of just now, as for a task that is retried: what others write to a copy nothing else
    tells, so a person who asks gets an answer. Verify asks that of itself; a swap asks `unverified`."""
    row = context.row()
    if (
        context.job.asked
        or context.job.mend
        or row.verify_needed
        or {*unverified(context, tables).values()} - {UNLOGGED}
    ):
        return False
    last = context.journal.stage_runs.last_done(row.run, "verify", within=JUST_NOW)
    if last is None or not last["tables"].keys() >= {t.qualified for t in tables}:
        return False
    return bool(last["figures"].get("window") == row.window_no)


def _cut_missing(context: Context, tables: Sequence[TableRow]) -> None:
    """Ranges for the tables that have none in this job."""
    cut = context.journal.verification.tables(context.job.id)
    tables = [t for t in tables if t.id not in cut]
    if not tables:
        return
    found = sizes(context.target, [t.plan for t in tables])
    chunk = context.pipeline.backfill.chunk_bytes
    cuts = [
        boundaries(context.source, context.target, t.plan, size, size.rows_of(chunk))
        for t, size in zip(tables, found, strict=True)
    ]
    ranges = [
        (table.id, number, low, high)
        for table, of_table in zip(tables, cuts, strict=True)
        for number, (low, high) in enumerate(pairwise([None, *of_table, None]))
    ]
    with context.fenced("verify.before_ranges_commit"):
        context.journal.verification.forget_others([t.id for t in tables], context.job.id)
        context.journal.verification.add(context.job.id, ranges)


def compare_all(
    context: Context,
    chosen: Callable[[], list[TableRow]],
    *,
    mend: bool = False,
    beside: Callable[[Context], list[TableRow]] = followed_tables,
) -> None:
    """Window after window: each brings the copy to its snapshot, then as many ranges as fit its time are compared
    there; of a table whose rows do not lie in its key's order, all at once if they do. A range that takes too long is
    cut. A table that DDL changes meanwhile is compared anew. `beside`: the tables that windows run over.

    To `mend`, one that differs is cut until there are few rows to be read again. A row that is too many on the copy may
    keep another from coming (UNIQUE): then none comes for now, and those that wait differ like the rest."""
    replica = context.replica
    journal, job = context.journal, context.job.id
    _cut_missing(context, chosen())
    total = len(journal.verification.left([t.id for t in chosen()], job))
    elsewhere = CompareWorkers(context) if _worth_spreading(context, chosen(), total) else None
    planned: dict[int, Plan] = {}
    sides: dict[int, Sides] = {}
    at_once = set[int]()  # tables of which all ranges are tried as one
    uncut = set[int]()  # ranges that took too long and cannot be cut
    border = context.border()
    seen, fill, started = 0, True, time.monotonic()
    while True:
        border.wait()
        follow_ddl(context)
        archives.begin(context, followed_tables(context))
        tables = chosen()
        _cut_missing(context, tables)
        left = journal.verification.left([t.id for t in tables], job)
        if not left:
            return
        near = {*islice(dict.fromkeys(r.table_id for r in left), TABLES_A_WINDOW)}
        if changed := [t for t in tables if planned.get(t.id) != t.plan]:
            sides.update(sides_of(context.source, context.target, changed, in_place=context.in_place))
            planned.update({t.id: t.plan for t in changed})
            several = {table for table, ranges in Counter(r.table_id for r in left).items() if ranges > 1}
            at_once.update(scattered(context.target, {t.id: t.plan for t in changed if t.id in several}))
        compared: list[RangeResult] = []

        def inside(
            done: Window, left: Sequence[RangeRow] = left, compared: list[RangeResult] = compared, fill: bool = fill,
            near: Collection[int] = near,
        ) -> None:  # fmt: skip
            if context.in_place:
                compared.clear()  # a window that gave way was taken back; across databases it had committed before
            known = {range_id for range_id, _, _ in compared}
            if not (done.pending and fill):  # else some keys are still to be read; the next window has fewer
                todo = [
                    (
                        Range(r.id, r.low, r.high, r.id not in uncut, len(left) if r.table_id in at_once else 1),
                        sides[r.table_id],
                    )
                    for r in left
                    if r.table_id in near and r.table_id not in done.stopped and r.id not in known
                ]
                if not todo:
                    return
                seconds = max(SHORTEST_SECONDS, WINDOW_SECONDS / context.patience.effort.share)
                if elsewhere:
                    compared += elsewhere.compare(done, todo, seconds, mend)
                else:
                    compare_ranges(replica.source, replica.target, todo, seconds, compared, mend)

        # A window is over all tables, as foreign keys of the target may tie them together.
        failpoint("verify.before_window")
        over = tables if context.in_place else beside(context)
        before, began = partial(elsewhere.prepare, len(left)) if elsewhere else None, time.monotonic()
        behind = elsewhere.end if elsewhere else None
        window = one_window(
            context, replica, over, inside=inside, reads=near, before_snapshot=before, behind_snapshot=behind, fill=fill
        )
        if mend and fill and window.stopped.keys() & {t.id for t in tables} - {t.id for t in chosen()}:
            fill, context.looked = False, False
            follow_ddl(context, look=True)
        too_long = {range_id for range_id, _, differ in compared if differ is None}
        if mend:
            too_long |= {r for r, rows, differ in compared if r not in uncut and _is_worth_cutting(rows, differ)}
        compared = [found for found in compared if found[0] not in too_long]
        with context.fenced("verify.before_compared_commit"):
            journal.verification.set_done(
                (number, rows, differ) for number, rows, differ in compared if differ is not None
            )
        not_at_once = {r.table_id for r in left if r.id in too_long} & at_once
        at_once.difference_update(not_at_once)
        uncut.update(_cut_up(context, too_long, [t for t in chosen() if t.id not in not_at_once]))
        seen += len(compared)
        if elsewhere:
            elsewhere.took(len(compared), time.monotonic() - began)
        over_with = {range_id for range_id, _, _ in compared}
        at = next(
            (f"; at {t.qualified}" for r in left if r.id not in over_with for t in tables if t.id == r.table_id), ""
        )
        rest = pace(seen, max(total, seen) - seen, time.monotonic() - started, "ranges")
        rows = amount(sum(r for _, r, _ in compared))
        context.say(f"{seen}/{max(total, seen)} ranges, {rows} rows compared{rest}{at}")


def _is_worth_cutting(rows: int, differ: Sequence[str] | None) -> bool:
    return bool(differ) and rows > max(FEW_ROWS, ROWS_A_DIFFERENCE * len(differ or ()))


def _take_out(context: Context, chosen: Callable[[], list[TableRow]]) -> int:
    """The rows of every range that differs, all of them before the first comes back; returns how many will be read
    again. These ranges are to be compared once more."""
    replica, job, border, taken = context.replica, context.job.id, context.border(), 0
    steps, behind, asked = Steps(context.say, "rows that differ", "ranges"), 0, Counter[int]()
    while True:
        border.wait()
        follow_ddl(context)
        tables = {t.id: t for t in chosen()}
        todo = context.journal.verification.differing([*tables], job)
        if not todo:
            return taken
        steps.at(behind, behind + len(todo), tables[todo[0].table_id].qualified)
        over = [*tables.values()] if context.in_place else followed_tables(context)
        rows: dict[int, int] = {}

        def inside(
            done: Window, todo: Sequence[RangeRow] = todo, tables: Mapping[int, TableRow] = tables,
            over: Sequence[TableRow] = over, rows: dict[int, int] = rows,
        ) -> None:  # fmt: skip
            if context.in_place:
                rows.clear()  # a window that gave way was taken back
            deadline = time.monotonic() + WINDOW_SECONDS
            there = [t for t in over if t.id not in done.stopped]
            journal = Journal(replica.target, context.name)
            for r in todo:
                if r.table_id in done.stopped or r.id in rows:
                    continue
                again = partial(journal.verification.compare_again, r.id)
                within = Range(r.id, r.low, r.high)
                rows[r.id] = take_out(replica, done, there, tables[r.table_id], within, again, asked=asked)
                if time.monotonic() > deadline:
                    return

        one_window(context, replica, over, inside=inside, fill=False)
        taken, behind = taken + sum(rows.values()), behind + len(rows)


def _cut_up(context: Context, too_long: Collection[int], tables: Sequence[TableRow]) -> set[int]:
    """Puts shorter ranges in the place of each that is still there; returns those that cannot be cut."""
    if not too_long:
        return set()
    plans, uncut = {t.id: t.plan for t in tables}, set[int]()
    for r in context.journal.verification.left([*plans], context.job.id):
        if r.id not in too_long:
            continue
        shorter = parts(context.source, context.target, plans[r.table_id], Range(r.id, r.low, r.high))
        if len(shorter) == 1:
            uncut.add(r.id)
            continue
        with context.fenced("verify.before_cut_commit"):
            context.journal.verification.cut(r.id, [(part.low, part.high) for part in shorter])
    return uncut


def _worth_spreading(context: Context, tables: Sequence[TableRow], ranges: int) -> bool:
    """Whether to compare over Spark: across databases, where there is much."""
    size = context.journal.chunks.progress([t.id for t in tables]).bytes
    return not context.in_place and worth_spreading(context.pipeline, ranges, size)


def sides_of(source: Session, target: Session, tables: Sequence[TableRow], *, in_place: bool) -> dict[int, Sides]:
    """By table id, how source and copy are read to be compared; StageFailed where a copy is gone."""
    names = {t.id: (t.plan.copy_schema, t.plan.copy_name) for t in tables}
    oids = catalog.oids_of(target, names.values())
    copies = catalog.describe(target, oids.values())
    recoded = source.info.parameter_status("server_encoding") != target.info.parameter_status("server_encoding")
    own = (
        {} if in_place or not hashes_alike(source, target) else catalog.own_types(source, [t.plan.oid for t in tables])
    )
    sides = {}
    for table in tables:
        copy = copies.get(oids.get(names[table.id], 0))
        if copy is None:
            todo = "`pgddl reset` the pipeline and start again"
            raise StageFailed("its copy is gone", table=table.qualified, todo=todo)
        types = {c.name: c.type for c in copy.columns}
        if in_place:
            sides[table.id] = Sides.in_place(table.plan, types)
            continue
        there = own.get(table.plan.oid)
        alike = there and {c.name: c.base_type for c in copy.columns if there.get(c.name) == c.base_type}
        sides[table.id] = Sides.across(table.plan, alike, recoded=recoded)
    return sides


def verdicts_of(context: Context, tables: Sequence[TableRow]) -> dict[str, dict[str, Any]]:
    found = context.journal.verification.of_tables([t.id for t in tables])
    kept = count_extra(context.target, [t for t in tables if t.plan.operations])
    return {
        t.qualified: {
            "rows": found[t.id].rows,
            "differ": found[t.id].differ,
            **({"archived": kept[t.qualified]} if t.qualified in kept else {}),
        }
        for t in tables
        if t.id in found
    }


def _counted(differ: int) -> str:
    """A range knows no more than so many of its keys, so from there on nobody has counted them all."""
    return f"at least {differ:,}" if differ >= LISTED else str(differ)


def _raise_difference(context: Context, tables: Sequence[TableRow], differing: dict[str, dict[str, Any]]) -> None:
    by_name = {t.qualified: t for t in tables}
    lines = []
    for name in differing:
        keys = context.journal.verification.differing_keys(by_name[name].id)
        lines.append(f"{name}: {_counted(differing[name]['differ'])} rows differ, such as {', '.join(keys[:5])}")
    raise StageFailed(
        "the copy does not equal the source: " + "; ".join(lines),
        todo=f"do not swap. Find out who else writes to the copy; then {TODO}",
        sql="SELECT t.schema_name, t.table_name, v.differ\nFROM pgddl.verifications v\n"
        "JOIN pgddl.tables t ON t.id = v.table_id\n"
        "WHERE v.differ <> '[]' ORDER BY v.id DESC;",
    )
