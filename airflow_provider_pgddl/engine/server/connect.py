"""The one way to open a connection: every setting that could change the meaning of a value or a name is pinned."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, LiteralString, Self
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from psycopg import AsyncConnection, Connection, conninfo, sql
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from airflow_provider_pgddl.engine.errors import PgddlError, PreflightRefused, Unreachable, from_postgres
from airflow_provider_pgddl.engine.secrets_in_text import without_secrets
from airflow_provider_pgddl.engine.server import credentials, encodings
from airflow_provider_pgddl.engine.server.password_file import why_without_password
from airflow_provider_pgddl.engine.server.pooler import shares_sessions

# How long a host is waited for that has gone without a word; a connection string's own wins. While an answer is waited
# for it is the keepalives that tell, for which a kernel's own times are hours.
NETWORK = {
    "connect_timeout": 10,  # seconds
    "tcp_user_timeout": 30_000,  # milliseconds
    "keepalives_idle": 10,  # seconds
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
OLDEST_MAJOR = 14
GRANTS_PARAMETERS = 150_000
# How often a statement is run before the client has its plan kept: never by itself, only where a caller asks for it.
BY_HAND = 1 << 30

# What both sides must agree on for text to mean the same, for names to resolve the same, and for a dead client to be
# noticed.
PINNED = {
    # Where code of others has left a type or a relation in our session, an empty one finds it before pg_catalog's.
    "search_path": "pg_catalog, pg_temp",
    "row_security": "off",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "standard_conforming_strings": "on",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "synchronous_commit": "on",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "client_connection_check_interval": "1s",
    # A host that has gone without a word holds its session's locks until the server notices; over a local socket these
    # do nothing.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "check_function_bodies": "off",
    "default_table_access_method": "heap",
    "default_tablespace": "",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    "xmloption": "content",
    "idle_session_timeout": "0",
    "jit": "off",
    "join_collapse_limit": "8",
    "constraint_exclusion": "off",  # else planning a query evaluates the CHECKs of partitions, whosever code they call
    "pgddl.skip": "on",
}

# What a server or PgBouncer says that takes nobody else just now.
FULL = ("too many clients", "too many connections", "remaining connection slots", "no more connections allowed")

# Sessions inside of `keeping_plans`.
_keeping: WeakSet[Session] = WeakSet()
# Sessions behind a pooler, whose greeting tells a number that it has made up, and the server's own number of each.
_backends: WeakKeyDictionary[Session, int] = WeakKeyDictionary()

# Joins in the order that questions to catalogs are written in: to look for a better one takes longer than the answer.
_KEEP_PLANS = (
    "SELECT pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', false),"
    " pg_catalog.set_config('join_collapse_limit', '1', false)"
)
_PLAN_EACH = (
    "SELECT pg_catalog.set_config('plan_cache_mode', 'auto', false),"
    " pg_catalog.set_config('join_collapse_limit', '8', false)"
)

Session = Connection[Any]
AsyncSession = AsyncConnection[Any]


class _Cursor(psycopg.Cursor[Any]):
    """One that goes on knowing the plans that it has had kept. A client forgets all of them at an ALTER, a DROP or a
    ROLLBACK, as what they are about may have gone, and has each made again: with DDL of ours between, one for each
    table. They are about catalogs and tables of ours; whether a plan still stands the server looks itself."""

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None, **options: Any) -> Self:
        threshold = self.connection.prepare_threshold
        if prepare or threshold == 0:
            return super().execute(query, params, prepare=prepare, **options)
        self.connection.prepare_threshold = None  # nothing is kept, and nothing forgotten
        try:
            return super().execute(query, params, **options)
        finally:
            self.connection.prepare_threshold = threshold


_OWN: dict[str, Any] = {"cursor_factory": _Cursor}
# Such a session knows only simple queries, into which the client writes the parameters.
_REPLICATION: dict[str, Any] = {"replication": "database", "cursor_factory": psycopg.ClientCursor}

# Only in the session that greeted us, where its number is given.
_PIN = sql.SQL("SELECT p.pid, {} FROM pg_catalog.pg_backend_pid() p(pid) WHERE p.pid = coalesce(%s, p.pid)")


def application_name(pipeline: str, token: int, purpose: str) -> str:
    """How our backends are known in pg_stat_activity, and found again by a run that takes over (63 bytes at most)."""
    return f"pgddl:{pipeline}:{token}:{purpose}"[:63]


def connect(dsn: str, *, purpose: str, pipeline: str = "", token: int = 0) -> Session:
    """A pinned autocommit session; its credential is as fresh as `credentials` says.

    Unreachable where no server answers, StageFailed where it refuses us.
    """
    name = application_name(pipeline, token, purpose)
    try:
        conn, real = credentials.opened(dsn, lambda now: psycopg.connect(now, **_options(now, name) | _OWN))
    except psycopg.Error as error:
        raise _not_opened(error, getattr(error, "pgddl_dsn", dsn)) from None
    credentials.remember(conn, dsn)
    encodings.fit(conn)
    dsn = real
    try:
        _refuse_old(conn.info, dsn)
        if not conn.execute(*_pins(conn.info, conn.info.backend_pid)).fetchall():
            _refuse_shared(conn, dsn)
            _pin_and_ask(conn)
    except psycopg.Error as error:
        conn.close()
        raise from_postgres(error, doing=f"opening a session on {describe_dsn(dsn)}") from None
    except BaseException:
        conn.close()
        raise
    return conn


def connect_replication(dsn: str, *, purpose: str, pipeline: str = "", token: int = 0) -> Session:
    """A session that speaks the replication protocol beside SQL, with the same pins, for values are printed by its
    settings; the errors of `connect`.

    No pooler is looked for: one that takes such a connection gives it a session of the server's own.
    """
    name = application_name(pipeline, token, purpose)
    try:
        conn, real = credentials.opened(dsn, lambda now: psycopg.connect(now, **_options(now, name) | _REPLICATION))
    except psycopg.Error as error:
        raise _not_opened(error, getattr(error, "pgddl_dsn", dsn)) from None
    credentials.remember(conn, dsn)
    dsn = real
    try:
        _refuse_old(conn.info, dsn)
        _pin_and_ask(conn)
    except psycopg.Error as error:
        conn.close()
        raise from_postgres(error, doing=f"opening a session on {describe_dsn(dsn)}") from None
    except BaseException:
        conn.close()
        raise
    return conn


async def connect_async(dsn: str, *, purpose: str, pipeline: str = "", token: int = 0) -> AsyncSession:
    """`connect` for an event loop, which it never blocks: the same pins, the same errors."""
    try:
        conn = await AsyncConnection.connect(dsn, **_options(dsn, application_name(pipeline, token, purpose)))
    except psycopg.Error as error:
        raise _not_opened(error, dsn) from None
    encodings.fit(conn)
    try:
        _refuse_old(conn.info, dsn)
        if not await (await conn.execute(*_pins(conn.info, conn.info.backend_pid))).fetchall():
            # A pooler; to find out whether it shares sessions takes connections, and blocks.
            await asyncio.to_thread(_open_and_close, dsn, purpose, pipeline, token)
            await conn.execute(*_pins(conn.info))
    except psycopg.Error as error:
        await conn.close()
        raise from_postgres(error, doing=f"opening a session on {describe_dsn(dsn)}") from None
    except BaseException:
        await conn.close()
        raise
    return conn


def pin(conn: Session) -> None:
    """Every setting as it was when the session was opened."""
    conn.execute(*_pins(conn.info))


def backend_pid(conn: Session) -> int:
    """The number that a session has in the server, by which pg_locks and pg_stat_activity know it; asks nothing."""
    return _backends.get(conn, conn.info.backend_pid)


def may_set(conn: Session, parameter: str) -> bool:
    """Whether the session may set a parameter of superusers."""
    return conn.execute("SELECT " + may_set_here(conn), [parameter]).fetchone() == (True,)


def may_set_here(conn: Session) -> LiteralString:
    """The same as an expression, whose argument is the parameter. From 15 on the right to one can be granted."""
    if conn.info.server_version >= GRANTS_PARAMETERS:
        return "pg_catalog.has_parameter_privilege(%s, 'SET')"
    return "(SELECT rolsuper AND %s <> '' FROM pg_catalog.pg_roles WHERE rolname = current_user)"


@contextmanager
def plans_kept(conn: Session) -> Iterator[None]:
    """Questions to the catalogs in this block are planned once a session, for the next such block to ask again:
    planning them takes longer than the answer, also while others wait for locks of ours."""
    threshold = conn.prepare_threshold
    if threshold == 0:  # inside of another such block, which goes on behind this one
        yield
        return
    conn.prepare_threshold = 0
    try:
        with keeping_plans(conn):
            yield
    finally:
        conn.prepare_threshold = threshold


@contextmanager
def keeping_plans(conn: Session) -> Iterator[None]:
    """Around several blocks of `plans_kept`, whose setting is made once for all of them. What else is asked in between
    is planned without its parameters, and its plan is not kept: short questions alone belong here."""
    if conn in _keeping:
        yield
        return
    _keeping.add(conn)
    try:
        conn.execute(_KEEP_PLANS)
        yield
    finally:
        _keeping.discard(conn)
        if conn.info.transaction_status in (TransactionStatus.IDLE, TransactionStatus.INTRANS):
            try:  # a failed transaction takes the setting along
                conn.execute(_PLAN_EACH)
            except pg.QueryCanceled:
                if conn.info.transaction_status == TransactionStatus.IDLE:
                    conn.execute(_PLAN_EACH)
                raise


def _pin_and_ask(conn: Session) -> None:
    row = conn.execute(*_pins(conn.info)).fetchone()
    assert row is not None
    _backends[conn] = row[0]


def _open_and_close(dsn: str, purpose: str, pipeline: str, token: int) -> None:
    connect(dsn, purpose=purpose, pipeline=pipeline, token=token).close()


def _options(dsn: str, name: str) -> dict[str, Any]:
    given = conninfo.conninfo_to_dict(dsn)
    return {
        "autocommit": True,
        "application_name": name,
        "fallback_application_name": None,
        "prepare_threshold": BY_HAND,
        **{key: value for key, value in NETWORK.items() if key not in given},
    }


def _pins(info: psycopg.ConnectionInfo, backend: int | None = None) -> tuple[bytes, list[int | None]]:
    pins = PINNED | ({"transaction_timeout": "0"} if info.server_version >= 170_000 else {})
    return _pinning(tuple(pins.items())), [backend]


@cache
def _pinning(pins: tuple[tuple[str, str], ...]) -> bytes:
    """One by one: a query over all of them takes a new session longer to plan than to run."""
    each = sql.SQL("pg_catalog.set_config({}, {}, false)")
    return _PIN.format(sql.SQL(", ").join(each.format(name, value) for name, value in pins)).as_string().encode()


def _refuse_old(info: psycopg.ConnectionInfo, dsn: str) -> None:
    """Before anything is set: an old server does not know our settings."""
    major = info.server_version // 10_000
    if major < OLDEST_MAJOR:
        raise PreflightRefused(
            f"{describe_dsn(dsn)} is Postgres {major}: {OLDEST_MAJOR} or newer is needed",
            todo="upgrade this server first",
        )


def _refuse_shared(conn: Session, dsn: str) -> None:
    """Before anything is set: through such a pooler our settings, and our locks, would end up with somebody else."""
    if shares_sessions(conn):
        raise PreflightRefused(
            f"{describe_dsn(dsn)} is a pooler in transaction mode, which hands every transaction to another session",
            todo="connect to the server itself, or to a pooler in session mode",
        )


def describe_dsn(dsn: str) -> str:
    """Host, port and database of a connection string: for messages; never its password."""
    try:
        parts = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return "(unreadable connection string)"
    return f"{parts.get('host') or 'local socket'}:{parts.get('port') or 5432}/{parts.get('dbname') or ''}"


def _not_opened(error: psycopg.Error, dsn: str) -> PgddlError:
    """libpq gives no SQLSTATE for a refused connection, so its words have to tell a wrong password from a dead
    server."""
    if isinstance(error, psycopg.ProgrammingError):
        return PgddlError("the connection string cannot be read (libpq's words are not shown: they repeat parts of it)")
    text = " ".join(without_secrets(str(error), dsn).split())
    where = describe_dsn(dsn)
    by_libpq = getattr(error, "pgconn", None)  # a server's own words may be in another language
    # Of several hosts it may tell nothing.
    if (by_libpq is not None and by_libpq.needs_password) or "no password supplied" in text:
        if found := why_without_password(dsn):
            return PreflightRefused(f"{where} demands a password, and {found[0]}", todo=found[1])
        return PgddlError(f"{where} refuses the connection: {text}", todo="give this connection a password")
    if any(words in text for words in FULL):
        todo = "lower backfill.workers, or let the server, the role or the pooler have more connections; then run again"
        return Unreachable(f"{where} has no connection left for us: {text}", todo=todo)
    final = {
        "certificate file": "correct the certificates of this connection: sslrootcert, sslcert",
        "password authentication failed": "correct the password of this connection",
        "no pg_hba.conf entry": "allow this user and host in pg_hba.conf",
        "does not exist": "correct user or database of this connection",
        "is not permitted to log in": "give the role LOGIN",
        "to start WAL sender": "give the role REPLICATION: ALTER ROLE … REPLICATION",
        "to start walsender": "give the role REPLICATION: ALTER ROLE … REPLICATION",  # 15 and older
    }
    for words, todo in final.items():
        if words in text:
            return PgddlError(f"{where} refuses the connection: {text}", todo=todo)
    if by_libpq is not None and by_libpq.used_password:
        todo = "where it does not take the password of this connection, correct that; then run again"
        return Unreachable(f"{where} gives no session: {text}", todo=todo)
    return Unreachable(
        f"{where} does not answer: {text}", todo="check that the server is up and reachable, then run again"
    )
