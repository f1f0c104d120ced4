"""DROP as the catalog saw it: statements from what was dropped, never from the text, and never with CASCADE: what went
along is listed, too. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from postgast import ParseResult, pg_query_pb2
from psycopg import sql

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, DroppedMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.compose import ident, joined, raw, spell
from airflow_provider_pgddl.engine.ddl.event_objects import RELATIONS, dropped_relation
from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    deparse,
    dotted_names,
    kind_of,
    parse,
    qualified,
    statement_node,
    texts,
    unwrap,
)
from airflow_provider_pgddl.engine.errors import CannotRebuild, StageFailed
from airflow_provider_pgddl.engine.model.names import Name

CoversDropped = Callable[[DroppedMeta], bool]


def dropped_names(event: CapturedEvent) -> list[DroppedMeta]:
    """What the statement itself named."""
    return [each for each in event["dropped"] if each["original"]]


def taken_along(event: CapturedEvent) -> list[DroppedMeta]:
    """What CASCADE took along: no part of something else that was dropped, nor of what the statement named."""
    gone = {name for each in event["dropped"] if (name := _whole(each)) is not None}
    ranges, multiranges = _ranges(event["dropped"])
    return [
        each
        for each in event["dropped"]
        if each["normal"]
        and not each["original"]
        and _stands_alone(each, gone)
        and not (each["type"] == "type" and _name(each) in multiranges)
        and not (each["type"] == "function" and _name(each) in ranges | multiranges)
    ]


def without_members(event: CapturedEvent, versions: Mapping[int, TableMeta]) -> CapturedEvent:
    """DROP EXTENSION lists all that was in it, as if CASCADE had taken it along: what belongs to tables alone is kept.

    A function or type of somebody else that went as well then stops the statement on the target.
    """
    if event["tag"] != "DROP EXTENSION":
        return event
    relations = {(meta["schema"], meta["name"]) for meta in versions.values()}
    indexes = {index["oid"] for meta in versions.values() for index in meta["indexes"]}
    kept = [
        each
        for each in event["dropped"]
        if each["original"] or each["objid"] in indexes or dropped_relation(each) in relations
    ]
    return {**event, "dropped": kept}


def _ranges(dropped: Iterable[DroppedMeta]) -> tuple[set[Name], set[Name]]:
    """Range types and their multiranges, which come with casts and functions of their own."""
    ranges: set[Name] = set()
    multiranges: set[Name] = set()
    for each in dropped:
        if each["type"] == "cast" and not each["original"] and not each["normal"]:
            cast = unwrap(statement_node(parse(f"DROP CAST {each['identity']}")).objects[0]).items
            one, other = (qualified(texts(unwrap(part).names)) for part in cast)
            ranges.add(one)
            multiranges.add(other)
    return ranges, multiranges


def _name(dropped: DroppedMeta) -> Name:
    return (dropped["schema"] or "", dropped["name"] or "")


def _whole(dropped: DroppedMeta) -> Name | None:
    return dropped_relation(dropped) if dropped["type"] in RELATIONS else None


def _stands_alone(dropped: DroppedMeta, gone: set[Name]) -> bool:
    if dropped["type"] in _NEVER_ALONE or dropped["type"].startswith("toast"):
        return False
    if dropped["table"] and (dropped["table"][0], dropped["table"][1]) in gone:
        return False
    # of a list of columns or a row filter Postgres says that CASCADE took it along, whatever dropped the table
    if dropped["type"] == "publication relation" and tuple(next(dotted_names(dropped["identity"]), ())) in gone:
        return False
    if dropped["type"] == "rule" and (dropped["name"] or dropped["identity"]).strip('"').startswith("_RETURN"):
        return False
    return not (dropped["type"] == "type" and _row_type(dropped, gone))


_NEVER_ALONE = {"view column", "materialized view column", "composite type column", "index column"}


def _row_type(dropped: DroppedMeta, gone: set[Name]) -> bool:
    """Whether a type is a dropped relation's own, or an array of something."""
    return dropped["identity"].endswith("[]") or _name(dropped) in gone


def drop_statements(event: CapturedEvent, covers: CoversDropped, node: Node | None) -> tuple[list[str], list[str]]:
    """The statements for a DROP and notes on them. `node` is its DropStmt where that is known.

    What was taken along comes first, if it is there (an object that a rule left out is not); then what was named.
    Raises CannotRebuild for an object for which there is no statement.
    """
    named = [each for each in dropped_names(event) if covers(each)]
    notes = [
        f"out of scope, left out of the statement: {each['type']} {each['identity']}"
        for each in dropped_names(event)
        if not covers(each)
    ]
    statements, more = cascade_statements(event, covers)
    known = node is not None and kind_of(node) == "DropStmt"
    statements += _in_runs(
        named,
        missing_ok=known and bool(getattr(node, "missing_ok", False)),
        concurrently=known and bool(getattr(node, "concurrent", False)),
    )
    return statements, notes + more


def cascade_statements(event: CapturedEvent, covers: CoversDropped) -> tuple[list[str], list[str]]:
    """Statements that drop one by one what CASCADE took along, and a note for each."""
    taken = taken_along(event)
    inside = [each for each in taken if covers(each)]
    notes = [f"CASCADE spelled out: {each['type']} {each['identity']}" for each in inside]
    notes += [
        f"CASCADE also dropped what is out of scope: {each['type']} {each['identity']}"
        for each in taken
        if not covers(each)
    ]
    return _in_runs(inside, missing_ok=True, concurrently=False), notes


def referencing(event: CapturedEvent, versions: Mapping[int, TableMeta]) -> list[str]:
    """Foreign keys between dropped tables, taken away first: no order would do for two that refer to each other."""
    gone = {each["objid"] for each in event["dropped"] if each["type"] in ("table", "foreign table")}
    metas = [meta for oid in sorted(gone) if (meta := versions.get(oid)) is not None]
    names = {(meta["schema"], meta["name"]) for meta in metas}
    statements = []
    for meta in metas:
        own = (meta["schema"], meta["name"])
        for constraint in meta["constraints"]:
            other = constraint["references"]
            if constraint["type"] == "f" and constraint["local"] and other and (other[0], other[1]) in names - {own}:
                without = spell("ALTER TABLE {} DROP CONSTRAINT {}", ident(own), ident([constraint["name"]]))
                tree = parse(without.as_string(None))
                _if_there(statement_node(tree))
                statements.append(deparse(tree))
    return statements


def _in_runs(dropped: Sequence[DroppedMeta], *, missing_ok: bool, concurrently: bool) -> list[str]:
    """One DROP for each run of objects of a kind: tables that refer to each other go together."""
    statements: list[ParseResult] = []
    run: int | None = None
    for each in dropped:
        tree = _drop(each)
        node = statement_node(tree)
        kind = node.remove_type if kind_of(node) == "DropStmt" else None
        if missing_ok:
            _if_there(node)
        if kind == pg_query_pb2.OBJECT_INDEX:
            node.concurrent = concurrently
            node.missing_ok = True  # what CREATE INDEX CONCURRENTLY leaves where it fails has no event
        if kind is not None and kind == run and kind in _TOGETHER and not concurrently:
            statement_node(statements[-1]).objects.append(node.objects[0])
        else:
            statements.append(tree)
        run = kind
    return [deparse(tree) for tree in statements]


def _drop(dropped: DroppedMeta) -> ParseResult:
    """DROP of one object by its identity, which the server has quoted and qualified; the tree is checked."""
    refused = CannotRebuild(f"there is no statement that drops the {dropped['type']} {dropped['identity']} alone")
    text = drop(dropped).as_string(None)
    if dropped["type"] == "aggregate" and text.endswith("()"):
        text = f"{text[:-2]}(*)"
    try:
        tree = parse(text)
    except StageFailed:
        raise refused from None
    node = statement_node(tree)
    kind = kind_of(node)
    if kind == "DropStmt" and len(node.objects) == 1 and node.behavior == pg_query_pb2.DROP_RESTRICT:
        return tree
    if kind in ("AlterTableStmt", "AlterDomainStmt"):
        return tree
    raise refused


def _if_there(node: Node) -> None:
    """IF EXISTS: what a rule once left out cannot be dropped."""
    node.missing_ok = True
    for command in (unwrap(each) for each in (node.cmds if kind_of(node) == "AlterTableStmt" else ())):
        if str(pg_query_pb2.AlterTableType.Name(command.subtype)) in ("AT_DropColumn", "AT_DropConstraint"):
            command.missing_ok = True


_TOGETHER = {
    pg_query_pb2.OBJECT_TABLE,
    pg_query_pb2.OBJECT_VIEW,
    pg_query_pb2.OBJECT_MATVIEW,
    pg_query_pb2.OBJECT_FUNCTION,
    pg_query_pb2.OBJECT_TYPE,
    pg_query_pb2.OBJECT_SEQUENCE,
    pg_query_pb2.OBJECT_INDEX,
    pg_query_pb2.OBJECT_SCHEMA,
}


def concurrent(nodes: Iterable[Node]) -> bool:
    """Whether one of the statements refuses a transaction."""
    return any(_refuses(node) for node in nodes)


def _refuses(node: Node) -> bool:
    kind = kind_of(node)
    if kind in ("IndexStmt", "DropStmt"):
        return bool(node.concurrent)
    if kind == "ReindexStmt":
        return any(unwrap(each).defname == "concurrently" for each in node.params)
    if kind == "AlterTableStmt":
        parts = [unwrap(getattr(unwrap(command), "def")) for command in node.cmds]
        return any(kind_of(part) == "PartitionCmd" and part.concurrent for part in parts)
    return False


# Postgres' own words for a kind of object, where DROP takes its identity as it is printed.
_WORDS = {
    **{
        kind: kind.upper()
        for kind in (
            "table", "view", "materialized view", "index", "sequence", "foreign table", "type", "function", "procedure",
            "aggregate", "schema", "extension", "language", "collation", "conversion", "operator", "operator class",
            "operator family", "cast", "event trigger", "server", "access method", "publication", "subscription",
            "text search parser", "text search dictionary", "text search template", "text search configuration",
        )
    },
    "statistics object": "STATISTICS",
    "foreign-data wrapper": "FOREIGN DATA WRAPPER",
}  # fmt: skip
_ON_TABLES = {"trigger": "TRIGGER", "policy": "POLICY", "rule": "RULE"}


def drops(dropped: Iterable[DroppedMeta]) -> Iterator[sql.Composed]:
    """DROP of these objects one after the other; neighbours of one kind together, for tables that refer to each other
    can only go at once."""
    for kind, group in groupby(dropped, key=lambda d: d["type"]):
        if kind in ("table", "view", "materialized view"):
            yield spell("DROP {} {}", raw(_WORDS[kind]), joined(raw(d["identity"]) for d in group))
        else:
            yield from map(drop, group)


def drop(d: DroppedMeta) -> sql.Composed:
    """DROP of one object. Raises CannotRebuild for what has no such statement."""
    kind = d["type"]
    if kind in _WORDS:
        return spell("DROP {} {}", raw(_WORDS[kind]), raw(d["identity"]))
    if d["table"] is not None and kind in _ON_TABLES:
        return spell("DROP {} {} ON {}", raw(_ON_TABLES[kind]), ident([_own_name(d)]), ident(d["table"]))
    if d["table"] is not None and kind in ("table column", "foreign table column"):
        return spell("ALTER TABLE {} DROP COLUMN {}", ident(d["table"]), ident([_own_name(d)]))
    if d["table"] is not None and kind == "table constraint":
        return spell("ALTER TABLE {} DROP CONSTRAINT {}", ident(d["table"]), ident([_own_name(d)]))
    if d["table"] is not None and kind == "default value":
        column = _last_part(d["identity"].removeprefix("for "))
        return spell("ALTER TABLE {} ALTER COLUMN {} DROP DEFAULT", ident(d["table"]), ident([column]))
    if kind == "domain constraint":
        # "name on schema.domain", the name quoted where it has to be
        quoted = sql.Identifier(_own_name(d)).as_string(None)
        start = quoted if d["identity"].startswith(quoted) else _own_name(d)
        domain = d["identity"][len(start) :].removeprefix(" on ")
        return spell("ALTER DOMAIN {} DROP CONSTRAINT {}", raw(domain), ident([_own_name(d)]))
    raise CannotRebuild(f"there is no statement that drops the {kind} {d['identity']} alone")


def _own_name(d: DroppedMeta) -> str:
    return d["name"] if d["name"] is not None else _last_part(d["identity"].split(" on ", 1)[0])


def _last_part(identity: str) -> str:
    return next(iter(dotted_names(f"x.{identity}")))[-1]
