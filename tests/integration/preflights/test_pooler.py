"""A pooler between us and the server: who shares sessions is noticed and refused."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.engine.errors import Unreachable
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.preflight import preflight
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.server.pooler import shares_sessions
from tests.integration.calls import before_each
from tests.integration.preflights.findings import ORDERS, migrate, only, run


def shared(dsn: str) -> bool:
    with psycopg.connect(dsn, autocommit=True) as conn:
        return shares_sessions(conn)


@pytest.mark.parametrize("extra", ["", "server_round_robin = 1", "default_pool_size = 1\nquery_wait_timeout = 1"])
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pooler_that_shares_sessions_is_noticed_and_left_as_it_was(
    pgbouncer: Callable[..., str], source_dsn: str, mode: str, extra: str
) -> None:
    dsn = pgbouncer(source_dsn, mode, extra)
    assert shared(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert conn.execute("SHOW search_path").fetchone() == ('"$user", public',)


def test_a_pooler_that_shares_sessions_is_a_finding(
    pgbouncer: Callable[..., str], source_dsn: str, target_dsn: str
) -> None:
    run(source_dsn, ORDERS)
    pooled = psycopg.connect(pgbouncer(source_dsn, "transaction"), autocommit=True)
    with pooled as source, connect(target_dsn, purpose="test") as target:
        finding = only(preflight(load_pipeline(migrate()), source, target, [("public", "orders")]), "pooler")
    assert finding.where == "source"
    assert "pool_mode = session" in (finding.fix or "")


@pytest.mark.parametrize("extra", ["", "default_pool_size = 2\nquery_wait_timeout = 1", "max_client_conn = 2"])
def test_a_pooler_in_session_mode_is_taken_also_when_it_is_full(
    pgbouncer: Callable[..., str], source_dsn: str, extra: str
) -> None:
    assert not shared(pgbouncer(source_dsn, "session", extra))


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler_without_room_for_a_second_client_is_not_taken_for_one_of_session_mode(
    pgbouncer: Callable[..., str], source_dsn: str, mode: str
) -> None:
    dsn = pgbouncer(source_dsn, mode, "max_client_conn = 1")
    for _ in range(2):
        with pytest.raises(Unreachable, match="cannot be told whether the pooler shares sessions"):
            shared(dsn)


def test_a_pool_that_others_use_up_just_then_is_not_taken_for_one_of_session_mode(
    pgbouncer: Callable[..., str], source_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = pgbouncer(source_dsn, "transaction", "default_pool_size = 1\nquery_wait_timeout = 1")
    with psycopg.connect(dsn) as application:
        before_each(monkeypatch, psycopg, "connect", lambda n: n == 2 and application.execute("SELECT 1"))
        with pytest.raises(Unreachable, match="cannot be told whether the pooler shares sessions"):
            shared(dsn)


def test_a_direct_connection_is_taken(source_dsn: str) -> None:
    assert not shared(source_dsn)
