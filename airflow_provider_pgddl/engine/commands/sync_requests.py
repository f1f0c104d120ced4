"""A request for schema sync: a person asks for the SQL that is shown, and the next stage runs it under its lease, if it
is still the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_pgddl.engine.apply.target_alterations import Alterations, TablePlan
from airflow_provider_pgddl.engine.commands.schema import plan_sync
from airflow_provider_pgddl.engine.errors import Fenced, PgddlError, Retry, UsageError
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.ddl import follow_ddl
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.actions import Actions
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.server.connect import connect

DONE = "done"
CHANGED = "not done: the SQL is not what was shown any more"
NOTHING_LEFT = "nothing is left to do"


@dataclass(frozen=True, slots=True)
class ShownSync:
    """What would align a table of the target, and the digest to ask for it by."""

    table: str
    statements: Sequence[str]
    digest: str


def shown(pipeline: Pipeline, source_dsn: str, target_dsn: str, tables: Sequence[str]) -> list[ShownSync]:
    """Of these tables, those that our statements alone align: what is left out is for a person."""
    plans = plan_sync(pipeline, source_dsn, target_dsn, tables) if tables else []
    return [ShownSync(plan.table, plan.statements, _digest(plan)) for plan in plans if _is_whole(plan)]


def ask(pipeline: Pipeline, source_dsn: str, target_dsn: str, table: str, digest: str, who: str) -> None:
    """UsageError where that is not what would be done now."""
    now = {one.table: one for one in shown(pipeline, source_dsn, target_dsn, [table])}
    if table not in now or now[table].digest != digest:
        raise UsageError("the SQL is not what was shown any more", todo="look at it again, then ask for that")
    with connect(target_dsn, purpose="control", pipeline=pipeline.pipeline) as target, target.transaction():
        journal = Journal(target, pipeline.pipeline)
        row = journal.lock()
        if row.cut_over_at is not None or row.finished_at is not None:
            raise UsageError("the run is past its swap, and no stage aligns anything any more")
        journal.actions.request(who, table, digest, now[table].statements)
        failpoint("sync.before_request_commit", target)


def settle(context: Context) -> None:
    """Sees to the requests that wait: a table's statements are run as the policy's are, in one transaction. What could
    not be locked in time waits for the next stage; everything else has its outcome."""
    actions = Actions(context.target, context.name)
    follow_ddl(context)  # what was captured brings its own statements, and no request runs them before
    for request in actions.requests():
        try:
            outcome = _see_to(context, request.table, request.digest)
        except Fenced:
            raise
        except Retry as error:
            context.say(f"{request.table}: the schema sync that {request.who} has asked for waits: {error}")
            continue
        except PgddlError as error:
            outcome = f"not done: {error}"
        context.say(f"{request.table}: the schema sync that {request.who} has asked for: {outcome}")
        with context.fenced("sync.before_ended_commit"):
            actions.end(request.id, outcome)


def _see_to(context: Context, table: str, digest: str) -> str:
    row = context.row()
    if row.cut_over_at is not None or row.finished_at is not None:
        return "not done: the run is past its swap"
    plans = plan_sync(context.pipeline, context.source_dsn, context.target_dsn, [table])
    if not plans:
        return NOTHING_LEFT
    (plan,) = plans
    if not _is_whole(plan) or _digest(plan) != digest:
        return CHANGED
    Alterations(
        context.pipeline, context.target_dsn, context.target, signals=True, say=context.say, fence=context.fence()
    ).apply(plan)
    return DONE


def _is_whole(plan: TablePlan) -> bool:
    return bool(plan.steps) and not plan.left_out


def _digest(plan: TablePlan) -> str:
    return hashlib.sha256(json.dumps([plan.table, *plan.statements]).encode()).hexdigest()
