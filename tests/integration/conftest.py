"""Fixtures of several files in here."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.conftest import FAILED, Database, database_name
from tests.integration import calls
from tests.integration.mallory import Mallory
from tests.integration.servers import pgbouncer
from tests.integration.sessions import do
from tests.integration.shells import SchemaShell
from tests.integration.stories import OFF, OTHERS, SMALL, Application, MadeStory, Make, Story, writes

__all__ = ["pgbouncer"]  # a fixture

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def hooks(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    calls.end_hooks(check=not request.node.stash.get(FAILED, False))


@pytest.fixture
def mallory() -> Iterator[Mallory]:
    """Take it before the databases: then they are gone before her, and she can go."""
    her = Mallory()
    yield her
    her.leaves()


@pytest.fixture
def on_both(mallory: Mallory, pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str) -> tuple[str, str]:
    """Her roles on both servers, and what is hers on the source."""
    mallory.joins(pg16, pg18).moves_in(source_dsn)
    mallory.visits(target_dsn)
    return source_dsn, target_dsn


@pytest.fixture
def weak_target(pg18: Cluster, database: Database) -> Iterator[str]:
    """A database of a role that has no right to session_replication_role."""
    role, password = f"mover_{next(_numbers)}", secrets.token_hex(8)
    dsn = database(pg18)
    name = sql.Identifier(role)
    with psycopg.connect(pg18.conninfo(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(password)))
        admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(database_name(dsn)), name))
    yield make_conninfo(dsn, user=role, password=password)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP OWNED BY {}").format(name))
    with psycopg.connect(pg18.conninfo(), autocommit=True) as admin:
        admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO postgres").format(sql.Identifier(database_name(dsn))))
        admin.execute(sql.SQL("DROP OWNED BY {}").format(name))
        admin.execute(sql.SQL("DROP ROLE {}").format(name))


@pytest.fixture
def story(
    lifecycle: Make, source_dsn: str, target_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[MadeStory]:
    """``story({"users": "name text"}, until="replay")``: these tables, each with id and phase, and rows in them."""
    applications = []

    def make(
        tables: Mapping[str, str], *, before: str = "", until: str = "replay", unfollowed: str = "capture_off",
        values: Mapping[str, str] | None = None, **sections: Any,
    ) -> Story:  # fmt: skip
        do(source_dsn, *([before] if before else []))
        for table, own in {**tables, "others": ""}.items():
            do(
                source_dsn,
                f"CREATE TABLE {table} (id integer PRIMARY KEY, phase text{', ' * bool(own)}{own})",
                f"INSERT INTO {table} (id, phase) SELECT n, 'before' FROM generate_series(1, 300) n",
            )
        sections = {**SMALL, **(OFF if unfollowed == "capture_off" else {}), **sections}
        move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **sections)
        statements = [s for table in tables for s in writes(table, (values or {}).get(table, ""))]
        application = Application(source_dsn, *OTHERS, *statements)
        applications.append(application)
        application.__enter__()
        move.run_all(until=until)
        return Story(move, SchemaShell(move, tmp_path / "shop.yaml", capsys), application)

    yield make
    for application in applications:
        application.stop()
