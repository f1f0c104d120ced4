"""A shop that the target has already, from a restore, and a pipeline that adopts it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, compare_sequences, diff_catalogs, differences
from tests.integration.lifecycle import Lifecycle, execute

Lifecycles = Callable[..., Lifecycle]

SHOP = """
CREATE SCHEMA shop;
CREATE TYPE shop.mood AS ENUM ('sad', 'ok');
CREATE TABLE shop.customer (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text UNIQUE, mood shop.mood);
CREATE TABLE shop.purchase (id serial PRIMARY KEY, customer bigint NOT NULL REFERENCES shop.customer ON DELETE CASCADE,
    total numeric(12, 2) CHECK (total >= 0), note text);
CREATE INDEX purchase_customer ON shop.purchase (customer);
CREATE TABLE shop.part (at date, id int, v text, PRIMARY KEY (at, id)) PARTITION BY RANGE (at);
CREATE TABLE shop.part_2024 PARTITION OF shop.part FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE shop.part_rest PARTITION OF shop.part DEFAULT;
CREATE VIEW shop.rich AS SELECT customer, sum(total) FROM shop.purchase GROUP BY customer;
CREATE FUNCTION shop.noted() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN NEW.note := coalesce(NEW.note, '') || '!'; RETURN NEW; END $$;
CREATE TRIGGER noted BEFORE INSERT ON shop.purchase FOR EACH ROW EXECUTE FUNCTION shop.noted();
"""
ROWS = """
INSERT INTO shop.customer (name, mood) SELECT 'name ' || n, 'ok' FROM generate_series(1, 30000) n;
INSERT INTO shop.purchase (customer, total) SELECT 1 + n % 30000, n FROM generate_series(1, 60000) n;
INSERT INTO shop.part SELECT '2023-07-01'::date + n % 700, n, 'v' || n FROM generate_series(1, 7000) n;
"""
WORK = """
INSERT INTO shop.customer (name, mood) SELECT '{0} ' || n, 'sad' FROM generate_series(1, 20) n;
UPDATE shop.customer SET mood = 'sad' WHERE id BETWEEN 100 + {1} AND 110 + {1};
UPDATE shop.customer SET name = name || '{0}' WHERE id = 20000 + {1};
INSERT INTO shop.purchase (customer, total) SELECT id, 5 FROM shop.customer WHERE id BETWEEN 50 AND 60;
UPDATE shop.purchase SET total = total + 1 WHERE id BETWEEN 300 AND 320;
UPDATE shop.part SET at = '2024-05-05', v = '{0}' WHERE id % 4000 = {1};
"""
ADOPT: dict[str, Any] = {
    "tables": {"include": ["shop.*"], "existing": "adopt"},
    "swap": {"fence": "read_only"},
    "backfill": {"chunk_bytes": "256kB", "workers": 2},
}


def restore(cluster: Cluster, source: str, target: str, *options: str) -> None:
    """As pg_restore leaves it, the rows as of now."""
    command = [cluster.bin("pg_dump"), "--inserts", "--rows-per-insert=500", *options, "-d", source]
    dump = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    execute(target, "\n".join(line for line in dump.splitlines() if not line.startswith("\\")))


def blocks_and_rows_read_again(move: Lifecycle) -> tuple[int, int]:
    """Chunks, and rows that windows have brought."""
    chunks, rows = "SELECT count(*) FROM pgddl.chunks", "SELECT coalesce(sum(rows), 0) FROM pgddl.windows"
    return int(move.journal(chunks)[0][0]), int(move.journal(rows)[0][0])


def equal(move: Lifecycle) -> None:
    assert [str(d) for d in differences(move.source, move.target)] == []


def alike(move: Lifecycle, *, ahead: bool = False) -> None:
    """Rows, sequences and catalogs; `ahead`: sequences may be, as where the target alone had rows."""
    equal(move)
    assert [str(d) for d in compare_sequences(move.source, move.target, ahead=ahead)] == []
    assert diff_catalogs(catalog_lines(move.source), catalog_lines(move.target)) == []


EXTRA = """
INSERT INTO shop.customer OVERRIDING SYSTEM VALUE
    SELECT 1000000 + n, 'here ' || n, 'ok' FROM generate_series(1, 1500) n;
INSERT INTO shop.part SELECT '2030-01-01', n, 'here' FROM generate_series(1, 3) n;
"""
