"""Deploy mode cluster: the driver is elsewhere, and so are its job file, its passwords and its outcome."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import psycopg
import pytest
from airflow.sdk.exceptions import AirflowException
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.launch.far_driver import VANISHED
from airflow_provider_pgddl.operators.stages import PgddlVerifyOperator
from tests.integration import controls
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.progress import CHUNKS_DONE
from tests.spark.elsewhere import FOLDER, Elsewhere
from tests.spark.password_file import line, write

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SHOP = """
CREATE TABLE public.orders (id int PRIMARY KEY, note text NOT NULL);
INSERT INTO public.orders SELECT n, repeat('x', 400) FROM generate_series(1, 500) n;
CREATE TABLE public.lines (id int PRIMARY KEY, order_id int REFERENCES public.orders);
INSERT INTO public.lines SELECT n, n FROM generate_series(1, 500) n;
"""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    there = Elsewhere()
    monkeypatch.setenv(FOLDER, str(there.folder))
    monkeypatch.setenv("PATH", os.pathsep.join([str(there.bin), os.environ["PATH"]]))
    yield there
    for container in there.containers:
        if (pid := container / "pid").exists() and psutil.pid_exists(int(pid.read_text())):
            os.kill(int(pid.read_text()), signal.SIGKILL)
    there.remove()


class Shell:
    """`pgddl run` of one pipeline; what is said goes to a file, which may be read meanwhile."""

    def __init__(self, move: Lifecycle, folder: Path) -> None:
        self._file, self._said = folder / "pipeline.yaml", folder / "said"
        self._file.write_text(json.dumps(move.content))

    def start(self, stages: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "airflow_provider_pgddl.cli", "run", stages, "-p", str(self._file)]
        with self._said.open("w") as said:
            return subprocess.Popen(command, stdout=said, stderr=said)

    @property
    def said(self) -> str:
        return self._said.read_text()

    def __call__(self, stages: str, code: int = 0) -> str:
        done = self.start(stages).wait(300)
        assert done == code, self.said
        assert "Traceback" not in self.said
        return self.said


def test_a_lifecycle_whose_drivers_are_elsewhere(
    source_dsn: str,
    target_dsn: str,
    lifecycle: Callable[..., Lifecycle],
    elsewhere: Elsewhere,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    execute(source_dsn, SHOP)
    passwords = [str(conninfo_to_dict(dsn)["password"]) for dsn in (source_dsn, target_dsn)]
    file = elsewhere.folder / "pgpass"
    write(file, line(source_dsn), line(target_dsn))
    elsewhere.owned(file)
    spark = {
        "master": "k8s://https://10.0.0.1:6443",
        "secrets": {"file": str(file)},
        "conf": {
            "spark.submit.deployMode": "cluster",
            "spark.kubernetes.file.upload.path": "s3a://spark/uploads",
            "spark.authenticate": True,
        },
    }
    throttle = {"query": "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND objid = 19"}
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"]}, spark=spark, backfill={"throttle": throttle}
    )
    run = Shell(move, tmp_path)
    said: list[str] = []

    # An error comes to who waits for it, also before there is a journal, and nothing has been touched by then.
    elsewhere.image({"PGDDL_PG_DUMP": "/nowhere/pg_dump"})
    said.append(run("setup", 4))
    assert "no pg_dump is found" in said[-1]
    assert move.on_source("SELECT count(*) FROM pg_namespace WHERE nspname = 'pgddl'") == [(0,)]

    # A driver holds for a throttle and for a pause, and ends when cancelled: what is told goes by the journal.
    elsewhere.image({})
    said.append(run("setup..snapshot"))
    with psycopg.connect(source_dsn) as busy:
        busy.execute("SELECT pg_advisory_lock(19)")
        launcher = run.start("backfill")
        wait_until(lambda: (controls.shown(move)["throttled"] or {}).get("by") == "query", 120, every=0.1)
        log = elsewhere.containers[-1] / "log"
        controls.pause(move, "the nightly report")
        wait_until(lambda: "the nightly report" in log.read_text() and controls.held(move), 60, every=0.1)
        controls.cancel(move)
        assert launcher.wait(60) == 1, run.said
    assert "`pgddl cancel` has ended this run" in run.said
    assert controls.shown(move)["under_way"] == [] and move.journal(CHUNKS_DONE) == [(0,)]
    controls.resume(move)

    said.append(run("backfill"))
    assert re.search(r"pgddl: backfill of \w+: done", said[-1])

    # A driver that is killed leaves no outcome, and the next one goes on.
    elsewhere.strikes("killed", "schema_sync.before_indexed_commit=kill")
    said.append(run("schema_sync", 5))
    assert VANISHED in said[-1]
    elsewhere.image({})
    said.append(run("schema_sync"))

    # One whose launcher is killed is found again, and waited for instead of another.
    execute(source_dsn, "UPDATE public.orders SET note = 'changed' WHERE id % 3 = 0")
    held = elsewhere.strikes("found", "stage.before_result_commit=wait") / "stage.before_result_commit"
    launcher = run.start("replay")
    wait_until(held.exists, 120, every=0.1)
    launcher.kill()
    launcher.wait()
    begun = len(elsewhere.containers)
    again = run.start("replay")
    wait_until(lambda: "a driver is at work on it" in run.said, 120, every=0.1)
    held.with_name(f"{held.name}.go").touch()
    assert again.wait(120) == 0, run.said
    said.append(run.said)
    assert re.search(r"pgddl: replay of \w+: done", run.said)
    assert len(elsewhere.containers) == begun

    # Who stops the launcher stops the driver.
    held = elsewhere.strikes("stopped", "stage.before_result_commit=wait") / "stage.before_result_commit"
    launcher = run.start("verify")
    wait_until(held.exists, 120, every=0.1)
    driver = psutil.Process(elsewhere.driver())
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(60) == 130, run.said
    wait_until(lambda: not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE, 60, every=0.1)
    elsewhere.image({})

    # The same by operators, through YARN, whose drivers begin Spark at once: one that is killed, and one whose driver a
    # retry finds.
    monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", '{"conn_type": "spark", "host": "yarn"}')
    held = elsewhere.strikes("killed_task", "stage.before_result_commit=wait") / "stage.before_result_commit"
    with ThreadPoolExecutor() as pool:
        killed = operator(move.content)
        running = pool.submit(execute_task, killed, tmp_path)
        wait_until(held.exists, 120, every=0.1)
        killed.on_kill()
        with pytest.raises(AirflowException):
            running.result(60)
        held = elsewhere.strikes("found_by_a_task", "stage.before_result_commit=wait") / "stage.before_result_commit"
        first = pool.submit(execute_task, operator(move.content), tmp_path)
        wait_until(held.exists, 120, every=0.1)
        begun = len(elsewhere.containers)
        retried = pool.submit(execute_task, operator(move.content), tmp_path)
        with psycopg.connect(target_dsn, autocommit=True) as conn:
            wait_until(lambda: conn.execute(FOLLOWERS).fetchone() == (2,), 60, every=0.1)
        held.with_name(f"{held.name}.go").touch()
        for told in (first.result(120), retried.result(120)):
            assert (told["stage"], told["state"]) == ("verify", "done")
        assert len(elsewhere.containers) == begun
    elsewhere.image({})
    by_shell, _, by_task = ((container / "log").read_text() for container in elsewhere.containers[-3:])
    assert "log4j" in by_task and "log4j" not in by_shell  # which a JVM that begins speaks of

    said.append(run("swap,cleanup"))
    assert differences(source_dsn, target_dsn) == []
    shown = "".join(said) + "".join(
        (container / name).read_text()
        for container in elsewhere.containers
        for name in ("argv.json", "job.json", "log")
    )
    assert not any(password in shown for password in passwords)
    argv = json.loads((elsewhere.containers[-1] / "argv.json").read_text())
    assert argv[-1] == "job.json" and argv[argv.index("--deploy-mode") + 1] == "cluster"


FOLLOWERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'pgddl:%:follow' AND query LIKE '%starts_with%'
"""


def operator(pipeline: dict[str, Any]) -> PgddlVerifyOperator:
    return PgddlVerifyOperator(task_id="verify", pipeline=pipeline, conn_id="elsewhere")


def execute_task(task: PgddlVerifyOperator, folder: Path) -> dict[str, Any]:
    ti = SimpleNamespace(dag_id="d", task_id="verify", try_number=1, max_tries=3, xcom_push=lambda *_: None)
    result: dict[str, Any] = task.execute({"dag": SimpleNamespace(folder=str(folder)), "ti": ti})
    return result
