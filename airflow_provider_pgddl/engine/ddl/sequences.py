"""Sequences behind columns: serial and identity, told apart and spelled from their CREATE SEQUENCE. Pure."""

from __future__ import annotations

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.parse import Node, kind_of, parse, statement_node, unwrap
from airflow_provider_pgddl.engine.ddl.spelling import ident, joined, raw, spell
from airflow_provider_pgddl.engine.errors import StageFailed

_WORDS = {"increment": "INCREMENT BY", "minvalue": "MINVALUE", "maxvalue": "MAXVALUE", "start": "START WITH",
          "cache": "CACHE"}  # fmt: skip


def identity_options(create_sequence: str) -> sql.Composed:
    """What stands in the parentheses behind GENERATED … AS IDENTITY. The type is the column's, so it is not said."""
    node = statement_node(parse(create_sequence))
    if kind_of(node) != "CreateSeqStmt":
        raise StageFailed(f"a CREATE SEQUENCE was expected: {create_sequence}")
    name = [part for part in (node.sequence.schemaname, node.sequence.relname) if part]
    said: list[sql.Composable] = [spell("SEQUENCE NAME {}", ident(name))]
    for option in map(unwrap, node.options):
        if option.defname in _WORDS:
            value = _number(option)
            said.append(raw(f"NO {option.defname}" if value is None else f"{_WORDS[option.defname]} {value}"))
        elif option.defname == "cycle":
            said.append(sql.SQL("CYCLE") if unwrap(option.arg).boolval else sql.SQL("NO CYCLE"))
    return joined(said, " ")


def _number(option: Node) -> str | None:
    if not option.HasField("arg"):
        return None
    value = unwrap(option.arg)
    return str(value.ival) if kind_of(value) == "Integer" else str(value.fval)
