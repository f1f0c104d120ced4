"""C36: a table that is truncated all the time is followed all the same, by trigger and by slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.capture import kept_stream, slot_stream
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import Underway, do, one

Make = Callable[..., Lifecycle]

STORM = """
    CREATE TABLE storm (id bigint PRIMARY KEY, body text, n int);
    CREATE SEQUENCE counted;
    INSERT INTO storm SELECT nextval('counted'), 'row', 0 FROM generate_series(1, 9000)
"""
REFILL = "TRUNCATE storm; INSERT INTO storm SELECT nextval('counted'), 'row', 0 FROM generate_series(1, 9000)"


@contextmanager
def storm(dsn: str) -> Iterator[Callable[[], None]]:
    """Three writers: one truncates and refills twice a second, two write rows all the time. Yields what stops them."""
    over, failed = threading.Event(), list[BaseException]()

    def write(statement: str, every: float) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                while not over.is_set():
                    began = time.monotonic()
                    conn.execute(statement.encode())
                    took = time.monotonic() - began
                    over.wait(max(every - took, 4 * took))  # a machine that is slow is so for both sides
        except BaseException as error:  # noqa: BLE001 - raised again at the end
            failed.append(error)

    some = "id = (SELECT last_value - floor(random() * 9000)::bigint FROM counted)"  # by the index
    writers = [
        (REFILL, 0.5),
        (f"UPDATE storm SET n = n + 1 WHERE {some}", 0.01),
        (f"DELETE FROM storm WHERE {some}", 0.01),
    ]
    threads = [threading.Thread(target=write, args=each, daemon=True) for each in writers]
    for thread in threads:
        thread.start()

    def stop() -> None:
        over.set()
        for thread in threads:
            thread.join(120)
        if failed:
            raise failed[0]

    try:
        yield stop
    finally:
        stop()


@pytest.mark.parametrize("rows", matrix("change_log", "direct_trigger"))
def test_c36_a_table_that_is_truncated_twice_a_second_is_followed(source_dsn: str, lifecycle: Make, rows: str) -> None:
    """All that its log shows takes longer to take than there is between two TRUNCATEs."""
    do(source_dsn, STORM)
    move = lifecycle(source_dsn, rewrite={"public.storm": {}}, capture={"rows": rows})
    move.run_all(until="backfill")
    do(source_dsn, "INSERT INTO storm SELECT nextval('counted'), 'row', 0 FROM generate_series(1, 300000)",
       "DELETE FROM storm")  # fmt: skip
    log = f"pgddl.{move.journal('SELECT log_table FROM pgddl.tables')[0][0]}"
    results = []
    with storm(source_dsn):
        for stage in ("schema_sync", "replay"):
            with Underway(lambda stage=stage: move.run(stage)) as running:
                results.append(running.finish(400))
            assert one(move.target, f"SELECT count(*) FROM {log}") < 600_000
    for result in results:  # swap.lock_timeout is 50 ms, and a look is every 200 ms
        assert result.figures.get("longest_wait_ms", 0) < 2000
    move.run_all(after="replay", until="swap")
    assert differences(move.source, move.target) == []


def test_c36_so_is_one_by_a_slot_while_an_old_transaction_is_open(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens the slot has all decoded that came since that transaction began: no window may have to."""
    opened, begin = list[float](), slot_stream.SlotStream.__enter__

    def counted(stream: slot_stream.SlotStream) -> slot_stream.SlotStream:
        opened.append(time.monotonic())
        return begin(stream)

    monkeypatch.setattr(slot_stream.SlotStream, "__enter__", counted)
    monkeypatch.setattr(kept_stream, "LEFT_ALONE", 1000.0)
    do(source_dsn, STORM, "CREATE TABLE elsewhere (id int)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.storm"]}, capture={"rows": "wal"},
                     replay={"run_for": "3s"})  # fmt: skip
    move.run_all(until="backfill")
    with storm(source_dsn), psycopg.connect(source_dsn) as old:
        old.execute("INSERT INTO elsewhere VALUES (1)")
        for stage in ("schema_sync", "replay"):
            opened.clear()
            with Underway(lambda stage=stage: move.run(stage)) as running:
                running.finish(400)
            assert len(opened) == 1
    move.run_all(after="replay", until="swap")
    assert not [d for d in differences(move.source, move.target) if d.table != "elsewhere"]
