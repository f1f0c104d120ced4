"""Servers that have been at work for years: transaction ids that pass 2^32, oids above 2^31, and pg_upgrade."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.errors import UsageError
from tests.combinations import matrix
from tests.conftest import Database, shared
from tests.integration.ddl_shop import SHOP, all_through, each
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.sessions import do, one

EPOCH = 1 << 32
STEP = 1_500_000_000  # transactions that a server may be away from its oldest
CLOSE = EPOCH - 3000  # to the end of the first epoch
OID = 3_000_000_000
IN_A_SEGMENT = 1 << 20  # transactions in a file of pg_xact, of two bits each


def aged(cluster: Cluster) -> None:
    """Its next transaction is one of the last of the first epoch, and all that it has is frozen, as if vacuumed on the
    way."""
    cluster.start()
    for xid in (STEP, 2 * STEP, CLOSE):
        cluster.stop()
        owner = cluster.data.stat()
        segment = cluster.data / "pg_xact" / f"{xid // IN_A_SEGMENT:04X}"
        segment.write_bytes(bytes(IN_A_SEGMENT // 4))
        as_owner: dict[str, Any] = {}
        if os.geteuid() == 0:
            os.chown(segment, owner.st_uid, owner.st_gid)
            as_owner["user"] = pwd.getpwuid(owner.st_uid).pw_name
        command = [cluster.bin("pg_resetwal"), "-x", str(xid), "-o", str(OID), "-D", cluster.data]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **as_owner)
        cluster.start()
        do(cluster.conninfo(), "ALTER DATABASE template0 ALLOW_CONNECTIONS true")
        for database in ("template0", "template1", "postgres"):
            do(cluster.conninfo(database), "VACUUM FREEZE")
        do(cluster.conninfo(), "ALTER DATABASE template0 ALLOW_CONNECTIONS false", "CHECKPOINT")


@pytest.fixture(scope="module")
def old_servers() -> Iterator[tuple[Cluster, Cluster]]:
    clusters = Cluster(16), Cluster(18)
    for cluster in clusters:
        aged(cluster)
    with shared(clusters[0]), shared(clusters[1]):
        yield clusters


def pass_the_epoch(dsn: str) -> None:
    """Each subtransaction that writes takes an id."""
    one_each = "FOR i IN 1..500 LOOP BEGIN INSERT INTO ids VALUES (i); EXCEPTION WHEN OTHERS THEN END; END LOOP;"
    takes = f"DO $$BEGIN {one_each} END$$"
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE TEMPORARY TABLE ids (id int)")
        while conn.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() < (EPOCH + 100,):  # type: ignore[operator]
            conn.execute(takes.encode())


DDL = """
ALTER TABLE public.orders ADD more int DEFAULT 7
CREATE TABLE public.late (id int PRIMARY KEY, t text)
INSERT INTO public.late SELECT i, 'x' FROM generate_series(1, 50) i
CREATE TABLE public.events_3 PARTITION OF public.events FOR VALUES FROM (200) TO (300)
INSERT INTO public.events VALUES (250, 'late')
ALTER TABLE public.lines ALTER id TYPE bigint
UPDATE public.orders SET note = note || '!' WHERE id % 3 = 0
DELETE FROM public.lines WHERE id < 10
"""


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_a_pipeline_goes_on_where_transaction_ids_begin_again(
    old_servers: tuple[Cluster, Cluster], database: Database, lifecycle: Callable[..., Lifecycle], rows: str
) -> None:
    source, target = (database(cluster) for cluster in old_servers)
    execute(source, SHOP)
    assert one(source, "SELECT 'public.orders'::regclass::oid::bigint") > 1 << 31
    move = lifecycle(source, target, tables={"include": ["public.*"]}, capture={"rows": rows})
    move.run_all(until="replay")
    execute(source, "UPDATE public.orders SET note = 'before' WHERE id < 100")
    with psycopg.connect(source) as across:
        across.execute("UPDATE public.orders SET note = 'across' WHERE id = 100")
        move.run("replay")
        pass_the_epoch(source)
        move.run("replay")
        across.commit()
    each(source, DDL)
    assert not move.run("replay").blocked
    pass_the_epoch(target)
    execute(source, "UPDATE public.orders SET note = 'behind' WHERE id > 400")
    all_through(move, "schema_sync")


def test_behind_pg_upgrade_of_the_source_a_reset_takes_capture_away_there(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str
) -> None:
    """It has all that it had, and another system identifier."""
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    move.run_all(until="replay")
    execute(target_dsn, "UPDATE pgddl.pipelines SET source_system = 'that of the old cluster'")
    assert "--source-gone" in str(move.refused("replay"))
    reset(move.job("replay").pipeline, source_dsn, target_dsn, source_gone=True)
    assert left_behind(source_dsn) == []
    move.run_all()
    assert differences(source_dsn, target_dsn) == []


def test_behind_pg_upgrade_of_the_target_what_the_limits_say_lets_a_reset_happen(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str
) -> None:
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    move.run_all(until="replay")
    execute(source_dsn, "UPDATE pgddl.captures SET journal = 'that of the old cluster'")
    assert move.refused("replay").exit_code
    pipeline = move.job("replay").pipeline
    with pytest.raises(UsageError, match="for another target"):
        reset(pipeline, source_dsn, target_dsn)
    journal = one(target_dsn, "SELECT system_identifier || '/' || (SELECT oid FROM pg_database"
                              " WHERE datname = current_database()) FROM pg_control_system()")  # fmt: skip
    do(source_dsn, f"UPDATE pgddl.captures SET journal = '{journal}' WHERE pipeline = '{move.name}'")
    reset(pipeline, source_dsn, target_dsn)
    assert left_behind(source_dsn) == []
