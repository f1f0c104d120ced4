"""The pipeline `gated`, from 16 to 18, and mismatches of it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.conftest import drop_database
from tests.dags.folder.gates import GATED
from tests.integration.lifecycle import Lifecycle, execute, wait_until

_numbers = itertools.count(1)


@dataclass
class Gated:
    """The pipeline `gated`, set up and replayed; every mismatch is a column of its own."""

    source: str
    target: str
    notes: Path
    content: dict[str, Any]  # of the pipeline, as it was set up

    @contextmanager
    def mismatch(self, table: str = "users") -> Iterator[str]:
        """A column of the source which the target gets at the end."""
        column = f"phone_{next(_numbers)}"
        execute(self.source, f"ALTER TABLE public.{table} ADD COLUMN {column} varchar")
        try:
            yield column
        finally:
            execute(self.target, f"ALTER TABLE public.{table} ADD COLUMN IF NOT EXISTS {column} varchar")

    def fix(self, column: str, table: str = "users") -> None:
        execute(self.target, f"ALTER TABLE public.{table} ADD COLUMN {column} varchar")

    def wait_for_looks(self, count: int) -> None:
        """Until the gate has been judged so often."""
        looks = {self._checked()}

        def enough() -> bool:
            looks.add(self._checked())
            return len(looks) > count

        wait_until(enough)

    def _checked(self) -> object:
        with psycopg.connect(self.target) as conn:
            return conn.execute("SELECT max(checked_at) FROM pgddl.schema_status").fetchone()

    @property
    def dsns(self) -> dict[str, Any]:
        """The pipeline as a process sees it that has no Airflow connections."""
        return {**GATED, "source": {"dsn": "${GATED_SOURCE}"}, "target": {"dsn": "${GATED_TARGET}"}}


@contextmanager
def set_up(old: Cluster, new: Cluster, notes: Path) -> Iterator[Gated]:
    """It and its databases, with nothing left to replay."""
    name = f"gated_{uuid.uuid4().hex[:8]}"
    for cluster in (old, new):
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    source, target = old.conninfo(name), new.conninfo(name)
    execute(
        source,
        "CREATE TABLE public.users (id int PRIMARY KEY, name text);"
        "CREATE TABLE public.orders (id int PRIMARY KEY, placed_at timestamptz);"
        "INSERT INTO public.users SELECT n, 'user ' || n FROM generate_series(1, 100) n",
    )
    with pytest.MonkeyPatch.context() as patch:
        keys = {key: value for key, value in GATED.items() if key not in ("source", "target", "schema")}
        move = Lifecycle(patch, source, target, **keys)
        move.run_all(until="replay")
    yield Gated(source, target, notes, move.content)
    for cluster in (old, new):
        drop_database(cluster, name)


def no_secret(text: str, gated: Gated) -> bool:
    return not any(str(conninfo_to_dict(dsn)["password"]) in text for dsn in (gated.source, gated.target))
