"""Assets: how tables are named, and that a stage that is done stays so whatever comes of telling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_pgddl.assets import alias, place, uri
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import StageResult
from airflow_provider_pgddl.operators import base
from airflow_provider_pgddl.operators.stages import PgddlStagesOperator


@pytest.mark.parametrize(
    ("conninfo", "server"),
    [
        ("host=db18 dbname=shop", "postgres://db18:5432"),
        ("host=a,b port=6000,6001 dbname=shop", "postgres://a:6000"),
        ("host=/run/postgresql dbname=shop", "postgres://localhost:5432"),
        ("hostaddr=10.0.0.1 dbname=shop", "postgres://10.0.0.1:5432"),
        ("host=::1 dbname=shop port=6000", "postgres://[::1]:6000"),
        ("postgresql://u@[fd12::5]/shop", "postgres://[fd12::5]:5432"),
        ("hostaddr=fe80::1%eth0 dbname=shop", "postgres://[fe80::1%eth0]:5432"),
    ],
)
def test_a_server_is_named_so_that_airflow_takes_it(conninfo: str, server: str) -> None:
    assert place(conninfo, "app", "orders") == (server, "shop.app.orders")
    assert Asset(uri(conninfo, "app", "orders")).uri == f"{server}/shop/app/orders"


SHOP: Any = {
    "pipeline": "shop",
    "source": {"conn_id": "a"},
    "target": {"conn_id": "b"},
    "tables": {"include": ["app.*"]},
}
TARGET = "host=db18 dbname=shop"
DONE = [StageResult(stage, "shop", 7, "nothing_to_do") for stage in ("verify", "swap")]


remembered: dict[str, str] = {}


class Journal(SimpleNamespace):
    """Of a run with two tables, one of which was compared whole."""

    def __init__(self, _conn: object, pipeline: str) -> None:
        named = [SimpleNamespace(id=n, schema="app", name=name, qualified=f"app.{name}") for n, name in enumerate("xy")]
        compared = {0: SimpleNamespace(rows=5, ranges_left=0)}
        super().__init__(
            pipeline=pipeline,
            stage_runs=SimpleNamespace(untold=lambda *_: {"app.x": {}}),
            schema=SimpleNamespace(shown_last=remembered.get, shown=remembered.__setitem__),
            tables=SimpleNamespace(of=lambda run: named if run == 7 else []),
            verification=SimpleNamespace(of_tables=lambda _: compared),
        )


@contextmanager
def no_session(_dsn: str, **_: Any) -> Iterator[None]:
    yield None


@pytest.fixture
def swap(monkeypatch: pytest.MonkeyPatch) -> PgddlStagesOperator:
    remembered.clear()
    monkeypatch.setattr(base, "connect", no_session)
    monkeypatch.setattr(base, "Journal", Journal)
    return PgddlStagesOperator(task_id="swap", pipeline=SHOP, stages="verify..cleanup")


def told(swap: PgddlStagesOperator, try_number: int) -> dict[str, dict[str, Any]]:
    events = OutletEventAccessors()
    context: Any = {"task": swap, "outlet_events": events, "ti": SimpleNamespace(try_number=try_number)}
    swap._tell_again(DONE, load_pipeline(SHOP), TARGET, context)
    return {event.dest_asset_key.uri: event.extra for event in events[alias("shop")].asset_alias_events}


def test_a_retry_that_finds_the_swap_done_tells_of_it(swap: PgddlStagesOperator) -> None:
    about = {"pipeline": "shop", "run": 7, "stage": "swap"}
    assert told(swap, 2) == {
        "postgres://db18:5432/shop/app/x": {**about, "rows": 5},
        "postgres://db18:5432/shop/app/y": about,
    }
    assert told(swap, 1) == {}, "somebody else's swap"


def test_what_airflow_refuses_is_logged_and_fails_no_stage(
    swap: PgddlStagesOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(swap.log, "warning", lambda text, *given: said.append(text % given))
    monkeypatch.setattr(base.assets, "uri", lambda *_: "postgres://fd12::5:5432/shop/app/x")
    assert told(swap, 2) == {}
    assert said and "no DAG starts on what swap has changed: ValueError" in said[0]


def test_a_journal_that_is_away_is_worth_another_try(
    swap: PgddlStagesOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> str:
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(base.assets, "uri", away)
    with pytest.raises(psycopg.OperationalError):
        told(swap, 2)


@pytest.mark.parametrize(
    ("blocked", "uri_of", "on_blocked", "marked"),
    [
        ([], None, "skip", {"assets of swap": "job"}),
        ([{"table": "app.x"}], None, "go_on", {"assets of swap": "job"}),
        ([{"table": "app.x"}], None, "skip", {}),
        ([], "postgres://fd12::5:5432/x/y/z", "skip", {}),
    ],
)
def test_the_journal_remembers_what_airflow_has_been_told(
    blocked: list[Any], uri_of: str | None, on_blocked: Any, marked: dict[str, str], swap: PgddlStagesOperator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if uri_of is not None:
        monkeypatch.setattr(base.assets, "uri", lambda *_: uri_of)
    swap.on_blocked = on_blocked
    ti = SimpleNamespace(try_number=1, max_tries=3)
    context: Any = {"task": swap, "outlet_events": OutletEventAccessors(), "ti": ti}
    job: Any = SimpleNamespace(id="job", stage="swap", pipeline=SimpleNamespace(pipeline="shop"))
    swap._tell_assets(None, job, {"run": 7, "blocked": blocked}, TARGET, context)  # type: ignore[arg-type]
    assert remembered == marked
