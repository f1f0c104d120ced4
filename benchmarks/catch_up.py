"""How fast changed rows arrive, beside native logical replication; and what capturing them costs the source.

    python -m benchmarks catch_up            1,000,000 changes of 200,000 keys, 15 s of pgbench a run, three rounds
    python -m benchmarks catch_up --small    100,000 changes of 20,000 keys, 5 s, one round

Both parts between an embedded Postgres 16 (source) and 18 (target), and everything side by side in one run.

Catch-up: a table of `keys` rows is copied to the target in each way; then nobody reads, the source gets `changes`
updates in transactions of a hundred, and what is timed is how long it takes from then until the target has them all:
one `replay` of ours, or from ALTER SUBSCRIPTION … ENABLE until the subscription has confirmed the source's LSN. Each
ends with a comparison of all rows. Native apply repeats every change; a window reads each key once, as it is by then.

Throughput: pgbench's own transactions on the source, which flushes each to disk as any server does that is to outlive a
power cut, with nothing captured, with a slot, and with triggers; each with nobody reading what is captured, which is
what capture itself costs, and with a replay every 5 s, which takes its share of the same cores; in rounds, so that a
busy machine is busy for all.

CPU is that of both servers and of this process during a catch-up, and of the source for a transaction, pgbench's own
left out: on few cores it says where the time goes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster, clusters
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from benchmarks.report import Measure, Report

CATCH_UP_GOAL = 1 / 3
THROUGHPUT_GOALS = {"wal": 0.95, "change_log": 0.8}
IN_A_TRANSACTION = 100
ROWS = ("change_log", "wal")
ACCOUNTS = ["public.accounts"]
PGBENCH = [f"public.pgbench_{name}" for name in ("accounts", "branches", "tellers")]  # the history has no key
REPLAYED = ", replayed"
# What applications commit waits for, as on any server that is to outlive a power cut.
DURABLE = {"fsync": "on", "full_page_writes": "on"}
REPLAY_EVERY = 5.0  # seconds
UNTIL_REPLAY = ("setup", "snapshot", "backfill", "schema_sync", "replay")


def create_database(cluster: Cluster, name: str) -> str:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return cluster.conninfo(name)


def stage(name: str, rows: str, source: str, target: str, tables: list[str]) -> None:
    os.environ["PGDDL_BENCH_SOURCE"], os.environ["PGDDL_BENCH_TARGET"] = source, target
    file = {
        "pipeline": str(conninfo_to_dict(source)["dbname"]),
        "tables": {"include": tables},
        "source": {"dsn": "${PGDDL_BENCH_SOURCE}"},
        "target": {"dsn": "${PGDDL_BENCH_TARGET}"},
        "capture": {"rows": rows, "ddl": "off"},
        "backfill": {"workers": 1},
        "replay": {"window_rows": 1_000_000},
    }
    with redirect_stderr(StringIO()):
        result = stages.run(Job(name, load_pipeline(file)))
    if result.blocked:
        raise SystemExit(f"{rows}, {name}: {result.blocked}")


class Cpu:
    """Seconds of CPU that the source, the target and this process have used since it was made."""

    def __init__(self, *servers: Cluster) -> None:
        self._servers = servers
        self._start = self._now()

    def used(self) -> list[float]:
        return [now - start for now, start in zip(self._now(), self._start, strict=True)]

    def _now(self) -> list[float]:
        return [*(server_cpu(server) for server in self._servers), time.process_time()]


def server_cpu(server: Cluster) -> float:
    """Of the postmaster, of its children that have ended, and of those that run."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended just now
        if int(process.name) == server.pid or int(fields[1]) == server.pid:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


# --- catch-up ---------------------------------------------------------------------------------------------------------


def make_accounts(dsn: str, keys: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE accounts (aid int PRIMARY KEY, balance bigint NOT NULL, filler char(84))")
        conn.execute("INSERT INTO accounts SELECT n, 0, '' FROM generate_series(1, %s) n", [keys])
        conn.execute("VACUUM ANALYZE accounts")


def change(dsn: str, changes: int, keys: int) -> None:
    """Every key as often as every other, in an order that no index likes."""
    with psycopg.connect(dsn) as conn:
        conn.execute(
            "CREATE PROCEDURE change(first int, changes int, keys int) LANGUAGE plpgsql AS $$ BEGIN"
            " FOR n IN first..first + changes - 1 LOOP"
            "  UPDATE accounts SET balance = balance + n WHERE aid = 1 + (n::bigint * 7919) % keys;"
            f"  IF n % {IN_A_TRANSACTION} = 0 THEN COMMIT; END IF; END LOOP; END $$"
        )
        conn.commit()
        conn.autocommit = True
        conn.execute("SET synchronous_commit = off")
        conn.execute("CALL change(1, %s, %s)", [changes, keys])


def contents(dsn: str) -> tuple[Any, ...] | None:
    with psycopg.connect(dsn) as conn:
        return conn.execute(
            "SELECT count(*), sum(balance), sum(hashint8(balance)::bigint * aid) FROM accounts"
        ).fetchone()


def by_native(source: str, target: str, keys: int, changes: int, cpu: Callable[[], Cpu]) -> tuple[float, list[float]]:
    make_accounts(source, keys)
    with psycopg.connect(target, autocommit=True) as there, psycopg.connect(source, autocommit=True) as here:
        there.execute("CREATE TABLE accounts (aid int PRIMARY KEY, balance bigint NOT NULL, filler char(84))")
        here.execute("CREATE PUBLICATION bench FOR TABLE accounts")
        there.execute(sql.SQL("CREATE SUBSCRIPTION bench CONNECTION {} PUBLICATION bench").format(sql.Literal(source)))
        ready = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
        wait(lambda: there.execute(ready).fetchone() == (True,))
        there.execute("ALTER SUBSCRIPTION bench DISABLE")
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = 'bench'"
        wait(lambda: here.execute(active).fetchone() == (False,))
        change(source, changes, keys)
        end = here.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        assert end is not None
        started, used = time.monotonic(), cpu()
        there.execute("ALTER SUBSCRIPTION bench ENABLE")
        done = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = 'bench'"
        wait(lambda: here.execute(done, end).fetchone() == (True,))
        took = time.monotonic() - started
        there.execute("DROP SUBSCRIPTION bench")  # the CPU of processes counts that have ended
    return took, used.used()


def by_ours(
    rows: str, source: str, target: str, keys: int, changes: int, cpu: Callable[[], Cpu]
) -> tuple[float, list[float]]:
    make_accounts(source, keys)
    for name in UNTIL_REPLAY:
        stage(name, rows, source, target, ACCOUNTS)
    change(source, changes, keys)
    started, used = time.monotonic(), cpu()
    stage("replay", rows, source, target, ACCOUNTS)
    return time.monotonic() - started, used.used()


def wait(condition: Callable[[], bool], seconds: float = 1200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("it did not get there")
        time.sleep(0.02)


def catch_up(pg16: Cluster, pg18: Cluster, keys: int, changes: int) -> dict[str, tuple[float, list[float]]]:
    """Seconds, and those of CPU, by way."""
    took = {}

    def cpu() -> Cpu:
        return Cpu(pg16, pg18)

    for way in ("native", *ROWS):
        source, target = create_database(pg16, f"catch_{way}"), create_database(pg18, f"catch_{way}")
        if way == "native":
            took[way] = by_native(source, target, keys, changes, cpu)
        else:
            took[way] = by_ours(way, source, target, keys, changes, cpu)
        if contents(source) != contents(target):
            raise SystemExit(f"{way}: the rows differ")
    return took


# --- throughput -------------------------------------------------------------------------------------------------------


def pgbench(cluster: Cluster, dsn: str, *args: str) -> str:
    parts = conninfo_to_dict(dsn)
    env = {**os.environ, "PGPASSWORD": str(parts.pop("password", ""))}
    command = [str(cluster.bin("pgbench")), *args, make_conninfo(**parts)]  # type: ignore[arg-type]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


@contextmanager
def replayed(rows: str, source: str, target: str) -> Iterator[None]:
    """While pgbench runs, what was captured is replayed again and again, as by a schedule."""
    over = threading.Event()

    def replay() -> None:
        while not over.wait(REPLAY_EVERY):
            stage("replay", rows, source, target, PGBENCH)

    thread = threading.Thread(target=replay)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def throughput(pg16: Cluster, pg18: Cluster, seconds: int, rounds: int) -> dict[str, tuple[float, float]]:
    """By way: transactions a second, and microseconds of the source's CPU a transaction; medians of the rounds."""
    dsns = {}
    for rows in ("off", *ROWS):
        dsns[rows] = create_database(pg16, f"load_{rows}"), create_database(pg18, f"load_{rows}")
        pgbench(pg16, dsns[rows][0], "-i", "-q", "-s", "10")
        if rows != "off":
            for name in UNTIL_REPLAY:
                stage(name, rows, *dsns[rows], PGBENCH)
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for rows, (source, target) in dsns.items():
            for replaying in (False,) if rows == "off" else (False, True):
                with replayed(rows, source, target) if replaying else nullcontext():
                    used = Cpu(pg16)
                    said = pgbench(pg16, source, "-c", "8", "-j", "2", "-T", str(seconds), "-n")
                    cpu = used.used()[0]
                (tps,) = [float(line.split()[2]) for line in said.splitlines() if line.startswith("tps = ")]
                way = f"{rows}{REPLAYED if replaying else ''}"
                found.setdefault(way, []).append((tps, 1_000_000 * cpu / tps / seconds))
                if rows != "off":
                    stage("replay", rows, source, target, PGBENCH)  # nobody starts with another one's backlog
    return {way: (statistics.median(t for t, _ in x), statistics.median(c for _, c in x)) for way, x in found.items()}


def run(*, small: bool) -> Report:
    changes, keys, seconds, rounds = (100_000, 20_000, 5, 1) if small else (1_000_000, 200_000, 15, 3)
    with clusters(16, 18) as (pg16, pg18):
        took = catch_up(pg16, pg18, keys, changes)
    with Cluster(16, settings=DURABLE) as pg16, Cluster(18, settings=DURABLE) as pg18:
        tps = throughput(pg16, pg18, seconds, rounds)
    what = f"catch-up of {changes:,} changes of {keys:,} keys"
    report = Report(
        [
            Measure(f"{what}, {rows}", took[rows][0], took["native"][0], "native logical apply", CATCH_UP_GOAL)
            for rows in ROWS
        ]
    )
    report.measures += [
        Measure(f"pgbench, {way}", rate, tps["off"][0], "no capture", THROUGHPUT_GOALS.get(way), True, "tps")
        for way, (rate, _) in tps.items()
        if way != "off"
    ]
    report.notes += [
        f"{what}, {way}: seconds of CPU of the source {source:.1f}, of the target {target:.1f}, of Python {ours:.1f}"
        for way, (_, (source, target, ours)) in took.items()
    ]
    report.notes += [f"pgbench, {way}: {cpu:.0f} µs of the source's CPU a transaction" for way, (_, cpu) in tps.items()]
    return report
