"""Failpoints against servers: what they do to connections, and that a retry goes on behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import failpoints
from airflow_provider_pgddl.engine.errors import PgddlError, Unreachable
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute, left_behind

Make = Callable[..., Lifecycle]

ITEMS = """
CREATE TABLE public.items (id int PRIMARY KEY, n int CHECK (n > 0), parent int REFERENCES items);
INSERT INTO items SELECT i, i FROM generate_series(1, 9) i;
"""
SMALL: dict[str, Any] = {"tables": {"include": ["public.items"]}, "backfill": {"workers": 1}}


def test_a_connection_that_is_lost_is_closed_on_both_ends(source_dsn: str) -> None:
    with psycopg.connect(source_dsn) as conn:
        conn.execute("CREATE TABLE never_committed ()")
        pid = conn.info.backend_pid
        with pytest.raises(psycopg.OperationalError):
            failpoints.lose((conn,))
        assert conn.closed and conn.broken
    with psycopg.connect(source_dsn, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])  # waits until the server has noticed
        assert other.execute("SELECT to_regclass('never_committed')").fetchone() == (None,)


# A border of each stage, and of what a stage is made of.
BORDERS = {
    "setup": ["setup.before_name", "capture.before_triggers_commit", "setup.before_table_commit"],
    "snapshot": ["snapshot.before_versions_commit", "apply.before_group_commit", "snapshot.before_copies_commit"],
    "backfill": ["backfill.before_chunks_commit", "backfill.before_chunk_commit", "backfill.before_finished_commit"],
    "schema_sync": ["schema_sync.before_analyze", "schema_sync.before_indexed_commit"],
    "replay": ["replay.before_target_commit", "replay.before_acknowledge", "replay.before_source_commit"],
    "verify": ["verify.before_ranges_commit", "verify.before_compared_commit"],
    "swap": ["cut_over.before_fence_commit", "cut_over.before_commit", "swap.before_follow_up_commit"],
    "cleanup": ["capture.before_stop_commit", "cleanup.before_finished_commit", "forget.before_name_commit"],
}


def test_a_retry_goes_on_behind_each_border(source_dsn: str, target_dsn: str, lifecycle: Make, at: At) -> None:
    execute(source_dsn, ITEMS)
    move = lifecycle(source_dsn, target_dsn, swap={"fence": "read_only"}, **SMALL)
    for stage, names in BORDERS.items():
        if stage == "replay":
            execute(source_dsn, "UPDATE items SET n = n + 1, parent = 1; DELETE FROM items WHERE id = 9")
        for name in names:
            with at(name) as border:
                border.act = once(border.lose)
                error = move.refused(stage, (PgddlError, Unreachable))
            assert error.retryable, f"{name}: {error}"
        move.run(stage)
    assert [str(d) for d in differences(source_dsn, target_dsn)] == []
    assert [line for line in left_behind(source_dsn) if "fence" not in line] == ["schema pgddl"]


def test_a_failpoint_that_nothing_passes_fails_its_test() -> None:
    here = At()
    here("swap.before_lock")
    here("swap.after_lock", perhaps=True)
    with pytest.raises(AssertionError, match=r"nothing has passed swap\.before_lock$"):
        here.end(check=True)
    here.end(check=False)
    failpoints.failpoint("swap.before_lock")  # off again
