"""What is to be done about one captured event."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, DecisionVerdict
from airflow_provider_pgddl.engine.model.names import Name

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

    def skipped(self, rule: str) -> Decision:
        """The same, but left out."""
        return replace(self, verdict="skip", rule=rule, statements=())


class Stop(Exception):
    """The event is decided: not applied."""

    def __init__(self, verdict: DecisionVerdict, rule: str) -> None:
        self.verdict, self.rule = verdict, rule
        super().__init__(rule)
