"""Two servers, a pipeline between them, and what every client's test ends with."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import compare_catalogs, compare_sequences, differences
from airflow_provider_pgddl.engine.ddl.parse import split
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.schema.definitions import statement_tree
from airflow_provider_pgddl.engine.stages import StageResult
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.sessions import one

CAPTURE = {"queue": {"rows": "change_log", "ddl": "queue"}, "wal": {"rows": "wal", "ddl": "wal"}}
# So small that little data makes many chunks and many windows; one worker, so no SparkSession.
SMALL = {"backfill": {"chunk_bytes": "64kB", "workers": 1}, "replay": {"window_rows": 300}}


@dataclass
class Move:
    """A pipeline from a database on one server to one on another, and `pg_dump` of both."""

    life: Lifecycle
    pg_dump: Path

    @property
    def source(self) -> str:
        return self.life.source

    @property
    def target(self) -> str:
        return self.life.target

    def run(self, stage: str) -> StageResult:
        """As Airflow does it: again, as long as the error says that a retry may help; nothing may be blocked."""
        for _ in range(20):
            try:
                result = self.life.run(stage)
            except PgddlError as error:
                if not error.retryable:
                    raise
                continue
            assert not result.blocked, f"{stage}: {result.blocked}"
            return result
        raise AssertionError(f"{stage} did not end in 20 attempts")

    def begin(self) -> None:
        """Up to where it follows."""
        for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay"):
            self.run(stage)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Replay runs again and again as long as the block does, and once more behind it."""
        ended, failures = threading.Event(), []

        def follow() -> None:
            try:
                while not ended.is_set():
                    self.run("replay")
            except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
                failures.append(error)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        for failure in failures:
            raise failure
        self.run("replay")

    def end_equal(self, *, fenced: Sequence[str] = ()) -> None:
        """Cut over, and both sides are the same: rows, sequences, catalogs, and what pg_dump prints. Of all tables the
        fence stays on those of `fenced` alone."""
        for stage in ("replay", "verify", "swap"):
            self.run(stage)
        assert list(map(str, differences(self.source, self.target))) == []
        assert list(map(str, compare_sequences(self.source, self.target))) == []
        self.run("cleanup")
        kept = {f"trigger pgddl_fence_{self.life.name} on {table}" for table in fenced}
        assert set(left_behind(self.source)) == (kept | {"schema pgddl"} if kept else set())
        if kept:  # what cleanup leaves to whoever switches the source off
            execute(self.source, "DROP SCHEMA pgddl CASCADE")
        assert compare_catalogs(self.source, self.target) == []
        assert unlike(*(self.dump(dsn) for dsn in (self.source, self.target))) == []

    def dump(self, dsn: str) -> str:
        """As text; without the names of NOT NULLs where the source has none."""
        parts = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        environment = {**os.environ, "PGPASSWORD": parts.pop("password")}
        command = [self.pg_dump, "--schema-only", "--exclude-schema=pgddl*", "--dbname", make_conninfo("", **parts)]
        done = subprocess.run(command, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr[-2000:]
        named = one(self.source, "SELECT current_setting('server_version_num')::integer >= 180000")
        return done.stdout if named else re.sub(r'CONSTRAINT ("[^"]+"|\w+) NOT NULL', "NOT NULL", done.stdout)


def unlike(source: str, target: str) -> list[str]:
    """The statements of two dumps that only one of them has, `-` the source's and `+` the target's. Text decides; where
    it differs, its syntax tree does: of what was restored from a dump Postgres prints `IN (…)` with its casts in other
    places."""
    here, there = (Counter(statements(dump)) for dump in (source, target))
    only = [list((side - other).elements()) for side, other in ((here, there), (there, here))]
    trees = [Counter(map(statement_tree, side)) for side in only]
    left = (trees[0] - trees[1], trees[1] - trees[0])
    found = [
        (each, sign)
        for side, tree, sign in zip(only, left, "-+", strict=True)
        for each in side
        if tree[statement_tree(each)]
    ]
    return [f"{sign} {each}" for each, sign in sorted(found)]


def statements(dump: str) -> list[str]:
    """Without psql's own commands, one of which has another word in it each time, and comments of pg_dump's."""
    lines = [line for line in dump.splitlines() if not re.match(r"\\(un)?restrict |--", line)]
    return [each.strip() for each in split("\n".join(lines))]


@pytest.fixture(params=matrix("queue", "wal"))
def capture(request: pytest.FixtureRequest) -> dict[str, str]:
    """How rows and DDL are captured."""
    return CAPTURE[request.param]


@pytest.fixture(params=matrix(16, 18))
def source_cluster(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster) -> Cluster:
    return {16: pg16, 18: pg18}[request.param]


@pytest.fixture
def move(
    source_cluster: Cluster,
    pg18: Cluster,
    database: Database,
    lifecycle: Callable[..., Lifecycle],
    capture: Mapping[str, str],
) -> Callable[..., Move]:
    """``move(tables=...)``: from a new database to another one on Postgres 18, all DDL with it."""

    def make(**pipeline: Any) -> Move:
        content = {
            "tables": {"include": ["public.*"]}, "capture": capture, "ddl": {"scope": "everything"}, **SMALL, **pipeline
        }  # fmt: skip
        life = lifecycle(database(source_cluster), database(pg18), **content)
        return Move(life, pg18.bin("pg_dump"))

    return make


def url(dsn: str, scheme: str) -> str:
    """A connection string as SQLAlchemy and Django's kind of tools take it; for environments only."""
    parts = {key: quote(str(value), safe="") for key, value in conninfo_to_dict(dsn).items()}
    return f"{scheme}://{parts['user']}:{parts['password']}@{parts['host']}:{parts['port']}/{parts['dbname']}"


def run_client(command: Sequence[str | Path], environment: Mapping[str, str]) -> str:
    """A client's own command to its end, and what it printed."""
    done = subprocess.run(command, env={**os.environ, **environment}, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stdout[-1500:]}{done.stderr[-3000:]}"
    return done.stdout
