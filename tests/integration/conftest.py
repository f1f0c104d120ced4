"""Fixtures of several files in here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.integration.mallory import Mallory
from tests.integration.servers import pgbouncer

__all__ = ["pgbouncer"]


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
