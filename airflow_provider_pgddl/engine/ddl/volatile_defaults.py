"""Columns that a statement adds with a DEFAULT that is not the same everywhere and always (C6). Pure.

ADD COLUMN … DEFAULT now() writes no row on the source: old rows show what now() was then. The event has that value
(`missing`), so the column is added with it as a constant, and gets its own default by a statement of its own.
"""

from __future__ import annotations

import re

from postgast import ParseResult, pg_query_pb2

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, ColumnMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.node_names import action_name, constraint_kind
from airflow_provider_pgddl.engine.ddl.parse import Node, deparse, kind_of, parse, statement_node, texts, unwrap
from airflow_provider_pgddl.engine.errors import StageFailed

# Also within a range, an array or a row: '[now,)', '{today}', '(1,tomorrow 10:00)'.
_TIME = re.compile(r"(?<![a-z])(now|today|tomorrow|yesterday|allballs)(?![a-z])", re.IGNORECASE)


def pin_defaults(tree: ParseResult, event: CapturedEvent, oid: int | None) -> list[str]:
    """Puts the value that old rows show into each ADD COLUMN of an ALTER TABLE; the statements that come behind it."""
    node = statement_node(tree)
    if kind_of(node) != "AlterTableStmt":
        return []
    meta = event["tables"].get(str(oid))
    if meta is None:
        added = [unwrap(getattr(c, "def")) for each in node.cmds if action_name(c := unwrap(each)) == "AT_AddColumn"]
        if any(not _is_plain(default) for column in added if (default := _default(column)) is not None):
            raise StageFailed("what rows show that are older than the column is not known")
        return []
    family = [meta, *(event["tables"][str(each)] for each in meta["descendants"] if str(each) in event["tables"])]
    rewritten = {each["oid"] for each in event["rewritten"]}
    if any(each["oid"] in rewritten for each in family):
        return []  # each row got a value of its own; the table is copied again
    behind = []
    for command in (unwrap(each) for each in node.cmds):
        if action_name(command) == "AT_AddColumn":
            column = unwrap(getattr(command, "def"))
            if statement := _pin(node.relation, column, family):
                behind.append(statement)
    return behind


def _pin(table: Node, column: Node, family: list[TableMeta]) -> str | None:
    own = _column(family[0], column.colname)
    if own is None or own["generated"] or own["identity"]:
        return None
    if own["default"] is None and _shown(column, family) is None:
        return None
    given = [each for each in column.constraints if constraint_kind(unwrap(each)) == "default"]
    expression = _default(column)
    if expression is not None and _is_plain(expression):
        return None
    shown = _shown(column, family)
    for position in reversed(range(len(column.constraints))):
        if constraint_kind(unwrap(column.constraints[position])) == "default":
            del column.constraints[position]
    if shown is not None:
        constraint = column.constraints.add().constraint
        constraint.contype = pg_query_pb2.CONSTR_DEFAULT
        constraint.raw_expr.a_const.sval.sval = shown
    elif own["not_null"] and given:
        column.constraints.add().CopyFrom(given[0])
        return None  # there were no rows
    return _set_default(table, own)


def _default(column: Node) -> Node | None:
    """The expression behind DEFAULT."""
    constraints = (unwrap(each) for each in column.constraints)
    return next((unwrap(each.raw_expr) for each in constraints if constraint_kind(each) == "default"), None)


def _shown(column: Node, family: list[TableMeta]) -> str | None:
    """What old rows show; a partitioned table has no rows of its own, its partitions know."""
    known = (_column(meta, column.colname) for meta in family)
    return next((each["missing"] for each in known if each is not None and each["missing"] is not None), None)


def _column(meta: TableMeta, name: str) -> ColumnMeta | None:
    return next((each for each in meta["columns"] if each["name"] == name), None)


def _is_plain(expression: Node) -> bool:
    """A number, a truth value, NULL, or text that is nothing but text ('now' is not, as a time)."""
    if kind_of(expression) == "A_Const":
        return expression.WhichOneof("val") != "sval" or not _means_a_time(expression.sval.sval)
    if kind_of(expression) == "TypeCast":
        inner = unwrap(expression.arg)
        name = texts(expression.type_name.names)[-1]
        return kind_of(inner) == "A_Const" and _is_plain(inner) and not name.startswith("reg")
    if kind_of(expression) == "A_Expr" and texts(expression.name) == ["-"] and not expression.HasField("lexpr"):
        return _is_plain(unwrap(expression.rexpr))
    return False


def _means_a_time(text: str) -> bool:
    return _TIME.search(text) is not None


def _set_default(table: Node, column: ColumnMeta) -> str:
    name = '"' + column["name"].replace('"', '""') + '"'
    action = "DROP DEFAULT" if column["default"] is None else f"SET DEFAULT {column['default']}"
    tree = parse(f"ALTER TABLE t ALTER COLUMN {name} {action}")
    statement_node(tree).relation.CopyFrom(table)
    return deparse(tree)
