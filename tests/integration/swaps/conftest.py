"""A migration and a rewrite, for all files in here."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do
from tests.integration.swaps.pipelines import ITEMS, SHOP, SMALL, TO_BIGINT, Make


@pytest.fixture
def shop(source_dsn: str, target_dsn: str, lifecycle: Make) -> Make:
    """A migration of parent and child, 16 to 18; what is given is the pipeline's."""
    do(source_dsn, SHOP)

    def make(**pipeline: Any) -> Lifecycle:
        return lifecycle(source_dsn, target_dsn, **({"tables": {"include": ["shop.*"]}} | SMALL | pipeline))

    return make


@pytest.fixture
def rewrite(pg18: Cluster, database: Database, lifecycle: Make) -> Make:
    """A rewrite of items on 18."""
    dsn = database(pg18)
    do(dsn, ITEMS)

    def make(**pipeline: Any) -> Lifecycle:
        return lifecycle(dsn, **({"rewrite": TO_BIGINT} | SMALL | pipeline))

    return make
