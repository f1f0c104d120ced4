"""How long a lock is waited for: whoever comes after us queues behind us for as long. And who is in front of us."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from airflow_provider_pgddl.engine.server.connect import Session, application_name, may_set_here
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("catalog")
_waits: ContextVar[list[float]] = ContextVar("waits")
# Beside whatever is looked for among the processes.
PREPARED = "SELECT gid, owner, prepared FROM pg_prepared_xacts ORDER BY 3;"
_SHOWN = 100  # characters of a statement
# Where values may begin, in quotes or in parentheses, or another statement.
_VALUES = re.compile(r"['$;(]")


def limit_lock_wait(conn: Session, seconds: float) -> None:
    """For the caller's transaction: no lock is waited for any longer, so nobody queues behind us any longer.

    The server cancels an autovacuum that somebody waits for, but only after `deadlock_timeout`, which is longer than
    we wait: it goes on for hours, and no try would ever get its lock. So that is shortened, too, where our role may."""
    wait = max(2, round(seconds * 1000))
    shorten = f"CASE WHEN {may_set_here(conn)} THEN pg_catalog.set_config('deadlock_timeout', %s, true) END"
    args = [f"{wait}ms", "deadlock_timeout", f"{min(wait // 2, 1000)}ms"]
    conn.execute(f"SELECT pg_catalog.set_config('lock_timeout', %s, true), {shorten}", args)


@contextmanager
def waits_measured() -> Iterator[list[float]]:
    """Collects, in milliseconds, for how long others may have waited for us each time."""
    found: list[float] = []
    token = _waits.set(found)
    try:
        yield found
    finally:
        _waits.reset(token)


def note_waits(seconds: Iterable[float]) -> None:
    """Others have waited for so long each."""
    _waits.get([]).extend(each * 1000 for each in seconds)


def holders(conn: Session, pipeline: str, modes: Sequence[str]) -> str:
    """Who holds the pipeline's tables on the source in one of these modes, as the end of a sentence; '' for nobody."""
    args = {"pipeline": pipeline, "modes": list(modes), "ours": _ours(pipeline)}
    return _in_front(conn.execute(_Q["holders"], args).fetchall())


def waited_for(conn: Session, pipeline: str) -> str:
    """Whom our sessions on this side wait for, in the same way."""
    return _in_front(conn.execute(_Q["waited_for"], {"ours": _ours(pipeline)}).fetchall())


def _ours(pipeline: str) -> str:
    return application_name(pipeline, 0, "").removesuffix("0:")


def _in_front(found: Sequence[tuple[int | None, str | None, str | None]]) -> str:
    shown = [process_shown(pid, query) if pid is not None else prepared_shown([gid or ""]) for pid, query, gid in found]
    return f"; in front: {', '.join(shown)}" if shown else ""


def prepared_shown(gids: Sequence[str]) -> str:
    """How a person finds, and ends, what is no process."""
    names = ", ".join(repr(gid) for gid in gids) or "(unknown)"
    return f"prepared transaction {names}, which no signal ends: COMMIT PREPARED or ROLLBACK PREPARED it"


def process_shown(pid: int, query: str | None) -> str:
    """How a person finds it."""
    words = statement_shown(query or "")
    return f"process {pid} ({words})" if words else f"process {pid}"


def statement_shown(query: str) -> str:
    """Of a statement only what has no values of rows in it."""
    words = " ".join(_VALUES.split(query, maxsplit=1)[0].split())
    return re.sub(r"\b\d+\b", "?", words)[:_SHOWN]
