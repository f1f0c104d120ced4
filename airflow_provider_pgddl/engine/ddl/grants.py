"""Statements about rights: reduced to what is in scope, since their events name no objects; roles renamed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from postgast import pg_query_pb2

from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    deparse,
    kind_of,
    parse,
    qualified,
    relation,
    statement_node,
    texts,
    unwrap,
    walk,
)
from airflow_provider_pgddl.engine.model.names import Name

CoversObject = Callable[[str | None, Name | None], bool]


def reduce(node: Node, covers: CoversObject) -> tuple[int, list[str]]:
    """Takes what is out of scope out of the statement: how many objects are left, and the names of those that went."""
    kind = kind_of(node)
    if kind == "AlterDefaultPrivilegesStmt":
        for option in (unwrap(each) for each in node.options):
            if option.defname == "schemas":
                return _keep(unwrap(option.arg).items, lambda item: (item.sval, None), covers)
        return (1 if covers(None, None) else 0), []
    if kind != "GrantStmt":
        return 1, []
    target = pg_query_pb2.GrantTargetType.Name(node.targtype)
    name = pg_query_pb2.ObjectType.Name(node.objtype)
    if target == "ACL_TARGET_ALL_IN_SCHEMA" or name == "OBJECT_SCHEMA":
        return _keep(node.objects, lambda item: (item.sval, None), covers)
    return _keep(node.objects, _place, covers)


def taken_back(statement: str) -> str:
    """REVOKE for a GRANT, and the other way."""
    tree = parse(statement)
    node = statement_node(tree)
    node.is_grant, node.grant_option = not node.is_grant, False
    return deparse(tree)


def without_temporary(node: Node, names: Mapping[str, str]) -> int:
    """Takes temporary relations out of a GRANT, whose event does not tell them apart: how many objects are left."""
    if kind_of(node) != "GrantStmt":
        return 1
    for position in reversed(range(len(node.objects))):
        item = unwrap(node.objects[position])
        if kind_of(item) == "RangeVar" and (item.schemaname or names.get(item.relname, "")).startswith("pg_temp"):
            del node.objects[position]
    return len(node.objects)


def named(node: Node) -> list[Name]:
    """The relations that a GRANT names."""
    if kind_of(node) != "GrantStmt":
        return []
    objects = (unwrap(each) for each in node.objects)
    return [relation(each) for each in objects if kind_of(each) == "RangeVar"]


def _place(item: Node) -> tuple[str | None, Name | None]:
    kind = kind_of(item)
    if kind == "RangeVar":
        return item.schemaname or None, relation(item) if item.schemaname else None
    parts = {"ObjectWithArgs": "objname", "List": "items"}.get(kind)
    name = qualified(texts(getattr(item, parts))) if parts else ("", "")
    return name[0] or None, None


def _keep(
    items: Node, place: Callable[[Node], tuple[str | None, Name | None]], covers: CoversObject
) -> tuple[int, list[str]]:
    gone: list[str] = []
    for position in reversed(range(len(items))):
        schema, name = place(unwrap(items[position]))
        if not covers(schema, name):
            gone.append(".".join(name) if name else schema or "what belongs to no schema")
            del items[position]
    return len(items), gone[::-1]


def map_roles(statement: str, mapping: Mapping[str, str]) -> str:
    """The statement with roles by their names on the target: GRANT, OWNER TO, POLICY … TO, FOR ROLE, AUTHORIZATION."""
    tree = parse(statement)
    found = False
    for node in walk(statement_node(tree)):
        if kind_of(node) == "RoleSpec" and node.rolename in mapping:
            node.rolename = mapping[node.rolename]
            found = True
    return deparse(tree) if found else statement
