"""C36: windows take a bounded part of a log, giving way has an end, and who gets nowhere says so."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import GaveWay
from airflow_provider_pgddl.engine.rows import windows, yielding
from airflow_provider_pgddl.engine.stages import context, locks
from tests.integration.lifecycle import Lifecycle, wait_until
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for
from tests.integration.test_correctness import before_each

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
                    over.wait(max(0.0, began + every - time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - raised again at the end
            failed.append(error)

    writers = [
        (REFILL, 0.5),
        ("UPDATE storm SET n = n + 1 WHERE id = (SELECT last_value - floor(random() * 9000) FROM counted)", 0.01),
        ("DELETE FROM storm WHERE id = (SELECT last_value - floor(random() * 9000) FROM counted)", 0.01),
    ]
    threads = [threading.Thread(target=write, args=each, daemon=True) for each in writers]
    for thread in threads:
        thread.start()

    def stop() -> None:
        over.set()
        for thread in threads:
            thread.join(30)
        if failed:
            raise failed[0]

    try:
        yield stop
    finally:
        stop()


@pytest.mark.parametrize("rows", ["change_log", "direct_trigger"])
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
                results.append(running.finish(100))
            assert one(source_dsn, f"SELECT count(*) FROM {log}") < 600_000
    for result in results:  # swap.lock_timeout is 50 ms, and a look is every 200 ms
        assert result.figures["longest_wait_ms"] < 2000
    move.run_all(after="replay", until="swap")
    assert differences(source_dsn, source_dsn) == []
