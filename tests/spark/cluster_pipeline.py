"""A pipeline on a standalone cluster: what its tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from airflow_provider_pgddl.demo import compare
from tests.integration.lifecycle import Lifecycle
from tests.spark.standalone import ENCRYPTED, SMALL, Standalone

SECRET = "PGDDL_TEST_SPARK_SECRET"
CONF = {**ENCRYPTED, **SMALL, "spark.authenticate.secret": f"${{{SECRET}}}", "spark.driver.host": "127.0.0.1"}

# Enough for each stage to spread: many tables, of which some are large beside a chunk, and indexes beside the keys.
TABLES = """
DO $$ BEGIN
  FOR n IN 1 .. 12 LOOP
    EXECUTE format('CREATE TABLE public.t%s (id int PRIMARY KEY, n int UNIQUE, v text NOT NULL)', n);
    EXECUTE format('INSERT INTO public.t%s SELECT i, -i, repeat(''x'', 200) FROM generate_series(1, %s) i', n,
      CASE WHEN n <= 4 THEN 8000 ELSE 50 END);
    EXECUTE format('CREATE INDEX t%s_v ON public.t%s (v, id)', n, n);
  END LOOP;
END $$
"""
NAMES = [("public", f"t{n}") for n in range(1, 13)]
CHANGES = """
UPDATE public.t1 SET v = v || 'y' WHERE id % 2 = 0; UPDATE public.t2 SET n = n - 100000;
DELETE FROM public.t3 WHERE id % 7 = 0; INSERT INTO public.t5 SELECT i, -i, 'new' FROM generate_series(100, 9000) i
"""


def on_cluster(move: Lifecycle, cluster: Standalone, **spark: Any) -> None:
    """The pipeline's settings: chunks of 64 kB, windows of 1,000 keys, two workers."""
    move.content.update(
        tables={"include": ["public.*"]},
        backfill={"chunk_bytes": "64kB", "workers": 2},
        replay={"window_rows": 1000},
        spark={"master": cluster.master, "conf": CONF, "begin": "at_once", **spark},
    )


def command(move: Lifecycle, folder: Path, stage: str, *more: str) -> list[str]:
    file = folder / "pipeline.yaml"
    file.write_text(json.dumps(move.content))
    return [sys.executable, "-m", "airflow_provider_pgddl.cli", "run", stage, "-p", str(file), *more]


def run(move: Lifecycle, folder: Path, stage: str, *more: str) -> tuple[int, str]:
    """A stage through spark-submit, as people run it: exit code and all that was said."""
    done = subprocess.run(
        command(move, folder, stage, *more), env=os.environ, capture_output=True, text=True, timeout=400, check=False
    )
    return done.returncode, done.stdout + done.stderr


def differences(move: Lifecycle) -> list[str]:
    found = [str(d) for d in compare.compare(move.source, move.target, NAMES) if d.differs]
    return found + compare.diff_catalogs(compare.catalog_lines(move.source), compare.catalog_lines(move.target))
