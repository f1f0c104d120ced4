"""Whose code may run with our rights: superusers', our own role's and its members', and that of the pipeline's
`trusted_roles`."""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("rights")


def untrusted(conn: Session, roles: Collection[str], trusted: Collection[str]) -> set[str]:
    """Which of these roles of the server are not trusted; `trusted` are those that the pipeline names."""
    if not roles:
        return set()
    return {name for (name,) in conn.execute(_Q["untrusted"], [sorted(roles), list(trusted)])}


def is_trusted(conn: Session, role: str, trusted: Collection[str]) -> bool:
    """A role that is not on the server (any more) only where the pipeline names it."""
    row = conn.execute(_Q["trusted"], [role]).fetchone()
    return role in trusted or bool(row and row[0])
