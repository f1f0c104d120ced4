"""Connection strings as they travel: to executors, and to a driver elsewhere."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.job.file import End, Job
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.secrets_in_text import SECRET_KEYWORDS


def for_executors(pipeline: Pipeline, side: End, dsn: str) -> str:
    """A connection string as it passes to executors, and to a driver elsewhere. UsageError where they are to have
    passwords from a file, and it has another secret, for which such a file has no place."""
    file = pipeline.spark.secrets.file
    if file is None:
        return dsn
    parts = {key: value for key, value in conninfo_to_dict(dsn).items() if key != "password"}
    if secret := [keyword for keyword in SECRET_KEYWORDS if keyword in parts]:
        raise UsageError(
            f"the {side}'s {secret[0]} would have to travel to executors, and spark.secrets says that none does",
            todo="use a password, which stands in the file of spark.secrets; or let connection strings travel as they "
            "are, in client mode, encrypted and without spark.secrets",
        )
    return make_conninfo("", **{**parts, "passfile": file})


def executor_dsns(job: Job) -> list[tuple[str, str]]:
    """The connection strings of a job as they pass to executors, by side."""
    sides: tuple[End, ...] = ("source",) if job.pipeline.in_place else ("source", "target")
    return [(side, for_executors(job.pipeline, side, job.conninfo(side))) for side in sides]
