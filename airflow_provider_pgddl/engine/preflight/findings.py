"""What preflight says: findings, each with its fix, and the refusal that lists them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from airflow_provider_pgddl.engine.errors import PreflightRefused

Where = Literal["source", "target", "pipeline"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that stands in the way (`error`) or that people should know (`warning`); `fix` is SQL, or a command."""

    severity: Literal["error", "warning"]
    code: str
    where: Where
    table: str | None
    what: str
    fix: str | None = None

    def __str__(self) -> str:
        place = self.where if self.table is None else f"{self.where}, {self.table}"
        text = f"{self.severity} ({place}): {self.what}"
        return text if self.fix is None else text + "".join(f"\n    {line}" for line in self.fix.splitlines())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def refuse(findings: Iterable[Finding], *, under_way: bool = False) -> None:
    """Raises PreflightRefused with all errors and their fixes, if there are any. `under_way`: setup was there, so
    there is something of ours, and `pgddl check` does not ask again."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        count = "1 problem" if len(errors) == 1 else f"{len(errors)} problems"
        if under_way:
            found, todo = f"{count} in the way", "put these right and run the stage again"
        else:
            found = f"preflight found {count}; nothing has been touched"
            todo = "put these right and run it again; `pgddl check` shows what is left"
        raise PreflightRefused("\n".join([found, *map(str, errors)]), todo=todo)
