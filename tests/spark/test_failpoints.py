"""What the environment says reaches the driver that spark-submit's JVM starts, and the workers that Spark forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import EXIT_DONE, EXIT_RETRY
from airflow_provider_pgddl.engine.failpoints import VARIABLE
from tests.integration.lifecycle import Lifecycle, execute

pytestmark = [pytest.mark.spark]

ITEMS = """
CREATE TABLE public.items (id int PRIMARY KEY, filler text NOT NULL);
INSERT INTO items SELECT n, repeat('x', 400) FROM generate_series(1, 1500) n;
"""


def test_a_worker_and_a_driver_die_between_two_commits(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], tmp_path: Path
) -> None:
    execute(source_dsn, ITEMS)
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.items"]}, backfill={"chunk_bytes": "64kB", "workers": 2},
        spark={"begin": "at_once"},
    )  # fmt: skip
    (tmp_path / "pipeline.yaml").write_text(json.dumps(move.content))

    def run(stage: str, failpoint: str) -> subprocess.CompletedProcess[str]:
        file = str(tmp_path / "pipeline.yaml")
        command = [sys.executable, "-m", "airflow_provider_pgddl.cli", "run", stage, "-p", file]
        env = {**os.environ, VARIABLE: f"{tmp_path} {failpoint}=kill"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
        assert (tmp_path / failpoint).exists(), done.stderr
        return done

    move.run_all(until="snapshot")
    worker = run("backfill", "backfill.before_chunk_commit")  # another one takes its place
    assert worker.returncode == EXIT_DONE, worker.stderr
    assert move.journal("SELECT count(*) > 4, bool_and(done_at IS NOT NULL) FROM pgddl.chunks") == [(True, True)]
    move.run("schema_sync")
    execute(source_dsn, "UPDATE items SET filler = 'y' WHERE id <= 100; DELETE FROM items WHERE id > 1400")
    driver = run("replay", "replay.before_acknowledge")
    assert driver.returncode == EXIT_RETRY, driver.stderr
    # The target has the window, and the source has its log still.
    assert move.on_source(f"SELECT count(*) FROM pgddl.{log_of(move)}") == [(200,)]
    assert move.run("replay").figures["keys"] == 200
    assert [str(d) for d in differences(source_dsn, target_dsn)] == []


def log_of(move: Lifecycle) -> str:
    ((log,),) = move.journal("SELECT log_table FROM pgddl.tables")
    return str(log)
