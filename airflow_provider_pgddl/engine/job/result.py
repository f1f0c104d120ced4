"""What a stage did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_pgddl.engine.errors import EXIT_BLOCKED, EXIT_DONE


@dataclass(frozen=True)
class StageResult:
    """Kept in the journal, printed by the shell, and small enough for an XCom. `statements` are
    those of a dry run: no XCom has them, and the journal keeps the last one's."""

    stage: str
    pipeline: str
    run: int
    state: str
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    blocked: Sequence[Mapping[str, str]] = ()
    figures: Mapping[str, int | float | str] = field(default_factory=dict)
    statements: Sequence[Mapping[str, Any]] | None = None

    @property
    def exit_code(self) -> int:
        return EXIT_BLOCKED if self.blocked else EXIT_DONE

    def to_json(self) -> dict[str, Any]:
        shown = {} if self.statements is None else {"statements": list(self.statements)}
        return shown | {
            "stage": self.stage,
            "pipeline": self.pipeline,
            "run": self.run,
            "state": self.state,
            "tables": dict(self.tables),
            "blocked": [dict(b) for b in self.blocked],
            "figures": dict(self.figures),
        }
