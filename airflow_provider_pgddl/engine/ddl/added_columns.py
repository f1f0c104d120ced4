"""Columns that applied DDL has added to a copy, with the values that old rows show on the source (C6). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.node_names import action_name
from airflow_provider_pgddl.engine.ddl.parse import kind_of, parse, statement_node, unwrap


def added_columns(applied: Iterable[tuple[CapturedEvent, Sequence[str]]], oid: int) -> set[int]:
    """The attnums on the source of columns that statements which were run have added to this relation's copy.

    An event whose ADD COLUMN was cut out of its statement has added nothing, so the statements are what counts."""
    found = set()
    for event, statements in applied:
        meta = event["tables"].get(str(oid))
        if meta is not None:
            added = {name for statement in statements for name in _added(statement)}
            found |= {column["attnum"] for column in meta["columns"] if column["name"] in added}
    return found


def _added(statement: str) -> list[str]:
    node = statement_node(parse(statement))
    if kind_of(node) != "AlterTableStmt":
        return []
    actions = [unwrap(command) for command in node.cmds]
    return [unwrap(getattr(a, "def")).colname for a in actions if action_name(a) == "AT_AddColumn"]
