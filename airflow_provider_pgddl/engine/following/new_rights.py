"""Rights that do not wait for the swap: those on schemas, which the DDL behind them needs, and those on what everybody
may use unless that is taken away, for until the swap it would be open to all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_pgddl.engine.ddl.dump_phases import PHASES, Phase
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_LOCATED = queries("rights")["open_to_all"]
_Name = tuple[str, str]


class NewRights:
    """Tells which of a dump's rights come with what they are about: what the target had before keeps its own."""

    def __init__(self, target: Session, events: Sequence[DdlEvent]):
        self._schemas = {name for (name,) in target.execute("SELECT nspname FROM pg_catalog.pg_namespace")}
        names = sorted({e.name or "" for e in events if e.is_right_on_what_all_may_use})
        self._there = {tuple(row) for row in target.execute(_LOCATED, {"names": names})} if names else set()
        self._made: dict[tuple[_Name, int | None], Phase] = {}
        for event in events:
            if event.tag.startswith("CREATE ") and event.name and event.table is None:
                at = self._made.get(key := _key(event), event.phase)
                self._made[key] = max(at, event.phase, key=PHASES.index)

    def in_time(self, event: DdlEvent) -> DdlEvent:
        """The event in the phase in which it is to be run."""
        if event.is_right_on_schema and event.schema not in self._schemas:
            return replace(event, phase="create")
        if event.is_right_on_what_all_may_use and event.phase != "noise" and not self._is_there(event):
            name, _ = key = _key(event)
            return replace(event, phase=self._made.get(key, self._made.get((name, None), "create")))  # an aggregate's
        return event

    def _is_there(self, event: DdlEvent) -> bool:
        return (event.kind, event.schema or "", event.name, _count(event)) in self._there


def _key(event: DdlEvent) -> tuple[_Name, int | None]:
    return (event.schema or "", event.name or ""), _count(event)


def _count(event: DdlEvent) -> int | None:
    return None if event.arguments is None else len(event.arguments)
