"""Chunks take no longer than they may: one that does is cancelled, cut, and still each row is copied exactly once."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import progress
from airflow_provider_pgddl.engine.journal.chunks import ChunkProgress, Chunks
from airflow_provider_pgddl.engine.parallel import spark
from airflow_provider_pgddl.engine.rows import chunks
from airflow_provider_pgddl.engine.stages import backfill
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.progress import CHUNKS_DONE
from tests.integration.sessions import one

WIDE = """
CREATE TABLE public.t (id integer PRIMARY KEY, v text NOT NULL);
INSERT INTO public.t SELECT i, repeat(md5(i::text), 30) FROM generate_series(1, 2500) i;
"""
SLOW = """
CREATE FUNCTION public.slow(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN PERFORM pg_sleep(0.001); RETURN 'n' || v; END $$;
"""
# Whether the chunks are all of the table's blocks, each once; and how many there are.
LEDGER = """
SELECT count(*), bool_and(done_at IS NOT NULL), sum(end_block - first_block), count(DISTINCT first_block),
       max(end_block)
FROM pgddl.chunks
"""
END_COPY = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '{}'"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "LONGEST", 0.6)


def check_ledger(move: Lifecycle) -> None:
    ((count, done, blocks, begins, end),) = move.journal(LEDGER)
    assert done
    assert count > 3
    assert (blocks, begins) == (end, count)


def test_in_place(
    source_dsn: str,
    lifecycle: Callable[..., Lifecycle],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    execute(source_dsn, WIDE + SLOW)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.05)
    alter = ["ALTER v TYPE text USING public.slow(v)"]
    move = lifecycle(source_dsn, rewrite={"public.t": {"alter": alter}}, backfill={"workers": 1})
    move.run_all(until="backfill")
    check_ledger(move)
    said = capsys.readouterr().out
    assert "and were read in parts" in said
    assert re.search(r"pgddl backfill: \d+/\d+ chunks, \S+ rows, \S+ rows/s, \d+:\d\d left; at public\.t\b", said), said
    differ = "SELECT count(*) FROM t FULL JOIN pgddl_copy_public.t c USING (id) WHERE c.v IS DISTINCT FROM 'n' || t.v"
    assert one(source_dsn, differ) == 0
    assert one(source_dsn, "SELECT count(*) FROM pgddl_copy_public.t") == 2500


def test_a_worker_that_is_lost_meanwhile_leaves_each_block_in_one_chunk(
    source_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(source_dsn, WIDE + SLOW)
    alter = ["ALTER v TYPE text USING public.slow(v)"]
    move = lifecycle(source_dsn, rewrite={"public.t": {"alter": alter}}, backfill={"workers": 1})
    move.run_all(until="snapshot")
    with ThreadPoolExecutor() as pool:
        for done in (1, 4, 9):  # the first of them while the only chunk has just been cut
            running = pool.submit(move.refused, "backfill")
            wait_until(lambda least=done: one(source_dsn, CHUNKS_DONE) >= least)  # type: ignore[misc]
            execute(source_dsn, END_COPY.format(f"pgddl:{move.name}:%:copy"))
            assert running.result(60).retryable
    move.run("backfill")
    check_ledger(move)
    assert one(source_dsn, "SELECT count(*) FROM pgddl_copy_public.t") == 2500
    assert one(source_dsn, "SELECT count(DISTINCT id) FROM pgddl_copy_public.t") == 2500


def test_over_a_slow_line(source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]) -> None:
    execute(source_dsn, WIDE)
    with slow_line(source_dsn, 1_500_000) as through:
        move = lifecycle(through, target_dsn, tables={"include": ["public.*"]}, backfill={"workers": 1})
        move.run_all(until="backfill")
        check_ledger(move)
    assert differences(source_dsn, target_dsn, [("public", "t")]) == []


@contextlib.contextmanager
def slow_line(dsn: str, rate: int) -> Iterator[str]:
    """The same server by a way that lets so many bytes a second through."""
    there = conninfo_to_dict(dsn)
    listener = socket.create_server(("127.0.0.1", 0))

    def forward(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(8192):
                time.sleep(len(data) / rate)
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((str(there["host"]), int(str(there["port"]))))
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=forward, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield make_conninfo(dsn, host="127.0.0.1", port=listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_waiting_for_spark_is_no_waiting_for_a_table(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers take longer than `ddl.retry_for`; then the first round finds every chunk claimed by others. Spark is
    played here, since how long it takes is not to be had from a real one."""
    execute(source_dsn, WIDE)
    move = lifecycle(
        source_dsn,
        target_dsn,
        tables={"include": ["public.t"]},
        backfill={"chunk_bytes": "64kB"},
        ddl={"retry_for": "1s"},
        spark={"begin": "at_once"},
    )
    move.run_all(until="snapshot")
    said: list[str] = []

    def started(app: str, *, workers: int, **_: Any) -> int:
        said.append(app)
        time.sleep(1.2)
        return workers

    def spread(work: Callable[[Any], Any], parts: Sequence[Any], **_: Any) -> list[Any]:
        said.append("round")
        return [] if said.count("round") == 1 else [work(part) for part in parts]

    monkeypatch.setattr(spark, "start", started)
    monkeypatch.setattr(spark, "spread", spread)
    move.run("backfill")
    assert said == [f"pgddl backfill {move.name}", "round"] * 2
    check_ledger(move)


@pytest.mark.parametrize("every", [3600.0, 0.0])
def test_a_backfill_without_workers_says_that_it_waits_for_them(
    source_dsn: str,
    target_dsn: str,
    lifecycle: Callable[..., Lifecycle],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    every: float,
) -> None:
    """Once in a while, and not that 0 of so many chunks are done."""
    execute(source_dsn, WIDE)
    small = {"workers": 1, "chunk_bytes": "64kB"}
    move = lifecycle(source_dsn, target_dsn, backfill=small, tables={"include": ["*.*"]})
    move.run_all(until="snapshot")
    looks, enough, look = list[int](), threading.Event(), Chunks.progress

    def looked(section: Chunks, ids: Sequence[int]) -> ChunkProgress:
        looks.append(len(looks))
        if len(looks) > 20:
            enough.set()
        return look(section, ids)

    def late(work: chunks.Share) -> chunks.ShareDone:
        assert enough.wait(30)
        waited.append(capsys.readouterr().out)
        return chunks.copy_chunks(work)

    waited = list[str]()
    monkeypatch.setattr(progress, "LINE_EVERY", 0.01)
    monkeypatch.setattr(backfill, "WAITING_EVERY", every)
    monkeypatch.setattr(Chunks, "progress", looked)
    monkeypatch.setattr(backfill, "copy_chunks", late)
    move.run("backfill")
    (said,) = waited
    assert "0/" not in said
    assert said.count("waiting for workers to begin: 0:") == 1 if every else said.count("waiting for workers") > 10
    assert differences(source_dsn, target_dsn) == []
