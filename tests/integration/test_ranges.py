"""The ranges in which a copy is compared: about as large as asked for, whatever is known of the table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from airflow_provider_pgddl.engine.connect import connect
from airflow_provider_pgddl.engine.journal import Journal
from airflow_provider_pgddl.engine.rows import checksums
from tests.integration.lifecycle import Lifecycle, execute

ROWS = 40_000
PARTS = """
CREATE TABLE t (id int PRIMARY KEY, body text) PARTITION BY HASH (id);
CREATE TABLE t_0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE t_1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1);
"""
PLAIN = "CREATE TABLE t (id int PRIMARY KEY, body text);"


@pytest.mark.parametrize("sampled", [500, ROWS])
@pytest.mark.parametrize("table", [PLAIN, PARTS], ids=["plain", "partitioned"])
@pytest.mark.parametrize("analyzed", [True, False])
def test_ranges_are_about_as_large_as_asked_for(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], monkeypatch: pytest.MonkeyPatch,
    table: str, sampled: int, analyzed: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(checksums, "SAMPLED", sampled)
    monkeypatch.setattr(checksums, "SAMPLED_OF_A_RANGE", 20)
    execute(source_dsn, table + f"INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, {ROWS}) i")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]})
    move.run_all(until="schema_sync")
    if not analyzed:
        execute(target_dsn, "TRUNCATE t")
        execute(target_dsn, f"INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, {ROWS}) i")
    with connect(target_dsn, purpose="test") as target:
        plan = Journal(target, move.name).tables(1)[0].plan
        (size,) = checksums.sizes(target, [plan])
        cuts = [int(cut) for cut in checksums.boundaries(target, plan, size, 4000)]
    assert size.bytes > ROWS * 200
    assert size.rows > 0 or not analyzed  # an autovacuum may have come
    edges = [1, *cuts, ROWS + 1]
    assert edges == sorted(set(edges))
    if sampled == ROWS or size.rows <= 0:
        assert [b - a for a, b in pairwise(edges)] == [4000] * 10
    else:
        # Pages are sampled as a whole, so a range is larger or smaller by a few of them.
        assert 4 <= len(cuts) <= 20
