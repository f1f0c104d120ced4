"""Tables of the target that are to be adopted (`tables.existing: adopt`): whether rows can be brought in line there."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_pgddl.engine.capture.fence import closed
from airflow_provider_pgddl.engine.errors import OPEN
from airflow_provider_pgddl.engine.journal.births import way_back_that_lives
from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.preflight.facts import KINDS, Facts, brought
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("adopted_rows")


def adopted(facts: Facts) -> Iterator[Finding]:
    assert facts.target is not None
    if facts.pipeline.tables.existing != "adopt" or not facts.pipeline.moves_rows:
        return
    side = facts.target
    ours = brought(side, facts.tables)
    found = side.rows("named", schemas=[s for s, _ in facts.rows], names=[t for _, t in facts.rows])
    there = {(schema, name): (oid, kind) for schema, name, oid, kind in found if oid is not None}
    oids = {oid: name for name, (oid, kind) in there.items() if kind == facts.kinds.get(name)}
    for name, (_, kind) in there.items():
        table = written(*name)
        if kind != facts.kinds.get(name):
            what = f"cannot be adopted: it is {KINDS.get(kind, 'something else')} on the target"
            yield Finding("error", "existing", "target", table, what, f"-- give {side.name(*name)} another name")
        if by := ours.get(name):
            what = by.has_or_will("applications may write to it: their rows would be replaced")
            yield Finding("error", "existing", "target", table, what, "give the pipeline another target")
    for name, pipeline in closed(side.conn, list(there)):
        if facts.pipeline.pipeline != way_back_that_lives(side.conn, pipeline):
            what = f"it refuses writes for the cut-over of pipeline {pipeline!r}"
            yield Finding("error", "left", "target", written(*name), what, OPEN.format(by=pipeline))
    for oid, subscription in side.rows("subscribed", oids=list(oids)):
        what = f"subscription {written(subscription)} writes into it as well"
        fix = f"DROP SUBSCRIPTION {side.name(subscription)};"
        yield Finding("error", "subscription", "target", written(*oids[oid]), what, fix)
    for oid, allowed, ruled in side.conn.execute(_Q["rights"], {"oids": list(oids)}):
        quoted = side.name(*oids[oid])
        if not allowed:
            what = f"role {side.server['role']} may not write to it"
            fix = f"GRANT SELECT, INSERT, DELETE, TRUNCATE ON {quoted} TO {side.role};"
            yield Finding("error", "rights", "target", written(*oids[oid]), what, fix)
        if ruled:
            what = "it has rules on the target, which would take the place of what is written to it"
            yield Finding("error", "firing", "target", written(*oids[oid]), what, f"-- DROP RULE … ON {quoted};")
    for oid, key, *child in side.conn.execute(_Q["referring"], {"oids": list(oids)}):
        what = (
            f"foreign key {key} of {written(*child)}, which is only on the target, refers to it: it does not fire for "
            "rows that leave, so rows there may come to point nowhere"
        )
        fix = f"ALTER TABLE {side.name(*child)} DROP CONSTRAINT {side.name(key)}; -- and make it again behind the swap"
        yield Finding("warning", "existing", "target", written(*oids[oid]), what, fix)
    for oid, indexes, keys in side.conn.execute(_Q["slowing"], {"oids": list(oids)}):
        if indexes or keys:
            what = (
                f"{indexes} indexes beside its key and {keys} foreign keys are there while rows come, which is slower "
                "than to make them afterwards: where it is empty, drop them first and make them behind the backfill"
            )
            yield Finding("warning", "existing", "target", written(*oids[oid]), what)
