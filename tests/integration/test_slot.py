"""capture.rows: wal — the change logs are filled by a slot."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgddl.demo.compare import differences
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do, one

Make = Callable[..., Lifecycle]
SHOP = """
    CREATE TABLE items (id bigint PRIMARY KEY, code text UNIQUE, body text);
    CREATE TABLE pairs (b text, a int, body text, PRIMARY KEY (a, b));
    CREATE TABLE parts (id int, at int, body text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
    CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (100);
    CREATE TABLE parts_1 (body text, at int NOT NULL, id int NOT NULL);
    ALTER TABLE parts ATTACH PARTITION parts_1 FOR VALUES FROM (100) TO (200);
    INSERT INTO items SELECT n, 'c' || n, 'x' FROM generate_series(1, 200) n;
    INSERT INTO pairs SELECT E'tab\\t\\\\' || n, n, 'x' FROM generate_series(1, 50) n;
    INSERT INTO parts SELECT n, n, 'x' FROM generate_series(1, 150) n;
"""
CHANGES = [
    "UPDATE items SET body = 'y' WHERE id % 3 = 0",
    "UPDATE items SET id = id + 1000 WHERE id % 7 = 0",
    "DELETE FROM items WHERE id % 5 = 0",
    "UPDATE items SET code = 'd' || id",
    "UPDATE pairs SET b = b || E'\\n' WHERE a % 2 = 0; DELETE FROM pairs WHERE a % 9 = 0",
    "UPDATE parts SET at = at + 60 WHERE at BETWEEN 60 AND 90",  # to the other partition
    "INSERT INTO parts VALUES (500, 5, 'new'), (501, 105, 'new')",
]


@pytest.fixture
def shop(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, SHOP)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"rows": "wal"})


@pytest.mark.parametrize("changed_after", ["setup", "snapshot", "backfill", "schema_sync", "replay"])
def test_whatever_changes_arrives(shop: Lifecycle, changed_after: str) -> None:
    shop.run_all(until=changed_after)
    do(shop.source, *CHANGES)
    shop.run_all()
    assert differences(shop.source, shop.target) == []
    assert one(shop.source, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == 0
    assert one(shop.source, "SELECT count(*) FROM pg_publication") == 0
