"""A pipeline's stages in this process: what spark-submit would start, without Spark, job file and all."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PgddlError, from_postgres
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import STAGES, StageResult

_numbers = itertools.count(1)

# A stage in a process of its own, which can be killed: `python -c PROGRAM JOB_FILE`.
PROGRAM = """
import sys
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job.file import read
stages.run(read(sys.argv[1]))
"""


def wait_until(true: Callable[[], object], seconds: float = 120, every: float = 0.01) -> None:
    """`every` is for what takes a JVM's start: to look a hundred times a second takes half of a core from it."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "still not so"
        time.sleep(every)


class Lifecycle:
    """One pipeline; `run("setup")`, `run("backfill", tables=["public.a"])`, `run_all(until="verify")`.

    `pipeline` is what a file would say without its endpoints; without `target` it is in place. The connection strings
    are in environment variables of this test, as they would be for a driver.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, source: str, target: str | None = None, **pipeline: Any
    ) -> None:
        self.source, self.target = source, target or source
        self._monkeypatch = monkeypatch
        self._number = next(_numbers)
        content = {"pipeline": f"test_{self._number}", "source": self._endpoint("SOURCE", source), **pipeline}
        if target is not None:
            content["target"] = self._endpoint("TARGET", target)
        self.content: dict[str, Any] = content
        self.results: dict[str, StageResult] = {}

    def _endpoint(self, side: str, dsn: str) -> dict[str, str]:
        variable = f"PGDDL_TEST_{side}_{self._number}"
        self._monkeypatch.setenv(variable, dsn)
        return {"dsn": f"${{{variable}}}"}

    def moved(self, source: str) -> None:
        """The source's connection leads somewhere else from here on."""
        self.source = source
        self._monkeypatch.setenv(f"PGDDL_TEST_SOURCE_{self._number}", source)

    def target_moved(self, target: str) -> None:
        """So does the target's."""
        self.target = target
        self._monkeypatch.setenv(f"PGDDL_TEST_TARGET_{self._number}", target)

    @property
    def name(self) -> str:
        return str(self.content["pipeline"])

    def job(
        self,
        stage: str,
        *,
        tables: Sequence[str] | None = None,
        again: bool = False,
        mend: bool = False,
        asked: bool = False,
        reconfigure: bool = False,
        drop: bool = False,
        **changed: Any,
    ) -> Job:
        """The job as a Spark application reads it from its file; `changed` keys replace those of the pipeline."""
        named = None if tables is None else tuple(tables)
        job = Job(
            stage, load_pipeline({**self.content, **changed}), named, again=again, mend=mend, asked=asked,
            reconfigure=reconfigure, drop=drop,
        )  # fmt: skip
        return Job.from_json(job.to_json())

    def run(
        self,
        stage: str,
        *,
        tables: Sequence[str] | None = None,
        again: bool = False,
        mend: bool = False,
        asked: bool = False,
        reconfigure: bool = False,
        drop: bool = False,
        **changed: Any,
    ) -> StageResult:
        """Runs one stage; a server's error comes as the driver reports it."""
        job = self.job(
            stage, tables=tables, again=again, mend=mend, asked=asked, reconfigure=reconfigure, drop=drop, **changed
        )  # fmt: skip
        try:
            result = stages.run(job)
        except psycopg.Error as error:
            raise from_postgres(error, doing=f"running {stage}") from error
        self.results[stage] = result
        return result

    def dry_run(self, stage: str) -> StageResult:
        return stages.run(replace(self.job(stage), dry_run=True))

    def refused(self, stage: str, kind: type[PgddlError] = PgddlError, **options: Any) -> PgddlError:
        """The error of a stage that must not succeed."""
        with pytest.raises(kind) as caught:
            self.run(stage, **options)
        return caught.value

    def run_all(self, *, until: str = "cleanup", after: str | None = None) -> dict[str, StageResult]:
        """The stages in their order, up to and including `until`, beginning behind `after`; none may be blocked."""
        first = 0 if after is None else STAGES.index(after) + 1
        done = {}
        for stage in STAGES[first : STAGES.index(until) + 1]:
            done[stage] = self.run(stage)
            assert not done[stage].blocked, f"{stage}: {done[stage].blocked}"
        return done

    def journal(self, query: str, args: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of the target, where the journal is."""
        return _rows(self.target, query, args)

    def on_source(self, query: str, args: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        return _rows(self.source, query, args)


def execute(dsn: str, statements: str) -> None:
    """Statements as an application would run them: one string, one transaction."""
    with psycopg.connect(dsn) as conn:
        conn.execute(statements.encode())


def _rows(dsn: str, query: str, args: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(query.encode(), args or None)
        return cursor.fetchall() if cursor.description else []


# What cleanup must leave behind on a source: nothing. One line for everything of ours that is still there.
LEFT_BEHIND = """
SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname LIKE 'pgddl%'
UNION ALL SELECT 'trigger ' || tgname || ' on ' || tgrelid::regclass FROM pg_trigger WHERE tgname LIKE 'pgddl%'
UNION ALL SELECT 'event trigger ' || evtname FROM pg_event_trigger WHERE evtname LIKE 'pgddl%'
UNION ALL SELECT 'publication ' || pubname FROM pg_publication WHERE pubname LIKE 'pgddl%'
UNION ALL SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE slot_name LIKE 'pgddl%'
           AND database = current_database()
UNION ALL SELECT 'session ' || application_name FROM pg_stat_activity
           WHERE application_name LIKE 'pgddl:%' AND datname = current_database()
"""


def left_behind(dsn: str, seconds: float = 120) -> list[str]:
    """Objects and sessions of ours in a database. A session that was closed is there until its backend has noticed."""
    deadline = time.monotonic() + seconds
    while True:
        left = [line for (line,) in _rows(dsn, LEFT_BEHIND, ())]
        if time.monotonic() > deadline or not any(line.startswith("session ") for line in left):
            return left
        time.sleep(0.01)


def psql(cluster: Cluster, dsn: str, statements: str) -> None:
    """A script through the cluster's own psql, as people load one."""
    parts = conninfo_to_dict(dsn)
    environment = {**os.environ, "PGPASSWORD": str(parts.pop("password", ""))}
    command = [cluster.bin("psql"), make_conninfo("", **parts), "-qX", "-v", "ON_ERROR_STOP=1", "-f", "-"]
    done = subprocess.run(command, env=environment, input=statements, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]


def load_real(cluster: Cluster, dsn: str, folder: Path, name: str) -> None:
    """chinook or northwind as it is, but for the lines with which chinook makes a database of its own."""
    lines = (folder / f"{name}.sql").read_text(encoding="utf-8").splitlines(keepends=True)
    psql(cluster, dsn, "".join(x for x in lines if not x.startswith(("DROP DATABASE", "CREATE DATABASE", "\\c "))))
