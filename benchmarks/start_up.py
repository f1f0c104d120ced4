"""What a stage costs that has nothing to do: in a process, by spark-submit, by `pgddl run`, and as a task of Airflow.

    python -m benchmarks start_up

A small pipeline in place has had its backfill; the backfill is run again, which looks, finds nothing, and records that.
The ways alternate, and each figure is the median of the rounds.

in a process   the stage alone: its sessions, its look at both sides, its result in the journal
spark-submit   the same as a Spark application, submitted as `pgddl run` does; beside it an empty script, as a person
               would submit that, which is what Spark alone costs
pgddl run      reads the pipeline file, checks what is installed, submits, and reads the result
airflow        `airflow tasks test` of the operator; beside it that of an operator that does nothing

Nothing has to be spread over workers, so no SparkSession is made. The package is compiled first, as an installation
does it, and three runs of each way are not counted: the second makes the archive of classes, in a folder of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg

import airflow_provider_pgddl
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job import file as jobs
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.parallel import spark
from airflow_provider_pgddl.engine.parallel.class_archive import class_archive
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from benchmarks.report import Measure, Report, alternate

MASTER = "local[2]"
LIMIT = 2.5  # seconds by spark-submit
VARIABLE = "PGDDL_BENCH_SOURCE"
FILE = {"pipeline": "idle", "source": {"dsn": f"${{{VARIABLE}}}"}, "rewrite": {"public.item": {}}}
SHAPE = """
CREATE TABLE item (id integer PRIMARY KEY, note text);
INSERT INTO item SELECT n, 'note' FROM generate_series(1, 1000) n;
"""
RUNS = "SELECT count(*) FROM pgddl.stage_runs WHERE result ->> 'state' = 'nothing_to_do'"
PACKAGE = Path(airflow_provider_pgddl.__file__).parent
DAG = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow_provider_pgddl.operators.stages import PgddlBackfillOperator

class Nothing(EmptyOperator):
    def execute(self, context):
        print("done nothing")

with DAG("start_up", schedule=None):
    PgddlBackfillOperator(task_id="backfill", pipeline={pipeline!r})
    Nothing(task_id="nothing")
"""


def run(*, small: bool) -> Report:
    report = Report()
    with Cluster(16) as cluster, tempfile.TemporaryDirectory(prefix="pgddl-bench-") as made:
        os.environ[VARIABLE] = cluster.conninfo()
        with psycopg.connect(cluster.conninfo()) as conn:
            conn.execute(SHAPE)
        pipeline, folder = load_pipeline(FILE), Path(made)
        for stage in ("setup", "snapshot", "backfill"):
            in_process(pipeline, stage)
        ways = {
            "in a process": lambda: in_process(pipeline, "backfill"),
            "spark-submit": submitted(pipeline, folder),
            "empty script": empty(folder),
            "pgddl run": shell(folder),
        }
        for _ in range(1 if small else 3):
            once(ways)
        took = alternate(ways, 1 if small else 7)
        bare = took["empty script"]
        report.measures += [
            Measure("a stage with nothing to do, in a process", took["in a process"], bare, "empty spark-submit"),
            Measure("a stage with nothing to do, by spark-submit", took["spark-submit"], LIMIT, "2.5 s", goal=1.0),
            Measure("the same beside an empty script", took["spark-submit"], bare, "empty spark-submit"),
            Measure("a stage with nothing to do, by `pgddl run`", took["pgddl run"], bare, "empty spark-submit"),
        ]
        tasks = {"backfill": task(folder, cluster, "backfill"), "nothing": task(folder, cluster, "nothing")}
        if missing := "it is in make bench-full" if small else no_airflow(folder):
            report.notes.append(f"start_up: what Airflow adds is left out: {missing}")
            return report
        once(tasks)
        took |= alternate(tasks, 3)
    name = "a stage with nothing to do, by `airflow tasks test`"
    report.measures.append(Measure(name, took["backfill"], took["nothing"], "a task that does nothing"))
    report.notes.append(
        f"start_up: spark-submit of a stage with nothing to do: {took['spark-submit']:.2f} s, of which an empty script "
        f"takes {bare:.2f} s and the stage {took['in a process']:.2f} s; `pgddl run` adds "
        f"{took['pgddl run'] - took['spark-submit']:.2f} s, `airflow tasks test` "
        f"{took['backfill'] - took['spark-submit']:.2f} s (of a task that does nothing: {took['nothing']:.2f} s)"
    )
    return report


def once(ways: dict[str, Callable[[], float]]) -> None:
    for way in ways.values():
        way()


def in_process(pipeline: Pipeline, stage: str) -> float:
    began = time.monotonic()
    with redirect_stderr(StringIO()):
        stages.run(Job(stage, pipeline))
    return time.monotonic() - began


def submitted(pipeline: Pipeline, folder: Path) -> Callable[[], float]:
    file, result = folder / "job.json", folder / "result.json"
    jobs.write(Job("backfill", pipeline, result_path=str(result)), file)
    env = environment(folder)
    env |= spark.launch_env(env, local=True)

    def way() -> float:
        result.unlink(missing_ok=True)
        archive = class_archive(env, folder)
        conf = spark.local_conf(MASTER, archive)
        took = timed(
            spark.command("spark-submit", MASTER, spark.application("backfill"), file, name="idle", conf=conf), env
        )
        outcome = jobs.read_outcome(result)
        if archive is not None:
            archive.settle(ended=outcome is not None, well=True)
        if outcome is None or outcome.result is None or outcome.result["state"] != "nothing_to_do":
            raise SystemExit(f"the stage had something to do: {outcome}")
        return took

    return way


def empty(folder: Path) -> Callable[[], float]:
    script = folder / "empty.py"
    script.write_text("")
    found = spark.launch_env(os.environ, local=False)
    env = os.environ | {key: found[key] for key in ("PATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    return lambda: timed(["spark-submit", "--master", MASTER, str(script)], env)


def shell(folder: Path) -> Callable[[], float]:
    file = folder / "item.yaml"
    file.write_text(json.dumps(FILE))
    command = [sys.executable, "-m", "airflow_provider_pgddl.cli", "run", "backfill", "-p", str(file)]
    return lambda: timed(command, environment(folder))


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}


def timed(command: list[str], env: Any) -> float:
    began = time.monotonic()
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True)
    took = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return took


def airflow_environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in environment(folder).items() if not key.startswith("AIRFLOW")}
    return kept | {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": MASTER}),
    }


def no_airflow(folder: Path) -> str | None:
    """Makes Airflow's home; the reason where that cannot be done."""
    (folder / "dags").mkdir()
    (folder / "dags" / "start_up.py").write_text(DAG.format(pipeline=FILE))
    command = [sys.executable, "-m", "airflow", "db", "migrate"]
    done = subprocess.run(command, check=False, env=airflow_environment(folder), capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip().rpartition("\n")[2]


def task(folder: Path, cluster: Cluster, name: str) -> Callable[[], float]:
    """`airflow tasks test` ends with 0 whatever becomes of the task, so the journal tells whether the stage ran."""
    command = [sys.executable, "-m", "airflow", "tasks", "test", "start_up", name]

    def way() -> float:
        before = runs(cluster)
        took = timed(command, airflow_environment(folder))
        if runs(cluster) - before != (name == "backfill"):
            raise SystemExit(f"the task {name} did not run")
        return took

    return way


def runs(cluster: Cluster) -> int:
    with psycopg.connect(cluster.conninfo()) as conn:
        row = conn.execute(RUNS).fetchone()
        return int(row[0]) if row else 0
