"""Tables that a change has sent back, or that come late: through the stages that all others have passed already."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from airflow_provider_pgddl.engine.errors import Retry, UsageError
from airflow_provider_pgddl.engine.following.ddl import captures_ddl
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.server import catalog

LATE_TRIES = 5  # for a new table that DDL changes again and again before it can be taken in
_BEFORE = {"backfill": ("created",), "schema_sync": ("created", "backfilled")}


def late(context: Context) -> list[TableRow]:
    """New tables that captured DDL has made on the target already, and that the next look takes in."""
    if context.pipeline.replaces:
        return []
    captured = context.healthy(context.tables(), "captured") if captures_ddl(context) else []
    if context.pipeline.tables.existing == "adopt":  # what the target had before waits for a snapshot
        captured = [t for t in captured if context.journal.ddl_history.has_made(context.journal.run, t.oid)]
    there = (catalog.oid_of(context.target, t.plan.copy_schema, t.plan.copy_name) for t in captured)
    return [t for t, oid in zip(captured, there, strict=True) if oid is not None]


def not_yet(context: Context, *states: str) -> list[TableRow]:
    """The tables that a person has to take through an earlier stage first."""
    coming = {t.id for t in late(context)}
    return [t for t in context.healthy(context.tables(), *states) if t.id not in coming]


def bring_late(context: Context, *stages: str) -> None:
    """Takes tables through the stages that they have not passed, where the others have."""
    run_no = context.journal.run
    for stage in stages:
        behind = context.healthy(context.tables(), *_BEFORE[stage])
        if behind and context.journal.stage_runs.finished(run_no, stage):
            context.say(f"{', '.join(t.qualified for t in behind)}: {stage} first")
            import_module(f"airflow_provider_pgddl.engine.stages.{stage}").run(context)


def refuse_waiting(context: Context, waiting: Sequence[TableRow], before: str, what: str) -> NoReturn:
    """UsageError where a stage was left out, and Retry where it was not, but DDL comes faster than we follow it."""
    first = next((t for t in waiting if t.state == "captured"), waiting[0])
    stage = "snapshot" if first.state == "captured" else before
    run_no = context.journal.run
    # One that DDL has made has no copy under its name only while its next change is being followed.
    late = first.state == "captured" and context.journal.ddl_history.has_made(run_no, first.oid)
    if late or (first.state != "captured" and context.journal.stage_runs.finished(run_no, before)):
        raise Retry(f"{what}: DDL has changed it again and again", table=first.qualified, todo="run the stage again")
    raise UsageError(f"{first.qualified} {what}", todo=f"run stage {stage} first")
