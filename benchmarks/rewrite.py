"""A whole rewrite in place beside pg_repack, psycopack and CREATE TABLE AS, and what writers notice of each.

    python -m benchmarks rewrite            5,000,000 rows, three rounds
    python -m benchmarks rewrite --small    500,000 rows, one round

One table with three indexes, the same rows in a database of its own for every way, all on one Postgres 15 (Debian's,
for pg_repack's extension; the embedded 16 where that is not installed, and then without pg_repack). While the table is
rewritten, pgbench updates its rows at a fixed rate; the stall is the longest of its transactions, from when it was due.

ours       every stage from setup to cleanup in this process
command    the same as a user types it, `pgddl run setup..cleanup`, with spark-submit, a JVM and its start
unverified the same without verify, as nobody else compares the rows
repack     pg_repack with two jobs (apt-get install postgresql-15 postgresql-15-repack)
psycopack  Psycopack(...).full() (pip install psycopack)
by hand    CREATE TABLE AS and the indexes, which loses what is written meanwhile: what the bytes alone cost
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import STAGES
from benchmarks.report import DEBIAN_15, PG_REPACK, Measure, Report, version

OURS = ("ours", "command", "unverified")
GOALS = {("unverified", "repack"): 1.0, ("command", "repack"): 1.4, ("command", "psycopack"): 1 / 3}
TOLD = {
    "ours": ", in one process",
    "command": ", one command",
    "unverified": ", one command without verify",
}
STALL_LIMIT = 100.0  # milliseconds
RATE = 200  # transactions a second
SHAPE = """
CREATE TABLE item (
    id integer PRIMARY KEY, customer integer NOT NULL, state text NOT NULL, total numeric(12, 2),
    placed_at timestamptz NOT NULL, token uuid NOT NULL, note text);
INSERT INTO item
SELECT n, (n * 7919::bigint) %% 100000, (ARRAY['new', 'paid', 'sent'])[1 + n %% 3], (n %% 1000000) / 100.0,
       '2024-01-01'::timestamptz + n * interval '7 seconds', md5(n::text)::uuid, repeat('note ', n %% 9)
FROM generate_series(1, %s) n;
CREATE INDEX item_customer ON item (customer);
CREATE INDEX item_placed_at ON item (placed_at);
"""
FILE = {"source": {"dsn": "${PGDDL_BENCH_SOURCE}"}, "rewrite": {"public.item": {}}, "capture": {"ddl": "off"}}


def pipeline(dsn: str) -> dict[str, Any]:
    os.environ["PGDDL_BENCH_SOURCE"] = dsn
    return {"pipeline": str(conninfo_to_dict(dsn)["dbname"]), **FILE}


def ours(_: Cluster, dsn: str) -> None:
    file = load_pipeline(pipeline(dsn))
    for name in STAGES:
        with redirect_stderr(StringIO()):
            result = stages.run(Job(name, file))
        if result.blocked:
            raise SystemExit(f"{name}: {result.blocked}")


def command(_: Cluster, dsn: str, stages: str = "setup..cleanup", **keys: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="pgddl-bench-") as folder:
        file = Path(folder, "item.yaml")
        file.write_text(json.dumps(pipeline(dsn) | keys))
        command = [sys.executable, "-m", "airflow_provider_pgddl.cli", "run", stages, "-p", str(file), "--json"]
        subprocess.run(command, check=True, capture_output=True)


def unverified(cluster: Cluster, dsn: str) -> None:
    command(cluster, dsn, ",".join(stage for stage in STAGES if stage != "verify"), verify={"before_swap": False})


def repack(_: Cluster, dsn: str) -> None:
    parts = conninfo_to_dict(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE EXTENSION IF NOT EXISTS pg_repack")
    command = [str(PG_REPACK), "-h", str(parts["host"]), "-p", str(parts["port"]), "-U", "postgres"]
    command += ["-d", str(parts["dbname"]), "-t", "public.item", "-j", "2"]
    env = {**os.environ, "PGPASSWORD": str(parts["password"])}
    subprocess.run(command, env=env, check=True, capture_output=True)


def psycopack(_: Cluster, dsn: str) -> None:
    made = importlib.import_module("psycopack")
    with psycopg.connect(dsn, autocommit=True) as conn, conn.cursor() as cursor:
        made.Psycopack(table="item", batch_size=50_000, conn=conn, cur=cursor).full()


def by_hand(_: Cluster, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE item_new AS SELECT * FROM item")
        conn.execute("ALTER TABLE item_new ADD PRIMARY KEY (id)")
        conn.execute("CREATE INDEX ON item_new (customer)")
        conn.execute("CREATE INDEX ON item_new (placed_at)")
        conn.execute("ANALYZE item_new")
        with conn.transaction():
            conn.execute("ALTER TABLE item RENAME TO item_old")
            conn.execute("ALTER TABLE item_new RENAME TO item")
        conn.execute("DROP TABLE item_old")


WAYS: dict[str, Callable[[Cluster, str], None]] = {
    "ours": ours, "command": command, "unverified": unverified, "repack": repack, "psycopack": psycopack,
    "by hand": by_hand,
}  # fmt: skip


@contextmanager
def writer(cluster: Cluster, dsn: str, rows: int) -> Iterator[list[float]]:
    """pgbench meanwhile; behind the block the list has its longest transaction, in milliseconds."""
    longest: list[float] = []
    parts = conninfo_to_dict(dsn)
    env = {**os.environ, "PGPASSWORD": str(parts["password"])}
    with tempfile.TemporaryDirectory(prefix="pgddl-bench-") as folder:
        script = Path(folder, "update.sql")
        script.write_text(f"\\set id random(1, {rows})\nUPDATE item SET total = total + 1 WHERE id = :id;\n")
        command = [str(cluster.bin("pgbench")), "-n", "-f", str(script), "-c", "4", "-R", str(RATE), "-T", "36000"]
        command += ["-l", f"--log-prefix={folder}/log", "--max-tries=10", "-h", str(parts["host"])]
        command += ["-p", str(parts["port"]), "-U", "postgres", str(parts["dbname"])]
        with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            logs: list[Path] = []
            try:
                while not logs or not logs[0].stat().st_size:
                    if process.poll() is not None:
                        raise SystemExit("pgbench did not start")
                    time.sleep(0.05)
                    logs = list(Path(folder).glob("log*"))
                yield longest
            finally:
                process.terminate()
        lines = [line.split() for log in Path(folder).glob("log*") for line in log.read_text().splitlines()]
        # client, number, latency (µs, from when it was due), script, seconds, microseconds, lag
        longest.append(max(int(line[2]) for line in lines if len(line) >= 6) / 1000)


def left_out() -> dict[str, str]:
    """Ways that cannot be had here, and why."""
    found = {}
    if not PG_REPACK.exists() or not (DEBIAN_15 / "postgres").exists():
        found["repack"] = "apt-get install postgresql-15 postgresql-15-repack"
    if importlib.util.find_spec("psycopack") is None:
        found["psycopack"] = "pip install psycopack"
    return found


def measure(cluster: Cluster, rows: int, rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """way → (seconds of each round, longest stall of each round in milliseconds), the ways in turn."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE rewrite_template")
        with psycopg.connect(cluster.conninfo("rewrite_template")) as conn:
            psycopg.ClientCursor(conn).execute(SHAPE, [rows])
            conn.commit()
            conn.autocommit = True
            conn.execute("VACUUM ANALYZE item")
        missing = left_out()
        for number in range(rounds):
            for way in (way for way in WAYS if way not in missing):
                name = f"rewrite_{number}_{way.replace(' ', '_')}"
                admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE rewrite_template").format(sql.Identifier(name)))
                admin.execute("CHECKPOINT")
                dsn = cluster.conninfo(name)
                with writer(cluster, dsn, rows) as longest:
                    began = time.monotonic()
                    WAYS[way](cluster, dsn)
                    took = time.monotonic() - began
                seconds, stalls = found.setdefault(way, ([], []))
                seconds.append(took)
                stalls.extend(longest)
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    return found


def run(*, small: bool) -> Report:
    rows, rounds = (500_000, 1) if small else (5_000_000, 3)
    debian = (DEBIAN_15 / "postgres").exists()
    with Cluster(15, bin_dir=DEBIAN_15) if debian else Cluster(16) as cluster:
        missing, found = left_out(), measure(cluster, rows, rounds)
    seconds = {way: statistics.median(took) for way, (took, _) in found.items()}
    stalls = {way: max(longest) for way, (_, longest) in found.items()}
    what = f"rewrite of {rows:,} rows with three indexes"
    named = {way: f"pg_repack {version(PG_REPACK)}" if way == "repack" else way for way in seconds}
    report = Report(
        [
            Measure(what + TOLD[way], seconds[way], took, named[peer], GOALS.get((way, peer)))
            for way in OURS
            for peer, took in seconds.items()
            if peer not in OURS
        ]
    )
    report.measures += [
        Measure(f"longest stall of a writer, {what}", max(stalls[way] for way in OURS), limit, peer, goal, unit="ms")
        for peer, limit, goal in (
            ("limit", STALL_LIMIT, 1.0),
            *((named[way], stall, None) for way, stall in stalls.items() if way not in OURS),
        )
    ]
    report.notes += [f"left out: {way} ({how})" for way, how in missing.items()]
    return report
