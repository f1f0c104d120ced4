"""What of a captured statement has to wait while copies are on their way, and what has to be run now. Pure.

A copy that rows still come into by blocks must have no unique index and no constraint that is NOT VALID, which rows
from before it may break; until the swap none may have foreign keys, triggers or policies. Such parts are cut out: the
dump that is taken when their time has come shows them."""

from __future__ import annotations

from collections.abc import Collection

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.constraint_nodes import cut_from_column
from airflow_provider_pgddl.engine.ddl.dump_phases import FINISHING, FINISHING_ACTIONS, OPEN_TO_ALL, Phase
from airflow_provider_pgddl.engine.ddl.node_names import action_name, constraint_kind, object_type_words
from airflow_provider_pgddl.engine.ddl.parse import Node, deparse, kind_of, parse, statement_node, unwrap

_BUILT = ("primary key", "unique", "exclude")
_OF_ROWS = ("check", "not null")
_INDEX_ACTIONS = {"AT_AddIndex", "AT_AddIndexConstraint", "AT_ClusterOn", "AT_DropCluster", "AT_ReplicaIdentity"}
_WITHIN_FINISH = {"TRIGGER", "POLICY", "RULE", "EVENT TRIGGER"}


def run_now(statement: str, event: CapturedEvent, waiting: Collection[Phase], *, brought: bool = False) -> str | None:
    """The statement without what belongs to the phases in `waiting`; None where nothing is left of it.

    What would alter or drop something that waits is cut out too, or told not to mind that it is not there. Where it may
    have been `brought` already (follow.finish), what drops a trigger or a policy is run: later DDL builds on that.
    """
    if not waiting:
        return statement
    tree = parse(statement)
    node = statement_node(tree)
    kind = kind_of(node)
    if kind == "CreateStmt":
        if not _without_foreign_keys(node):
            return statement
    elif kind == "AlterTableStmt":
        if not _cut(node, event, waiting):
            return None
    elif kind == "CreateTableAsStmt":
        if object_type_words(node.objtype) != "MATERIALIZED VIEW" or "finish" not in waiting:
            return statement
        node.into.skip_data = True  # its rows come when the rows that it is made of are there
    elif brought and kind == "DropStmt" and object_type_words(node.remove_type) in ("TRIGGER", "POLICY"):
        node.missing_ok = True
    else:
        return None if _waits(node, kind, event, waiting) else statement
    return deparse(tree)


def _waits(node: Node, kind: str, event: CapturedEvent, waiting: Collection[Phase]) -> bool:
    if kind in FINISHING and "finish" in waiting:
        # A right on a schema is needed for the DDL that comes behind it; what all may use would be open until the swap.
        return not (kind == "GrantStmt" and object_type_words(node.objtype) in ("SCHEMA", *OPEN_TO_ALL))
    if kind == "RuleStmt":
        return "finish" in waiting and node.rulename != "_RETURN"
    if kind == "RenameStmt" and object_type_words(node.rename_type) == "CONSTRAINT":
        return _of_waiting_constraint(event, node.newname, waiting)
    if kind in ("RenameStmt", "DropStmt", "AlterObjectDependsStmt"):
        field = {"RenameStmt": "rename_type", "DropStmt": "remove_type", "AlterObjectDependsStmt": "object_type"}[kind]
        what = object_type_words(getattr(node, field))
        return (what in _WITHIN_FINISH and "finish" in waiting) or (what == "INDEX" and "index" in waiting)
    if kind in ("IndexStmt", "CreateStatsStmt", "AlterStatsStmt", "ClusterStmt"):
        return "index" in waiting
    return False


def _without_foreign_keys(node: Node) -> bool:
    """Takes a CREATE TABLE's foreign keys out; whether there were any."""
    before = len(node.table_elts)
    kept = [e for e in node.table_elts if not _is_foreign_key(unwrap(e))]
    changed = len(kept) < before
    if changed:
        _replace(node.table_elts, kept)
    for element in (unwrap(e) for e in node.table_elts):
        if kind_of(element) == "ColumnDef":
            changed |= bool(cut_from_column(element, _is_foreign_key))
    return changed


def _is_foreign_key(node: Node) -> bool:
    return kind_of(node) == "Constraint" and constraint_kind(node) == "foreign key"


def _cut(node: Node, event: CapturedEvent, waiting: Collection[Phase]) -> bool:
    """Cuts an ALTER TABLE; whether anything is left."""
    kept = [each for c in node.cmds for each in _proven(node, c, event, waiting)]
    kept = [c for c in kept if not _action_waits(unwrap(c), event, waiting)]
    if kept != list(node.cmds):
        _replace(node.cmds, kept)
    kinds = ("foreign key", *(_BUILT if "index" in waiting else ()))
    for command in (unwrap(c) for c in node.cmds):
        if action_name(command) == "AT_AddColumn":
            column = unwrap(getattr(command, "def"))
            cut_from_column(column, lambda constraint: constraint_kind(constraint) in kinds)
        elif action_name(command) == "AT_DropConstraint":
            command.missing_ok = True  # it may be one of those that wait
    return len(node.cmds) > 0


def _action_waits(command: Node, event: CapturedEvent, waiting: Collection[Phase]) -> bool:
    action = action_name(command)
    if action == "AT_AddConstraint":
        constraint = unwrap(getattr(command, "def"))
        kind = constraint_kind(constraint)
        built = kind in _BUILT or (kind in _OF_ROWS and constraint.skip_validation)
        return (kind == "foreign key" and "foreign_key" in waiting) or (built and "index" in waiting)
    if action == "AT_ValidateConstraint":
        return _of_waiting_constraint(event, command.name, waiting)
    if action == "AT_AlterConstraint":
        return _of_waiting_constraint(event, unwrap(getattr(command, "def")).conname, waiting)
    if action.startswith(FINISHING_ACTIONS):
        return "finish" in waiting
    return action in _INDEX_ACTIONS and "index" in waiting


def _of_waiting_constraint(event: CapturedEvent, name: str, waiting: Collection[Phase]) -> bool:
    """Whether the constraint of this name, as the event's tables have it now, is of a kind that waits."""
    found = [c for table in event["tables"].values() for c in table["constraints"] if c["name"] == name]
    built = any(c["type"] in "pux" or (c["type"] in "cn" and not c["validated"]) for c in found)
    return any("foreign_key" in waiting and c["type"] == "f" for c in found) or (built and "index" in waiting)


def _proven(alter: Node, command: Node, event: CapturedEvent, waiting: Collection[Phase]) -> list[Node]:
    """What is run for an action. Of a constraint that was NOT VALID, and waited, one that validates it has made one
    that no dump shows apart from its table any more: it is added here, and what is left of the rows satisfies it."""
    action = unwrap(command)
    kind = action_name(action)
    if kind not in ("AT_ValidateConstraint", "AT_SetNotNull") or "index" not in waiting:
        return [command]
    place = (alter.relation.schemaname, alter.relation.relname)
    tables = [t for t in event["tables"].values() if (t["schema"], t["name"]) == place]
    for constraint in (c for table in tables for c in table["constraints"] if c["type"] in "cn" and c["validated"]):
        name, definition = sql.Identifier(constraint["name"]).as_string(), constraint["definition"]
        if kind == "AT_SetNotNull":
            proven = definition == not_null(action.name) and constraint["name"] != f"{place[1]}_{action.name}_not_null"
        else:
            proven = constraint["name"] == action.name
        if proven:
            added = f"ALTER TABLE t DROP CONSTRAINT IF EXISTS {name}, ADD CONSTRAINT {name} {definition}"
            return list(statement_node(parse(added)).cmds)
    return [command]


def not_null(column: str) -> str:
    """A constraint's definition."""
    return f"NOT NULL {sql.Identifier(column).as_string()}"


def _replace(nodes: Node, kept: list[Node]) -> None:
    copies = []
    for node in kept:
        copy = type(node)()
        copy.CopyFrom(node)
        copies.append(copy)
    del nodes[:]
    nodes.extend(copies)
