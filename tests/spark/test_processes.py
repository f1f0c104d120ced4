"""Nothing of a run outlives the process that it worked for: not JVM, driver, workers, nor what servers do for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
import pytest

from airflow_provider_pgddl.engine.job import file as jobs
from airflow_provider_pgddl.engine.job.file import Job, Watched
from airflow_provider_pgddl.engine.parallel import spark
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.spark

APPLICATION = REPOSITORY / "tests" / "spark" / "sleeping_backfill.py"


def until(holds: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Wait for a condition, and name it where it does not come."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@dataclass
class Run:
    """A stage at work: the process it works for, spark-submit and all that it started, and the server's sessions."""

    task: subprocess.Popen[bytes]
    jvm: psutil.Process
    processes: list[psutil.Process]
    server: psycopg.Connection[tuple[int]]

    @property
    def driver(self) -> psutil.Process:
        return next(p for p in self.alive() if str(APPLICATION) in p.cmdline() and "java" not in p.name())

    def sessions(self, kind: str = "%") -> int:
        row = self.server.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s", [f"pgddl-test:{kind}"]
        ).fetchone()
        assert row is not None
        return row[0]

    def alive(self) -> list[psutil.Process]:
        return [p for p in self.processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def assert_gone(self) -> None:
        until(lambda: not self.alive(), "JVM, driver or workers live on")
        until(lambda: self.sessions() == 0, "a server works on for nobody")


@pytest.fixture
def at_work(source_dsn: str, tmp_path: Path) -> Iterator[Run]:
    """A stage whose two workers are in the middle of a chunk."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as task:
        rewrite = {"pipeline": "shop", "source": {"dsn": "${PGDDL_SOURCE_CONNINFO}"}, "rewrite": {"shop.orders": {}}}
        job = Job(
            "backfill",
            load_pipeline(rewrite),
            watch=Watched(task.pid, psutil.Process(task.pid).create_time()),
            secrets={"source": "PGDDL_SOURCE_CONNINFO"},
            result_path=str(tmp_path / "result.json"),
        )
        jobs.write(job, tmp_path / "job.json")
        command = spark.command(
            "spark-submit", "local[2]", APPLICATION, tmp_path / "job.json", name="t", conf=spark.local_conf("local[2]")
        )
        env = os.environ | {"PGDDL_SOURCE_CONNINFO": source_dsn, "PYTHONPATH": str(REPOSITORY)}
        env |= spark.launch_env(env, local=True)
        with (
            subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as jvm,
            psycopg.connect(source_dsn, autocommit=True) as server,
        ):
            run = Run(task, psutil.Process(jvm.pid), [], server)
            until(lambda: run.sessions("worker") == 2, "the workers do not start")
            run.processes = [run.jvm, *run.jvm.children(recursive=True)]
            assert len(run.processes) >= 5  # JVM, driver, the workers' daemon and two workers
            yield run
            for process in [task, *run.alive()]:
                process.kill()


def test_kill_9_of_the_task_ends_everything(at_work: Run, source_dsn: str) -> None:
    shown = "\n".join(" ".join(process.cmdline()) for process in at_work.alive())
    assert str(APPLICATION) in shown
    assert str(psycopg.conninfo.conninfo_to_dict(source_dsn)["password"]) not in shown
    at_work.task.kill()
    at_work.assert_gone()


def test_kill_9_of_the_jvm_ends_everything(at_work: Run) -> None:
    at_work.jvm.kill()
    at_work.assert_gone()


def test_kill_9_of_the_driver_ends_everything(at_work: Run, tmp_path: Path) -> None:
    at_work.driver.kill()
    at_work.assert_gone()
    assert jobs.read_outcome(tmp_path / "result.json") is None


def test_a_driver_told_to_stop_leaves_a_result_that_says_so(at_work: Run, tmp_path: Path) -> None:
    at_work.driver.send_signal(signal.SIGTERM)
    at_work.assert_gone()
    outcome = jobs.read_outcome(tmp_path / "result.json")
    assert outcome is not None
    assert outcome.retryable
    assert outcome.error is not None
    assert outcome.error["error"] == "Stopped", outcome.error
