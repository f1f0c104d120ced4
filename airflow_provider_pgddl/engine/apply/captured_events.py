"""Applies captured DDL events to the target: each as its client ran it, in one transaction with its bookkeeping, and
again while others hold what it has to lock (`ddl.lock_timeout`, `ddl.retry_for`)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import NoReturn

import psycopg
from psycopg import errors as pg

from airflow_provider_pgddl.engine.apply import concurrently
from airflow_provider_pgddl.engine.apply.as_client import Client, client_of, roles_of
from airflow_provider_pgddl.engine.apply.blockers import PATIENCE, Blockers
from airflow_provider_pgddl.engine.apply.concurrently import State, Work
from airflow_provider_pgddl.engine.apply.dump_events import refuse_locks_outside
from airflow_provider_pgddl.engine.apply.grant_from_refusal import missing_grant
from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.grants import map_roles
from airflow_provider_pgddl.engine.ddl.parse import start_of
from airflow_provider_pgddl.engine.ddl.roles import gifts, without_missing_roles
from airflow_provider_pgddl.engine.errors import PgddlError, Retry, StageFailed, from_postgres, remedy_for
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.ddl import Attempt, DdlJournal, DdlRow, EventStatus
from airflow_provider_pgddl.engine.journal.ddl_history import FOUND, WAS_THERE, DdlHistory
from airflow_provider_pgddl.engine.journal.lease import Fence
from airflow_provider_pgddl.engine.pipeline.model import Ddl, Pipeline
from airflow_provider_pgddl.engine.rights import foreign_code
from airflow_provider_pgddl.engine.rights.alter_as_owner import keeper_of
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("ddl_events")
THEIRS = "the target had a table of this name before, which stays as it is with its rows"
_FOUND = {pg.DuplicateTable.sqlstate, pg.DuplicateSchema.sqlstate, pg.DuplicateObject.sqlstate}
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between tries


def lock_timeout(ddl: Ddl) -> float:
    """Seconds that whoever comes after us waits behind us, and while those before us are being signalled."""
    if not ddl.lock_safe:
        return patience(ddl)
    return ddl.lock_timeout + (PATIENCE if ddl.signal_blockers != "off" else 0)


def patience(ddl: Ddl) -> float:
    """Seconds for what waits for others by nature, as CREATE INDEX CONCURRENTLY does: those of one try at least, also
    where there is one try only (retry_for 0)."""
    return max(ddl.retry_for, ddl.lock_timeout)


@dataclass(frozen=True, slots=True)
class EventOutcome:
    """What became of an event; `message` says why, where it was not simply applied."""

    status: EventStatus
    message: str | None = None

    @property
    def over(self) -> bool:
        """Nothing is left to be done for it."""
        return self.status in ("applied", "skipped", "resolved")


def apply_captured(
    conn: Session,
    watch: Callable[[], Session],
    pipeline: Pipeline,
    journal: DdlJournal,
    fence: Fence,
    row: DdlRow,
    *,
    trusted_on_source: Callable[[str], bool],
    powers_on_source: Callable[[str], Collection[str]],
    copies_only: bool = False,
    then: Callable[[], None] | None = None,
) -> EventOutcome:
    """Runs one captured event on the target as its client did, once, whatever ends us in the middle.

    `then` is called behind it, in its transaction. `watch` opens one more session on the target. Retry where it is
    worth another run: the event stays to be done.
    `trusted_on_source` is asked where the target lacks the client's role, and says whether our rights may stand in;
    `powers_on_source` where it may more on the target than most (`trust.powers`).
    """
    own = DdlJournal(conn, journal.pipeline, journal.run)  # the work and its bookkeeping commit together
    before = None
    if row.concurrently and not copies_only and row.status != "applying":
        before = _before(conn, own, row)  # looked at before it is said that we are at it: this is not our work
    with lease.fenced(conn, fence, "ddl.before_attempt_commit"):
        attempt = own.start_attempt(row.id)
    if attempt is None:
        return EventOutcome(own.row(row.id).status, "it is not to be applied any more")
    event = own.captured(row.id)
    blockers = Blockers(watch, pipeline.pipeline, row.id, pipeline.ddl.signal_blockers, pipeline.ddl.lock_timeout)
    run = _Run(conn, watch, pipeline, own, fence, row, attempt, event, blockers, copies_only, then)
    try:
        return run.until_done(trusted_on_source, powers_on_source, None if attempt.interrupted else before)
    except StageFailed as error:
        return run.failed(f"{error.what}; {error.todo}" if error.todo else error.what)


def _before(conn: Session, journal: DdlJournal, row: DdlRow) -> State | None:
    try:
        return concurrently.state_of(conn, concurrently.concurrent_work(row.statements[0], journal.captured(row.id)))
    except StageFailed:
        return None  # told when it is planned again


@contextmanager
def _what_is_there(conn: Session) -> Iterator[list[str]]:
    """Notes on what the server tells that it has not added or made, since there is such (IF NOT EXISTS)."""
    told: list[str] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.sqlstate == pg.DuplicateColumn.sqlstate:
            told.append(f"{WAS_THERE}: {diagnostic.message_primary}")
        elif diagnostic.sqlstate in _FOUND:
            told.append(f"{FOUND}: {diagnostic.message_primary}")

    conn.add_notice_handler(note)
    try:
        yield told
    finally:
        conn.remove_notice_handler(note)


@dataclass(frozen=True, slots=True)
class _Run:
    """One attempt at one event: as many tries as locks need."""

    conn: Session
    watch: Callable[[], Session]
    pipeline: Pipeline
    journal: DdlJournal
    fence: Fence
    row: DdlRow
    attempt: Attempt
    event: CapturedEvent
    blockers: Blockers
    copies_only: bool
    then: Callable[[], None] | None

    def until_done(
        self,
        trusted_on_source: Callable[[str], bool],
        powers_on_source: Callable[[str], Collection[str]],
        before: State | None,
    ) -> EventOutcome:
        ddl = self.pipeline.ddl
        if theirs := self._what_was_there():
            only = len(theirs) == len(self._changed())
            return self._skipped(THEIRS) if only else self.failed(f"of {len(theirs)} tables: {THEIRS}")
        roles = roles_of(self.conn)
        statements, notes = self._fitting(roles)
        if not statements:
            return self._skipped("; ".join(notes))
        client = client_of(self.conn, self.event, self.pipeline, roles, trusted_on_source, powers_on_source)
        client = replace(client, notes=(*client.notes, *notes))
        if self.copies_only and not client.behind_wall:
            client = replace(client, role=None)  # it has done it to the live table; the copy is ours until the swap
        concurrent = self.row.concurrently
        if concurrent and (self.copies_only or client.behind_wall or self._is_kept(client, statements)):
            statements, concurrent = [concurrently.plain(statement) for statement in statements], False
            if not self.copies_only and client.behind_wall:
                # What works in several transactions runs in no function, and SET ROLE keeps no code from being us.
                told = f"run without CONCURRENTLY, behind the wall: role {client.role} is not trusted"
                client = replace(client, notes=(*client.notes, told))
        work = None
        if concurrent:
            work = self._planned(statements)
            if before is not None and (wrong := work.taken(before)):
                return self.failed(wrong)
        resume = before is None
        deadline, pause = time.monotonic() + ddl.retry_for, FIRST_PAUSE
        while True:
            try:
                if work is None:
                    self._once(client, statements, roles)
                else:
                    self._once_concurrently(client, work, resume=resume)
                return EventOutcome("applied", "; ".join(client.notes) or None)
            except (pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure) as error:
                why = str(error.diag.message_primary)
            except pg.InsufficientPrivilege as error:
                return self._denied(error, client, statements)
            except psycopg.Error as error:
                if "tuple concurrently" not in str(error.diag.message_primary):  # two DDLs at one catalog row
                    return self._failed_by(error)
                why = str(error.diag.message_primary)
            resume = True
            if time.monotonic() + pause > deadline:
                self._put_off(why)
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _changed(self) -> set[int]:
        """The relations of the source that an ALTER TABLE or a DROP TABLE is about."""
        if self.row.tag == "DROP TABLE":
            gone = (d for d in self.event["dropped"] if d["original"] and d["type"] == "table")
            return {d["objid"] for d in gone}
        if self.row.tag == "ALTER TABLE":
            return {o["objid"] for o in self.event["objects"] if o["classid"] == "pg_class"}
        return set()

    def _what_was_there(self) -> set[int]:
        """Those that have the name of a table which the target had before, and which holds no rows of ours."""
        oids = self._changed()
        history = DdlHistory(self.conn, self.pipeline.pipeline)
        return history.found(self.journal.run, oids) if oids and not self.copies_only else set()

    def _is_kept(self, client: Client, statements: Sequence[str]) -> bool:
        """Whether it may plan code of a table's owner who is not trusted (DETACH PARTITION CONCURRENTLY)."""
        with self.conn.transaction():
            timeout = f"{max(1, round(patience(self.pipeline.ddl) * 1000))}ms"  # 0 would be none
            self.conn.execute(_Q["assume"], [True, ["lock_timeout"], [timeout]])
            return any(keeper_of(self.conn, each, client.trusted, client.path).role for each in statements)

    # --- one try ------------------------------------------------------------------------------------------------

    def _once(self, client: Client, statements: Sequence[str], roles: Collection[str]) -> None:
        """Work and bookkeeping in one transaction: whatever ends it, either both are there or neither."""
        with self.conn.transaction():
            with self.blockers.watch(self.conn), _what_is_there(self.conn) as there:
                with self._copies_open_to(client):
                    client.run(self.conn, statements, lock_timeout(self.pipeline.ddl))
            notes = [*client.notes, *there]
            if self.copies_only:
                refuse_locks_outside(self.conn, ";\n".join(statements))
            elif client.role is None:
                notes += self._give_away(roles)
            if self.then is not None:
                self.then()
            self.journal.finish_attempt(self.row.id, self.attempt, "applied", notes=notes)
            lease.check(self.conn, self.fence)
            failpoint("ddl.before_commit", self.conn)

    @contextmanager
    def _copies_open_to(self, client: Client) -> Iterator[None]:
        """In place the owner of a copy may make an index in its schema, in this transaction and no other: at any other
        time it could make there what has the name of somebody else's copy."""
        guest = client.role if self.copies_only and client.behind_wall else None
        schemas = [schema for (schema,) in self.conn.execute(_Q["closed_copies"], [guest])] if guest else []
        with ExitStack() as open_to:
            for schema in schemas:
                open_to.enter_context(foreign_code.may_make(self.conn, str(guest), schema))
            yield

    def _give_away(self, roles: Collection[str]) -> list[str]:
        """To its owner on the source what was made with our rights; returns what could not be given."""
        notes = []
        for kind, identity, statement in gifts(self.event, self.pipeline.ddl.other_roles, roles):
            if kind == "sequence" and self._follows_a_table(identity):
                continue
            try:
                with self.conn.transaction():
                    self.conn.execute(statement)
            except (pg.InsufficientPrivilege, pg.UndefinedObject, pg.UndefinedTable, pg.UndefinedFunction) as error:
                notes.append(f"{kind} {identity} stays ours: {error.diag.message_primary}")
        return notes

    def _follows_a_table(self, sequence: str) -> bool:
        row = self.conn.execute(_Q["owned_sequence"], [sequence]).fetchone()
        return bool(row and row[0])

    def _fitting(self, roles: Collection[str]) -> tuple[list[str], list[str]]:
        """(statements, notes): without the roles that the target lacks, or with others, where the pipeline says so."""
        missing_role = self.pipeline.ddl.missing_role
        if isinstance(missing_role, dict):
            return [map_roles(statement, missing_role) for statement in self.row.statements], []
        if missing_role != "ignore":
            return list(self.row.statements), []
        kept, notes = [], []
        for statement in self.row.statements:
            fitted, missing = without_missing_roles(statement, roles, self.event["role"])
            if fitted is not None:
                kept.append(fitted)
            if missing and fitted != statement:
                what = "left out" if fitted is None else "cut out"
                notes.append(f"{what}, the target has no role {', '.join(missing)}: {start_of(statement)}")
        return kept, notes

    # --- one try of what refuses a transaction --------------------------------------------------------------------

    def _planned(self, statements: Sequence[str]) -> Work:
        if len(statements) != 1:
            raise StageFailed("a statement that refuses a transaction has to be alone in its event")
        return concurrently.concurrent_work(statements[0], self.event)

    def _once_concurrently(self, client: Client, work: Work, *, resume: bool) -> None:
        """`resume`: an earlier try of ours may have left something, or may have been through."""
        done = False
        if resume:
            done = self._repaired(work, patience(self.pipeline.ddl))
        if not done:
            client.refuse(self.conn, work.statement, patience(self.pipeline.ddl))
            try:
                with self.watch() as session:
                    client.take_session(session, patience(self.pipeline.ddl))
                    failpoint("ddl.before_concurrently", session)
                    with self.blockers.watch(session):
                        session.execute(work.statement)
            except psycopg.Error as error:
                try:
                    done = self._repaired(work, self.pipeline.ddl.lock_timeout)
                except (psycopg.Error, PgddlError):  # mostly for the same reason, an old transaction
                    why = from_postgres(error, doing=f"applying {self.row.tag}").what
                    self._put_off(f"{why}, and the next run has to clear away what it left", status="applying")
                if not done:
                    raise
        with lease.fenced(self.conn, self.fence, "ddl.before_concurrently_commit"):
            self.journal.finish_attempt(self.row.id, self.attempt, "applied", notes=client.notes)

    def _repaired(self, work: Work, seconds: float) -> bool:
        """Clears away what is there in part; whether all is done by now."""
        with self.watch() as session:
            session.execute(_Q["assume"], [False, ["lock_timeout"], [f"{max(1, round(seconds * 1000))}ms"]])
            if concurrently.state_of(session, work) == "partial":
                failpoint("ddl.before_repair", session)
                with self.blockers.watch(session):
                    concurrently.repair(session, work)
            return concurrently.state_of(session, work) == "done"

    # --- the end of an attempt --------------------------------------------------------------------------------------

    def failed(self, message: str) -> EventOutcome:
        with lease.fenced(self.conn, self.fence, "ddl.before_failed_commit"):
            self.journal.finish_attempt(self.row.id, self.attempt, "failed", message)
        return EventOutcome("failed", message)

    def _failed_by(self, error: psycopg.Error) -> EventOutcome:
        remedy = remedy_for(error)
        ours = from_postgres(error, doing=f"applying {self.row.tag}")
        if self.conn.closed:
            raise ours from None  # `applying` stays: the next run finds out how it ended
        if remedy is not None and remedy.retryable:
            self._put_off(ours.what)
        hint = f" ({error.diag.message_hint})" if error.diag.message_hint else ""
        return self.failed(ours.what + hint)

    def _denied(self, error: pg.InsufficientPrivilege, client: Client, statements: Sequence[str]) -> EventOutcome:
        """Our own rights would do, and would be whoever's who can have this error raised."""
        if client.role is None or self.conn.closed:
            return self._failed_by(error)
        what = from_postgres(error, doing=f"applying {self.row.tag}").what
        grant = missing_grant(self.conn, client.role, error, statements)
        todo = f"on the target: {grant}" if grant else f"give role {client.role} the right to do it there,"
        return self.failed(f"{what}; {todo} then `pgddl ddl retry`")

    def _skipped(self, message: str) -> EventOutcome:
        with lease.fenced(self.conn, self.fence, "ddl.before_skipped_commit"):
            self.journal.finish_attempt(self.row.id, self.attempt, "skipped", message)
        return EventOutcome("skipped", message)

    def _put_off(self, why: str, status: EventStatus = "pending") -> NoReturn:
        blocked = str(self.blockers)
        message = f"{why}: {blocked}" if blocked else why
        with lease.fenced(self.conn, self.fence, "ddl.before_put_off_commit"):
            self.journal.put_off(self.row.id, self.attempt, message, status)
        table = next((".".join(name) for name in self.row.touches if all(name)), None)
        raise Retry(
            f"DDL event {self.row.id} ({self.row.tag}) could not be applied within "
            f"{patience(self.pipeline.ddl):.0f} s: {message}",
            table=table,
            todo="end what is in the way, or set ddl.signal_blockers; then run the stage again",
            sql=";\n".join(self.row.statements),
        )
