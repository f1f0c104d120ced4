"""A core set that an administrator has made, for a role that is no superuser: what of it is there."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("ddl_log")
# What of the set, and its ledger, is the administrator's where she has made it.
CORE_TABLES = (
    "captures", "captured", "exceptions", "ddl_queue", "ddl_token", "ddl_hold", "fence_passes", "migrations",
    "table_identities", "column_identities",
)  # fmt: skip


def schema_exists(conn: Session) -> bool:
    return bool(_one(conn, "our_schema_exists"))


def is_granted(conn: Session) -> bool:
    """Whether the set is there and belongs to somebody whose rights we have not: then it is not ours to take down."""
    return bool(_one(conn, "set_is_granted"))


def known_event_triggers(conn: Session) -> list[tuple[str, str]]:
    """Those of ours that are there: name, and whether it is enabled."""
    return conn.execute(_Q["known_event_triggers"]).fetchall()


def _one(conn: Session, name: str) -> Any:
    row = conn.execute(_Q[name]).fetchone()
    return row and row[0]
