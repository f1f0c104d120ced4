"""What the demo's servers write, what they have around them, and what they leave where they are killed."""

from __future__ import annotations

import os
import secrets
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_pgddl.demo import clusters, servers
from airflow_provider_pgddl.demo.surroundings import forget_settings_of_libpq, terminable

LEFT = """
import sys
from airflow_provider_pgddl.demo import clusters
clusters.PREFIX = sys.argv[1]
print(clusters.Cluster(16).folder, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", [servers.PASSWORDS, servers.ENVIRONMENT])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_that_is_there_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, is_link: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(servers, "Cluster")  # nothing is started
    monkeypatch.setattr(servers, "forget_settings_of_libpq", lambda: None)
    path = tmp_path / name
    path.symlink_to(tmp_path / "elsewhere") if is_link else path.write_text("theirs")
    assert servers.main([]) == 1
    assert f"{path} is there already: remove it" in capsys.readouterr().err
    with pytest.raises(FileExistsError):
        servers._write(path, "secret")
    assert [*tmp_path.iterdir()] == [path] and (is_link or path.read_text() == "theirs")


def test_what_is_written_is_for_its_owner_alone(tmp_path: Path) -> None:
    servers._write(tmp_path / "shop.pgpass", "secret")
    assert stat.S_IMODE((tmp_path / "shop.pgpass").stat().st_mode) == 0o600


def test_settings_of_libpq_are_forgotten_and_ours_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"PGSSLMODE": "require", "PGOPTIONS": "-c x=y", "PGDDL_PG_DUMP": "/bin/pg_dump", "PATH": "/bin"}
    monkeypatch.setattr(os, "environ", dict(given))
    forget_settings_of_libpq()
    assert os.environ == {"PGDDL_PG_DUMP": "/bin/pg_dump", "PATH": "/bin"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_is_an_interrupt(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), terminable():
        signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_the_next_demo_takes_away_what_a_killed_one_left(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = f"pgddl-test-{secrets.token_hex(4)}-"
    monkeypatch.setattr(clusters, "PREFIX", prefix)
    command = [sys.executable, "-c", LEFT, prefix]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        if owner := clusters._owner():
            os.chown(left, *owner)  # as initdb leaves it
        clusters.remove_left()
        assert left.is_dir()
        process.kill()
    assert left.is_dir()
    clusters.remove_left()
    assert not left.exists()
