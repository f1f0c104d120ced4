"""Types whose values are written otherwise from here on: what was copied or logged as text may mean another value."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_pgddl.engine.capture import slot_log
from airflow_provider_pgddl.engine.ddl.altered_types import changes_values_as_text, reuses_a_text
from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.sql import queries


def lose_track_of_altered_types(context: Context, events: Sequence[CapturedEvent]) -> None:
    """In the transaction that records these. Their tables' logs say from here on that they do not know what has
    changed, so these are captured anew and read again, once the target's types have followed.

    Keys of user types wait in a slot's logs as the text that they were when they were written. And rows that were
    copied since the ALTER TYPE came with the labels of now, where the target has those of before (C26); in place they
    are copied as they are."""
    altered = [event for event in events if changes_values_as_text(event)]
    if not altered:
        return
    tables = [t for t in context.journal.tables.of(context.journal.run) if t.has_user_types and not t.keyless]
    by_slot = context.pipeline.by_slot
    if not context.in_place and any(_reuses_a_text(context, event) for event in altered):
        slot_log.lose_track(context.target if by_slot else context.session_once("source", "ddl marker"), tables)
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
