"""What a run that was killed leaves in the temporary folder, and who takes it away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_pgddl.engine.job.folder import PREFIX, job_folder

RUN = """
import sys
from airflow_provider_pgddl.engine.job import file as job
from airflow_provider_pgddl.engine.job.folder import job_folder
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline

pipeline = load_pipeline({
    "pipeline": "shop", "source": {"dsn": "host=db password=${SHOP_PASSWORD}"}, "rewrite": {"shop.orders": {}},
})
with job_folder() as folder:
    secrets = {"source": job.SECRETS["source"]}
    job.write(job.Job("backfill", pipeline, watch=job.Watched.me(), secrets=secrets), folder / "job.json")
    print(folder, flush=True)
    sys.stdin.read()
"""
BESIDE = """
from airflow_provider_pgddl.engine.job.folder import job_folder

for _ in range(300):
    with job_folder() as folder:
        (folder / "job.json").write_text("mine")
        assert (folder / "job.json").read_text() == "mine"
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def under_way() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run in a process of its own, and its folder."""
    env = {**os.environ, "SHOP_PASSWORD": "hush-hush", "PGDDL_SOURCE_CONNINFO": "host=db password=hush-hush"}
    with subprocess.Popen(
        [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_the_next_run_takes_away_what_a_killed_one_left(temporary: Path) -> None:
    with under_way() as (alive, its), under_way() as (killed, left):
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        files = [file for file in left.iterdir() if file.is_file()]
        assert [file.name for file in files] == ["job.json"]
        assert "hush" not in "".join(file.read_text() for file in files)
        with job_folder() as mine:
            assert set(temporary.iterdir()) == {its, mine}
            assert mine.stat().st_mode & 0o777 == 0o700
        assert (its / "job.json").exists()
        assert alive.stdin is not None
        alive.stdin.close()
        alive.wait()
    assert list(temporary.iterdir()) == []


def test_nothing_else_is_taken_away(temporary: Path) -> None:
    """Links, files, what others may look into, other people's, and folders of versions that held no lock."""
    precious = temporary / "precious"
    precious.mkdir(mode=0o700)
    (precious / "row").touch()
    (temporary / f"{PREFIX}link").symlink_to(precious)
    (temporary / f"{PREFIX}file").touch()
    (temporary / f"{PREFIX}open").mkdir()
    (temporary / f"{PREFIX}open").chmod(0o755)
    (temporary / "pgddl-older").mkdir(mode=0o700)
    if os.geteuid() == 0:
        (temporary / f"{PREFIX}theirs").mkdir(mode=0o700)
        os.chown(temporary / f"{PREFIX}theirs", 65534, 65534)
    before = {*temporary.iterdir(), precious / "row"}
    with job_folder():
        pass
    assert {*temporary.iterdir(), precious / "row"} == before


def test_what_a_left_folder_links_to_stays(temporary: Path) -> None:
    precious = temporary / "precious"
    precious.mkdir()
    (precious / "row").touch()
    left = temporary / f"{PREFIX}left"
    left.mkdir(mode=0o700)
    (left / "link").symlink_to(precious)
    with job_folder():
        assert not left.exists()
    assert (precious / "row").exists()


def test_runs_beside_each_other_never_take_each_others(temporary: Path) -> None:
    runs = [subprocess.Popen([sys.executable, "-c", BESIDE], stderr=subprocess.PIPE) for _ in range(4)]
    assert [(run.communicate()[1], run.returncode) for run in runs] == [(b"", 0)] * 4
    assert list(temporary.iterdir()) == []
