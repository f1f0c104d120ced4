"""Mallory's tables in a pipeline: which of them preflight takes, and whether she gains something at any stage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import StageResult
from tests.integration.lifecycle import Lifecycle
from tests.integration.mallory import Mallory
from tests.integration.mallory_kinds import Kind


def rewritten(kinds: Iterable[Kind]) -> dict[str, dict[str, Any]]:
    """The key `rewrite` of a pipeline file for their tables."""
    return {
        kind.relation: {
            key: value
            for key, value in (
                ("alter", list(kind.alter)),
                ("partition_by", dict(kind.partition_by)),
                ("order_by", list(kind.order_by)),
            )
            if value
        }
        for kind in kinds
    }


def refused_by_preflight(move: Lifecycle, kinds: Sequence[Kind]) -> set[str]:
    """Which of these kinds preflight refuses; a finding without a table of hers is an error of the test."""
    refused = set()
    for finding in stages.check(load_pipeline(move.content), move.source, move.target)["findings"]:
        if finding["severity"] != "error":
            continue
        about = f"{finding['table'] or ''} {finding['what']}"
        named = {kind.name for kind in kinds if _about(kind, about)}
        assert named, finding
        refused |= named
    return refused


def _about(kind: Kind, text: str) -> bool:
    """Whether a message names this kind's table, a part of it or what stands on it."""
    if kind.table:
        return kind.table in text
    return re.search(rf'\bm\."?(on_)?{kind.name}(_[12])?\b', text) is not None


class Attempt:
    """A pipeline over her tables. `stage("replay")` runs one; it may stop only where it says which table it was."""

    def __init__(self, mallory: Mallory, move: Lifecycle, kinds: Sequence[Kind]) -> None:
        self.mallory, self.move, self.kinds = mallory, move, list(kinds)
        self.dsns = list(dict.fromkeys([move.source, move.target]))
        self.blocked: dict[str, str] = {}
        self.may_stop = False
        """Whether code that leaves something may stop its own table."""
        self.turn = 0

    def stage(self, name: str, **options: Any) -> StageResult:
        try:
            result = self.move.run(name, **options)
        except PgddlError:
            gained = self.mallory.escalations(*self.dsns)
            assert gained == [], f"{name} stopped, and she had gained:\n" + "\n".join(gained)
            raise
        if name == "snapshot" and len(self.dsns) == 2:  # what waits for the swap there: else her code does not get far
            self.mallory.lets_in(self.move.target)
        self.blocked |= {stopped["table"]: str(stopped) for stopped in result.blocked}
        self._only_what_may_be_refused()
        return result

    def writes(self) -> None:
        """Something for the next window to do; every second time from a session full of traps."""
        self.turn += 1
        write = self.mallory.writes if self.turn % 2 else self.mallory.hostile
        write(self.move.source, self.kinds, self.turn)

    def starts_over(self, done: Sequence[str]) -> None:
        """What she has stopped is made anew, and brought as far as the others."""
        if self.blocked:
            stages.reset(load_pipeline(self.move.content), *self.move_dsns, list(self.blocked))
            self.blocked, self.may_stop = {}, False
            for name in done:
                self.stage(name)

    @property
    def move_dsns(self) -> tuple[str, str]:
        return self.move.source, self.move.target

    @property
    def going(self) -> list[Kind]:
        """Those that no stage has stopped."""
        return [kind for kind in self.kinds if not any(_about(kind, table) for table in self.blocked)]

    def stage_or_stops(self, name: str) -> bool:
        """False where it has ended with an error, which says whose code it was."""
        try:
            self.stage(name)
        except PgddlError as error:
            if not self.names_her(error):
                raise
            return False
        return True

    def names_her(self, error: PgddlError) -> bool:
        """Whether an error says whose code it is about, or which table of hers."""
        said = f"{error.table or ''} {error}"
        return self.mallory.name in said or any(_about(kind, said) for kind in self.kinds)

    def gained_nothing(self) -> None:
        gained = self.mallory.escalations(*self.dsns)
        assert gained == [], "\n".join(["she has gained:", *gained])

    def stays(self) -> None:
        """She has gained nothing, and every table that was to be guarded has gone all the way."""
        self.gained_nothing()
        self._only_what_may_be_refused()

    def _only_what_may_be_refused(self) -> None:
        if self.may_stop:
            return
        stopped = {k.name for k in self.kinds for table in self.blocked if _about(k, table)}
        assert stopped <= {k.name for k in self.kinds if k.expected == "refused"}, self.blocked


def gained_where_trusted(mallory: Mallory, move: Lifecycle, kinds: Sequence[Kind]) -> set[str]:
    """By whose code she gains something on the way to a swap, in a pipeline that trusts her."""
    for turn, stage in enumerate(("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap"), 1):
        with suppress(psycopg.Error):  # not every one of these can be written to at any time
            mallory.writes(move.source, kinds, turn)
        assert not move.run(stage).blocked
        if stage == "snapshot" and move.source != move.target:
            mallory.lets_in(move.target)
    dsns = dict.fromkeys([move.source, move.target])
    return {line.partition(":")[0] for line in mallory.escalations(*dsns)}


@dataclass
class Admitted:
    """What is left of the kinds once preflight has refused some."""

    kinds: list[Kind]
    refused: set[str] = field(default_factory=set)


def admitted(pipeline: Callable[[Sequence[Kind]], Lifecycle], kinds: Sequence[Kind]) -> Admitted:
    """Without what preflight refuses; only what may be refused is."""
    refused = refused_by_preflight(pipeline(kinds), kinds)
    unexpected = refused - {kind.name for kind in kinds if kind.expected == "refused"}
    assert unexpected == set(), f"refused, and was to be guarded: {sorted(unexpected)}"
    return Admitted([kind for kind in kinds if kind.name not in refused], refused)
