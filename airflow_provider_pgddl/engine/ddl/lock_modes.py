"""The locks that a statement takes on the relations that it names, as Postgres documents them. Pure."""

from __future__ import annotations

from airflow_provider_pgddl.engine.ddl.node_names import action_name, constraint_kind
from airflow_provider_pgddl.engine.ddl.parse import Node, kind_of, parse, relation, statement_node, unwrap, walk
from airflow_provider_pgddl.engine.ddl.subject import subject_of
from airflow_provider_pgddl.engine.model.names import Name

MODES = (
    "ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE",
    "EXCLUSIVE", "ACCESS EXCLUSIVE",
)  # fmt: skip
"""From the weakest to the strongest; writers wait for SHARE and what is behind it, readers for the last."""

# On the relation that the statement is about; ALTER TABLE is told by its actions.
_MODES = {
    "COMMENT": "SHARE UPDATE EXCLUSIVE",
    "CREATE INDEX": "SHARE",
    "CREATE POLICY": "ACCESS EXCLUSIVE",
    "ALTER POLICY": "ACCESS EXCLUSIVE",
    "DROP POLICY": "ACCESS EXCLUSIVE",
    "CREATE RULE": "ACCESS EXCLUSIVE",
    "DROP RULE": "ACCESS EXCLUSIVE",
    "CREATE STATISTICS": "SHARE UPDATE EXCLUSIVE",
    "CREATE TRIGGER": "SHARE ROW EXCLUSIVE",
    "DROP TRIGGER": "ACCESS EXCLUSIVE",
    "DROP TABLE": "ACCESS EXCLUSIVE",
    "DROP VIEW": "ACCESS EXCLUSIVE",
    "DROP MATERIALIZED VIEW": "ACCESS EXCLUSIVE",
    "DROP SEQUENCE": "ACCESS EXCLUSIVE",
    "ALTER TABLE": "ACCESS EXCLUSIVE",
    "ALTER VIEW": "ACCESS EXCLUSIVE",
    "ALTER MATERIALIZED VIEW": "ACCESS EXCLUSIVE",
    "ALTER SEQUENCE": "SHARE ROW EXCLUSIVE",
    "REFRESH MATERIALIZED VIEW": "ACCESS EXCLUSIVE",
}
_ACTIONS = {
    "AT_ValidateConstraint": "SHARE UPDATE EXCLUSIVE",
    "AT_SetStatistics": "SHARE UPDATE EXCLUSIVE",
    "AT_SetOptions": "SHARE UPDATE EXCLUSIVE",
    "AT_ResetOptions": "SHARE UPDATE EXCLUSIVE",
    "AT_SetRelOptions": "SHARE UPDATE EXCLUSIVE",
    "AT_ResetRelOptions": "SHARE UPDATE EXCLUSIVE",
    "AT_ClusterOn": "SHARE UPDATE EXCLUSIVE",
    "AT_DropCluster": "SHARE UPDATE EXCLUSIVE",
    "AT_EnableTrig": "SHARE ROW EXCLUSIVE",
    "AT_EnableAlwaysTrig": "SHARE ROW EXCLUSIVE",
    "AT_EnableReplicaTrig": "SHARE ROW EXCLUSIVE",
    "AT_EnableTrigAll": "SHARE ROW EXCLUSIVE",
    "AT_EnableTrigUser": "SHARE ROW EXCLUSIVE",
    "AT_DisableTrig": "SHARE ROW EXCLUSIVE",
    "AT_DisableTrigAll": "SHARE ROW EXCLUSIVE",
    "AT_DisableTrigUser": "SHARE ROW EXCLUSIVE",
    "AT_AttachPartition": "SHARE UPDATE EXCLUSIVE",
}


def locks(statement: str) -> list[tuple[Name, str]]:
    """Each relation that one DDL statement names and that is there before it, with the mode; those that are merely
    read, and relations that Postgres finds by itself (a dropped key's other table), are left out."""
    node = statement_node(parse(statement))
    kind, subject = kind_of(node), subject_of(parse(statement))
    if kind == "LockStmt":
        return [(relation(unwrap(one)), MODES[node.mode - 1]) for one in node.relations]
    found: dict[Name, str] = {}
    if kind == "CreateStmt":
        for inner in walk(node):
            _take(found, _referenced(inner), "SHARE ROW EXCLUSIVE")
        for parent in node.inh_relations:  # also the table that this is to be a partition of
            mode = "ACCESS EXCLUSIVE" if node.HasField("partbound") else "SHARE UPDATE EXCLUSIVE"
            _take(found, relation(unwrap(parent)), mode)
        return list(found.items())
    if kind == "AlterTableStmt" and subject.tag == "ALTER TABLE":
        for command in map(unwrap, node.cmds):
            _take(found, relation(node.relation), _mode_of_action(command))
            _take(found, _referenced(unwrap(getattr(command, "def"))), "SHARE ROW EXCLUSIVE")
            if action_name(command) == "AT_AttachPartition":
                _take(found, relation(unwrap(getattr(command, "def")).name), "ACCESS EXCLUSIVE")
        return list(found.items())
    if kind == "IndexStmt":
        _take(found, relation(node.relation), "SHARE UPDATE EXCLUSIVE" if node.concurrent else "SHARE")
        return list(found.items())
    own = (subject.schema, subject.name) if subject.schema and subject.name else None
    about = own if subject.kind == "sequence" else subject.table or own
    if subject.tag in _MODES:
        _take(found, about, _MODES[subject.tag])
    return list(found.items())


def _take(found: dict[Name, str], name: Name | None, mode: str) -> None:
    if name is not None and MODES.index(mode) >= MODES.index(found.get(name, MODES[0])):
        found[name] = mode


def _mode_of_action(command: Node) -> str:
    action = action_name(command)
    if action == "AT_AddConstraint" and constraint_kind(unwrap(getattr(command, "def"))) == "foreign key":
        return "SHARE ROW EXCLUSIVE"
    return _ACTIONS.get(action, "ACCESS EXCLUSIVE")


def _referenced(node: Node | None) -> Name | None:
    """The table that a foreign key refers to."""
    if node is None or kind_of(node) != "Constraint" or constraint_kind(node) != "foreign key":
        return None
    return relation(node.pktable)
