"""Expressions of a pipeline file: conditions and values over the columns of one table, as SQL.

Read here as syntax; whether the source takes one, and whether it always yields the same, `preflight.part_of_rows`
asks the source."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from postgast import PgQueryError, pg_query_pb2
from postgast import parse as parse_any
from pydantic import AfterValidator, BeforeValidator, Field

from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    deparse,
    kind_of,
    parse,
    statement_node,
    texts,
    unwrap,
    walk,
    without_locations,
)
from airflow_provider_pgddl.engine.ddl.quoting import identifier
from airflow_provider_pgddl.engine.errors import StageFailed

_REFUSED = {
    "SubLink": "a query in it is not possible",
    "SelectStmt": "a query in it is not possible",
    "ParamRef": "it has a parameter",
    "A_Star": "it takes columns by *",
    "SetToDefault": "DEFAULT has no place in it",
    "GroupingFunc": "it is an aggregate",
    "WindowDef": "a window function in it is not possible",
    "SQLValueFunction": "it changes with the time or the session, and rows would with it",
}
_PLAIN = {
    "A_Expr", "BoolExpr", "NullTest", "BooleanTest", "A_ArrayExpr", "List", "ColumnRef", "A_Const", "String", "Integer",
    "Float", "Boolean",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expression:
    """`sql` as it is run, printed from the syntax tree; `columns` that it reads; whether it is no more than a
    `literal`, which has the type of the column that it stands for; the texts in it, which may be read as dates; and the
    `types` that it names."""

    sql: str
    columns: frozenset[str]
    literal: bool
    texts: tuple[str, ...]
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowsRead:
    """What the file says of a table's rows: the condition, and columns whose values are made by an expression."""

    where: Expression | None = None
    transform: Mapping[str, Expression] = field(default_factory=dict)

    def __str__(self) -> str:
        """What of a table moves."""
        rows = [f"only rows where {self.where.sql}"] if self.where else []
        return ", ".join([*rows, *(f"{column} as {made.sql}" for column, made in self.transform.items())])

    @property
    def condition(self) -> str:
        return self.where.sql if self.where else ""

    @property
    def expressions(self) -> list[Expression]:
        return [*([self.where] if self.where else []), *self.transform.values()]

    @property
    def columns(self) -> set[str]:
        """All columns of the source that any of it is about."""
        return {*self.transform}.union(*(e.columns for e in self.expressions))


def expression(text: str) -> Expression:
    """One expression as SQL; ValueError says what is wrong with it."""
    try:
        tree = parse_any(f"SELECT {text}\n")
    except PgQueryError as error:
        raise ValueError(f"cannot be read as SQL: {error.message}") from None
    value = _only_value(tree)
    for node in walk(value):
        if why := _refused(node):
            raise ValueError(why)
    alone = parse("SELECT 1")
    unwrap(statement_node(alone).target_list[0]).val.CopyFrom(value)
    if without_locations(alone) != without_locations(tree):
        raise ValueError("is not one expression")
    try:
        printed = deparse(alone).removeprefix("SELECT ")
    except StageFailed as error:
        raise ValueError(error.what) from None
    literals = list(_texts(value))
    literal = kind_of(unwrap(value)) == "A_Const"
    return Expression(printed, frozenset(_columns(value)), literal, tuple(literals), tuple(sorted({*_types(value)})))


def terms(condition: str) -> set[str]:
    """What a condition is the AND of."""
    node = unwrap(unwrap(statement_node(parse(f"SELECT {condition}")).target_list[0]).val)
    if kind_of(node) != "BoolExpr" or node.boolop != pg_query_pb2.AND_EXPR:
        return {condition}
    return {term for arg in node.args for term in terms(_printed(arg))}


def is_plain(condition: str, columns: Collection[str]) -> bool:
    """Whether operators alone, as the server has them, make it of constants and these columns."""
    value = unwrap(statement_node(parse(f"SELECT {condition}")).target_list[0]).val
    return all(
        kind_of(node) in _PLAIN
        and (kind_of(node) != "A_Expr" or len(node.name) == 1)
        and (kind_of(node) != "ColumnRef" or texts(node.fields)[0] in columns)
        for node in walk(value)
    )


def renamed(condition: str, columns: Mapping[str, str]) -> str | None:
    """The same of columns by other names; None where it reads one that has none."""
    tree = parse(f"SELECT {condition}")
    for node in walk(tree):
        if kind_of(node) == "ColumnRef":
            (name,) = texts(node.fields)
            if name not in columns:
                return None
            node.fields[0].string.sval = columns[name]
    return deparse(tree).removeprefix("SELECT ")


def _printed(value: Node) -> str:
    alone = parse("SELECT 1")
    unwrap(statement_node(alone).target_list[0]).val.CopyFrom(value)
    return deparse(alone).removeprefix("SELECT ")


def _only_value(tree: Node) -> Node:
    if len(tree.stmts) == 1:
        statement = statement_node(tree)
        if kind_of(statement) == "SelectStmt" and len(statement.target_list) == 1:
            return unwrap(statement.target_list[0]).val
    raise ValueError("is not one expression")


def _refused(node: Node) -> str | None:
    kind = kind_of(node)
    if kind == "ColumnRef" and len(node.fields) != 1:
        return f"{'.'.join(texts(node.fields))}: write columns without the name of their table"
    if kind == "FuncCall" and (
        node.HasField("over")
        or node.HasField("agg_filter")
        or node.agg_order
        or node.agg_star
        or node.agg_distinct
        or node.agg_within_group
    ):
        return "an aggregate or a window function in it is not possible"
    return _REFUSED.get(kind)


def _columns(value: Node) -> Iterator[str]:
    for node in walk(value):
        if kind_of(node) == "ColumnRef":
            yield from texts(node.fields)


def _texts(value: Node) -> Iterator[str]:
    for node in walk(value):
        if kind_of(node) == "A_Const" and node.HasField("sval"):
            yield node.sval.sval


def _types(value: Node) -> Iterator[str]:
    for node in walk(value):
        if kind_of(node) == "TypeName":
            yield ".".join(map(identifier, texts(node.names))) + "[]" * bool(node.array_bounds)


def _checked(text: str) -> str:
    expression(text)
    return text


def _null(value: object) -> object:
    """YAML reads NULL as nothing."""
    return "NULL" if value is None else value


Condition = Annotated[str, Field(strict=True, min_length=1), AfterValidator(_checked)]
Value = Annotated[str, BeforeValidator(_null), Field(strict=True, min_length=1), AfterValidator(_checked)]
