"""Runs that are paused, go on and are cancelled, or that a throttle holds, and how to see that one does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import STAGES, StageResult
from tests.integration.lifecycle import Lifecycle

TABLE = """
CREATE TABLE public.t (id int PRIMARY KEY, v text);
INSERT INTO public.t SELECT i, repeat('x', 500) FROM generate_series(1, 3000) i;
"""
SMALL: dict[str, Any] = {"backfill": {"chunk_bytes": "16kB", "workers": 1}, "replay": {"window_rows": 200}}


def pause(move: Lifecycle, why: str | None = None) -> dict[str, Any]:
    return stages.pause(load_pipeline(move.content), move.target, why)


def resume(move: Lifecycle) -> dict[str, Any]:
    return stages.resume(load_pipeline(move.content), move.target)


def cancel(move: Lifecycle) -> dict[str, Any]:
    return stages.cancel(load_pipeline(move.content), move.target)


def shown(move: Lifecycle) -> dict[str, Any]:
    found = stages.status(load_pipeline(move.content), move.source, move.target)["control"]
    assert isinstance(found, dict)
    return found


def held(move: Lifecycle) -> bool:
    """Whether a run is there and every session of ours, on either side, is idle outside of transactions, with no lock
    on a relation: seen twice, with time for a chunk between."""
    query = (
        "SELECT count(*), coalesce(bool_and(state = 'idle'), true), coalesce(sum((SELECT count(*) FROM pg_locks l "
        "WHERE l.pid = a.pid AND l.locktype = 'relation')), 0) FROM pg_stat_activity a "
        "WHERE application_name LIKE %s AND pid <> pg_backend_pid()"
    )
    name = f"pgddl:{move.name}:%"
    return all(
        (found := ask(query, [name])[0])[0] > 0 and found[1] and found[2] == 0
        for _ in range(3)
        for ask in (move.on_source, move.journal)
    )


def rows_differ(move: Lifecycle) -> list[str]:
    return [str(one) for one in differences(move.source, move.target, [("public", "t")])]


def finish(move: Lifecycle) -> None:
    """The rest of the way, up to a comparison of every row by verify itself."""
    for stage in STAGES[STAGES.index("backfill") : STAGES.index("verify") + 1]:
        assert not move.run(stage).blocked
    assert rows_differ(move) == []


@contextmanager
def under_way(move: Lifecycle, stage: str, **changed: Any) -> Iterator[Future[StageResult]]:
    with ThreadPoolExecutor() as pool:
        try:
            yield pool.submit(move.run, stage, **changed)
        finally:
            resume(move)  # else a failed test would wait for a run that holds
