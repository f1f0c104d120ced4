"""Where a timeline was left, by the history of a later one."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.capture.timeline import switch_point

HISTORY = "1\t0/30000A0\tno recovery target specified\n\n2\t0/5000028\tbefore 2026-01-01\n# a comment\n\n"


@pytest.mark.parametrize(("timeline", "left"), [(1, "0/30000A0"), (2, "0/5000028"), (3, None), (0, None)])
def test_the_lsn_at_which_it_was_left(timeline: int, left: str | None) -> None:
    assert switch_point(HISTORY, timeline) == left
