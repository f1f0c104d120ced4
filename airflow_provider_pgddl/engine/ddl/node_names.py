"""Names of what a syntax tree holds: kinds of objects as command tags have them, actions, constraints, options.
Pure."""

from __future__ import annotations

from collections.abc import Iterable

from postgast import pg_query_pb2

from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    unwrap,
)

_CONSTRAINTS = {
    "CONSTR_PRIMARY": "primary key",
    "CONSTR_UNIQUE": "unique",
    "CONSTR_EXCLUSION": "exclude",
    "CONSTR_CHECK": "check",
    "CONSTR_FOREIGN": "foreign key",
    "CONSTR_NOTNULL": "not null",
}


def object_type_words(object_type: int) -> str:
    """An ObjectType as command tags have it: OBJECT_TSCONFIGURATION is ``TEXT SEARCH CONFIGURATION``."""
    name = str(pg_query_pb2.ObjectType.Name(object_type)).removeprefix("OBJECT_")
    return _WORDS.get(name, name.replace("_", " "))


_WORDS = {
    "MATVIEW": "MATERIALIZED VIEW",
    "FDW": "FOREIGN DATA WRAPPER",
    "FOREIGN_SERVER": "SERVER",
    "OPCLASS": "OPERATOR CLASS",
    "OPFAMILY": "OPERATOR FAMILY",
    "STATISTIC_EXT": "STATISTICS",
    "TABCONSTRAINT": "CONSTRAINT",
    "DOMCONSTRAINT": "CONSTRAINT",
    "LARGEOBJECT": "LARGE OBJECT",
    "TSCONFIGURATION": "TEXT SEARCH CONFIGURATION",
    "TSDICTIONARY": "TEXT SEARCH DICTIONARY",
    "TSPARSER": "TEXT SEARCH PARSER",
    "TSTEMPLATE": "TEXT SEARCH TEMPLATE",
}


def constraint_kind(constraint: Node) -> str:
    """``primary key``, ``foreign key``, ``check`` …"""
    name = str(pg_query_pb2.ConstrType.Name(constraint.contype))
    return _CONSTRAINTS.get(name, name.removeprefix("CONSTR_").lower())


def action_name(command: Node) -> str:
    """The name of an ALTER TABLE action: ``AT_AddConstraint``."""
    return str(pg_query_pb2.AlterTableType.Name(command.subtype))


def added_constraints(statement: Node) -> list[Node]:
    """The constraints that an ALTER TABLE adds."""
    commands = (unwrap(command) for command in statement.cmds)
    return [unwrap(getattr(c, "def")) for c in commands if action_name(c) == "AT_AddConstraint"]


def def_elements(nodes: Iterable[Node]) -> dict[str, Node]:
    """A list of DefElem by name, arguments unwrapped."""
    return {(element := unwrap(node)).defname: unwrap(element.arg) for node in nodes}
