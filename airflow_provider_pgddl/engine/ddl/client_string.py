"""A client's string, taken apart, and which of its statements each captured event came from. Pure.

A string of many statements has fewer events than statements: IF [NOT] EXISTS that did nothing, temporary tables, DML,
what a savepoint took back. Events keep the order of their statements, so they are laid over the string in every way
that fits by tag and names; only where all ways agree is a statement an event's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import postgast
from postgast import ParseResult, PgQueryError, pg_query_pb2

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.event_objects import EventObject, parts_within
from airflow_provider_pgddl.engine.ddl.node_names import object_type_words
from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    kind_of,
    parse,
    qualified,
    statement_node,
    texts,
    unwrap,
    without_locations,
)
from airflow_provider_pgddl.engine.ddl.subject import subject_of
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name

TRANSACTION = "TRANSACTION"


@dataclass(frozen=True)
class Statement:
    """One statement of a string."""

    text: str
    tree: ParseResult | None
    """None where the parser does not know it."""

    @property
    def node(self) -> Node:
        return statement_node(self.tree) if self.tree is not None else None

    @cached_property
    def tag(self) -> str:
        """The command tag as event triggers see it; '' for a statement that is not understood."""
        return tag_of(self.node) if self.tree is not None else ""

    @cached_property
    def said(self) -> Said:
        return _said(self.node)

    @cached_property
    def meaning(self) -> bytes:
        """Equal for two statements that are the same but for spaces and comments."""
        if self.tree is None:
            return self.text.encode()
        return bytes(without_locations(self.tree).SerializeToString(deterministic=True))


@dataclass(frozen=True, slots=True)
class Said:
    """How a statement names its object: schema '' where it does not say it."""

    own: Name | None = None
    renamed: str | None = None
    table: Name | None = None
    dropped: frozenset[str] = frozenset()
    temporary: bool = False


def read_string(sql: str) -> tuple[Statement, ...]:
    """The statements of a string that a client sent; those that the parser does not know have no tree."""
    try:
        pieces = postgast.split(sql)
    except PgQueryError:
        try:
            pieces = postgast.split(sql, method="scanner")
        except PgQueryError:
            return (Statement(sql, None),)
    statements = []
    for piece in pieces:
        try:
            tree = parse(piece)
        except StageFailed:
            if not _is_empty(piece):
                statements.append(Statement(piece, None))
            continue
        statements.append(Statement(piece.strip(), tree))
    return tuple(statements)


def _is_empty(piece: str) -> bool:
    try:
        return not postgast.parse(piece).stmts
    except PgQueryError:
        return False


def tag_of(node: Node) -> str:
    """The command tag of any statement; the kind of the node where no event could bear it."""
    kind = kind_of(node)
    if kind in _TAGS:
        return _TAGS[kind]
    if kind == "RenameStmt":
        return f"ALTER {_renamed_words(node)}"
    if kind == "AlterTableMoveAllStmt":
        return f"ALTER {object_type_words(node.objtype)}"
    try:
        return describe_tag(node)
    except StageFailed:
        return kind


_TAGS = {
    "TransactionStmt": TRANSACTION,
    "DropOwnedStmt": "DROP OWNED",
    "ReassignOwnedStmt": "REASSIGN OWNED",
    "TruncateStmt": "TRUNCATE",
}


def describe_tag(node: Node) -> str:
    tree = pg_query_pb2.ParseResult()
    return subject_of(_wrapped(tree, node)).tag


def _wrapped(tree: ParseResult, node: Node) -> ParseResult:
    inner = tree.stmts.add().stmt
    for field in inner.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.name == kind_of(node):
            getattr(inner, field.name).CopyFrom(node)
            break
    return tree


def _renamed_words(node: Node) -> str:
    """RENAME's kind of object as in AlterObjectTypeCommandTag."""
    name = str(pg_query_pb2.ObjectType.Name(node.rename_type)).removeprefix("OBJECT_")
    if name == "COLUMN":
        return object_type_words(node.relation_type)
    return {"TABCONSTRAINT": "TABLE", "DOMCONSTRAINT": "DOMAIN", "ATTRIBUTE": "TYPE"}.get(
        name, object_type_words(node.rename_type)
    )


def _said(node: Node) -> Said:
    kind = kind_of(node)
    if kind == "DropStmt":
        return Said(dropped=frozenset(_last(unwrap(thing)) for thing in node.objects) - {""})
    if kind == "RenameStmt":
        return _said_rename(node)
    if kind == "CreateSchemaStmt":
        return Said(own=("", node.schemaname)) if node.schemaname else Said()
    if kind in ("GrantStmt", "AlterDefaultPrivilegesStmt", "DropOwnedStmt", "ImportForeignSchemaStmt"):
        return Said()
    try:
        subject = subject_of(_wrapped(pg_query_pb2.ParseResult(), node))
    except StageFailed:
        return Said()
    own = (subject.schema or "", subject.name) if subject.name else None
    if subject.schema and subject.kind == "schema":
        own = ("", subject.schema)
    table = subject.table if kind not in ("CreateSeqStmt", "AlterSeqStmt", "CreateStatsStmt") else None
    return Said(own=own, table=table, temporary=_is_temporary(node))


def _said_rename(node: Node) -> Said:
    name = str(pg_query_pb2.ObjectType.Name(node.rename_type)).removeprefix("OBJECT_")
    if node.HasField("relation"):
        table = (node.relation.schemaname, node.relation.relname)
        if name in ("COLUMN", "ATTRIBUTE", "TABCONSTRAINT"):
            return Said(own=table, table=table)
        if name in ("TRIGGER", "RULE", "POLICY"):
            return Said(own=(table[0], node.newname), table=table)
        return Said(own=table, renamed=node.newname)
    if name == "DOMCONSTRAINT":
        return Said(own=("", node.newname))
    parts = texts(unwrap(node.object).items) if kind_of(unwrap(node.object)) == "List" else []
    return Said(own=("", node.subname) if node.subname else (qualified(parts) if parts else None), renamed=node.newname)


def _last(thing: Node) -> str:
    kind = kind_of(thing)
    if kind == "String":
        return str(thing.sval)
    parts = {"List": "items", "TypeName": "names", "ObjectWithArgs": "objname"}.get(kind)
    found = texts(getattr(thing, parts)) if parts else []
    return found[-1] if found else ""


def _is_temporary(node: Node) -> bool:
    kind = kind_of(node)
    made = {
        "CreateStmt": "relation",
        "ViewStmt": "view",
        "CreateSeqStmt": "sequence",
    }.get(kind)
    relation = getattr(node, made) if made else node.into.rel if kind == "CreateTableAsStmt" else None
    return relation is not None and (relation.relpersistence == "t" or relation.schemaname == "pg_temp")


# Statements that would change rows, or could, were they run again.
_UNSAFE = {"INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "COPY", "CALL", "DO", "CREATE TABLE AS", "SELECT INTO"}


def unsafe(statement: Statement, blocked: Collection[str]) -> bool:
    """Whether a string that holds this statement is none of DDL alone."""
    tag = statement.tag
    if tag == "SELECT" and statement.node.HasField("into_clause"):
        return True
    return tag in _UNSAFE or tag in blocked


def could_be(statement: Statement, event: CapturedEvent, targets: Sequence[EventObject]) -> bool:
    """Whether an event may have come from a statement, by tag and by every name that both tell."""
    if statement.tree is None:
        return True
    if statement.tag != event["tag"]:
        return False
    said = statement.said
    if said.temporary:
        return False
    if said.dropped:
        return bool(said.dropped & set(_dropped_names(event)))
    if not targets:
        return True
    return any(_names(said, target) for target in targets)


def _dropped_names(event: CapturedEvent) -> Iterator[str]:
    for dropped in event["dropped"]:
        if dropped["original"]:
            if dropped["name"]:
                yield dropped["name"]
            else:
                yield from parts_within(dropped["identity"])[-1:] or [dropped["identity"]]


def _names(said: Said, target: EventObject) -> bool:
    relations = [name for name in (target.relation, target.before) if name is not None]
    if said.renamed is not None and said.renamed != target.name and target.name is not None:
        return False
    if said.table is not None and relations:
        if not any(_same(said.table, name) for name in relations):
            return False
        apart = said.own is not None and said.own[1] != said.table[1] and target.type not in _ARE_RELATIONS
        return not apart or target.name is None or said.own is None or said.own[1] in ("", target.name)
    if said.own is None or said.renamed is not None:
        return said.renamed is None or target.before is None or said.own is None or _same(said.own, target.before)
    if target.schema is None or target.type == "schema":
        return target.name in (None, said.own[1])
    # What SET SCHEMA moved is named by its old schema, which only relations' versions know.
    return target.name in (None, said.own[1])


_ARE_RELATIONS = {"table", "table column", "view", "materialized view", "foreign table", "view column"}


def _same(said: Name, name: Name) -> bool:
    return said[1] == name[1] and said[0] in ("", name[0])


def match(
    statements: Sequence[Statement], events: Sequence[CapturedEvent], targets: Sequence[Sequence[EventObject]]
) -> list[Statement | str]:
    """For each event of one string, in order, its statement; or the reason why it cannot be told."""
    tried: dict[tuple[int, int], bool] = {}

    def fits(event: int, position: int) -> bool:
        if (event, position) not in tried:
            tried[event, position] = could_be(statements[position], events[event], targets[event])
        return tried[event, position]

    length = len(statements)
    firsts = _placed(len(events), length, fits)
    lasts = _placed(len(events), length, lambda event, position: fits(len(events) - 1 - event, length - 1 - position))
    found: list[Statement | str] = []
    for number, event in enumerate(events):
        end = length - lasts[len(events) - 1 - number]
        ways = [statements[at] for at in range(firsts[number], end) if fits(number, at)]
        if not ways:
            found.append(f"no statement of the client's string is this {event['tag']}")
        elif len({statement.meaning for statement in ways}) > 1:
            found.append(f"{len(ways)} statements of the client's string could be this {event['tag']}")
        elif ways[0].tree is None:
            # Without its words, which may be of values that stay on the source.
            found.append(f"the parser cannot read this {event['tag']}")
        else:
            found.append(ways[0])
    return found


def _placed(events: int, length: int, fits: Callable[[int, int], bool]) -> list[int]:
    """For each event the first position that it may have when all events before it are placed as early as can be."""
    firsts, position = [], 0
    for event in range(events):
        firsts.append(position)
        place = next((at for at in range(position, length) if fits(event, at)), None)
        if place is not None:
            position = place + 1
        elif any(fits(event, at) for at in range(min(position, length))):
            position = length + 1  # there is no order in which all have a place
        # what fits nowhere takes no other event's place
    return firsts
