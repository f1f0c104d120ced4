"""Standbys of test clusters: made, left behind, promoted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.integration.lifecycle import wait_until
from tests.integration.sessions import do, one

SMALL = {"shared_buffers": "16MB"}
# From 17 on: slots that are made for failover are kept in step.
KEEPS_SLOTS = {"sync_replication_slots": "on", "hot_standby_feedback": "on", "primary_slot_name": "standby"}


@contextmanager
def with_standby(version: int, **follows: str) -> Iterator[tuple[Cluster, Cluster]]:
    """A primary and its standby, which is at most a moment behind."""
    with Cluster(version, settings=SMALL) as primary:
        do(primary.conninfo(), "SELECT pg_create_physical_replication_slot('standby')")
        standby = Cluster(version, settings=SMALL | follows)
        standby.folder.mkdir(parents=True, exist_ok=True)
        (standby.folder / "password").write_text(primary.password)
        where = primary.conninfo("postgres")
        command = [primary.bin("pg_basebackup"), "-d", where, "-D", standby.data, "-R", "-c", "fast"]
        made = subprocess.run(command, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        with (standby.data / "postgresql.auto.conf").open("a") as settings:  # slots are asked for in a database
            settings.write(f"primary_conninfo = {sql.Literal(where).as_string()}\n")
        owner = primary.data.stat()
        for path in (standby.folder, *standby.folder.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)
        with standby:
            yield primary, standby


def caught_up(primary: Cluster, standby: Cluster) -> None:
    lsn = one(primary.conninfo(), "SELECT pg_current_wal_flush_lsn()::text")
    shown = f"SELECT pg_last_wal_replay_lsn() >= {sql.Literal(lsn).as_string()}::pg_lsn"
    wait_until(lambda: one(standby.conninfo(), shown))


def leave_behind(standby: Cluster) -> None:
    """From here on it gets nothing of its primary: what is received is replayed before a promotion, paused or not."""
    do(standby.conninfo(), "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
    wait_until(lambda: one(standby.conninfo(), "SELECT count(*) FROM pg_stat_wal_receiver") == 0)


def promote(primary: Cluster, standby: Cluster) -> str:
    """The primary is gone; where the new one is."""
    primary.stop("immediate")
    with psycopg.connect(standby.conninfo(), autocommit=True) as conn:
        assert conn.execute("SELECT pg_promote()").fetchone() == (True,)
    return standby.conninfo()
