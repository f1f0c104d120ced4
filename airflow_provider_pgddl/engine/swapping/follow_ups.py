"""What is run once a swap or its revert has committed, without holding anybody up: foreign keys are validated, views
filled, tables analyzed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import psycopg
from psycopg import errors as pg

from airflow_provider_pgddl.engine.ddl.node_names import added_constraints
from airflow_provider_pgddl.engine.ddl.parse import kind_of, parse, relation, statement_node
from airflow_provider_pgddl.engine.ddl.subject import subject_of
from airflow_provider_pgddl.engine.errors import LeftBehindTheWall, StageFailed, remedy_for
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.rights.alter_as_owner import alter
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.server.strong_locks import with_tries
from airflow_provider_pgddl.engine.sql import queries


@dataclass(frozen=True, slots=True)
class FollowedUp:
    """How many statements were run, and those that are left to a person, as `StageResult.blocked` has them."""

    done: int
    left: tuple[dict[str, str], ...]

    def noted(self, result: StageResult) -> StageResult:
        return replace(result, blocked=[*result.blocked, *self.left])


def follow_up(context: Context) -> FollowedUp:
    """What is left if this is killed, the next run does, and cleanup waits for it. A statement that fails whoever runs
    it again (a foreign key that rows violate) is left to a person, and keeps neither the others nor cleanup from going
    on; a run that a person starts tries it once more."""
    run_no, journal = context.journal.run, context.journal
    done, left = 0, list[dict[str, str]]()
    for waiting in journal.follow_ups.left(run_no):
        statement = waiting.statement

        def attempt(statement: str = statement, failed: str | None = waiting.failed) -> str | None:
            with context.fenced("swap.before_follow_up_commit"):
                limit_lock_wait(context.target, context.pipeline.swap.lock_timeout)
                try:
                    with context.target.transaction():
                        _refuse_unproven(context, statement)
                        alter(context.target, statement, context.pipeline.trusted_roles)
                except (StageFailed, psycopg.Error) as error:
                    if not _is_final(error):
                        raise
                    if failed is None or left or not isinstance(error, (pg.UndefinedObject, pg.UndefinedTable)):
                        journal.follow_ups.set_failed(run_no, statement, _why(error))
                        return _why(error)
                    # What it was about is gone since it failed: that is a person's answer to it.
                journal.follow_ups.set_done(run_no, statement)
            return None

        why = with_tries(context.pipeline.swap, "finishing the swap", attempt)
        if why is None:
            done += 1
            context.say(statement)
            continue
        left.append({"table": _table(statement), "reason": f"{why}; correct that, then: {statement};"})
        context.say(f"not done: {statement}: {why}")
    return FollowedUp(done, tuple(left))


def _refuse_unproven(context: Context, statement: str) -> None:
    """A partitioned table adopts its partitions' foreign keys without a look at a row, if they are valid; one that is
    not it would check while it keeps writers out, only to fail in the end."""
    node = statement_node(parse(statement))
    for constraint in added_constraints(node) if kind_of(node) == "AlterTableStmt" else ():
        args = [*relation(node.relation), constraint.conname]
        if found := context.target.execute(queries("swap")["unproven_partition"], args).fetchone():
            raise StageFailed(
                f"foreign key {written(constraint.conname)} is NOT VALID on its partition {written(*found)}"
            )


def _is_final(error: StageFailed | psycopg.Error) -> bool:
    if isinstance(error, StageFailed):
        return not isinstance(error, LeftBehindTheWall)
    remedy = remedy_for(error)
    return remedy is None or not remedy.retryable


def _why(error: StageFailed | psycopg.Error) -> str:
    """The detail of a violated foreign key names the key; others may hold a whole row, which is nobody's to log."""
    if isinstance(error, StageFailed):
        return error.what
    detail = error.diag.message_detail if isinstance(error, pg.ForeignKeyViolation) else None
    kept = "the foreign key stays NOT VALID: " if isinstance(error, pg.ForeignKeyViolation) else ""
    return kept + ": ".join(filter(None, (error.diag.message_primary or str(error), detail))).rstrip(".")


def _table(statement: str) -> str:
    subject = subject_of(parse(statement))
    return ".".join(subject.table or (subject.schema or "", subject.name or ""))
