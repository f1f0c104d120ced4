"""Code that would be ours on the target, since its owner is missing there: it would run with our rights, or show what
only we may read. Preflight looks as well (`preflight.missing_owners`); this is for what came behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.node_names import def_elements, object_type_words
from airflow_provider_pgddl.engine.ddl.parse import Node, kind_of, parse, start_of, statement_node
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.following.source_dump import DumpStep
from airflow_provider_pgddl.engine.following.target_roles import TargetRoles
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.rights.trust import untrusted

_YES = {"true", "on", "yes", "1"}


def refuse_ownerless(context: Context, steps: Sequence[DumpStep]) -> None:
    """StageFailed where a step would make such a thing for a role that the source does not trust."""
    owners = _missing(context, (step.event for step in steps))
    if not owners:
        return
    strange = untrusted(context.source, {*owners.values()}, context.pipeline.trusted_roles)
    made = {_key(s.event) for s in steps if s.status == "pending" and s.event.tag.startswith("CREATE ")}
    made -= {_key(s.event) for s in steps if s.status == "skipped" and s.event.tag == "CREATE TABLE"}  # its rules
    for step in steps:
        key = _key(step.event)
        owner = owners.get(key) if key in made else None
        if step.status == "pending" and owner in strange and _runs_as_owner(statement_node(parse(step.statement))):
            create = f"CREATE ROLE {sql.Identifier(owner).as_string()};"
            raise StageFailed(
                f"it would belong to us on the target, which has no role {owner}: {start_of(step.statement)}",
                table=".".join(step.event.table) if step.event.table else None,
                todo=f"on the target: {create} or map it in ddl.missing_role, or name it in trusted_roles (it is ours"
                " then); then run the stage again",
                sql=create,
            )


def _missing(context: Context, events: Iterable[DdlEvent]) -> dict[object, str]:
    roles = TargetRoles(context)
    owners = ((event, roles.fitted(event)) for event in events if _gives(event))
    return {_key(event): fitted.missing[0] for event, fitted in owners if not fitted.is_left}


def _gives(event: DdlEvent) -> bool:
    """Whether it says whose something is."""
    if not event.roles or not event.tag.startswith("ALTER "):
        return False
    return event.kind == "owner" or kind_of(statement_node(parse(event.statement))) == "AlterOwnerStmt"


def _key(event: DdlEvent) -> object:
    """A relation, or another object of a schema; a dump's ALTER TABLE … OWNER TO is about views as well."""
    return event.table or ((event.schema, event.name), event.arguments)


def _runs_as_owner(node: Node) -> bool:
    kind = kind_of(node)
    if kind == "CreateFunctionStmt":
        security = def_elements(node.options).get("security")
        return security is not None and bool(security.boolval)
    if kind == "ViewStmt":
        invoker = def_elements(node.options).get("security_invoker")
        return invoker is None or kind_of(invoker) != "String" or invoker.sval.lower() not in _YES
    if kind == "CreateTableAsStmt":
        return object_type_words(node.objtype) == "MATERIALIZED VIEW"
    return kind == "RuleStmt"
