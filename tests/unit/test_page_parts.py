"""What the page decides without a server: who may have sent something, and which descriptions it can read."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN

from airflow_provider_pgddl.description import FIELD
from airflow_provider_pgddl.page import looks
from airflow_provider_pgddl.page.actions import COOKIE, is_forged
from airflow_provider_pgddl.page.looks import MOST_STUCK, TOO_LONG, Lookout
from airflow_provider_pgddl.page.pipelines import FoundPipeline, _in_dag

BASE = "https://airflow.example/team"
THERE = {"sec-fetch-site": "cross-site", "origin": "https://elsewhere.example", "host": "airflow.example"}


@pytest.mark.parametrize(
    ("sent", "forged"),
    [
        ({"authorization": "Bearer abc"}, False),
        ({"authorization": "bearer abc"}, False),
        ({"authorization": "Bearer abc", "cookie": "sticky=1"}, False),
        ({"authorization": "Bearer abc", "cookie": f"a=b; {COOKIE}=x"}, True),
        ({"authorization": "Bearer"}, True),
        ({"authorization": "Bearer  "}, True),
        ({"authorization": "Basic abc"}, True),
        ({"authorization": "Negotiate abc"}, True),
        ({}, True),
    ],
)
def test_a_token_that_airflow_takes_is_no_forgery_and_no_other_header_is_proof(
    sent: dict[str, str], forged: bool
) -> None:
    assert is_forged({**THERE, **sent}, BASE) is forged


def test_the_page_itself_is_believed_by_the_browser_s_word() -> None:
    assert COOKIE == COOKIE_NAME_JWT_TOKEN
    assert not is_forged({"sec-fetch-site": "same-origin", "cookie": f"{COOKIE}=x"}, BASE)
    assert not is_forged({"origin": "https://airflow.example"}, BASE)
    assert is_forged({"origin": "https://elsewhere.example"}, BASE)
    assert is_forged({}, BASE)


GOOD = {"pipeline": "shop", "source": "a", "target": None, "in_place": False, "file": "shop.yaml"}


def dag(*told: Any) -> dict[str, Any]:
    fields = (
        {"task_id": f"t{n}", FIELD: one if isinstance(one, str) else json.dumps(one)} for n, one in enumerate(told)
    )
    return {"dag": {"tasks": [{"__var": each} for each in fields]}}


def test_a_description_of_another_version_is_read_as_far_as_it_is_known() -> None:
    (found,) = _in_dag("d", dag({**GOOD, "invented": [1]}))
    assert found == FoundPipeline("d", "shop", "a", None, False, frozenset({"t0"}), "shop.yaml")


@pytest.mark.parametrize(
    "told",
    ["no JSON", "[]", "null", "1", {}, {**GOOD, "pipeline": 1}, {**GOOD, "source": {}}, {**GOOD, "in_place": None}],
)
def test_one_that_cannot_be_read_hides_no_other(told: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="airflow_provider_pgddl.page.pipelines"):
        assert [found.pipeline for found in _in_dag("d", dag(told, GOOD))] == ["shop"]
    assert "DAG d: task t0" in caplog.text


class Server:
    """It answers once it is `up`; who has asked before hears nothing until `end`."""

    def __init__(self) -> None:
        self.up, self.end = False, threading.Event()

    def __call__(self) -> str:
        if not self.up:
            assert self.end.wait(60)
        return "seen"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.end.set()


def test_a_look_that_never_ends_is_replaced_and_only_so_often(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(looks, "time", SimpleNamespace(monotonic=lambda: now))
    lookout = Lookout(0.01)

    def look() -> looks.Looked:
        return asyncio.run(lookout.look("journal", server))

    for tried in range(1, MOST_STUCK + 3):
        for _ in range(3):
            assert look().error == "has not answered within 0.01 s"
        assert lookout._running["journal"] == min(tried, MOST_STUCK)
        now += TOO_LONG + 1
    lookout.forget("journal")
    assert look().error and lookout._running["journal"] == MOST_STUCK
    server.end.set()
    for thread in threading.enumerate():
        if thread.name == "pgddl-page":
            thread.join()
    lookout._patience = 60
    assert look().seen == "seen"


def test_after_a_failover_the_page_recovers_by_itself(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(looks, "time", SimpleNamespace(monotonic=lambda: now))
    lookout = Lookout(0.01)
    assert asyncio.run(lookout.look("journal", server)).error
    server.up = True
    assert asyncio.run(lookout.look("journal", server)).error, "one that is under way is waited for"
    now += TOO_LONG + 1
    lookout._patience = 60
    assert asyncio.run(lookout.look("journal", server)).seen == "seen"
