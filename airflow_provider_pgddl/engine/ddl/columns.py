"""Which of a table's columns a statement about it names, and what goes with a column that is dropped. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from postgast import pg_query_pb2

from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.node_names import def_elements
from airflow_provider_pgddl.engine.ddl.parse import kind_of, parse, statement_node, texts, unwrap, walk
from airflow_provider_pgddl.engine.model.names import Name

# Where names of columns stand, by the kind of node: lists of names, and single names.
_LISTS = {
    "AccessPriv": ("cols",),
    "Constraint": ("keys", "fk_attrs", "including"),
    "CreateTrigStmt": ("columns",),
}
_SINGLE = {"AlterTableCmd": "name", "IndexElem": "name", "ReplicaIdentityStmt": "name", "StatsElem": "name"}


def columns_named(statement: str) -> set[str]:
    """Columns in keys, indexes, expressions, grants and comments; and what an action of ALTER TABLE acts on, which may
    be an index or a constraint."""
    node = statement_node(parse(statement))
    named: set[str] = set()
    for child in walk(node):
        kind = kind_of(child)
        for field in _LISTS.get(kind, ()):
            named.update(texts(getattr(child, field)))
        if kind in _SINGLE:
            named.add(getattr(child, _SINGLE[kind]))
        elif kind == "ColumnRef" and (parts := texts(child.fields)):
            named.add(parts[-1])
    if kind_of(node) == "CommentStmt" and node.objtype == pg_query_pb2.OBJECT_COLUMN:
        named.update(texts(unwrap(node.object).items)[-1:])
    elif kind_of(node) == "AlterSeqStmt" and (owner := def_elements(node.options).get("owned_by")) is not None:
        named.update(texts(owner.items)[2:])
    return named - {""}


def going_with(events: Iterable[DdlEvent], dropped: Collection[str]) -> list[DdlEvent]:
    """Of one table's events those that DROP COLUMN takes along: its indexes, constraints, statistics, grants, comments,
    and what is said about these. Triggers, policies and rules are not among them: Postgres refuses to drop what they
    use."""
    going: list[DdlEvent] = []
    gone: set[str] = set()
    sequences: set[Name | None] = set()
    for event in events:
        if event.tag == "CREATE TABLE" or event.kind in _KEPT:
            continue
        named = columns_named(event.statement)
        if named.intersection(dropped):
            if event.tag in _MAKES or event.kind in _CONSTRAINTS:
                gone.add(event.name or "")
            if event.sequence:
                sequences.add(event.sequence)
        elif event.sequence in sequences:
            pass
        elif not (event.kind in _NAMED and event.name in gone) and not (event.kind in _ABOUT_INDEXES and named & gone):
            continue
        going.append(event)
    return going


_KEPT = {"trigger", "policy", "rule"}
_MAKES = {"CREATE INDEX", "CREATE STATISTICS"}
_CONSTRAINTS = {"primary key", "unique", "exclude", "check", "foreign key", "not null"}
_NAMED = {"index", "constraint", "statistics"}
_ABOUT_INDEXES = {"cluster", "replica identity"}
