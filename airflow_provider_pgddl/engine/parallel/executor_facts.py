"""What an executor finds around it. Imports the standard library only: what is missing there it is to say."""

from __future__ import annotations

import platform
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

# What stages spread. Where these can be imported there, their tasks can run.
SPREAD = ("apply.index_build", "rows.chunks", "rows.fill", "rows.timed_comparison")


@dataclass(frozen=True, slots=True)
class AskedOfExecutor:
    """`dsns` are connection strings by the side that they lead to."""

    dsns: tuple[tuple[str, str], ...]
    pipeline: str


@dataclass(frozen=True, slots=True)
class Seen:
    """`clock` is the executor's, in seconds since the epoch; `unable` says what keeps a task from running there, each
    with what to do."""

    host: str
    python: str
    clock: float
    unable: tuple[tuple[str, str], ...]


def look(asked: AskedOfExecutor) -> Seen:
    """Runs in a Spark task."""
    unable = list(_packages()) or list(_routes(asked))
    version = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    return Seen(socket.gethostname(), version, time.time(), tuple(unable))


def _packages() -> Sequence[tuple[str, str]]:
    for name in SPREAD:
        try:
            import_module(f"airflow_provider_pgddl.engine.{name}")
        except ImportError as error:  # a compiled part of another Python is none that is missing
            what = f"lacks the Python package {error.name}" if error.name else f"cannot load a Python package: {error}"
            return [(what, "install it there, or let it travel: pgddl pack -o env.tar.gz, and spark.archives")]
    return []


def _routes(asked: AskedOfExecutor) -> Sequence[tuple[str, str]]:
    from airflow_provider_pgddl.engine.errors import PgddlError
    from airflow_provider_pgddl.engine.server.connect import connect

    found = []
    for side, dsn in asked.dsns:
        try:
            connect(dsn, purpose="check", pipeline=asked.pipeline).close()
        except PgddlError as error:
            found.append((f"does not get through to the {side}: {error.what}", error.todo or ""))
    return found
