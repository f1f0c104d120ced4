"""Workers that Spark has started look at their own borders: pause and cancel reach each of them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.controls import cancel, finish, held, pause, resume, shown
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.progress import CHUNKS_DONE
from tests.table_writers import TableWriters

pytestmark = pytest.mark.spark

TABLE = """
CREATE TABLE public.t (id int PRIMARY KEY, v text);
INSERT INTO public.t SELECT i, repeat('x', 500) FROM generate_series(1, 5000) i;
"""


def test_spark_s_workers_hold_and_end(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], tmp_path: Path
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    execute(source_dsn, TABLE)
    small = {"chunk_bytes": "16kB", "workers": 2}
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"]}, backfill=small, spark={"begin": "at_once"}
    )
    move.run_all(until="snapshot")
    file, log = tmp_path / "pipeline.yaml", tmp_path / "log"
    file.write_text(json.dumps(move.content))
    command = [sys.executable, "-m", "airflow_provider_pgddl.cli", "run", "backfill", "-p", str(file)]
    workers = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s"
    copying = [f"pgddl:{move.name}:%:copy"]

    with (
        TableWriters([source_dsn], [("public", "t")], rate=50, seed=seed) as writers,
        log.open("wb") as out,
        subprocess.Popen(command, env=os.environ, stdout=out, stderr=subprocess.STDOUT) as shell,
    ):
        try:
            wait_until(lambda: move.journal(workers, copying) == [(2,)] or shell.poll() is not None, 120, 0.1)
            wait_until(lambda: move.journal(CHUNKS_DONE)[0][0] > 5)
            pause(move, "the nightly report")
            wait_until(lambda: held(move))
            done = move.journal(CHUNKS_DONE)
            wait_until(lambda: "the nightly report" in log.read_text())
            assert move.journal(workers, copying) == [(2,)]
            resume(move)
            wait_until(lambda: move.journal(CHUNKS_DONE) > done)
            cancel(move)
            assert shell.wait(60) == 1, log.read_text()
        finally:
            shell.kill()
    print(said := log.read_text())
    assert "`pgddl cancel` has ended this run" in said
    assert "Traceback" not in said
    assert writers.notes.failures == []
    assert move.journal(CHUNKS_DONE)[0][0] < move.journal("SELECT count(*) FROM pgddl.chunks")[0][0]
    assert shown(move)["under_way"] == []
    assert interrupted(move, command, log).endswith("pgddl: interrupted\n")
    move.content["backfill"] = small | {"workers": 1}
    finish(move)


def interrupted(move: Lifecycle, command: list[str], log: Path) -> str:
    """What a backfill says that ^C ends: it reaches the command, the JVM and the driver."""
    done = move.journal(CHUNKS_DONE)
    group: dict[str, Any] = {"env": os.environ, "start_new_session": True}
    group["preexec_fn"] = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # these tests may run in the background
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, **group) as shell:
        try:
            wait_until(lambda: move.journal(CHUNKS_DONE) > done or shell.poll() is not None, 120, 0.1)
            os.killpg(shell.pid, signal.SIGINT)
            assert shell.wait(60) == 130, log.read_text()
        finally:
            shell.kill()
    said = log.read_text()
    assert "pgddl: stopping (SIGINT)" in said and "backfill of" in said, said
    assert "Traceback" not in said and "Py4J" not in said, said
    return said
