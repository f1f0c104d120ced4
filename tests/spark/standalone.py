"""A standalone cluster as people have one: master and workers of one core from pyspark's own scripts, on loopback."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psutil

from airflow_provider_pgddl.engine.parallel import spark

SECRET = "a secret of all on this cluster"
# Driver, master, workers and executors know one secret, and encrypt what they say to one another.
ENCRYPTED = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": SECRET,
    "spark.network.crypto.enabled": "true",
}
# The smallest executor that Spark starts, and one that is there soon: it does not live long.
SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": spark.JAVA_OPTIONS,
}


class Standalone:
    """`with Standalone(workers=2) as cluster`: ends by the pids of what it has started. `workers` may be added and
    killed; `master` is the URL. Each has one core, unless `cores` says otherwise."""

    def __init__(self, *, workers: int = 2, cores: int = 1, conf: dict[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pgddl-spark-"))
        self._properties = self.folder / "spark.conf"
        self._properties.write_text("".join(f"{k} {v}\n" for k, v in (conf or {}).items()))
        home = Path(spark.launch_env(os.environ, local=True)["SPARK_HOME"])
        self._command = [str(home / "bin" / "spark-class")]
        # Nothing of this process: what executors use is the interpreter that they are told, and what travels.
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "JAVA_HOME", "TMPDIR", "LANG")}
        self._env = kept | {
            "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": spark.JAVA_OPTIONS,
        }  # fmt: skip
        self._number, self._wanted, self._cores = 0, workers, cores
        self._logs: dict[int, Path] = {}
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self.start_master()
            for _ in range(self._wanted):
                self.add_worker()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.workers, self._process):
            _end(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_master(self, port: int = 0) -> None:
        """Also one in the place of another, at its port."""
        self._process = self._start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        said = self._await(self._process, r"Starting Spark master at (spark://\S+)")
        self._await(self._process, "I have been elected leader")
        self.master = said[1]

    @property
    def master_process(self) -> subprocess.Popen[bytes]:
        return self._process

    @property
    def port(self) -> int:
        return int(self.master.rpartition(":")[2])

    def add_worker(self) -> subprocess.Popen[bytes]:
        """One more; it has registered with the master."""
        place = self.folder / f"worker-{self._number}"
        worker = self._start(
            "worker.Worker",
            "--host",
            self._host(),
            "--cores",
            str(self._cores),
            "--memory",
            "1g",
            "--webui-port",
            "0",
            "--work-dir",
            str(place),
            self.master,
        )
        self.workers.append(worker)
        self._await(worker, "Successfully registered with master")
        return worker

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs, as children of the workers."""
        found = []
        for worker in self.workers:
            if worker.poll() is None:
                found += [p for p in psutil.Process(worker.pid).children() if p.is_running()]
        return found

    def _host(self) -> str:
        """An address of its own: Spark starts no second attempt at a task where the first one runs."""
        return f"127.0.0.{self._number % 200 + 2}"

    def kill_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """kill -9, as the loss of a machine: with its executors."""
        family = psutil.Process(worker.pid).children(recursive=True)
        worker.kill()
        for process in family:
            if process.is_running():
                process.kill()
        worker.wait()
        self.workers.remove(worker)

    def kill_master(self) -> None:
        self._process.kill()
        self._process.wait()

    def _start(self, name: str, *args: str) -> subprocess.Popen[bytes]:
        self._number += 1
        log = self.folder / f"{self._number}.log"
        command = [*self._command, f"org.apache.spark.deploy.{name}", *args, "--properties-file", str(self._properties)]
        with log.open("wb") as out:
            process = subprocess.Popen(command, env=self._env, cwd=self.folder, stdout=out, stderr=subprocess.STDOUT)
        self._logs[process.pid] = log
        return process

    def _await(self, process: subprocess.Popen[bytes], words: str, seconds: float = 240) -> re.Match[str]:
        deadline = time.monotonic() + seconds
        while True:
            said = self._logs[process.pid].read_text()
            if found := re.search(words, said):
                return found
            assert process.poll() is None and time.monotonic() < deadline, f"{words!r} was not said:\n{said}"
            time.sleep(0.05)


def _end(process: subprocess.Popen[Any]) -> None:
    """The process and what it has started."""
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _, alive = psutil.wait_procs(family, timeout=10)
        for left in alive:
            left.kill()


PYTHON = sys.executable
