"""Constraints in the syntax tree: their names, and foreign keys that are validated later. Pure."""

from __future__ import annotations

from airflow_provider_pgddl.engine.ddl.parse import deparse, kind_of, parse, start_of, statement_node
from airflow_provider_pgddl.engine.ddl.subject import added_constraints, constraint_kind
from airflow_provider_pgddl.engine.errors import StageFailed


def not_valid(statement: str) -> str:
    """An ALTER TABLE … ADD FOREIGN KEY with NOT VALID, so that it locks for a moment only; as it is if it has it."""
    tree = parse(statement)
    node = statement_node(tree)
    added = added_constraints(node) if kind_of(node) == "AlterTableStmt" else []
    foreign = [constraint for constraint in added if constraint_kind(constraint) == "foreign key"]
    if not foreign:
        raise StageFailed(f"this adds no foreign key: {start_of(statement)}")
    for constraint in foreign:
        constraint.skip_validation = True
        constraint.initially_valid = False
    return deparse(tree)


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
