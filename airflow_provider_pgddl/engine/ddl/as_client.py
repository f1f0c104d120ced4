"""A captured statement runs as the client ran it: its role, search_path and settings, without leaving a trace."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from psycopg import sql

from airflow_provider_pgddl.engine.connect import PINNED, Session
from airflow_provider_pgddl.engine.ddl.captured import CapturedEvent
from airflow_provider_pgddl.engine.errors import StageFailed
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
    """What a session takes on for one event; role None: our own rights."""

    role: str | None
    settings: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def as_ourselves(self, why: str) -> Client:
        return replace(self, role=None, notes=(*self.notes, why))

    def become(self, conn: Session, lock_timeout: float, *, local: bool) -> None:
        """For the transaction that is open, or (not local) for the session."""
        values = {**self.settings, "lock_timeout": f"{max(1, round(lock_timeout * 1000))}ms"}
        if self.role is not None:
            values["role"] = self.role
        _set(conn, values, local=local)

    def leave(self, conn: Session, role: str) -> None:
        """Ourselves again, within the transaction: what we write ourselves means what it says."""
        restored = {name: PINNED[name] for name in (*self.settings, "lock_timeout")}
        _set(conn, {"role": role, **restored}, local=True)


def _set(conn: Session, values: Mapping[str, str], *, local: bool) -> None:
    conn.execute(_Q["assume"], [local, list(values), list(values.values())]).fetchall()


def own_role(conn: Session) -> str:
    """The role that our sessions have taken on, as SET ROLE takes it: mostly none."""
    row = conn.execute(_Q["own_role"]).fetchone()
    assert row is not None
    return str(row[0])


def run_as(conn: Session, role: str | None, statement: str) -> None:
    """One statement in the name of a role (None: our own), inside the caller's transaction."""
    if role is None:
        conn.execute(statement)
        return
    own = own_role(conn)
    conn.execute("SELECT pg_catalog.set_config('role', %s, true)", [role])
    conn.execute(statement)
    conn.execute("SELECT pg_catalog.set_config('role', %s, true)", [own])


def roles_of(conn: Session) -> set[str]:
    return {name for (name,) in conn.execute(_Q["roles"])}


def client_of(conn: Session, event: CapturedEvent, missing_role: MissingRole, roles: Collection[str]) -> Client:
    """StageFailed where its role is missing and has to be there."""
    given = {_SETTINGS[k.lower()]: v for k, v in event["settings"].items() if k.lower() in _SETTINGS}
    settings = {"search_path": _path(event["path"]), **given}
    notes: list[str] = []
    for name, absent in _absent(conn, given):
        notes.append(f"{name} {absent} is not on the target: the default was taken")
        del settings[name]
    mapping = missing_role if isinstance(missing_role, dict) else {}
    role = mapping.get(event["role"], event["role"])
    if role in roles:
        return Client(role, settings, tuple(notes))
    if missing_role != "ignore":
        raise StageFailed(
            f"the target has no role {role}",
            todo="create it there, or map it in ddl.missing_role",
            sql=sql.SQL("CREATE ROLE {};").format(sql.Identifier(role)).as_string(),
        )
    return Client(None, settings, (*notes, f"the target has no role {role}: run with our own rights"))


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
