"""A clone of the source, in the same cluster, beside it."""

from __future__ import annotations

from psycopg import sql

from airflow_provider_pgddl.engine.capture.change_log import publication_name
from airflow_provider_pgddl.engine.capture.ddl_log import ddl_slot_name
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.journal.pipelines import PipelineRow
from airflow_provider_pgddl.engine.model.tables import Server
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries


def clone_beside(source: Session, name: str, now: Server, row: PipelineRow) -> UsageError | None:
    """The error where the source is another database of its server than the one that was set up, which is there as
    well: a clone of it, which knows all that the other one knows, and has rows of its own since. One that has taken its
    place is the source from then on."""
    if row.source_system != now.system or row.source_database in (None, now.database_oid):
        return None
    ours = [ddl_slot_name(name), publication_name(name)]
    found = source.execute(queries("catalog")["database_name"], [row.source_database]).fetchone()
    if found is None:
        return None
    return UsageError(
        f"the source, database {now.database!r}, is a clone beside the one that was set up, database {found[0]!r}",
        todo=f"point the source at {found[0]!r}; where the clone is to take its place, drop that one first. In a clone "
        f"that is to go on by itself, or that takes its place while {found[0]!r} is kept, this takes away what came "
        "along, the capture and journals of all pipelines; in the latter case `pgddl reset --source-gone` comes next",
        sql=sql.SQL("DROP SCHEMA pgddl CASCADE;\nDROP PUBLICATION IF EXISTS {};")
        .format(sql.SQL(", ").join(map(sql.Identifier, ours)))
        .as_string(),
    )
