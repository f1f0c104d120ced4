"""What the source says of a row that an expression of the pipeline file could not be evaluated for. It may hold a value
that is not to leave the source: not in a log, not in the journal, not in an error message."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import psycopg

from airflow_provider_pgddl.engine.errors import GONE_MEANWHILE

_Answer = TypeVar("_Answer")


def told_without_values(wordless: bool, ask: Callable[[], _Answer]) -> _Answer:
    """What the source answers. Its errors come as they are, or if `wordless` as errors of the same kind that have none
    of the server's words: neither its message, nor its details."""
    try:
        return ask()
    except psycopg.Error as error:
        if not wordless or _without_values(error):
            raise
        told = type(error)(
            f"an expression of tables.where or tables.transform failed on the source (SQLSTATE {error.sqlstate}); "
            "what the server says of it is in its own log alone, as it may hold a value of a row"
        )
    raise told  # behind the block, so that the server's own error does not hang on it


def _without_values(error: psycopg.Error) -> bool:
    """What the server says of locks, connections and resources, unless a function says it."""
    if error.diag.source_function == "exec_stmt_raise":
        return False
    gone = isinstance(error, psycopg.InternalError) and str(error).startswith(GONE_MEANWHILE)
    return gone or isinstance(error, psycopg.OperationalError)
