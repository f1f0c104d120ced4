"""A slot of a database, its stream, and what has come over it so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_pgddl.engine.capture.pgoutput import Begin, Commit, Item, LogicalMessage, RelationMessage, decode
from airflow_provider_pgddl.engine.capture.slot_stream import SlotStream, marker
from airflow_provider_pgddl.engine.server.connect import Session, connect
from tests.conftest import database_name
from tests.integration.sessions import do, one


def slot_name(dsn: str) -> str:
    return f"pgddl_{database_name(dsn)}"


def capture(dsn: str, *statements: str, publish: str = "ALL TABLES") -> None:
    """After the statements, a publication and a slot."""
    name = slot_name(dsn)
    do(dsn, *statements, f"CREATE PUBLICATION {name} FOR {publish}")
    do(dsn, f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")


def stream_of(dsn: str) -> SlotStream:
    return SlotStream(dsn, slot_name(dsn), slot_name(dsn), pipeline="test", token=7)


@contextmanager
def session_of(dsn: str) -> Iterator[Session]:
    with connect(dsn, purpose="test") as session:
        yield session


def read(stream: SlotStream, dsn: str) -> list[Item]:
    """All that has committed so far, without what only frames it."""
    with session_of(dsn) as session:
        items = decode(stream.messages(marker(session)))
        return [
            item
            for item in items
            if not isinstance(item, (Begin, Commit, RelationMessage))
            and not (isinstance(item, LogicalMessage) and item.prefix == "pgddl.marker")
        ]


def rows(items: list[Item]) -> list[tuple[Any, ...]]:
    """(operation, old row, new row)"""
    return [(item[0], item[2], item[3]) for item in items if isinstance(item, tuple)]


def is_active(dsn: str) -> bool:
    return bool(one(dsn, "SELECT active FROM pg_replication_slots WHERE slot_name = %s", slot_name(dsn)))


def one_of(session: Session, query: str) -> Any:
    row = session.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]
