"""The fence of a cut-over on the server that applications have left: a trigger on each table and on each of its
partitions, as a statement on a leaf does not fire its root's. Writes fail; only our own transactions pass
(`pgddl.pass_fences`)."""

from __future__ import annotations

from collections.abc import Collection

from psycopg import sql

from airflow_provider_pgddl.engine.errors import OPEN
from airflow_provider_pgddl.engine.journal.births import is_fed_back
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("capture")

FOLLOW = "take the server that {by} has moved to for the source; " + OPEN


def fence_name(pipeline: str) -> str:
    return f"pgddl_fence_{pipeline}"


def fenced(conn: Session, pipeline: str) -> list[Name]:
    """The relations that a pipeline's fence stands on, wherever they are by now."""
    return conn.execute(_Q["fenced"], [fence_name(pipeline)]).fetchall()


def unfenced(conn: Session, pipeline: str, tables: Collection[Name]) -> list[Name]:
    """Those of these tables, and of their partitions, that it does not stand on."""
    names = [s for s, _ in tables], [n for _, n in tables]
    return conn.execute(_Q["unfenced"], [*names, fence_name(pipeline)]).fetchall()


def closed(conn: Session, tables: Collection[Name]) -> list[tuple[Name, str]]:
    """Those of these tables that refuse writes, whole or in part, each with a pipeline by whose cut-over they do."""
    names = [s for s, _ in tables], [n for _, n in tables]
    return [((schema, name), by) for schema, name, by in conn.execute(_Q["closed"], names)]


def closed_by_others(conn: Session, pipeline: str, tables: Collection[Name]) -> list[tuple[Name, str]]:
    """As `closed`, but for what this pipeline has closed itself."""
    return [(name, by) for name, by in closed(conn, tables) if by != pipeline]


def left_to(conn: Session, pipeline: str, tables: Collection[Name], *, certainly: bool) -> list[tuple[Name, str]]:
    """Those of these tables that applications have left by the cut-over of another pipeline: what is read there is old
    from then on. Not so while the way back of that one lives, or is about to, by which rows still come; where we may
    not know that, only what is `certainly` old."""
    found = closed_by_others(conn, pipeline, tables)
    fed = {by: is_fed_back(conn, by) for by in {by for _, by in found}}
    return [(name, by) for name, by in found if not (fed[by] or (certainly and fed[by] is None))]


def old_since(pipeline: str) -> str:
    return (
        f"refuses writes on the source for the cut-over of pipeline {pipeline!r}, which is under way or done: the new "
        "server has newer rows"
    )


def raise_fence(conn: Session, pipeline: str, relation: Name) -> None:
    """From this transaction's commit on every write to the relation fails with SQLSTATE 25006."""
    parts = {"trigger": sql.Identifier(fence_name(pipeline)), "relation": sql.Identifier(*relation)}
    conn.execute(sql.SQL(_Q["fence"]).format(pipeline=sql.Literal(pipeline), **parts))
    conn.execute(sql.SQL(_Q["enable_always"]).format(**parts))


def lower_fence(conn: Session, pipeline: str, relation: Name) -> None:
    parts = {"trigger": sql.Identifier(fence_name(pipeline)), "relation": sql.Identifier(*relation)}
    conn.execute(sql.SQL("DROP TRIGGER IF EXISTS {trigger} ON {relation}").format(**parts))
