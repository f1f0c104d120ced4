"""How fast changed rows arrive, beside native logical replication; and what capturing them costs the source.

    make bench-full                                1,000,000 changes of 200,000 keys, 15 s of pgbench a run
    python -m benchmarks.catch_up --changes 100000 --keys 20000 --seconds 5

Both parts between an embedded Postgres 16 (source) and 18 (target), and everything side by side in one run.

Catch-up: a table of `keys` rows is copied to the target in each way; then nobody reads, the source gets `changes`
updates in transactions of a hundred, and what is timed is how long it takes from then until the target has them all:
one `replay` of ours, or from ALTER SUBSCRIPTION … ENABLE until the subscription has confirmed the source's LSN. Each
ends with a comparison of all rows. Native apply repeats every change; a window reads each key once, as it is by then.

Throughput: pgbench's own transactions on the source with nothing captured, with a slot that is read by a replay
meanwhile, and with triggers; in rounds, so that a busy machine is busy for all. The last line but an error is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from rich.console import Console
from rich.table import Table

from airflow_provider_pgddl.demo.clusters import Cluster, clusters
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job import Job
from airflow_provider_pgddl.engine.pipeline import load_pipeline

CATCH_UP_GOAL = 3.0  # times as fast as native apply
THROUGHPUT_GOALS = {"wal": 0.95, "change_log": 0.8}
IN_A_TRANSACTION = 100
ROWS = ("change_log", "wal")
ACCOUNTS = ["public.accounts"]
PGBENCH = [f"public.pgbench_{name}" for name in ("accounts", "branches", "tellers")]  # the history has no key
UNTIL_REPLAY = ("setup", "snapshot", "backfill", "schema_sync", "replay")


def create_database(cluster: Cluster, name: str) -> str:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return cluster.conninfo(name)


def stage(name: str, rows: str, source: str, target: str, tables: list[str]) -> None:
    os.environ["PGDDL_BENCH_SOURCE"], os.environ["PGDDL_BENCH_TARGET"] = source, target
    file = {
        "pipeline": str(conninfo_to_dict(source)["dbname"]), "tables": {"include": tables},
        "source": {"dsn": "${PGDDL_BENCH_SOURCE}"}, "target": {"dsn": "${PGDDL_BENCH_TARGET}"},
        "capture": {"rows": rows, "ddl": "off"}, "backfill": {"workers": 1}, "replay": {"window_rows": 1_000_000},
    }  # fmt: skip
    with redirect_stderr(StringIO()):
        result = stages.run(Job(name, load_pipeline(file)))
    if result.blocked:
        raise SystemExit(f"{rows}, {name}: {result.blocked}")


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


def by_native(source: str, target: str, keys: int, changes: int) -> float:
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
        started = time.monotonic()
        there.execute("ALTER SUBSCRIPTION bench ENABLE")
        done = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = 'bench'"
        wait(lambda: here.execute(done, end).fetchone() == (True,))
        took = time.monotonic() - started
        there.execute("DROP SUBSCRIPTION bench")
    return took


def by_ours(rows: str, source: str, target: str, keys: int, changes: int) -> float:
    make_accounts(source, keys)
    for name in UNTIL_REPLAY:
        stage(name, rows, source, target, ACCOUNTS)
    change(source, changes, keys)
    started = time.monotonic()
    stage("replay", rows, source, target, ACCOUNTS)
    return time.monotonic() - started


def wait(condition: Callable[[], bool], seconds: float = 1200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("it did not get there")
        time.sleep(0.02)


def catch_up(pg16: Cluster, pg18: Cluster, keys: int, changes: int) -> dict[str, float]:
    took = {}
    for way in ("native", *ROWS):
        source, target = create_database(pg16, f"catch_{way}"), create_database(pg18, f"catch_{way}")
        if way == "native":
            took[way] = by_native(source, target, keys, changes)
        else:
            took[way] = by_ours(way, source, target, keys, changes)
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
def captured(way: str, source: str, target: str) -> Iterator[None]:
    """While pgbench runs, what was captured is replayed again and again, as by a schedule."""
    if way == "off":
        yield
        return
    over = threading.Event()

    def replay() -> None:
        while not over.wait(5):
            stage("replay", way, source, target, PGBENCH)

    thread = threading.Thread(target=replay)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def throughput(pg16: Cluster, pg18: Cluster, seconds: int, rounds: int) -> dict[str, float]:
    """Transactions a second, the median of the rounds."""
    dsns = {}
    for way in ("off", *ROWS):
        dsns[way] = create_database(pg16, f"load_{way}"), create_database(pg18, f"load_{way}")
        pgbench(pg16, dsns[way][0], "-i", "-q", "-s", "10")
        if way != "off":
            for name in UNTIL_REPLAY:
                stage(name, way, *dsns[way], PGBENCH)
    found: dict[str, list[float]] = {way: [] for way in dsns}
    for _ in range(rounds):
        for way, (source, target) in dsns.items():
            with captured(way, source, target):
                said = pgbench(pg16, source, "-c", "8", "-j", "2", "-T", str(seconds), "-n")
            (line,) = [line for line in said.splitlines() if line.startswith("tps = ")]
            found[way].append(float(line.split()[2]))
    return {way: statistics.median(tps) for way, tps in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with clusters(16, 18) as (pg16, pg18):
        took = catch_up(pg16, pg18, args.keys, args.changes)
        tps = throughput(pg16, pg18, args.seconds, args.rounds)
    table = Table(title=f"{args.changes:,} changes of {args.keys:,} keys; pgbench, 8 clients")
    for column in ("", "catch-up, s", "times native", "tps", "of off"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("native", f"{took['native']:.1f}", "1.0", "", "")
    table.add_row("off", "", "", f"{tps['off']:.0f}", "100 %")
    speed = {way: took["native"] / took[way] for way in ROWS}
    share = {way: tps[way] / tps["off"] for way in ROWS}
    for way in ROWS:
        table.add_row(way, f"{took[way]:.1f}", f"{speed[way]:.1f}", f"{tps[way]:.0f}", f"{share[way]:.0%}")
    Console(stderr=True).print(table)
    missed = [f"{way}: catch-up {speed[way]:.1f} times native, the goal is {CATCH_UP_GOAL:g}"
              for way in ROWS if speed[way] < CATCH_UP_GOAL]  # fmt: skip
    missed += [f"{way}: {share[way]:.0%} of the throughput, the goal is {goal:.0%}"
               for way, goal in THROUGHPUT_GOALS.items() if share[way] < goal]  # fmt: skip
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    print(json.dumps({"catch_up_s": took, "times_native": speed, "tps": tps, "of_off": share}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
