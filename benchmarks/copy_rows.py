"""Copying tables from one cluster to another, beside what else does it; each way ends with a comparison of all rows.

    python -m benchmarks copy_rows             5 million rows, 2,000 tables, three rounds: medians
    python -m benchmarks copy_rows --small     500,000 rows, 200 tables, one round

Both clusters are Debian's Postgres 15 (for pgcopydb; the embedded 16 and 18 where that is not installed, and then
without it). Each way fills a new database of the target. What is compared:

one stream      `backfill` with one worker beside one `psql | psql`, COPY binary and text: from an empty table without
                indexes to all rows. Both of the tables below. Ours lays out its chunks in it and keeps a ledger.
rows            `backfill` beside `pgcopydb copy table-data`, as many workers as jobs, tables of more than a chunk in
                parts. Ours spreads over a Spark session that has started, as the next one does; "Spark job" is the
                same stage by `pgddl run`: spark-submit, a JVM, the session, and all.
indexes         `schema_sync` beside `pgcopydb copy indexes` and `copy constraints`, on what the line before copied.
                Ours also reads the change log and ends with ANALYZE, and builds one table's one after the other.
everything      setup, snapshot, backfill and schema_sync beside `pgcopydb clone`, from an empty database to tables
                with their indexes, analyzed. Ours captures changes from setup on, as every move does. The same of many
                tables that are empty or have a few rows.
command         the same as a user types it, `pgddl run setup..replay`, with its start; once with one worker, too.
verify          the comparison of all rows beside the backfill that copied them, in one process.
Spark JDBC      `backfill` beside reading and writing by Spark's JDBC source and sink, in one session that has started:
                a table of seven plain columns, as JDBC cannot carry most of the types of the first one.

Mixed: 13 columns of as many types, about 120 bytes a row, a primary key and two indexes. Documents: 36 columns, of
which three are out of line, about 20 kB a row.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from benchmarks import peers
from benchmarks.report import DEBIAN_15, PGCOPYDB, Measure, Report, alternate, version

PGCOPYDB_GOAL, PSQL_GOAL, JDBC_GOAL, MANY_GOAL = 0.9, 1.15, 0.25, 1.5
WORKERS_GOAL, VERIFY_GOAL = 1.05, 0.35
CHUNK_BYTES = 64 * 1024 * 1024  # backfill's default
JDBC_PARTITIONS = 16
# Vacuum and statistics of what one way has made would run in the next one's time.
SETTINGS = {"autovacuum": "off"}
UNTIL_INDEXES = ("setup", "snapshot", "backfill", "schema_sync")
UNTIL_ROWS = UNTIL_INDEXES[:3]
UNTIL_VERIFY = (*UNTIL_INDEXES, "replay", "verify")
COMMAND = ("setup..replay",)


@dataclass(frozen=True)
class Subject:
    """What is copied: tables without their indexes, the indexes, and statements that fill the tables."""

    database: str
    shape: str
    indexes: str
    rows: tuple[str, ...]


MIXED = """
CREATE TABLE public.mixed (
    id bigint NOT NULL, customer_id integer NOT NULL, token uuid NOT NULL, state text NOT NULL, total numeric(12, 2),
    weight double precision, paid boolean, placed_at timestamptz NOT NULL, due date, tags text[], attributes jsonb,
    checksum bytea, note text);
"""
MIXED_ROWS = """
INSERT INTO public.mixed
SELECT i, (i * 7919::bigint) % 100000, md5(i::text)::uuid, (ARRAY['new', 'paid', 'shipped', 'returned'])[1 + i % 4],
       (i % 1000000) / 100.0, CASE WHEN i % 10 > 0 THEN sqrt(i) END, i % 3 = 0,
       '2020-01-01 00:00Z'::timestamptz + i * interval '7 seconds',
       CASE WHEN i % 5 > 0 THEN '2020-01-01'::date + i % 2000 END,
       CASE WHEN i % 4 = 0 THEN ARRAY['gift', 'fragile', 'n' || i % 50] END,
       jsonb_build_object('channel', i % 7, 'coupon', i % 100 = 0), decode(md5((-i)::text), 'hex'),
       CASE WHEN i % 8 > 0 THEN repeat('note ', i % 9) END
FROM generate_series({}, {}) i
"""
FIELDS = range(32)
DOCUMENTS = (
    "CREATE TABLE public.documents (id integer NOT NULL, body text, scan bytea, facts jsonb, "
    + ", ".join(f"field_{n} {('text', 'integer')[n % 2]}" for n in FIELDS)
    + ");"
)
DOCUMENTS_ROWS = f"""
INSERT INTO public.documents
SELECT i, big.words, decode(big.digits, 'hex'), jsonb_build_object('digits', left(big.digits, 3000)),
       {", ".join(("md5", "hashtext")[n % 2] + f"(i || '-{n}')" for n in FIELDS)}
FROM (SELECT i, (SELECT string_agg(md5(i || ':' || n), ' ') AS words FROM generate_series(1, 200) n),
             (SELECT string_agg(md5(i || '/' || n), '') AS digits FROM generate_series(1, 500) n)
      FROM generate_series({{}}, {{}}) i) big
"""
PLAIN = """
CREATE TABLE public.plain (
    id integer NOT NULL, customer integer NOT NULL, state text NOT NULL, total numeric(12, 2),
    placed_at timestamptz NOT NULL, token uuid NOT NULL, note text);
"""
PLAIN_ROWS = """
INSERT INTO public.plain
SELECT i, (i * 7919::bigint) % 100000, (ARRAY['new', 'paid', 'sent'])[1 + i % 3], (i % 1000000) / 100.0,
       '2024-01-01 00:00Z'::timestamptz + i * interval '7 seconds', md5(i::text)::uuid, repeat('note ', i % 9)
FROM generate_series({}, {}) i
"""
BIG_INDEXES = """
ALTER TABLE public.mixed ADD PRIMARY KEY (id);
CREATE INDEX ON public.mixed (customer_id);
CREATE INDEX ON public.mixed (placed_at);
ALTER TABLE public.documents ADD PRIMARY KEY (id);
"""


def batches(statement: str, rows: int, size: int) -> Iterator[str]:
    for first in range(1, rows + 1, size):
        yield statement.format(first, min(first + size - 1, rows))


def big(rows: int) -> Subject:
    filling = (*batches(MIXED_ROWS, rows, 500_000), *batches(DOCUMENTS_ROWS, rows // 250, 1000))
    return Subject("big", MIXED + DOCUMENTS, BIG_INDEXES, filling)


def plain(rows: int) -> Subject:
    return Subject(
        "plain", PLAIN, "ALTER TABLE public.plain ADD PRIMARY KEY (id);", (*batches(PLAIN_ROWS, rows, 500_000),)
    )


def many(tables: int) -> Subject:
    """Every other table is empty."""
    names = [f"public.table_{n:04}" for n in range(tables)]
    return Subject(
        "many",
        "".join(f"CREATE TABLE {t} (id integer NOT NULL, name text NOT NULL, at timestamptz);" for t in names),
        "".join(f"ALTER TABLE {t} ADD PRIMARY KEY (id); CREATE INDEX ON {t} (at);" for t in names),
        tuple(f"INSERT INTO {t} SELECT i, 'row ' || i, now() FROM generate_series(1, 20) i" for t in names[::2]),
    )


@dataclass
class Bench:
    """Both clusters and what is copied between them. `took` holds the seconds of stages that a way has just run."""

    old: Cluster
    new: Cluster
    subject: Subject
    took: dict[str, float] = field(default_factory=dict)

    def load(self) -> None:
        create_database(self.old, self.subject.database)
        with psycopg.connect(self.old.conninfo(self.subject.database), autocommit=True) as conn:
            for statement in (self.subject.shape, *self.subject.rows, self.subject.indexes):
                conn.execute(statement.encode())
            conn.execute("VACUUM ANALYZE")  # so that no reader pays for hint bits
        self.rows, self.indexes = contents(self.old, self.subject.database)

    def timed(self, way: Callable[[], None], *, shaped: bool, indexed: bool) -> float:
        """Seconds of one way into a new database of the target, which has the tables already where `shaped`."""
        self.new_target(shaped=shaped)
        began = time.monotonic()
        way()
        took = time.monotonic() - began
        self.compare(indexed=indexed)
        return took

    def new_target(self, *, shaped: bool) -> None:
        create_database(self.new, self.subject.database)
        if shaped:
            with psycopg.connect(self.new.conninfo(self.subject.database)) as conn:
                conn.execute(self.subject.shape.encode())
        for cluster in (self.old, self.new):
            with psycopg.connect(cluster.conninfo(), autocommit=True) as conn:
                conn.execute("CHECKPOINT")

    def compare(self, *, indexed: bool) -> None:
        rows, indexes = contents(self.new, self.subject.database)
        if rows != self.rows or (indexed and indexes != self.indexes):
            raise SystemExit(f"{self.subject.database}: the copy differs from the source")

    def ours(self, workers: int, names: Sequence[str], *, submit: bool = False) -> None:
        """These stages one after the other, each one's seconds in `took`. `submit`: the last one by `pgddl run`."""
        self.new_target(shaped=False)
        os.environ["PGDDL_BENCH_SOURCE"] = self.old.conninfo(self.subject.database)
        os.environ["PGDDL_BENCH_TARGET"] = self.new.conninfo(self.subject.database)
        file = {
            "pipeline": "bench", "tables": {"include": ["public.*"]}, "source": {"dsn": "${PGDDL_BENCH_SOURCE}"},
            "target": {"dsn": "${PGDDL_BENCH_TARGET}"}, "capture": {"ddl": "off"}, "backfill": {"workers": workers},
            "spark": {"master": f"local[{workers}]"},
        }  # fmt: skip
        for name in names:
            began = time.monotonic()
            if submit and name == names[-1]:
                run_submitted(name, file)
            else:
                run_here(name, file)
            self.took[name] = time.monotonic() - began
        self.compare(indexed="schema_sync" in names or names == COMMAND)
        with psycopg.connect(self.old.conninfo(self.subject.database), autocommit=True) as conn:
            drop_pgddl(conn)


def drop_pgddl(conn: psycopg.Connection[Any]) -> None:
    """What setup has made on the source; not in one transaction, whose locks a server may not have."""
    conn.execute("SET client_min_messages = error")
    ours = "pronamespace = to_regnamespace('pgddl')::oid AND prorettype = 'trigger'::regtype"
    triggers = conn.execute(f"SELECT proname FROM pg_proc WHERE {ours}").fetchall()
    for first in range(0, len(triggers), 200):
        names = sql.SQL(", ").join(sql.Identifier("pgddl", name) for (name,) in triggers[first : first + 200])
        conn.execute(sql.SQL("DROP FUNCTION {} CASCADE").format(names))
    ours = "relnamespace = to_regnamespace('pgddl')::oid AND relkind = 'r'"
    tables = conn.execute(f"SELECT relname FROM pg_class WHERE {ours}").fetchall()
    for first in range(0, len(tables), 200):
        names = sql.SQL(", ").join(sql.Identifier("pgddl", name) for (name,) in tables[first : first + 200])
        conn.execute(sql.SQL("DROP TABLE {} CASCADE").format(names))
    conn.execute("DROP SCHEMA IF EXISTS pgddl CASCADE")


def run_here(name: str, file: dict[str, Any]) -> None:
    with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
        result = stages.run(Job(name, load_pipeline(file)))
    if result.blocked:
        raise SystemExit(f"{name}: {result.blocked}")


def run_submitted(name: str, file: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="pgddl-bench-") as folder:
        path = Path(folder, "bench.yaml")
        path.write_text(json.dumps(file))
        command = [sys.executable, "-m", "airflow_provider_pgddl.cli", "run", name, "-p", str(path), "--json"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"pgddl run {name}: failed\n{done.stderr[-2000:]}")


def create_database(cluster: Cluster, name: str) -> None:
    """An empty one; what another way has made goes."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))


def contents(cluster: Cluster, database: str) -> tuple[dict[str, Any], int]:
    """(count and checksum of the rows of each table in public, how many valid indexes they have)"""
    with psycopg.connect(cluster.conninfo(database)) as conn:
        conn.execute("SET TimeZone = 'UTC'")
        tables = conn.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
        ).fetchall()
        checksum = "SELECT count(*), sum(hashtextextended(t::text, 0)::numeric) FROM public.{} t"
        rows = {name: conn.execute(sql.SQL(checksum).format(sql.Identifier(name))).fetchone() for (name,) in tables}
        found = conn.execute(
            "SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
            "WHERE c.relnamespace = 'public'::regnamespace AND i.indisvalid"
        ).fetchone()
        assert found is not None
        return rows, int(found[0])


def copy_big(bench: Bench, workers: int, rounds: int, report: Report, copydb: bool) -> None:
    tables = ["mixed", "documents"]
    jobs = ("--table-jobs", str(workers)), ("--index-jobs", str(workers))

    def ours(count: int, names: Sequence[str], *, submit: bool = False) -> float:
        bench.ours(count, names, submit=submit)
        return bench.took[names[-1] if submit else "backfill"]

    def by_psql(copy_format: str) -> float:
        copy = functools.partial(peers.psql, bench.old, bench.new, "big", tables, copy_format)
        return bench.timed(copy, shaped=True, indexed=False)

    def by_pgcopydb(*what: str, shaped: bool) -> float:
        run = functools.partial(peers.pgcopydb, bench.old, bench.new, "big", split=CHUNK_BYTES)
        return bench.timed(functools.partial(run, *what), shaped=shaped, indexed=not shaped)

    def indexes() -> float:
        began = time.monotonic()
        for what in ("indexes", "constraints"):
            peers.pgcopydb(bench.old, bench.new, "big", "copy", what, *(jobs[1] if what == "indexes" else ()))
        took = time.monotonic() - began
        bench.compare(indexed=True)
        return took

    ways: dict[str, Callable[[], float]] = {
        "binary": functools.partial(by_psql, "binary"),
        "text": functools.partial(by_psql, "text"),
        "one": functools.partial(ours, 1, UNTIL_ROWS),
        "backfill": functools.partial(ours, workers, UNTIL_VERIFY),
        "schema_sync": lambda: bench.took["schema_sync"],  # of the run just now
        "all": lambda: sum(bench.took[name] for name in UNTIL_INDEXES),
        "verify": lambda: bench.took["verify"],
        "job": functools.partial(ours, workers, UNTIL_ROWS, submit=True),
        "command": functools.partial(ours, workers, COMMAND, submit=True),
        "command, one": functools.partial(ours, 1, COMMAND, submit=True),
    }
    if copydb:
        ways["table-data"] = functools.partial(by_pgcopydb, "copy", "table-data", *jobs[0], shaped=True)
        ways["indexes"] = indexes  # of what it has copied just now
        ways["clone"] = functools.partial(by_pgcopydb, "clone", *jobs[0], *jobs[1], shaped=False)
    took = alternate(ways, rounds)
    add = report.measures.append
    add(Measure("copy, one stream", took["one"], took["binary"], "psql, binary", PSQL_GOAL))
    add(Measure("copy, one stream", took["one"], took["text"], "psql, text"))
    if copydb:
        with_jobs = f"pgcopydb {version(PGCOPYDB)}, {workers} jobs"
        add(Measure("copy, rows", took["backfill"], took["table-data"], with_jobs, PGCOPYDB_GOAL))
        add(Measure("copy, rows, Spark job", took["job"], took["table-data"], with_jobs))
        add(Measure("copy, indexes", took["schema_sync"], took["indexes"], with_jobs))
        add(Measure("copy, everything", took["all"], took["clone"], with_jobs, PGCOPYDB_GOAL))
        add(Measure("copy, everything, one command", took["command"], took["clone"], with_jobs, PGCOPYDB_GOAL))
        add(Measure("copy, everything, one command, 1 worker", took["command, one"], took["clone"], with_jobs))
    add(
        Measure(
            f"copy as a command, {workers} workers", took["command"], took["command, one"], "1 worker", WORKERS_GOAL
        )
    )
    add(Measure("verify", took["verify"], took["backfill"], "its backfill", VERIFY_GOAL))


def copy_many(bench: Bench, workers: int, rounds: int, report: Report, tables: int) -> None:
    jobs = ("--table-jobs", str(workers), "--index-jobs", str(workers))

    def ours() -> float:
        bench.ours(workers, UNTIL_INDEXES)
        return sum(bench.took[name] for name in UNTIL_INDEXES)

    def clone() -> float:
        run = functools.partial(peers.pgcopydb, bench.old, bench.new, "many", "clone", *jobs)
        return bench.timed(run, shaped=False, indexed=True)

    ways: dict[str, Callable[[], float]] = {"ours": ours, "clone": clone}
    took = alternate(ways, rounds)
    name, with_jobs = f"copy, {tables:,} small tables", f"pgcopydb {version(PGCOPYDB)}, {workers} jobs"
    report.measures.append(Measure(name, took["ours"], took["clone"], with_jobs, MANY_GOAL))
    shares = ", ".join(f"{stage} {bench.took[stage]:.1f} s" for stage in UNTIL_INDEXES)
    report.notes.append(f"{tables:,} small tables, the last round of ours: {shares}.")


def copy_plain(bench: Bench, workers: int, rounds: int, report: Report, rows: int) -> None:
    def ours() -> float:
        bench.ours(workers, UNTIL_ROWS)
        return bench.took["backfill"]

    def by_jdbc() -> float:
        copy = functools.partial(peers.jdbc, bench.old, bench.new, "plain", "plain", rows, JDBC_PARTITIONS)
        return bench.timed(copy, shaped=True, indexed=False)

    ways: dict[str, Callable[[], float]] = {"ours": ours, "jdbc": by_jdbc}
    took = alternate(ways, rounds)
    report.measures.append(Measure("copy, plain columns", took["ours"], took["jdbc"], "Spark JDBC", JDBC_GOAL))


@contextmanager
def servers(debian: bool) -> Iterator[tuple[Cluster, Cluster]]:
    def cluster(embedded: int) -> Cluster:
        if debian:
            return Cluster(15, bin_dir=DEBIAN_15, settings=SETTINGS)
        return Cluster(embedded, settings=SETTINGS)

    with cluster(16) as old, cluster(18) as new:
        yield old, new


def run(*, small: bool) -> Report:
    rows, tables, rounds = (500_000, 200, 1) if small else (5_000_000, 2000, 3)
    workers, report = min(4, os.cpu_count() or 1), Report()
    missing = peers.pgcopydb_missing()
    if missing:
        report.notes.append(f"Left out: pgcopydb ({missing}).")
    jdbc = peers.JDBC_DRIVER.exists()
    if not jdbc:
        report.notes.append("Left out: Spark JDBC (apt-get install libpostgresql-jdbc-java).")
    peers.start_spark(workers)
    with servers((DEBIAN_15 / "postgres").exists()) as (old, new):
        for subject in (*([] if missing else [many(tables)]), *([plain(rows)] if jdbc else []), big(rows)):
            print(f"copy_rows: {subject.database} …", file=sys.stderr, flush=True)
            bench = Bench(old, new, subject)
            bench.load()
            if subject.database == "big":
                copy_big(bench, workers, rounds, report, copydb=not missing)
            elif subject.database == "plain":
                copy_plain(bench, workers, rounds, report, rows)
            else:
                copy_many(bench, workers, rounds, report, tables)
    return report
