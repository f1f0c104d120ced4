"""docs/tutorial.md is run as a reader would run it, and says what is printed.

`PGDDL_WRITE_TUTORIAL=1` writes what was printed into the page instead of comparing it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What differs from run to run, or with the next migration: times and rates, sizes, oids, numbers of events.
MASKS = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:\d\d)?)?", "<moment>"),
    (r"\bversions [\d, ]+", "versions <numbers>"),
    (r"\d+ applied, \d+ pending, \d+ changed", "<migrations>"),
    (r"\bcapture_shop_\d+", "capture_shop_<oid>"),
    (r"\bline \d+ at RAISE", "line <number> at RAISE"),
    (r"\bDDL event \d+", "DDL event <number>"),
    (r"(longest wait|fenced|lag) [\d.,]+ (ms|seconds|bytes)|[\d.,]+ bytes now", r"\1 <number> \2"),
    (r"\b\d+(\.\d+)? ?(ms|µs|s|min)\b|\b\d+:\d\d\b", "<time>"),
    (r"\b\d+(\.\d+)? ?([kMG]?B|bytes)\b", "<size>"),
    # How often progress is told, and whether somebody was in the way for a moment.
    (r"^pgddl \w+: .*(\d+/\d+ |\bleft$| way\b|waits? for|tried again).*\n", ""),
)  # fmt: skip
JAVAS = re.compile(r"^WARNING: Using incubator modules.*\n", re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Both servers up, with the two files of the tutorial; a `pgddl` that is this checkout's."""
    programs = tmp_path / ".bin"
    programs.mkdir()
    (programs / "pgddl").write_text(f'#!/bin/sh\nexec {sys.executable} -m airflow_provider_pgddl.cli "$@"\n')
    (programs / "pgddl").chmod(0o755)
    (file,) = re.findall(r'```yaml title="shop.yaml"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    (tmp_path / "shop.yaml").write_text(file)
    command = [sys.executable, "-m", "airflow_provider_pgddl.demo.servers"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PGSSLMODE": "require"}  # a person's own, for other servers
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as servers:
        try:
            assert servers.stdout is not None
            assert "shop.env" in servers.stdout.readline()
            yield tmp_path
        finally:
            servers.send_signal(signal.SIGHUP)  # the terminal was closed
    assert servers.returncode == 0
    assert not list(tmp_path.glob("shop.env")) and not list(tmp_path.glob("*.pgpass"))


def test_the_tutorial_prints_what_it_says(folder: Path) -> None:
    printed = BLOCK.sub(lambda block: f"```console\n{played(block[1], folder)}```", PAGE.read_text())
    if os.environ.get("PGDDL_WRITE_TUTORIAL"):
        PAGE.write_text(printed)
    assert masked(PAGE.read_text()) == masked(printed)


def played(block: str, folder: Path) -> str:
    """The block's commands with what they print now, in one shell's environment."""
    shown = ""
    for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
        if command == ". ./shop.env":
            shown += f"$ {command}\n"
            continue
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1"}
        env["PATH"] = f"{folder / '.bin'}:{env['PATH']}"
        script = f". ./shop.env\n{command} 2>&1"
        done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, check=False)
        shown += f"$ {command}\n{JAVAS.sub('', done.stdout)}{done.stderr}"
        assert done.returncode == 0 or "too late" in command, shown
    return shown


def masked(text: str) -> str:
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text
