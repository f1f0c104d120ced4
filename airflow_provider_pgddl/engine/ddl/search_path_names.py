"""Names in a syntax tree that a search_path would find, spelled out by what they meant to the client. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from postgast import PgQueryError, pg_query_pb2
from postgast import parse as parse_any

from airflow_provider_pgddl.engine.ddl.parse import Node, kind_of, quoted, relation, statement_node, texts, unwrap


class CannotQualify(Exception):
    """A name cannot be told for certain; `args[0]` says which and why."""


@dataclass(frozen=True, slots=True)
class Words:
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


def qualify_rest(root: Node, words: Words) -> None:
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


def _qualify_lists(node: Node, kind: str, words: Words) -> None:
    """Names that are lists of strings, and names in strings that are read as names."""
    if kind == "TypeName":
        if node.pct_type:
            _relation_in_front(node.names, 2, words)
        elif len(node.names) == 1 and (schema := words.type(texts(node.names)[0])) is not None:
            set_first(node.names, 1, schema)
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
                set_first(parts, 1, schema)


def _qualify_option(node: Node, words: Words) -> None:
    argument = unwrap(node.arg)
    kind = kind_of(argument)
    if node.defname == "owned_by" and kind == "List":
        _relation_in_front(argument.items, 2, words)
    elif node.defname == "sequence_name" and kind == "List":
        _relation_in_front(argument.items, 1, words)
    elif kind == "TypeName" and node.defname in _FUNCTION_OPTIONS and len(argument.names) == 1:
        schema = words.function(texts(argument.names)[0])
        if schema is not None:
            set_first(argument.names, 1, schema)


# Of CREATE AGGREGATE, OPERATOR and TYPE: functions that the grammar takes for types.
_FUNCTION_OPTIONS = {
    "sfunc", "finalfunc", "combinefunc", "serialfunc", "deserialfunc", "msfunc", "minvfunc", "mfinalfunc", "function",
    "procedure", "restrict", "join", "input", "output", "receive", "send", "typmod_in", "typmod_out", "analyze",
    "subscript", "canonical", "subtype_diff",
}  # fmt: skip


def _qualify_commented(node: Node, words: Words) -> None:
    """What a COMMENT of an event without a target of its own names."""
    if pg_query_pb2.ObjectType.Name(node.objtype) in WITHIN:
        _relation_in_front(unwrap(node.object).items, 2, words)


def _relation_in_front(parts: Node, bare: int, words: Words) -> None:
    found = texts(parts)
    if len(parts) == bare and len(found) == bare:
        schema = words.relation(found[0])
        if schema is not None:
            set_first(parts, bare, schema)


def _function_in_front(parts: Node, words: Words) -> None:
    if len(parts) == 1:
        schema = words.function(texts(parts)[0])
        if schema is not None:
            set_first(parts, 1, schema)


def _qualify_text(node: Node, words: Words) -> None:
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


WITHIN = {"OBJECT_COLUMN", "OBJECT_TABCONSTRAINT", "OBJECT_TRIGGER", "OBJECT_RULE", "OBJECT_POLICY"}


def set_schema(range_var: Node, schema: str) -> None:
    if not range_var.schemaname:
        range_var.schemaname = schema


def set_first(parts: Node, bare: int, schema: str) -> None:
    """Puts a schema in front of a list of names that has `bare` parts without it."""
    if len(parts) == bare:
        rest = [copied(part) for part in parts]
        del parts[:]
        parts.add().string.sval = schema
        for part in rest:
            parts.add().CopyFrom(part)


def copied(node: Node) -> Node:
    copy = type(node)()
    copy.CopyFrom(node)
    return copy
