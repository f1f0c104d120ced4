"""A statement with every name spelled out, so that it means the same under any search_path. Pure.

The subject's schema comes from the event's objects (catalog facts), all others from the event's `names` and
`functions`: words as the client's search_path had them at the end of the command. A word for which that is not what
it was at its beginning (a name that the command itself made or took away) is not guessed at: CannotQualify.
"""

from __future__ import annotations

from collections.abc import Sequence

from postgast import ParseResult, pg_query_pb2

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, TableMeta
from airflow_provider_pgddl.engine.ddl.event_objects import EventObject
from airflow_provider_pgddl.engine.ddl.parse import Node, kind_of, parse, statement_node, unwrap, walk
from airflow_provider_pgddl.engine.ddl.search_path_names import (
    WITHIN,
    CannotQualify,
    Words,
    copied,
    qualify_rest,
    set_first,
    set_schema,
)
from airflow_provider_pgddl.engine.errors import StageFailed

__all__ = ["CannotQualify", "qualify"]


def qualify(tree: ParseResult, event: CapturedEvent, targets: Sequence[EventObject]) -> None:
    """Spells out the names of a statement of the event in place; CannotQualify where one stays in doubt."""
    node = statement_node(tree)
    kind = kind_of(node)
    if kind == "CreateSchemaStmt":
        _qualify_schema(node, event, targets)
        return
    _name_session_user(node, event)
    target = targets[0] if targets else None
    changed: frozenset[str] = frozenset()
    if target is not None:
        changed = _changed(node, kind, target)
        _qualify_subject(node, kind, target, event)
    if kind == "IndexStmt" and target is not None and not node.idxname:
        node.idxname = target.name or ""  # the target may have other names in the way
    if kind in ("CreateStmt", "AlterTableStmt") and target is not None and target.oid is not None:
        _name_constraints(node, event["tables"].get(str(target.oid)))
    qualify_rest(node, Words(event["names"], event["functions"], changed, not event["nested"]))


def _name_session_user(node: Node, event: CapturedEvent) -> None:
    """SESSION_USER by name: on the target it would be us."""
    for role in walk(node):
        if kind_of(role) == "RoleSpec" and role.roletype == pg_query_pb2.ROLESPEC_SESSION_USER:
            role.roletype, role.rolename = pg_query_pb2.ROLESPEC_CSTRING, event["session_role"]


_WITH_INDEX = {pg_query_pb2.CONSTR_PRIMARY, pg_query_pb2.CONSTR_UNIQUE}


def _name_constraints(node: Node, table: TableMeta | None) -> None:
    """What makes an index without a name gets the one that it has got: on the target another may be free, which a table
    has whose indexes are still to be built. One of several alike is left to the server."""
    made = [
        (each["name"], constraint)
        for each in (table["constraints"] if table else ())
        if each["type"] in "pu" and (constraint := _constraint(each["definition"])) is not None
    ]
    column = ""
    for each in walk(node):
        column = each.colname if kind_of(each) == "ColumnDef" else column
        if kind_of(each) != "Constraint" or each.contype not in _WITH_INDEX or each.conname or each.indexname:
            continue
        keys = _keys(each) or [column]
        alike = [name for name, other in made if (other.contype, _keys(other)) == (each.contype, keys)]
        if len(alike) == 1:
            each.conname = alike[0]


def _constraint(definition: str) -> Node | None:
    """None where an older server has printed a column's name bare that is a keyword by now."""
    try:
        tree = parse(f"ALTER TABLE t ADD {definition}")
    except StageFailed:
        return None
    return next(each for each in walk(statement_node(tree)) if kind_of(each) == "Constraint")


def _keys(constraint: Node) -> list[str]:
    return [key.string.sval for key in constraint.keys]


_MAKES_RELATION = {
    "CreateStmt",
    "ViewStmt",
    "CreateTableAsStmt",
    "CreateForeignTableStmt",
    "CreateSeqStmt",
    "CompositeTypeStmt",
    "CreateEnumStmt",
    "CreateRangeStmt",
    "CreateDomainStmt",
    "IndexStmt",
}


def _changed(node: Node, kind: str, target: EventObject) -> frozenset[str]:
    """The words that the command gave another meaning: what it made, and a renamed or moved object's old name."""
    words = {target.name} if kind in _MAKES_RELATION and target.type != "index" else set[str | None]()
    if kind == "RenameStmt" and not node.subname and node.newname:
        words |= {target.name, node.newname}
        if node.HasField("relation"):
            words.add(node.relation.relname)
    elif kind == "AlterObjectSchemaStmt":
        words.add(target.name)
    return frozenset(word for word in words if word)


def _qualify_subject(node: Node, kind: str, target: EventObject, event: CapturedEvent) -> None:
    schema = target.schema
    if kind == "AlterObjectSchemaStmt":
        schema = target.before[0] if target.before is not None else _only_schema(event)
        if schema is None and target.schema is not None and _is_bare(node):
            raise CannotQualify(f"the schema of {target.name} before it was moved is not known")
    if schema is None:
        return
    if kind in _BY_RANGE:
        set_schema(getattr(node, _BY_RANGE[kind]), schema)
    elif kind == "CreateForeignTableStmt":
        set_schema(node.base_stmt.relation, schema)
    elif kind == "CreateTableAsStmt":
        set_schema(node.into.rel, schema)
    elif kind in _BY_LIST:
        set_first(getattr(node, _BY_LIST[kind]), 1, schema)
    elif kind == "AlterFunctionStmt":
        set_first(node.func.objname, 1, schema)
    elif kind in _BY_EITHER:
        if node.HasField("relation"):
            set_schema(node.relation, schema)
        else:
            type_field = "rename_type" if kind == "RenameStmt" else "object_type"
            _set_object(unwrap(node.object), getattr(node, type_field), schema)
    elif kind in ("CommentStmt", "SecLabelStmt"):
        _set_object(unwrap(node.object), node.objtype, schema)


_BY_RANGE = {
    "CreateStmt": "relation",
    "ViewStmt": "view",
    "AlterTableStmt": "relation",
    "IndexStmt": "relation",
    "CreateTrigStmt": "relation",
    "RuleStmt": "relation",
    "CreatePolicyStmt": "table",
    "AlterPolicyStmt": "table",
    "CreateSeqStmt": "sequence",
    "AlterSeqStmt": "sequence",
    "CompositeTypeStmt": "typevar",
    "RefreshMatViewStmt": "relation",
}
_BY_LIST = {
    "CreateEnumStmt": "type_name",
    "CreateRangeStmt": "type_name",
    "AlterEnumStmt": "type_name",
    "AlterTypeStmt": "type_name",
    "CreateDomainStmt": "domainname",
    "AlterDomainStmt": "type_name",
    "CreateStatsStmt": "defnames",
    "AlterStatsStmt": "defnames",
    "AlterCollationStmt": "collname",
    "CreateConversionStmt": "conversion_name",
    "CreateOpClassStmt": "opclassname",
    "CreateOpFamilyStmt": "opfamilyname",
    "AlterOpFamilyStmt": "opfamilyname",
    "AlterTSConfigurationStmt": "cfgname",
    "AlterTSDictionaryStmt": "dictname",
    "CreateFunctionStmt": "funcname",
    "DefineStmt": "defnames",
}
_BY_EITHER = {"RenameStmt", "AlterObjectSchemaStmt", "AlterOwnerStmt", "AlterObjectDependsStmt"}


def _is_bare(node: Node) -> bool:
    """Whether a SET SCHEMA names its object without a schema."""
    if node.HasField("relation"):
        return not node.relation.schemaname
    thing = unwrap(node.object)
    parts = {"List": "items", "TypeName": "names", "ObjectWithArgs": "objname"}.get(kind_of(thing))
    return parts is not None and len(getattr(thing, parts)) == 1


def _only_schema(event: CapturedEvent) -> str | None:
    """Where an unqualified object other than a relation was before it was moved: certain with one schema only."""
    schemas = [each for each in event["path"] if not each.startswith(("pg_catalog", "pg_temp", "pg_toast"))]
    return schemas[0] if len(schemas) == 1 else None


_IN_SCHEMA = {
    "OBJECT_TABLE",
    "OBJECT_VIEW",
    "OBJECT_MATVIEW",
    "OBJECT_FOREIGN_TABLE",
    "OBJECT_INDEX",
    "OBJECT_SEQUENCE",
    "OBJECT_TYPE",
    "OBJECT_DOMAIN",
    "OBJECT_COLLATION",
    "OBJECT_CONVERSION",
    "OBJECT_STATISTIC_EXT",
    "OBJECT_TSCONFIGURATION",
    "OBJECT_TSDICTIONARY",
    "OBJECT_TSPARSER",
    "OBJECT_TSTEMPLATE",
    "OBJECT_DOMCONSTRAINT",
}


def _set_object(thing: Node, objtype: int, schema: str) -> None:
    """An object that is named as COMMENT names it."""
    name = pg_query_pb2.ObjectType.Name(objtype)
    kind = kind_of(thing)
    if kind == "ObjectWithArgs":
        if name != "OBJECT_OPERATOR" or len(thing.objname) == 1:
            set_first(thing.objname, 1, schema)
    elif kind == "TypeName":
        set_first(thing.names, 1, schema)
    elif kind == "List":
        first = unwrap(thing.items[0])
        if kind_of(first) == "TypeName":  # of a domain's constraint
            if name == "OBJECT_DOMCONSTRAINT":
                set_first(first.names, 1, schema)
        elif name in WITHIN:
            set_first(thing.items, 2, schema)
        elif name in ("OBJECT_OPCLASS", "OBJECT_OPFAMILY"):
            _set_behind_method(thing.items, schema)
        elif name in _IN_SCHEMA:
            set_first(thing.items, 1, schema)


def _set_behind_method(parts: Node, schema: str) -> None:
    """An operator class is a list of its access method and its name."""
    if len(parts) == 2:
        own = copied(parts[1])
        parts[1].string.sval = schema
        parts.add().CopyFrom(own)


def _qualify_schema(node: Node, event: CapturedEvent, targets: Sequence[EventObject]) -> None:
    """CREATE SCHEMA with its elements, which are made, and looked for first, in the new schema."""
    if not node.schemaname and targets and targets[0].name:
        node.schemaname = targets[0].name
    elements = [unwrap(element) for element in node.schema_elts]
    made = {}
    for element in elements:
        kind = kind_of(element)
        if kind in ("CreateStmt", "ViewStmt", "CreateSeqStmt"):
            own = getattr(element, _BY_RANGE[kind])
            made[own.relname] = node.schemaname
            set_schema(own, node.schemaname)
    words = Words({**event["names"], **made}, event["functions"], frozenset(), not event["nested"])
    for element in elements:
        qualify_rest(element, words)
