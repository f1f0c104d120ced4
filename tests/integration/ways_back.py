"""A shop that moves to another server, and the pipeline that leads back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.demo.compare import catalog_lines, compare_sequences, diff_catalogs, differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands import metrics
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.way_back import way_back_of
from tests.integration.lifecycle import Lifecycle, execute

Lifecycles = Callable[..., Lifecycle]

SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.customer (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text UNIQUE, born date);
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
INSERT INTO shop.customer (name) SELECT 'name ' || n FROM generate_series(1, 300) n;
INSERT INTO shop.purchase (customer, total) SELECT 1 + n % 300, n FROM generate_series(1, 1000) n;
INSERT INTO shop.part SELECT '2023-07-01'::date + n, n, 'v' || n FROM generate_series(1, 700) n;
"""
WORK = """
INSERT INTO shop.customer (name) SELECT '{0} ' || n FROM generate_series(1, 20) n;
UPDATE shop.customer SET born = '2000-01-01' WHERE id % 7 = {1};
DELETE FROM shop.customer WHERE id % 50 = {1};
INSERT INTO shop.purchase (customer, total) SELECT id, 5 FROM shop.customer WHERE id % 10 = {1};
UPDATE shop.purchase SET total = total + 1 WHERE id % 5 = {1};
UPDATE shop.part SET at = '2024-05-05', v = '{0}' WHERE id % 40 = {1};
"""
SMALL = {"backfill": {"chunk_bytes": "64kB", "workers": 1}, "replay": {"window_rows": 300}}
# More than writers change while a process or a server comes back: with less, windows run after them without end.
AHEAD_OF_WRITERS = {"window_rows": 2000}
EVERYTHING = {"tables": {"include": ["shop.*"]}, "swap": {"fence": "read_only", "way_back": "shop_back"}, **SMALL}


class Ways:
    """A pipeline, and the one that leads back: `there.run(stage)`, `back.run(stage)`."""

    def __init__(self, lifecycle: Lifecycles, old: str, new: str, **changed: Any) -> None:
        self.old, self.new = old, new
        self.there = lifecycle(old, new, **{**EVERYTHING, **changed})
        self.back = lifecycle(new, old)
        self.use_recorded()

    def use_recorded(self) -> None:
        self.back.content = way_back_of(load_pipeline(self.there.content)).to_json()

    def home_and_forth(self) -> None:
        """Going back, and forward again, as if nothing had been."""
        for stage in ("verify", "swap"):
            assert not self.back.run(stage).blocked
        self.alike()
        execute(self.old, WORK.format("home", 4))
        for stage in ("replay", "verify", "swap"):
            assert not self.there.run(stage).blocked
        self.alike()

    def equal(self) -> None:
        for one in (self.there, self.back):
            stages.status(load_pipeline(one.content), one.source, one.target)
            metrics.text(load_pipeline(one.content), one.source, one.target)
        assert [str(d) for d in differences(self.old, self.new)] == []

    def alike(self) -> None:
        self.equal()
        assert [str(d) for d in compare_sequences(self.old, self.new)] == []
        with psycopg.connect(self.old) as conn:  # before 16 columns are printed with their table
            ignored = ["shop.rich view"] if conn.info.server_version < 160_000 else []
        assert diff_catalogs(catalog_lines(self.old), catalog_lines(self.new), ignore=ignored) == []


def refused(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn) as conn, pytest.raises(pg.ReadOnlySqlTransaction):
        conn.execute(statement.encode())
