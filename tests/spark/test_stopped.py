"""SIGTERM to driver and JVM at any moment: worth retrying, in a line; and the next run ends with the same rows."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.integration.lifecycle import Lifecycle, execute, left_behind, wait_until
from tests.spark.cluster_pipeline import CHANGES, TABLES, command, differences

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

# What keeps each stage from its end until it is stopped: a lock on one of the copies.
HELD = {
    "backfill": "EXCLUSIVE",
    "schema_sync": "ROW EXCLUSIVE",
    "replay": "EXCLUSIVE",
    "verify": "ACCESS EXCLUSIVE",
}
VICTIMS = ("driver", "jvm")
LATEST = 8.0  # seconds after the JVM is there; executors work then, unless the machine is busy
TRACES = ("Traceback", "Py4J", "Exception", "\tat ")


def test_whoever_is_told_to_stop_says_so_and_the_next_run_goes_on(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], tmp_path: Path, all_combinations: bool
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    execute(source_dsn, TABLES)
    execute(source_dsn, "ANALYZE")
    move = lifecycle(
        source_dsn,
        target_dsn,
        tables={"include": ["public.*"]},
        backfill={"chunk_bytes": "64kB", "workers": 2},
        replay={"window_rows": 1000},
        spark={"begin": "at_once"},
    )
    move.run_all(until="snapshot")
    first = chance.randrange(2)
    for number, (stage, mode) in enumerate(HELD.items()):
        if stage == "schema_sync":
            execute(source_dsn, CHANGES + "; UPDATE public.t12 SET v = v || 'y'")
        if stage == "replay":
            execute(source_dsn, "UPDATE public.t12 SET v = v || 'z'; UPDATE public.t4 SET v = v || 'z'")
        for victim in VICTIMS if all_combinations else (VICTIMS[(first + number) % 2],):
            stop(move, tmp_path, stage, mode, victim, chance.uniform(0, LATEST))
        assert not move.run(stage, backfill=move.content["backfill"] | {"workers": 1}).blocked
    assert differences(move) == []
    for dsn in (source_dsn, target_dsn):
        assert not [line for line in left_behind(dsn) if line.startswith("session")]


def stop(move: Lifecycle, folder: Path, stage: str, mode: str, victim: str, moment: float) -> None:
    """SIGTERM so many seconds after the JVM is there; the driver's as soon as there is one from then on."""
    log = folder / "log"
    with (
        psycopg.connect(move.target) as holder,
        log.open("wb") as out,
        subprocess.Popen(command(move, folder, stage), stdout=out, stderr=subprocess.STDOUT) as shell,
    ):
        try:
            holder.execute(f"LOCK TABLE public.t12 IN {mode} MODE".encode())
            wait_until(lambda: found(shell, "jvm", stage) or shell.poll() is not None, 120, 0.05)
            time.sleep(moment)
            wait_until(lambda: found(shell, victim, stage) or shell.poll() is not None, 120, 0.05)
            for process in found(shell, victim, stage):
                process.send_signal(signal.SIGTERM)
            code = shell.wait(120)
        finally:
            shell.kill()
    said = log.read_text()
    print(f"{stage}: SIGTERM to the {victim} after {moment:.1f} s: {code}\n{said}")
    assert code == 5, said
    assert not [word for word in TRACES if word in said], said


def found(shell: subprocess.Popen[bytes], victim: str, stage: str) -> list[psutil.Process]:
    """The JVM that spark-submit becomes (another one before it puts its command together), or the driver."""
    known = list[psutil.Process]()
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(shell.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                line = process.cmdline()
                is_jvm = "org.apache.spark.deploy.SparkSubmit" in line and "-cp" in line
                is_driver = not is_jvm and len(line) > 1 and any(part.endswith(f"{stage}.py") for part in line)
                if (is_jvm and "org.apache.spark.launcher.Main" not in line) if victim == "jvm" else is_driver:
                    known.append(process)
    return known
