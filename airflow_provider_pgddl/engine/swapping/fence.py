"""The fence of a cut-over: it goes up on all tables at once and comes down on all at once; and it closes again what a
failover of the server that applications have left has opened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager

from airflow_provider_pgddl.engine.capture import fence
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.failover import has_lost_commits
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.preflight import what_a_fence_locks_out, what_passes_a_fence
from airflow_provider_pgddl.engine.preflight.findings import refuse
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.strong_locks import lock_all, with_tries, writers_wait
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("swap")


def to_be_fenced(source: Session, tables: Sequence[TableRow]) -> list[Name]:
    """The tables and, of partitioned ones, every part: a statement on a leaf does not fire its root's trigger."""
    found = list[Name]()
    for table in tables:
        tree = source.execute(_Q["partitions_of"], [table.oid]).fetchall()
        found += tree or [(table.schema, table.name)]
    return found


def raise_fences(context: Context, tables: Sequence[TableRow]) -> None:
    """All tables in one transaction: no application sees some of them closed and others open."""
    source = context.source

    def attempt() -> None:
        relations = to_be_fenced(source, tables)
        failpoint("cut_over.before_fence_lock", source)
        with writers_wait(), source.transaction():
            lock_all(source, relations, "SHARE ROW EXCLUSIVE", context.pipeline.swap.lock_timeout)
            passing = what_passes_a_fence(context.pipeline, source, [(t.schema, t.name) for t in tables])
            locked_out = what_a_fence_locks_out(context.pipeline, source, context.target)
            refuse([*passing, *locked_out], under_way=True)
            for relation in relations:
                fence.raise_fence(source, context.name, relation)
            context.check_fence()
            failpoint("cut_over.before_fence_commit", source)

    with_tries(context.pipeline.swap, "fence", attempt)


def stays(context: Context) -> list[Name]:
    """The tables of the source that a cut-over leaves closed."""
    closed = (t for t in context.tables() if t.keyless or context.pipeline.swap.fence == "read_only")
    return [(t.schema, t.name) for t in closed]


def close_again(context: Context, conn: Session, pipeline: str, tables: Collection[Name]) -> None:
    """Raises the fence that a pipeline's cut-over has raised on these tables where it does not stand: on a standby that
    was promoted without it, writes would go on, and once capture has ended nobody would see them."""
    swap = context.pipeline.swap

    def attempt() -> None:
        relations = fence.unfenced(conn, pipeline, tables)
        if relations:
            with writers_wait(), conn.transaction():
                lock_all(conn, relations, "SHARE ROW EXCLUSIVE", swap.lock_timeout)
                for relation in relations:
                    fence.raise_fence(conn, pipeline, relation)
                context.check_fence()
                failpoint("cut_over.before_closed_again_commit", conn)

    with_tries(swap, "fence", attempt)


def lower_left(context: Context) -> None:
    """A swap that was killed between its fence and its end has left applications without a place to write to: whatever
    runs next over all tables takes the fence down, before it waits for anything.

    Not so where commits of the target are lost, unless a swap is asked for: a cut-over may be among them, with
    applications that go on there. And no cleanup, which ends what the failover of a new server has left."""
    if context.in_place or context.job.tables is not None:
        return
    closed = set(fence.fenced(context.source, context.name))
    if not closed or closed.isdisjoint((t.schema, t.name) for t in context.journal.tables.of(context.journal.run)):
        return
    if context.row().cut_over_at is not None or context.job.stage == "cleanup":
        return
    if context.job.stage != "swap" and has_lost_commits(context):
        context.say("the fence of a swap stands on the source, and may be that of a cut-over: run stage verify first")
        return
    lower_own_fences(context, context.source, context.target, context.tables())
    context.say("a swap was killed behind its fence: that is down, and applications can write to the source again")


def lower_own_fences(context: Context, source: Session, target: Session, tables: Sequence[TableRow]) -> None:
    """As a run takes those of its tables down, which it knows without its session: that may have been ended by a newer
    run. Fenced where one has taken over: by now they may be those that its own cut-over stands on, which has drained
    behind them and asks for them no more.

    The token is looked at by each try, which holds it to its end; so the newer run waits for one try and not for all.
    Both sessions are there before that look. Should the target's be lost between it and the commit, whoever takes the
    token ends the source's before he does anything else."""
    lower_fences(source, context.pipeline, tables, lambda: lease.kept(target, context.fence()))


def lower_fences(
    source: Session,
    pipeline: Pipeline,
    tables: Sequence[TableRow] | None,
    held: Callable[[], AbstractContextManager[None]],
) -> None:
    """Takes the fences of these tables down, all in one transaction; None: all that the pipeline has raised, in
    whichever of its runs. Nothing happens where there are none. `held` is around each try, from before it asks for its
    locks."""
    name = pipeline.pipeline

    def standing() -> list[Name]:
        found = fence.fenced(source, name)
        return found if tables is None else [r for r in to_be_fenced(source, tables) if r in found]

    def attempt() -> None:
        with held(), writers_wait(), source.transaction():
            if relations := standing():
                lock_all(source, relations, "ACCESS EXCLUSIVE", pipeline.swap.lock_timeout)
            for relation in relations:
                fence.lower_fence(source, name, relation)
            failpoint("cut_over.before_fence_down_commit", source)

    if standing():
        with_tries(pipeline.swap, "lowering the fence", attempt)
