"""What of the source's foreign keys, triggers, policies, grants and comments a followed target has, and lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.finish_statements import group_of, key_of, tree_of_event
from airflow_provider_pgddl.engine.following.target_dump import Arrived
from airflow_provider_pgddl.engine.following.target_roles import TargetRoles
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.sql import queries


@dataclass(frozen=True, slots=True)
class MissingAndGone:
    """Of the source's statements, those that the target lacks; and what it has of ours that is gone from the source."""

    missing: list[DdlEvent]
    gone: list[DdlEvent]


def difference(wanted: Sequence[DdlEvent], before: Sequence[DdlEvent], there: Sequence[DdlEvent]) -> MissingAndGone:
    """`before` is what was wanted the last time. What was brought with these very words is there, however the target
    prints it; what bears its name and was not is made anew."""
    trees = {tree_of_event(event) for event in there if group_of(event) is not None}
    names = {key_of(event) for event in there} - {None}
    brought = {(event.statement, event.table) for event in before}
    missing, gone = [], []
    now = {tree_of_event(event) for event in wanted}
    right = {key_of(event) for event in wanted if tree_of_event(event) in trees} - {
        None
    }  # renamed with what they are about
    for event in before:
        key = key_of(event)
        if tree_of_event(event) not in now and (key in names - right if key else tree_of_event(event) in trees):
            gone.append(event)
    taken = {key_of(event) for event in gone} - {None}
    for event in wanted:
        key = key_of(event)
        if tree_of_event(event) in trees and key not in taken:
            continue
        if key in names and key not in taken:
            if (event.statement, event.table) in brought:
                continue
            gone.append(event)
        missing.append(event)
    return MissingAndGone(missing, gone)


def unfilled(context: Context) -> list[str]:
    """For materialized views that had rows on the source: in the order in which they were made there."""
    query = queries("swap")["materialized_views"]
    empty = {(schema, name) for schema, name, filled in context.target.execute(query) if not filled}
    there = context.source.execute(query).fetchall()
    return [
        sql.SQL("REFRESH MATERIALIZED VIEW {}").format(sql.Identifier(schema, name)).as_string(context.target)
        for schema, name, filled in there
        if filled and (schema, name) in empty
    ]


def without_finished(context: Context, arrived: Arrived, events: Iterable[DdlEvent]) -> list[DdlEvent]:
    """Of a dump's statements those that a swap still has to run."""
    listed = list(events)
    if not context.finishes:
        return listed
    roles = TargetRoles(context)
    finishing = [(e, roles.fitted(e).event) for e in listed if group_of(e) is not None]
    before = [DdlEvent.from_json(event) for event in context.journal.finishes.events(context.journal.run)]
    missing = {id(event) for event in difference([f for _, f in finishing], before, arrived.events).missing}
    left = {id(event) for event, fitted in finishing if id(fitted) in missing}
    return [e for e in listed if group_of(e) is None or id(e) in left]


def to_validate(context: Context) -> list[tuple[str, str, str]]:
    """(schema, table, name) of the foreign keys that are there NOT VALID, and are validated on the source."""
    if not context.finishes:
        return []
    tables = {(t.schema, t.name) for t in context.tables()}
    here, there = (
        {(s, t, n): valid for s, t, n, valid in conn.execute(queries("foreign_keys_and_triggers")["validated"])}
        for conn in (context.target, context.source)
    )
    return [name for name, valid in here.items() if not valid and there.get(name) and name[:2] in tables]
