"""The files of change logs: what has waited in them for long does not keep windows slow for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.following import log_room, staying
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import Underway, one

SHOP = """
CREATE TABLE public.orders (id int PRIMARY KEY, note text);
INSERT INTO public.orders SELECT i, 'o' || i FROM generate_series(1, 20000) i;
"""

Make = Callable[..., Lifecycle]


@pytest.fixture
def make(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> Make:
    monkeypatch.setattr(log_room, "LARGE", 1 << 20)

    def made(**pipeline: Any) -> Lifecycle:
        execute(source_dsn, SHOP)
        target = None if "rewrite" in pipeline else target_dsn
        tables = {} if "rewrite" in pipeline else {"tables": {"include": ["public.*"]}}
        followed = lifecycle(source_dsn, target, **tables, **pipeline)
        followed.run_all(until="replay")
        return followed

    return made


def _logs_dsn(pipeline: Lifecycle) -> str:
    return pipeline.target if pipeline.content.get("capture", {}).get("rows") == "wal" else pipeline.source


def _log(pipeline: Lifecycle) -> str:
    ((name,),) = pipeline.journal("SELECT log_table FROM pgddl.tables WHERE table_name = 'orders'")
    return f"pgddl.{name}"


def _size(pipeline: Lifecycle) -> int:
    return int(one(_logs_dsn(pipeline), f"SELECT pg_relation_size('{_log(pipeline)}')"))


def _change_all(pipeline: Lifecycle, times: int = 2) -> None:
    for _ in range(times):
        execute(pipeline.source, "UPDATE public.orders SET note = note || '!'")


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_a_log_that_was_taken_gives_its_room_back(make: Make, rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = make(capture={"rows": rows})
    _change_all(pipeline)
    if rows == "change_log":
        assert _size(pipeline) > 1 << 20
    pipeline.run("replay")
    assert _size(pipeline) < 1 << 16
    assert "public.orders: its change log has given" in capsys.readouterr().out
    pipeline.run("verify")
    pipeline.run("swap")
    assert differences(pipeline.source, pipeline.target) == []


def test_in_place_as_well(make: Make) -> None:
    pipeline = make(rewrite={"public.orders": {}})
    _change_all(pipeline)
    pipeline.run("replay")
    assert _size(pipeline) < 1 << 16


def test_what_is_in_it_stays(make: Make) -> None:
    """Changes that nobody sees yet stand at the end of the file, and others come while it is cut short."""
    pipeline = make()
    _change_all(pipeline)
    with psycopg.connect(pipeline.source) as late:
        late.execute("UPDATE public.orders SET note = 'late' WHERE id <= 10")
        with psycopg.connect(pipeline.source, autocommit=True) as conn:
            with Underway(lambda: pipeline.run("replay")) as replay:
                number = 0
                while not replay.over:
                    number += 1
                    conn.execute("UPDATE public.orders SET note = %s WHERE id = %s", [str(number), 100 + number % 1000])
                replay.finish()
        late.commit()
    pipeline.run("replay")
    assert differences(pipeline.source, pipeline.target) == []
    assert one(pipeline.target, "SELECT count(*) FROM public.orders WHERE note = 'late'") == 10


def test_a_replay_that_stays_does_so_now_and_then(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staying, "ROOM_EVERY", 0.1)
    monkeypatch.setattr(log_room, "NOT_AGAIN_FOR", 0)
    pipeline = make()
    with Underway(lambda: pipeline.run("replay", replay={"run_for": "10s"})) as replay:
        for _ in range(2):
            _change_all(pipeline)
            wait_until(lambda: _size(pipeline) > 1 << 20)
            wait_until(lambda: _size(pipeline) < 1 << 16)
        replay.finish()
    assert differences(pipeline.source, pipeline.target) == []


def test_a_log_that_grows_again_at_once_is_left_alone_for_a_while(make: Make) -> None:
    pipeline = make()
    for _ in range(2):
        _change_all(pipeline)
        pipeline.run("replay")
    assert _size(pipeline) > 1 << 20
