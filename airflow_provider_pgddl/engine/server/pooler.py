"""Whether a pooler hands the server's session to others between our transactions.

Locks, settings and temporary tables of ours live as long as a session. In transaction mode each transaction may get
another one, and what we set in it would go on to other clients: so this is asked before anything is set, over
connections that set nothing.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

import psycopg
from psycopg import Connection, pq

from airflow_provider_pgddl.engine.errors import Unreachable

CONNECT_TIMEOUT = 10
# As many of a pooler's idle connections as others may be handed before ours comes round (round robin; it is the first
# where the newest is handed out first, which is PgBouncer's default).
TRIES = 5

# Poolers in session mode that have been asked, by host, port, database and user: one answer holds for a process.
_dedicated: set[tuple[str, int, str, str]] = set()


def shares_sessions(conn: Connection[Any]) -> bool:
    """True for a pooler in transaction or statement mode; Unreachable where it has no room to find out. `conn` is idle
    and in autocommit.

    Of a direct connection the backend is the one that greeted us, whose number no pooler can know.
    """
    if conn.info.transaction_status != pq.TransactionStatus.IDLE:
        return False
    ours = _backend(conn)
    info = conn.info
    place = (info.host, info.port, info.dbname, info.user)
    if ours == info.backend_pid or place in _dedicated:
        return False
    compared = False
    with ExitStack() as stack:
        for _ in range(TRIES):
            try:
                other = psycopg.connect(
                    info.dsn,
                    password=info.password or None,
                    autocommit=True,
                    connect_timeout=CONNECT_TIMEOUT,
                    application_name="pgddl:pooler",
                    prepare_threshold=None,
                )
                stack.callback(_let_go, other)
                theirs = _backend(other)
            except psycopg.OperationalError as error:
                _refuse_unknown(conn, ours, compared, error)
                break  # the pool is used up, and nobody was given ours
            try:
                other.execute("BEGIN")
                held = _backend(other)
            except psycopg.Error:
                return True  # statement mode takes no BEGIN
            if ours in (theirs, held) or _backend(conn) != ours:
                return True
            compared = True
    _dedicated.add(place)
    return False


def _refuse_unknown(conn: Connection[Any], ours: int, compared: bool, error: psycopg.Error) -> None:
    """A pool that is used up may be so by whoever was given our session, which is then not ours now."""
    with suppress(psycopg.OperationalError):
        if compared and _backend(conn) == ours:
            return
    primary = error.diag.message_primary or " ".join(str(error).split())
    raise Unreachable(
        f"it cannot be told whether the pooler shares sessions: no second one was to be had ({primary})",
        todo="let the pooler have more connections, then run again; a pipeline needs some for each of its workers",
    )


def _backend(conn: Connection[Any]) -> int:
    row = conn.execute("SELECT pg_catalog.pg_backend_pid()").fetchone()
    return int(row[0]) if row else 0


def _let_go(conn: Connection[Any]) -> None:
    """The transaction is ended first: a pooler throws a connection away that is left inside one."""
    with suppress(psycopg.Error):
        conn.execute("ROLLBACK")
    conn.close()
