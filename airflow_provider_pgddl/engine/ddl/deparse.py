"""Trees as statements, where postgast 0.2 does not print one right: taken apart, or left as it was written. Pure."""

from __future__ import annotations

from postgast import ParseResult

from airflow_provider_pgddl.engine.ddl.node_names import action_name
from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    deparse,
    kind_of,
    parse,
    statement_node,
    unwrap,
    without_locations,
)
from airflow_provider_pgddl.engine.errors import StageFailed


def printed(tree: ParseResult, written: str) -> list[str]:
    """A tree as statements. `written` is the text that it was read from, which serves where nothing was changed in it.

    StageFailed where it cannot be printed.
    """
    node = statement_node(tree)
    before, behind = _collated(node), _access_method(node)
    try:
        return [*before, deparse(tree), *behind]
    except StageFailed:
        if not before and not behind and without_locations(parse(written)) == without_locations(tree):
            return [written]
        raise


def _access_method(node: Node) -> list[str]:
    """CREATE TABLE … USING method: there is no space behind it."""
    if kind_of(node) != "CreateStmt" or not node.access_method:
        return []
    behind, command = _alter(node.relation, "SET ACCESS METHOD heap")
    command.name, node.access_method = node.access_method, ""
    return [deparse(behind)]


def _collated(node: Node) -> list[str]:
    """ALTER COLUMN … TYPE … COLLATE … USING: USING comes out first. So values change in a statement of their own."""
    commands = [unwrap(each) for each in node.cmds] if kind_of(node) == "AlterTableStmt" else []
    retyping = [each for each in commands if action_name(each) == "AT_AlterColumnType"]
    column = unwrap(getattr(retyping[0], "def")) if len(retyping) == 1 else None
    if column is None or not column.HasField("raw_default") or not column.HasField("coll_clause"):
        return []
    before, command = _alter(node.relation, "DROP COLUMN x")
    command.CopyFrom(retyping[0])
    unwrap(getattr(command, "def")).ClearField("coll_clause")
    column.ClearField("raw_default")
    return [deparse(before)]


def _alter(table: Node, action: str) -> tuple[ParseResult, Node]:
    tree = parse(f"ALTER TABLE t {action}")
    node = statement_node(tree)
    node.relation.CopyFrom(table)
    return tree, node.cmds[0].alter_table_cmd
