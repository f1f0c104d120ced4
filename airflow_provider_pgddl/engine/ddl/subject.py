"""What one DDL statement is about: its tag, its object, the table it belongs to, what it mentions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from postgast import ParseResult, pg_query_pb2

from airflow_provider_pgddl.engine.ddl.node_names import action_name, constraint_kind, def_elements, object_type_words
from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    dotted_names,
    kind_of,
    qualified,
    relation,
    statement_node,
    texts,
    unwrap,
    walk,
)
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A statement's object. Names are (schema, name), schema '' where the statement leaves it out."""

    tag: str
    """The command tag, as event triggers report it: ``ALTER TABLE``."""
    kind: str
    """The kind of object in Postgres' words, constraints told apart: ``table``, ``primary key``, ``foreign key``."""
    schema: str | None = None
    name: str | None = None
    """The object's own name; for a constraint, trigger, policy or rule the name that it has within its table."""
    table: Name | None = None
    """The relation it is or belongs to, as far as the statement alone says (an index's own statements do not)."""
    mentions: tuple[Name, ...] = ()
    """Other relations in it: referenced tables, a view's tables, partitions, ``'…'::regclass``."""
    types: tuple[Name, ...] = ()
    """Schema-qualified types in it, row types of tables among them."""
    functions: tuple[Name, ...] = ()
    """Schema-qualified functions that it calls."""
    arguments: tuple[str, ...] | None = None
    """A function's types of arguments, which tell it from others of its name."""
    roles: tuple[str, ...] = ()
    index: Name | None = None
    """The index that it makes (also by a constraint)."""
    sequence: Name | None = None
    """The sequence that it ties to `table` (OWNED BY, identity)."""


def subject_of(tree: ParseResult) -> Subject:
    """What the one statement of a tree is about; StageFailed for a statement of a kind that is not known here."""
    node = statement_node(tree)
    subject = _own(node)
    own = {subject.table, (subject.schema, subject.name)}
    mentions: dict[Name, None] = {}
    types: dict[Name, None] = {}
    functions: dict[Name, None] = {}
    roles: dict[str, None] = {}
    for child in walk(node):
        kind = kind_of(child)
        if kind == "RangeVar" and child.schemaname:
            mentions[relation(child)] = None
        elif kind == "TypeName":
            parts = texts(child.names)
            if len(parts) > 1 and parts[0] != "pg_catalog":
                types[qualified(parts)] = None
        elif kind == "TypeCast" and texts(child.type_name.names)[-1:] == ["regclass"]:
            mentions.update((qualified(chain), None) for chain in dotted_names(child.arg.a_const.sval.sval))
        elif kind in _CALLS and len(parts := texts(getattr(child, _CALLS[kind]))) > 1:
            functions[qualified(parts)] = None
        elif kind == "RoleSpec" and child.rolename:
            roles[child.rolename] = None
    found: dict[str, Any] = {
        "mentions": tuple(name for name in mentions if name not in own),
        "types": tuple(name for name in types if name not in own),
        "functions": tuple(name for name in functions if name not in own),
        "roles": tuple(roles),
    }
    return replace(subject, **found) if any(found.values()) else subject


# Where functions are called by name.
_CALLS = {"FuncCall": "funcname", "CreateTrigStmt": "funcname", "CreateEventTrigStmt": "funcname"}


# Relations that hold columns: a statement about one of these belongs to it.
_RELATIONS = {"TABLE", "VIEW", "MATERIALIZED VIEW", "FOREIGN TABLE", "COLUMN"}

# Objects that are named within a table: (… table, name).
_WITHIN_TABLE = {"TABCONSTRAINT", "TRIGGER", "RULE", "POLICY", "DEFAULT"}


# ALTER TABLE's actions that get a kind of their own; all others are about the table.
_ACTIONS = {
    "AT_ColumnDefault": "default",
    "AT_AddIdentity": "identity",
    "AT_AttachPartition": "partition",
    "AT_DetachPartition": "partition",
    "AT_ChangeOwner": "owner",
    "AT_ClusterOn": "cluster",
    "AT_ReplicaIdentity": "replica identity",
    "AT_EnableRowSecurity": "row security",
    "AT_DisableRowSecurity": "row security",
    "AT_ForceRowSecurity": "row security",
    "AT_NoForceRowSecurity": "row security",
}


def _own(node: Node) -> Subject:
    kind = kind_of(node)
    if kind in _NAMED_BY_RANGE:
        tag, field = _NAMED_BY_RANGE[kind]
        return _relation(tag, getattr(node, field))
    if kind in _NAMED_BY_LIST:
        tag, field = _NAMED_BY_LIST[kind]
        return _object(tag, qualified(texts(getattr(node, field))))
    if kind in _NAMED_BY_STRING:
        tag, field = _NAMED_BY_STRING[kind]
        return _object(tag, ("", getattr(node, field)))
    if kind in _WITHIN:
        tag, table, field = _WITHIN[kind]
        schema, relname = relation(getattr(node, table))
        return _object(tag, (schema, getattr(node, field)), table=(schema, relname))
    if kind in _TAG_ONLY:
        return Subject(tag=_TAG_ONLY[kind], kind=_TAG_ONLY[kind].lower().removeprefix("create ").removeprefix("alter "))
    special = _SPECIAL.get(kind)
    if special is None:
        raise StageFailed(f"a statement of a kind that is not known here ({kind})")
    return special(node)


def _object(
    tag: str, name: Name, *, table: Name | None = None, kind: str | None = None, index: Name | None = None
) -> Subject:
    kind = kind or tag.lower().removeprefix("create ").removeprefix("alter ").removeprefix("drop ")
    return Subject(tag=tag, kind=kind, schema=name[0] or None, name=name[1] or None, table=table, index=index)


def _relation(tag: str, range_var: Node) -> Subject:
    name = relation(range_var)
    return _object(tag, name, table=name)


_NAMED_BY_RANGE = {
    "CreateStmt": ("CREATE TABLE", "relation"),
    "ViewStmt": ("CREATE VIEW", "view"),
    "RefreshMatViewStmt": ("REFRESH MATERIALIZED VIEW", "relation"),
    "InsertStmt": ("INSERT", "relation"),
    "UpdateStmt": ("UPDATE", "relation"),
    "DeleteStmt": ("DELETE", "relation"),
    "MergeStmt": ("MERGE", "relation"),
    "CopyStmt": ("COPY", "relation"),
    "ClusterStmt": ("CLUSTER", "relation"),
}
_NAMED_BY_LIST = {
    "CreateEnumStmt": ("CREATE TYPE", "type_name"),
    "CreateRangeStmt": ("CREATE TYPE", "type_name"),
    "AlterEnumStmt": ("ALTER TYPE", "type_name"),
    "AlterTypeStmt": ("ALTER TYPE", "type_name"),
    "CreateDomainStmt": ("CREATE DOMAIN", "domainname"),
    "AlterDomainStmt": ("ALTER DOMAIN", "type_name"),
    "AlterStatsStmt": ("ALTER STATISTICS", "defnames"),
    "AlterCollationStmt": ("ALTER COLLATION", "collname"),
    "CreateConversionStmt": ("CREATE CONVERSION", "conversion_name"),
    "CreateOpClassStmt": ("CREATE OPERATOR CLASS", "opclassname"),
    "CreateOpFamilyStmt": ("CREATE OPERATOR FAMILY", "opfamilyname"),
    "AlterOpFamilyStmt": ("ALTER OPERATOR FAMILY", "opfamilyname"),
    "AlterTSConfigurationStmt": ("ALTER TEXT SEARCH CONFIGURATION", "cfgname"),
    "AlterTSDictionaryStmt": ("ALTER TEXT SEARCH DICTIONARY", "dictname"),
}
_NAMED_BY_STRING = {
    "CreateExtensionStmt": ("CREATE EXTENSION", "extname"),
    "AlterExtensionStmt": ("ALTER EXTENSION", "extname"),
    "AlterExtensionContentsStmt": ("ALTER EXTENSION", "extname"),
    "CreateEventTrigStmt": ("CREATE EVENT TRIGGER", "trigname"),
    "AlterEventTrigStmt": ("ALTER EVENT TRIGGER", "trigname"),
    "CreateFdwStmt": ("CREATE FOREIGN DATA WRAPPER", "fdwname"),
    "AlterFdwStmt": ("ALTER FOREIGN DATA WRAPPER", "fdwname"),
    "CreateForeignServerStmt": ("CREATE SERVER", "servername"),
    "AlterForeignServerStmt": ("ALTER SERVER", "servername"),
    "CreateUserMappingStmt": ("CREATE USER MAPPING", "servername"),
    "AlterUserMappingStmt": ("ALTER USER MAPPING", "servername"),
    "DropUserMappingStmt": ("DROP USER MAPPING", "servername"),
    "CreateAmStmt": ("CREATE ACCESS METHOD", "amname"),
    "CreatePLangStmt": ("CREATE LANGUAGE", "plname"),
    "CreatePublicationStmt": ("CREATE PUBLICATION", "pubname"),
    "AlterPublicationStmt": ("ALTER PUBLICATION", "pubname"),
    "CreateSubscriptionStmt": ("CREATE SUBSCRIPTION", "subname"),
    "AlterSubscriptionStmt": ("ALTER SUBSCRIPTION", "subname"),
    "DropSubscriptionStmt": ("DROP SUBSCRIPTION", "subname"),
    "VariableSetStmt": ("SET", "name"),
    "ImportForeignSchemaStmt": ("IMPORT FOREIGN SCHEMA", "remote_schema"),
}
_WITHIN = {
    "CreateTrigStmt": ("CREATE TRIGGER", "relation", "trigname"),
    "RuleStmt": ("CREATE RULE", "relation", "rulename"),
    "CreatePolicyStmt": ("CREATE POLICY", "table", "policy_name"),
    "AlterPolicyStmt": ("ALTER POLICY", "table", "policy_name"),
}
_TAG_ONLY = {
    "CreateCastStmt": "CREATE CAST",
    "SelectStmt": "SELECT",
    "DoStmt": "DO",
    "CallStmt": "CALL",
    "GrantRoleStmt": "GRANT ROLE",
    "AlterDefaultPrivilegesStmt": "ALTER DEFAULT PRIVILEGES",
    "TransactionStmt": "TRANSACTION",
    "LockStmt": "LOCK TABLE",
    "TruncateStmt": "TRUNCATE TABLE",
    "ReindexStmt": "REINDEX",
    "VacuumStmt": "VACUUM",
}


def _create_table_as(node: Node) -> Subject:
    tag = "CREATE MATERIALIZED VIEW" if object_type_words(node.objtype) == "MATERIALIZED VIEW" else "CREATE TABLE AS"
    return _relation("SELECT INTO" if node.is_select_into else tag, node.into.rel)


def _create_function(node: Node) -> Subject:
    tag = "CREATE PROCEDURE" if node.is_procedure else "CREATE FUNCTION"
    return replace(_object(tag, qualified(texts(node.funcname))), arguments=_arguments(node.parameters))


def _alter_function(node: Node) -> Subject:
    subject = _object(f"ALTER {object_type_words(node.objtype)}", qualified(texts(node.func.objname)))
    return replace(subject, arguments=_arguments(node.func.objfuncargs))


def _arguments(parameters: Iterable[Node]) -> tuple[str, ...]:
    """The types by which Postgres tells functions of one name apart."""
    inputs = (unwrap(parameter) for parameter in parameters)
    return tuple(
        ".".join(texts(each.arg_type.names)) + "[]" * len(each.arg_type.array_bounds)
        for each in inputs
        if pg_query_pb2.FunctionParameterMode.Name(each.mode) not in ("FUNC_PARAM_OUT", "FUNC_PARAM_TABLE")
    )


def _define(node: Node) -> Subject:
    return _object(f"CREATE {object_type_words(node.kind)}", qualified(texts(node.defnames)))


def _create_index(node: Node) -> Subject:
    table = relation(node.relation)
    name = (table[0], node.idxname)
    return _object("CREATE INDEX", name, table=table, index=name)


def _create_statistics(node: Node) -> Subject:
    tables = [unwrap(each) for each in node.relations]
    table = relation(tables[0]) if tables and kind_of(tables[0]) == "RangeVar" else None
    return _object("CREATE STATISTICS", qualified(texts(node.defnames)), table=table)


def _sequence(node: Node) -> Subject:
    name = relation(node.sequence)
    tag = "CREATE SEQUENCE" if kind_of(node) == "CreateSeqStmt" else "ALTER SEQUENCE"
    owner = def_elements(node.options).get("owned_by")
    column = texts(owner.items) if owner is not None else []
    if len(column) < 2:  # OWNED BY NONE has one part
        return _object(tag, name)
    return replace(_object(tag, name, table=qualified(column[:-1])), sequence=name)


def _alter_table(node: Node) -> Subject:
    objtype, name = object_type_words(node.objtype), relation(node.relation)
    tag = f"ALTER {objtype}"
    if objtype in ("INDEX", "SEQUENCE", "TYPE"):
        return _object(tag, name)
    subject = _object(tag, name, table=name)
    commands = [unwrap(command) for command in node.cmds]
    if len(commands) != 1:
        return subject
    command = commands[0]
    definition, action = unwrap(getattr(command, "def")), action_name(command)
    if action == "AT_AddConstraint":
        kind = constraint_kind(definition)
        index = (name[0], definition.conname) if kind in ("primary key", "unique", "exclude") else None
        return _object(tag, (name[0], definition.conname), table=name, kind=kind, index=index)
    if action.startswith(("AT_Enable", "AT_Disable")) and "RowSecurity" not in action:
        kind = "rule" if action.endswith("Rule") else "trigger"
        return _object(tag, (name[0], command.name), table=name, kind=kind)
    subject = replace(subject, kind=_ACTIONS.get(action, subject.kind))
    if action == "AT_AddIdentity":
        sequence = def_elements(definition.options).get("sequence_name")
        subject = replace(subject, sequence=qualified(texts(sequence.items)) if sequence is not None else None)
    return subject


def _create_foreign_table(node: Node) -> Subject:
    return _relation("CREATE FOREIGN TABLE", node.base_stmt.relation)


def _composite(node: Node) -> Subject:
    return _object("CREATE TYPE", relation(node.typevar))


def _create_transform(node: Node) -> Subject:
    return _object("CREATE TRANSFORM", qualified(texts(node.type_name.names)))


def _create_schema(node: Node) -> Subject:
    return replace(_object("CREATE SCHEMA", ("", node.schemaname)), schema=node.schemaname)


def _alter_operator(node: Node) -> Subject:
    return _object("ALTER OPERATOR", qualified(texts(node.opername.objname)))


def _grant(node: Node) -> Subject:
    tag = "GRANT" if node.is_grant else "REVOKE"
    first = unwrap(node.objects[0]) if node.objects else None
    return _of_type(tag, node.objtype, None, first)


def _comment(node: Node) -> Subject:
    return _of_type("COMMENT", node.objtype, None, unwrap(node.object))


def _security_label(node: Node) -> Subject:
    return _of_type("SECURITY LABEL", node.objtype, None, unwrap(node.object))


def _altered(node: Node) -> Subject:
    """ALTER … OWNER TO, SET SCHEMA, RENAME, DEPENDS ON EXTENSION."""
    type_field = "rename_type" if kind_of(node) == "RenameStmt" else "object_type"
    objtype = getattr(node, type_field)
    range_var = node.relation if node.HasField("relation") else None
    name = pg_query_pb2.ObjectType.Name(objtype).removeprefix("OBJECT_")
    if range_var is not None and (name in _WITHIN_TABLE or name in ("COLUMN", "ATTRIBUTE")):
        tag = {"TRIGGER": "ALTER TRIGGER", "POLICY": "ALTER POLICY", "RULE": "ALTER RULE"}.get(name, "ALTER TABLE")
        if kind_of(node) == "RenameStmt" and name in ("COLUMN", "ATTRIBUTE"):
            tag = f"ALTER {object_type_words(node.relation_type)}"
        table = relation(range_var)
        return _object(tag, table, table=table, kind=object_type_words(objtype).lower())
    return _of_type(
        f"ALTER {object_type_words(objtype)}", objtype, range_var, unwrap(node.object) if range_var is None else None
    )


def _drop(node: Node) -> Subject:
    first = unwrap(node.objects[0])
    return _of_type(f"DROP {object_type_words(node.remove_type)}", node.remove_type, None, first)


def _of_type(tag: str, objtype: int, range_var: Node | None, thing: Node | None) -> Subject:
    """The subject of a statement that names an object by its type: COMMENT, GRANT, ALTER … OWNER TO, DROP …"""
    name = pg_query_pb2.ObjectType.Name(objtype).removeprefix("OBJECT_")
    kind = object_type_words(objtype).lower()
    parts = [*relation(range_var)] if range_var is not None else _parts(thing)
    if name in _WITHIN_TABLE and len(parts) > 1:
        table = qualified(parts[:-1])
        return _object(tag, (table[0], parts[-1]), table=table, kind=kind)
    if name == "COLUMN" and len(parts) > 1:
        table = qualified(parts[:-1])
        return _object(tag, table, table=table, kind=kind)
    if name == "SCHEMA":
        return replace(_object(tag, ("", parts[-1] if parts else ""), kind=kind), schema=parts[-1] if parts else None)
    own = qualified(parts)
    subject = _object(tag, own, table=own if object_type_words(objtype) in _RELATIONS else None, kind=kind)
    if thing is not None and kind_of(thing) == "ObjectWithArgs":
        subject = replace(subject, arguments=_arguments(thing.objfuncargs))
    return subject


def _parts(thing: Node | None) -> list[str]:
    """The parts of an object's name, in any of the shapes in which the grammar keeps it."""
    if thing is None:
        return []
    kind = kind_of(thing)
    if kind == "String":
        return [thing.sval]
    if kind == "RangeVar":
        return [*relation(thing)]
    if kind == "TypeName":
        return texts(thing.names)
    if kind == "ObjectWithArgs":
        return texts(thing.objname)
    if kind == "List":
        parts: list[str] = []
        for item in (unwrap(each) for each in thing.items):
            parts += texts(item.names) if kind_of(item) == "TypeName" else texts([item])
        return parts
    return []


_SPECIAL = {
    "CreateTableAsStmt": _create_table_as,
    "CreateFunctionStmt": _create_function,
    "AlterFunctionStmt": _alter_function,
    "DefineStmt": _define,
    "IndexStmt": _create_index,
    "CreateStatsStmt": _create_statistics,
    "CreateSeqStmt": _sequence,
    "AlterSeqStmt": _sequence,
    "AlterTableStmt": _alter_table,
    "CreateForeignTableStmt": _create_foreign_table,
    "CompositeTypeStmt": _composite,
    "CreateTransformStmt": _create_transform,
    "CreateSchemaStmt": _create_schema,
    "AlterOperatorStmt": _alter_operator,
    "GrantStmt": _grant,
    "CommentStmt": _comment,
    "SecLabelStmt": _security_label,
    "AlterOwnerStmt": _altered,
    "AlterObjectSchemaStmt": _altered,
    "AlterObjectDependsStmt": _altered,
    "RenameStmt": _altered,
    "DropStmt": _drop,
}
