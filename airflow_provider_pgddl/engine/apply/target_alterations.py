"""Statements on tables of the target, with locks as captured DDL takes them: a person's `sync`, and the policy's.

On a table whose owner is not trusted they run as the owner, behind the wall: they read its rows, through types, casts
and CHECKs that are the owner's code."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.apply.blockers import Blockers
from airflow_provider_pgddl.engine.apply.captured_events import lock_timeout
from airflow_provider_pgddl.engine.apply.grant_from_refusal import missing_grant
from airflow_provider_pgddl.engine.errors import GaveWay, PgddlError, StageFailed, from_postgres, remedy_for
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.lease import Fence
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.rights import wall
from airflow_provider_pgddl.engine.rights.alter_as_owner import alter
from airflow_provider_pgddl.engine.rights.trust import untrusted
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.server.giving_way import Patience
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("ddl_events")


@dataclass(frozen=True, slots=True)
class Alteration:
    """What one finding's fix is for, in words, and its statements. `changed` asks for a row whose value they would
    change: where there is one, nothing is done."""

    what: str
    statements: tuple[str, ...]
    changed: sql.Composed | None = None


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What would align one table of the target with the source, and what is `left_out`, each with its reason. `name`
    and `owner` are those on the target."""

    table: str
    name: Name
    steps: tuple[Alteration, ...]
    left_out: tuple[str, ...]
    owner: str
    owned: bool

    @property
    def statements(self) -> list[str]:
        """Each once: two columns may lack the same type."""
        return list(dict.fromkeys(statement for step in self.steps for statement in step.statements))


class Alterations:
    """Runs plans on the target, one after the other."""

    def __init__(
        self, pipeline: Pipeline, target_dsn: str, target: Session, *, signals: bool, say: Callable[[str], None],
        fence: Fence | None = None,
    ) -> None:  # fmt: skip
        """`fence`: that of the run that this is a part of; a person's command has none."""
        self._fence = fence
        self._pipeline, self._dsn, self._target, self._say = pipeline, target_dsn, target, say
        # Every signal is recorded before it is sent, and without a journal there is nowhere to.
        self._signal = pipeline.ddl.signal_blockers if signals else "off"

    def apply(self, plan: TablePlan) -> None:
        """All of a plan or nothing. StageFailed where it cannot be done, Retry where a lock was not to be had."""
        if not plan.owned:
            row = self._target.execute("SELECT current_user::text").fetchone()
            raise StageFailed(
                f"role {row[0] if row else ''} may not alter it: its owner is {plan.owner}",
                table=plan.table,
                todo=f"let {plan.owner}, or a member of that role, run this on the target",
                sql="\n".join(plan.statements),
            )
        failpoint("schema.before_alterations", self._target)
        for step in plan.steps:
            self._say(f"[INFO] {step.what}")
        strange = untrusted(self._target, [plan.owner], self._pipeline.trusted_roles)
        as_owner = plan.owner if strange else None
        ddl = self._pipeline.ddl
        blockers = Blockers(self._session, self._pipeline.pipeline, None, self._signal, ddl.lock_timeout)
        patience = Patience(ddl.retry_for, self._say)
        while True:
            began = time.monotonic()
            try:
                return self._once(plan, blockers, as_owner)
            except (pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure) as error:
                in_the_way = f": {blockers}" if str(blockers) else ""
                why = GaveWay(f"{error.diag.message_primary}{in_the_way}", table=plan.table)
                patience.wait(why, time.monotonic() - began)
            except psycopg.Error as error:
                raise self._failed(plan, error, as_owner) from None

    def _once(self, plan: TablePlan, blockers: Blockers, as_owner: str | None) -> None:
        timeout = f"{max(1, round(lock_timeout(self._pipeline.ddl) * 1000))}ms"
        with self._target.transaction():
            self._target.execute(_Q["assume"], [True, ["lock_timeout"], [timeout]])
            with blockers.watch(self._target):
                for step in plan.steps:
                    *first, last = step.statements  # what comes first makes the type
                    for statement in first:
                        self._make(statement, as_owner)
                    if step.changed is not None:
                        self._refuse_change(plan, step.changed, as_owner)
                    self._run(last, as_owner)
            if self._fence is not None:
                lease.check(self._target, self._fence)
            failpoint("schema.before_alterations_commit", self._target)

    def _run(self, statement: str, as_owner: str | None) -> None:
        """What it brings may be the owner's code as well: a default that the source's owner wrote."""
        if as_owner is None:
            alter(self._target, statement, self._pipeline.trusted_roles)
        else:
            wall.run(self._target, as_owner, statement)

    def _make(self, statement: str, as_owner: str | None) -> None:
        """Unless it is there by now: another column or table may have lacked it as well, or somebody was faster."""
        with suppress(pg.DuplicateObject, pg.UniqueViolation), self._target.transaction():
            self._run(statement, as_owner)

    def _refuse_change(self, plan: TablePlan, changed: sql.Composed, as_owner: str | None) -> None:
        """Under the lock that the statement needs in any case, so that no value comes in between."""
        self._target.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(*plan.name)))
        if as_owner is None:
            found = self._target.execute(changed).fetchone() is not None
        else:
            found = bool(wall.query(self._target, as_owner, changed, ["boolean"]))
        if found:
            raise StageFailed(
                "a value that the target has would change with the column's type; the table is as it was",
                table=plan.table,
                todo="see what the target is to keep, then run this with --force",
                sql="\n".join(plan.statements),
            )

    def _failed(self, plan: TablePlan, error: psycopg.Error, as_owner: str | None) -> PgddlError:
        remedy = remedy_for(error)
        if remedy is not None and remedy.retryable:
            return from_postgres(error, doing="aligning the target's schema", table=plan.table)
        # What the server says of a value shows it.
        said = "values in it do not fit" if isinstance(error, psycopg.DataError) else error.diag.message_primary
        grant = None
        if as_owner is not None and isinstance(error, pg.InsufficientPrivilege):
            grant = missing_grant(self._target, as_owner, error, plan.statements)
        possible = f"run {grant}" if grant else "make the statements possible"
        return StageFailed(
            f"{said} (SQLSTATE {error.sqlstate}, while altering the target); the table is as it was",
            table=plan.table,
            todo=f"{possible} on the target, then run this again",
            sql="\n".join(plan.statements),
        )

    def _session(self) -> Session:
        return connect(self._dsn, purpose="schema watch", pipeline=self._pipeline.pipeline)
