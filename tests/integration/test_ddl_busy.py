"""DDL that comes faster than pg_dump takes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.server.pg_dump import find_pg_dump
from airflow_provider_pgddl.engine.stages import snapshot
from tests.integration.ddl_shop import SHOP, equal
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.resets import reset
from tests.integration.sessions import one

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
    """Somebody runs these, each in a transaction of its own, round after round to its end; how many are over."""
    stop, rounds, failed = threading.Event(), [0], list[psycopg.Error]()

    def load() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            for n in takewhile(lambda _: not stop.is_set(), count(1)):
                for statement in statements.format(n=n).strip().splitlines():
                    began = time.monotonic()
                    try:
                        conn.execute(statement.encode())
                    except psycopg.Error as error:
                        failed.append(error)
                        return
                    # DDL that comes faster than it can be done again has no end; a slow machine is so for both.
                    stop.wait(max(pause, min(4 * (time.monotonic() - began), 0.5)) if pause else 0)
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


def not_on_target(pipeline: Lifecycle) -> list[str]:
    """What ON_ORDERS has made on the source alone, by words of its statements."""
    indexes = "SELECT indexname FROM pg_indexes WHERE tablename = 'orders'"
    there = {name for (name,) in pipeline.journal(indexes)}
    found = [name for (name,) in pipeline.on_source(indexes) if name not in there]
    told = {
        "COMMENT ON TABLE": "SELECT obj_description('public.orders'::regclass)",
        "FUNCTION": "SELECT prosrc FROM pg_proc WHERE proname = 'round' AND pronamespace = 'public'::regnamespace",
        "SELECT ON public.orders": "SELECT relacl::text FROM pg_class WHERE oid = 'public.orders'::regclass",
    }
    return found + [words for words, query in told.items() if pipeline.on_source(query) != pipeline.journal(query)]


@pytest.fixture
def slow_pg_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes two seconds to come to its locks."""
    script = tmp_path / "pg_dump"
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] || sleep 2\nexec {find_pg_dump(18)} "$@"\n')
    os.chmod(script, 0o755)
    monkeypatch.setenv("PGDDL_PG_DUMP", str(script))


@pytest.mark.parametrize("ddl", ["queue", "wal"])
def test_staging_tables_come_and_go_and_a_table_gets_rights_all_day_through_the_swap(make: Make, ddl: str) -> None:
    pipeline = make(SHOP + "CREATE SCHEMA etl;", capture={"ddl": ddl})
    pipeline.run("setup")
    stages = ("snapshot", "backfill", "schema_sync", "replay", "verify")
    with busy(pipeline.source, STAGING, 0.02) as rounds, busy(pipeline.source, ON_ORDERS, 0.3) as others:
        through(pipeline, rounds, *stages)
        wait_until(lambda: others[0] > 1)
        assert not pipeline.run("swap").blocked
    execute(pipeline.source, "DROP TABLE IF EXISTS etl.staging")
    with suppress(PreflightRefused):  # it names what came behind the cut-over, if anything did
        pipeline.run("cleanup")
    # Whatever came later is told, and nothing else is missing.
    late = "SELECT statement FROM pgddl.ddl_events WHERE status = 'unhandled'"
    told = "".join(statement for (statement,) in pipeline.journal(late))
    assert [line for line in not_on_target(pipeline) if line not in told] == []
    assert differences(pipeline.source, pipeline.target) == []


def test_tables_are_reset_while_staging_tables_come_and_go(make: Make) -> None:
    pipeline = make(SHOP + "CREATE SCHEMA etl;")
    pipeline.run_all(until="replay")
    reset(pipeline, ["public.orders"])
    lines = "ALTER TABLE public.lines ADD COLUMN c{n} int;"
    with busy(pipeline.source, STAGING, 0.02) as rounds, busy(pipeline.source, lines, 1.0):
        through(pipeline, rounds, "setup", "snapshot", "backfill", "schema_sync", "replay")
    pipeline.run_all(after="replay")
    equal(pipeline)


def test_ddl_about_a_late_table_whose_snapshot_died_before_its_copy_was_made(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    reset(pipeline, ["public.orders"])
    pipeline.run("setup")
    with monkeypatch.context() as dying:

        def die(_: Any) -> int:
            raise psycopg.OperationalError("the connection is lost")

        dying.setattr(snapshot, "_apply", die)
        assert pipeline.refused("snapshot").retryable
    execute(pipeline.source, "ALTER TABLE public.orders ADD COLUMN late int DEFAULT 7")
    execute(pipeline.source, "CREATE INDEX by_late ON public.orders (late)")
    for stage in ("snapshot", "backfill", "schema_sync", "replay"):
        assert not pipeline.run(stage).blocked
    assert one(pipeline.target, "SELECT to_regclass('public.by_late')::text") == "by_late"
    pipeline.run_all(after="replay")
    equal(pipeline)


def test_a_change_that_no_event_tells_of_is_seen_between_staging_tables(make: Make) -> None:
    pipeline = make(SHOP + "CREATE SCHEMA etl;")
    pipeline.run_all(until="verify")
    execute(pipeline.source, "SET pgddl.skip = on; ALTER TABLE public.orders SET (fillfactor = 70)")
    with busy(pipeline.source, STAGING, 0.02):
        assert "fillfactor" in str(pipeline.refused("swap"))


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
