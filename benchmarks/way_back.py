"""What the way back of a cut-over costs: writers on the new server, how far behind the old one is, and going back.

    python -m benchmarks way_back            20 s of pgbench a run, three rounds
    python -m benchmarks way_back --small    4 s, one round

Both servers flush each commit to disk. pgbench's tables are cut over from Postgres 16 to 18, once without a way back
and once with one by each capture. Then pgbench runs against 18, the ways in turn, each behind a replay of what the last
run has left. The old server's lag is that of a row which is written once a tenth of a second, while pgbench makes 500
transactions a second and replay runs again and again. The stall of going back is from when the fence goes up on the new
server until the old one takes writes.

What a way back adds to the stall of the cut-over itself is measured with fifty small tables, cut over without one and
with one in turn.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.way_back import way_back_of
from airflow_provider_pgddl.engine.stages import STAGES
from benchmarks.catch_up import DURABLE, create_database, pgbench
from benchmarks.report import Measure, Report

GOALS = {"change_log": 0.8, "wal": 0.95}
RATE = 500  # transactions a second, while lag is measured
LAG_GOAL, STALL_GOAL, GROWTH_GOAL = 1.0, 0.5, 0.05  # seconds
MANY = 50  # tables whose cut-over is timed
BEAT = 0.1  # seconds between two writes of the row whose lag is measured
TABLES = [f"public.{name}" for name in ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "beat")]


class Shop:
    """A database that was cut over, by `rows`; with a way back or without."""

    def __init__(self, old: Cluster, new: Cluster, name: str, rows: str, *, way_back: bool) -> None:
        self.old, self.new = create_database(old, name), create_database(new, name)
        pgbench(old, self.old, "-i", "-q", "-s", "10")
        with psycopg.connect(self.old) as conn:
            conn.execute("CREATE TABLE beat (id int PRIMARY KEY, at timestamptz NOT NULL)")
            conn.execute("INSERT INTO beat VALUES (1, now())")
        side = {end: f"PGDDL_BENCH_{end}_{name}".upper() for end in ("old", "new")}
        os.environ[side["old"]], os.environ[side["new"]] = self.old, self.new
        self.there: dict[str, Any] = {
            "pipeline": str(conninfo_to_dict(self.old)["dbname"]),
            "tables": {"include": TABLES, "schema_only": ["public.pgbench_history"]},
            "source": {"dsn": f"${{{side['old']}}}"},
            "target": {"dsn": f"${{{side['new']}}}"},
            "capture": {"rows": rows},
            "backfill": {"workers": 1},
            "replay": {"window_rows": 1_000_000},
            "swap": {"fence": "read_only", **({"way_back": f"{name}_back"} if way_back else {})},
        }
        for stage in STAGES[:-1]:
            stage_of(stage, self.there)
        self.back = way_back_of(load_pipeline(self.there)).to_json() if way_back else None

    def replay(self) -> None:
        if self.back is not None:
            stage_of("replay", self.back)


def stage_of(name: str, file: dict[str, Any]) -> dict[str, Any]:
    """The stage's figures."""
    with redirect_stderr(StringIO()):
        result = stages.run(Job(name, load_pipeline(file)))
    if result.blocked:
        raise SystemExit(f"{name}: {result.blocked}")
    return dict(result.figures)


def throughput(new: Cluster, shops: dict[str, Shop], seconds: int, rounds: int) -> dict[str, float]:
    """Transactions a second on the new server, by way; medians of the rounds."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for way, shop in shops.items():
            said = pgbench(new, shop.new, "-c", "8", "-j", "2", "-T", str(seconds), "-n")
            (tps,) = [float(line.split()[2]) for line in said.splitlines() if line.startswith("tps = ")]
            found.setdefault(way, []).append(tps)
            shop.replay()
    return {way: statistics.median(tps) for way, tps in found.items()}


@contextmanager
def beside(*works: Any) -> Iterator[None]:
    """Each work again and again in a thread of its own, until the block ends."""
    over = threading.Event()

    def again(work: Any) -> None:
        while not over.is_set():
            work()

    threads = [threading.Thread(target=again, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def lags(new: Cluster, shop: Shop, seconds: int) -> list[float]:
    """Seconds that the old server is behind, at moments that are a tenth of a second apart."""
    found: list[float] = []
    with (
        psycopg.connect(shop.new, autocommit=True) as writer,
        psycopg.connect(shop.old, autocommit=True) as reader,
    ):

        def beat() -> None:
            writer.execute("UPDATE beat SET at = clock_timestamp() WHERE id = 1")
            time.sleep(BEAT)

        def look() -> None:
            row = reader.execute("SELECT extract(epoch FROM clock_timestamp() - at) FROM beat").fetchone()
            assert row is not None
            found.append(float(row[0]))
            time.sleep(BEAT)

        with beside(beat, shop.replay):
            time.sleep(2)  # the first replay has a start of its own
            with beside(look):
                pgbench(new, shop.new, "-c", "8", "-j", "2", "-R", str(RATE), "-T", str(seconds), "-n")
    return found


def stall_of_cut_over(old: Cluster, new: Cluster, name: str, rows: str, *, way_back: bool) -> float:
    """Seconds from when the fence goes up on the old server until the new one takes writes."""
    dsns = {"old": create_database(old, name), "new": create_database(new, name)}
    with psycopg.connect(dsns["old"]) as conn:
        for n in range(MANY):
            conn.execute(f"CREATE TABLE t{n} (id int PRIMARY KEY, body text)".encode())
            conn.execute(f"INSERT INTO t{n} SELECT i, 'x' FROM generate_series(1, 100) i".encode())
    ends = {}
    for end, dsn in dsns.items():
        os.environ[variable := f"PGDDL_BENCH_{end}_{name}".upper()] = dsn
        ends[end] = {"dsn": f"${{{variable}}}"}
    file: dict[str, Any] = {
        "pipeline": name,
        "tables": {"include": ["public.*"]},
        "source": ends["old"],
        "target": ends["new"],
        "capture": {"rows": rows},
        "backfill": {"workers": 1},
        "swap": {"fence": "read_only", **({"way_back": f"{name}_back"} if way_back else {})},
    }
    for stage in STAGES[:-2]:
        stage_of(stage, file)
    return float(stage_of("swap", file)["fenced_ms"]) / 1000


def growth_of_stall(old: Cluster, new: Cluster, rounds: int) -> dict[str, tuple[float, float]]:
    """Stalls of the cut-over by capture, without a way back and with one; medians of the rounds."""
    found: dict[tuple[str, bool], list[float]] = {}
    for number in range(rounds):
        for rows in GOALS:
            for way_back in (False, True):
                name = f"many_{number}_{rows}_{way_back}".lower()
                stall = stall_of_cut_over(old, new, name, rows, way_back=way_back)
                found.setdefault((rows, way_back), []).append(stall)
    medians = {key: statistics.median(stalls) for key, stalls in found.items()}
    return {rows: (medians[rows, False], medians[rows, True]) for rows in GOALS}


def run(*, small: bool) -> Report:
    seconds, rounds = (4, 1) if small else (20, 3)
    with Cluster(16, settings=DURABLE) as old, Cluster(18, settings=DURABLE) as new:
        shops = {"no way back": Shop(old, new, "plain", "change_log", way_back=False)}
        shops |= {rows: Shop(old, new, f"by_{rows}", rows, way_back=True) for rows in GOALS}
        tps = throughput(new, shops, seconds, rounds)
        behind = {rows: lags(new, shops[rows], seconds) for rows in GOALS}
        growth, stalls = growth_of_stall(old, new, rounds), dict[str, float]()
        for rows in GOALS:
            back = shops[rows].back
            assert back is not None
            for stage in ("replay", "verify"):
                stage_of(stage, back)
            stalls[rows] = stage_of("swap", back)["fenced_ms"] / 1000
    report = Report(
        [
            Measure(
                f"pgbench on the new server, way back by {rows}",
                tps[rows],
                tps["no way back"],
                "no way back",
                goal,
                True,
                "tps",
            )
            for rows, goal in GOALS.items()
        ]
    )
    for rows in GOALS:
        what = f"{RATE} transactions/s, way back by {rows}"
        report.measures += [
            Measure(f"the old server's lag, median, {what}", statistics.median(behind[rows]), LAG_GOAL, "limit", 1.0),
            Measure(f"stall of going back, way back by {rows}", stalls[rows], STALL_GOAL, "limit", 1.0),
        ]
        without, with_one = growth[rows]
        report.measures.append(
            Measure(
                f"what a way back by {rows} adds to the stall of cutting {MANY} tables over",
                max(with_one - without, 0.0),
                GROWTH_GOAL,
                "limit",
                1.0,
            )
        )
        report.notes.append(
            f"The cut-over of {MANY} tables by {rows}: a stall of {without * 1000:.0f} ms without a way back, "
            f"{with_one * 1000:.0f} ms with one."
        )
    return report
