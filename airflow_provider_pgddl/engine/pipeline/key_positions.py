"""Where each key of a pipeline file stands, and the error that says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from airflow_provider_pgddl.engine.errors import PipelineFileError

KeyPath: TypeAlias = tuple[str | int, ...]
# Travels in the job file, so that an error found much later can still name the line; never written by people.
ORIGIN = "$origin"


def dotted(path: Iterable[str | int]) -> str:
    """A path as people write it: `tables.include[0]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


@dataclass(frozen=True)
class Origin:
    """Where a pipeline was read: the file's name, and the line of each key by its dotted path; which keys it gave."""

    name: str
    lines: Mapping[str, int]
    given: tuple[str, ...] = ()

    def where(self, path: KeyPath) -> str:
        """Name, line of the nearest key that the file has, and the path itself."""
        line = self.line(path)
        place = f"{self.name}, line {line}" if line else self.name
        return f"{place}: {dotted(path)}" if path else place

    def line(self, path: KeyPath) -> int:
        """The line of the nearest key that the file has; 0 where it has none."""
        known = (self.lines.get(dotted(path[:length])) for length in range(len(path), 0, -1))
        return next((line for line in known if line), 0)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "lines": dict(self.lines), "given": list(self.given)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Origin:
        return cls(value["name"], value["lines"], tuple(value.get("given", value["lines"])))

    def gives(self, key: str) -> bool:
        """Whether the file says something of a key, or within it."""
        return any(f"{one}.".startswith(f"{key}.") for one in self.given)


def refused(problems: Iterable[tuple[KeyPath, str]], origin: Origin) -> PipelineFileError:
    """All problems of a file as one error, in the order of its lines."""
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: origin.line(problem[0]))
    return PipelineFileError("\n".join(f"{origin.where(path)}: {what}" for path, what in ordered))
