"""A statement with every name spelled out, so that it means the same under any search_path. Pure.

The subject's schema comes from the event's objects (catalog facts), all others from the event's `names` and
`functions`: words as the client's search_path had them at the end of the command. A word for which that is not what
it was at its beginning (a name that the command itself made or took away) is not guessed at: CannotQualify.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from postgast import ParseResult, PgQueryError, pg_query_pb2
from postgast import parse as parse_any

from airflow_provider_pgddl.engine.ddl.captured import CapturedEvent
from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    kind_of,
    quoted,
    relation,
    statement_node,
    texts,
    unwrap,
    walk,
)
from airflow_provider_pgddl.engine.ddl.targets import Target


class CannotQualify(Exception):
    """A name cannot be told for certain; `args[0]` says which and why."""


@dataclass(frozen=True, slots=True)
class _Words:
    relations: Mapping[str, str]
    functions: Mapping[str, str]
    changed: frozenset[str]
    """Words that name something else behind the command than before it."""
    complete: bool
    """Whether what is not in them is certainly none of the client's; not so for text within functions."""

    def relation(self, word: str) -> str | None:
        """The schema of a relation; None for what pg_catalog has."""
        if word not in self.relations and not self.complete:
            raise CannotQualify(f"the schema of {word} is not known")
        return self.type(word)

    def type(self, word: str) -> str | None:
        """The schema of a type; None for what pg_catalog has, or the search_path has to find."""
        if word in self.changed:
            raise CannotQualify(f"{word} can name what was there before the command or what it made")
        return _permanent(self.relations.get(word), word)

    def referenced(self, word: str) -> str:
        """The schema of a foreign key's table: looked up when a new table is there, and never in pg_catalog."""
        if word not in self.relations:
            raise CannotQualify(f"the schema of {word} is not known")
        return _permanent(self.relations[word], word) or ""

    def function(self, word: str) -> str | None:
        return _permanent(self.functions.get(word), word)


def _permanent(schema: str | None, word: str) -> str | None:
    if schema is not None and schema.startswith(("pg_temp", "pg_toast")):
        raise CannotQualify(f"{word} is a temporary object")
    return None if schema == "pg_catalog" else schema


def qualify(tree: ParseResult, event: CapturedEvent, targets: Sequence[Target]) -> None:
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
    _qualify_rest(node, _Words(event["names"], event["functions"], changed, not event["nested"]))


def _name_session_user(node: Node, event: CapturedEvent) -> None:
    """SESSION_USER by name: on the target it would be us."""
    for role in walk(node):
        if kind_of(role) == "RoleSpec" and role.roletype == pg_query_pb2.ROLESPEC_SESSION_USER:
            role.roletype, role.rolename = pg_query_pb2.ROLESPEC_CSTRING, event["session_role"]


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


def _changed(node: Node, kind: str, target: Target) -> frozenset[str]:
    """The words that the command gave another meaning: what it made, and a renamed or moved object's old name."""
    words = {target.name} if kind in _MAKES_RELATION and target.type != "index" else set[str | None]()
    if kind == "RenameStmt" and not node.subname and node.newname:
        words |= {target.name, node.newname}
        if node.HasField("relation"):
            words.add(node.relation.relname)
    elif kind == "AlterObjectSchemaStmt":
        words.add(target.name)
    return frozenset(word for word in words if word)


def _qualify_subject(node: Node, kind: str, target: Target, event: CapturedEvent) -> None:
    schema = target.schema
    if kind == "AlterObjectSchemaStmt":
        schema = target.before[0] if target.before is not None else _only_schema(event)
        if schema is None and target.schema is not None and _is_bare(node):
            raise CannotQualify(f"the schema of {target.name} before it was moved is not known")
    if schema is None:
        return
    if kind in _BY_RANGE:
        _set_schema(getattr(node, _BY_RANGE[kind]), schema)
    elif kind == "CreateForeignTableStmt":
        _set_schema(node.base_stmt.relation, schema)
    elif kind == "CreateTableAsStmt":
        _set_schema(node.into.rel, schema)
    elif kind in _BY_LIST:
        _set_first(getattr(node, _BY_LIST[kind]), 1, schema)
    elif kind == "AlterFunctionStmt":
        _set_first(node.func.objname, 1, schema)
    elif kind in _BY_EITHER:
        if node.HasField("relation"):
            _set_schema(node.relation, schema)
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


def _set_schema(range_var: Node, schema: str) -> None:
    if not range_var.schemaname:
        range_var.schemaname = schema


def _set_first(parts: Node, bare: int, schema: str) -> None:
    """Puts a schema in front of a list of names that has `bare` parts without it."""
    if len(parts) == bare:
        rest = [_copied(part) for part in parts]
        del parts[:]
        parts.add().string.sval = schema
        for part in rest:
            parts.add().CopyFrom(part)


def _copied(node: Node) -> Node:
    copy = type(node)()
    copy.CopyFrom(node)
    return copy


_WITHIN = {"OBJECT_COLUMN", "OBJECT_TABCONSTRAINT", "OBJECT_TRIGGER", "OBJECT_RULE", "OBJECT_POLICY"}
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
            _set_first(thing.objname, 1, schema)
    elif kind == "TypeName":
        _set_first(thing.names, 1, schema)
    elif kind == "List":
        first = unwrap(thing.items[0])
        if kind_of(first) == "TypeName":  # of a domain's constraint
            if name == "OBJECT_DOMCONSTRAINT":
                _set_first(first.names, 1, schema)
        elif name in _WITHIN:
            _set_first(thing.items, 2, schema)
        elif name in ("OBJECT_OPCLASS", "OBJECT_OPFAMILY"):
            _set_behind_method(thing.items, schema)
        elif name in _IN_SCHEMA:
            _set_first(thing.items, 1, schema)


def _set_behind_method(parts: Node, schema: str) -> None:
    """An operator class is a list of its access method and its name."""
    if len(parts) == 2:
        own = _copied(parts[1])
        parts[1].string.sval = schema
        parts.add().CopyFrom(own)


def _qualify_schema(node: Node, event: CapturedEvent, targets: Sequence[Target]) -> None:
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
            _set_schema(own, node.schemaname)
    words = _Words({**event["names"], **made}, event["functions"], frozenset(), not event["nested"])
    for element in elements:
        _qualify_rest(element, words)


def _qualify_rest(root: Node, words: _Words) -> None:
    """Every name that is left, with an eye on WITH: what a query names so itself is no relation."""
    stack: list[tuple[Node, frozenset[str]]] = [(root, frozenset())]
    while stack:
        node, hidden = stack.pop()
        node = unwrap(node)
        kind = kind_of(node)
        if kind == "LockingClause":  # FOR UPDATE OF names aliases
            continue
        if kind == "RangeVar":
            if not node.schemaname and node.relname not in hidden:
                schema = words.relation(node.relname)
                node.schemaname = schema or ""
            continue
        _qualify_lists(node, kind, words)
        if "with_clause" in node.DESCRIPTOR.fields_by_name and node.HasField("with_clause"):
            stack.extend(_with(node.with_clause, hidden))
            hidden |= {unwrap(each).ctename for each in node.with_clause.ctes}
            stack.extend((child, hidden) for child in _children(node, leave_out="with_clause"))
        elif kind == "Constraint" and node.HasField("pktable"):
            if not node.pktable.schemaname:
                node.pktable.schemaname = words.referenced(node.pktable.relname)
            stack.extend((child, hidden) for child in _children(node, leave_out="pktable"))
        else:
            stack.extend((child, hidden) for child in _children(node))


def _with(clause: Node, hidden: frozenset[str]) -> Iterable[tuple[Node, frozenset[str]]]:
    """The queries of a WITH, each with the names that it sees."""
    queries = [unwrap(each) for each in clause.ctes]
    if clause.recursive:
        hidden |= {query.ctename for query in queries}
    for query in queries:
        yield query, hidden
        hidden |= {query.ctename}


def _children(node: Node, leave_out: str = "") -> Iterable[Node]:
    for field, value in node.ListFields():
        if field.message_type is not None and field.name != leave_out:
            yield from value if isinstance(value, Iterable) else (value,)


def _qualify_lists(node: Node, kind: str, words: _Words) -> None:
    """Names that are lists of strings, and names in strings that are read as names."""
    if kind == "TypeName":
        if node.pct_type:
            _relation_in_front(node.names, 2, words)
        elif len(node.names) == 1 and (schema := words.type(texts(node.names)[0])) is not None:
            _set_first(node.names, 1, schema)
    elif kind == "FuncCall":
        if texts(node.funcname)[-1:] in (["nextval"], ["setval"], ["currval"]) and node.args:
            _qualify_text(unwrap(node.args[0]), words)
        _function_in_front(node.funcname, words)
    elif kind in ("CreateTrigStmt", "CreateEventTrigStmt"):
        _function_in_front(node.funcname, words)
    elif kind == "ObjectWithArgs":
        if all(word[:1].isalpha() or word[:1] == "_" or ord(word[:1] or "a") > 127 for word in texts(node.objname)):
            _function_in_front(node.objname, words)
    elif kind == "TypeCast":
        if texts(node.type_name.names)[-1:] == ["regclass"]:
            _qualify_text(unwrap(node.arg), words)
    elif kind == "DefElem":
        _qualify_option(node, words)
    elif kind == "CommentStmt" and kind_of(unwrap(node.object)) == "List":
        _qualify_commented(node, words)
    elif kind == "GrantStmt" and pg_query_pb2.ObjectType.Name(node.objtype) in ("OBJECT_TYPE", "OBJECT_DOMAIN"):
        for each in node.objects:
            parts = unwrap(each).items
            if len(parts) == 1 and (schema := words.type(texts(parts)[0])) is not None:
                _set_first(parts, 1, schema)


def _qualify_option(node: Node, words: _Words) -> None:
    argument = unwrap(node.arg)
    kind = kind_of(argument)
    if node.defname == "owned_by" and kind == "List":
        _relation_in_front(argument.items, 2, words)
    elif node.defname == "sequence_name" and kind == "List":
        _relation_in_front(argument.items, 1, words)
    elif kind == "TypeName" and node.defname in _FUNCTION_OPTIONS and len(argument.names) == 1:
        schema = words.function(texts(argument.names)[0])
        if schema is not None:
            _set_first(argument.names, 1, schema)


# Of CREATE AGGREGATE, OPERATOR and TYPE: functions that the grammar takes for types.
_FUNCTION_OPTIONS = {
    "sfunc", "finalfunc", "combinefunc", "serialfunc", "deserialfunc", "msfunc", "minvfunc", "mfinalfunc", "function",
    "procedure", "restrict", "join", "input", "output", "receive", "send", "typmod_in", "typmod_out", "analyze",
    "subscript", "canonical", "subtype_diff",
}  # fmt: skip


def _qualify_commented(node: Node, words: _Words) -> None:
    """What a COMMENT of an event without a target of its own names."""
    if pg_query_pb2.ObjectType.Name(node.objtype) in _WITHIN:
        _relation_in_front(unwrap(node.object).items, 2, words)


def _relation_in_front(parts: Node, bare: int, words: _Words) -> None:
    found = texts(parts)
    if len(parts) == bare and len(found) == bare:
        schema = words.relation(found[0])
        if schema is not None:
            _set_first(parts, bare, schema)


def _function_in_front(parts: Node, words: _Words) -> None:
    if len(parts) == 1:
        schema = words.function(texts(parts)[0])
        if schema is not None:
            _set_first(parts, 1, schema)


def _qualify_text(node: Node, words: _Words) -> None:
    """``'orders_id_seq'`` where it is read as a relation's name, also behind a cast."""
    if kind_of(node) == "TypeCast":
        node = unwrap(node.arg)
    if kind_of(node) != "A_Const" or not node.HasField("sval"):
        return
    try:
        found = relation(unwrap(statement_node(parse_any(f"TABLE {node.sval.sval}")).from_clause[0]))
    except (PgQueryError, IndexError, AttributeError):
        return
    if found[0] == "" and (schema := words.relation(found[1])) is not None:
        node.sval.sval = quoted((schema, found[1]))
