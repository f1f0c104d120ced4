"""Code of roles that are not trusted, on the tables at hand: what runs behind the wall, and what is refused (C28)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.preflight.facts import Facts
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.rights.foreign_code import Code, Survey
from airflow_provider_pgddl.engine.rights.trust import more

NAMED = 3  # pieces of code of one table that a finding names


def refused(facts: Facts) -> Iterator[Finding]:
    """What would run with rights that its author has not, wall or no wall."""
    for oid, found in facts.surveyed.items():
        for why in found.refused:
            author = found.code[0].author if found.code else found.role
            fix = f"-- in the pipeline file, if this code may run with our rights:\ntrusted_roles: [{author}]"
            yield Finding("error", "foreign_code", "source", facts.written(oid), why, fix)


def unmade(facts: Facts) -> Iterator[Finding]:
    """What would run while the target's table is made, or for columns that are not written there."""
    if facts.target is None:
        return
    with_rows = {facts.names[oid]: found for oid, found in facts.surveyed.items()}
    for table, found in {**facts.surveyed_structure, **with_rows}.items():
        for code in found.code:
            if code.kind == "partition key":
                what = f"{code} runs where the table is made, as us"
            elif table in facts.pipeline.skipped_columns:
                what = f"{code} is on a table of which columns are left out, whose values cannot be kept as its owner"
            else:
                continue
            fix = f"-- in the pipeline file, if this code may run with our rights:\ntrusted_roles: [{code.author}]"
            yield Finding("error", "foreign_code", "source", written(*table), what, fix)
            break


def guarded(facts: Facts) -> Iterator[Finding]:
    """What runs as the table's owner, and what the owner needs for that."""
    for oid, found in facts.surveyed.items():
        if found.code and not found.refused:
            what = f"{_listed(found.code)} runs as {found.role}, behind a wall; rows of this table move more slowly"
            yield Finding("warning", "foreign_code", "source", facts.written(oid), what)
            yield from _rights(facts, oid, found)


def _rights(facts: Facts, oid: int, found: Survey) -> Iterator[Finding]:
    """An owner may have been left without what everybody who uses the table has."""
    side, role = facts.source, found.role
    for schema, privilege in side.rows("owner_lacks", oid=oid, role=role):
        what = f"its owner {role}, as whom it is read for code of {role}'s, lacks {privilege} on schema {schema}"
        fix = f"GRANT {privilege} ON SCHEMA {side.name(schema)} TO {side.name(role)};"
        yield Finding("error", "foreign_code", "source", facts.written(oid), what, fix)
    if not side.server["superuser"] and side.rows("may_make_walls", role=role) != [(True,)]:
        what = f"role {role}, as whom code of its own runs, may not make temporary objects in this database"
        fix = f"GRANT TEMPORARY ON DATABASE {side.name(side.server['database'])} TO {side.name(role)};"
        yield Finding("error", "foreign_code", "source", facts.written(oid), what, fix)


def without_usage(facts: Facts) -> Iterator[Finding]:
    """A schema that was on the target before keeps its owner and its grants until the swap, while indexes are built as
    their tables' owners, and rows written behind a wall as these."""
    if facts.target is None:
        return
    mapping = facts.pipeline.ddl.other_roles
    owners = {found.role: oid for oid, found in facts.surveyed.items() if found.code}
    owners |= {role: oid for oid, role in facts.source.rows("owners_of_expressions", oids=facts.row_oids)}
    for role, oid in sorted(owners.items()):
        schemas = [schema for (schema,) in facts.source.rows("usable_schemas", role=role)]
        there = mapping.get(role, role)
        for (schema,) in facts.target.rows("unusable_schemas", role=there, schemas=schemas):
            what = f"its owner {there}, as whom indexes are built, lacks USAGE on schema {schema} there"
            fix = f"GRANT USAGE ON SCHEMA {facts.target.name(schema)} TO {facts.target.name(there)};"
            yield Finding("error", "foreign_code", "target", facts.written(oid), what, fix)


def missing_authors(facts: Facts) -> Iterator[Finding]:
    """What a role that the target lacks has written would be ours there, and run as we do."""
    if facts.target is None:
        return
    mapping = facts.pipeline.ddl.other_roles
    authors = sorted({code.author for found in facts.surveyed.values() for code in found.code})
    there = {role for (role,) in facts.target.conn.execute("SELECT rolname FROM pg_catalog.pg_roles")}
    for author in authors:
        if mapping.get(author, author) in there:
            continue
        oid, code = next((oid, code) for oid, f in facts.surveyed.items() for code in f.code if code.author == author)
        what = f"{code} would belong to us on the target, which has no role {author}, and run with our rights"
        fix = f"CREATE ROLE {facts.target.name(author)};"
        yield Finding("error", "foreign_code", "target", facts.written(oid), what, fix)


def raised(facts: Facts) -> Iterator[Finding]:
    """Whose code, or DDL, could do on the target what its author cannot on the source."""
    if facts.target is None:
        return
    roles = {code.author for found in facts.surveyed.values() for code in found.code}
    trusted = facts.pipeline.trusted_roles
    for role, taken_by in sorted(more(facts.target.conn, facts.source.conn, roles, trusted).items()):
        what = f"code of role {role} would run there with rights that {role} has not on the source"
        yield Finding("error", "foreign_code", "target", None, what, "\n".join(sorted(taken_by)))


def _listed(code: Sequence[Code]) -> str:
    more = f" and {len(code) - NAMED} more" if len(code) > NAMED else ""
    return ", ".join(map(str, code[:NAMED])) + more
