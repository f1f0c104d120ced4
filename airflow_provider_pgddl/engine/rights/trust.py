"""Whose code may run with our rights: superusers', our own role's and its members', and that of the pipeline's
`trusted_roles`."""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("rights")


def untrusted(conn: Session, roles: Collection[str], trusted: Collection[str]) -> set[str]:
    """Which of these roles of the server are not trusted; `trusted` are those that the pipeline names."""
    if not roles:
        return set()
    return {name for (name,) in conn.execute(_Q["untrusted"], [sorted(roles), list(trusted)])}


def powers(conn: Session, roles: Collection[str]) -> dict[str, set[str]]:
    """What these roles of the server may do that others may not, beyond what belongs to them, as SQL takes it away;
    those that may nothing of the kind are left out."""
    found: dict[str, set[str]] = {}
    for role, power in conn.execute(_Q["powers"], [sorted(roles)]).fetchall() if roles else ():
        found.setdefault(role, set()).add(power)
    return found


def more(there: Session, here: Session, roles: Collection[str], trusted: Collection[str]) -> dict[str, set[str]]:
    """Of roles that are not trusted here, and are there by the same name: what they may there and not here."""
    strange = untrusted(here, roles, trusted)
    known = powers(here, strange)
    found = {role: has - known.get(role, set()) for role, has in powers(there, strange).items()}
    return {role: has for role, has in found.items() if has}


def is_trusted(conn: Session, role: str, trusted: Collection[str]) -> bool:
    """A role that is not on the server (any more) only where the pipeline names it."""
    row = conn.execute(_Q["trusted"], [role]).fetchone()
    return role in trusted or bool(row and row[0])
