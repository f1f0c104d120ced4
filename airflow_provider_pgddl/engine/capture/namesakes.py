"""Pipelines of one name that meet in a database: one comes there, the other goes on from there.

Sessions of ours, change logs, slots and publications are known by the pipeline's name and the database that they are
in. Each of the two would end the other's sessions, and take its logs for its own."""

from __future__ import annotations

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.journal.births import Births
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries


def namesake(source: Session, target: Session, pipeline: str) -> str | None:
    """What is wrong with a pipeline of this name from this source to this target, two databases: there is another one
    that comes to the source, or begins at the target, and is under way. What another role has made there meets
    nothing of ours."""
    if _may_read(target, "capture") and change_log.journal_of(target, pipeline) is not None:
        return f"database {catalog.server(target).database!r} is the source of another pipeline {pipeline!r} already"
    found = Births(source, pipeline).find() if _may_read(source, "births") else None
    if found is not None and not found.finished:
        return f"database {catalog.server(source).database!r} is the target of another pipeline {pipeline!r} already"
    return None


def refuse_namesake(source: Session, target: Session, pipeline: str) -> None:
    if what := namesake(source, target, pipeline):
        raise UsageError(
            f"{what}: each would end the other's sessions, and take its change logs for its own",
            todo="give this pipeline another name; where both are under way, `pgddl reset` this one first",
        )


def _may_read(conn: Session, kind: str) -> bool:
    return conn.execute(queries(kind)["may_read"]).fetchone() == (True,)
