"""How fast rows travel from one cluster to another, beside the fastest thing that people type by hand.

    make bench                 5 million rows, 3 rounds
    make bench ROWS=1000000

Each round copies the same table three times, alternating: `psql COPY binary | psql COPY binary`, our transfer with one
worker, and with as many as the machine has cores. Our workers do what backfill does: block ranges of 64 MB, each in a
transaction of its own on both sides. (A module named copy.py would shadow the standard library's.)
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path

import psycopg
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster, clusters
from airflow_provider_pgddl.engine.connect import connect
from airflow_provider_pgddl.engine.rows.transfer import copy_between, read_statement, write_statement

CHUNK_BYTES = 64 * 1024 * 1024  # backfill's default
BLOCK = 8192
RELATION = sql.Identifier("public", "measured")
CHECKSUM = "SELECT count(*), sum(hashtextextended(m::text, 0)::numeric) FROM public.measured m"

TABLE = """
CREATE TABLE public.measured (
    id bigint NOT NULL, customer_id integer NOT NULL, token uuid NOT NULL, state text NOT NULL, total numeric(12, 2),
    weight double precision, paid boolean, placed_at timestamptz NOT NULL, due date, tags text[], attributes jsonb,
    checksum bytea, note text
)
"""

ROWS = """
INSERT INTO public.measured
SELECT i, (i * 7919::bigint) % 100000, md5(i::text)::uuid, (ARRAY['new', 'paid', 'shipped', 'returned'])[1 + i % 4],
       (i % 1000000) / 100.0, CASE WHEN i % 10 > 0 THEN sqrt(i) END, i % 3 = 0,
       '2020-01-01 00:00Z'::timestamptz + i * interval '7 seconds',
       CASE WHEN i % 5 > 0 THEN '2020-01-01'::date + i % 2000 END,
       CASE WHEN i % 4 = 0 THEN ARRAY['gift', 'fragile', 'n' || i % 50] END,
       jsonb_build_object('channel', i % 7, 'coupon', i % 100 = 0), decode(md5((-i)::text), 'hex'),
       CASE WHEN i % 8 > 0 THEN repeat('note ', i % 9) END
FROM generate_series({}, {}) i
"""


@dataclass(frozen=True)
class Share:
    """What one worker copies: every `step`-th chunk, beginning with its own number."""

    source: str
    target: str
    number: int
    step: int


def peak_memory() -> int:
    """The most memory that this process has had, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss starts with the parent's size on Linux
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def copy_share(share: Share) -> tuple[int, int]:
    """Copies one worker's chunks; returns rows and peak memory in bytes."""
    rows = 0
    with (
        connect(share.source, purpose="read", pipeline="bench") as source,
        connect(share.target, purpose="copy", pipeline="bench") as target,
    ):
        found = source.execute("SELECT pg_relation_size('public.measured')").fetchone()
        blocks = found[0] // BLOCK if found else 0
        size = CHUNK_BYTES // BLOCK
        columns = sql.SQL(", ").join(map(sql.Identifier, column_names(source)))
        for first in range(share.number * size, blocks, share.step * size):
            read = sql.SQL("SELECT {} FROM ONLY {} WHERE ctid >= {}::tid AND ctid < {}::tid").format(
                columns, RELATION, sql.Literal(f"({first},0)"), sql.Literal(f"({first + size},0)")
            )
            with target.transaction(), source.transaction():
                copied = copy_between(
                    source, target, read_statement(read, True), write_statement(RELATION, columns, True)
                )
            rows += copied.rows
    return rows, peak_memory()


def column_names(source: psycopg.Connection[tuple[object, ...]]) -> list[str]:
    query = (
        "SELECT attname FROM pg_attribute WHERE attrelid = 'public.measured'::regclass AND attnum > 0 ORDER BY attnum"
    )
    return [str(name) for (name,) in source.execute(query)]


def by_psql(old: Cluster, new: Cluster) -> int:
    """One stream through two psql processes, as people do it by hand."""
    environment = {"PATH": os.defpath, "PGOPTIONS": "-c statement_timeout=0"}
    quiet = ["-X", "-q", "-v", "ON_ERROR_STOP=1"]
    out = subprocess.Popen(
        [old.bin("psql"), *quiet, "-c", "COPY public.measured TO STDOUT (FORMAT binary)"],
        stdout=subprocess.PIPE,
        env=environment | libpq(old),
    )
    into = subprocess.Popen(
        [new.bin("psql"), *quiet, "-c", "COPY public.measured FROM STDIN (FORMAT binary)"],
        stdin=out.stdout,
        env=environment | libpq(new),
    )
    assert out.stdout is not None
    out.stdout.close()
    if into.wait() or out.wait():
        raise SystemExit("psql failed")
    return 0


def libpq(cluster: Cluster) -> dict[str, str]:
    """The connection in the environment: a password on a command line shows in ps."""
    return {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(cluster.port),
        "PGUSER": "postgres",
        "PGDATABASE": "postgres",
        "PGPASSWORD": cluster.password,
    }


def by_us(pool: Pool, old: Cluster, new: Cluster, workers: int) -> int:
    """Our transfer; returns the largest worker's memory."""
    shares = [Share(old.conninfo(), new.conninfo(), number, workers) for number in range(workers)]
    return max(memory for _, memory in pool.imap_unordered(copy_share, shares, chunksize=1))


def load(cluster: Cluster, rows: int) -> int:
    """Fills the table; returns its size in bytes."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute(TABLE)
        for first in range(1, rows + 1, 500_000):
            connection.execute(sql.SQL(ROWS).format(first, min(first + 499_999, rows)))
        connection.execute("VACUUM (ANALYZE) public.measured")  # so that no reader pays for hint bits
        found = connection.execute("SELECT pg_table_size('public.measured')").fetchone()
    return int(found[0]) if found else 0


def empty_target(*servers: Cluster) -> None:
    """A new table, and nothing left to write of the copy before."""
    with psycopg.connect(servers[-1].conninfo(), autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS public.measured")
        connection.execute(TABLE)
    for server in servers:
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            connection.execute("CHECKPOINT")


def checksum(cluster: Cluster) -> tuple[object, ...] | None:
    with psycopg.connect(cluster.conninfo()) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(CHECKSUM).fetchone()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1), help="default: cores, at most 4")
    options = parser.parse_args()

    with clusters(16, 18) as (old, new), multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        started = time.monotonic()
        size = load(old, options.rows)
        print(f"{options.rows:,} rows, {size / 1e6:,.0f} MB, made in {time.monotonic() - started:.0f} s")
        print(
            f"Postgres {old.version} → {new.version}, COPY binary, {os.cpu_count()} cores, best of {options.rounds}\n"
        )
        wanted = checksum(old)

        ways: dict[str, Callable[[], int]] = {"psql | psql": functools.partial(by_psql, old, new)}
        for workers in sorted({1, options.workers}):
            name = f"pgddl, {workers} worker{'s' if workers > 1 else ''}"
            ways[name] = functools.partial(by_us, pool, old, new, workers)
        pool.map(peak_memory_of, range(options.workers * 4), chunksize=1)  # imports are not what is measured
        best = dict.fromkeys(ways, float("inf"))
        memory = 0
        for _ in range(options.rounds):
            for name, way in ways.items():
                empty_target(old, new)
                started = time.monotonic()
                memory = max(memory, way())
                best[name] = min(best[name], time.monotonic() - started)
        if checksum(new) != wanted:
            print("the copy differs from the source", file=sys.stderr)
            return 1

    baseline = best["psql | psql"]
    print(f"{'':20}{'seconds':>10}{'rows/s':>14}{'MB/s':>8}{'of psql':>10}")
    for name, seconds in best.items():
        rate, bandwidth = options.rows / seconds, size / 1e6 / seconds
        print(f"{name:20}{seconds:>10.1f}{rate:>14,.0f}{bandwidth:>8.0f}{baseline / seconds:>10.2f}")
    print(f"\npeak memory of a worker: {memory / 1e6:.0f} MB")
    return 0


def peak_memory_of(_: int) -> int:
    return peak_memory()


if __name__ == "__main__":
    sys.exit(main())
