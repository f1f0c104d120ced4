"""Commands of the shell about one pipeline, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_pgddl import cli
from tests.integration.lifecycle import Lifecycle


class Shell:
    """`pgddl GROUP …`: `shell("list")` returns exit code and the JSON that it printed."""

    group: str

    def __init__(self, move: Lifecycle, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.move, self.file, self._capsys = move, file, capsys
        file.write_text(yaml.safe_dump(move.content))

    def __call__(self, *args: object) -> tuple[int, dict[str, Any]]:
        code, said = self.say(*args, "--json")
        return code, json.loads(said)

    def say(self, *args: object) -> tuple[int, str]:
        """The same for people: exit code and all that was said."""
        self._capsys.readouterr()
        code = cli.main([self.group, *map(str, args), "-p", str(self.file)])
        said = self._capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return code, said.out + said.err


class SchemaShell(Shell):
    group = "schema"

    def on_target(self, query: str) -> list[tuple[Any, ...]]:
        return self.move.journal(query)
