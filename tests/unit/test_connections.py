"""Connections that Airflow does not know, or could not ask for, and tokens: what tasks and triggers make of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.exceptions import AirflowNotFoundException
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgddl import connections, links
from airflow_provider_pgddl.connections import handed_out, secrets
from airflow_provider_pgddl.engine.errors import NoConnection, PgddlError, Retry, Unreachable, UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.operators.hook import PrivateEnvHook
from airflow_provider_pgddl.retrying import WorthRetrying, give_up
from airflow_provider_pgddl.sensors import schema as sensors
from airflow_provider_pgddl.triggers import ends as trigger_ends
from airflow_provider_pgddl.triggers import schema, watch

SHOP: Any = {
    "pipeline": "shop",
    "source": {"conn_id": "a"},
    "target": {"conn_id": "b"},
    "tables": {"include": ["app.*"]},
}
PIPELINE = load_pipeline(SHOP)


def connection(conn_id: str, **extra: Any) -> Any:
    parts = {"host": conn_id, "login": "mover", "password": "hush", "port": 5432, "schema": "shop"}
    return SimpleNamespace(conn_id=conn_id, conn_type="postgres", extra_dejson=extra, extra="", **parts)


# --- a task -----------------------------------------------------------------------------------------------------------


def test_one_that_is_not_known_is_a_usage_error_and_in_a_task_worth_a_retry() -> None:
    with pytest.raises(NoConnection, match=r"source\.conn_id: Airflow knows no connection a") as caught:
        secrets(PIPELINE, lambda _: None, {})
    assert caught.value.exit_code == 2
    with pytest.raises(WorthRetrying, match="Airflow knows no connection a"):
        give_up(caught.value)
    with pytest.raises(AirflowFailException):
        give_up(UsageError("x"))


def test_one_that_goes_away_meanwhile_is_not_taken_for_one_that_stays_as_it_is() -> None:
    asked = handed_out(PIPELINE, lambda _: None, {}, {"source": "host=a", "target": "host=b"}, "127.0.0.1")
    with pytest.raises(NoConnection), asked:
        pytest.fail("a token would be used for as long as the run takes")


def test_a_spark_connection_that_goes_away_meanwhile_is_not_taken_for_yarn(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise AirflowNotFoundException

    monkeypatch.setattr(SparkSubmitHook, "get_connection", away)
    with pytest.raises(NoConnection, match="Airflow knows no Spark connection local"):
        PrivateEnvHook.of(SparkSubmitHook(conn_id="local"), "local[2]")
    assert PrivateEnvHook.of(SparkSubmitHook(conn_id="local"), "yarn").master == "yarn"


def test_a_waiting_gate_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "lookup_in_task", lambda _: None)
    gate = sensors.PgddlSchemaSensor(task_id="gate", pipeline=SHOP, deferrable=False)
    with pytest.raises(WorthRetrying, match="Airflow knows no connection a"):
        gate.poke({"dag": SimpleNamespace(folder="/")})  # type: ignore[typeddict-item]


def test_a_link_that_airflow_does_not_take_ends_no_application(caplog: pytest.LogCaptureFixture) -> None:
    def away(*_: Any) -> None:
        raise RuntimeError("API_SERVER_ERROR")

    links.show_spark({"ti": SimpleNamespace(xcom_push=away)}, "http://spark:4040")
    assert "_link_SparkLink is not shown: RuntimeError" in caplog.text


# --- the triggerer ----------------------------------------------------------------------------------------------------


class Backend:
    """Airflow's connections, as the triggerer asks for them; `extra` of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **extra: Any) -> None:
        self.known = {name: connection(name) for name in ("a", "b")}
        self.tokens = 0
        self.extra = extra
        monkeypatch.setattr(BaseHook, "aget_connection", self.get)
        monkeypatch.setattr(trigger_ends, "_extra", lambda _: self.extra)
        monkeypatch.setattr(connections, "_token", self.token)

    async def get(self, conn_id: str) -> Any:
        if conn_id not in self.known:
            raise AirflowNotFoundException
        return self.known[conn_id]

    def token(self, one: Any) -> tuple[str, str, int]:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        self.tokens += 1
        return one.login, f"token {self.tokens}", one.port


def test_a_token_is_asked_for_beside_the_event_loop_and_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, now = Backend(monkeypatch, iam=True), time.monotonic()
    monkeypatch.setattr(trigger_ends, "time", SimpleNamespace(monotonic=lambda: now))

    async def looks() -> None:
        nonlocal now
        ends = trigger_ends.Ends(PIPELINE)
        source, target = await ends.now()
        assert "token 1" in source and "token 2" in target
        assert not ends.forget(), "it was a new one"
        await ends.now()
        assert "token 3" in (await ends.now())[0]
        assert ends.forget()
        assert "token 5" in (await ends.now())[0]
        now += trigger_ends.MAX_AGE + 1
        assert "token 7" in (await ends.now())[0]
        backend.known["a"] = connection("elsewhere")
        assert "token 9" in (await ends.now())[0]
        backend.extra = {}
        assert "hush" in (await ends.now())[0]

    asyncio.run(looks())
    assert backend.tokens == 10


def gate(**changed: Any) -> schema.PgddlSchemaTrigger:
    given = {"seen": "", "poke_interval": 0.001, "validation_interval": 3600, "started": 17.0, "tables": None}
    return schema.PgddlSchemaTrigger(pipeline=schema.ends_of(PIPELINE), **{**given, **changed})  # type: ignore[arg-type]


async def fired(one: schema.PgddlSchemaTrigger) -> Any:
    return (await anext(one.run())).payload


def answers(monkeypatch: pytest.MonkeyPatch, *say: str | Exception) -> None:
    left = list(say)

    async def look(*_: Any) -> str:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(schema, "look", look)


def test_a_gate_waits_while_a_connection_cannot_be_had_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend(monkeypatch)
    asked, there = 0, backend.known
    answers(monkeypatch, "changed")

    async def get(conn_id: str) -> Any:
        nonlocal asked
        asked += 1
        backend.known = there if asked > back else {}
        return await backend.get(conn_id)

    monkeypatch.setattr(BaseHook, "aget_connection", get)
    back = 2 * (schema.LOOKS - 1)  # both ends are asked for at each look
    assert asyncio.run(fired(gate())) == {"started": 17.0, "error": None}
    asked, back = 0, 1000
    assert "Airflow knows no connection a" in asyncio.run(fired(gate()))["error"]
    assert asked == 2 * schema.LOOKS


def test_a_token_that_can_never_be_had_ends_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    Backend(monkeypatch, iam=True)

    def denied(_: Any) -> Any:
        raise Retry("the Postgres provider's hook got no token (AccessDenied)")

    monkeypatch.setattr(connections, "_token", denied)
    assert "AccessDenied" in asyncio.run(fired(gate()))["error"]


def test_what_refuses_an_old_token_is_tried_with_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, refused = Backend(monkeypatch, iam=True), PgddlError("refuses the connection")
    answers(monkeypatch, "", refused, "", refused, "changed")
    assert asyncio.run(fired(gate())) == {"started": 17.0, "error": None}
    assert backend.tokens == 6
    answers(monkeypatch, refused)
    assert asyncio.run(fired(gate()))["error"] == "refuses the connection"


@pytest.mark.parametrize(
    ("error", "level", "said"),
    [
        (Unreachable("db does not answer"), "warning", "db does not answer"),
        (NoConnection("Airflow knows no connection a"), "warning", "knows no connection"),
        (UsageError("a is of type spark"), "error", "is of type spark"),
        (PermissionError("hush"), "error", "PermissionError"),
    ],
)
def test_a_watcher_goes_on_and_says_what_does_not_pass(
    error: Exception, level: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Backend(monkeypatch)
    one = watch.PgddlWatchTrigger(pipeline=PIPELINE.model_dump_json(), watched="ddl", poke_interval=0.001)
    seen: list[tuple[str, str]] = []
    answer: list[Callable[[], dict[str, str]]] = [lambda: {"7": "failed"}, lambda: raised(error)]

    async def look(*_: Any) -> dict[str, str]:
        return answer.pop()()

    monkeypatch.setattr(one, "_look", look)
    for name in ("warning", "error"):
        monkeypatch.setattr(one.log, name, lambda text, *given, name=name: seen.append((name, text % given)))
    event = asyncio.run(anext(one.run()))
    assert event.payload["new"] == ["7"]
    ((how, text),) = seen
    assert how == level and said in text and "hush" not in text


def raised(error: Exception) -> dict[str, str]:
    raise error
