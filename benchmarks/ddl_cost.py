"""What capturing schema changes costs the client that makes them: CREATE TABLE of 20 columns, with and without.

    python -m benchmarks ddl_cost    Postgres 16 and 18, and Debian's 15 where it is installed

Each round runs the same command in a database without event triggers and in one for each way of capturing, alternating,
each in a transaction of its own. `warm` is a session that has run such commands before, `cold` one that has just
connected and pays for catalog caches and plans. Where Debian's postgresql-15-pgl-ddl-deploy is installed, it is
measured beside ours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.capture import change_log, ddl_log
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.server.connect import connect
from benchmarks.report import DEBIAN_15, Measure, Report

BUDGET = 5.0  # milliseconds that a warm session's command may take longer; of processor time where it is told
PLAIN, OTHER = "without", "pgl_ddl_deploy"

COLUMNS = """
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id integer NOT NULL, token uuid NOT NULL,
    state text NOT NULL, total numeric(12, 2) DEFAULT 0, weight double precision, paid boolean NOT NULL DEFAULT false,
    placed_at timestamptz NOT NULL DEFAULT now(), due date, tags text[], attributes jsonb, checksum bytea, note text,
    code varchar(20) UNIQUE, quantity integer CHECK (quantity > 0), price numeric(10, 2), currency char(3),
    channel smallint, coupon text COLLATE "C", updated_at timestamptz
"""


def captured(dsn: str, transport: ddl_log.Transport) -> None:
    with connect(dsn, purpose="benchmark") as session:
        migrations.apply(session, "core")
        change_log.register_pipeline(session, transport, "benchmark")
        ddl_log.start(session, transport, transport)


def deployed(dsn: str) -> None:
    """pgl_ddl_deploy as its README sets it up, for native logical replication and every schema."""
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("CREATE EXTENSION pgl_ddl_deploy CASCADE")
        session.execute("CREATE PUBLICATION everything")
        session.execute(
            "INSERT INTO pgl_ddl_deploy.set_configs (set_name, include_schema_regex, driver)"
            " VALUES ('everything', '.*', 'native'::pgl_ddl_deploy.driver)"
        )
        session.execute("SELECT pgl_ddl_deploy.deploy('everything')")


def ways(cluster: Cluster) -> dict[str, str]:
    """Name → conninfo of the databases to measure in."""
    setups: dict[str, Callable[[str], None]] = {
        PLAIN: lambda dsn: None,  # noqa: ARG005 - nothing is set up
        "queue": lambda dsn: captured(dsn, "queue"),
        "wal": lambda dsn: captured(dsn, "wal"),
    }
    with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
        if admin.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'pgl_ddl_deploy'").fetchone():
            setups[OTHER] = deployed
        for name in setups:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    for name, setup in setups.items():
        setup(cluster.conninfo(name))
    return {name: cluster.conninfo(name) for name in setups}


def measure(cluster: Cluster, rounds: int) -> dict[str, dict[str, float]]:
    """Way → `{"warm": ms, "cold": ms, "cpu": ms}`, medians; `cpu` is what a warm backend computes, however busy others
    are."""
    databases = ways(cluster)
    times: dict[str, dict[str, list[float]]] = {name: {"warm": [], "cold": [], "cpu": []} for name in databases}
    with ExitStack() as stack:
        sessions = {n: stack.enter_context(psycopg.connect(dsn, autocommit=True)) for n, dsn in databases.items()}
        for number in range(rounds):
            for name, session in sessions.items():
                before = cpu(session)
                times[name]["warm"].append(timed(session, f"warm_{number}"))
                times[name]["cpu"].append(cpu(session) - before)
                with psycopg.connect(databases[name], autocommit=True) as fresh:
                    times[name]["cold"].append(timed(fresh, f"cold_{number}"))
    return {name: {k: statistics.median(v[rounds // 10 :]) for k, v in kinds.items()} for name, kinds in times.items()}


def cpu(session: psycopg.Connection) -> float:
    """Milliseconds that a session's backend has computed; 0 where the system does not tell."""
    told = Path(f"/proc/{session.info.backend_pid}/schedstat")
    return int(told.read_text().split()[0]) / 1e6 if told.exists() else 0.0


def timed(session: psycopg.Connection, table: str) -> float:
    statement = f"CREATE TABLE public.{table} ({COLUMNS})".encode()
    started = time.perf_counter()
    session.execute(statement)
    return (time.perf_counter() - started) * 1000


def run(*, small: bool) -> Report:
    servers = [Cluster(16), Cluster(18)]
    if (DEBIAN_15 / "postgres").exists():
        servers.insert(0, Cluster(15, bin_dir=DEBIAN_15))
    report, compared = Report(), False
    for server in servers:
        with server:
            found = measure(server, 50 if small else 200)
        kind = "cpu" if found[PLAIN]["cpu"] else "warm"
        added = {way: ms[kind] - found[PLAIN][kind] for way, ms in found.items()}
        for way in ("queue", "wal"):
            what = f"added to CREATE TABLE, {way}, Postgres {server.version}"
            report.measures.append(Measure(what, added[way], BUDGET, "limit", 1.0, unit="ms"))
            if OTHER in added:
                report.measures.append(Measure(what, added[way], added[OTHER], OTHER, unit="ms"))
                compared = True
    if not compared:
        report.notes.append("left out: pgl_ddl_deploy (apt-get install postgresql-15 postgresql-15-pgl-ddl-deploy)")
    return report
