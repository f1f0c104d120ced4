"""How far rows are behind: in the task log, in status, and for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands import metrics
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.server.lag import Lag
from tests.integration.lifecycle import Lifecycle, execute, wait_until

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, n int);
CREATE TABLE b (id int PRIMARY KEY, n int);
INSERT INTO a SELECT i, i FROM generate_series(1, 100) i;
"""


@pytest.fixture
def move(lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str) -> Lifecycle:
    execute(source_dsn, TABLES)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]})


def told(move: Lifecycle) -> dict[str, Any]:
    return stages.status(load_pipeline(move.content), move.source, move.target)


def scraped(move: Lifecycle) -> str:
    return metrics.text(load_pipeline(move.content), move.source, move.target)


def test_lag_is_counted_from_the_last_snapshot_that_is_there_in_full(move: Lifecycle) -> None:
    move.run_all(until="schema_sync")
    assert told(move)["lag"] is None
    assert "pgddl_lag_seconds{" not in scraped(move)
    move.run("replay")
    first = told(move)["lag"]
    execute(move.source, "INSERT INTO a SELECT i, i FROM generate_series(101, 20100) i")
    later = told(move)
    assert later["lag"]["bytes"] - first["bytes"] > 20000 * 30  # what these rows are in WAL, at the least
    assert later["lag"]["seconds"] > first["seconds"]
    assert (later["tables"]["public.a"]["lag_keys"], later["tables"]["public.b"]["lag_keys"]) == (20000, 0)
    move.run("replay")
    caught_up = told(move)
    assert caught_up["lag"]["bytes"] < later["lag"]["bytes"]
    assert caught_up["tables"]["public.a"]["lag_keys"] == 0


def test_keys_that_are_pending_are_behind_as_well(move: Lifecycle) -> None:
    """A window that leaves some for the next one has not shown its snapshot in full."""
    move.run_all(until="replay")
    before = told(move)["lag"]["seconds"]
    execute(move.source, "UPDATE a SET n = 0 WHERE id <= 50")
    [(table_id,)] = move.journal("SELECT id FROM pgddl.tables WHERE table_name = 'a'")
    execute(move.target, f"INSERT INTO pgddl.pending_{table_id} SELECT i FROM generate_series(51, 60) i")
    now = told(move)
    assert now["tables"]["public.a"]["lag_keys"] == 60
    assert now["lag"]["seconds"] > before


def test_a_run_over_some_tables_says_nothing_of_the_others(move: Lifecycle) -> None:
    move.run_all(until="replay")
    execute(move.source, "UPDATE b SET n = 0; UPDATE a SET n = 0")
    complete = "SELECT max(window_no) FROM pgddl.windows WHERE lsn IS NOT NULL"
    before = move.journal(complete)
    move.run("replay", tables=["public.a"])
    assert move.journal(complete) == before
    move.run("replay")
    assert move.journal(complete) > before


def test_more_keys_than_a_window_takes_are_behind_until_the_last_of_them(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str
) -> None:
    execute(source_dsn, TABLES)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, replay={"window_rows": 30})
    move.run_all(until="replay")
    execute(move.source, "UPDATE a SET n = 0")
    result = move.run("replay")
    assert result.figures["windows"] > 1
    counted = move.journal("SELECT pending > 0 FROM pgddl.windows ORDER BY window_no DESC LIMIT 2")
    assert counted == [(False,), (True,)]


def test_the_task_log_says_it_with_each_window(move: Lifecycle, capsys: pytest.CaptureFixture[str]) -> None:
    move.run_all(until="schema_sync")
    execute(move.source, "INSERT INTO b VALUES (1, 1)")
    capsys.readouterr()
    result = move.run("replay")
    said = capsys.readouterr().out
    assert re.search(r"window \d+: 1 keys, 1 rows, 0 pending, \d+\.\d\d s and [\d.]+ (bytes|kB|MB) behind", said)
    assert result.figures["lag_bytes"] >= 0


def test_prometheus_has_it_until_the_cut_over(move: Lifecycle) -> None:
    move.run_all(until="verify")
    execute(move.source, "UPDATE a SET n = 0 WHERE id <= 7")
    wait_until(lambda: told(move)["lag"]["seconds"] > 0)
    text = scraped(move)
    assert re.search(rf'^pgddl_lag_bytes{{pipeline="{move.name}"}} [1-9]', text, re.MULTILINE)
    assert re.search(rf'^pgddl_lag_seconds{{pipeline="{move.name}"}} \d', text, re.MULTILINE)
    assert f'pgddl_lag_keys{{pipeline="{move.name}",schema="public",table="a"}} 7.0' in text
    move.run("swap")
    assert told(move)["lag"] is None
    assert "pgddl_lag_bytes{" not in scraped(move)


def test_in_place_as_well(lifecycle: Callable[..., Lifecycle], source_dsn: str) -> None:
    execute(source_dsn, TABLES)
    rewrite = lifecycle(source_dsn, rewrite={"public.a": {}})
    rewrite.run_all(until="replay")
    before = told(rewrite)["lag"]
    execute(source_dsn, "UPDATE a SET n = 0")
    assert told(rewrite)["lag"]["bytes"] > before["bytes"]
    assert told(rewrite)["tables"]["public.a"]["lag_keys"] == 100


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 kB"), (5 << 20, "5.0 MB"), (3 << 40, "3.0 TB")],
)
def test_bytes_are_said_in_units(size: int, said: str) -> None:
    assert str(Lag(size, 1.5)) == f"1.50 s and {said} behind"
