"""What would end in loss or failure, found before anything is touched; each finding has its fix as SQL. What is tried
is rolled back.

A check of the file alone belongs to `pipeline.contradictions`; what is found under a swap's lock is asked here, by
`swapping`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.way_back import way_back_of
from airflow_provider_pgddl.engine.preflight import (
    adopted_tables,
    foreign_code,
    missing_owners,
    new_types,
    operations,
    part_of_rows,
    replaced_tables,
    rewriting,
    servers,
    source_tables,
    target_contents,
    way_back,
)
from airflow_provider_pgddl.engine.preflight.facts import Facts, Side
from airflow_provider_pgddl.engine.preflight.findings import Finding, Where
from airflow_provider_pgddl.engine.preflight.unsupported_keys import unsupported
from airflow_provider_pgddl.engine.server import schema_reading
from airflow_provider_pgddl.engine.server.connect import Session

OLDEST = 14


# About both servers, whatever the tables.
_SERVERS: list[Callable[[Facts], Iterator[Finding]]] = [
    servers.standby, servers.pooler, servers.hiding_damage, servers.event_triggers, servers.slots,
    servers.replica_identities, servers.pg_dump, servers.our_schemas, servers.publications, servers.connections,
    servers.locks,
]  # fmt: skip


# About the tables on the source that they are taken from.
_TABLES: list[Callable[[Facts], Iterator[Finding]]] = [
    source_tables.missing_tables, source_tables.source_rights, source_tables.row_security,
    source_tables.foreign_tables, source_tables.keys, source_tables.collations, foreign_code.refused,
    foreign_code.unmade, foreign_code.guarded, foreign_code.without_usage, foreign_code.missing_authors,
    foreign_code.raised,
]  # fmt: skip


def preflight(pipeline: Pipeline, source: Session, target: Session, tables: Sequence[Name]) -> list[Finding]:
    """Every finding, errors first. The sessions are idle ones of `connect`; in place both lead to one database.

    `tables` are those that the pipeline takes on the source, schema_only ones included or not.
    """
    found = list(unsupported(pipeline))
    sides = [Side("source", source), *([] if pipeline.in_place else [Side("target", target)])]
    old = [finding for side in sides for finding in too_old(side.version, side.where)]
    if old:
        return [*found, *old]  # their catalogs lack what the checks below ask for
    facts = Facts(pipeline, sides, tables)
    for step in _steps(facts):
        found.extend(step(facts))
    if all(finding.severity != "error" for finding in found):  # a dump takes its time
        found.extend(servers.dump(facts))
    if pipeline.swap.way_back is not None and not pipeline.in_place:
        for looked in way_back.CHECKS:
            found.extend(looked(facts))
        found.extend(what_keeps_from_going_back(way_back_of(pipeline), source, target, ()))
    return sorted(dict.fromkeys(found), key=lambda finding: finding.severity != "error")


def what_keeps_from_going_back(back: Pipeline, old: Session, new: Session, tables: Sequence[Name]) -> list[Finding]:
    """What would keep the way back of a cut-over from being followed, its errors, from the other side. Before there are
    `tables` on the new server to be asked about, it is about both servers alone."""
    facts = Facts(back, [Side("source", new), Side("target", old)], tables)
    of_both = [target_contents.silenced, target_contents.encodings, target_contents.login_triggers]
    about_tables = [step for step in _TABLES if step is not foreign_code.without_usage]  # indexes are there already
    there = [target_contents.firing, *of_both, source_tables.subscribed]
    steps = [*_SERVERS, *about_tables, *there] if tables else [*_SERVERS, *of_both]
    other: dict[Where, Where] = {"source": "target", "target": "source", "pipeline": "pipeline"}
    return [
        replace(finding, where=other[finding.where], what=f"for the way back: {finding.what}")
        for step in steps
        for finding in step(facts)
        if finding.severity == "error"
    ]


def before_the_cut_over(
    pipeline: Pipeline, source: Session, target: Session, copies: Mapping[Name, way_back.Copy], *, complete: bool
) -> list[Finding]:
    """The same while a run is under way, from both sides; `complete`: its copies have all that they are to have."""
    facts = Facts(pipeline, [Side("source", source), Side("target", target)], list(copies))
    names = [name for name, _ in copies.values()]
    models = schema_reading.read(source, list(copies)), schema_reading.read(target, names)
    found = list(way_back.retyped(*models, copies))
    for looked in way_back.UNDER_WAY:
        found.extend(looked(facts))
    return found + what_keeps_from_going_back(way_back_of(pipeline), source, target, names if complete else ())


def what_a_swap_breaks(pipeline: Pipeline, conn: Session, tables: Sequence[Name]) -> Callable[[], list[Finding]]:
    """A check to be called under the swap's lock: what the tables are by then. Prepared before it."""
    facts = Facts(pipeline, [Side("source", conn)], tables)
    checks = (rewriting.unmovable, rewriting.unkept, rewriting.children, rewriting.published, rewriting.replicated,
              rewriting.partitions, source_tables.closed_to_rewrites)  # fmt: skip
    return lambda: [finding for check in checks for finding in check(facts)]


def what_replacing_breaks(
    pipeline: Pipeline, source: Session, target: Session, tables: Sequence[Name]
) -> list[Finding]:
    """What has come since setup, and keeps the target's tables from being replaced."""
    return list(replaced_tables.what_replacing_breaks(pipeline, source, target, tables))


def what_opens_a_closed_table(pipeline: Pipeline, conn: Session, tables: Sequence[Name]) -> list[Finding]:
    """Of tables whose places others are about to take, under the lock that keeps fences away."""
    return list(source_tables.closed_to_rewrites(Facts(pipeline, [Side("source", conn)], tables)))


def what_new_types_break(pipeline: Pipeline, conn: Session, tables: Sequence[Name]) -> list[Finding]:
    """What has come on the tables since setup, and the swap cannot make for the new types and keys."""
    facts = Facts(pipeline, [Side("source", conn)], tables)
    return [*new_types.said_of_plain_tables(facts), *new_types.broken(facts)]


def what_passes_a_fence(pipeline: Pipeline, conn: Session, tables: Sequence[Name]) -> list[Finding]:
    """What would go on writing to the source behind the fence of a cut-over."""
    return list(source_tables.subscribed(Facts(pipeline, [Side("source", conn)], tables), "error"))


def what_a_fence_locks_out(pipeline: Pipeline, source: Session, target: Session) -> list[Finding]:
    """What would keep everybody, ourselves included, from logging in to the source behind it."""
    return list(target_contents.login_triggers(Facts(pipeline, [Side("source", source), Side("target", target)], ())))


def what_a_cut_over_leaves(pipeline: Pipeline, conn: Session, tables: Sequence[Name]) -> list[Finding]:
    """What has come since setup, and applications would miss on the target."""
    return list(target_contents.children_left(Facts(pipeline, [Side("source", conn)], tables)))


def what_hides_damage(source: Session, target: Session) -> list[Finding]:
    """What has come since setup, by which a comparison would find two sides equal that are not."""
    sides = [Side("source", source), *([Side("target", target)] if target is not source else [])]
    return [finding for side in sides for finding in servers.settings_that_hide_damage(side)]


def too_old(version: int, where: Where) -> Iterator[Finding]:
    """A finding for a server_version_num below 14."""
    if version < OLDEST * 10_000:
        number = f"{version // 10_000}" if version >= 100_000 else f"{version // 10_000}.{version // 100 % 100}"
        what = f"Postgres {number} is too old: {OLDEST} or newer is needed"
        yield Finding("error", "version", where, None, what, "upgrade this server first")


def _steps(facts: Facts) -> list[Callable[[Facts], Iterator[Finding]]]:
    """In the order in which people should read them."""
    last = [source_tables.partitioned_foreign_keys, source_tables.unproven_foreign_keys, servers.prepared]
    if facts.target is None:
        in_place = [
            rewriting.alterations, rewriting.narrower, rewriting.partitions, rewriting.orders, rewriting.swap_rights,
            rewriting.earlier_copies, rewriting.unmovable, rewriting.unkept, rewriting.referring, rewriting.children,
            rewriting.published, rewriting.replicated, source_tables.closed_to_rewrites, rewriting.values_by_oid,
            new_types.said_of_plain_tables, new_types.broken,
        ]  # fmt: skip
        return [*_SERVERS, *_TABLES, *in_place, *last]
    created = [
        target_contents.target_rights, target_contents.firing, target_contents.silenced, target_contents.existing,
        target_contents.existing_objects, adopted_tables.adopted, replaced_tables.replaced,
        target_contents.extensions, target_contents.roles, missing_owners.ownerless,
        target_contents.owners, target_contents.encodings, target_contents.event_triggers,
        target_contents.login_triggers, target_contents.same_ddl, target_contents.left_behind, source_tables.subscribed,
    ]  # fmt: skip
    return [
        servers.same_database,
        servers.namesakes,
        *_SERVERS,
        source_tables.left,
        *_TABLES,
        *part_of_rows.CHECKS,
        operations.unfit,
        *created,
        *last,
    ]
