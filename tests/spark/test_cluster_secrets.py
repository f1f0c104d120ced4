"""Passwords in a file on the executors: none passes to them, and what is wrong with the file is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.clusters import _free_port as free_port
from tests.integration.lifecycle import Lifecycle, execute
from tests.spark.cluster_pipeline import CHANGES, SECRET, TABLES, differences, on_cluster, run
from tests.spark.packets import OPEN, Wire
from tests.spark.password_file import line, write
from tests.spark.standalone import ENCRYPTED, SMALL, Standalone

AUTHENTICATED = {"spark.authenticate": "true", "spark.authenticate.secret": f"${{{SECRET}}}"}

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]


@pytest.fixture
def open_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standalone]:
    """Authenticated, and not encrypted: it is for passwords that do not pass."""
    monkeypatch.setenv(SECRET, ENCRYPTED["spark.authenticate.secret"])
    with Standalone(workers=2, conf={key: ENCRYPTED[key] for key in AUTHENTICATED}) as cluster:
        yield cluster


def test_executors_have_passwords_from_their_file_alone(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], open_cluster: Standalone, tmp_path: Path
) -> None:
    """Both servers demand a password (scram), also from loopback."""
    execute(source_dsn, TABLES)
    move = lifecycle(source_dsn, target_dsn)
    file, lines = tmp_path / "pgpass", (line(source_dsn), line(target_dsn))
    passwords = [str(conninfo_to_dict(dsn)["password"]).encode() for dsn in (source_dsn, target_dsn)]
    driver, blocks = free_port(), free_port()
    ports = {"spark.driver.port": driver, "spark.driver.blockManager.port": blocks, "spark.driver.host": "127.0.0.1"}
    conf = {**OPEN, **SMALL, **AUTHENTICATED, **ports}
    said: list[str] = []

    def stage(name: str, code: int = 0) -> str:
        done, text = run(move, tmp_path, name)
        print(text)
        assert done == code, text
        assert "Traceback" not in text
        said.append(text)
        return text

    with _wire(driver, blocks) as wire:
        on_cluster(move, open_cluster, conf=conf, secrets={"file": str(file)})
        write(file, lines[0])
        text = stage("setup", 4)
        where = lines[1].rpartition(":")[0]
        assert "does not get through to the target: " in text and "to the source" not in text
        assert f"demands a password, and the password file {file} on " in text
        assert f"has no line for {where}" in text
        assert move.on_source("SELECT count(*) FROM pg_namespace WHERE nspname = 'pgddl'") == [(0,)]

        write(file, *lines)
        assert f"executors of {open_cluster.master} run" in stage("setup,snapshot")
        write(file, *lines, mode=0o644)
        text = stage("backfill", 4)
        assert f"the password file {file} on " in text
        assert text.count("has mode 0644, and is not read for that") == 1
        assert f"chmod 0600 {file}" in text

        write(file, *lines)
        execute(source_dsn, CHANGES)
        assert stage("backfill..verify").count("waiting for Spark's workers") == 4  # each of them spreads
        assert differences(move) == []
        assert not any(password.decode() in text for password in passwords for text in said)
        if wire is None:
            pytest.skip("what passed was not seen: a raw socket on loopback needs CAP_NET_RAW")
        assert wire.packets > 200
        assert not any(password in wire.said for password in passwords)
        # The same with the passwords in the tasks, so that this could have been seen.
        on_cluster(move, open_cluster, conf=conf, allow_plaintext=True)
        (tmp_path / "pipeline.yaml").write_text(json.dumps(move.content))
        shell = [sys.executable, "-m", "airflow_provider_pgddl.cli", "check", "--executors", "-p"]
        subprocess.run([*shell, str(tmp_path / "pipeline.yaml")], env=os.environ, timeout=300, check=True)
    assert all(password in wire.said for password in passwords)


def _wire(*ports: int) -> Wire | nullcontext[None]:
    try:
        return Wire(*ports)
    except pytest.skip.Exception:
        return nullcontext()
