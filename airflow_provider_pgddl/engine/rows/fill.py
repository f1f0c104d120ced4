"""Fill, across databases: the rows that a window's snapshot shows for pending keys are inserted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.lease import Fence
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.rights import as_owner, foreign_code
from airflow_provider_pgddl.engine.rows import archive, copy_only_columns, foreign_keys_and_triggers
from airflow_provider_pgddl.engine.rows.copy_shape import COPY_ALTERED, hold_copies
from airflow_provider_pgddl.engine.rows.foreign_keys_and_triggers import Ties
from airflow_provider_pgddl.engine.rows.out_of_range import keys_out_of_range
from airflow_provider_pgddl.engine.rows.pending_keys import (
    add_pending,
    count_pending,
    rows_of_keys,
    staging_table,
    take_pending,
)
from airflow_provider_pgddl.engine.rows.refused_keys import keys_refused
from airflow_provider_pgddl.engine.rows.row_counters import count_partial, count_refusal
from airflow_provider_pgddl.engine.rows.transfer import (
    REFUSALS,
    copy_between,
    read_statement,
    refused_row,
    write_statement,
)
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.server.giving_way import at_snapshot
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("windows")
FILL = "fill"  # the purpose of a worker's session on the target, of which one for the source is named
# What a fill did: rows, and why tables whose copy refused one have to stop; both by the table's id.
Filled = tuple[Counter[int], dict[int, list[str]]]
# Given the exported snapshot and the tables with pending keys, fills up to so many of them elsewhere; Busy once the
# last one says that somebody waits for the tables.
FillElsewhere = Callable[[str, Sequence[TableRow], int, Callable[[], bool]], Filled]


def fill_across(
    source: Session,
    target: Session,
    plan: Plan,
    table_id: int,
    limit: int,
    *,
    staged: int = 0,
    into: sql.Identifier | None = None,
    behind: bool = False,
) -> tuple[int, int]:
    """Takes up to `limit` pending keys and inserts the rows that the source's snapshot shows for them, or leaves them
    in the table `into`; returns (keys, rows). Where keys were `staged` by this transaction's ingest, together with
    those. `behind` the wall where the copy has code of its owner.

    In the caller's transactions: the keys leave the pending set if and only if their rows arrive.
    """
    taken = staging_table(target, "ingest" if staged else "fill", plan, table_id)
    keys = staged + take_pending(target, plan, table_id, taken, limit - staged)
    if keys == 0:
        return 0, 0
    wanted = staging_table(source, "fill", plan, table_id)
    copy_between(
        target, source,
        read_statement(sql.SQL("SELECT {} FROM {}").format(plan.key.list(), taken), plan.key.binary),
        write_statement(wanted, plan.key.list(), plan.key.binary),
    )  # fmt: skip
    source.execute(sql.SQL("ANALYZE {}").format(wanted))
    reader = foreign_code.reader_of(source, plan)
    types = as_owner.types_read(source, plan) if reader else ()
    query = rows_of_keys(as_owner.as_typed(plan, types) if reader else plan, wanted)
    with_kept = into is None and (plan.columns.kept or plan.operations)
    with as_owner.selected(source, reader, query, types, wanted) as rows_shown:
        if behind:
            rows = copy_behind(source, target, plan, rows_shown, f"pgddl_bare_{table_id}")
        else:
            arrivals = copy_only_columns.create_arrivals(target, plan, table_id) if with_kept else into or plan.copy
            read = read_statement(rows_shown, plan.columns.binary)
            write = write_statement(arrivals, plan.columns.list, plan.columns.binary)
            rows = copy_between(source, target, read, write, wordless=plan.in_part).rows
    if with_kept and plan.operations:
        archive.merge(target, plan, table_id, taken)
    elif with_kept:
        copy_only_columns.put_back(target, plan, table_id, taken)
    for conn, staging in ((source, wanted), (target, taken)):
        conn.execute(sql.SQL("TRUNCATE {}").format(staging))
    return keys, rows


def copy_behind(source: Session, target: Session, plan: Plan, rows: sql.Composable, name: str) -> int:
    """The rows of a query into a copy that has code of its owner: COPY cannot run behind the wall, so they come to a
    table of ours first, which runs none."""
    arrivals, insert, as_they_are = as_owner.bare_arrivals(target, plan, name)
    binary = plan.columns.binary and as_they_are
    read, write = read_statement(rows, binary), write_statement(arrivals, plan.columns.list, binary)
    copied = copy_between(source, target, read, write, wordless=plan.in_part).rows
    as_owner.execute(target, plan.keepers.writer, insert, arrivals)
    target.execute(sql.SQL("DROP TABLE {}").format(arrivals))
    return copied


def fill_tables(
    source: Session,
    target: Session,
    pipeline: str,
    tables: Sequence[tuple[int, Plan]],
    limit: int,
    fence: Fence | None = None,
    *,
    staged: Mapping[int, int] | None = None,
    behind: Collection[int] = (),
) -> Filled:
    """Fills one table after the other until `limit` keys are used up; with a fence in a transaction each, without one
    in the caller's, which holds the copies and has perhaps `staged` keys.

    A table whose copy refuses a row, or was altered, keeps its keys, which are pending then, and the others go on.
    """
    filled = Counter[int]()
    refused: dict[int, list[str]] = {}
    for table_id, plan in tables:
        if limit <= 0:
            break
        try:
            with (
                source.transaction(),
                lease.fenced(target, fence, "replay.before_fill_commit") if fence else target.transaction(),
            ):
                if fence and hold_copies(target, {table_id: plan}):
                    refused[table_id] = [COPY_ALTERED]
                    continue
                at_wall = table_id in behind
                if fence:
                    coded, stops = foreign_code.code_of_copies(target, {table_id: plan})
                    if stops:
                        refused |= stops
                        continue
                    at_wall = bool(coded)
                    if at_wall and (why := archive.not_behind_the_wall(plan)):
                        refused[table_id] = why
                        continue
                with (
                    foreign_keys_and_triggers.quiet(target, {table_id: plan}) if fence else nullcontext(Ties()) as tied
                ):
                    if tied.tied or tied.triggers:
                        continue  # they came just now: the next window sees to it
                    here = (staged or {}).get(table_id, 0)
                    keys, rows = fill_across(source, target, plan, table_id, limit, staged=here, behind=at_wall)
                count_partial(target, pipeline, plan, rows)
        except REFUSALS as error:
            if staged and table_id in staged:
                add_pending(target, table_id, plan, staging_table(target, "ingest", plan, table_id))
            beyond = isinstance(error, pg.NumericValueOutOfRange)
            keys_told = keys_out_of_range(source, target, plan, table_id, limit) if beyond else []
            keys_told = keys_told or keys_refused(source, target, plan, table_id, limit, error)
            meets = isinstance(error, archive.MEETINGS) and plan.operations
            refused[table_id] = [(archive.refused_row if meets else refused_row)(error, keys_told)]
            count_refusal(target, pipeline, plan, error)
            continue
        limit -= keys
        filled[table_id] += rows
    return filled, refused


def fill_together(source: Session, target: Session, pipeline: str, tables: Sequence[TableRow]) -> Filled:
    """All pending keys of tables that foreign keys tie to one another, in one statement; none where one is refused."""
    waiting = count_pending(target, tables)
    todo = [t for t in tables if waiting.get(t.id)]
    arrived: list[tuple[Plan, sql.Identifier]] = []
    counts: list[int] = []
    try:
        with source.transaction(), target.transaction():
            for table in todo:
                arrivals = copy_only_columns.create_arrivals(target, table.plan, table.id)
                counts.append(fill_across(source, target, table.plan, table.id, waiting[table.id], into=arrivals)[1])
                arrived.append((table.plan, arrivals))
            if arrived:
                foreign_keys_and_triggers.insert_together(target, arrived)
            for (plan, arrivals), rows in zip(arrived, counts, strict=True):
                count_partial(target, pipeline, plan, rows)
                target.execute(sql.SQL("DROP TABLE {}").format(arrivals))
    except REFUSALS as error:
        at = {(t.plan.copy_schema, t.plan.copy_name): t for t in todo}
        name = (error.diag.schema_name or "", error.diag.table_name or "")
        refused = [at[name]] if name in at else todo
        for table in refused:
            count_refusal(target, pipeline, table.plan, error)
        return Counter(), {t.id: [refused_row(error)] for t in refused}
    return Counter({t.id: rows for t, rows in zip(todo, counts, strict=True)}), {}


@dataclass(frozen=True, slots=True)
class FillPart:
    """One worker's share of a fill at an exported snapshot."""

    source_dsn: str
    target_dsn: str
    pipeline: str
    snapshot: str
    fence: Fence
    tables: tuple[tuple[int, Plan], ...]
    limit: int
    fenced: bool = False
    """As of `Replica`."""


def fill_part(part: FillPart) -> Filled:
    """Runs in a Spark task: imports the window's snapshot, locks without waiting, fills. All of its sessions are there,
    to be found and ended by their names, before it has the snapshot (C11)."""
    token = part.fence.token
    source = connect(part.source_dsn, purpose=f"{FILL} read", pipeline=part.pipeline, token=token)
    target = connect(part.target_dsn, purpose=FILL, pipeline=part.pipeline, token=token)
    watcher = connect(part.source_dsn, purpose=f"{FILL} watch", pipeline=part.pipeline, token=token)
    with source, target, watcher, at_snapshot(source, watcher, target, part.snapshot):
        relations = [(plan.source, plan) for _, plan in part.tables]
        foreign_code.lock(source, relations, "reader", fenced=part.fenced)
        return fill_tables(source, target, part.pipeline, part.tables, part.limit, part.fence)
