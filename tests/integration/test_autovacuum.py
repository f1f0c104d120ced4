"""An autovacuum of a large table lasts for hours, and none of our locks goes with it: nobody waits for its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import one

EAGER = {"autovacuum_naptime": "1s", "autovacuum_vacuum_insert_threshold": "0", "autovacuum_max_workers": "2"}
# It would sleep for a second after each page.
TABLE = """
CREATE TABLE item (id int PRIMARY KEY, body text) WITH (autovacuum_vacuum_threshold = 0,
    autovacuum_vacuum_insert_threshold = 0, autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1);
INSERT INTO item SELECT i, repeat('x', 500) FROM generate_series(1, 5000) i;
"""
VACUUMS = (
    "SELECT count(*) FROM pg_stat_progress_vacuum WHERE datname = current_database() AND relid::regclass::text ~ 'item'"
)


@pytest.fixture(scope="module")
def eager() -> Iterator[Cluster]:
    with Cluster(16, settings=EAGER) as cluster:
        yield cluster


@pytest.mark.parametrize("stage", ["setup", "swap"])
def test_a_stage_does_not_wait_for_an_autovacuum(
    eager: Cluster, lifecycle: Callable[..., Lifecycle], stage: str
) -> None:
    with psycopg.connect(eager.conninfo(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE at_{stage}".encode())
    dsn = eager.conninfo(f"at_{stage}")
    execute(dsn, TABLE)
    move = lifecycle(dsn, rewrite={"public.item": {}}, swap={"retries": 20})
    if stage == "swap":
        move.run_all(until="verify")
    wait_until(lambda: one(dsn, VACUUMS) > 0)
    move.run(stage)
    if stage == "setup":
        move.run_all(after="setup")
    else:
        move.run("cleanup")
    assert one(dsn, "SELECT count(*) FROM item") == 5000
