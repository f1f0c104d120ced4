"""The actions of an ALTER TABLE by pgl_ddl_deploy's names, and those left out by name cut out of a statement. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_provider_pgddl.engine.ddl.node_names import action_name, constraint_kind
from airflow_provider_pgddl.engine.ddl.parse import Node, unwrap

# As get_altertable_subcmdinfo() of Postgres' test_ddl_deparse prints them, which pgl_ddl_deploy took over.
_NAMES: Mapping[str, str] = {
    "AT_AddColumn": "ADD COLUMN",
    "AT_AddColumnToView": "ADD COLUMN TO VIEW",
    "AT_ColumnDefault": "ALTER COLUMN SET DEFAULT",
    "AT_CookedColumnDefault": "ALTER COLUMN SET DEFAULT (precooked)",
    "AT_DropNotNull": "DROP NOT NULL",
    "AT_SetNotNull": "SET NOT NULL",
    "AT_SetExpression": "SET EXPRESSION",
    "AT_DropExpression": "DROP EXPRESSION",
    "AT_SetStatistics": "SET STATS",
    "AT_SetOptions": "SET OPTIONS",
    "AT_ResetOptions": "RESET OPTIONS",
    "AT_SetStorage": "SET STORAGE",
    "AT_SetCompression": "SET COMPRESSION",
    "AT_DropColumn": "DROP COLUMN",
    "AT_AddIndex": "ADD INDEX",
    "AT_AddConstraint": "ADD CONSTRAINT",
    "AT_AlterConstraint": "ALTER CONSTRAINT",
    "AT_ValidateConstraint": "VALIDATE CONSTRAINT",
    "AT_AddIndexConstraint": "ADD CONSTRAINT (using index)",
    "AT_DropConstraint": "DROP CONSTRAINT",
    "AT_AlterColumnType": "ALTER COLUMN SET TYPE",
    "AT_AlterColumnGenericOptions": "ALTER COLUMN SET OPTIONS",
    "AT_ChangeOwner": "CHANGE OWNER",
    "AT_ClusterOn": "CLUSTER",
    "AT_DropCluster": "DROP CLUSTER",
    "AT_SetLogged": "SET LOGGED",
    "AT_SetUnLogged": "SET UNLOGGED",
    "AT_DropOids": "DROP OIDS",
    "AT_SetAccessMethod": "SET ACCESS METHOD",
    "AT_SetTableSpace": "SET TABLESPACE",
    "AT_SetRelOptions": "SET RELOPTIONS",
    "AT_ResetRelOptions": "RESET RELOPTIONS",
    "AT_ReplaceRelOptions": "REPLACE RELOPTIONS",
    "AT_EnableTrig": "ENABLE TRIGGER",
    "AT_EnableAlwaysTrig": "ENABLE TRIGGER (always)",
    "AT_EnableReplicaTrig": "ENABLE TRIGGER (replica)",
    "AT_DisableTrig": "DISABLE TRIGGER",
    "AT_EnableTrigAll": "ENABLE TRIGGER (all)",
    "AT_DisableTrigAll": "DISABLE TRIGGER (all)",
    "AT_EnableTrigUser": "ENABLE TRIGGER (user)",
    "AT_DisableTrigUser": "DISABLE TRIGGER (user)",
    "AT_EnableRule": "ENABLE RULE",
    "AT_EnableAlwaysRule": "ENABLE RULE (always)",
    "AT_EnableReplicaRule": "ENABLE RULE (replica)",
    "AT_DisableRule": "DISABLE RULE",
    "AT_AddInherit": "ADD INHERIT",
    "AT_DropInherit": "DROP INHERIT",
    "AT_AddOf": "OF",
    "AT_DropOf": "NOT OF",
    "AT_ReplicaIdentity": "REPLICA IDENTITY",
    "AT_EnableRowSecurity": "ENABLE ROW SECURITY",
    "AT_DisableRowSecurity": "DISABLE ROW SECURITY",
    "AT_ForceRowSecurity": "FORCE ROW SECURITY",
    "AT_NoForceRowSecurity": "NO FORCE ROW SECURITY",
    "AT_GenericOptions": "SET OPTIONS",
    "AT_AttachPartition": "ATTACH PARTITION",
    "AT_DetachPartition": "DETACH PARTITION",
    "AT_DetachPartitionFinalize": "DETACH PARTITION ... FINALIZE",
    "AT_AddIdentity": "ADD IDENTITY",
    "AT_SetIdentity": "SET IDENTITY",
    "AT_DropIdentity": "DROP IDENTITY",
}

# What the server makes of an action while it runs it; whoever excludes one of these means the action itself.
_VARIANTS: Mapping[str, str] = {
    "ADD COLUMN (and recurse)": "ADD COLUMN",
    "DROP COLUMN (and recurse)": "DROP COLUMN",
    "ADD CONSTRAINT (and recurse)": "ADD CONSTRAINT",
    "(re) ADD CONSTRAINT": "ADD CONSTRAINT",
    "ADD (processed) CONSTRAINT": "ADD CONSTRAINT",
    "VALIDATE CONSTRAINT (and recurse)": "VALIDATE CONSTRAINT",
    "DROP CONSTRAINT (and recurse)": "DROP CONSTRAINT",
    "(re) ADD INDEX": "ADD INDEX",
    "SET STATISTICS": "SET STATS",
}

KNOWN = frozenset(_NAMES.values()) | frozenset(_VARIANTS)
"""Every name that `exclude_alter_table_subcommands` understands."""


def meant(names: Collection[str]) -> frozenset[str]:
    """Names as people write them, capitals and spaces aside, as names of actions; unknown ones stay as they are."""
    spelling = {name.upper(): name for name in KNOWN}
    plain = (" ".join(name.split()) for name in names)
    known = (spelling.get(name.upper(), name) for name in plain)
    return frozenset(_VARIANTS.get(name, name) for name in known)


def subcommand(command: Node) -> str:
    """The name of an AlterTableCmd. A key or an EXCLUDE is an index to the server, so ``ADD INDEX``."""
    action = action_name(command)
    if action == "AT_AddConstraint":
        constraint = unwrap(getattr(command, "def"))
        if constraint.indexname:
            return "ADD CONSTRAINT (using index)"
        if constraint_kind(constraint) in ("primary key", "unique", "exclude"):
            return "ADD INDEX"
    return _NAMES.get(action, action)


def cut(statement: Node, excluded: Collection[str]) -> list[str]:
    """Takes excluded actions (`meant`) out of an ALTER TABLE and says which; the rest may be none."""
    cut_out: list[str] = []
    for position in reversed(range(len(statement.cmds))):
        name = subcommand(unwrap(statement.cmds[position]))
        if name in excluded:
            del statement.cmds[position]
            cut_out.append(name)
    return cut_out[::-1]
