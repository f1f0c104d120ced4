"""Tables that the target had before the pipeline, and that it takes as they are (`tables.existing: adopt`).

One without rows is filled by blocks. In one with rows the comparison of verify, at windows of the source, tells which
ranges are not the same: only these are read again. A row that the target alone has stays (`tables.keep_extra`) or goes,
and where the file does not say which, nothing of its table is touched. However a run ends, the next one compares again:
nothing is taken for equal that was not seen to be."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from psycopg import sql

from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.following.catch_up import followed_tables, one_window
from airflow_provider_pgddl.engine.following.ddl import follow_ddl
from airflow_provider_pgddl.engine.following.row_comparison import WINDOW_SECONDS, compare_all
from airflow_provider_pgddl.engine.following.rows_read import NOT_TOLD_THERE, TELL_THERE, condition_there
from airflow_provider_pgddl.engine.following.schema_comparison import evaluate
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.journal.verification import RangeRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.plan import Adopted
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.preflight import too_old
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.progress import Steps
from airflow_provider_pgddl.engine.rights import as_owner
from airflow_provider_pgddl.engine.rows import adopted_rows
from airflow_provider_pgddl.engine.rows.mend import take_out
from airflow_provider_pgddl.engine.rows.windows import Window
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

DECIDE = "set tables.keep_extra: true keeps them, false removes them; then run the stage again"


def different(pipeline: Pipeline, source: Session, target: Session, names: Collection[Name]) -> Iterator[Finding]:
    """What keeps rows of the source from a table of the target that is to be adopted, with the SQL that changes it."""
    if pipeline.tables.existing != "adopt" or not pipeline.moves_rows:
        return
    if any(finding for side in (source, target) for finding in too_old(side.info.server_version, "source")):
        return  # preflight says so
    there = catalog.oids_of(target, names)
    for name, found in evaluate(pipeline, source, target, None, [n for n in names if n in there]).items():
        for finding in found.verdict.mismatches:
            yield Finding(
                "error", "existing", "target", written(*name), f"cannot be adopted: {finding.what}",
                "\n".join(finding.fix) or None,
            )  # fmt: skip


def note_adopted(context: Context, tables: Sequence[TableRow]) -> None:
    """Before anything is made for these tables: which of them the target has."""
    if context.pipeline.tables.existing != "adopt" or context.in_place or not context.moves_rows:
        return
    names = {(t.plan.copy_schema, t.plan.copy_name): t for t in tables}
    there = catalog.oids_of(context.target, names)
    found = [names[name] for name in there]
    described = catalog.describe(context.target, there.values())
    for (schema, name), oid in there.items():
        if oid not in described:
            raise PreflightRefused(
                "what the target has of this name is no table", table=f"{schema}.{name}",
                todo="give it another name, then run the stage again",
            )  # fmt: skip
    filled = {t.id for t in found if _has_rows(context, t)}
    on_source = catalog.describe(context.source, [t.oid for t in found])
    there_by_id = {names[name].id: described[oid] for name, oid in there.items()}
    for table in (t for t in found if t.keyless and t.id in filled):
        raise PreflightRefused(
            "has rows on the target and no key: nothing tells them apart from the source's", table=table.qualified,
            todo="keep them elsewhere and empty it, then run the stage again",
            sql=sql.SQL("TRUNCATE {};").format(table.plan.copy_only).as_string(context.target),
        )  # fmt: skip
    conditions = {
        t.id: _where_there(context, t, on_source[t.oid], there_by_id[t.id])
        for t in found
        if t.id in filled and t.plan.where and t.oid in on_source
    }
    with context.fenced("adopt.before_noted_commit"):
        for table in found:
            how: Adopted = "uncompared" if table.id in filled else "empty"
            plan = replace(table.plan, adopted=how, where_there=conditions.get(table.id, ""))
            context.journal.tables.set_copy(replace(table, plan=plan))
    for table in found:
        next_ = "its rows are compared, and what differs is read" if table.id in filled else "it is empty, and filled"
        context.say(f"{table.qualified}: the target's own table is taken as it is; {next_}")


def _where_there(context: Context, table: TableRow, source: Table, target: Table) -> str:
    """The condition of `tables.where` for the target's own rows, where nobody's code says what it is of one."""
    found = condition_there(table.plan, source.types, target.types)
    if not found and context.pipeline.tables.keep_extra is not False:
        raise PreflightRefused(NOT_TOLD_THERE, table=table.qualified, todo=f"{TELL_THERE}; then run the stage again")
    return found


def _has_rows(context: Context, table: TableRow) -> bool:
    query = sql.SQL(queries("adopted_rows")["has_rows"]).format(relation=table.plan.copy_only)
    return as_owner.fetch_held(context.target, table.plan, "writer", query, ["boolean"]) == [(True,)]


# --- rows -------------------------------------------------------------------------------------------------------------


def attach(context: Context) -> int:
    """Brings adopted tables that have rows in line: what differs leaves them and becomes pending; returns how many keys
    that are. PreflightRefused, once all others are done, where rows of the target alone wait for a decision."""
    taken = 0
    refused: dict[str, str] = {}
    while tables := _uncompared(context, refused):
        _forget_undecided(context, tables)
        chosen = partial(_uncompared, context, refused)
        context.say(f"{', '.join(t.qualified for t in tables)}: compared with the rows that are there")
        compare_all(context, chosen, mend=True, beside=_beside)
        refused |= _undecided(context, chosen)
        _prepare_to_keep(context, chosen())
        taken += _take_out(context, chosen)
        _note_compared(context, chosen())
    if refused:
        raise PreflightRefused(
            "rows of the target that the source has not: " + "; ".join(f"{n}: {why}" for n, why in refused.items()),
            todo=DECIDE,
        )
    return taken


def _uncompared(context: Context, but_not: Collection[str] = ()) -> list[TableRow]:
    backfilled = context.healthy(context.tables(), "backfilled")
    return [t for t in backfilled if _is_to_be_compared(t) and t.qualified not in but_not]


def _is_to_be_compared(table: TableRow) -> bool:
    """One without a key is copied at the swap, which sees for itself that it is empty."""
    return table.plan.is_to_be_compared and not table.keyless


def _beside(context: Context) -> list[TableRow]:
    """The tables that foreign keys of the target may tie to one another."""
    backfilled = [t for t in context.healthy(context.tables(), "backfilled") if not t.keyless]
    return [*followed_tables(context), *(t for t in backfilled if t.plan.adopted)]


def _forget_undecided(context: Context, tables: Sequence[TableRow]) -> None:
    """What an earlier try was told to keep, and is not any more."""
    if context.pipeline.tables.keep_extra:
        return
    for table in (t for t in tables if t.plan.extra):
        with context.fenced("adopt.before_undecided_commit", table):
            adopted_rows.drop_extra(context.target, table.id)
            context.journal.tables.set_copy(adopted_rows.uncompared(table))


def _undecided(context: Context, chosen: Callable[[], list[TableRow]]) -> dict[str, str]:
    """Of each table with rows that nobody has decided about, how many they are; nothing is changed."""
    if context.pipeline.tables.keep_extra is not None:
        return {}
    found, counted = Counter[str](), set[int]()
    replica = context.replica

    def count(_: Window, __: Sequence[TableRow], table: TableRow, within: Range) -> None:
        if within.id not in counted:
            with replica.target.transaction(force_rollback=True):
                found[table.qualified] += adopted_rows.stage_extra(replica.source, replica.target, table, within)[1]
            counted.add(within.id)

    _in_windows(context, chosen, count, counted)
    return {name: _counted(rows) for name, rows in found.items() if rows}


def _counted(rows: int) -> str:
    return f"{rows:,} row{'s' if rows > 1 else ''}"


def _prepare_to_keep(context: Context, tables: Sequence[TableRow]) -> None:
    if not context.pipeline.tables.keep_extra:
        return
    for table in (t for t in tables if not t.plan.extra):
        with context.fenced("adopt.before_extra_commit", table):
            extra = adopted_rows.create_extra(context.target, table)
            context.journal.tables.set_copy(replace(table, plan=replace(table.plan, extra=extra)))


def _take_out(context: Context, chosen: Callable[[], list[TableRow]]) -> int:
    """The rows of every range that differs leave, all of them before the first comes back."""
    replica, keep, taken = context.replica, context.pipeline.tables.keep_extra, Counter[int]()

    def spare(table: TableRow, within: Range) -> None:
        alone, count = adopted_rows.stage_extra(replica.source, replica.target, table, within)
        if count and keep is None:
            raise PreflightRefused(
                f"{_counted(count)} came meanwhile that the source has not", table=table.qualified, todo=DECIDE
            )
        if count and keep:
            adopted_rows.keep_extra(replica.target, table.plan, alone)

    def act(done: Window, beside: Sequence[TableRow], table: TableRow, within: Range) -> None:
        again = partial(Journal(replica.target, context.name).verification.compare_again, within.id)
        taken[within.id] = take_out(replica, done, beside, table, within, again, partial(spare, table, within))

    _in_windows(context, chosen, act, taken)
    return taken.total()


def _in_windows(
    context: Context,
    chosen: Callable[[], list[TableRow]],
    act: Callable[[Window, Sequence[TableRow], TableRow, Range], None],
    acted: Collection[int],
) -> None:
    """Has something done with each range that was compared and differs, inside of windows that bring no rows."""
    replica, job, border = context.replica, context.job.id, context.border()
    steps = Steps(context.say, "rows that differ", "ranges")
    while True:
        border.wait()
        follow_ddl(context)
        tables = {t.id: t for t in chosen()}
        todo = [r for r in context.journal.verification.differing([*tables], job) if r.id not in acted]
        if not todo:
            return
        steps.at(len(acted), len(acted) + len(todo), tables[todo[0].table_id].qualified)
        over = _beside(context)

        def inside(
            done: Window, todo: Sequence[Range] = _ranges(todo), tables: Mapping[int, TableRow] = tables,
            of: Mapping[int, int] = {r.id: r.table_id for r in todo}, over: Sequence[TableRow] = over,
        ) -> None:  # fmt: skip
            deadline = time.monotonic() + WINDOW_SECONDS
            there = [t for t in over if t.id not in done.stopped]
            for within in todo:
                if of[within.id] in done.stopped or within.id in acted:
                    continue
                act(done, there, tables[of[within.id]], within)
                if time.monotonic() > deadline:
                    return

        one_window(context, replica, over, inside=inside, fill=False)


def _ranges(rows: Iterable[RangeRow]) -> list[Range]:
    return [Range(r.id, r.low, r.high) for r in rows]


def _note_compared(context: Context, tables: Sequence[TableRow]) -> None:
    """Those of which all ranges were seen to be equal, or have left. A table that DDL has changed meanwhile has lost
    its ranges, and is compared once more."""
    journal = context.journal
    seen = journal.verification.tables(context.job.id)
    differing = {r.table_id for r in journal.verification.differing([t.id for t in tables], context.job.id)}
    done = [t for t in tables if t.id in seen and t.id not in differing]
    with context.fenced("adopt.before_compared_commit"):
        for table in done:
            journal.tables.set_copy(replace(table, plan=replace(table.plan, adopted="compared")))
            journal.verification.forget(table.id)
    for name, rows in ((n, r) for n, r in adopted_rows.count_extra(context.target, done).items() if r):
        context.say(f"{name}: {_counted(rows)} that only the target has stay there")
