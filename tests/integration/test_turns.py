"""Runs beside each other take turns at what concerns them all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from airflow_provider_pgddl.engine.following.ddl import ddl_lock
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.server import turns
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.sessions import Underway, do, wait_for


def run_of(session: psycopg.Connection[Any], said: list[str]) -> Context:
    """As much of it as it takes to wait."""
    return cast(Context, SimpleNamespace(lease=SimpleNamespace(conn=session), name="shop", say=said.append))


def test_whoever_waits_for_his_turn_at_ddl_keeps_no_index_from_being_built(
    target_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else both would wait for each other, and the server would not know of it."""
    monkeypatch.setattr(turns, "SAY_EVERY", 0.0)
    do(target_dsn, "CREATE TABLE public.t (id int)")
    said, done = list[str](), list[str]()
    with (
        connect(target_dsn, purpose="lease", pipeline="shop") as first,
        connect(target_dsn, purpose="lease", pipeline="shop") as second,
    ):

        def wait() -> None:
            with ddl_lock(run_of(second, said)):
                done.append("second")

        front = f"session {first.info.backend_pid} of the server (pgddl:shop:0:lease)"
        with ddl_lock(run_of(first, said)):
            with Underway(wait) as waiting:
                try:
                    wait_for(lambda: said, waiting, 20)
                    do(target_dsn, "SET statement_timeout = '10s'", "CREATE INDEX CONCURRENTLY ON public.t (id)")
                    done.append("first")
                finally:
                    first.execute("SELECT pg_advisory_unlock_all()")
    assert done == ["first", "second"]
    assert said[0] == f"waiting for another run, which is at it: {front}"
