"""Statements for a plain table as its partitioned copy takes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_pgddl.engine.ddl.node_names import action_name, added_constraints, constraint_kind
from airflow_provider_pgddl.engine.ddl.parse import Node, deparse, kind_of, parse, statement_node, texts, unwrap
from airflow_provider_pgddl.engine.ddl.rewrite_actions import AlterAction


def partitioned(statement: str, method: str, column: str, actions: Iterable[AlterAction] = ()) -> str:
    """CREATE TABLE with PARTITION BY, and its primary key with the partition key in it (C23); what is said of ONLY the
    table is said of its partitions too. Storage parameters are left out: partitions alone have such.

    The column's type comes from `actions` where these change it: that of a partition key cannot be altered later."""
    tree = parse(statement)
    node = statement_node(tree)
    if kind_of(node) == "CreateStmt":
        node.partspec.CopyFrom(_partspec(method, column))
        del node.options[:]
        node.ClearField("access_method")
        for element in (unwrap(each) for each in node.table_elts):
            if kind_of(element) == "ColumnDef" and element.colname == column:
                _retype(element, column, actions)
            elif kind_of(element) == "Constraint":
                _extend(element, column)
    elif kind_of(node) == "AlterTableStmt":
        node.relation.inh = True
        for constraint in added_constraints(node):
            _extend(constraint, column)
    return deparse(tree)


def with_key(statement: str, column: str) -> str:
    """CREATE TABLE with the column in its primary key."""
    tree = parse(statement)
    for element in (unwrap(each) for each in statement_node(tree).table_elts):
        if kind_of(element) == "Constraint":
            _extend(element, column)
    return deparse(tree)


def fits_partitioned(action: AlterAction, column: str) -> bool:
    """Whether an action of rewrite.alter is done to the partitioned table as a whole: not what each of its partitions
    is set to, nor the type that the partition key was made with."""
    if action.kind in ("SET", "RESET") and action.column is None:
        return False
    return not (action.kind == "TYPE" and action.column == column)


def settings(actions: Iterable[AlterAction]) -> list[str]:
    """The storage parameters among the actions, to stand behind ALTER TABLE and a partition's name."""
    return [action.suffix for action in actions if action.kind in ("SET", "RESET") and action.column is None]


def new_type(action: AlterAction) -> str:
    """What ALTER COLUMN … TYPE says for a type, as SQL."""
    tree = parse("CREATE TABLE t (c integer)")
    column = unwrap(statement_node(tree).table_elts[0])
    column.type_name.CopyFrom(_definition(action).type_name)
    return deparse(tree).removeprefix("CREATE TABLE t (c ").removesuffix(")")


def added_foreign_keys(statements: Iterable[str]) -> set[str]:
    """The names of the foreign keys that these statements add."""
    nodes = (statement_node(parse(statement)) for statement in statements)
    return {
        constraint.conname
        for node in nodes
        if kind_of(node) == "AlterTableStmt"
        for constraint in added_constraints(node)
        if constraint_kind(constraint) == "foreign key"
    }


def sets_access_method(statement: str) -> bool:
    """Whether an ALTER TABLE does that, and nothing else."""
    node = statement_node(parse(statement))
    if kind_of(node) != "AlterTableStmt":
        return False
    return [action_name(unwrap(command)) for command in node.cmds] == ["AT_SetAccessMethod"]


def constraint_of_comment(statement: str) -> str | None:
    """The constraint that a COMMENT is on; None where it is on something else."""
    node = statement_node(parse(statement))
    if kind_of(node) != "CommentStmt":
        return None
    parts = texts(unwrap(node.object).items) if kind_of(unwrap(node.object)) == "List" else []
    wanted = statement_node(parse("COMMENT ON CONSTRAINT c ON t IS NULL")).objtype
    return parts[-1] if node.objtype == wanted and parts else None


def _partspec(method: str, column: str) -> Node:
    by = {"range": "RANGE", "list": "LIST", "hash": "HASH"}[method]
    spec = statement_node(parse(f"CREATE TABLE t (c integer) PARTITION BY {by} (c)")).partspec
    unwrap(spec.part_params[0]).name = column
    return spec


def _retype(element: Node, column: str, actions: Iterable[AlterAction]) -> None:
    for action in actions:
        if action.kind == "TYPE" and action.column == column:
            definition = _definition(action)
            element.type_name.CopyFrom(definition.type_name)
            element.ClearField("coll_clause")
            if definition.HasField("coll_clause"):
                element.coll_clause.CopyFrom(definition.coll_clause)


def _definition(action: AlterAction) -> Node:
    command = unwrap(statement_node(parse(f"ALTER TABLE t {action.suffix}")).cmds[0])
    assert action_name(command) == "AT_AlterColumnType"
    return unwrap(getattr(command, "def"))


def _extend(constraint: Node, column: str) -> None:
    if constraint_kind(constraint) == "primary key" and constraint.keys and column not in texts(constraint.keys):
        constraint.keys.add().string.sval = column
