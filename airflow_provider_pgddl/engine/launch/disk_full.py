"""Whose disk is full: the server says which file, and that is all that it says."""

from __future__ import annotations

import re

import psycopg
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.engine.errors import PgddlError, StageFailed
from airflow_provider_pgddl.engine.job.file import End, Job
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.sql import queries

NO_SPACE = "No space left on device"
_Q = queries("disk_full")
_FILE = re.compile(r'"(?:base|pg_tblspc/(?P<space>\d+)/[^/"]+)/(?P<database>\d+)/(?P<node>\d+)')


def located(job: Job, error: PgddlError) -> PgddlError:
    """The same with server and table, where the file that could not grow is that of a table; what a killed statement
    was about to make has no name yet."""
    sides: tuple[End, ...] = ("source",) if job.pipeline.in_place else ("target", "source")
    found = {side: table for side in sides if (table := _table(job, side, error.what)) is not None}
    named = [side for side, table in found.items() if table] or list(found) or list(sides)
    servers = " or ".join(f"the {side}'s server, {_address(job.conninfo(side))}" for side in named)
    table = found.get(named[0]) if len(named) == 1 else None
    return StageFailed(
        error.what, table=table or error.table, todo=f"make room on the disk of {servers}; then run the stage again"
    )


def _table(job: Job, side: End, what: str) -> str | None:
    """The table of the file, '' for one without a name, None where the file is none of this side's database."""
    file = _FILE.search(what)
    if file is None:
        return None
    try:
        with connect(job.conninfo(side), purpose="disk full", pipeline=job.pipeline.pipeline) as conn:
            args = {key: int(value or 0) for key, value in file.groupdict().items()}
            row = conn.execute(_Q["table_of_file"], args).fetchone()
    except (psycopg.Error, PgddlError):
        return None
    return None if row is None else row[0] or ""


def _address(conninfo: str) -> str:
    parts = conninfo_to_dict(conninfo)
    return f"{parts.get('host') or 'local'}:{parts.get('port') or 5432}/{parts.get('dbname')}"
