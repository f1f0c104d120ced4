"""Threads of the driver begin; Spark takes over where the rest is worth its start. Spark is played here: when it takes
over, and whether it comes at all, is not to be had from a real one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from airflow_provider_pgddl.demo import compare
from airflow_provider_pgddl.engine.errors import Retry
from airflow_provider_pgddl.engine.job import takeover
from airflow_provider_pgddl.engine.parallel import spark
from tests.failpoints import At
from tests.integration.lifecycle import Lifecycle, execute, left_behind, wait_until

# Each of the large ones is beyond what schema_sync takes for small.
TABLES = """
DO $$ BEGIN
  FOR n IN 1 .. 6 LOOP
    EXECUTE format('CREATE TABLE public.t%s (id int PRIMARY KEY, n int UNIQUE, v text NOT NULL)', n);
    EXECUTE format('INSERT INTO public.t%s SELECT i, -i, repeat(''x'', 300) FROM generate_series(1, 5000) i', n);
    EXECUTE format('CREATE INDEX t%s_v ON public.t%s (v, id)', n, n);
  END LOOP;
END $$
"""
NAMES = [("public", f"t{n}") for n in range(1, 7)]
ALL_DONE = "SELECT count(*) FILTER (WHERE done_at IS NULL), sum(rows) FROM pgddl.chunks"


class Played:
    """Spark: `begun` by application, and how many parts it got of each function; `comes` before it is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, comes: Callable[..., None] = lambda _: None) -> None:
        self.begun: list[str] = []
        self.parts: dict[str, int] = {}
        self._comes = comes
        monkeypatch.setattr(spark, "start", self._start)
        monkeypatch.setattr(spark, "spread", self._spread)

    def _start(self, app: str, *, workers: int, needed: Callable[[], bool], **_: Any) -> int:
        self.begun.append(app.split()[1])
        self._comes(needed)
        return workers

    def _spread(self, work: Callable[[Any], Any], parts: Sequence[Any], **_: Any) -> list[Any]:
        self.parts[work.__name__] = self.parts.get(work.__name__, 0) + len(parts)
        return [work(part) for part in parts]


@pytest.fixture
def move(source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]) -> Lifecycle:
    execute(source_dsn, TABLES)
    small = {"chunk_bytes": "32kB", "workers": 2}
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"]}, backfill=small, replay={"window_rows": 500}
    )
    move.run_all(until="snapshot")
    return move


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start takes no time, so it pays as soon as anything is left."""
    monkeypatch.setattr(takeover, "START", 0.0)
    monkeypatch.setattr(takeover, "MEASURED", 0.0)
    monkeypatch.setattr(takeover, "LOOK_EVERY", 0.05)


def test_what_is_soon_done_is_done_without_spark(move: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    move.run("backfill")
    execute(move.source, "UPDATE public.t1 SET n = n - 10000")
    move.run_all(after="backfill")
    assert played.begun == []
    assert [str(d) for d in compare.compare(move.source, move.target, NAMES) if d.differs] == []


@pytest.mark.usefixtures("at_once")
def test_spark_goes_on_from_where_the_threads_end(move: Lifecycle, monkeypatch: pytest.MonkeyPatch, at: At) -> None:
    played = Played(monkeypatch, lambda _: time.sleep(0.1))
    move.run("backfill")
    assert played.begun == ["backfill"] and played.parts == {"copy_chunks": 2}
    assert move.journal(ALL_DONE) == [(0, 30_000)]
    execute(move.source, "UPDATE public.t1 SET n = n - 10000; DELETE FROM public.t2 WHERE id % 2 = 0")
    # The threads' first indexes are not done before it begins, however fast they are.
    with at("schema_sync.before_analyze", lambda _: wait_until(lambda: "schema_sync" in played.begun)):
        move.run("schema_sync")
    execute(move.source, "UPDATE public.t3 SET n = n - 10000")
    move.run_all(after="schema_sync")
    assert {"backfill", "schema_sync", "replay"} <= {*played.begun}
    assert [str(d) for d in compare.compare(move.source, move.target, NAMES) if d.differs] == []
    assert compare.diff_catalogs(compare.catalog_lines(move.source), compare.catalog_lines(move.target)) == []


@pytest.mark.usefixtures("at_once")
def test_spark_that_does_not_come_in_time_is_not_waited_for(move: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(needed: Callable[[], bool]) -> None:
        while needed():
            time.sleep(0.01)
        raise spark.NotNeeded

    played = Played(monkeypatch, too_late)
    move.run("backfill")
    assert played.begun == ["backfill"] and played.parts == {}
    assert move.journal(ALL_DONE) == [(0, 30_000)]


@pytest.mark.usefixtures("at_once")
def test_spark_without_executors_ends_the_stage_and_leaves_nothing_under_way(
    move: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(needed: Callable[[], bool]) -> None:
        raise Retry("Spark had no executor for 300 s")

    Played(monkeypatch, never)
    assert "no executor" in str(move.refused("backfill", Retry))
    for dsn in (move.source, move.target):
        assert not [line for line in left_behind(dsn) if line.startswith("session")]
    Played(monkeypatch)
    move.run("backfill")
    assert move.journal(ALL_DONE) == [(0, 30_000)]
