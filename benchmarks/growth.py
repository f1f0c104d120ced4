"""What more rows, tables and workers cost: seconds per million rows and per table, memory, the oldest transaction.

    python -m benchmarks growth            0.5 to 10 million rows, 10 to 5,000 tables, 1 to 8 workers
    python -m benchmarks growth --small    50,000 and 100,000 rows, 10 and 30 tables, 1 and 2 workers

Between an embedded Postgres 16 and 18, the stages from setup to verify in a process of their own, which is the driver:
where there is enough to spread it starts Spark, whose workers are its descendants. The cost of a row, or of a table, is
held against the cheapest of the smaller sizes; a goal of 1.25 is what is called flat here. Meanwhile another session
asks the source for our oldest transaction, and /proc is asked for the memory of the driver, its JVM and its Python
workers. 5,000 tables are moved once more with twenty chunks each, 100,000 of them; and the most rows once more with a
key of random text, whose order is none that the rows lie in.

`queries` counts the statements that a backfill in this process sends to the journal's database, per chunk.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster, clusters
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from benchmarks.report import Measure, Report

UNTIL_VERIFY = ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify")
FLAT = 1.25
OLDEST_LIMIT = 30.0  # seconds that a transaction of ours may be open on the source
DRIVER_LIMIT, WORKER_LIMIT = 1024.0, 200.0  # MiB
SAMPLE_EVERY = 0.1  # seconds
BLOCK, CHUNKS_A_TABLE = 8192, 20

WIDE = """
CREATE TABLE public.item (
    id bigint PRIMARY KEY, customer integer NOT NULL, state text NOT NULL, total numeric(12, 2), placed_at timestamptz,
    token uuid NOT NULL, note text)
"""
ROWS = """
INSERT INTO public.item
SELECT n, n % 100000, 'paid', (n % 1000000) / 100.0, '2024-01-01'::timestamptz + n * interval '7 seconds',
       md5(n::text)::uuid, repeat('note ', n % 9)
FROM generate_series({}, {}) n
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """One run: seconds by stage, peak memory in MiB, and how long our oldest transaction on the source was open."""

    seconds: dict[str, float]
    driver: float
    jvm: float
    worker: float
    oldest: float

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def run(*, small: bool) -> Report:
    rows = (50_000, 100_000) if small else (500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000)
    tables = (10, 30) if small else (10, 100, 1_000, 5_000)
    chunked = (10, 30) if small else (250, 5_000)  # tables
    workers = (1, 2) if small else (1, 2, 4, 8)
    report = Report()
    with clusters(16, 18) as (old, new):
        by_rows = {n: cost(old, new, f"rows_{n}", lambda dsn, n=n: make_rows(dsn, n), workers=2) for n in rows}  # type: ignore[misc]
        flat(report, by_rows, "a million rows", 1_000_000)
        scattered = cost(old, new, "scattered", lambda dsn: make_scattered(dsn, rows[-1]), workers=2)
        by_tables = {n: cost(old, new, f"tables_{n}", lambda dsn, n=n: make_tables(dsn, n), workers=2) for n in tables}  # type: ignore[misc]
        flat(report, by_tables, "a table", 1)
        by_chunks = {
            n * CHUNKS_A_TABLE: cost(
                old,
                new,
                f"chunks_{n}",
                lambda dsn, n=n: make_chunks(dsn, n),
                workers=2,  # type: ignore[misc]
                chunk_bytes=BLOCK,
            )
            for n in chunked
        }
        fewer, chunks = by_chunks
        report.measures.append(
            Measure(
                f"backfill of a chunk with {chunks:,}",
                by_chunks[chunks].seconds["backfill"] / chunks * 1000,
                by_chunks[fewer].seconds["backfill"] / fewer * 1000,
                f"with {fewer:,}",
                FLAT,
                unit="ms",
            )
        )
        size = rows[-2]
        by_workers = {n: cost(old, new, f"workers_{n}", lambda dsn: make_rows(dsn, size), workers=n) for n in workers}
        one = by_workers[workers[0]].seconds["backfill"]
        report.measures += [
            Measure(f"backfill of {size:,} rows, {n} workers", c.seconds["backfill"], one, "1 worker")
            for n, c in by_workers.items()
            if n > 1
        ]
    with Cluster(16) as old, Cluster(18, settings={"log_statement": "all"}) as new:
        queries = [queries_of_a_chunk(old, new, n) for n in ((20, 40) if small else (100, 1_000))]
        report.measures.append(
            Measure("statements to the journal a chunk", queries[1], queries[0], "with fewer chunks", FLAT, unit="")
        )
    everything = [*by_rows.values(), scattered, *by_tables.values(), *by_chunks.values(), *by_workers.values()]
    report.measures += [
        Measure("oldest transaction on the source", max(c.oldest for c in everything), OLDEST_LIMIT, "limit", 1.0),
        Measure("memory of the driver", max(c.driver for c in everything), DRIVER_LIMIT, "limit", 1.0, unit="MiB"),
        Measure("memory of the driver and its JVM", max(c.driver + c.jvm for c in everything), DRIVER_LIMIT, "limit",
                1.0, unit="MiB"),
        Measure("memory of a worker", max(c.worker for c in everything), WORKER_LIMIT, "limit", 1.0, unit="MiB"),
    ]  # fmt: skip
    report.notes += [f"{n:,} rows: {told(c)}" for n, c in by_rows.items()]
    report.notes.append(f"{rows[-1]:,} rows, random text as key: {told(scattered)}")
    report.notes += [f"{n:,} tables: {told(c)}" for n, c in by_tables.items()]
    report.notes += [f"{n // CHUNKS_A_TABLE:,} tables, {n:,} chunks: {told(c)}" for n, c in by_chunks.items()]
    report.notes += [f"{size:,} rows, {n} workers: {told(c)}" for n, c in by_workers.items()]
    return report


def told(cost: Cost) -> str:
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in cost.seconds.items())
    return (
        f"{stages} s; oldest transaction {cost.oldest:.1f} s; driver {cost.driver:.0f} MiB, its JVM {cost.jvm:.0f}, "
        f"a worker {cost.worker:.0f}"
    )


def flat(report: Report, costs: dict[int, Cost], what: str, unit: int) -> None:
    """Each size beside the cheapest of the smaller ones: the smallest has little but what a stage costs by itself."""
    each = {n: cost.total / n * unit for n, cost in costs.items()}
    for n in list(each)[1:]:
        cheapest = min((smaller for smaller in each if smaller < n), key=lambda m: each[m])
        report.measures.append(
            Measure(f"cost of {what} with {n:,}", each[n], each[cheapest], f"with {cheapest:,}", FLAT)
        )


def cost(old: Cluster, new: Cluster, name: str, make: Callable[[str], None], *, workers: int, **backfill: int) -> Cost:
    source, target = database(old, name), database(new, name)
    make(source)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process, watched(old, name) as seen:
        driver = process.submit(os.getpid).result()
        seen.driver = driver
        seconds = process.submit(move, name, source, target, workers, backfill).result()
    for cluster in (old, new):
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    print(
        f"{name}: {', '.join(f'{stage} {took:.1f}' for stage, took in seconds.items())} s", file=sys.stderr, flush=True
    )
    return Cost(seconds, seen.peak_driver, seen.peak_jvm, seen.peak_worker, seen.oldest)


def move(name: str, source: str, target: str, workers: int, backfill: dict[str, int]) -> dict[str, float]:
    """Every stage until verify; seconds by stage."""
    file, found = load_pipeline(content(name, source, target, workers, **backfill)), {}
    for stage in UNTIL_VERIFY:
        started = time.perf_counter()
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere), redirect_stdout(nowhere):
            result = stages.run(Job(stage, file))
        if result.blocked:
            raise RuntimeError(f"{stage}: {result.blocked[0]}")
        found[stage] = time.perf_counter() - started
    return found


def content(name: str, source: str, target: str, workers: int, **backfill: Any) -> dict[str, Any]:
    os.environ["PGDDL_BENCH_SOURCE"], os.environ["PGDDL_BENCH_TARGET"] = source, target
    return {
        "pipeline": name, "tables": {"include": ["public.*"]}, "capture": {"ddl": "off"},
        "source": {"dsn": "${PGDDL_BENCH_SOURCE}"}, "target": {"dsn": "${PGDDL_BENCH_TARGET}"},
        "backfill": {"workers": workers, **backfill},
    }  # fmt: skip


class Watched:
    """What was seen at most."""

    driver = 0
    peak_driver = peak_jvm = peak_worker = oldest = 0.0


@contextmanager
def watched(source: Cluster, database: str) -> Iterator[Watched]:
    """Meanwhile the source's oldest transaction of ours, and the memory of the driver and its Python workers."""
    seen, over = Watched(), threading.Event()
    oldest = (
        "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 FROM pg_stat_activity"
        " WHERE datname = %s AND application_name LIKE 'pgddl:%%'"
    )

    def watch() -> None:
        with psycopg.connect(source.conninfo(), autocommit=True) as conn:
            while not over.wait(SAMPLE_EVERY):
                row = conn.execute(oldest, [database]).fetchone()
                seen.oldest = max(seen.oldest, row[0] if row else 0.0)
                if seen.driver:
                    seen.peak_driver = max(seen.peak_driver, memory(seen.driver))
                    seen.peak_jvm = max([seen.peak_jvm, *map(memory, descendants(seen.driver, b"java"))])
                    seen.peak_worker = max(
                        [seen.peak_worker, *map(memory, descendants(seen.driver, b"pyspark.daemon"))]
                    )

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def memory(pid: int) -> float:
    """The most that a process has had, in MiB; 0 where it has ended or the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def descendants(driver: int, running: bytes) -> list[int]:
    """Processes below the driver with `running` in their program or their arguments."""
    parents, found = dict[int, int](), list[int]()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if running in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # it has ended just now
    return [pid for pid in found if driver in ancestors(pid, parents)]


def ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid


def queries_of_a_chunk(old: Cluster, new: Cluster, chunks: int) -> float:
    """Statements that the target gets during a backfill of about so many chunks, for each of them."""
    name = f"chunks_{chunks}"
    source, target = database(old, name), database(new, name)
    make_rows(source, chunks * 1_000)
    file = load_pipeline(content(name, source, target, 1, chunk_bytes=100_000))
    for stage in UNTIL_VERIFY[:3]:
        before = statements(new)
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere), redirect_stdout(nowhere):
            done = stages.run(Job(stage, file))
    return (statements(new) - before) / int(done.figures["chunks"])


def statements(cluster: Cluster) -> int:
    """Statements that the server has logged so far."""
    lines = cluster.log.read_text(errors="replace").splitlines()
    return sum(" LOG:  statement: " in line or " LOG:  execute " in line for line in lines)


def database(cluster: Cluster, name: str) -> str:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return cluster.conninfo(name)


def make_rows(dsn: str, rows: int) -> None:
    _make_rows(dsn, rows, WIDE, ROWS)


def make_scattered(dsn: str, rows: int) -> None:
    """Rows that do not lie in the order of their key."""
    _make_rows(
        dsn,
        rows,
        "CREATE TABLE public.item (code text PRIMARY KEY, total numeric(12, 2), note text)",
        "INSERT INTO public.item SELECT md5(n::text), n / 100.0, repeat('note ', n % 9) FROM generate_series({}, {}) n",
    )


def _make_rows(dsn: str, rows: int, table: LiteralString, some: LiteralString) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(table)
        for first in range(1, rows + 1, 500_000):
            conn.execute(sql.SQL(some).format(first, min(first + 499_999, rows)))
        conn.execute("VACUUM ANALYZE public.item")


def make_tables(dsn: str, count: int) -> None:
    _make_tables(dsn, count, "'n' || n", 10)


def make_chunks(dsn: str, count: int) -> None:
    """Tables each row of which fills a block, which is the least that a chunk can be."""
    _make_tables(dsn, count, "repeat('n', 5000) || n", CHUNKS_A_TABLE)


def _make_tables(dsn: str, count: int, name: LiteralString, rows: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for n in range(count):
            table = sql.Identifier(f"t_{n}")
            conn.execute(
                sql.SQL(
                    "CREATE TABLE {} (id int PRIMARY KEY, name text STORAGE PLAIN NOT NULL, place int NOT NULL UNIQUE,"
                    " at timestamptz DEFAULT now())"
                ).format(table)
            )
            insert = sql.SQL("INSERT INTO {} SELECT n, {}, -n FROM generate_series(1, {}) n")
            conn.execute(insert.format(table, sql.SQL(name), rows))
