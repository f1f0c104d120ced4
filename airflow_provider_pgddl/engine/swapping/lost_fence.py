"""A fence that the old server has lost: by a failover to a state from before the cut-over, or by hand. Known to the way
back before it is raised again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_pgddl.engine.capture import fence
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.births import Births
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.swapping.fence import close_again, stays

LOST_FENCE = (
    "the old server had lost the fence of the cut-over, as by a failover to a state from before it: what had been "
    "committed there since may be missing, and what was written there meanwhile is nowhere else (the fence is up again)"
)


@contextmanager
def held_for(context: Context, pipeline: Pipeline) -> Iterator[Lease]:
    """The other pipeline for ourselves: its journal is on our source."""
    with Lease(context.source_dsn, pipeline.pipeline, "swap", None) as held:
        held.take(context.target_dsn)
        yield held


def close_behind(context: Context, name: str) -> None:
    """Where the old server was failed over to a state from before the fence: what was committed since is not there, and
    what was written there since is nowhere else. That has to be known before the fence is up again. `name`: of the way
    back."""
    tables = stays(context)
    found = Births(context.source, name).find()
    if found is not None and found.of == context.name and found.cut_over:
        return  # applications are back there
    if not fence.unfenced(context.source, context.name, tables):
        return
    if found is not None and found.of == context.name and not found.finished:
        pipeline = load_pipeline(Journal(context.source, name).row().config)
        with held_for(context, pipeline) as held:
            _note_lost_fence(Journal(context.source, name), held.fence)
    context.say(LOST_FENCE)
    close_again(context, context.source, context.name, tables)


def keep_closed(context: Context, of: str) -> None:
    """The same while the way back lives. What a person has made there in place of DDL is closed, too: nobody can have
    lost a fence that never stood."""
    tables = context.tables()
    if open_ones := set(fence.unfenced(context.target, of, [_copy(t) for t in tables])):
        since = context.journal.ddl_history.created(context.journal.run, [t.oid for t in tables])
        if open_ones & {_copy(t) for t in tables if t.oid not in since}:
            _note_lost_fence(context.journal, context.fence())
            context.say(LOST_FENCE)
        close_again(context, context.target, of, open_ones)


def _note_lost_fence(journal: Journal, held: lease.Fence) -> None:
    with lease.fenced(journal.conn, held, "way_back.before_lost_fence_commit"):
        journal.require_verify(LOST_FENCE)


def _copy(table: TableRow) -> Name:
    return table.plan.copy_schema, table.plan.copy_name
