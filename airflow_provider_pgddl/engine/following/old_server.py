"""The server that applications have left, while the way back to it lives: what DDL makes there is closed to writers as
all else is. A row of an application that has stayed behind would be overwritten by what comes back."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_pgddl.engine.apply.captured_events import lock_timeout
from airflow_provider_pgddl.engine.capture import fence
from airflow_provider_pgddl.engine.journal.ddl_rows import DdlRow
from airflow_provider_pgddl.engine.journal.pipelines import PipelineRow
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait

MAKE_OR_MOVE_TABLES = {"CREATE TABLE", "CREATE TABLE AS", "SELECT INTO", "ALTER TABLE", "CREATE SCHEMA", "ALTER SCHEMA"}


def kept_closed(pipeline: Pipeline, row: PipelineRow, conn: Session) -> Callable[[DdlRow], None] | None:
    """To be called in the transaction of each event on the target, behind it: the tables of the pipeline that it is
    about, and their partitions, get the fence that they lack. None where the target is not such a server."""
    of = row.born_of
    if of is None or not fence.fenced(conn, of):
        return None

    def close(event: DdlRow) -> None:
        if event.tag not in MAKE_OR_MOVE_TABLES:
            return
        mine = matches(pipeline, catalog.table_names(conn), strict=False).rows
        if event.tag not in ("CREATE SCHEMA", "ALTER SCHEMA"):
            roots = catalog.partitions(conn)
            about = {roots.get(name, name) for name in event.touches}
            mine = [name for name in mine if name in about]
        if open_ones := fence.unfenced(conn, of, mine):
            limit_lock_wait(conn, lock_timeout(pipeline.ddl))
            for relation in open_ones:
                fence.raise_fence(conn, of, relation)

    return close
