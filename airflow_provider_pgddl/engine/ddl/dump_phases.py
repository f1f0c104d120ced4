"""When a statement of a dump is applied: the phases of a move. Pure."""

from __future__ import annotations

from typing import Literal, get_args

from postgast import ParseResult

from airflow_provider_pgddl.engine.ddl.node_names import action_name, constraint_kind, object_type_words
from airflow_provider_pgddl.engine.ddl.parse import Node, kind_of, statement_node, texts, unwrap
from airflow_provider_pgddl.engine.errors import StageFailed

DumpSection = Literal["pre-data", "post-data"]

Phase = Literal["create", "index", "foreign_key", "finish", "noise"]
"""
create       what rows need: schemas, types, functions, sequences, tables, defaults, views
index        on full tables: indexes, constraints other than foreign keys, statistics, and what needs those
foreign_key  once the tables are live
finish       what acts on writers or tells about things: triggers, rules, policies, grants, comments, refreshed views
             (grants on what is new and OPEN_TO_ALL, or on a new schema, come with it: `following.new_rights`)
noise        never applied: settings of a dump's session, rows, what is not ours to carry
"""

PHASES: tuple[Phase, ...] = get_args(Phase)

FINISHING = {
    "CreateTrigStmt",
    "CreateEventTrigStmt",
    "AlterEventTrigStmt",
    "CreatePolicyStmt",
    "AlterPolicyStmt",
    "CommentStmt",
    "SecLabelStmt",
    "GrantStmt",
    "GrantRoleStmt",
    "AlterDefaultPrivilegesStmt",
    "RefreshMatViewStmt",
}
# Everybody may use these unless that is taken away (kinds of objects as a GRANT calls them).
OPEN_TO_ALL = ("FUNCTION", "PROCEDURE", "ROUTINE", "TYPE", "DOMAIN", "LANGUAGE")
_ROWS = {"InsertStmt", "UpdateStmt", "DeleteStmt", "MergeStmt", "CopyStmt"}
# Replication is set up by us or by people, never copied; --no-publications and --no-subscriptions say the same.
_REPLICATION = {
    "CreatePublicationStmt",
    "AlterPublicationStmt",
    "CreateSubscriptionStmt",
    "AlterSubscriptionStmt",
}
_USER_MAPPINGS = {"CreateUserMappingStmt", "AlterUserMappingStmt"}
_SECTION = {
    "AlterDomainStmt",
    "AlterExtensionContentsStmt",
    "AlterExtensionStmt",
    "AlterFunctionStmt",
    "AlterObjectDependsStmt",
    "AlterOpFamilyStmt",
    "AlterOperatorStmt",
    "AlterOwnerStmt",
    "AlterSeqStmt",
    "AlterStatsStmt",
    "AlterTSConfigurationStmt",
    "AlterTSDictionaryStmt",
    "AlterTypeStmt",
    "AlterCollationStmt",
    "AlterFdwStmt",
    "AlterForeignServerStmt",
    "AlterEnumStmt",
    "AlterObjectSchemaStmt",
    "RenameStmt",
    "CompositeTypeStmt",
    "CreateAmStmt",
    "CreateCastStmt",
    "CreateConversionStmt",
    "CreateDomainStmt",
    "CreateEnumStmt",
    "CreateExtensionStmt",
    "CreateFdwStmt",
    "CreateForeignServerStmt",
    "CreateForeignTableStmt",
    "CreateFunctionStmt",
    "CreateOpClassStmt",
    "CreateOpFamilyStmt",
    "CreatePLangStmt",
    "CreateRangeStmt",
    "CreateSchemaStmt",
    "CreateSeqStmt",
    "CreateStmt",
    "CreateTableAsStmt",
    "CreateTransformStmt",
    "DefineStmt",
    "ViewStmt",
}
FINISHING_ACTIONS = ("AT_Enable", "AT_Disable", "AT_ForceRowSecurity", "AT_NoForceRowSecurity")
_INDEX_ACTIONS = {"AT_AddIndex", "AT_AddIndexConstraint", "AT_ClusterOn", "AT_ReplicaIdentity", "AT_SetNotNull"}

# The settings in which a dump is to be read. default_tablespace and the access method change what a
# CREATE TABLE means: events_from_dump writes them into the statements.
_SETTINGS = {
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "transaction_timeout",
    "client_encoding",
    "standard_conforming_strings",
    "check_function_bodies",
    "xmloption",
    "client_min_messages",
    "row_security",
    "escape_string_warning",
    "default_tablespace",
    "default_table_access_method",
    "default_with_oids",
    "session_authorization",  # of whoever granted, where that is not the owner
}
# Functions that a dump calls: one setting, sequences' positions and planner statistics (rows' business).
_CALLED = {"set_config", "setval", "pg_restore_relation_stats", "pg_restore_attribute_stats"}


def phase_of(tree: ParseResult, section: DumpSection) -> Phase:
    """The phase of one statement of a dump; StageFailed for what pg_dump --schema-only never prints."""
    node = statement_node(tree)
    kind = kind_of(node)
    later: Phase = "create" if section == "pre-data" else "index"
    if kind == "AlterOwnerStmt" and object_type_words(node.object_type) in ("PUBLICATION", "SUBSCRIPTION"):
        return "noise"
    # A schema may have been there before: its owner changes when all else that cannot be taken back does. On a schema
    # that the snapshot makes, owner and grants come with it (stages/snapshot.py).
    if kind == "AlterOwnerStmt" and object_type_words(node.object_type) in ("EVENT TRIGGER", "SCHEMA"):
        return "finish"
    if kind == "AlterObjectDependsStmt" and object_type_words(node.object_type) == "TRIGGER":
        return "finish"  # behind its CREATE TRIGGER
    if kind == "CommentStmt" and _is_of_every_database(node):
        return "noise"
    if kind in _SECTION:
        return later
    if kind in FINISHING:
        return "finish"
    if kind in ("IndexStmt", "CreateStatsStmt"):
        return "index"
    if kind == "RuleStmt":
        return "index" if node.rulename == "_RETURN" else "finish"  # an old spelling of CREATE VIEW
    if kind == "AlterTableStmt":
        commands = [_phase_of_action(unwrap(command), later) for command in node.cmds]
        return max(commands, key=PHASES.index)
    if kind in _ROWS | _REPLICATION | _USER_MAPPINGS:
        return "noise"
    if kind == "VariableSetStmt":
        return _setting(node)
    if kind == "SelectStmt":
        return _call(node)
    raise StageFailed(f"a dump of a schema is not expected to hold a statement of this kind ({kind})")


def _is_of_every_database(comment: Node) -> bool:
    """Of schema public, as initdb makes it. pg_dump prints it where it quotes all names; its owner alone may set it."""
    is_public = object_type_words(comment.objtype) == "SCHEMA" and unwrap(comment.object).sval == "public"
    return bool(is_public and comment.comment == "standard public schema")


def _phase_of_action(command: Node, later: Phase) -> Phase:
    action = action_name(command)
    if action == "AT_AddConstraint":
        return "foreign_key" if constraint_kind(unwrap(getattr(command, "def"))) == "foreign key" else "index"
    if action.startswith(FINISHING_ACTIONS):
        return "finish"
    if action in _INDEX_ACTIONS:
        return "index"
    if action == "AT_ValidateConstraint":
        return "foreign_key"
    return later


def _setting(node: Node) -> Phase:
    if node.name not in _SETTINGS:
        raise StageFailed(f"a dump is not expected to change the setting {node.name}")
    if node.name == "standard_conforming_strings" and setting_value(node) != "on":
        raise StageFailed(
            "the source has standard_conforming_strings off: its dump cannot be read",
            todo="turn it on for the role or database that pg_dump uses",
            sql="ALTER ROLE CURRENT_USER SET standard_conforming_strings = on;",
        )
    return "noise"


def setting_value(node: Node) -> str:
    """The value of a SET as text; '' for SET … TO DEFAULT."""
    values = [unwrap(argument) for argument in node.args]
    constant = values[0] if values else None
    if constant is None or kind_of(constant) != "A_Const":
        return ""
    which = constant.WhichOneof("val")
    value = getattr(constant, which)
    return str(getattr(value, value.DESCRIPTOR.fields[0].name))


def _call(node: Node) -> Phase:
    targets = [unwrap(unwrap(target).val) for target in node.target_list]
    calls = [texts(call.funcname) for call in targets if kind_of(call) == "FuncCall"]
    if node.from_clause:
        calls += [texts(call.funcname) for call in _calls_in(node.from_clause)]
    names = [call[-1] for call in calls if call[0] == "pg_catalog"]
    if len(names) != 1 or names[0] not in _CALLED:
        raise StageFailed("a dump of a schema is not expected to run this query")
    if names[0] == "set_config" and [_text(argument) for argument in targets[0].args[:2]] != ["search_path", ""]:
        raise StageFailed("a dump is expected to empty search_path, and to change no other setting by set_config")
    return "noise"


def _calls_in(from_clause: Node) -> list[Node]:
    functions = [unwrap(item) for item in from_clause if kind_of(unwrap(item)) == "RangeFunction"]
    return [unwrap(unwrap(part).items[0]) for function in functions for part in function.functions]


def _text(node: Node) -> str:
    constant = unwrap(node)
    return constant.sval.sval if kind_of(constant) == "A_Const" else "?"
