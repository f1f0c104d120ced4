"""The last windows, behind a fence, beside a writer whose operation is a TRUNCATE: it is tried again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.server.giving_way import LOOK_EVERY
from tests.failpoints import At, once
from tests.integration.lifecycle import wait_until
from tests.integration.sessions import Underway, do, one
from tests.integration.swaps.pipelines import Make, has_cut_over

WAITS = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
READ = """
SELECT count(*) > 0 FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.granted AND l.relation = 'shop.child'::regclass AND a.application_name LIKE '%:window'
"""


@contextmanager
def truncating(dsn: str) -> Iterator[threading.Thread]:
    """Yields the writer, to be started."""
    over = threading.Event()

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            while not over.is_set():
                try:
                    conn.execute("TRUNCATE shop.child")
                except (pg.ReadOnlySqlTransaction, pg.LockNotAvailable):
                    over.wait(0.02)
                else:
                    return

    thread = threading.Thread(target=write, daemon=True)
    try:
        yield thread
    finally:
        over.set()
        if thread.ident is not None:
            thread.join(120)


@pytest.mark.parametrize("fence", ["read_only", "lock"])
def test_c36_the_last_windows_get_through(shop: Make, at: At, fence: str) -> None:
    """Windows over many tables take longer than a writer may usually wait, however little they take of a log."""
    move = shop(swap={"fence": fence})
    move.run_all(until="verify")
    late = "INSERT INTO shop.child SELECT n, 1 + n % 20, 'late' FROM generate_series(100, 120) n"
    with truncating(move.source) as writer:

        def met(_: int) -> None:
            if not one(move.source, READ):
                return  # nothing of it is left
            wait_until(lambda: one(move.source, WAITS) or not writer.is_alive())
            seen = time.monotonic()
            wait_until(lambda: time.monotonic() - seen > 1.3 * LOOK_EVERY, every=0.01)

        at("cut_over.before_fence", once(lambda: do(move.source, late)))

        def behind() -> None:
            writer.start()
            at("replay.after_snapshot", met, perhaps=True)

        at("cut_over.behind_fence", once(behind))
        at("cut_over.before_target", lambda _: at("replay.after_snapshot", perhaps=True))
        with Underway(lambda: move.run("swap")) as swap:
            swap.finish(240)
        assert has_cut_over(move)
    assert differences(move.source, move.target) == []
