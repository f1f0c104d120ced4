"""The stages by name, and several of them named at once. The standard library alone: the command line reads this at
every `airflow` call."""

from __future__ import annotations

from collections.abc import Sequence

STAGES = ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap", "cleanup")
# With what is run only where a person asks for it.
ALL_STAGES = (*STAGES, "revert")
# What does not follow, in one application, on a stage that left tables out.
CHANGES_LIVE_TABLES = ("swap", "cleanup", "revert")


def named_stages(text: str | Sequence[str]) -> tuple[str, ...]:
    """`backfill`, `setup..replay` or `setup..replay,verify`, or a list of such, as stages in the order given.
    ValueError for what is none."""
    found: list[str] = []
    for part in text.split(",") if isinstance(text, str) else text:
        first, dots, last = (word.strip() for word in part.partition(".."))
        for name in (first, last) if dots else (first,):
            if name not in ALL_STAGES:
                raise ValueError(f"there is no stage {name!r}; choose from {', '.join(ALL_STAGES)}")
        begin, end = ALL_STAGES.index(first), ALL_STAGES.index(last if dots else first)
        if begin > end or (dots and last == "revert"):
            raise ValueError(f"{first} does not lead to {last}: a range is in the order of the lifecycle")
        found += ALL_STAGES[begin : end + 1]
    if not found:
        raise ValueError("no stage is named")
    return tuple(found)
