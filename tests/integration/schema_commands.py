"""A pipeline as people run it, of whose exceptions no text may ever be seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl import cli
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job import file as jobs
from airflow_provider_pgddl.engine.launch import driver
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.schema.verdict import TableReport
from tests.integration.lifecycle import Lifecycle, execute

# What an exception says of itself, and what the server says of its own insides.
NEVER = ("Traceback", "psycopg.", "Exception", "cache lookup failed", " OID ", "could not find tuple", "KeyError")
PASSWORD = "hush-hush"
# Nobody follows the source's DDL, so the gate is all there is.
SECTIONS = {"tables": {"include": ["public.*"]}, "capture": {"ddl": "off"}}


class Shell:
    """A pipeline as people run it: `pgddl …` in this process, and what spark-submit starts."""

    def __init__(self, move: Lifecycle, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.move, self._folder, self._capture = move, folder, capture
        self._file = folder / "shop.yaml"

    def __call__(self, *command: str) -> tuple[int, str]:
        """Exit code and all that was said."""
        self._file.write_text(yaml.safe_dump(self.move.content))
        self._capture.readouterr()
        return self._ended(cli.main([*command, "-p", str(self._file)]))

    def asked(self, *command: str) -> tuple[int, dict[str, Any]]:
        """The same for programs."""
        code, said = self(*command, "--json")
        return code, json.loads(said)

    def stage(self, name: str) -> tuple[int, str]:
        jobs.write(self.move.job(name), self._folder / "job.json")
        self._capture.readouterr()
        return self._ended(driver.main(name, [str(self._folder / "job.json")]))

    def as_role(self, role: str) -> Shell:
        """The same pipeline, by another role on both sides."""
        move = copy(self.move)
        sides = [make_conninfo(dsn, user=role, password=PASSWORD) for dsn in (move.source, move.target)]
        move.source, move.target = sides
        move.content = move.content | {
            side: move._endpoint(f"{side.upper()}_{role.upper()}", dsn)
            for side, dsn in zip(("source", "target"), sides, strict=True)
        }
        return Shell(move, self._folder, self._capture)

    def gate(self) -> dict[str, TableReport]:
        pipeline = load_pipeline(self.move.content)
        return {r.table: r for r in stages.gate(pipeline, self.move.source, self.move.target)}

    def _ended(self, code: int) -> tuple[int, str]:
        out, err = self._capture.readouterr()
        said = out + err
        print(said)
        self.check(said)
        return code, said

    def check(self, said: str) -> None:
        """That no exception's text is in it."""
        for word in (*NEVER, PASSWORD):
            assert word not in said


Shop = Callable[..., Shell]


def shop_of(
    lifecycle: Callable[..., Lifecycle], dsns: tuple[str, str], folder: Path, capture: pytest.CaptureFixture[str]
) -> Shop:
    """Both sides with the tables that are given, and nothing set up."""

    def make(
        source: str, target: str = "", *, role: str | None = None, sides: tuple[str, str] = dsns,
        **sections: Any,
    ) -> Shell:  # fmt: skip
        execute(sides[0], source)
        execute(sides[1], target)
        ends = [make_conninfo(dsn, user=role, password=PASSWORD) if role else dsn for dsn in sides]
        return Shell(lifecycle(*ends, **(SECTIONS | sections)), folder, capture)

    return make


def rows(dsn: str, table: str) -> list[str]:
    """The rows as text, in the order of the columns' names."""
    with psycopg.connect(dsn) as conn:
        found = conn.execute(f"SELECT to_jsonb(t)::text FROM public.{table} t ORDER BY 1".encode()).fetchall()
    return [row for (row,) in found]
