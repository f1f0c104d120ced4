"""The wall: statements that can reach code of a role we do not trust run as that role, where they cannot leave it.

SET ROLE is none, for a function takes it back. A SECURITY DEFINER function is: inside of it neither the role nor the
session's authorization can be changed (C28). It is made for one call, in the transaction that calls it: nobody else
can see it before that, let alone replace it, and nothing of theirs runs between its making and the call.

Code behind the wall shares our session. What it could leave there is taken away before the next statement of ours:
settings, prepared statements under our own names; or, temporary objects and deferred triggers, ends the transaction.
So does what it did elsewhere while we had triggers silenced."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.errors import GaveWay, LeftBehindTheWall
from airflow_provider_pgddl.engine.server.connect import Session, pin
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("wall")
_numbers = itertools.count(1)
NAME = "pgddl_wall_"


def run(conn: Session, role: str, *statements: str | sql.Composable, settings: Mapping[str, str] | None = None) -> int:
    """Runs statements as the role, one after the other, inside the caller's transaction; returns how many rows the last
    one was about. `settings` hold for them alone.

    The errors of the statements come up as they are. LeftBehindTheWall where code has left what could run as us."""
    executed = sql.SQL("\n    ").join(
        [
            *(
                sql.SQL("PERFORM pg_catalog.set_config({}, {}, true);").format(sql.Literal(name), sql.Literal(value))
                for name, value in (settings or {}).items()
            ),
            *(sql.SQL("EXECUTE {};").format(sql.Literal(_text(conn, statement))) for statement in statements),
        ]
    )
    body = sql.SQL(_Q["body"]).format(statements=executed).as_string(conn)
    with _made(conn, role, "make", body) as wall:
        row = conn.execute(sql.SQL(_Q["call"]).format(wall=wall)).fetchone()
    return int(row[0] or 0) if row else 0


def query(conn: Session, role: str, statement: str | sql.Composable, types: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows of a query as the role reads them; `types` are those of its columns, as SQL."""
    with rows(conn, role, statement, types) as relation:
        return conn.execute(sql.SQL("SELECT * FROM {}").format(relation)).fetchall()


@contextmanager
def rows(conn: Session, role: str, statement: str | sql.Composable, types: Sequence[str]) -> Iterator[sql.Composed]:
    """The same to select from, once, in the block: `COPY (SELECT * FROM {}) TO STDOUT`. Its columns are c1, c2, …"""
    text = sql.Literal(_text(conn, statement))
    body = sql.SQL(_Q["reader_body"]).format(query=text).as_string(conn)
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(f"c{n}"), sql.SQL(type_)) for n, type_ in enumerate(types, 1)
    )
    with _made(conn, role, "make_reader", body) as wall:
        yield sql.SQL("{}() AS t({})").format(wall, columns)


def _text(conn: Session, statement: str | sql.Composable) -> str:
    return statement if isinstance(statement, str) else statement.as_string(conn)


@contextmanager
def _made(conn: Session, role: str, kind: str, body: str) -> Iterator[sql.Identifier]:
    wall = sql.Identifier("pg_temp", f"{NAME}{next(_numbers)}_{secrets.token_hex(8)}")
    make = sql.SQL(_Q[kind]).format(wall=wall, body=sql.Literal(body))
    row = conn.execute(_Q["ourselves"]).fetchone()
    assert row is not None
    superuser, own, names, values = row
    if superuser:
        give = sql.SQL(_Q["give"]).format(wall=wall, role=sql.Identifier(role))
        conn.execute(sql.SQL("; ").join([make, give]))
    else:  # only superusers give away what the receiver may not make; nothing but this statement runs in its name
        become = sql.SQL("SELECT pg_catalog.set_config('role', {}, true)")
        steps = [become.format(sql.Literal(role)), make, become.format(sql.Literal(own))]
        conn.execute(sql.SQL("; ").join(steps))
    before = _silenced(conn) if "replica" in values else None
    try:
        yield wall
    finally:
        # They outlive a rollback, and code may have put others in the place of ours.
        conn._prepared.clear()
    row = conn.execute(_Q["home"]).fetchone()
    if row is not None and row[1] == "on":  # which nothing but a rollback takes back
        conn.execute(_Q["forget"])
        raise _left(role, "the transaction read-only")
    after = _silenced(conn) if before is not None else None
    conn.execute(sql.SQL("; ").join([sql.SQL(_Q["drop"]).format(wall=wall), sql.SQL(_Q["forget"])]))
    left = conn.execute(_Q["left"]).fetchone() or _deferred(conn) or _unseen(before, after)
    pin(conn)
    conn.execute(_Q["put_back"], [names, values])
    if left is not None:
        raise _left(role, f"{left[0]} in the session")


def _left(role: str, what: str) -> LeftBehindTheWall:
    return LeftBehindTheWall(
        f"code that runs as {role} has left {what}; nothing of it was committed",
        todo=f"change that code, or name the role in the pipeline file: trusted_roles: [{role}]",
    )


def _silenced(conn: Session) -> tuple[set[str], int | None]:
    row = conn.execute(_Q["silenced"]).fetchone()
    assert row is not None
    return set(row[0]), row[1]


def _unseen(before: tuple[set[str], int | None] | None, after: tuple[set[str], int | None] | None) -> tuple[str] | None:
    """What code has done while the replica role, which is for our own rows, has kept everybody's triggers from it."""
    if before is None or after is None:
        return None
    if written := sorted(after[0] - before[0]):
        return (f"rows in {written[0]} without the triggers and foreign keys of that table",)
    return ("DDL that no event trigger has seen",) if after[1] != before[1] else None


def _deferred(conn: Session) -> tuple[str] | None:
    """What has triggers that are still to fire. Nothing tells but that such a table cannot be altered."""
    for relation, column in conn.execute(_Q["may_be_deferred"]).fetchall():
        try:
            with conn.transaction(force_rollback=True):
                setting: sql.Composable = sql.SQL("RESET (fillfactor)")
                if column is not None:
                    setting = sql.SQL("ALTER COLUMN {} SET STATISTICS 100").format(sql.Identifier(column))
                conn.execute(sql.SQL("SET LOCAL lock_timeout = '1s'"))
                conn.execute(sql.SQL("ALTER TABLE {} {}").format(sql.SQL(relation), setting))
        except pg.ObjectInUse:
            return (f"a deferred trigger on {relation}",)
        except pg.LockNotAvailable:
            raise GaveWay(f"{relation} is being altered just now", todo="nothing: this part is tried again") from None
    return None
