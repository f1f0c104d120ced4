"""A captured statement runs as the client ran it: its role, search_path and settings, without leaving a trace.

A client that we do not trust is behind the wall: its statements can run functions of its own, and one of those would
take SET ROLE back and be us (C28)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.parse import kind_of, parse, start_of, statement_node
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.rights import wall
from airflow_provider_pgddl.engine.rights.alter_as_owner import keeper_of
from airflow_provider_pgddl.engine.rights.index_code import refuse_built, refuse_index
from airflow_provider_pgddl.engine.rights.trust import powers, untrusted
from airflow_provider_pgddl.engine.server.connect import PINNED, Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("ddl_events")

MissingRole = Literal["ignore", "fail"] | dict[str, str]

# The source's word is taken for these and no others. Not check_function_bodies: the source has checked them, and what
# they name may be out of scope here.
# Nor standard_conforming_strings: statements are printed for it to be on.
_SETTINGS = {
    name.lower(): name
    for name in ("TimeZone", "DateStyle", "IntervalStyle", "default_tablespace", "default_table_access_method",
                 "xmloption")
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Client:
    """As whom a session runs the statements of one event; role None: with our own rights."""

    role: str | None
    settings: Mapping[str, str]
    notes: tuple[str, ...] = ()
    behind_wall: bool = False
    trusted: tuple[str, ...] = ()
    """The pipeline's trusted_roles."""
    path: tuple[str, ...] = ()
    """Where names without a schema are looked for."""

    def run(self, conn: Session, statements: Sequence[str], lock_timeout: float) -> None:
        """In the transaction that is open, where we are ourselves again afterwards."""
        values = self._values(lock_timeout)
        if self.behind_wall:
            assert self.role is not None
            wall.run(conn, self.role, *statements, settings=values)
            for statement in statements:
                refuse_built(conn, statement, self.trusted, partial(self._seen, conn, values))
            return
        for statement in statements:
            _set(conn, {"lock_timeout": values["lock_timeout"]}, local=True)
            # The table's owner may have put code there that it has not where the client looked.
            keeper = keeper_of(conn, statement, self.trusted, self.path)
            if keeper.coded and keeper.role:
                wall.run(conn, keeper.role, statement, settings=values)
                continue
            seen = partial(self._seen, conn, values)
            refuse_index(conn, statement, self.trusted, seen)
            with seen():
                conn.execute(statement)
            refuse_built(conn, statement, self.trusted, seen)

    @contextmanager
    def _seen(self, conn: Session, values: Mapping[str, str]) -> Iterator[None]:
        """As the client, for statements of its own; behind it what we write ourselves means what it says."""
        own = own_role(conn)
        self._become(conn, values, local=True)
        yield
        _set(conn, {"role": own} | {name: PINNED[name] for name in values}, local=True)

    def refuse(self, conn: Session, statement: str, lock_timeout: float) -> None:
        """StageFailed for a statement that `take_session` is not for."""
        refuse_index(conn, statement, self.trusted, partial(self._seen, conn, self._values(lock_timeout)))

    def take_session(self, conn: Session, lock_timeout: float) -> None:
        """For a session that nobody uses for anything else, and a client that is trusted with it."""
        assert not self.behind_wall
        self._become(conn, self._values(lock_timeout), local=False)

    def _values(self, lock_timeout: float) -> dict[str, str]:
        return {**self.settings, "lock_timeout": f"{max(1, round(lock_timeout * 1000))}ms"}

    def _become(self, conn: Session, values: Mapping[str, str], *, local: bool) -> None:
        _set(conn, values if self.role is None else {**values, "role": self.role}, local=local)


def _set(conn: Session, values: Mapping[str, str], *, local: bool) -> None:
    conn.execute(_Q["assume"], [local, list(values), list(values.values())]).fetchall()


def own_role(conn: Session) -> str:
    """The role that our sessions have taken on, as SET ROLE takes it: mostly none."""
    row = conn.execute(_Q["own_role"]).fetchone()
    assert row is not None
    return str(row[0])


# What runs no code of anybody, for which SET ROLE is enough: REVOKE is a GrantStmt as well.
_ABOUT_RIGHTS = ("GrantStmt", "AlterDefaultPrivilegesStmt")


def may_become(conn: Session, role: str) -> bool:
    """Whether SET ROLE would be let through."""
    privilege = "SET" if conn.info.server_version >= 160_000 else "MEMBER"
    row = conn.execute("SELECT pg_catalog.pg_has_role(%s::name, %s)", [role, privilege]).fetchone()
    return row == (True,)


def run_as(conn: Session, role: str | None, statement: str) -> None:
    """One statement of ours, or one about rights in the name of a role, inside the caller's transaction."""
    if role is None:
        conn.execute(statement)
        return
    if kind_of(statement_node(parse(statement))) not in _ABOUT_RIGHTS:
        raise ValueError(f"only behind the wall may this run as {role}: {start_of(statement)}")
    own = own_role(conn)
    conn.execute("SELECT pg_catalog.set_config('role', %s, true)", [role])
    conn.execute(statement)
    conn.execute("SELECT pg_catalog.set_config('role', %s, true)", [own])


def roles_of(conn: Session) -> set[str]:
    return {name for (name,) in conn.execute(_Q["roles"])}


def client_of(
    conn: Session,
    event: CapturedEvent,
    pipeline: Pipeline,
    roles: Collection[str],
    trusted_on_source: Callable[[str], bool],
    powers_on_source: Callable[[str], Collection[str]],
) -> Client:
    """StageFailed where its role is missing and has to be there: also where `missing_role` does not ask for it, if
    what it makes is not to be ours, that is, code that others trust. And where it could do on the target what it cannot
    on the source: it has never asked for that, and has written what runs."""
    missing_role: MissingRole = pipeline.ddl.missing_role
    given = {_SETTINGS[k.lower()]: v for k, v in event["settings"].items() if k.lower() in _SETTINGS}
    settings = {"search_path": _path(event["path"]), **given}
    notes: list[str] = []
    for name, absent in _absent(conn, given):
        notes.append(f"{name} {absent} is not on the target: the default was taken")
        del settings[name]
    mapping = pipeline.ddl.other_roles
    role = mapping.get(event["role"], event["role"])
    trusted, path = tuple(pipeline.trusted_roles), tuple(event["path"])
    if role in roles:
        _refuse_more(conn, role, event["role"], trusted_on_source, powers_on_source)
        behind_wall = bool(untrusted(conn, [role], pipeline.trusted_roles))
        if not behind_wall and not may_become(conn, role):  # a superuser, where we are none: we may do less than it
            note = f"role {role} is not ours to take: run with our own rights"
            return Client(None, settings, (*notes, note), trusted=trusted, path=path)
        return Client(role, settings, tuple(notes), behind_wall, trusted, path)
    if missing_role == "ignore" and trusted_on_source(role):
        note = f"the target has no role {role}: run with our own rights"
        return Client(None, settings, (*notes, note), trusted=trusted, path=path)
    create = sql.SQL("CREATE ROLE {};").format(sql.Identifier(role)).as_string()
    todo = f"on the target: {create} or map it in ddl.missing_role"
    if missing_role == "ignore":
        todo += ", or name it in trusted_roles (what it makes is ours then)"
    raise StageFailed(f"the target has no role {role}", todo=todo, sql=create)


def _refuse_more(
    conn: Session,
    role: str,
    client: str,
    trusted_on_source: Callable[[str], bool],
    powers_on_source: Callable[[str], Collection[str]],
) -> None:
    has = powers(conn, [role]).get(role, set())
    if not has or trusted_on_source(client):
        return
    powers_there = {power.replace(sql.Identifier(client).as_string(), "") for power in powers_on_source(client)}
    more = sorted(power for power in has if power.replace(sql.Identifier(role).as_string(), "") not in powers_there)
    if more:
        take = " ".join(more)
        raise StageFailed(
            f"role {role} may do on the target what {client} may not on the source, and would do it by this",
            todo=f"on the target: {take} or set trusted_roles: [{client}]",
            sql=take,
        )


def _path(schemas: Sequence[str]) -> str:
    """pg_catalog is searched first unless it is named, and nobody's temporary objects are ours."""
    kept = [schema for schema in schemas if not schema.startswith("pg_temp_")]
    if kept[:1] == ["pg_catalog"]:
        kept = kept[1:]
    return sql.SQL(", ").join(map(sql.Identifier, kept)).as_string()


def _absent(conn: Session, settings: Mapping[str, str]) -> list[tuple[str, str]]:
    names = ("default_tablespace", "default_table_access_method")
    args = {"tablespace": settings.get(names[0], ""), "method": settings.get(names[1], "heap")}
    row = conn.execute(_Q["unknown_settings"], args).fetchone()
    assert row is not None
    return [(name, absent) for name, absent in zip(names, row, strict=True) if absent is not None]
