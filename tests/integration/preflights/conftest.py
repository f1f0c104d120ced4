"""A database on either version, and an end for roles."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.preflights.findings import ROLES


@pytest.fixture(autouse=True)
def _roles_go_last() -> Iterator[None]:
    """Set up before the databases, hence torn down after them: a role can go once nothing belongs to it."""
    yield
    while ROLES:
        cluster, name = ROLES.pop()
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture(params=matrix(16, 18))
def dsn(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Database) -> str:
    """A fresh database, once on each version."""
    return database({16: pg16, 18: pg18}[request.param])
