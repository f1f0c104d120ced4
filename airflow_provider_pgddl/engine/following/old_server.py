"""The server that applications have left, while the way back to it lives: what DDL makes there is closed to writers as
all else is. A row of an application that has stayed behind would be overwritten by what comes back."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_pgddl.engine.capture import fence
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait


def kept_closed(context: Context, lock_timeout: float) -> Callable[[], None] | None:
    """To be called in the transaction of each event on the target, behind it: the tables of the pipeline, and their
    partitions, get the fence that they lack. None where the target is not such a server."""
    of, conn = context.row().born_of, context.target
    if of is None or not fence.fenced(conn, of):
        return None

    def close() -> None:
        mine = matches(context.pipeline, catalog.table_names(conn), strict=False).rows
        if open_ones := fence.unfenced(conn, of, mine):
            limit_lock_wait(conn, lock_timeout)
            for relation in open_ones:
                fence.raise_fence(conn, of, relation)

    return close
