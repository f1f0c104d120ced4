"""Migrating 16 → 18 while applications write."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.lifecycle import Lifecycle, execute, left_behind


def test_smoke(source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]) -> None:
    execute(source_dsn, "CREATE TABLE a (id int primary key, v text); INSERT INTO a SELECT i, i FROM generate_series(1, 1000) i")
    run = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, swap={"fence": "read_only"})
    print(run.run_all())
    print(left_behind(source_dsn), left_behind(target_dsn))
