"""Sessions of an event loop are what all others are: the same pins, the same refusals, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.engine.errors import PgddlError, PreflightRefused, Unreachable
from airflow_provider_pgddl.engine.server import connect as session
from airflow_provider_pgddl.engine.server.connect import NETWORK, PINNED, connect, connect_async, connect_replication


@pytest.mark.parametrize("server", ["source_dsn", "target_dsn"])
def test_every_setting_is_pinned(server: str, request: pytest.FixtureRequest) -> None:
    dsn = request.getfixturevalue(server)

    async def settings() -> dict[str, str]:
        async with await connect_async(dsn, purpose="test", pipeline="p") as conn:
            assert conn.autocommit
            query = "SELECT name, pg_catalog.current_setting(name) FROM unnest(%s::text[]) s(name)"
            return dict(await (await conn.execute(query, [[*PINNED, "application_name"]])).fetchall())

    assert asyncio.run(settings()) == {**PINNED, "application_name": "pgddl:p:0:test"}


def test_a_dead_port_is_worth_a_retry_and_a_wrong_password_is_not(source_dsn: str) -> None:
    with pytest.raises(Unreachable, match="does not answer"):
        asyncio.run(connect_async("host=127.0.0.1 port=1 dbname=x", purpose="test"))
    wrong = psycopg.conninfo.make_conninfo(source_dsn, password="not-the-one")
    with pytest.raises(PgddlError, match="password") as refused:
        asyncio.run(connect_async(wrong, purpose="test"))
    assert not refused.value.retryable
    assert "not-the-one" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "todo"), [(None, "give this connection a password"), ("not-the-one", "the password")]
)
def test_a_password_that_is_missing_or_wrong_is_told_in_any_language(
    source_dsn: str, monkeypatch: pytest.MonkeyPatch, given: str | None, todo: str
) -> None:
    """Played by words that nobody knows."""
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    parts = {**psycopg.conninfo.conninfo_to_dict(source_dsn), "password": given}
    monkeypatch.setattr(session, "without_secrets", lambda *_: "FATAL:  Passwort-Authentifizierung fehlgeschlagen")
    with pytest.raises(PgddlError) as refused:
        connect(psycopg.conninfo.make_conninfo(**{k: v for k, v in parts.items() if v}), purpose="test")
    assert todo in str(refused.value.todo)
    assert refused.value.retryable == (given is not None)


def test_a_pooler_is_taken_in_session_mode_only(source_dsn: str, pgbouncer: Callable[[str, str], str]) -> None:
    async def time_zone(dsn: str) -> str:
        async with await connect_async(dsn, purpose="test") as conn:
            return str((await (await conn.execute("SHOW TimeZone")).fetchone())[0])

    assert asyncio.run(time_zone(pgbouncer(source_dsn, "session"))) == "UTC"
    with pytest.raises(PreflightRefused, match="pooler in transaction mode"):
        asyncio.run(time_zone(pgbouncer(source_dsn, "transaction")))


@pytest.mark.parametrize(("given", "idle"), [({}, NETWORK["keepalives_idle"]), ({"keepalives_idle": 77}, 77)])
def test_a_host_that_is_gone_without_a_word_is_noticed_in_every_session(
    source_dsn: str, given: dict[str, int], idle: int
) -> None:
    dsn = psycopg.conninfo.make_conninfo(source_dsn, **given)

    def alive(fileno: int) -> list[int]:
        with socket.socket(fileno=os.dup(fileno)) as one:
            on = one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            return [
                on,
                *(one.getsockopt(socket.IPPROTO_TCP, what) for what in (socket.TCP_KEEPIDLE, socket.TCP_KEEPCNT)),
            ]

    async def apart() -> list[int]:
        async with await connect_async(dsn, purpose="test") as conn:
            return alive(conn.fileno())

    with connect(dsn, purpose="test") as one, connect_replication(dsn, purpose="test") as other:
        found = [alive(one.fileno()), alive(other.fileno()), asyncio.run(apart())]
    assert found == [[1, idle, NETWORK["keepalives_count"]]] * 3


def test_a_host_of_ours_that_is_gone_is_noticed_by_the_server(source_dsn: str) -> None:
    """Its locks are held until then: by the kernel's own times for two hours."""
    names = ["tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count"]
    shown = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)

    async def apart() -> tuple[str, ...] | None:
        async with await connect_async(source_dsn, purpose="test") as conn:
            return await (await conn.execute(shown.encode())).fetchone()

    with connect(source_dsn, purpose="test") as one, connect_replication(source_dsn, purpose="test") as other:
        found = [one.execute(shown.encode()).fetchone(), other.execute(shown.encode()).fetchone()]
    assert [*found, asyncio.run(apart())] == [tuple(PINNED[name] for name in names)] * 3
