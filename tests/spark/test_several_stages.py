"""`pgddl run setup..replay`: several stages in one Spark application, each with a run and a result of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import EXIT_BLOCKED, EXIT_DONE, EXIT_RETRY
from airflow_provider_pgddl.engine.failpoints import VARIABLE
from tests.integration.lifecycle import Lifecycle, execute

pytestmark = pytest.mark.spark

SHOP = """
CREATE TABLE public.orders (id int PRIMARY KEY, note text NOT NULL);
INSERT INTO public.orders SELECT n, repeat('x', 400) FROM generate_series(1, 1500) n;
CREATE TABLE public.lines (id int PRIMARY KEY, order_id int REFERENCES public.orders);
INSERT INTO public.lines SELECT n, n FROM generate_series(1, 500) n;
"""

Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def shop(source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]) -> Lifecycle:
    execute(source_dsn, SHOP)
    spread = {"backfill": {"chunk_bytes": "64kB", "workers": 2}, "spark": {"begin": "at_once"}}
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **spread)


@pytest.fixture
def run(shop: Lifecycle, tmp_path: Path) -> Run:
    """Exit code, what --json printed, and what was said."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(json.dumps(shop.content))

    def run(stages: str, *options: str, failpoint: str = "") -> tuple[int, Any, str]:
        command = [sys.executable, "-m", "airflow_provider_pgddl.cli", "run", stages, "-p", str(file), "--json"]
        env = {**os.environ, VARIABLE: f"{tmp_path} {failpoint}" if failpoint else ""}
        done = subprocess.run([*command, *options], env=env, capture_output=True, text=True, timeout=300)
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr

    return run


def ended(found: Any) -> list[tuple[str, str]]:
    return [(one["stage"], one["state"]) for one in found["stages"]]


def test_a_migration_in_three_commands(shop: Lifecycle, run: Run) -> None:
    code, found, said = run("setup..replay", failpoint="schema_sync.before_indexed_commit=kill")
    assert (code, found["error"]) == (EXIT_RETRY, "Retry"), said
    assert "without an outcome" in found["what"]  # who dies leaves no result, and the journal has those that ended
    ((ids,),) = shop.journal(
        "SELECT array_agg(stage ORDER BY started_at) FROM pgddl.stage_runs WHERE result IS NOT NULL"
    )
    assert ids == ["setup", "snapshot", "backfill"]
    execute(shop.source, "UPDATE orders SET note = 'y' WHERE id <= 100; DELETE FROM lines WHERE id > 400")
    code, found, said = run("setup..replay,verify")
    assert code == EXIT_DONE, said
    assert [stage for stage, _ in ended(found)] == ["setup", "snapshot", "backfill", "schema_sync", "replay", "verify"]
    assert len(re.findall(r"executors? ", said)) <= 1
    assert differences(shop.source, shop.target) == []
    code, found, said = run("setup..replay")
    assert code == EXIT_DONE, said
    assert ended(found)[:4] == [(stage, "nothing_to_do") for stage in ("setup", "snapshot", "backfill", "schema_sync")]
    code, found, said = run("swap..cleanup")
    assert (code, ended(found)) == (EXIT_DONE, [("swap", "done"), ("cleanup", "done")]), said
    code, found, said = run("setup..swap")
    assert code == EXIT_DONE, said
    assert {state for _, state in ended(found)} == {"nothing_to_do"}
    assert "spark" not in said.lower()  # nothing was submitted
    assert shop.journal("SELECT count(DISTINCT job_id) = count(*) FROM pgddl.stage_runs") == [(True,)]


def test_nothing_goes_live_behind_a_stage_that_left_a_table_out(shop: Lifecycle, run: Run) -> None:
    shop.run_all(until="schema_sync")
    execute(shop.target, "ALTER TABLE public.lines ALTER COLUMN order_id TYPE smallint")
    execute(shop.source, "UPDATE orders SET note = 'y' WHERE id <= 100")
    code, found, said = run("replay..cleanup")
    assert code == EXIT_BLOCKED, said
    assert [stage for stage, _ in ended(found)] == ["replay", "verify"], said
    assert "swap was not begun: tables are blocked" in said
    assert shop.journal("SELECT cut_over_at FROM pgddl.pipelines") == [(None,)]


def test_the_first_that_fails_is_the_last(shop: Lifecycle, run: Run) -> None:
    code, found, said = run("setup,backfill,swap")
    assert code == 2, said
    assert ended(found) == [("setup", "done")]
    assert "snapshot" in found["error"]["todo"] + found["error"]["what"]
    assert "Traceback" not in said
