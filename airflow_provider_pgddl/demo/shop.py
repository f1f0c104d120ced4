"""Loads the shop: pgbench's tables in `public`, and a schema `shop` with every shape of table that we have met."""

from __future__ import annotations

import os
import subprocess
from importlib import resources

import psycopg
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster

APP_ROLE = "shop_app"
SCHEMAS = ("public", "shop")
DATABASE = "shop"
# 1,000,000 accounts, 200,000 orders with 500,000 lines: 2 million rows, 300 MB: work enough for Spark to spread.
DEFAULT_SCALE = 10


def create_database(cluster: Cluster, database: str = DATABASE) -> str:
    """An empty database, and the application's role, which is the server's and so not part of any schema."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
        if admin.execute("SELECT FROM pg_roles WHERE rolname = %s", [APP_ROLE]).fetchone() is None:
            admin.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(APP_ROLE), cluster.password)
            )
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    return cluster.conninfo(database)


def load(cluster: Cluster, database: str = DATABASE, *, scale: int = DEFAULT_SCALE) -> str:
    """A database with the shop in it; its size grows with `scale`, its rows are the same every time."""
    conninfo = create_database(cluster, database)
    _load_pgbench(cluster, database, scale)
    with psycopg.connect(conninfo) as conn:
        conn.execute("SELECT set_config('shop.scale', %s, false)", [str(scale)])
        conn.execute(resources.files(__package__).joinpath("shop.sql").read_bytes())
    with psycopg.connect(conninfo, autocommit=True) as conn:
        conn.execute("ANALYZE")
    return conninfo


def _load_pgbench(cluster: Cluster, database: str, scale: int) -> None:
    command = [str(cluster.bin("pgbench")), "--initialize", "--quiet", f"--scale={scale}"]
    command += ["--host=127.0.0.1", f"--port={cluster.port}", "--username=postgres", database]
    environment = {**os.environ, "PGPASSWORD": cluster.password}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pgbench could not make its tables:\n{done.stderr}")
    with psycopg.connect(cluster.conninfo(database), autocommit=True) as conn:
        # pgbench gives its history no key, and without one nobody can say which row is which.
        conn.execute("ALTER TABLE public.pgbench_history ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
