"""What the server prints of constraints, indexes and expressions, compared as syntax trees. Pure.

The print changes with the names in it, so equal texts are equal, and unequal ones are compared with the names brought
into line: a column that was renamed leaves its CHECK as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from postgast import ParseResult

from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    kind_of,
    parse,
    statement_node,
    texts,
    unwrap,
    walk,
    without_locations,
)


class Flags(NamedTuple):
    """What ALTER TABLE … ALTER CONSTRAINT can change, and what it cannot (`no_inherit` of a CHECK)."""

    deferrable: bool
    deferred: bool
    enforced: bool
    no_inherit: bool


def flags(definition: str) -> Flags:
    node = _constraint(_added(definition))
    # the grammar sets is_enforced where a CHECK or a foreign key says nothing else; other kinds never say it
    enforced = bool(node.is_enforced) if kind_of_constraint(node) in ("CHECK", "FOREIGN") else True
    return Flags(bool(node.deferrable), bool(node.initdeferred), enforced, bool(node.is_no_inherit))


def kind_of_constraint(node: Node) -> str:
    """``CHECK``, ``PRIMARY``, ``UNIQUE``, ``FOREIGN`` …"""
    name: str = node.DESCRIPTOR.fields_by_name["contype"].enum_type.values_by_number[node.contype].name
    return name.removeprefix("CONSTR_")


def constraint_columns(definition: str) -> list[str]:
    """The columns of a primary key or a unique constraint."""
    return texts(_constraint(_added(definition)).keys)


def same_constraint(before: str, after: str, renamed: Mapping[str, str]) -> bool:
    """Whether two definitions say the same, `renamed` being the columns' old names and their new ones."""
    return before == after or _same(_added(before), _added(after), renamed)


def named_checks(create_table: str) -> set[tuple[str, str, str, bool]]:
    """(CHECK or NOTNULL, name, column, NO INHERIT) of each of these that a CREATE TABLE has; "" for a name that the
    server chooses, and for the column of a CHECK."""
    found = set()
    for element in map(unwrap, statement_node(parse(create_table)).table_elts):
        of_column = kind_of(element) == "ColumnDef"
        for constraint in map(unwrap, element.constraints) if of_column else [element]:
            kind = kind_of_constraint(constraint) if kind_of(constraint) == "Constraint" else ""
            if kind == "NOTNULL":
                column = element.colname if of_column else texts(constraint.keys)[0]
                found.add((kind, constraint.conname, column, constraint.is_no_inherit))
            elif kind == "CHECK":
                found.add((kind, constraint.conname, "", constraint.is_no_inherit))
    return found


def same_expression(before: str, after: str, renamed: Mapping[str, str]) -> bool:
    return before == after or _same(parse(f"SELECT {before}"), parse(f"SELECT {after}"), renamed)


def same_index(before: str, after: str, renamed: Mapping[str, str]) -> bool:
    """Whether two CREATE INDEX make the same, whatever the index and its table are called."""
    if before == after:
        return True
    trees = parse(before), parse(after)
    for tree in trees:
        node = statement_node(tree)
        node.idxname = node.relation.relname = node.relation.schemaname = ""
    return _same(*trees, renamed)


def same_partition_key(before: str, after: str, renamed: Mapping[str, str]) -> bool:
    whole = [f"CREATE TABLE t () PARTITION BY {key}" for key in (before, after)]
    return before == after or _same(parse(whole[0]), parse(whole[1]), renamed)


@lru_cache(maxsize=10_000)  # the gate looks at the same tables again and again
def tree_of(statement: str, uncast: bool) -> bytes:
    """What a statement says of rows: equal for two prints of one thing.

    Of an index neither its names, nor how it is stored, nor ONLY, which Postgres prints for a partitioned table. With
    `uncast` no casts: the prints of one expression differ in them where a column has another type."""
    tree = parse(statement)
    node = statement_node(tree)
    if kind_of(node) == "IndexStmt":
        node.idxname = node.table_space = node.relation.schemaname = node.relation.relname = ""
        node.relation.inh = True
        node.ClearField("options")
    if uncast and "::" in statement:
        for each in walk(tree):
            for child in _nodes(each):
                while kind_of(inner := unwrap(child)) == "TypeCast":
                    bare = type(inner.arg)()
                    bare.CopyFrom(inner.arg)
                    child.CopyFrom(bare)
    return _as_read(tree)


def statement_tree(statement: str, *, names_not_null: bool = True) -> bytes:
    """All that a statement says: equal for two prints of one thing, by whatever server, before a restore or after.
    `names_not_null`: also what a table's NOT NULL constraints are called, which servers before 18 do not know."""
    tree = parse(statement)
    if not names_not_null:
        for each in walk(tree):
            if kind_of(each) == "Constraint" and kind_of_constraint(each) == "NOTNULL":
                each.ClearField("conname")
    return _as_read(tree)


def _as_read(tree: ParseResult) -> bytes:
    """What one server prints otherwise than another, or than itself after a restore, is made alike in it (C31)."""
    node = statement_node(tree)
    if kind_of(node) in ("ViewStmt", "CreateTableAsStmt"):
        _bare_columns(unwrap(node.query))
    _push_casts(tree)
    return bytes(without_locations(tree).SerializeToString(deterministic=True))


def _push_casts(tree: ParseResult) -> None:
    """``(ARRAY[a, b])::text[]`` as every server reads it, ``ARRAY[a::text, b::text]``: it prints the one of what was
    written as ``IN (…)``, and the other once that has been dumped and restored. Nothing else is read as anything but
    what is printed; the grammar itself takes brackets out of ``((a AND b) AND c)``."""
    for each in walk(tree):
        for child in _nodes(each):
            while kind_of(cast := unwrap(child)) == "TypeCast" and _casts_elements(cast):
                array, type_ = unwrap(cast.arg), cast.type_name
                for element in array.elements:
                    _cast(element, type_)
                bare = type(cast.arg)()
                bare.CopyFrom(cast.arg)
                child.CopyFrom(bare)


def _casts_elements(cast: Node) -> bool:
    argument = unwrap(cast.arg)
    return kind_of(argument) == "A_ArrayExpr" and bool(argument.elements) and bool(cast.type_name.array_bounds)


def _cast(element: Node, type_: Node) -> None:
    """An element of an array that is cast to the array type; one that is an array itself is of the same type."""
    inner = type(element)()
    inner.CopyFrom(element)
    element.Clear()
    element.type_cast.arg.CopyFrom(inner)
    element.type_cast.type_name.CopyFrom(type_)
    if kind_of(unwrap(inner)) != "A_ArrayExpr":
        element.type_cast.type_name.ClearField("array_bounds")


def _bare_columns(select: Node) -> None:
    """The columns of a query over one relation without its name, which Postgres prints up to 15 only. Queries inside
    of it have the names everywhere; in ORDER BY and DISTINCT ON a bare name may be that of an output column."""
    if kind_of(select) != "SelectStmt" or len(select.from_clause) != 1:
        return
    source = unwrap(select.from_clause[0])
    if kind_of(source) not in ("RangeVar", "RangeSubselect", "RangeFunction"):
        return
    name = source.alias.aliasname or (source.relname if kind_of(source) == "RangeVar" else "")
    outputs = {target.name: _column(unwrap(target.val)) for target in map(unwrap, select.target_list)}
    taken = {output for output, column in outputs.items() if output != column}
    bare = [*select.target_list, select.where_clause, *select.group_clause, select.having_clause, *select.window_clause]
    for part in bare:
        _without_relation(part, name, ())
    for part in (*select.sort_clause, *select.distinct_clause):
        _without_relation(part, name, taken)


def _without_relation(expression: Node, relation: str, but_not: Collection[str]) -> None:
    stack = [unwrap(expression)]
    while stack:
        node = stack.pop()
        kind = kind_of(node)
        if kind == "ColumnRef":
            column = _column(node)
            if column is not None and column not in but_not and texts(node.fields)[:-1] == [relation]:
                del node.fields[0]
        elif kind == "SubLink":
            stack.append(unwrap(node.testexpr))
        elif kind != "SelectStmt":
            stack += map(unwrap, _messages(node))


def _column(node: Node) -> str | None:
    """The name of a column; None for what is none, or a whole row."""
    last = unwrap(node.fields[-1]) if kind_of(node) == "ColumnRef" else None
    return str(last.sval) if last is not None and kind_of(last) == "String" else None


def index_columns(definition: str) -> list[str] | None:
    """The columns of a plain unique index, which a constraint can be made of; null for every other index."""
    node = statement_node(parse(definition))
    elements = [unwrap(element) for element in node.index_params]
    if not node.unique or node.HasField("where_clause") or not all(element.name for element in elements):
        return None
    return [element.name for element in elements]


def index_options(definition: str) -> dict[str, str]:
    """What stands in its WITH (…), as text."""
    return {option.defname: _value(option) for option in map(unwrap, statement_node(parse(definition)).options)}


def is_constant(expression: str) -> bool:
    """Whether it is a literal, with a type behind it or without: the same value for whoever evaluates it."""
    value = unwrap(unwrap(statement_node(parse(f"SELECT {expression}")).target_list[0]).val)
    while kind_of(value) == "TypeCast":
        value = unwrap(value.arg)
    return kind_of(value) == "A_Const"


def sequence_of(expression: str | None) -> str | None:
    """``s.t_id_seq`` of ``nextval('s.t_id_seq'::regclass)``, quoted as it is there."""
    if expression is None or "nextval" not in expression:
        return None
    value = unwrap(unwrap(statement_node(parse(f"SELECT {expression}")).target_list[0]).val)
    if kind_of(value) != "FuncCall" or texts(value.funcname)[-1:] != ["nextval"] or len(value.args) != 1:
        return None
    argument = unwrap(value.args[0])
    while kind_of(argument) == "TypeCast":
        argument = unwrap(argument.arg)
    return str(argument.sval.sval) if kind_of(argument) == "A_Const" and argument.HasField("sval") else None


def _value(option: Node) -> str:
    if not option.HasField("arg"):
        return "true"
    value = unwrap(option.arg)
    kind = kind_of(value)
    if kind == "String":
        return str(value.sval)
    if kind == "Integer":
        return str(value.ival)
    if kind == "Float":
        return str(value.fval)
    if kind == "Boolean":
        return str(bool(value.boolval)).lower()
    return " ".join(texts(value.names))  # a word: on, off, auto


def _added(definition: str) -> ParseResult:
    return parse(f"ALTER TABLE t ADD CONSTRAINT c {definition}")


def _constraint(tree: ParseResult) -> Node:
    return unwrap(getattr(unwrap(statement_node(tree).cmds[0]), "def"))


def _same(before: ParseResult, after: ParseResult, renamed: Mapping[str, str]) -> bool:
    if renamed:
        _rename(before, renamed)
    for tree in (before, after):
        _push_casts(tree)
    return bool(without_locations(before) == without_locations(after))


def _rename(tree: ParseResult, renamed: Mapping[str, str]) -> None:
    """Columns of the table that the definition belongs to; a foreign key's other table keeps its own."""
    for node in walk(statement_node(tree)):
        kind = kind_of(node)
        if kind == "ColumnRef":
            names = node.fields if len(node.fields) == 1 else ()
        elif kind == "Constraint":
            names = [*node.keys, *node.fk_attrs, *node.including, *node.fk_del_set_cols]
        elif kind in ("IndexElem", "PartitionElem"):
            node.name = renamed.get(node.name, node.name)
            continue
        else:
            continue
        for name in map(unwrap, names):
            if kind_of(name) == "String":
                name.sval = renamed.get(name.sval, name.sval)


def _nodes(node: Node) -> Iterator[Node]:
    """The generic nodes in the fields of a message."""
    return (child for child in _messages(node) if kind_of(child) == "Node")


def _messages(node: Node) -> Iterator[Node]:
    for field, value in node.ListFields():
        if field.message_type is not None:
            yield from value if isinstance(value, Iterable) else (value,)
