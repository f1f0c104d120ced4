"""Types whose values are written otherwise from here on: what was copied or logged as text may mean another value."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from psycopg import sql

from airflow_provider_pgddl.engine.capture import slot_log
from airflow_provider_pgddl.engine.ddl.altered_types import changes_values_as_text, reuses_a_text
from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.following.plans import names_in
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.sql import queries


def lose_track_of_altered_types(context: Context, events: Sequence[CapturedEvent]) -> None:
    """In the transaction that records these. Their tables' logs say from here on that they do not know what has
    changed, so these are captured anew and read again, once the target's types have followed.

    Keys of user types wait in a slot's logs as the text that they were when they were written. And rows that were
    copied since the ALTER TYPE came with the labels of now, where the target has those of before (C26); in place they
    are copied as they are. What is another type on the target, or is made by an expression, follows no type there:
    that old rows show another value no row of a log says.
    """
    altered = [event for event in events if changes_values_as_text(event)]
    if not altered:
        return
    tables = [t for t in context.journal.tables.of(context.journal.run) if t.has_user_types and not t.keyless]
    by_slot = context.pipeline.by_slot
    log = context.target if by_slot else context.session_once("source", "ddl marker")
    with_them = _types_with(context, altered)
    converted = [t for t in tables if t.plan.columns.pairs and _converts(t, with_them)]
    slot_log.lose_track(log, converted)
    tables = [t for t in tables if t not in converted]
    if not context.in_place and any(_reuses_a_text(context, event) for event in altered):
        slot_log.lose_track(log, tables)
    elif by_slot:
        slot_log.lose_track(context.target, [t for t in tables if t.plan.key.has_user_types])


def _reuses_a_text(context: Context, event: CapturedEvent) -> bool:
    history = context.journal.ddl_history.type_alterations(context.journal.run)
    names = [(one["schema"], one["name"]) for one in event["objects"]]
    labels = [
        label
        for schema, name in names
        for (label,) in context.target.execute(queries("slot_log")["labels"], [schema, name]).fetchall()
    ]
    return reuses_a_text(event, history, labels)


def _types_with(context: Context, events: Sequence[CapturedEvent]) -> set[str]:
    """The altered types, and those that values of these are in."""
    oids = [one["objid"] for event in events for one in event["objects"]]
    return {name for (name,) in context.source.execute(queries("slot_log")["types_with"], [oids])}


def _converts(table: TableRow, types: Collection[str]) -> bool:
    """Whether the copy has of a column of these types anything but the same type's values."""
    recorded = {name: column["type"] for name, column in table.version["columns"].items()}
    altered = {name for name, type_ in recorded.items() if type_ in types}
    columns, pairs = table.plan.columns, table.plan.columns.pairs
    alike = {name for name, (_, _, type_) in pairs.items() if type_ == recorded.get(name)}
    made = [
        expression
        for name, expression in zip(columns.names, columns.expressions, strict=True)
        if name not in alike or expression != sql.Identifier(name).as_string()
    ]
    read = names_in([*made, *([table.plan.where] if table.plan.where else [])])
    return bool(altered) and (not altered.isdisjoint(read) or not read <= recorded.keys())
