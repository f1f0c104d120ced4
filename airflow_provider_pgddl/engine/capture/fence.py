"""The fence of a cut-over on the server that applications have left: a trigger on each table and on each of its
partitions, as a statement on a leaf does not fire its root's. Writes fail; only our own transactions pass
(`pgddl.pass_fences`)."""

from __future__ import annotations

from collections.abc import Collection

from psycopg import sql

from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("capture")


def fence_name(pipeline: str) -> str:
    return f"pgddl_fence_{pipeline}"


def fenced(conn: Session, pipeline: str) -> list[Name]:
    """The relations that a pipeline's fence stands on, wherever they are by now."""
    return conn.execute(_Q["fenced"], [fence_name(pipeline)]).fetchall()


def unfenced(conn: Session, pipeline: str, tables: Collection[Name]) -> list[Name]:
    """Those of these tables, and of their partitions, that it does not stand on."""
    names = [s for s, _ in tables], [n for _, n in tables]
    return conn.execute(_Q["unfenced"], [*names, fence_name(pipeline)]).fetchall()


def raise_fence(conn: Session, pipeline: str, relation: Name) -> None:
    """From this transaction's commit on every write to the relation fails with SQLSTATE 25006."""
    parts = {"trigger": sql.Identifier(fence_name(pipeline)), "relation": sql.Identifier(*relation)}
    conn.execute(sql.SQL(_Q["fence"]).format(pipeline=sql.Literal(pipeline), **parts))
    conn.execute(sql.SQL(_Q["enable_always"]).format(**parts))


def lower_fence(conn: Session, pipeline: str, relation: Name) -> None:
    parts = {"trigger": sql.Identifier(fence_name(pipeline)), "relation": sql.Identifier(*relation)}
    conn.execute(sql.SQL("DROP TRIGGER IF EXISTS {trigger} ON {relation}").format(**parts))
