"""Roles that the target lacks, cut out of a statement; and owners for what was made with our own rights. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from postgast import pg_query_pb2
from psycopg import sql

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.node_names import action_name
from airflow_provider_pgddl.engine.ddl.parse import Node, deparse, kind_of, parse, statement_node, unwrap, walk
from airflow_provider_pgddl.engine.errors import StageFailed

# What can belong to somebody, as event triggers call it → as ALTER … OWNER TO calls it.
_OWNED = {
    name: name.upper()
    for name in (
        "table", "view", "materialized view", "foreign table", "sequence", "schema", "function", "procedure",
        "aggregate", "type", "domain", "collation", "conversion", "operator", "operator class", "operator family",
        "text search configuration", "text search dictionary", "server", "publication",
    )
}  # fmt: skip
_OWNED |= {
    "statistics object": "STATISTICS",
    "composite type": "TYPE",
    "foreign-data wrapper": "FOREIGN DATA WRAPPER",
}


def without_missing_roles(statement: str, roles: Collection[str], client: str) -> tuple[str | None, list[str]]:
    """(the statement without roles that are not among `roles`, those it named). CURRENT_USER is `client`.

    Who is to own a thing is cut out of what else the statement does, and one of several roles out of their list; what
    is then about no role is left out (None).
    """
    try:
        tree = parse(statement)
    except StageFailed:
        return statement, []
    node = statement_node(tree)
    missing = [role for role in dict.fromkeys(_named(node, client)) if role not in roles]
    if not missing:
        return statement, []
    kind = kind_of(node)
    if kind == "CreateSchemaStmt":
        node.schemaname = node.schemaname or _name(node.authrole, client)
        node.ClearField("authrole")
        return (None if any(True for _ in _named(node, client)) else deparse(tree)), missing
    if kind == "AlterTableStmt":
        kept = [copy(c) for c in node.cmds if not _gives_to(unwrap(c), missing, client)]
        if not kept:
            return None, missing
        del node.cmds[:]
        node.cmds.extend(kept)
        return deparse(tree), missing
    for roles_of_it in _lists(node):
        kept = [copy(role) for role in roles_of_it if _name(unwrap(role), client) not in missing]
        if not kept:
            return None, missing
        del roles_of_it[:]
        roles_of_it.extend(kept)
    left = any(role in missing for role in _named(node, client))
    return (None if left else deparse(tree)), missing


def _lists(node: Node) -> Iterator[Node]:
    """The lists of roles in a statement that means the same for each of them."""
    kind = kind_of(node)
    if kind == "GrantStmt":
        yield node.grantees
    elif kind in ("CreatePolicyStmt", "AlterPolicyStmt") and len(node.roles):
        yield node.roles
    elif kind == "AlterDefaultPrivilegesStmt":
        yield node.action.grantees
        for option in (unwrap(each) for each in node.options):
            if option.defname == "roles":
                yield unwrap(option.arg).items


def copy(node: Node) -> Node:
    made = type(node)()
    made.CopyFrom(node)
    return made


def _named(node: Node, client: str) -> Iterator[str]:
    for child in walk(node):
        if kind_of(child) == "RoleSpec" and (name := _name(child, client)):
            yield name
    if kind_of(node) == "AlterDefaultPrivilegesStmt" and "roles" not in {unwrap(o).defname for o in node.options}:
        yield client


def _name(role: Node, client: str) -> str:
    """'' for PUBLIC."""
    kind = pg_query_pb2.RoleSpecType.Name(role.roletype)
    return client if kind in _CLIENT else str(role.rolename)


_CLIENT = {"ROLESPEC_CURRENT_ROLE", "ROLESPEC_CURRENT_USER", "ROLESPEC_SESSION_USER"}


def _gives_to(command: Node, missing: Collection[str], client: str) -> bool:
    return action_name(command) == "AT_ChangeOwner" and _name(command.newowner, client) in missing


def gifts(
    event: CapturedEvent, mapping: Mapping[str, str], roles: Collection[str]
) -> Iterator[tuple[str, str, sql.Composed]]:
    """(type, identity, statement) that gives each object the event made to its owner, where that role is there.

    Indexes and the like follow their table.
    """
    for made in event["objects"]:
        owner = mapping.get(made["owner"] or "", made["owner"])
        kind = _OWNED.get(made["type"])
        if kind and owner in roles and made["tag"].startswith("CREATE ") and made["objsubid"] == 0:
            # The identity is Postgres' own, quoted and qualified by it.
            name = sql.SQL(made["identity"])
            yield (
                made["type"],
                made["identity"],
                sql.SQL("ALTER {} {} OWNER TO {}").format(sql.SQL(kind), name, sql.Identifier(owner or "")),
            )
