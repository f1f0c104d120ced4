"""Chunks: block ranges of the source (or ranges of values, where the copy is to be in an order), claimed one by one by
workers, each copied exactly once. One of blocks is cut by whoever claims it where the last one of its table says that
it would take long: no snapshot on the source is old, however slow the way from there is. Small tables are claimed and
copied some together, since what is asked around a chunk takes longer than they do.

A chunk and the mark that it is done commit in one transaction on the target, so a worker can die anywhere. Across
databases the bytes go from COPY to COPY; in place it is INSERT … SELECT on the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.errors import GaveWay, PgddlError, StageFailed, TookTooLong
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.chunks import multirange
from airflow_provider_pgddl.engine.journal.control import Border, Control
from airflow_provider_pgddl.engine.model.plan import Plan, into
from airflow_provider_pgddl.engine.rights import as_owner, foreign_code
from airflow_provider_pgddl.engine.rows import foreign_keys_and_triggers, partition_cells
from airflow_provider_pgddl.engine.rows.adopted_rows import MEETINGS, insert_or_leave
from airflow_provider_pgddl.engine.rows.chunk_rows import TableToCopy, rows_of, select
from airflow_provider_pgddl.engine.rows.copy_shape import COPY_ALTERED, hold_copies
from airflow_provider_pgddl.engine.rows.fill import copy_behind
from airflow_provider_pgddl.engine.rows.row_counters import count_partial, count_refusal
from airflow_provider_pgddl.engine.rows.throttle import Limits, Throttling
from airflow_provider_pgddl.engine.rows.transfer import (
    REFUSALS,
    Copied,
    copy_between,
    read_statement,
    refused_row,
    write_statement,
)
from airflow_provider_pgddl.engine.rows.wal_flush import flush, snapshot_and_lsn
from airflow_provider_pgddl.engine.schema.drift import drift
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect, keeping_plans
from airflow_provider_pgddl.engine.server.giving_way import Patience, Watch, lock_briefly
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("journal")
COPY = "copy"  # the purpose of a worker's session on the target
SMALL = 64 * 1024  # bytes of a table that is copied together with others
TOGETHER = 16  # such tables at most
LONGEST = 20.0  # seconds that a chunk may take, where it can be cut; half of that is aimed at


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's share: it claims chunks of any of these tables until none is left."""

    source_dsn: str
    target_dsn: str
    in_place: bool
    pipeline: str
    token: int
    tables: tuple[TableToCopy, ...]
    patience: float
    limits: Limits


@dataclass(frozen=True, slots=True)
class ShareDone:
    """What one worker did; `cut` counts chunks that were left in part to others, `stopped` maps table id → findings,
    `rewritten` lists tables whose file is not the planned one."""

    chunks: int
    cut: int
    rows: int
    bytes: int
    stopped: dict[int, list[str]]
    rewritten: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One that is claimed: `rows_of` is FROM and WHERE of its rows."""

    id: int
    table: TableToCopy
    oid: int
    leaf: sql.Identifier
    filenode: int
    blocks: int
    rows_of: sql.Composed


class _Changed(PgddlError):
    """The table is not the one that the chunk was planned for, or its copy refused a row (`refused`)."""

    def __init__(self, table_id: int, findings: list[str] | None, refused: psycopg.Error | None = None):
        self.table_id, self.findings, self.refused = table_id, findings, refused
        super().__init__("the table changed")


def copy_chunks(work: Share, stop: threading.Event | None = None) -> ShareDone:
    """A worker's life: claim, copy, mark, until nothing is left to claim, or it is told to `stop`. Runs in a Spark task
    or in the driver."""
    target = connect(work.target_dsn, purpose=COPY, pipeline=work.pipeline, token=work.token)
    source = target if work.in_place else connect(
        work.source_dsn, purpose=f"{COPY} read", pipeline=work.pipeline, token=work.token)  # fmt: skip
    watcher = connect(work.source_dsn, purpose=f"{COPY} watch", pipeline=work.pipeline, token=work.token)
    with target, source, watcher, keeping_plans(target), keeping_plans(source):
        # A crash may take a chunk with its mark away, both of them: what relies on them commits behind, and waits.
        target.execute("SET synchronous_commit = off")
        return _Worker(work, source, target, watcher, stop).run()


class _Worker:
    def __init__(self, work: Share, source: Session, target: Session, watcher: Session, stop: threading.Event | None):
        self._stop = stop
        self._work, self._source, self._target, self._watcher = work, source, target, watcher
        self._tables = {t.id: t for t in work.tables}
        self._border = Border(Control(target, work.pipeline), work.token, Throttling(watcher, work.limits))
        self._stopped: dict[int, list[str]] = {}
        self._rewritten: set[int] = set()
        self._going_on = self._tables_going_on()
        self._without_partition: set[tuple[int, str]] = set()
        self._alone: set[int] = set()  # chunks that failed together with others
        self._together = TOGETHER if len(work.tables) > 1 else 1
        self._small = multirange(t.id for t in work.tables if _may_be_together(t))
        self._pace: dict[int, float] = {}  # seconds that a block of this leaf took the last time
        self._rows = self._bytes = self._chunks = self._cut_chunks = 0

    def run(self) -> ShareDone:
        patience = Patience(self._work.patience)
        avoid: list[int] = []  # chunks that gave way in this round; others first
        while self._stop is None or not self._stop.is_set():
            if self._border.wait():
                patience.succeeded()  # nobody kept us from the tables meanwhile
            try:
                claimed = self._next(avoid)
            except _OneByOne as error:
                self._alone |= error.chunks
                continue
            except TookTooLong:
                continue  # in parts, the next time
            except GaveWay as error:
                if isinstance(error, _ChunkGaveWay):
                    avoid.append(error.chunk)
                patience.wait(error)
                continue
            except _NoPartition as none:
                self._make_partitions(none.table, none.rows, none.error)
                self._going_on = self._tables_going_on()
                continue
            except _Changed as changed:
                if changed.refused:
                    plan = self._tables[changed.table_id].plan
                    count_refusal(self._target, self._work.pipeline, plan, changed.refused)
                if changed.findings is None:
                    self._rewritten.add(changed.table_id)
                else:
                    self._stopped[changed.table_id] = changed.findings
                self._going_on = self._tables_going_on()
                continue
            if claimed:
                patience.succeeded()
            elif avoid:
                avoid = []
            else:
                break
        return ShareDone(self._chunks, self._cut_chunks, self._rows, self._bytes, self._stopped,
                    tuple(sorted(self._rewritten)))  # fmt: skip

    def _tables_going_on(self) -> str:
        """As a multirange of Postgres; made once, as each claim says it."""
        return multirange(i for i in self._tables if i not in self._stopped and i not in self._rewritten)

    def _next(self, avoid: Sequence[int]) -> bool:
        """Claims and copies a chunk, or those of some small tables, in one transaction on the target; False when there
        is none to claim."""
        with self._target.transaction():
            claimed = self._claim(avoid)
            if not claimed:
                return False
            began = time.monotonic()
            failpoint("backfill.before_chunk", self._target)
            try:
                copied, size, snapshot = self._copied_in_time(claimed)
            except (GaveWay, TookTooLong, _Changed, _NoPartition, pg.DeadlockDetected) as error:
                if len(claimed) == 1:
                    raise
                if isinstance(error, TookTooLong):
                    self._together = max(1, self._together // 4)
                raise _OneByOne({chunk.id for chunk in claimed}) from None
            self._target.execute(_Q["chunks_done"], {"ids": [c.id for c in claimed], "rows": copied, "at": snapshot})
            for chunk, rows in zip(claimed, copied, strict=True):
                count_partial(self._target, self._work.pipeline, chunk.table.plan, rows)
            scopes = dict.fromkeys(scope for chunk in claimed for scope in chunk.table.fence.scopes)
            lease.check(self._target, replace(claimed[0].table.fence, scopes=tuple(scopes)))
            failpoint("backfill.before_chunk_commit", self._target)
        if len(claimed) == 1 and claimed[0].blocks:
            self._pace[claimed[0].oid] = (time.monotonic() - began) / claimed[0].blocks
        self._chunks += len(claimed)
        self._rows += sum(copied)
        self._bytes += size
        return True

    def _claim(self, avoid: Sequence[int]) -> list[_Chunk]:
        """The next chunk; where it is a small one, those of other small tables behind it, too."""
        row = self._target.execute(_Q["claim_chunk"], [self._going_on, list(avoid)]).fetchone()
        if row is None:
            return []
        first, rest = self._chunk(row), list[Any]()
        if (
            self._together > 1
            and first.id not in self._alone
            and self._in_time(first)
            and _may_be_together(first.table)
        ):
            behind = range(first.id + 1, first.id + 1 + 4 * self._together)  # no more is looked at
            args = {"small": self._small, "going_on": self._going_on, "first": first.id, "bytes": SMALL,
                    "last": behind[-1], "but": [i for i in (*avoid, *self._alone) if i in behind],
                    "count": self._together - 1}  # fmt: skip
            rest = self._target.execute(_Q["claim_small_tables"], args).fetchall()
        return [first, *map(self._chunk, rest)] if rest else [self._cut(row, first)]

    def _chunk(self, row: Any) -> _Chunk:
        chunk, table_id, oid, schema, name, filenode, first, end, *place = row
        table, leaf = self._tables[table_id], sql.Identifier(schema, name)
        return _Chunk(chunk, table, oid, leaf, filenode, end - first, rows_of(table, leaf, first, end, *place))

    def _copied_in_time(self, claimed: Sequence[_Chunk]) -> tuple[list[int], int, str | None]:
        """As `_copy`, watched; errors as what they mean for the chunk."""
        chunk, others = claimed[0], () if self._work.in_place else (self._target,)
        table, limit = chunk.table, LONGEST if len(claimed) > 1 or chunk.blocks > 1 else None
        try:
            with Watch(self._source, self._watcher, *others, limit=limit) as watch:
                found = self._copy(claimed, watch)
            watch.check()
        except TookTooLong:
            if len(claimed) == 1:
                self._pace[chunk.oid] = 2 * LONGEST / max(1, chunk.blocks)  # a quarter of it, the next time
            raise
        except REFUSALS as error:
            if isinstance(error, pg.CheckViolation) and partition_cells.has_no_partition(table.plan, error):
                raise _NoPartition(table, chunk.rows_of, error) from None
            raise _Changed(table.id, [refused_row(error)], error) from None
        except GaveWay as error:
            raise _ChunkGaveWay(error.what, chunk.id, table.plan.qualified) from None
        return found

    def _in_time(self, chunk: _Chunk) -> bool:
        return chunk.blocks * self._pace.get(chunk.oid, 0.0) <= LONGEST / 2

    def _cut(self, row: Any, chunk: _Chunk) -> _Chunk:
        """As many of its blocks as can be read in time; the rest becomes chunks of as many."""
        if self._in_time(chunk):
            return chunk
        fitting = max(1, int(LONGEST / 2 / self._pace[chunk.oid]))
        self._target.execute(_Q["cut_chunk"], {"id": chunk.id, "blocks": fitting})
        self._cut_chunks += 1
        return self._chunk([*row[:7], row[6] + fitting, *row[8:]])

    def _make_partitions(self, table: TableToCopy, rows: sql.Composed, error: pg.CheckViolation) -> None:
        """Those that a chunk's rows need; without a lock on the live table while we wait for other workers' chunks."""
        cells = self._cells(table, rows)
        try:
            if partition_cells.are_new(self._target, table.plan, cells):
                with lease.fenced(self._target, table.fence, "backfill.before_split_commit"):
                    if partition_cells.make(self._target, table.plan, cells):
                        return
        except StageFailed as failed:
            self._stopped[table.id] = [failed.what]
            return
        place = (table.id, rows.as_string())
        if place not in self._without_partition:
            self._without_partition.add(place)
            return  # another worker may have made them just now
        self._stopped[table.id] = [refused_row(error)]
        count_refusal(self._target, self._work.pipeline, table.plan, error)

    def _cells(self, table: TableToCopy, rows: sql.Composed) -> list[partition_cells.Cell]:
        """Where these rows belong, read under the lock that keeps code of others out."""
        plan, patience = table.plan, Patience(self._work.patience)
        while True:
            try:
                with self._target.transaction():
                    foreign_code.lock(self._target, [(plan.source, plan)], "reader")
                    return partition_cells.cells_of(self._target, plan, partition_cells.values(plan, rows))
            except GaveWay as error:
                patience.wait(error)

    def _copy(self, claimed: Sequence[_Chunk], watch: Watch) -> tuple[list[int], int, str | None]:
        """(rows of each chunk, bytes of all, the source's snapshot that they were read at)"""
        plans = {chunk.table.id: chunk.table.plan for chunk in claimed}
        for table in hold_copies(self._target, plans):
            raise _Changed(table, [COPY_ALTERED])
        if len(claimed) > 1:  # as each is written: one after the other we could wait for who waits for us
            lock_briefly(self._target, [plan.copy for plan in plans.values()], "ROW EXCLUSIVE")
        if self._work.in_place:
            self._lock_and_compare(claimed)
            behind = self._code(foreign_code.code_of_live(self._source, plans))
            behind |= self._code(foreign_code.code_of_copies(self._target, plans))
            return [self._insertselect(chunk, behind) for chunk in claimed], 0, None
        behind = self._code(foreign_code.code_of_copies(self._target, plans))
        with self._source.transaction():
            self._source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self._lock_and_compare(claimed)
            coded = self._code(foreign_code.code_of_live(self._source, plans))
            with foreign_keys_and_triggers.quiet(self._target, plans) as tied:
                # Rows only come: a key that refers to them has nothing to do, and one of theirs says what it lacks.
                fired = replace(tied, keys=())
                stops = foreign_keys_and_triggers.told(fired.stops((), self._target.info.user))
                for table, findings in stops.items():
                    raise _Changed(table, findings)
                copied = [self._copied(chunk, coded, behind, watch) for chunk in claimed]
                self._target.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what is deferred is this chunk's own error
            snapshot, lsn = snapshot_and_lsn(self._source)
        flush(self._watcher, lsn)
        return [c.rows for c in copied], sum(c.bytes for c in copied), snapshot

    def _copied(self, chunk: _Chunk, coded: set[int], behind: set[int], watch: Watch) -> Copied:
        """`coded` and `behind` are the tables that have code of their owners on the source, and on the target."""
        watch.check()
        table, plan = chunk.table.id, chunk.table.plan
        reader = plan.keepers.reader if table in coded else ""
        types = as_owner.types_read(self._source, plan) if reader else ()
        query = select(as_owner.as_typed(plan, types) if reader else plan, chunk.rows_of)
        try:
            with self._taken_back(plan), as_owner.selected(self._source, reader, query, types) as rows:
                return self._transferred(plan, rows, table in behind)
        except MEETINGS:
            if not plan.adopted:
                raise
            with as_owner.selected(self._source, reader, query, types) as rows:
                return Copied(insert_or_leave(self._source, self._target, table, plan, rows), 0)

    @contextmanager
    def _taken_back(self, plan: Plan) -> Iterator[None]:
        """What fails on one side has ended the other's COPY, too. Only a table that was there before can do that."""
        if not plan.adopted:
            yield
            return
        with self._source.transaction(), self._target.transaction():
            yield

    def _transferred(self, plan: Plan, rows: sql.Composable, behind: bool) -> Copied:
        if behind:
            return Copied(copy_behind(self._source, self._target, plan, rows, "pgddl_bare"), 0)
        return copy_between(
            self._source, self._target, read_statement(rows, plan.columns.binary),
            write_statement(plan.copy, plan.columns.list, plan.columns.binary), wordless=plan.in_part,
        )  # fmt: skip

    def _code(self, found: tuple[set[int], dict[int, list[str]]]) -> set[int]:
        """The tables that have code of their owners there."""
        behind, stops = found
        for table, findings in stops.items():
            raise _Changed(table, findings)
        return behind

    def _lock_and_compare(self, claimed: Sequence[_Chunk]) -> None:
        """Lock first, then look (C3): under the lock the file and the structure cannot change any more."""
        read = [(sql.SQL("ONLY {}").format(chunk.leaf), chunk.table.plan) for chunk in claimed]
        foreign_code.lock(self._source, read, "reader")
        oids, triggers = {chunk.table.plan.oid for chunk in claimed}, claimed[0].table.triggers
        described = catalog.describe(self._source, sorted(oids), triggers)
        for chunk in claimed:
            table, now = chunk.table, described.get(chunk.table.plan.oid)
            findings = drift(table.version, table.physical, now)
            if findings:
                raise _Changed(table.id, findings)
            assert now is not None
            if next(x.filenode for x in now.leaves if x.oid == chunk.oid) != chunk.filenode:
                raise _Changed(table.id, None)

    def _insertselect(self, chunk: _Chunk, behind: set[int]) -> int:
        plan = chunk.table.plan
        statement = sql.SQL("INSERT INTO {} OVERRIDING SYSTEM VALUE {}").format(
            into(plan.copy, plan.columns.list), select(plan, chunk.rows_of)
        )
        return as_owner.execute(self._target, plan.keepers.writer if chunk.table.id in behind else "", statement)


def _may_be_together(table: TableToCopy) -> bool:
    """Whether nobody's code runs where its rows are read and written, nor may a row of it be there already."""
    keepers = table.plan.keepers
    return not (keepers.reader or keepers.writer or keepers.refused or table.plan.adopted or table.plan.order)


class _NoPartition(Exception):
    """A chunk has rows that no partition of the copy takes."""

    def __init__(self, table: TableToCopy, rows: sql.Composed, error: pg.CheckViolation):
        self.table, self.rows, self.error = table, rows, error
        super().__init__("no partition takes a row")


class _OneByOne(Exception):
    """Of some chunks that were claimed together one failed: which, and why, shows where each is by itself."""

    def __init__(self, chunks: set[int]):
        self.chunks = chunks
        super().__init__("one of several failed")


class _ChunkGaveWay(GaveWay):
    def __init__(self, what: str, chunk: int, table: str):
        self.chunk = chunk
        super().__init__(what, table=table)
