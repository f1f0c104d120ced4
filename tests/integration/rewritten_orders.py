"""Orders that are rewritten, and what a server's dump says before and after."""

from __future__ import annotations

import os
import re
import subprocess

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import diff_catalogs
from tests.integration.lifecycle import Lifecycle, left_behind


def dump(cluster: Cluster, dsn: str) -> list[str]:
    """pg_dump of the whole schema but for ours, without what is random in it."""
    parts = conninfo_to_dict(dsn)
    environment = {**os.environ, "PGPASSWORD": str(parts.pop("password", ""))}
    command = [str(cluster.bin("pg_dump")), make_conninfo("", **parts), "--schema-only", "--exclude-schema=pgddl*"]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=True)
    lines = (line for line in done.stdout.splitlines() if not re.match(r"\\(un)?restrict |--", line))
    return [line.rstrip(",") for line in lines if line and not line.startswith("SET default_")]


def differing(before: list[str], after: list[str]) -> list[str]:
    return [line for line in diff_catalogs(before, after) if line[2:].strip()]


ORDERS = """
CREATE TABLE customers (id int PRIMARY KEY, name text);
CREATE TABLE orders (id int PRIMARY KEY, note text NOT NULL, amount int);
CREATE VIEW listed AS SELECT id, note FROM orders;
CREATE VIEW noted AS SELECT note FROM listed;
INSERT INTO orders SELECT n, 'note ' || n, n FROM generate_series(1, 60) n;
"""


TO_BIGINT = {"alter": ["ALTER COLUMN id TYPE bigint"]}


def old_is_gone(move: Lifecycle) -> bool:
    move.run("cleanup")
    return left_behind(move.source) == ["schema pgddl"]
