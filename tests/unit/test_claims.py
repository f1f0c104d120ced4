"""What a claim says of the tables that a worker may take."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.journal.chunks import multirange


@pytest.mark.parametrize(
    ("ids", "said"),
    [([], "{}"), ([3], "{[3,4)}"), ([7, 1, 3, 2], "{[1,4),[7,8)}"), (range(1, 10_001), "{[1,10001)}")],
)
def test_tables_are_named_by_ranges_of_their_ids(ids: list[int], said: str) -> None:
    assert multirange(ids) == said
