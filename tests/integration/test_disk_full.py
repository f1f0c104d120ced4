"""A disk that is full: whose it is, which table could not grow, and that the stage goes on once there is room."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.job import file as jobs
from airflow_provider_pgddl.engine.launch import driver
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute

BIG = """
CREATE TABLE big (id int PRIMARY KEY, v text);
INSERT INTO big SELECT n, repeat(md5(n::text), 40) FROM generate_series(1, 20000) n;
"""


@pytest.fixture
def small_disk(pg18: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 20 MB, for a tablespace."""
    folder = pg18.folder / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if made.returncode:
        folder.rmdir()
        pytest.skip(f"a small file system takes the right to mount one: {made.stderr.strip()}")
    owner = pg18.data.stat()
    os.chown(folder, owner.st_uid, owner.st_gid)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
    shutil.rmtree(folder)


@pytest.fixture
def cramped(pg18: Cluster, small_disk: Path) -> Iterator[str]:
    """An empty database on it."""
    with psycopg.connect(pg18.conninfo(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE TABLESPACE small LOCATION {}").format(sql.Literal(str(small_disk))))
        admin.execute("CREATE DATABASE cramped TABLESPACE small")
        yield pg18.conninfo("cramped")
        admin.execute("DROP DATABASE cramped WITH (FORCE)")
        admin.execute("DROP TABLESPACE small")


def test_server_and_table_are_named_and_a_retry_goes_on(
    pg16: Cluster,
    database: Database,
    cramped: str,
    small_disk: Path,
    lifecycle: Callable[..., Lifecycle],
    tmp_path: Path,
) -> None:
    source = database(pg16)
    execute(source, BIG)
    move = lifecycle(source, cramped, tables={"include": ["public.*"]}, capture={"ddl": "off"})
    move.run_all(until="snapshot")
    port = psycopg.conninfo.conninfo_to_dict(cramped)["port"]

    job = replace(move.job("backfill"), result_path=str(tmp_path / "result.json"))
    jobs.write(job, tmp_path / "job.json")
    assert driver.main("backfill", [str(tmp_path / "job.json")]) == 1
    outcome = jobs.read_outcome(tmp_path / "result.json")
    assert outcome is not None and outcome.error is not None and not outcome.retryable
    assert "No space left on device" in outcome.error["what"]
    assert outcome.error["table"] == "public.big"
    assert outcome.error["todo"] == (
        f"make room on the disk of the target's server, 127.0.0.1:{port}/cramped; then run the stage again"
    )

    subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
    move.run_all(after="snapshot", until="verify")
    assert move.journal("SELECT count(*) FROM big") == [(20000,)]
