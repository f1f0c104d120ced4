"""What the tests spread over Spark's workers; a module of its own, because workers import it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from uuid import uuid4

import psycopg

from airflow_provider_pgddl.engine.errors import GaveWay, StageFailed


def square(number: int) -> int:
    return number * number


def worker_pid(_: int) -> int:
    return os.getpid()


def fail(kind: str) -> str:
    """An error of each kind that a worker may meet."""
    match kind:
        case "final":
            raise StageFailed("the copy has a row too many", table="shop.orders", todo="reset it", sql="SELECT 1;")
        case "retryable":
            raise GaveWay("somebody waits for it", table="shop.orders")
        case "bug":
            raise ZeroDivisionError("a defect")
    return kind


def connect(conninfo: str) -> str:
    """What psycopg itself says of a server that is not there."""
    with psycopg.connect(conninfo) as connection:
        return connection.info.dbname


def begin_and_wait(folder: str) -> None:
    """Leaves a file of its own, and waits for one named `go on`."""
    Path(folder, f"begun {os.getpid()}").touch()
    while not Path(folder, "go on").exists():
        time.sleep(0.01)


def met_another(folder: str) -> bool:
    """Whether another one was under way within half a second."""
    mine = Path(folder, f"under way {uuid4()}")
    mine.touch()
    deadline = time.monotonic() + 0.5
    while not (met := len(list(Path(folder).iterdir())) > 1) and time.monotonic() < deadline:
        time.sleep(0.01)
    mine.unlink()
    return met


def die_once(mark: str) -> str:
    """Killed the first time, as by the OOM killer; well the second time."""
    path = Path(mark)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def sleep_in_postgres(conninfo: str) -> None:
    """A chunk that takes very long."""
    with psycopg.connect(conninfo, application_name="pgddl-test:worker", autocommit=True) as connection:
        connection.execute("SET client_connection_check_interval = '1s'")
        connection.execute("SELECT pg_sleep(600)")


def rows_of(part: dict[str, object]) -> object:
    """Of a part that holds more than it says."""
    return part["rows"]
