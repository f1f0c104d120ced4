"""What of the source's schema the target has: by a dump of its own, statement by statement (C30)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from airflow_provider_pgddl.engine.ddl.events import DdlEvent, events_from_dump
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema
from airflow_provider_pgddl.engine.following.replacing_dump import moved_back
from airflow_provider_pgddl.engine.following.target_roles import TargetRoles
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.schema.definitions import statement_tree
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.pg_dump import dump_sections
from airflow_provider_pgddl.engine.sql import queries


class Arrived:
    """The target is dumped when it is first asked about: most swaps need not know."""

    def __init__(self, context: Context):
        self._context = context
        self._roles = TargetRoles(context)

    def without(self, added: Sequence[DdlEvent], gone: Sequence[DdlEvent]) -> tuple[list[DdlEvent], list[DdlEvent]]:
        """Of what came to the source's dump and went from it, what the target has not taken over.

        What the end of a swap is to make is there only once it has: whether that is gone, the target cannot tell."""
        if self._context.in_place or not (added or gone):
            return list(added), list(gone)
        here = Counter(self._there)
        missing = []
        for event in added:
            tree = self._tree(self._roles.fitted(event).event)
            if here[tree]:
                here[tree] -= 1
            else:
                missing.append(event)
        return missing, [e for e in gone if e.phase in _WAIT or self._there[self._tree(self._roles.fitted(e).event)]]

    def has(self, event: DdlEvent) -> bool:
        """Whether the target has it, word by word, with its roles as they are called there."""
        return self._there[self._tree(event)] > 0

    def tables(self) -> list[DdlEvent]:
        """What makes the target's tables."""
        return [] if self._context.in_place else [e for e in self._dumped if e.tag == "CREATE TABLE"]

    @cached_property
    def _there(self) -> Counter[bytes]:
        return Counter(self._tree(e) for e in self.events)

    @cached_property
    def events(self) -> list[DdlEvent]:
        """All that the target's dump says."""
        return [e for e in self._dumped if e.phase != "noise"]

    def _tree(self, event: DdlEvent) -> bytes:
        sides = self._context.source, self._context.target
        known = all(side.info.server_version >= 180_000 for side in sides)
        return statement_tree(event.statement, names_not_null=known)

    @cached_property
    def _dumped(self) -> list[DdlEvent]:
        target = self._context.target
        unread = target.execute(queries("dump")["unreadable"]).fetchall()
        major = target.info.server_version // 10_000
        events = events_from_dump(*dump_sections(self._context.target_dsn, major, exclude=unread))
        return self._with_copies(events, major) if self._context.pipeline.replaces else events

    def _with_copies(self, events: Sequence[DdlEvent], major: int) -> list[DdlEvent]:
        """With the copies in the place of the tables that they are to replace, as they will be there."""
        tables = {(t.schema, t.name) for t in self._context.tables()}
        copies = catalog.oids_of(self._context.target, {(copy_schema(schema), name) for schema, name in tables})
        others = [e for e in events if e.table not in tables]
        own = events_from_dump(*dump_sections(self._context.target_dsn, major, only=[*copies])) if copies else []
        return moved_back([*others, *own], {copy_schema(schema): schema for schema, _ in tables})


_WAIT = ("foreign_key", "finish")
