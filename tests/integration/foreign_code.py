"""Pipelines over Mallory's tables: a migration to another server, and a rewrite in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.integration.attempts import Attempt, admitted, rewritten
from tests.integration.lifecycle import Lifecycle
from tests.integration.mallory import Mallory, differing
from tests.integration.mallory_kinds import KINDS, Kind

Make = Callable[..., Lifecycle]

ITS_OWN = {"swap": {"recreate_materialized_views": True}}
ACROSS = [kind for kind in KINDS if "across" in kind.where]


def migration(lifecycle: Make, source: str, target: str, kinds: Sequence[Kind], **sections: Any) -> Lifecycle:
    tables: dict[str, Any] = {"include": ["m.*"], "schema_only": ["lair.*"]}
    if "swap" not in sections:
        tables["keyless"] = "copy_at_swap"
    tables |= sections.pop("tables", {})
    fence: dict[str, Any] = {"tables": tables, "swap": {"fence": "read_only"}}
    return lifecycle(source, target, **(fence | sections))


def begun(mallory: Mallory, lifecycle: Make, dsns: tuple[str, str], kinds: Sequence[Kind], **sections: Any) -> Attempt:
    """Her tables, and a migration of those of them that preflight takes."""
    mallory.makes(dsns[0], kinds)
    taken = admitted(partial(migration, lifecycle, *dsns, **sections), kinds)
    print("refused:", sorted(taken.refused))
    for kind in kinds:
        if kind.name in taken.refused:
            mallory.does(dsns[0], f"DROP TABLE {kind.relation} CASCADE")
    return Attempt(mallory, migration(lifecycle, *dsns, taken.kinds, **sections), taken.kinds)


def arrived(attempt: Attempt) -> None:
    """Whatever no stage has stopped is on the target as it is on the source."""
    for kind in attempt.going:
        there = attempt.mallory.rows(attempt.move.target, kind)
        assert differing(attempt.mallory.rows(attempt.move.source, kind), there) == [], kind.name


def rewrite(lifecycle: Make, dsn: str, kinds: Sequence[Kind], **sections: Any) -> Lifecycle:
    return lifecycle(dsn, rewrite=rewritten(kinds), **(ITS_OWN | sections))
