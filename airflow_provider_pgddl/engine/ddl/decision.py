"""What is to be done about one captured event."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, DecisionVerdict
from airflow_provider_pgddl.engine.model.names import Name

FirstStatus = Literal["pending", "awaiting_approval", "skipped", "unhandled"]

WITHIN_REBUILT = "what made its table was rebuilt from metadata, which has it"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done about one event."""

    event: CapturedEvent
    verdict: DecisionVerdict
    statements: tuple[str, ...]
    """With all names spelled out; in order."""
    rule: str
    """Why: the rule that left it out, the reason why it cannot be handled, ``in scope``."""
    notes: tuple[str, ...]
    """What was left out of the statement, or done otherwise."""
    touches: tuple[Name, ...]
    """The relations and other objects concerned, by their names before and after."""
    rebuilt: bool
    """From metadata, not from its own text."""
    concurrently: bool
    """A statement refuses to run in a transaction."""
    kind: str
    """The kind of object; ``table`` for whatever touches a table."""

    def status(self, approval: Literal["auto", "required"]) -> FirstStatus:
        """What it is recorded with: by `ddl.approval`, what is to be done waits for a person."""
        if self.verdict != "apply":
            return "skipped" if self.verdict == "skip" else "unhandled"
        return "awaiting_approval" if approval == "required" else "pending"

    def skipped(self, rule: str) -> Decision:
        """The same, but left out."""
        return replace(self, verdict="skip", rule=rule, statements=())


class Stop(Exception):
    """The event is decided: not applied."""

    def __init__(self, verdict: DecisionVerdict, rule: str) -> None:
        self.verdict, self.rule = verdict, rule
        super().__init__(rule)
