"""Statements for a copy in a schema of its own: names rewritten in the syntax tree, and looked for afterwards. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise

from postgast import ParseResult
from psycopg import sql

from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    deparse,
    dotted_names,
    kind_of,
    parse,
    quoted,
    relation,
    start_of,
    statement_node,
    texts,
    unwrap,
    walk,
)
from airflow_provider_pgddl.engine.ddl.rewrite_actions import AlterAction, alter_actions
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name

__all__ = [
    "AlterAction",
    "alter_actions",
    "alter_copy",
    "copy_schema",
    "drop_statistics_of_copies",
    "moving",
    "old_schema",
    "relocate",
    "try_schema",
]

_NAME_BYTES = 63


def copy_schema(schema: str) -> str:
    """The schema in which copies of a schema's tables are built."""
    return _prefixed("pgddl_copy_", schema)


def old_schema(schema: str) -> str:
    """The schema in which the tables wait that copies have replaced."""
    return _prefixed("pgddl_old_", schema)


def try_schema(schema: str) -> str:
    """The schema of what preflight makes for a schema's tables, and rolls back."""
    return _prefixed("pgddl_try_", schema)


def drop_statistics_of_copies(names: Iterable[Name]) -> tuple[str, ...]:
    """Whose they were nobody tells: in the copies' schemas there are none but theirs."""
    return tuple(
        sql.SQL("DROP STATISTICS IF EXISTS {}").format(sql.Identifier(copy_schema(schema), name)).as_string(None)
        for schema, name in names
    )


def _prefixed(prefix: str, schema: str) -> str:
    """Prefix and schema; a hash for the tail where that passes 63 bytes, cut between characters."""
    name = prefix + schema
    if len(name.encode()) <= _NAME_BYTES:
        return name
    digest = hashlib.sha256(schema.encode()).hexdigest()[:12]
    kept = name.encode()[: _NAME_BYTES - len(digest) - 1].decode(errors="ignore")
    return f"{kept}_{digest}"


def moving(events: Iterable[DdlEvent], tables: Collection[Name], *, serials: bool = False) -> dict[Name, str]:
    """All names that go into the copy schema with these tables: themselves, indexes, statistics, identity sequences.

    In place a serial's sequence stays where it is (the new table goes on with it), and so does a name in
    `nextval('…')`. With `serials` it is the copy's own, as an identity's is.
    """
    names: dict[Name, str] = {table: copy_schema(table[0]) for table in tables}
    for event in events:
        if event.table is None or event.table not in tables:
            continue
        own = (event.schema or "", event.name or "")
        if event.index:
            names[event.index] = copy_schema(event.index[0])
        elif (event.kind == "identity" or serials) and event.sequence:
            names[event.sequence] = copy_schema(event.sequence[0])
        elif event.tag == "CREATE STATISTICS":
            names[own] = copy_schema(event.table[0])  # where their table is, wherever they are themselves
    return names


def relocate(statement: str, tables: Mapping[Name, str], *, serials: bool = False) -> str:
    """The statement with the relations in `tables` (see `moving`) taken from their new schemas.

    CREATE STATISTICS and an identity's SEQUENCE NAME go with their table, with `serials` also `nextval('…')`. Raises
    StageFailed where a live name is still found afterwards, in a string or anywhere else: such a statement would act on
    the live table.
    """
    tree = parse(statement)
    node = statement_node(tree)
    _rewrite(node, tables, serials)
    for name in _live_names(tree, tables):
        raise StageFailed(
            f"a statement for the copy would still name the live {quoted(name)}: {start_of(statement, 200)}",
            table=quoted(name),
            todo="drop or rewrite what names the table this way, or leave the table out of this pipeline",
        )
    return deparse(tree)


def _rewrite(node: Node, tables: Mapping[Name, str], serials: bool) -> None:
    own_table = _own_table(node)
    home = tables.get(own_table) if own_table else None
    for child in walk(node):
        kind = kind_of(child)
        if kind == "RangeVar":
            child.schemaname = tables.get(relation(child), child.schemaname)
        elif kind == "DefElem" and child.defname == "sequence_name" and home is not None:
            _move(unwrap(child.arg).items, home)
        elif serials and kind == "FuncCall" and texts(child.funcname)[-1] == "nextval" and len(child.args) == 1:
            _rewrite_regclass(child.args[0], tables)
        elif kind == "DefElem" and child.defname == "owned_by":
            column = unwrap(child.arg).items
            _move_if(column, texts(column)[:-1], tables)
    kind = kind_of(node)
    if kind == "CreateStatsStmt" and home is not None:
        _move(node.defnames, home)
    elif kind == "AlterStatsStmt":
        _move_if(node.defnames, texts(node.defnames), tables)
    elif kind in ("CommentStmt", "SecLabelStmt", "AlterOwnerStmt", "DropStmt"):
        _rewrite_object(node, tables)


def _rewrite_regclass(argument: Node, tables: Mapping[Name, str]) -> None:
    """nextval('a.b'::regclass)"""
    cast = unwrap(argument)
    constant = unwrap(cast.arg) if kind_of(cast) == "TypeCast" else cast
    if kind_of(constant) != "A_Const":
        return
    for chain in dotted_names(constant.sval.sval):
        if len(chain) == 2 and (schema := tables.get((chain[0], chain[1]))):
            constant.sval.sval = sql.Identifier(schema, chain[1]).as_string(None)
            return


def _own_table(node: Node) -> Name | None:
    """The table that an ALTER TABLE or CREATE STATISTICS is about, before it is rewritten."""
    kind = kind_of(node)
    if kind in ("AlterTableStmt", "CreateStmt"):
        return relation(node.relation)
    if kind == "CreateStatsStmt" and node.relations:
        return relation(unwrap(node.relations[0]))
    return None


def _rewrite_object(node: Node, tables: Mapping[Name, str]) -> None:
    """Names that are lists of strings: COMMENT ON COLUMN a.b.c, ALTER STATISTICS a.b OWNER TO, DROP INDEX a.b."""
    objects = node.objects if kind_of(node) == "DropStmt" else [node.object]
    for thing in (unwrap(each) for each in objects):
        if kind_of(thing) == "List":
            parts = texts(thing.items)
            for length in (2, 3):  # a relation itself, or what is named within it
                if len(parts) in (length, length + 1):
                    _move_if(thing.items, parts[:2], tables)


def _move(parts: Node, schema: str) -> None:
    if len(parts) > 1:
        unwrap(parts[-2]).sval = schema


def _move_if(parts: Node, name: list[str], tables: Mapping[Name, str]) -> None:
    if len(name) == 2 and (schema := tables.get((name[0], name[1]))):
        unwrap(parts[0]).sval = schema


# Lists of strings that are no relation's name: other kinds of objects, which may be spelled like one, and columns.
_OTHER_NAMES = {
    ("FuncCall", "funcname"),
    ("CreateFunctionStmt", "funcname"),
    ("CreateTrigStmt", "funcname"),
    ("ObjectWithArgs", "objname"),
    ("A_Expr", "name"),
    ("SubLink", "oper_name"),
    ("SortBy", "use_op"),
    ("CollateClause", "collname"),
    ("IndexElem", "collation"),
    ("IndexElem", "opclass"),
    ("PartitionElem", "collation"),
    ("PartitionElem", "opclass"),
    ("Constraint", "keys"),
    ("Constraint", "including"),
    ("Constraint", "fk_attrs"),
    ("Constraint", "pk_attrs"),
    ("Constraint", "fk_del_set_cols"),
    ("CreateTrigStmt", "columns"),
    ("AccessPriv", "cols"),
    ("Alias", "colnames"),
    ("ViewStmt", "aliases"),
    ("IntoClause", "col_names"),
}


def _live_names(tree: ParseResult, tables: Mapping[Name, str]) -> Iterator[Name]:
    """The names in `tables` that a tree still holds: as relations, in dotted names, in strings."""
    live = {name for name, schema in tables.items() if schema != name[0]}
    for node in walk(tree):
        kind = kind_of(node)
        if kind == "RangeVar":
            yield from live.intersection([relation(node)])
        elif kind == "A_Const":
            yield from _in_text(node.sval.sval, live)
        elif kind == "DefElem":  # a function's body, an option's value
            argument = unwrap(node.arg)
            values = argument.items if kind_of(argument) == "List" else [argument]
            yield from (name for text in texts(values) for name in _in_text(text, live))
        elif kind == "CreateTrigStmt":
            yield from (name for text in texts(node.args) for name in _in_text(text, live))
        for field, value in node.ListFields():
            listed = field.message_type is not None and isinstance(value, Iterable)
            if listed and (kind, field.name) not in _OTHER_NAMES:
                yield from _in_chain(texts(value), live)


def _in_text(text: str, live: set[Name]) -> Iterator[Name]:
    for chain in dotted_names(text):
        yield from _in_chain(chain, live)


def _in_chain(parts: list[str], live: set[Name]) -> Iterator[Name]:
    yield from live.intersection(pairwise(parts))


def alter_copy(actions: Iterable[str], schema: str, table: str) -> list[str]:
    """`rewrite.alter` as statements on the copy, one an action, USING left out (see `alter_actions`)."""
    return [action.on(copy_schema(schema), table) for action in alter_actions(actions)]
