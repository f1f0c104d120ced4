"""Whom the locks of a swap in place wait for, try after try: signalled where the pipeline asks for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from airflow_provider_pgddl.engine.apply.blockers import BlockersOfTries
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.server.connect import Session

# Nobody is signalled before: an application's own short transactions end by themselves.
LONG = 1.0  # seconds

BlockerWatch = Callable[[Session], AbstractContextManager[object]]


def blockers_signalled(context: Context) -> BlockerWatch:
    """For all tries of a stage; what it returns is called around the statements of each that take the locks."""
    swap = context.pipeline.swap
    if swap.signal_blockers == "off" or context.job.dry_run:
        return lambda _: nullcontext()
    session = context.session("source", "blockers")
    return BlockersOfTries(session, context.name, swap.signal_blockers, LONG, swap.lock_timeout).watch
