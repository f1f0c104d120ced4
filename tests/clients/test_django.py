"""A Django project with Wagtail, half of whose migrations run while a pipeline follows it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_pgddl.demo.compare import differences
from tests.clients.conftest import Move, run_client
from tests.integration.sessions import one

pytestmark = pytest.mark.timeout(600)

PROJECT = Path(__file__).parent / "django_project.py"
STEPS = 40


def manage(dsn: str, *arguments: str) -> str:
    return run_client([sys.executable, PROJECT, *arguments], {"CLIENT_DSN": dsn})


@contextmanager
def stepwise(dsn: str) -> Iterator[Callable[[int], int]]:
    """``step(3)`` runs the next three migrations and says how many are left."""
    environment = {**os.environ, "CLIENT_DSN": dsn}
    command = [sys.executable, PROJECT, "steps"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        assert client.stdin is not None and client.stdout is not None and client.stderr is not None

        def step(size: int) -> int:
            print(size, file=client.stdin, flush=True)
            left = client.stdout.readline()
            assert left, client.stderr.read()[-3000:]
            return int(left)

        yield step
        client.stdin.close()
        assert client.wait(60) == 0, client.stderr.read()[-3000:]


def test_a_project_is_migrated_and_edited_while_it_is_followed(
    move: Callable[..., Move], all_combinations: bool
) -> None:
    moved = move()
    source, target = moved.source, moved.target
    manage(source, "half")
    moved.begin()
    with stepwise(source) as step:
        while step(1 if all_combinations else STEPS // 4) > STEPS:
            moved.run("replay")
            assert list(map(str, differences(source, target))) == []
    with moved.following():
        manage(source, "migrate", "-v0")
        manage(source, "edit", "1")
    assert one(target, "SELECT count(*) FROM wagtailcore_page") > 10
    manage(source, "edit", "2")
    shown = manage(source, "read")
    moved.end_equal()
    # There the project goes on as it would have on the source.
    assert manage(target, "read") == shown
    assert "no issues" in manage(target, "check", "--database", "default")
    manage(target, "migrate", "--check")
    manage(target, "edit", "3")
    assert manage(target, "read") != shown
