"""Clients' DDL while a dump or a swap has asked for quiet: it waits, and never so that others wait, or it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from airflow_provider_pgddl.engine.capture import ddl_log
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import one

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'ALTER%%' AND wait_event_type = 'Lock'"


@pytest.fixture
def captured(lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str) -> str:
    """A source whose DDL is captured."""
    execute(source_dsn, "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}).run("setup")
    return source_dsn


@pytest.fixture(params=[False, True])
def quiet(captured: str, request: pytest.FixtureRequest) -> Iterator[str]:
    with connect(captured, purpose="test", pipeline="test") as session:
        with ddl_log.held(session, everything=request.param):
            yield captured


def test_it_waits_until_the_quiet_is_over(captured: str) -> None:
    altering = threading.Thread(target=execute, args=(captured, "ALTER TABLE t ADD COLUMN a int"))
    with connect(captured, purpose="test", pipeline="test") as session:
        with ddl_log.held(session):
            altering.start()
            wait_until(lambda: one(captured, WAITING) == 1)
            execute(captured, "INSERT INTO t VALUES (1)")  # nobody waits behind it
            execute(captured, "CREATE INDEX ON other (id); GRANT SELECT ON other TO PUBLIC")  # nor with it
    altering.join(120)
    assert one(captured, "SELECT count(a) FROM t") == 0


def test_whoever_has_locked_a_table_already_goes_on(quiet: str) -> None:
    """Else a dump would wait for that table, and it for the dump."""
    with psycopg.connect(quiet) as conn:
        conn.execute("TRUNCATE t")
        conn.execute("ALTER TABLE t ADD COLUMN a int")
    assert one(quiet, "SELECT count(a) FROM t") == 0


def test_no_statement_fails_by_its_own_timeout(quiet: str) -> None:
    with psycopg.connect(quiet) as conn:
        conn.execute("SET statement_timeout = '4s'; SET lock_timeout = '30s'")
        conn.execute("ALTER TABLE t ADD COLUMN a int")
        assert conn.execute("SHOW lock_timeout").fetchone() == ("30s",)
    with psycopg.connect(quiet) as conn:
        conn.execute("SET lock_timeout = '100ms'")
        conn.execute("ALTER TABLE t ADD COLUMN b int")
        assert conn.execute("SHOW lock_timeout").fetchone() == ("100ms",)
    assert one(quiet, "SELECT count(b) FROM t") == 0
