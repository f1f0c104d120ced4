"""What a role that the target lacks owns would be ours there: what runs with its owner's rights, or shows what only
these may read, is refused where the role is not trusted (`following.missing_owners` for what comes later)."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_pgddl.engine.preflight.facts import Facts
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.rights.trust import untrusted

NAMED = 5  # objects of one role that a finding names


def ownerless(facts: Facts) -> Iterator[Finding]:
    """A finding for each such role."""
    if facts.target is None or facts.pipeline.ddl.missing_role != "ignore":
        return
    side = facts.target
    there = {role for (role,) in side.conn.execute("SELECT rolname FROM pg_catalog.pg_roles")}
    found = [row for row in facts.source.rows("owned_code", oids=list(facts.names)) if row[0] not in there]
    if not found:
        return
    tables = {(schema, name) for _, kind, schema, name, _ in found if kind == "RULE"}
    named = side.rows("named", schemas=[s for s, _ in tables], names=[n for _, n in tables])
    known = {("RULE", schema, name) for schema, name, oid, _ in named if oid is not None}
    objects = {*side.rows("objects")}
    owned: dict[str, list[str]] = {}
    for role, kind, schema, name, quoted in found:
        if (kind, schema, name, quoted) not in objects and (kind, schema, name) not in known:
            owned.setdefault(role, []).append(f"{kind.lower()} {quoted}")
    for role in sorted(untrusted(facts.source.conn, {*owned}, facts.pipeline.trusted_roles)):
        listed = ", ".join(owned[role][:NAMED])
        more = f" and {len(owned[role]) - NAMED} more" if len(owned[role]) > NAMED else ""
        what = f"the target has no role {role}: {listed}{more} would belong to us there, and do what we may"
        fix = (
            f"CREATE ROLE {side.name(role)};\n-- or in the pipeline file, if this may run with our rights:\n"
            f"-- trusted_roles: [{role}]\n-- or as another role's:\n-- ddl: {{missing_role: {{{role}: another}}}}"
        )
        yield Finding("error", "role", "target", None, what, fix)
