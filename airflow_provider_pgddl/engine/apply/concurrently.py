"""Statements that refuse a transaction: what the catalog shows of one that was ended in the middle, and how to go on.

CREATE and DROP INDEX, REINDEX and DETACH PARTITION, each CONCURRENTLY, work in several transactions of their own. So
they cannot commit with their bookkeeping: `applying` is committed first, and whoever finds it looks what came of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from postgast import pg_query_pb2
from psycopg import sql

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.node_names import action_name
from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    deparse,
    kind_of,
    parse,
    quoted,
    relation,
    start_of,
    statement_node,
    texts,
    unwrap,
)
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("ddl_events")

State = Literal["absent", "partial", "done"]
"""What there is of the statement's effect. Partial: an invalid index, a detachment that is pending."""


@dataclass(frozen=True, slots=True)
class Work:
    """One such statement."""

    kind: Literal["create index", "drop index", "detach", "reindex"]
    statement: str
    name: Name
    """The index; the partition; what is reindexed ('' for all there is)."""
    table: Name
    """The partitioned table of a detachment."""
    lenient: bool
    """IF [NOT] EXISTS: nothing to do is no error."""

    def taken(self, state: State) -> str | None:
        """What is wrong where the target is in this state before we began; None: nothing."""
        if self.kind == "create index" and state == "partial":
            return f"an invalid index {quoted(self.name)} is there, which this run did not leave behind: drop it"
        if self.lenient or state == "absent" or self.kind == "reindex":
            return None
        if self.kind == "create index":
            return f"there is an index {quoted(self.name)} already"
        if self.kind == "drop index":
            return f"there is no index {quoted(self.name)}"
        return f"{quoted(self.name)} is no partition of {quoted(self.table)}" if state == "done" else None


def concurrent_work(statement: str, event: CapturedEvent) -> Work:
    """StageFailed for a statement of a kind that cannot be followed up after a crash."""
    tree = parse(statement)
    node = statement_node(tree)
    kind = kind_of(node)
    if kind == "IndexStmt" and node.concurrent:
        if not node.idxname:  # the server would choose a name that could not be looked for
            node.idxname = _made_index(event, statement)
        return Work(
            "create index", deparse(tree), (node.relation.schemaname, node.idxname), ("", ""), node.if_not_exists
        )
    if kind == "DropStmt" and node.concurrent and len(node.objects) == 1:
        parts = texts(unwrap(node.objects[0]).items)
        name = (parts[-2] if len(parts) > 1 else "", parts[-1])
        return Work("drop index", statement, name, ("", ""), node.missing_ok)
    if kind == "ReindexStmt":
        name = relation(node.relation) if node.HasField("relation") else ("", "")
        if pg_query_pb2.ReindexObjectType.Name(node.kind) == "REINDEX_OBJECT_SCHEMA":
            name = (node.name, "")
        return Work("reindex", statement, name, ("", ""), False)
    if (part := _detached(node)) is not None:
        return Work("detach", statement, relation(part.name), relation(node.relation), False)
    raise StageFailed(
        "this statement refuses a transaction, and what became of it could not be told after a crash",
        todo="do it on the target by hand, then resolve the event",
        sql=statement,
    )


def _made_index(event: CapturedEvent, statement: str) -> str:
    names = [made["name"] for made in event["objects"] if made["type"] == "index" and made["name"]]
    if len(names) != 1:
        raise StageFailed(f"the event does not tell the name of the index that it made: {start_of(statement)}")
    return names[0]


def _detached(node: Node) -> Node | None:
    """The partition of a DETACH PARTITION … CONCURRENTLY."""
    if kind_of(node) != "AlterTableStmt" or len(node.cmds) != 1:
        return None
    command = unwrap(node.cmds[0])
    if action_name(command) != "AT_DetachPartition":
        return None
    part = unwrap(getattr(command, "def"))
    return part if part.concurrent else None


def plain(statement: str) -> str:
    """The same without CONCURRENTLY: for a copy, which nobody uses yet, in one transaction."""
    tree = parse(statement)
    node = statement_node(tree)
    if kind_of(node) in ("IndexStmt", "DropStmt"):
        node.concurrent = False
    elif kind_of(node) == "ReindexStmt":
        kept = [param for param in node.params if unwrap(param).defname != "concurrently"]
        copies = [type(param)() for param in kept]
        for copy, param in zip(copies, kept, strict=True):
            copy.CopyFrom(param)
        del node.params[:]
        node.params.extend(copies)
    elif (part := _detached(node)) is not None:
        part.concurrent = False
    else:
        return statement
    return deparse(tree)


def state_of(session: Session, work: Work) -> State:
    """What the catalog shows of it now."""
    if work.kind == "reindex":
        return "partial" if _leftovers(session, work) else "absent"
    if work.kind == "detach":
        row = session.execute(_Q["partition"], [*work.table, *work.name]).fetchone()
        return "done" if row is None else "partial" if row[0] else "absent"
    row = session.execute(_Q["index"], [*work.name]).fetchone()
    if work.kind == "drop index":
        return "done" if row is None else "absent"
    return "absent" if row is None else "done" if row[0] else "partial"


def repair(session: Session, work: Work) -> None:
    """From partial to done or absent: an index is begun again, a detachment is gone through with."""
    if work.kind == "detach":
        detach = sql.SQL("ALTER TABLE {} DETACH PARTITION {} FINALIZE")
        session.execute(detach.format(sql.Identifier(*work.table), sql.Identifier(*work.name)))
    for name in _leftovers(session, work) if work.kind == "reindex" else [work.name]:
        if work.kind in ("create index", "reindex"):
            session.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(sql.Identifier(*name)))


def _leftovers(session: Session, work: Work) -> list[Name]:
    schema, name = (part or None for part in work.name)
    return session.execute(_Q["reindex_leftovers"], {"schema": schema, "name": name}).fetchall()
