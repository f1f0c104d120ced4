"""Fixtures of several files in here."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.conftest import FAILED, Database, database_name
from tests.integration import calls
from tests.integration.mallory import Mallory
from tests.integration.servers import pgbouncer

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
