"""Verify over Spark's workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.lifecycle import Lifecycle, execute

pytestmark = pytest.mark.spark

TABLE = """
CREATE TABLE public.t (id int PRIMARY KEY, v text);
INSERT INTO public.t SELECT i, repeat('x', 20) FROM generate_series(1, 25000) i;
"""


def test_fewer_ranges_than_workers_find_what_differs(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], tmp_path: Path
) -> None:
    execute(source_dsn, TABLE)
    small = {"chunk_bytes": "16kB", "workers": 4}
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, backfill=small | {"workers": 1})
    move.run_all(until="replay")
    execute(target_dsn, "UPDATE public.t SET v = 'y' WHERE id = 25000")
    move.content |= {"backfill": small, "spark": {"begin": "at_once"}}
    file = tmp_path / "pipeline.yaml"
    file.write_text(json.dumps(move.content))
    command = [sys.executable, "-m", "airflow_provider_pgddl.cli", "run", "verify", "-p", str(file)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "3/3 ranges, 25k rows compared" in said
    assert "1 rows differ, such as (25000)" in said
    assert "Traceback" not in said
    execute(target_dsn, "UPDATE public.t SET v = repeat('x', 20) WHERE id = 25000")
    move.content["backfill"] = small | {"workers": 1}
    move.run("verify")
