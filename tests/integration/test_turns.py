"""Runs beside each other take turns at what concerns them all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from airflow_provider_pgddl.engine.capture import slot_log
from airflow_provider_pgddl.engine.following.ddl import ddl_lock
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.lease import Fence
from airflow_provider_pgddl.engine.server import turns
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.sessions import Underway, do, wait_for


def run_of(session: psycopg.Connection[Any], said: list[str]) -> Context:
    """As much of it as it takes to wait."""
    return cast(Context, SimpleNamespace(lease=SimpleNamespace(conn=session), name="shop", say=said.append))


class Turn(Exception):
    """Whoever it is has got his turn."""


def at_ddl(session: psycopg.Connection[Any], said: list[str]) -> None:
    with ddl_lock(run_of(session, said)):
        raise Turn


def at_the_slot(session: psycopg.Connection[Any], said: list[str]) -> None:
    fence = Fence("shop", ("",), 0)
    slot_log.receive_into_logs(session, session, nullcontext, "shop", fence, {}, said.append)  # type: ignore[arg-type]


@pytest.mark.parametrize(("take", "what"), [(at_ddl, "ddl"), (at_the_slot, "rows")], ids=["ddl", "slot"])
def test_whoever_waits_for_his_turn_keeps_no_index_from_being_built(
    target_dsn: str, monkeypatch: pytest.MonkeyPatch, take: Callable[..., None], what: str
) -> None:
    """Else both would wait for each other, and the server would not know of it."""
    monkeypatch.setattr(turns, "SAY_EVERY", 0.0)
    monkeypatch.setattr(slot_log, "_let_restart_here", lambda _: None)
    monkeypatch.setattr(slot_log, "marker", lambda _: 0)

    def recorded(*_: object) -> None:
        raise Turn

    monkeypatch.setattr(slot_log, "_recorded_timeline", recorded)
    do(target_dsn, "CREATE TABLE public.t (id int)")
    said, done = list[str](), list[str]()
    with (
        connect(target_dsn, purpose="lease", pipeline="shop") as first,
        connect(target_dsn, purpose="lease", pipeline="shop") as second,
    ):

        def wait() -> None:
            with pytest.raises(Turn):
                take(second, said)
            done.append("second")

        front = f"session {first.info.backend_pid} of the server (pgddl:shop:0:lease)"
        with turns.one_at_a_time(first, f"pgddl {what} shop", said.append):
            with Underway(wait) as waiting:
                try:
                    wait_for(lambda: said, waiting, 20)
                    do(target_dsn, "SET statement_timeout = '10s'", "CREATE INDEX CONCURRENTLY ON public.t (id)")
                    done.append("first")
                finally:
                    first.execute("SELECT pg_advisory_unlock_all()")
    assert done == ["first", "second"]
    assert said[0] == f"waiting for another run, which is at it: {front}"
