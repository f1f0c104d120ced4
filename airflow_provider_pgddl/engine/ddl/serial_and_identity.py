"""Sequences behind columns: serial and identity, told apart and spelled from their CREATE SEQUENCE. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.compose import ident, joined, raw, spell
from airflow_provider_pgddl.engine.ddl.node_names import action_name
from airflow_provider_pgddl.engine.ddl.parse import Node, kind_of, parse, relation, statement_node, unwrap
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name

_WORDS = {"increment": "INCREMENT BY", "minvalue": "MINVALUE", "maxvalue": "MAXVALUE", "start": "START WITH",
          "cache": "CACHE"}  # fmt: skip


def identity_options(create_sequence: str) -> sql.Composed:
    """What stands in the parentheses behind GENERATED … AS IDENTITY. The type may not: it is the column's."""
    node = _create(create_sequence)
    name = [part for part in (node.sequence.schemaname, node.sequence.relname) if part]
    said: list[sql.Composable] = [spell("SEQUENCE NAME {}", ident(name))]
    for option in map(unwrap, node.options):
        if option.defname in _WORDS:
            value = _number(option)
            said.append(raw(f"NO {option.defname}" if value is None else f"{_WORDS[option.defname]} {value}"))
        elif option.defname == "cycle":
            said.append(sql.SQL("CYCLE") if unwrap(option.arg).boolval else sql.SQL("NO CYCLE"))
    return joined(said, " ")


def type_of_identity(create_sequence: str, column_type: str) -> sql.Composed | None:
    """The sequence given its own type where that is not its column's: CREATE TABLE … LIKE makes such ones."""
    node = _create(create_sequence)
    options = {option.defname: option for option in map(unwrap, node.options)}
    own = _TYPES.get(unwrap(options["as"].arg).names[-1].string.sval) if "as" in options else None
    if own is None or own == column_type:
        return None
    action = spell("ALTER SEQUENCE {} AS {}", ident([node.sequence.schemaname, node.sequence.relname]), raw(own))
    # a limit that was the old type's own would become the new one's
    limits = [(name, value) for name in ("minvalue", "maxvalue") if (value := _number(options[name])) is not None]
    return action + raw("".join(f" {_WORDS[name]} {value}" for name, value in limits))


def rebounded(statements: Iterable[str]) -> set[Name]:
    """Sequences, and tables with columns whose sequences, that these statements may give other bounds; not where a
    statement says by itself where to go on."""
    names = set[Name]()
    for node in (statement_node(parse(statement)) for statement in statements):
        if kind_of(node) == "AlterSeqStmt" and not any(unwrap(each).defname == "restart" for each in node.options):
            names.add(relation(node.sequence))
        elif kind_of(node) == "AlterTableStmt" and any(action_name(unwrap(each)) in _REBOUND for each in node.cmds):
            names.add(relation(node.relation))
    return names


_REBOUND = {"AT_SetIdentity", "AT_AlterColumnType"}

_TYPES = {"int2": "smallint", "int4": "integer", "int8": "bigint"}


def _create(create_sequence: str) -> Node:
    node = statement_node(parse(create_sequence))
    if kind_of(node) != "CreateSeqStmt":
        raise StageFailed(f"a CREATE SEQUENCE was expected: {create_sequence}")
    return node


def _number(option: Node) -> str | None:
    if not option.HasField("arg"):
        return None
    value = unwrap(option.arg)
    return str(value.ival) if kind_of(value) == "Integer" else str(value.fval)
