"""capture.failover: a standby keeps the slot in step, and once it is promoted the run goes on with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import PreflightRefused
from tests.integration.lifecycle import Lifecycle, wait_until
from tests.integration.sessions import do, one

SMALL = {"shared_buffers": "16MB"}
Make = Callable[..., Lifecycle]


@pytest.fixture
def replicated() -> Iterator[tuple[Cluster, Cluster]]:
    """A primary of 18 and its standby, which keeps failover slots in step."""
    with Cluster(18, settings=SMALL) as primary:
        do(primary.conninfo(), "SELECT pg_create_physical_replication_slot('standby')")
        follows = {"sync_replication_slots": "on", "hot_standby_feedback": "on", "primary_slot_name": "standby"}
        standby = Cluster(18, settings=SMALL | follows)
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


def test_a_promoted_standby_goes_on_with_the_slot(
    replicated: tuple[Cluster, Cluster], target_dsn: str, lifecycle: Make
) -> None:
    primary, standby = replicated
    source = primary.conninfo()
    do(
        source,
        "CREATE TABLE item (id int PRIMARY KEY, body text)",
        "INSERT INTO item SELECT n FROM generate_series(1, 99) n",
    )
    move = lifecycle(source, target_dsn, tables={"include": ["*.*"]}, capture={"rows": "wal", "failover": True})
    move.run_all(until="replay")
    # The slot there is of use once it is persistent: the one here has to have moved on behind where that began.
    ready = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'pgddl%' AND synced AND NOT temporary"

    def kept_in_step() -> bool:
        do(source, "UPDATE item SET body = NULL WHERE id = 1", "SELECT pg_log_standby_snapshot()")
        move.run("replay")
        return bool(one(standby.conninfo(), ready) == 2)

    wait_until(kept_in_step, 90)
    do(source, "UPDATE item SET body = 'read by nobody yet' WHERE id < 10", "DELETE FROM item WHERE id = 50")
    wait_until(lambda: one(standby.conninfo(), "SELECT count(*) FROM item WHERE body IS NOT NULL") == 9)
    wait_until(lambda: one(standby.conninfo(), "SELECT count(*) FROM item") == 98)
    primary.stop()
    with psycopg.connect(standby.conninfo(), autocommit=True) as conn:
        assert conn.execute("SELECT pg_promote()").fetchone() == (True,)
    promoted = standby.conninfo()
    do(promoted, "UPDATE item SET body = 'after it' WHERE id > 90")
    move.moved(promoted)
    move.run_all(after="schema_sync")
    assert differences(promoted, target_dsn) == []


def test_before_17_it_is_refused(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    do(source_dsn, "CREATE TABLE item (id int PRIMARY KEY)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, capture={"rows": "wal", "failover": True})
    with pytest.raises(PreflightRefused, match=r"capture\.failover needs Postgres 17"):
        move.run("setup")
