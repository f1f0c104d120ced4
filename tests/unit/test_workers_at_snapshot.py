"""Comparing over Spark: for how long a window's job is believed to go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_pgddl.engine.following.workers_at_snapshot import CompareWorkers
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.parallel import spark
from airflow_provider_pgddl.engine.rows.windows import Window

SHORT = Range(1, ("1",), ("2",))


@pytest.mark.parametrize(
    ("ranges", "ends"),
    [
        ([SHORT, SHORT], True),
        ([SHORT, Range(2)], False),  # a whole table
        ([Range(3, ("1",), ("2",), cuttable=False)], False),
    ],
)
def test_what_is_read_to_its_end_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch, ranges: list[Range], ends: bool
) -> None:
    """A mock of Spark: a table that takes longer than a window has is not to be had here."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(spark, "spread", lambda *_, **options: given.append(options) or [])
    ours = {"name": "shop", "workers": 2, "elsewhere": ("", ""), "spark": None, "lease": SimpleNamespace(token=1)}
    workers = CompareWorkers(cast("Any", SimpleNamespace(**ours)))
    workers._slots = 2
    window = cast("Window", SimpleNamespace(snapshot="1", gives_way=lambda: False))
    workers.compare(window, [(each, cast("Any", None)) for each in ranges], 10.0, apart=False)
    assert (given[0]["within"] is not None) == ends
