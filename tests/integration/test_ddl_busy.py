"""DDL that comes faster than pg_dump takes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine.ddl.dump import find_pg_dump
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.test_ddl_guards import SHOP, equal

Make = Callable[..., Lifecycle]

STAGING = """
CREATE TABLE etl.staging AS SELECT i AS id FROM generate_series(1, 10) i;
ALTER TABLE etl.staging ADD PRIMARY KEY (id);
CREATE INDEX ON etl.staging (id);
COMMENT ON TABLE etl.staging IS 'round {n}';
GRANT SELECT ON etl.staging TO PUBLIC;
DROP TABLE etl.staging;
"""
# On a table that is followed, each once more and in another way.
ON_ORDERS = """
GRANT SELECT ON public.orders TO PUBLIC;
COMMENT ON TABLE public.orders IS 'round {n}';
CREATE OR REPLACE FUNCTION public.round() RETURNS int LANGUAGE sql AS 'SELECT {n}';
CREATE INDEX by_note_{n} ON public.orders (note);
REVOKE SELECT ON public.orders FROM PUBLIC;
"""


@pytest.fixture
def make(lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str) -> Make:
    def made(schema: str = SHOP, **pipeline: Any) -> Lifecycle:
        execute(source_dsn, schema)
        content: dict[str, Any] = {"tables": {"include": ["public.*"]}}
        return lifecycle(source_dsn, target_dsn, **{**content, **pipeline})

    return made


@contextmanager
def busy(dsn: str, statements: str, pause: float) -> Iterator[Sequence[int]]:
    """Somebody runs these, each in a transaction of its own, over and over; how many rounds are over."""
    stop, rounds, failed = threading.Event(), [0], list[psycopg.Error]()

    def load() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            for n in count(1):
                for statement in statements.format(n=n).strip().splitlines():
                    if stop.is_set():
                        return
                    try:
                        conn.execute(statement.encode())
                    except psycopg.Error as error:
                        failed.append(error)
                        return
                    stop.wait(pause)
                rounds[0] = n

    loader = threading.Thread(target=load)
    loader.start()
    try:
        yield rounds
    finally:
        stop.set()
        loader.join()
        assert failed == []


def through(pipeline: Lifecycle, rounds: Sequence[int], *stages: str) -> None:
    for stage in stages:
        before = rounds[0]
        assert not pipeline.run(stage).blocked
        wait_until(lambda before=before: rounds[0] > before)  # type: ignore[misc]


@pytest.fixture
def slow_pg_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes two seconds to come to its locks."""
    script = tmp_path / "pg_dump"
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] || sleep 2\nexec {find_pg_dump(18)} "$@"\n')
    os.chmod(script, 0o755)
    monkeypatch.setenv("PGDDL_PG_DUMP", str(script))


def test_one_alter_a_second_of_a_table_that_is_followed(make: Make, slow_pg_dump: None) -> None:
    pipeline = make()
    pipeline.run("setup")
    alters = """
    ALTER TABLE public.orders ADD COLUMN c{n} int DEFAULT {n};
    ALTER TABLE public.orders RENAME COLUMN c{n} TO d{n};
    CREATE INDEX by_d ON public.orders (d{n});
    ALTER INDEX public.by_d RENAME TO by_d{n};
    ALTER TABLE public.orders DROP COLUMN d{n};
    """
    with busy(pipeline.source, alters, 1.0) as rounds:
        through(pipeline, rounds, "snapshot", "backfill", "schema_sync", "replay")
    pipeline.run_all(after="schema_sync")
    equal(pipeline)


def test_nobody_waits_for_a_dump_that_nothing_has_spoiled(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_pgddl.engine.capture import ddl_log

    def held(*_: Any) -> None:
        raise AssertionError("DDL was held")

    monkeypatch.setattr(ddl_log, "held", held)
    pipeline = make(SHOP + "CREATE SCHEMA etl;")
    pipeline.run("setup")
    with busy(pipeline.source, ON_ORDERS.replace("CREATE OR REPLACE FUNCTION", "-- "), 0.0) as rounds:
        wait_until(lambda: rounds[0])
        pipeline.run("snapshot")
    pipeline.run_all(after="snapshot")
    equal(pipeline)
