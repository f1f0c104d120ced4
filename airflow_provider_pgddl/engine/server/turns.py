"""Runs over different tables of one pipeline, which take turns at what concerns them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg

from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("turns")

ASK_EVERY = 0.1  # seconds
SAY_EVERY = 10.0  # seconds


@contextmanager
def one_at_a_time(session: Session, what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock of this name for the block, in a session that is in no transaction; where that is lost, so is the
    lock. Whose turn it is so long, it may `say`.

    It is asked for again and again: who waits inside of a statement has a snapshot, for whose end a CREATE INDEX
    CONCURRENTLY waits, of the very run that has the lock; and the server knows of no deadlock among three sessions of
    which two are idle."""
    said = time.monotonic()
    while session.execute(_Q["try"], [what]).fetchone() != (True,):
        if time.monotonic() - said >= SAY_EVERY:
            said = time.monotonic()
            if front := session.execute(_Q["in_front"], [what]).fetchone():
                say(f"waiting for another run, which is at it: session {front[0]} of the server ({front[1]})")
        time.sleep(ASK_EVERY)
    try:
        yield
    finally:
        with suppress(psycopg.OperationalError):
            session.execute(_Q["end"], [what])
