"""What acts on writers and readers of a table beside its rows: which statements of a dump bring it to a target that is
followed and never swapped, in which order, and what takes each back. Pure.

Left to the swap is what fires for replayed rows all the same (triggers that are enabled ALWAYS or REPLICA, and rules,
which rewrite what windows run), what acts beyond the schema (event triggers, default privileges), and owners."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.constraint_nodes import is_not_valid, not_valid
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.grants import taken_back
from airflow_provider_pgddl.engine.ddl.node_names import action_name, object_type_words
from airflow_provider_pgddl.engine.ddl.parse import Node, deparse, kind_of, parse, statement_node, texts, unwrap
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.schema.definitions import statement_tree

DefinitionGroup = Literal["secure", "trigger", "switch", "foreign key", "told", "right"]
# A grant before its policies would show what the source hides.
ORDER: tuple[DefinitionGroup, ...] = ("secure", "trigger", "switch", "foreign key", "told", "right")
DefinitionKey = tuple[str, Name, str]

_ROW_SECURITY = {
    "AT_EnableRowSecurity": "DISABLE", "AT_DisableRowSecurity": "ENABLE",
    "AT_ForceRowSecurity": "NO FORCE", "AT_NoForceRowSecurity": "FORCE",
}  # fmt: skip
_BEYOND = {"EVENT TRIGGER", "PUBLICATION", "SUBSCRIPTION", "DATABASE", "EXTENSION", "ROLE", "TABLESPACE", "RULE"}
_ALWAYS = ("AT_EnableAlwaysTrig", "AT_EnableReplicaTrig")


def group_of(event: DdlEvent) -> DefinitionGroup | None:
    """None for what is left out."""
    if event.phase == "foreign_key":
        return "foreign key"
    if event.phase != "finish":
        return None
    node = statement_node(parse(event.statement))
    kind = kind_of(node)
    if kind == "CreatePolicyStmt":
        return "secure"
    if kind == "CreateTrigStmt":
        return "trigger"
    if kind in ("CommentStmt", "SecLabelStmt"):
        return None if object_type_words(node.objtype) in _BEYOND else "told"
    if kind == "GrantStmt":
        return "right"
    if kind == "AlterObjectDependsStmt":
        return "switch"
    actions = {action_name(unwrap(command)) for command in node.cmds} if kind == "AlterTableStmt" else {""}
    if actions <= _ROW_SECURITY.keys():
        return "secure"
    return "switch" if all(a.endswith("Trig") and a not in _ALWAYS for a in actions) else None


def fires_always(events: Iterable[DdlEvent]) -> set[tuple[Name | None, str]]:
    """(table, name) of the triggers that would fire for replayed rows."""
    found = set()
    for event in events:
        node = statement_node(parse(event.statement)) if event.phase == "finish" and event.kind == "trigger" else None
        if node is not None and kind_of(node) == "AlterTableStmt":
            found |= {(event.table, c.name) for c in map(unwrap, node.cmds) if action_name(c) in _ALWAYS}
    return found


def trigger_of(event: DdlEvent) -> tuple[Name | None, str] | None:
    """The trigger that a statement is about."""
    if event.kind == "trigger":
        return event.table, event.name or ""
    node = statement_node(parse(event.statement))
    if kind_of(node) == "CommentStmt" and object_type_words(node.objtype) == "TRIGGER":
        *table, name = texts(unwrap(node.object).items)
        return (table[0], table[1]) if len(table) > 1 else None, name
    return None


def key_of(event: DdlEvent) -> DefinitionKey | None:
    """What a table has one of by this name; None for a statement that may be run twice."""
    if event.tag in ("CREATE POLICY", "CREATE TRIGGER") or event.phase == "foreign_key":
        return event.tag if event.tag.startswith("CREATE") else "foreign key", event.table or ("", ""), event.name or ""
    return None


def tree_of_event(event: DdlEvent) -> bytes:
    """All that a statement says; of a foreign key without whether it is validated: ours come NOT VALID."""
    is_key = event.phase == "foreign_key"
    return statement_tree(not_valid(event.statement) if is_key else event.statement)


def to_run(event: DdlEvent) -> str:
    return not_valid(event.statement) if event.phase == "foreign_key" else event.statement


def wants_validation(event: DdlEvent) -> bool:
    return event.phase == "foreign_key" and not is_not_valid(event.statement)


def undone(event: DdlEvent) -> str:
    """What takes a statement back."""
    table = sql.Identifier(*event.table).as_string() if event.table else ""
    name = sql.Identifier(event.name).as_string() if event.name else ""
    tree = parse(event.statement)
    node = statement_node(tree)
    kind = kind_of(node)
    if event.phase == "foreign_key":
        return f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}"
    if kind == "CreatePolicyStmt":
        return f"DROP POLICY IF EXISTS {name} ON {table}"
    if kind == "CreateTrigStmt":
        return f"DROP TRIGGER IF EXISTS {name} ON {table}"
    if kind == "GrantStmt":
        return taken_back(event.statement)
    if kind == "CommentStmt":
        node.comment = ""
        return deparse(tree)
    if kind == "SecLabelStmt":
        node.label = ""
        return deparse(tree)
    if kind == "AlterObjectDependsStmt":
        node.remove = not node.remove
        return deparse(tree)
    return f"ALTER TABLE {table} " + ", ".join(_back(unwrap(command)) for command in node.cmds)


def _back(command: Node) -> str:
    action = action_name(command)
    if action in _ROW_SECURITY:
        return f"{_ROW_SECURITY[action]} ROW LEVEL SECURITY"
    verb = "ENABLE" if action.startswith("AT_Disable") else "DISABLE"
    return f"{verb} TRIGGER {sql.Identifier(command.name).as_string()}"
