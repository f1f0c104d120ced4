"""Commands that an event trigger of somebody runs where a command ends: recorded before it, where its name sorts before
ours, although they found what it had made. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, ObjectMeta

# Tags that only ever make something new: what is older has nothing of it.
_MAKES = {"CREATE TABLE", "CREATE TABLE AS", "SELECT INTO", "CREATE FOREIGN TABLE", "CREATE MATERIALIZED VIEW",
          "CREATE SCHEMA", "CREATE SEQUENCE", "CREATE TYPE", "CREATE DOMAIN", "CREATE INDEX"}  # fmt: skip
_BY_NAME = {"GRANT", "REVOKE"}  # their events name no objects


def in_order(events: Sequence[CapturedEvent]) -> list[CapturedEvent]:
    """The events, each behind the one that made what it is about."""
    ordered: list[CapturedEvent] = []
    for event in events:
        at = _first_within(ordered, event)
        for inner in ordered[at:]:
            inner.setdefault("within", event["id"])
        ordered.insert(at, event)
    return ordered


def _first_within(before: Sequence[CapturedEvent], event: CapturedEvent) -> int:
    """Where, of the events right before this one, those begin that were run in it."""
    made = [each for each in event["objects"] if each["tag"] in _MAKES]
    first = at = len(before)
    while made and at > 0 and before[at - 1]["nested"] and before[at - 1]["xid"] == event["xid"]:
        at -= 1
        if any(_concerns(before[at], each) for each in made):
            first = at
    return first


def _concerns(event: CapturedEvent, made: ObjectMeta) -> bool:
    if event["tag"] in _BY_NAME:
        return made["name"] is not None and event["names"].get(made["name"]) == made["schema"]
    this = (made["classid"], made["objid"])
    return any(
        (each["classid"], each["objid"]) == this or (made["classid"] == "pg_class" and each["table"] == made["objid"])
        for each in event["objects"]
        if each["tag"] != made["tag"]  # a type is made twice, the first time as a shell
    )
