"""Constraints in the syntax tree: their names, cut out of columns, and foreign keys that are validated later. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from postgast import pg_query_pb2

from airflow_provider_pgddl.engine.ddl.node_names import added_constraints, constraint_kind
from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    deparse,
    kind_of,
    parse,
    start_of,
    statement_node,
    texts,
    unwrap,
)
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name


def not_valid(statement: str) -> str:
    """An ALTER TABLE … ADD FOREIGN KEY with NOT VALID, so that it locks for a moment only; as it is if it has it."""
    tree = parse(statement)
    for constraint in _foreign_keys(tree, statement):
        constraint.skip_validation = True
        constraint.initially_valid = False
    return deparse(tree)


def validated(statement: str) -> str:
    """An ALTER TABLE … ADD FOREIGN KEY without NOT VALID."""
    tree = parse(statement)
    for constraint in _foreign_keys(tree, statement):
        constraint.skip_validation = False
        constraint.initially_valid = True
    return deparse(tree)


def on_partition(statement: str, partition: Name, name: str) -> str:
    """An ALTER TABLE … ADD FOREIGN KEY with NOT VALID on a partition of its table, where the key has this name."""
    tree = parse(statement)
    for constraint in _foreign_keys(tree, statement):
        constraint.conname = name
        constraint.skip_validation = True
        constraint.initially_valid = False
    table = statement_node(tree).relation
    table.schemaname, table.relname = partition
    return deparse(tree)


def names_on_partition(statement: str, partition: str) -> Iterator[str]:
    """What a foreign key of a partitioned table may be called on a partition: as the server names them, its own name,
    or where that is taken another one."""
    yield constraint_name(statement)
    (key,) = _foreign_keys(parse(statement), statement)
    stem = "_".join([partition, *texts(key.fk_attrs)]).encode()[:50].decode(errors="ignore")
    yield f"{stem}_fkey"
    yield from (f"{stem}_fkey{number}" for number in itertools.count(1))


def _foreign_keys(tree: Node, statement: str) -> list[Node]:
    node = statement_node(tree)
    added = added_constraints(node) if kind_of(node) == "AlterTableStmt" else []
    foreign = [constraint for constraint in added if constraint_kind(constraint) == "foreign key"]
    if not foreign:
        raise StageFailed(f"this adds no foreign key: {start_of(statement)}")
    return foreign


def is_not_valid(statement: str) -> bool:
    """Whether a constraint is added NOT VALID by the statement itself, so that it is to stay so."""
    return any(constraint.skip_validation for constraint in added_constraints(statement_node(parse(statement))))


def constraint_name(statement: str) -> str:
    """The name of the one constraint that an ALTER TABLE adds."""
    node = statement_node(parse(statement))
    added = added_constraints(node) if kind_of(node) == "AlterTableStmt" else []
    if len(added) != 1 or not added[0].conname:
        raise StageFailed(f"this does not add one constraint with a name: {start_of(statement)}")
    return str(added[0].conname)


def cut_from_column(column: Node, is_cut: Callable[[Node], bool]) -> list[Node]:
    """Takes constraints out of a column's definition, with their attributes, and returns them.

    DEFERRABLE, INITIALLY DEFERRED and NOT ENFORCED stand behind their constraint as nodes of their own: left alone they
    would be misplaced, or worse, belong to the constraint in front."""
    constraints = column.constraints
    cut = []
    for position in reversed(range(len(constraints))):
        constraint = unwrap(constraints[position])
        if is_cut(constraint):
            end = position + 1
            while end < len(constraints) and _is_attribute(unwrap(constraints[end])):
                end += 1
            cut.append(constraint)
            del constraints[position:end]
    return cut[::-1]


def _is_attribute(constraint: Node) -> bool:
    return str(pg_query_pb2.ConstrType.Name(constraint.contype)).startswith("CONSTR_ATTR_")
