"""What a stage works with: sessions, journal, lease, and the tables that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.capture.kept_stream import KeptStream
from airflow_provider_pgddl.engine.errors import GaveWay, PgddlError, UsageError
from airflow_provider_pgddl.engine.job.executor_dsns import for_executors
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.job.slot_receiver import receive
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.control import Border, Control
from airflow_provider_pgddl.engine.journal.lease import Fence, Lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal, PipelineRow
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.plan import Keepers
from airflow_provider_pgddl.engine.parallel.executor_settings import Settings
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import table_name
from airflow_provider_pgddl.engine.progress import repeating, say
from airflow_provider_pgddl.engine.rights import foreign_code
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs, logs_now
from airflow_provider_pgddl.engine.rows.throttle import Limits, Throttling
from airflow_provider_pgddl.engine.rows.window_locks import Replica
from airflow_provider_pgddl.engine.schema import verdict
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.server.connections import workers_with_room
from airflow_provider_pgddl.engine.server.giving_way import ASKED_FOR, POLITE, SAY_EVERY, Effort, Patience
from airflow_provider_pgddl.engine.server.lock_timeout import holders, waited_for

T = TypeVar("T")

# A SparkSession takes 5–7 s to start. It pays for itself from about this many full chunks of work on; below, the
# driver works alone.
SPREAD_CHUNKS = 4
LEAST_TAKEN = 10_000  # log rows: taking them is far less work than filling, and a small window must keep up with them
FENCED_FOR = 3.0  # seconds of waiting behind a fence, after which it falls for another try
TAKEN_IN_PEACE = 1_000_000  # log rows: each part of a log costs a look through a copy
# Every mode in which somebody may hold a table: each is in the way of ACCESS EXCLUSIVE.
TABLE_LOCKS = (
    "AccessShareLock", "RowShareLock", "RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareLock",
    "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock",
)  # fmt: skip


class Context:
    """One stage's run. `source` and `target` are pinned sessions with the run's token; in place both are the same
    database.

    `journal` writes through `target`. Sessions are separate even in place, so that one can hold a snapshot.
    """

    def __init__(self, job: Job, lease: Lease, stack: ExitStack):
        self.job, self.pipeline, self.lease = job, job.pipeline, lease
        self.name = job.pipeline.pipeline
        self.source_dsn, self.target_dsn = job.conninfo("source"), job.conninfo("target")
        self._stack = stack
        self.source = self.session("source", "stage")
        self.target = self.source if self.pipeline.in_place else self.session("target", "stage")
        self.journal = Journal(self.target, self.name)
        self.journal.tables.keepers_of = self._keepers_of
        self._keepers = dict[tuple[int, str, str, bool], Keepers]()  # by oid and copy, and whether that is there
        self.tried: set[int] = set()  # DDL events that this run has tried to apply: once is enough for one run
        self.looked = False  # whether this run has looked at every table once
        self.compared = set[int]()  # tables that this run has compared to the end
        self.changed_again = set[int]()  # tables that changed once more while the last look read them again
        self.said_to_stay = set[Name]()  # sequences of the target that are no part of this run
        self.said_to_wait = set[str]()  # applications whose executors have been waited for
        self._once: dict[tuple[str, str], Session] = {}
        self.types: Mapping[int, str] = {}  # of the source, as the DDL shows them that is in the journal
        self.stream: KeptStream | None = None  # of the slot, where one is kept open
        ended = lease.terminate_stale(*{id(s): s for s in (self.source, self.target)}.values())
        if ended:
            say(job.stage, f"ended {ended} session(s) that an earlier run had left behind")

    @property
    def in_place(self) -> bool:
        return self.pipeline.in_place

    @property
    def beside(self) -> bool:
        return self.pipeline.beside

    def session(self, side: str, purpose: str) -> Session:
        """One more session of this run, closed with it."""
        return self._stack.enter_context(self.brief_session(side, purpose))

    def session_once(self, side: str, purpose: str) -> Session:
        """The same, kept for the next call with the same purpose."""
        if (side, purpose) not in self._once:
            self._once[side, purpose] = self.session(side, purpose)
        return self._once[side, purpose]

    @cached_property
    def looking(self) -> Session:
        """Whose transactions look at the source's schema at one snapshot. In place it is one of its own: `source` also
        writes the journal."""
        return self.session("source", "ddl") if self.in_place else self.source

    @cached_property
    def finishes(self) -> bool:
        """Whether the target has, or gets without a swap, what acts on writers and readers beside the rows: where the
        file says so, and where the run was born complete."""
        return self.pipeline.follow.finish or (self.pipeline.capture.ddl != "off" and self.row().born_of is not None)

    @property
    def moves_rows(self) -> bool:
        return self.pipeline.moves_rows

    def brief_session(self, side: str, purpose: str) -> Session:
        """The same for a `with` block, which closes it."""
        dsn = self.source_dsn if side == "source" else self.target_dsn
        return connect(dsn, purpose=purpose, pipeline=self.name, token=self.lease.token)

    def say(self, text: str) -> None:
        say(self.job.stage, text)

    def say_that_locks_are_waited_for(self, text: str) -> None:
        """With who holds the source's tables, in whatever way."""
        self.say(text + self._asked("source", lambda conn: holders(conn, self.name, TABLE_LOCKS)))

    def say_that_windows_wait(self) -> None:
        """How long one has been tried, and whom it waits for just now."""
        self.say(self.patience.so_far + self.in_front())

    def in_front(self) -> str:
        """Whom sessions of ours wait for, or who keeps them from a table that they would read: they ask for it without
        waiting. As the end of a sentence; '' for nobody."""

        def on_source(conn: Session) -> str:
            return waited_for(conn, self.name) or holders(conn, self.name, ["AccessExclusiveLock"])

        found = self._asked("source", on_source)
        if not found and not self.in_place:
            found = self._asked("target", lambda conn: waited_for(conn, self.name))
        return found

    def _asked(self, side: str, ask: Callable[[Session], str]) -> str:
        """Through a session of its own, whatever the others are doing; '' where that is not to be had."""
        with suppress(PgddlError, psycopg.Error), self.brief_session(side, "look") as conn:
            return ask(conn)
        return ""

    def look_at_owners_again(self) -> None:
        """Once DDL has come: a table may be another role's, or have code that it had not."""
        self._keepers.clear()

    def _keepers_of(self, rows: Sequence[TableRow]) -> Mapping[int, Keepers]:
        to_be_made = [(r.plan.copy_schema, r.plan.copy_name) for r in rows if r.state == "captured"]
        made = catalog.oids_of(self.target, to_be_made) if to_be_made else {}

        def key(row: TableRow) -> tuple[int, str, str, bool]:
            copy = (row.plan.copy_schema, row.plan.copy_name)
            return row.oid, *copy, row.state != "captured" or copy in made

        new = {row.id: (row.oid, row.plan) for row in rows if key(row) not in self._keepers}
        if new:
            found = foreign_code.look(self.source, self.target, new, self.pipeline.trusted_roles)
            removes = self.pipeline.tables.keep_extra is False
            self._keepers |= {
                key(row): replace(found[row.id], removes_extra=removes) for row in rows if row.id in found
            }
        kept = {row.id: self._keepers[key(row)] for row in rows}
        for row in rows:
            if row.state == "captured" and key(row)[-1]:  # its copy is only now being made: not its last owner
                self._keepers.pop(key(row), None)
        return kept

    def border(self, limits: Limits | None = None) -> Border:
        """Where this run stops while it is paused, or while the source is beyond the limits."""
        throttle = Throttling(self.source, limits) if limits else None
        return Border(Control(self.target, self.name), self.lease.token, throttle, self.say)

    @contextmanager
    def fenced(self, before_commit: str, table: TableRow | None = None) -> Iterator[None]:
        """A transaction on the target that commits only while this run's token is valid; `before_commit` is the name of
        the failpoint right before that."""
        with lease.fenced(self.target, self.fence(table), before_commit):
            yield

    def fence(self, table: TableRow | None = None) -> Fence:
        return self.lease.fence if table is None else self.lease.fence_for(table.qualified)

    def check_fence(self) -> None:
        """For work on the source across databases, where the journal cannot be in the same transaction."""
        lease.check(self.target, self.lease.fence)

    def row(self) -> PipelineRow:
        return self.journal.row()

    def tables(self) -> list[TableRow]:
        """This run's tables, limited to those that the job names, whatever their state."""
        tables = self.journal.tables.of(self.journal.run)
        if self.job.tables is None:
            return tables
        wanted = {table_name(t) for t in self.job.tables}
        unknown = wanted - {(t.schema, t.name) for t in tables}
        if unknown:
            schema, name = min(unknown)
            raise UsageError(f"{schema}.{name} is not a table of pipeline {self.name!r}", todo="see `pgddl status`")
        return [t for t in tables if (t.schema, t.name) in wanted]

    def table_names(self) -> dict[int, str]:
        """How a person calls the tables that this job is about, by their ids."""
        return {t.id: t.qualified for t in self.tables()}

    def adopted(self) -> list[TableRow]:
        """Those of all of this run's tables that the target had before."""
        return [t for t in self.journal.tables.of(self.journal.run) if t.plan.adopted]

    @cached_property
    def replica(self) -> Replica:
        """Sessions for windows: the snapshot's, the writer's (the same in place), and one that watches who waits."""
        row = self.row()
        source = self.session("source", "window")
        target = source if self.in_place else self.session("target", "window")
        receive = self.receive if self.pipeline.by_slot else None
        watcher = self.session("source", "watch")
        return Replica(self.name, row.run, source, target, watcher, self.lease.fence, self.in_place, receive,
                       types=lambda: self.types)  # fmt: skip

    @contextmanager
    def writers_fenced(self) -> Iterator[None]:
        """While no application writes to the source until a cut-over has happened, or not: whoever waits behind a
        window waits for that, or is refused after it, so windows insist, and give up soon where somebody is in front
        of them whom the fence itself keeps waiting."""
        patience = self.patience
        self.patience = Patience(FENCED_FOR, let_wait=max(self.pipeline.swap.lock_timeout, ASKED_FOR), insists=True)
        try:
            yield
        finally:
            self.patience = patience

    @contextmanager
    def tables_fenced(self) -> Iterator[None]:
        """While another session of this run holds all tables of the source in mode EXCLUSIVE."""
        replica = self.replica
        self.replica = replace(replica, fenced=True)
        try:
            yield
        finally:
            self.replica = replica

    @property
    def log_rows(self) -> int:
        """How many rows of each log a window takes at most."""
        return max(self.pipeline.replay.window_rows, LEAST_TAKEN)

    def part_of_log(self, effort: Effort) -> int:
        """The same, of one try: nearly always all of it, as long as nobody has been in the way of this run."""
        return max(self.log_rows, TAKEN_IN_PEACE) if self.patience.at_peace else effort.of(self.log_rows)

    @cached_property
    def patience(self) -> Patience:
        """That of all windows: how busy the tables are one learns from the one before."""
        return Patience(self.pipeline.ddl.retry_for, let_wait=self.pipeline.swap.lock_timeout)

    def receive(self) -> None:
        """See `slot_receiver.receive`."""
        receive(self)

    @property
    def logs(self) -> Logs:
        """The change logs as they are now."""
        return logs_now(self.pipeline, self.source, self.target)

    def block(self, stopped: Mapping[int, list[str]]) -> None:
        """Records why tables cannot go on; their log rows and chunks stay as they are, so nothing is lost by it."""
        by_id = {t.id: t for t in self.journal.tables.of(self.journal.run)}
        found = {i: [verdict.stopped(finding) for finding in findings] for i, findings in stopped.items()}
        with self.fenced("settle.before_block_commit"):
            self.journal.schema.record_many(
                {(by_id[i].schema, by_id[i].name): ("mismatch", f, None, (None, None)) for i, f in found.items()}
            )
        for table_id, findings in stopped.items():
            for finding in findings:
                self.say(f"{by_id[table_id].qualified} is blocked: {finding}")

    def healthy(self, tables: Sequence[TableRow], *states: str) -> list[TableRow]:
        """Those of the tables in one of these states that no mismatch blocks."""
        mismatches = self.journal.blocked_tables.mismatches()
        return [t for t in tables if t.qualified not in mismatches and (not states or t.state in states)]

    def result(self, state: str, tables: Mapping[str, Mapping[str, Any]] | None = None, **figures: Any) -> StageResult:
        """The stage's result; every blocked table among those that the job is about is named in it. In a job for the
        whole pipeline these are all: also what DDL that waits for a person is about, and new tables that nobody
        follows."""
        mine = None if self.job.tables is None else {t.qualified for t in self.tables()}
        blocked = [
            {"table": table, "reason": "; ".join(findings)}
            for table, findings in self.journal.blocked_tables.mismatches().items()
            if mine is None or table in mine
        ]
        return StageResult(self.job.stage, self.name, self.journal.run, state, tables or {}, blocked, figures)

    @cached_property
    def workers(self) -> int:
        """How many there are: as many as the pipeline says, and as both servers have connections for."""
        return workers_to_have(self.pipeline, self.source, self.target, self.say)

    @cached_property
    def spark(self) -> Settings:
        """How the stage deals with Spark's executors."""
        told = self.pipeline.spark
        return Settings(told.wait, told.needs, self.say)

    @cached_property
    def elsewhere(self) -> tuple[str, str]:
        """The connection strings of source and target as executors get them: where these have a password file, without
        a password."""
        return (
            for_executors(self.pipeline, "source", self.source_dsn),
            for_executors(self.pipeline, "target", self.target_dsn),
        )

    @property
    def trigger_names(self) -> tuple[str, ...]:
        return change_log.capture_names(self.name)


def workers_to_have(pipeline: Pipeline, source: Session, target: Session, say: Callable[[str], None]) -> int:
    """As many as the pipeline says, and as both servers have connections for, which is said where it is fewer."""
    wanted = pipeline.backfill.workers
    there = workers_with_room(wanted, source, target, in_place=pipeline.in_place)
    if there < wanted:
        say(f"{there} workers instead of {wanted}: the servers have no connections for more")
    return there


def worth_spreading(pipeline: Pipeline, parts: int, size: int) -> bool:
    """Whether this many parts with this many bytes in all are worth a SparkSession."""
    return parts > 1 and pipeline.backfill.workers > 1 and size > SPREAD_CHUNKS * pipeline.backfill.chunk_bytes


def patiently(context: Context, attempt: Callable[[], T]) -> T:
    """`attempt`, again and again while it gives way to others or loses a race that a new snapshot wins."""
    return _tried(Patience(context.pipeline.ddl.retry_for, context.say), lambda _: attempt())


def insistently(context: Context, attempt: Callable[[Effort], T]) -> T:
    """The same for what locks live tables for a while: with as much effort as the last ones have shown it to need."""

    def prepared(effort: Effort) -> T:
        if context.pipeline.by_slot and effort != POLITE:
            context.receive()  # what there is to read a try need not read under its locks
        return attempt(effort)

    context.patience.begin()
    with repeating("pgddl-waiting", SAY_EVERY, context.say_that_windows_wait):
        return _tried(context.patience, prepared)


def _tried(patience: Patience, attempt: Callable[[Effort], T]) -> T:
    while True:
        try:
            done = attempt(patience.effort)
        except GaveWay as error:
            patience.wait(error)
        except (pg.SerializationFailure, pg.DeadlockDetected) as error:
            patience.wait(GaveWay(str(error.diag.message_primary)))
        else:
            patience.succeeded()
            return done
