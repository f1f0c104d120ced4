"""`replay.run_for`: one replay that stays with its source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import Cancelled, PgddlError
from airflow_provider_pgddl.engine.following import staying
from airflow_provider_pgddl.engine.stages import StageResult, cancel, pause, resume
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import one, rounds

SHOP = """
CREATE TABLE public.orders (id int PRIMARY KEY, note text);
CREATE TABLE public.quiet (id int PRIMARY KEY);
INSERT INTO public.orders SELECT i, 'o' || i FROM generate_series(1, 500) i;
"""

Make = Callable[..., Lifecycle]


@pytest.fixture
def make(lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str) -> Make:
    def made(**pipeline: Any) -> Lifecycle:
        execute(source_dsn, SHOP)
        followed = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **pipeline)
        followed.run_all(until="replay")
        return followed

    return made


class Staying:
    """A replay in a thread of its own; `ended` once it has."""

    def __init__(self, pipeline: Lifecycle, seconds: int) -> None:
        self.result: StageResult | None = None
        self.error: PgddlError | None = None
        self._pipeline, self._seconds = pipeline, seconds
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._pipeline.run("replay", replay={"run_for": f"{self._seconds}s"})
        except PgddlError as error:
            self.error = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> StageResult:
        self._thread.join(timeout=120)
        assert self.ended
        assert self.result is not None, self.error
        return self.result


@contextmanager
def writers(dsn: str) -> Iterator[list[int]]:
    """Rows that come, change and go, each in a transaction of its own; yields how many came."""
    stop, came = threading.Event(), [0]

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            for _ in rounds(stop, 0.01):
                number = came[0]
                conn.execute("INSERT INTO public.orders VALUES (%s, 'new')", [1000 + number])
                conn.execute("UPDATE public.orders SET note = %s WHERE id = %s", [str(number), number % 500])
                conn.execute("DELETE FROM public.orders WHERE id = %s", [990 + number])
                came[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield came
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_rows_and_ddl_come_while_it_stays(make: Make, rows: str) -> None:
    pipeline = make(capture={"rows": rows})
    ((before,),) = pipeline.journal("SELECT max(window_no) FROM pgddl.windows")
    stays = Staying(pipeline, 600)
    with writers(pipeline.source) as came:
        wait_until(lambda: one(pipeline.target, "SELECT max(id) FROM public.orders") > 1000)
        execute(pipeline.source, "ALTER TABLE public.orders ADD more text; UPDATE public.orders SET more = 'm'")
        execute(pipeline.source, "CREATE TABLE public.late (id int PRIMARY KEY); INSERT INTO public.late VALUES (7)")
        there = "SELECT count(*) FROM pg_attribute WHERE attname = 'more' AND attrelid = 'public.orders'::regclass"
        wait_until(lambda: one(pipeline.target, there) == 1)
        wait_until(lambda: one(pipeline.target, "SELECT to_regclass('public.late') IS NOT NULL"))
        wait_until(lambda: one(pipeline.target, "SELECT count(*) FROM public.late") == 1)
    wait_until(lambda: one(pipeline.target, "SELECT max(id) FROM public.orders") == 999 + came[0])
    wait_until(lambda: differences(pipeline.source, pipeline.target) == [])
    assert not stays.ended
    cancel(pipeline.job("replay").pipeline, pipeline.target)
    wait_until(lambda: stays.ended)
    assert isinstance(stays.error, Cancelled)
    assert pipeline.journal("SELECT count(*) > 3 FROM pgddl.windows WHERE window_no > %s", [before]) == [(True,)]


def test_where_nothing_changes_it_asks_and_opens_no_window(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = make()
    execute(pipeline.source, "INSERT INTO public.orders VALUES (9999, 'before')")
    monkeypatch.setattr(staying, "PAUSE", 0.05)
    asked, ask = [0], staying._may_have_news

    def counted(context: Any) -> bool:
        asked[0] += 1
        return ask(context)

    monkeypatch.setattr(staying, "_may_have_news", counted)
    result = Staying(pipeline, 5).end()
    assert (result.state, result.figures["keys"], result.figures["rows"]) == ("done", 1, 1)
    assert result.figures["windows"] <= 4
    assert asked[0] > result.figures["windows"]


def test_it_holds_and_ends_as_it_is_told(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = make()
    told = pipeline.job("replay").pipeline
    stays = Staying(pipeline, 60)
    execute(pipeline.source, "INSERT INTO public.orders VALUES (2001, 'first')")
    wait_until(lambda: one(pipeline.target, "SELECT count(*) FROM public.orders WHERE id = 2001") == 1)
    pause(told, pipeline.target, "tea")
    wait_until(lambda: "tea" in capsys.readouterr().out)
    execute(pipeline.source, "INSERT INTO public.orders VALUES (2002, 'then')")
    assert one(pipeline.target, "SELECT count(*) FROM public.orders WHERE id = 2002") == 0
    resume(told, pipeline.target)
    wait_until(lambda: one(pipeline.target, "SELECT count(*) FROM public.orders WHERE id = 2002") == 1)
    cancel(told, pipeline.target)
    wait_until(lambda: stays.ended)
    assert isinstance(stays.error, Cancelled)
    assert not pipeline.run("replay").blocked
