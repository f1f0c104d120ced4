"""Several pipelines that share servers: what one of them does is nothing to the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import StageFailed
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.resets import reset

Lifecycles = Callable[..., Lifecycle]

SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (id int PRIMARY KEY, note text);
INSERT INTO shop.orders SELECT n, 'note ' || n FROM generate_series(1, 50) n;
"""
ALL: dict[str, Any] = {"pipeline": "shop", "tables": {"include": ["shop.*"]}}


def one(dsn: str, query: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_the_slots_of_a_namesake_in_another_database_are_left_alone(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, database: Database, lifecycle: Lifecycles
) -> None:
    """Of one cluster's databases each may have a pipeline of the name; its slots are the cluster's."""
    us = database(pg16)
    for dsn in (source_dsn, us):
        execute(dsn, SHOP)
    theirs = lifecycle(source_dsn, target_dsn, **ALL, capture={"rows": "wal", "ddl": "wal"})
    theirs.run_all(until="replay")
    slots = (
        f"SELECT count(*) FROM pg_replication_slots WHERE database = '{one(source_dsn, 'SELECT current_database()')}'"
    )
    assert one(us, slots) == 2
    mine = lifecycle(us, database(pg18), **ALL)
    mine.run_all()
    assert one(us, slots) == 2
    mine = lifecycle(us, database(pg18), **ALL, capture={"rows": "change_log", "ddl": "wal"})
    refused = mine.refused("setup", StageFailed)
    assert "somebody else's" in refused.what and refused.todo == "give this pipeline another name"
    reset(mine)
    assert one(us, slots) == 2
    assert left_behind(us) == []
    mine.content["pipeline"] = "shop_us"
    mine.run_all(until="replay")
    reset(mine)
    execute(source_dsn, "ALTER TABLE shop.orders ADD more int DEFAULT 3; DELETE FROM shop.orders WHERE id < 9")
    theirs.run_all(after="snapshot", until="verify")
    assert differences(source_dsn, target_dsn) == []
