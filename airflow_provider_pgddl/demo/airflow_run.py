"""Airflow as the demo runs it: a home folder of its own, a DAG's run, and what its log says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any, Self

import psutil

from airflow_provider_pgddl.demo import shop
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.screen import Screen

# Structured lines of Airflow's log: what the engine says, and where a task begins and ends.
_PROGRESS = re.compile(r"\] pgddl (?P<stage>\w+): (?P<text>.*?)\s+\[airflow\.task\.hooks\S*\]( loc=\S+)?$")


_STARTING = re.compile(r"\[DAG TEST\] starting task_id=(?:\w+\.)?(?P<task>\w+)")


_STATE = re.compile(r"Task instance state updated .* new_state=(?P<state>\w+)")


_SAID = re.compile(r"^\S+ \[\w+\s*\] (?P<text>.*?)\s*\[airflow\.task\.hooks\S*\]( loc=\S+)?$")


_ERROR = re.compile(r"^airflow\.(?:sdk\.)?exceptions\.\w+: (?P<text>.*)$")


class DagFailed(RuntimeError):
    """A DAG run did not end well; the message names its log."""


class Airflow:
    """Airflow in a folder of its own; nothing of the user's configuration comes in."""

    def __init__(self, home: Path, old: Cluster, new: Cluster) -> None:
        self.home = home
        self._running: subprocess.Popen[str] | None = None
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder()),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "AIRFLOW_CONN_SHOP_PG16": _connection(old),
            "AIRFLOW_CONN_SHOP_PG18": _connection(new),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends what is running, with all its children."""
        if self._running is not None:
            end_process(self._running)

    def start_migration(self) -> Any:
        """Makes Airflow's own database; returns a function that waits for it."""
        log = self.home / "db_migrate.log"
        with log.open("w") as file:
            self._running = self._start(["db", "migrate"], file)
        process = self._running

        def ready() -> None:
            if process.wait():
                raise DagFailed(f"airflow db migrate failed:\n{_tail(log)}")

        return ready

    def test(self, dag: str, screen: Screen) -> None:
        """`airflow dags test`, with what the engine says shown as it comes; `DagFailed` if the run fails."""
        log = self.home / f"{dag}.log"
        process = self._running = self._start(["dags", "test", dag], subprocess.PIPE)
        task, in_error = "", False
        said: deque[str] = deque(maxlen=25)  # what the application printed last, for the case that it fails
        assert process.stdout is not None
        with log.open("w") as file:
            for line in process.stdout:
                file.write(line)
                if found := _STARTING.search(line):
                    task = found["task"]
                    said.clear()
                    if task in ("backfill", "swap"):
                        screen.say("writers", screen.writers_line(), "dim")
                elif found := _PROGRESS.search(line):
                    screen.say(task or found["stage"], found["text"])
                elif found := _SAID.match(line):
                    if not found["text"].startswith("Spark-Submit cmd:"):
                        said.append(found["text"])
                elif (found := _STATE.search(line)) and found["state"] != "success":
                    screen.say(task, found["state"].replace("_", " "), "yellow")
                elif found := _ERROR.match(line):
                    screen.say(task, found["text"], "yellow")
                elif in_error and line.startswith("  "):
                    screen.say(task, line.rstrip(), "yellow")
                    continue
                in_error = _ERROR.match(line) is not None
        if process.wait():
            kept = self.keep_logs()
            raise DagFailed(
                "\n".join([f"The DAG {dag} failed in its task {task}; its whole log is {kept / log.name}", *said])
            )

    def keep_logs(self) -> Path:
        """Copies the logs to where they outlive the demo."""
        kept = Path(tempfile.mkdtemp(prefix="pgddl-demo-logs-"))
        for log in self.home.glob("*.log"):
            (kept / log.name).write_bytes(log.read_bytes())
        return kept

    def _start(self, arguments: list[str], output: Any) -> subprocess.Popen[str]:
        # A session of its own: Ctrl-C reaches us alone, and we end it with all its children.
        return subprocess.Popen(
            [sys.executable, "-m", "airflow", *arguments],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )


def dags_folder() -> Path:
    """In a wheel inside the package, in a checkout beside it."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "dags_examples", package.parent / "dags_examples"):
        if folder.is_dir():
            return folder
    raise DagFailed(f"dags_examples is neither in {package} nor beside it: install airflow-provider-pgddl again")


def _connection(cluster: Cluster) -> str:
    return json.dumps(
        {
            "conn_type": "postgres",
            "host": "127.0.0.1",
            "port": cluster.port,
            "schema": shop.DATABASE,
            "login": "postgres",
            "password": cluster.password,
        }
    )


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def end_process(process: subprocess.Popen[str]) -> None:
    """Ends a process of ours and all its children: Airflow's task, spark-submit's JVM, the driver and its workers."""
    if process.poll() is not None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.terminate()
        _, alive = psutil.wait_procs(family, timeout=5)
        for member in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
    if process.poll() is None:
        process.kill()
        process.wait()
