"""What people get wrong, as a stage's application meets it: one clear error, the right exit code, nothing half done."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl import cli
from airflow_provider_pgddl.engine.errors import EXIT_FAILED, EXIT_REFUSED, EXIT_RETRY, EXIT_USAGE
from airflow_provider_pgddl.engine.job import file as jobs
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.launch import driver
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.integration.lifecycle import execute, left_behind

ORDERS = "CREATE TABLE public.orders (id int PRIMARY KEY, note text); INSERT INTO public.orders VALUES (1, 'one')"


@dataclass
class Shell:
    """`pgddl` in a folder with a pipeline file; its stages without the detour over spark-submit."""

    source: str
    target: str
    folder: Path
    capture: pytest.CaptureFixture[str]
    said: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {"BAD_SOURCE": self.source, "BAD_TARGET": self.target}

    def file(self, **changed: Any) -> Path:
        """The pipeline file; a key that is None is left out."""
        content = {
            "pipeline": "bad",
            "source": {"dsn": "${BAD_SOURCE}"},
            "target": {"dsn": "${BAD_TARGET}"},
            "tables": {"include": ["public.*"]},
        }
        path = self.folder / "bad.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in (content | changed).items() if v is not None}))
        return path

    def check(self, **changed: Any) -> int:
        with _environment(self.environment):
            return self._ended(cli.main(["check", "-p", str(self.file(**changed))]))

    def run(self, stage: str = "setup", tables: tuple[str, ...] | None = None, **changed: Any) -> int:
        """What spark-submit starts."""
        with _environment(self.environment):
            jobs.write(Job(stage, load_pipeline(self.file(**changed)), tables), self.folder / "job.json")
            return self._ended(driver.main(stage, [str(self.folder / "job.json")]))

    def refuse(self, code: int, *words: str, **changed: Any) -> None:
        """Checking and running end alike."""
        for ended in (self.check, self.run):
            assert ended(**changed) == code, self.said
            for word in words:
                assert word in self.said

    def _ended(self, code: int) -> int:
        out, err = self.capture.readouterr()
        self.said = out + err
        print(self.said)
        assert "Traceback" not in self.said
        for dsn in (self.source, self.target):
            password = psycopg.conninfo.conninfo_to_dict(dsn).get("password")
            assert not password or str(password) not in self.said
        return code


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def pgddl(source_dsn: str, target_dsn: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """A source with one good table; whatever goes wrong, both sides are as they were."""
    execute(source_dsn, ORDERS)
    yield Shell(source_dsn, target_dsn, tmp_path, capfd)
    assert left_behind(source_dsn) == []
    assert left_behind(target_dsn) == []


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        ({"port": "1"}, EXIT_RETRY, "127.0.0.1:1/"),
        ({"password": "hush-hush"}, EXIT_FAILED, "correct the password"),
        ({"dbname": "nowhere"}, EXIT_FAILED, 'database "nowhere" does not exist'),
        ({"user": "nobody"}, EXIT_FAILED, "nobody"),
    ],
)
def test_a_server_that_does_not_let_us_in(
    pgddl: Shell, side: str, wrong: dict[str, str], code: int, words: str
) -> None:
    right = getattr(pgddl, side)
    setattr(pgddl, side, make_conninfo(right, **wrong))
    pgddl.refuse(code, words, "to do: ")
    setattr(pgddl, side, right)


@pytest.fixture
def mover(pgddl: Shell) -> Iterator[str]:
    """A role of the source that may do little; everything of its own goes with it."""
    name = f"mover_{os.getpid()}"
    admin = pgddl.source
    execute(admin, f"CREATE ROLE {name} LOGIN PASSWORD 'hush-hush'")
    yield name
    pgddl.source = admin
    execute(admin, f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def test_a_role_without_rights(pgddl: Shell, mover: str) -> None:
    pgddl.source = make_conninfo(pgddl.source, user=mover, password="hush-hush")
    pgddl.refuse(EXIT_REFUSED, f"GRANT SELECT ON public.orders TO {mover};")


def test_row_security_that_would_hide_rows(pgddl: Shell, mover: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(pgddl.source)["dbname"]
    execute(pgddl.source, f"GRANT ALL ON DATABASE {name} TO {mover}; ALTER TABLE public.orders OWNER TO {mover}")
    execute(pgddl.source, "ALTER TABLE public.orders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    pgddl.source = make_conninfo(pgddl.source, user=mover, password="hush-hush")
    pgddl.refuse(EXIT_REFUSED, "public.orders", "BYPASSRLS")


def test_a_table_without_a_key(pgddl: Shell) -> None:
    execute(pgddl.source, "CREATE TABLE public.notes (note text)")
    pgddl.refuse(EXIT_REFUSED, "public.notes", "ALTER TABLE public.notes ADD COLUMN IF NOT EXISTS id bigserial")


def test_a_copy_schema_that_is_not_ours(pgddl: Shell) -> None:
    execute(pgddl.source, "CREATE SCHEMA pgddl_copy_public")
    in_place: dict[str, Any] = {"target": None, "tables": None, "rewrite": {"public.orders": {}}}
    pgddl.refuse(EXIT_REFUSED, "pgddl_copy_public", **in_place)
    execute(pgddl.source, "DROP SCHEMA pgddl_copy_public")


@pytest.mark.parametrize(
    ("version", "changed", "words"),
    [(None, {}, "no pg_dump"), ("12.4", {}, "pg_dump 12"), ("17.6", {}, "error (target): pg_dump 17"),
     ("17.5", {"target": None, "tables": None, "rewrite": {"public.orders": {}}}, "17.6")],
)  # fmt: skip
def test_a_missing_or_too_old_pg_dump(
    pgddl: Shell, monkeypatch: pytest.MonkeyPatch, version: str | None, changed: dict[str, Any], words: str
) -> None:
    binary = pgddl.folder / "pg_dump"
    if version is not None:
        binary.write_text(f"#!/bin/sh\necho 'pg_dump (PostgreSQL) {version}'\n")
        binary.chmod(0o755)
    monkeypatch.setenv("PGDDL_PG_DUMP", str(binary))
    pgddl.refuse(EXIT_REFUSED, words, **changed)


def test_a_pooler_in_transaction_mode(pgddl: Shell, pgbouncer: Callable[[str, str], str]) -> None:
    direct, pgddl.source = pgddl.source, pgbouncer(pgddl.source, "transaction")
    pgddl.refuse(EXIT_REFUSED, "pooler in transaction mode", "connect to the server itself")
    pgddl.source = direct


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"speed": 11}, "speed"),
        ({"tables": {"include": ["public.*", "sales.*"]}}, "sales.*"),
        ({"source": {"dsn": "host=a password=hush-hush"}}, "a literal password in the file is refused"),
        ({"source": {"dsn": "${BAD_SOURCE}"}, "target": {"dsn": "${BAD_NOWHERE}"}}, "BAD_NOWHERE is not set"),
    ],
)
def test_a_file_that_is_wrong(pgddl: Shell, changed: dict[str, Any], words: str) -> None:
    assert pgddl.check(**changed) == EXIT_USAGE
    assert words in pgddl.said
    assert "hush" not in pgddl.said


@pytest.mark.parametrize("stage", ["snapshot", "backfill", "schema_sync", "replay", "verify", "swap", "cleanup"])
def test_a_stage_before_setup(pgddl: Shell, stage: str) -> None:
    assert pgddl.run(stage) == EXIT_USAGE
    assert "run stage setup first" in pgddl.said


def test_two_runs_at_once(pgddl: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "TAKEOVER_WAIT", 0.5)
    with Lease(pgddl.target, "bad", "setup", None):
        assert pgddl.run() == EXIT_RETRY
        assert "another run of pipeline 'bad' is alive" in pgddl.said
    assert pgddl.run() == 0
    with Lease(pgddl.target, "bad", "snapshot", None) as other:
        other.take()
        assert pgddl.run("snapshot") == EXIT_RETRY
        assert f"process {os.getpid()}" in pgddl.said
    reset(pgddl)


def test_what_setup_has_recorded_does_not_change_unseen(pgddl: Shell) -> None:
    assert pgddl.run() == 0
    assert pgddl.run(swap={"fence": "lock"}) == EXIT_USAGE
    assert "swap.fence" in pgddl.said
    assert pgddl.run("snapshot", backfill={"chunk_bytes": "1MB"}) == EXIT_USAGE
    assert "backfill.chunk_bytes" in pgddl.said
    assert pgddl.run("snapshot", backfill={"workers": 2}) == 0
    assert pgddl.run("backfill", tables=("public.nothing",)) == EXIT_USAGE
    assert "public.nothing is not a table of pipeline 'bad'" in pgddl.said
    reset(pgddl)


def reset(pgddl: Shell) -> None:
    with _environment(pgddl.environment):
        assert cli.main(["reset", "--yes", "-p", str(pgddl.file())]) == 0


@pytest.mark.spark
def test_the_command_line_hands_on_the_exit_code(pgddl: Shell) -> None:
    """Through spark-submit, once for each kind of end."""
    execute(pgddl.source, "CREATE TABLE public.notes (note text)")
    for stage, code, words in (("setup", EXIT_REFUSED, "ADD PRIMARY KEY"), ("swap", EXIT_USAGE, "run stage setup")):
        done = subprocess.run(
            [sys.executable, "-m", "airflow_provider_pgddl.cli", "run", stage, "-p", str(pgddl.file())],
            env=os.environ | pgddl.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert words in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        assert "Exception" not in done.stdout + done.stderr
