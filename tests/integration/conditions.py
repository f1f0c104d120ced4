"""A shop of which only rows that meet conditions move, under writers that move rows in and out of them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg

from tests.integration.lifecycle import left_behind

WHERE = {
    "s.orders": "tenant = 7",
    "s.lines": "tenant = 7",
    "s.events": "kind <> 'noise' AND at < 150",
    "s.notes": "kept",
}
SHOP = """
    CREATE SCHEMA s;
    CREATE TABLE s.orders (id bigint PRIMARY KEY, tenant int, code text UNIQUE, body text, UNIQUE (tenant, id));
    CREATE TABLE s.lines (tenant int, order_id bigint, no int, body text, PRIMARY KEY (order_id, no),
                          FOREIGN KEY (tenant, order_id) REFERENCES s.orders (tenant, id)
                          ON DELETE CASCADE ON UPDATE CASCADE);
    CREATE TABLE s.events (id int, at int, kind text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
    CREATE TABLE s.events_0 PARTITION OF s.events FOR VALUES FROM (0) TO (100);
    CREATE TABLE s.events_1 (kind text, at int NOT NULL, id int NOT NULL);
    ALTER TABLE s.events ATTACH PARTITION s.events_1 FOR VALUES FROM (100) TO (200);
    CREATE TABLE s.whole (id int PRIMARY KEY, tenant int);
    CREATE TABLE s.notes (kept boolean, body text);
    INSERT INTO s.orders SELECT n, 5 + n % 4, 'c' || n, 'x' FROM generate_series(1, 2000) n;
    INSERT INTO s.lines SELECT tenant, id, n, 'x' FROM s.orders, generate_series(1, 2) n;
    INSERT INTO s.events SELECT n, n % 200, (ARRAY['noise', 'sound', NULL])[1 + n % 3] FROM generate_series(1, 900) n;
    INSERT INTO s.whole SELECT n, n % 9 FROM generate_series(1, 100) n;
    INSERT INTO s.notes SELECT n % 2 = 0, 'note ' || n FROM generate_series(1, 50) n;
"""
TABLES = {"include": ["s.*"], "keyless": "copy_at_swap", "where": WHERE}


def rows(dsn: str, table: str, condition: str = "true", made: str = "t") -> list[str]:
    with psycopg.connect(dsn) as conn:
        query = f"SELECT to_jsonb({made})::text FROM {table} AS t WHERE {condition} ORDER BY 1"
        return [text for (text,) in conn.execute(query.encode())]


def assert_only_the_fence(dsn: str) -> None:
    """It stays up behind cleanup, and what it stands on."""
    fence = "schema pgddl", "trigger pgddl_fence"
    assert [line for line in left_behind(dsn) if not line.startswith(fence)] == []


def change(conn: psycopg.Connection[Any], chance: random.Random, *truncated: str) -> None:
    """One transaction that moves rows into their tables' conditions, out of them, within and beside."""
    some, tenant = chance.randint(1, 2500), chance.choice(["6", "7", "7", "8", "NULL"])
    kind = chance.choice(["'noise'", "'sound'", "NULL"])
    statement = chance.choice(
        [
            f"UPDATE s.orders SET tenant = {tenant} WHERE id BETWEEN {some} AND {some} + 5",
            f"UPDATE s.orders SET id = id + 3000 WHERE id = {some}",
            f"UPDATE s.orders SET id = id - 3000 WHERE id = {some} + 3000",
            f"UPDATE s.orders SET code = 'd' || id, tenant = {tenant} WHERE id = {some}",
            f"DELETE FROM s.orders WHERE id BETWEEN {some} AND {some} + 1",
            f"INSERT INTO s.orders VALUES ({some}, {tenant}, 'c{some}', 'new') ON CONFLICT DO NOTHING",
            # two rows change places, one of which the target has
            f"UPDATE s.orders o SET tenant = 13 - tenant WHERE id IN ({some}, {some} + 1) AND tenant IN (6, 7)",
            f"UPDATE s.lines SET body = body || 'y' WHERE order_id = {some}",
            f"INSERT INTO s.lines SELECT tenant, id, 9, 'l' FROM s.orders WHERE id = {some} ON CONFLICT DO NOTHING",
            f"UPDATE s.events SET kind = {kind} WHERE id BETWEEN {some} AND {some} + 9",
            f"UPDATE s.events SET at = (at + 70) % 200 WHERE id = {some}",
            f"INSERT INTO s.events VALUES ({some}, {some} % 200, {kind}) ON CONFLICT DO NOTHING",
            f"UPDATE s.whole SET tenant = {tenant} WHERE id = {some} % 100",
            *truncated,
        ]
    )
    try:
        with conn.transaction():
            conn.execute(statement.encode())
    except (pg.IntegrityError, pg.DeadlockDetected):
        pass


@contextmanager
def writing(dsn: str, seed: int, change: Callable[..., None] = change) -> Iterator[None]:
    """Somebody does so all the time."""
    stop = threading.Event()

    def write() -> None:
        chance = random.Random(seed)
        with psycopg.connect(dsn, autocommit=True) as conn:
            while not stop.wait(0.005):
                change(conn, chance)

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        try:
            yield
        finally:
            stop.set()
    writer.result()
