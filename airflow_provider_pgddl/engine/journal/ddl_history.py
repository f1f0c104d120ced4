"""What captured DDL tells of relations and objects: read from the events that `ddl` has recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.decision import WITHIN_REBUILT
from airflow_provider_pgddl.engine.journal.section import JournalSection
from airflow_provider_pgddl.engine.model.names import Name

# Why a statement needs nothing of its own any more.
SHOWN = "the snapshot shows it already"
WAITS = "the dump that is taken when its time has come shows it"
WAS_THERE = "IF NOT EXISTS has added nothing"
FOUND = "IF NOT EXISTS has made nothing"
# Commands for what a swap takes from its own dump, in scope or not.
_DUMPED = [
    *(
        f"{verb} {what}"
        for what in ("INDEX", "STATISTICS", "TRIGGER", "POLICY", "RULE")
        for verb in ("CREATE", "ALTER", "DROP")
    ),
    "GRANT",
    "REVOKE",
    "COMMENT",
    "SECURITY LABEL",
]


@dataclass(frozen=True, slots=True)
class AppliedStatements:
    """A captured event, and what was run of it."""

    captured: CapturedEvent
    statements: list[str]


@dataclass(frozen=True, slots=True)
class _Touched:
    schema: str
    name: str
    left_out: bool
    resolved: bool


class DdlHistory(JournalSection):
    def statements_about(self, run: int, oid: int) -> list[AppliedStatements]:
        """Of every applied event that a relation of the source is in; without those that found a column of the same
        name on the target."""
        return self._rows(AppliedStatements, "captured_statements", [self.pipeline, run, str(oid), WAS_THERE])

    def type_alterations(self, run: int) -> list[CapturedEvent]:
        """Every ALTER TYPE, whatever has become of it."""
        return self._values("type_alterations", [self.pipeline, run])

    def touched(self, run: int) -> tuple[set[Name], set[Name], set[Name]]:
        """(what captured events were about, of that what one was about that the scope left out, and what one that a
        person resolved)."""
        args = {"pipeline": self.pipeline, "run": run, "carried": [SHOWN, WAITS, WITHIN_REBUILT], "dumped": _DUMPED}
        found = {(t.schema, t.name): t for t in self._rows(_Touched, "captured_touches", args)}
        left_out = {name for name, t in found.items() if t.left_out}
        return set(found), left_out, {name for name, t in found.items() if t.resolved}

    def has_made(self, run: int, oid: int) -> bool:
        """Whether the target's table is there by an applied event that made this relation, or that made it a partition
        no more; not where it was there before."""
        made = self._value("has_made", [self.pipeline, run, oid, FOUND])
        return bool(made) or oid in self.detached(run)

    def found(self, run: int, oids: Collection[int]) -> set[int]:
        """Those of these relations that were to be made where the target had such a table, and that were not taken in
        with it: it was empty then."""
        return set(self._values("found", [self.pipeline, run, list(oids), FOUND]))

    def was_dropped(self, run: int, oid: int) -> bool:
        """Whether an event that dropped this relation on the source has been applied."""
        return bool(self._value("was_dropped", [self.pipeline, run, oid]))

    def created(self, run: int, oids: Collection[int]) -> set[int]:
        """Those of these relations that came under way."""
        return set(self._values("created", {"oids": list(oids), "pipeline": self.pipeline, "run": run}))

    def detached(self, run: int) -> set[int]:
        """The relations that an applied event has made partitions no more."""
        return set(self._values("detached", [self.pipeline, run]))

    def born_as_partitions(self, run: int, between: Mapping[int, Collection[int]]) -> set[int]:
        """Those of the relations that were partitions of one table from their creation on, so were captured while
        empty. `between`: each with the partitions that lie between it and that table."""
        pairs = [(leaf, oid) for leaf, oids in between.items() for oid in oids]
        args = {"oids": list(between), "leaves": [leaf for leaf, _ in pairs], "between": [oid for _, oid in pairs]}
        return set(self._values("born_as_partitions", {"pipeline": self.pipeline, "run": run, **args}))
