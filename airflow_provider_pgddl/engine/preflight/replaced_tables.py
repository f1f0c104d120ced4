"""Tables of the target that give way to copies at the swap (`tables.existing: replace`): what the swap could not move,
and what of them would be gone with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from airflow_provider_pgddl.engine.apply import dependents
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.preflight import rewriting, source_tables
from airflow_provider_pgddl.engine.preflight.facts import KINDS, Facts, Side, brought
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("replaced_tables")
_NOT_VALID_KEYS = 180_000  # from here on a partitioned table takes a foreign key that is NOT VALID


def replaced(facts: Facts) -> Iterator[Finding]:
    """Before anything is touched."""
    if facts.target is None or not facts.pipeline.replaces:
        return
    yield from _unlike(facts)
    there = Facts(facts.pipeline, [Side("source", facts.target.conn)], facts.rows)
    for check in (rewriting.swap_rights, rewriting.earlier_copies, rewriting.values_by_oid, *_UNDER_WAY):
        yield from (_on_target(finding) for finding in check(there))
    yield from _referring(facts.source.conn, there)
    yield from _lost(facts, there)


def what_replacing_breaks(
    pipeline: Pipeline, source: Session, target: Session, tables: Sequence[Name]
) -> Iterator[Finding]:
    """What has come since, asked before the fence goes up."""
    facts = Facts(pipeline, [Side("source", source), Side("target", target)], tables)
    there = Facts(pipeline, [Side("source", target)], tables)
    yield from _unlike(facts)
    for check in _UNDER_WAY:
        yield from (_on_target(finding) for finding in check(there))
    yield from _referring(source, there)


def retyped(old: Session, new: Session, tables: dict[int, int]) -> dict[int, list[str]]:
    """Columns that have another type in the new table than in the old one; `tables`: oid of the old → of the new."""
    before, after = catalog.describe(old, [*tables]), catalog.describe(new, [*tables.values()])
    found: dict[int, list[str]] = {}
    for oid, other in tables.items():
        now = {c.name: c.type for c in after[other].columns} if other in after else {}
        columns = before[oid].columns if oid in before else ()
        found[oid] = [c.name for c in columns if c.name in now and now[c.name] != c.type]
    return found


def _on_target(finding: Finding) -> Finding:
    """The checks of a rewrite in place, told of a table that is replaced."""
    words = {"rewriting it in place": "replacing it", "rewriting one in place": "replacing one",
             "rewriting a child in place": "replacing a child", "an earlier rewrite": "an earlier swap",
             "a table rewritten in place": "a table that is replaced",
             "rewrite it while": "replace it while", "both tables are rewritten": "both tables are replaced",
             "rewrite one after": "replace one after"}  # fmt: skip
    what, fix = finding.what, finding.fix
    for one, other in words.items():
        what, fix = what.replace(one, other), fix.replace(one, other) if fix else fix
    return replace(finding, where="target", what=what, fix=fix)


def _unlike(facts: Facts) -> Iterator[Finding]:
    """Kinds of tables that are not replaced yet, and what is no table at all."""
    assert facts.target is not None
    side, ours = facts.target, brought(facts.target, facts.rows)
    for relation in facts.relations:
        if facts.names.get(relation.oid) in facts.rows and (relation.kind == "p" or relation.is_partition):
            what = "is partitioned; tables.existing: replace of one is not built yet"
            yield Finding("error", "partitioned", "source", relation.written, what, "leave it out")
    for child, parent, *_ in facts.source.rows("inheritance", oids=facts.row_oids):
        oid = child if child in facts.names else parent
        what = "inherits, or is inherited from; tables.existing: replace of one is not built yet"
        yield Finding("error", "inheritance", "source", facts.written(oid), what, "leave it out")
    found = side.rows("named", schemas=[s for s, _ in facts.rows], names=[t for _, t in facts.rows])
    for schema, name, oid, kind in found:
        if oid is None:
            continue
        if kind != "r":
            what = f"cannot be replaced: it is {KINDS.get(kind, 'something else')} on the target"
            fix = f"-- give {side.name(schema, name)} another name, or leave the table out"
            yield Finding("error", "existing", "target", written(schema, name), what, fix)
        if (by := ours.get((schema, name))) and by.since == "under way" and by.pipeline != facts.pipeline.pipeline:
            what = f"{by}, is about to bring it"
            yield Finding("error", "existing", "target", written(schema, name), what, "let that end first")


def _tied(there: Facts) -> Iterator[Finding]:
    """What would go on with the old table: children, and defaults that draw from its sequences."""
    side = there.source
    for oid, _, _, schema, name, *_ in side.rows("children", oids=list(there.names)):
        what = f"{written(schema, name)} inherits from it; tables.existing: replace of a parent is not built yet"
        child, parent = side.name(schema, name), side.name(*there.names[oid])
        fix = f"ALTER TABLE {child} NO INHERIT {parent};  -- queries of {parent} lose the rows of {child} by it"
        yield Finding("error", "inheritance", "target", there.written(oid), what, fix)
    for oid, sequence, using in side.conn.execute(_Q["borrowed_sequences"], {"oids": list(there.names)}):
        what = f"its sequence {sequence} is used by {using}, which would go on with the old table's"
        yield Finding("error", "shared_sequence", "target", there.written(oid), what, f"give {using} one of its own")
    if side.version < _NOT_VALID_KEYS:
        for oid, key, child in side.conn.execute(_Q["partitioned_referring"], {"oids": list(there.names)}):
            what = f"foreign key {key} of {child}, which is partitioned, refers to it: it cannot be made NOT VALID anew"
            fix = f"ALTER TABLE {child} DROP CONSTRAINT {key};  -- and make it again behind the swap"
            yield Finding("error", "foreign_key", "target", there.written(oid), what, fix)


def _owned(there: Facts) -> Iterator[Finding]:
    """Moving a table takes its owner's rights, and to be given the new one its owner needs CREATE."""
    side = there.source
    if side.server["superuser"]:
        return
    able = [can for (can,) in side.rows("owners_can_create", oids=[r.oid for r in there.relations])]
    for relation, can in zip(there.relations, able, strict=True):
        if not relation.owned:
            what = f"role {side.server['role']} needs the rights of its owner, {relation.owner}, to move it away"
            fix = f"GRANT {side.name(relation.owner)} TO {side.role};"
            yield Finding("error", "rights", "target", relation.written, what, fix)
        if not can:
            what = f"its owner, {relation.owner}, is to own the new table, and may not create in its schema"
            fix = f"GRANT CREATE ON SCHEMA {side.name(relation.schema)} TO {side.name(relation.owner)};"
            yield Finding("error", "rights", "target", relation.written, what, fix)


_UNDER_WAY = (
    rewriting.unmovable, rewriting.unkept, rewriting.replicated, source_tables.closed_to_rewrites, _tied, _owned
)  # fmt: skip


def _referring(source: Session, there: Facts) -> Iterator[Finding]:
    """What stands on the target's tables and cannot be carried over to what comes from the source."""
    others = catalog.oids_of(source, there.oids)
    pairs = {oid: others[name] for name, oid in there.oids.items() if name in others}
    described = catalog.describe(source, pairs.values())
    changed = retyped(there.source.conn, source, pairs)
    asked = there.pipeline.swap.recreate_materialized_views
    for refused in dependents.read(there.source.conn, [*pairs], changed, materialized=asked).refused:
        table = there.written(refused.table)
        yield _on_target(Finding("error", refused.code, "target", table, refused.what, refused.fix))
    for oid, column, user in there.source.conn.execute(_Q["columns_in_use"], {"oids": [*pairs]}):
        if pairs[oid] in described and column not in {c.name for c in described[pairs[oid]].columns}:
            what = f"{user} uses column {written(column)}, which the source's table has not got"
            yield Finding("error", "dependent", "target", there.written(oid), what, f"-- drop or change {user}")


def _lost(facts: Facts, there: Facts) -> Iterator[Finding]:
    """What only the target's table has, and stays with it."""
    sides = (facts.source.conn, there.source.conn)
    parts = [
        {(schema, table, kind, name) for schema, table, kind, name in conn.execute(_Q["parts"], {"oids": oids})}
        for conn, oids in zip(sides, (list(facts.names), list(there.names)), strict=True)
    ]
    only: dict[Name, list[str]] = {}
    for schema, table, kind, name in sorted(parts[1] - parts[0]):
        only.setdefault((schema, table), []).append(f"{kind} {written(name)}")
    for table, listed in only.items():
        what = f"the new table is the source's: it will not have what only the target's has ({', '.join(listed)})"
        yield Finding("warning", "existing", "target", written(*table), what)
