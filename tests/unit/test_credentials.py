"""Credentials that change: who asks for them when, and where they do not show."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.engine.errors import PgddlError, Retry, Unreachable, UsageError
from airflow_provider_pgddl.engine.pipeline.endpoint import Endpoint
from airflow_provider_pgddl.engine.pipeline.reading import PipelineFileError, load_pipeline
from airflow_provider_pgddl.engine.server import credentials
from airflow_provider_pgddl.engine.server.connect import describe_dsn
from airflow_provider_pgddl.engine.server.credentials import Broker, opened, real

SHOP = {"pipeline": "shop", "tables": {"include": ["shop.*"]}}


class Tokens:
    """Each time that it is asked another password."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        return make_conninfo("host=db port=5433 dbname=shop user=mover", password=f"token {self.made}")


@contextmanager
def handing_out(tokens: Tokens) -> Iterator[str]:
    broker = Broker({"source": tokens})
    try:
        yield broker.reference("source")
    finally:
        broker.close()


def password(conninfo: str) -> str:
    return str(conninfo_to_dict(conninfo)["password"])


def test_a_reference_is_a_connection_string_without_a_password() -> None:
    with handing_out(Tokens()) as reference:
        assert "token" not in reference
        assert describe_dsn(reference) == "db:5433/shop"
        assert conninfo_to_dict(reference)["user"] == "mover"
        assert password(real(reference)) == "token 1"


def test_it_is_asked_for_again_once_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(credentials, "time", SimpleNamespace(monotonic=lambda: now, sleep=time.sleep))
    with handing_out(tokens := Tokens()) as reference:
        assert [password(real(reference)) for _ in range(3)] == ["token 1"] * 3
        now += credentials.MAX_AGE + 1
        assert [password(real(reference)) for _ in range(3)] == ["token 2"] * 3
    assert tokens.made == 2


def test_what_was_refused_is_asked_for_again_by_one_and_had_by_all() -> None:
    with handing_out(tokens := Tokens()) as reference:
        old = real(reference)
        assert [password(real(reference, refused=old)) for _ in range(3)] == ["token 2"] * 3
    assert tokens.made == 2


def test_a_session_is_tried_with_the_next_one_where_a_password_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "PAUSE", 0.0)
    tried: list[str] = []

    def connect(conninfo: str) -> str:
        tried.append(password(conninfo))
        if len(tried) < 3:
            raise psycopg.OperationalError('FATAL:  password authentication failed for user "mover"')
        return "a session"

    with handing_out(Tokens()) as reference:
        assert opened(reference, connect)[0] == "a session"
        assert tried == ["token 1", "token 2", "token 3"]
        tried.clear()
        with pytest.raises(psycopg.OperationalError, match="no such database"):
            opened(reference, lambda _: refused("no such database"))
    with pytest.raises(psycopg.OperationalError):
        opened("host=db user=mover password=x", lambda _: refused("password authentication failed"))


def test_a_password_is_known_to_be_refused_in_any_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "PAUSE", 0.0)
    tried: list[str] = []

    def connect(conninfo: str) -> str:
        tried.append(password(conninfo))
        if len(tried) < 3:
            by_libpq = SimpleNamespace(needs_password=False, used_password=True)
            error = psycopg.OperationalError("FATAL:  Passwort-Authentifizierung fehlgeschlagen")
            error._pgconn = by_libpq  # type: ignore[assignment]
            raise error
        return "a session"

    with handing_out(Tokens()) as reference:
        assert opened(reference, connect)[0] == "a session"
    assert tried == ["token 1", "token 2", "token 3"]


def refused(why: str) -> None:
    raise psycopg.OperationalError(why)


def test_who_has_not_the_key_gets_nothing_and_nobody_else_waits_for_that() -> None:
    with handing_out(tokens := Tokens()) as reference:
        host, port, _, _ = str(conninfo_to_dict(reference)["passfile"]).partition("|")[2].split("|")
        with socket.create_connection((host, int(port))), pytest.raises(AuthenticationError):
            Client((host, int(port)), authkey=b"guessed")
        assert password(real(reference)) == "token 1"
    assert tokens.made == 1
    with pytest.raises(Unreachable, match="nobody hands out the source's credentials"):
        real(reference)


def test_nothing_of_it_is_to_be_read_on_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    sealed = credentials._sealed

    def noted(key: bytes, text: bytes) -> bytes:
        sent.append(sealed(key, text))
        return sent[-1]

    monkeypatch.setattr(credentials, "_sealed", noted)
    with handing_out(Tokens()) as reference:
        assert password(real(reference)) == "token 1"
    assert len(sent) == 2 and not any(b"token" in message or b"source" in message for message in sent)
    key = bytes(32)
    message = sealed(key, b"a text of more than thirty-two bytes, so of two blocks")
    assert credentials._unsealed(key, message) == b"a text of more than thirty-two bytes, so of two blocks"
    for place in (0, 20, len(message) - 1):
        with pytest.raises(AuthenticationError):
            credentials._unsealed(key, message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :])


def test_what_goes_wrong_is_told_without_what_was_printed() -> None:
    broker = Broker({"source": Tokens(), "target": fails})
    with pytest.raises(Unreachable) as caught:
        real(broker.reference("source").replace("|source", "|target"))
    broker.close()
    assert "hush" not in str(caught.value) and "ValueError" in str(caught.value)


def fails() -> str:
    raise ValueError("hush-hush")


def command(*code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", ";".join(code))


def test_a_command_prints_the_conninfo_or_the_password_of_a_dsn() -> None:
    env = {"USER_NAME": "mover"}
    whole = Endpoint(dsn_command=command("print('host=db user=mover password' + '=hush')"))
    assert conninfo_to_dict(whole.resolve(env)) == {"host": "db", "user": "mover", "password": "hush"}
    of_dsn = Endpoint(dsn="host=db user=${USER_NAME}", dsn_command=command("print(' it s @ hush ')"))
    assert conninfo_to_dict(of_dsn.resolve(env)) == {"host": "db", "user": "mover", "password": "it s @ hush"}


@pytest.mark.parametrize(("code", "kind", "said"), [
    ("import sys; print('hush'); sys.exit('hush')", Retry, "ended with exit code 1"),
    ("pass", Retry, "printed nothing"),
    ("print('hush')", UsageError, "printed no Postgres conninfo"),
])  # fmt: skip
def test_a_command_that_fails_says_so_and_not_what_it_printed(code: str, kind: type[PgddlError], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        Endpoint(dsn_command=command(code)).resolve({})
    assert "hush" not in str(caught.value)


def test_a_program_that_is_not_there_is_one_line() -> None:
    with pytest.raises(UsageError, match="there is no program nowhere"):
        Endpoint(dsn_command=("nowhere",)).resolve({})


@pytest.mark.parametrize("source", [{"conn_id": "shop", "dsn_command": ["x"]}, {}])
def test_a_side_is_named_in_one_way(source: dict[str, Any]) -> None:
    with pytest.raises(PipelineFileError, match="give either conn_id or dsn"):
        load_pipeline({**SHOP, "source": source, "target": {"dsn": "host=b"}})


# --- Airflow's connections --------------------------------------------------------------------------------------------


class Connection(SimpleNamespace):
    """What the hook reads of an Airflow connection."""


def cloud_connection(**extra: Any) -> Connection:
    parts = {"host": "db", "login": "mover", "password": None, "port": 5433, "schema": "shop"}
    return Connection(conn_id="shop", conn_type="postgres", extra_dejson=extra, **parts)


def test_the_extra_iam_is_the_provider_s_own_hook_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cloud is at hand: what the hook asks of Amazon's provider is answered here, all else is real."""
    from airflow_provider_pgddl.connections import conninfo_of

    asked: list[dict[str, Any]] = []

    class AwsBaseHook:
        def __init__(self, **kwargs: Any) -> None:
            self.conn = self

        def generate_db_auth_token(self, *args: Any, **kwargs: Any) -> str:
            asked.append({"args": args, **kwargs})
            return f"token {len(asked)}"

    module: Any = ModuleType("airflow.providers.amazon.aws.hooks.base_aws")
    module.AwsBaseHook = AwsBaseHook
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = conninfo_to_dict(conninfo_of(cloud_connection(iam=True, region_name="eu-west-1", sslmode="require")))
    assert found["password"] == "token 1" and found["user"] == "mover" and found["sslmode"] == "require"
    assert found["port"] == "5433" and "iam" not in found
    assert password(conninfo_of(cloud_connection(iam=True))) == "token 2"


def test_a_hook_that_gets_no_token_is_one_line() -> None:
    from airflow_provider_pgddl.connections import conninfo_of

    with pytest.raises(Retry, match="the Postgres provider's hook got no token"):
        conninfo_of(cloud_connection(iam=True, azure_conn_id="nowhere"))


def test_a_command_is_refused_in_operators() -> None:
    from airflow_provider_pgddl.connections import refuse_commands

    pipeline = load_pipeline({**SHOP, "source": {"dsn_command": ["x"]}, "target": {"dsn": "host=b"}})
    with pytest.raises(UsageError, match=r"source\.dsn_command: a command is not run in an operator"):
        refuse_commands(pipeline)


def test_a_run_gets_references_for_what_changes_and_the_rest_as_it_is(tmp_path: Path) -> None:
    from airflow_provider_pgddl.connections import handed_out, secrets

    counter = tmp_path / "asked"
    printing = command(f"open({str(counter)!r}, 'a').write('x')", "print('host=db user=mover password' + '=hush')")
    pipeline = load_pipeline({**SHOP, "source": {"dsn_command": list(printing)}, "target": {"dsn": "${SHOP_TARGET}"}})
    env = {"SHOP_TARGET": "host=b password=kept"}
    found = secrets(pipeline, lambda _: None, env)
    with handed_out(pipeline, lambda _: None, env, found, "127.0.0.1") as given:
        assert given["target"] == "host=b password=kept"
        assert "hush" not in given["source"]
        assert {password(real(given["source"])) for _ in range(3)} == {"hush"}
    assert counter.read_text() == "x"
