"""The GRANT that a role lacks on the target, as the server's refusal tells it.

Code of the role may raise the same error with any words it likes, and a person is going to run what we say. So the
words count only where the server says them about the statement itself, not about something that a function did."""

from __future__ import annotations

import re
from collections.abc import Sequence

import psycopg
from psycopg import sql

from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("grant_from_refusal")

_RELATIONS = ("table", "view", "materialized view", "foreign table", "sequence", "index", "relation")
_KINDS = dict.fromkeys(_RELATIONS, "relation") | {
    "schema": "schema",
    **dict.fromkeys(("function", "procedure", "routine", "aggregate"), "routine"),
    **dict.fromkeys(("type", "domain"), "type"),
}
# What is needed of what is no part of a schema, and is called by its name alone.
_WHOLE = {
    "database": "CREATE ON DATABASE",
    "tablespace": "CREATE ON TABLESPACE",
    "language": "USAGE ON LANGUAGE",
    "foreign server": "USAGE ON FOREIGN SERVER",
    "foreign-data wrapper": "USAGE ON FOREIGN DATA WRAPPER",
}
_THING = f"({'|'.join(sorted([*_KINDS, *_WHOLE], key=len, reverse=True))}) (.+)"
_DENIED = re.compile(f"permission denied for {_THING}")
_NOT_OWNER = re.compile(f"must be owner of {_THING}")
_NOT_MEMBER = re.compile(r'must be (?:able to SET ROLE|member of role) "(.+)"')
_BY_THE_WALL = re.compile(
    r'(?:SQL statement "(.*)"\n)?PL/pgSQL function pg_temp_\d+\.pgddl_wall_\w+\(\) line \d+ at EXECUTE', re.DOTALL
)
_NOT_OURS = re.compile(r'permission denied to set role "(.+)"')
_TEMPORARY = re.compile(r'permission denied to create temporary tables in database "(.+)"')


def missing_grant(conn: Session, role: str, error: psycopg.Error, statements: Sequence[str]) -> str | None:
    """The SQL for the target; None where the error does not tell."""
    said = error.diag.message_primary or ""
    if not error.diag.context and (found := _NOT_OURS.fullmatch(said)):
        row = conn.execute("SELECT current_user::text").fetchone()
        return _sql("GRANT {} TO {};", found[1], str(row and row[0]))
    statement = _refused(error, statements)
    if statement is None:
        return None
    if found := _NOT_MEMBER.fullmatch(said):
        return _sql("GRANT {} TO {};", found[1], role)
    if found := _TEMPORARY.fullmatch(said):
        return _sql("GRANT TEMPORARY ON DATABASE {} TO {};", found[1], role)
    if found := _NOT_OWNER.fullmatch(said):
        return _owner(conn, role, found[1], found[2], statement)
    if found := _DENIED.fullmatch(said):
        return _privilege(conn, role, found[1], found[2], statement)
    return None


def _refused(error: psycopg.Error, statements: Sequence[str]) -> str | None:
    """The statement that the server itself refused."""
    context = error.diag.context or ""
    if not context and len(statements) == 1:
        return statements[0]
    found = _BY_THE_WALL.fullmatch(context)
    # Where the server points at a word, the statement is told apart from the context.
    told = (found[1] if found[1] is not None else error.diag.internal_query) if found else None
    return told if told in statements else None


def _privilege(conn: Session, role: str, kind: str, name: str, statement: str) -> str | None:
    if kind in _WHOLE:
        return _sql(f"GRANT {_WHOLE[kind]} {{}} TO {{}};", name, role)
    if kind == "schema":
        args = {"schema": name, "role": role}
        lacking = [privilege for (privilege,) in conn.execute(_Q["lacking_on_schema"], args)]
        if not statement.upper().startswith("CREATE"):
            lacking = lacking[:1]  # whoever makes something there needs both, others mostly USAGE alone
        return _sql(f"GRANT {', '.join(lacking)} ON SCHEMA {{}} TO {{}};", name, role) if lacking else None
    things = _things(conn, role, kind, name, statement)
    if len(things) != 1:
        return None
    needed = {"routine": "EXECUTE ON ROUTINE", "type": "USAGE ON TYPE"}.get(_KINDS[kind], "USAGE ON SEQUENCE")
    if _KINDS[kind] == "relation" and kind != "sequence":
        words = statement.upper().split()
        needed = f"{next((w for w in ('TRIGGER', 'REFERENCES') if w in words), 'SELECT')} ON TABLE"
    return f"GRANT {needed} {things[0][0]} TO {_quoted(role)};"


def _owner(conn: Session, role: str, kind: str, name: str, statement: str) -> str | None:
    things = _things(conn, role, kind, name, statement)
    owners = {(owner, ours) for _, _, owner, ours in things}
    if len(owners) != 1:
        return None
    ((owner, ours),) = owners
    if not ours:
        return _sql("GRANT {} TO {};", owner, role)
    # Nobody is to be a member of a superuser, or of our own role, for the sake of a table.
    return f"ALTER {things[0][1]} {things[0][0]} OWNER TO {_quoted(role)};" if len(things) == 1 else None


def _things(conn: Session, role: str, kind: str, name: str, statement: str) -> list[tuple[str, str, str, bool]]:
    """Of this name in the statement, but for what is the role's own."""
    if kind not in _KINDS:
        return []
    found = conn.execute(_Q["named_in_an_error"], [_KINDS[kind], name.rpartition(".")[2], statement])
    return [thing for thing in found if thing[2] != role]


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string()


def _sql(text: str, *names: str) -> str:
    return sql.SQL(text).format(*map(sql.Identifier, names)).as_string()
