"""What can be wrong with a slot that is streamed: what is said of it, whether to try again, and what to do."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.errors import PgddlError, Retry, SlotLost, StageFailed, Unreachable
from airflow_provider_pgddl.engine.server.connect import connect_replication
from tests.combinations import matrix
from tests.conftest import Database, database_name
from tests.integration.sessions import Underway, do, one, wait_for
from tests.integration.streams import capture, is_active, read, rows, slot_name, stream_of


@pytest.fixture(params=matrix(16, 18))
def source(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Database) -> str:
    return database(pg16 if request.param == 16 else pg18)


def test_a_slot_in_use_says_by_whom_and_is_worth_a_retry(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_pgddl.engine.capture.slot_stream.RELEASE_WAIT", 0.1)
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    with stream_of(source):
        pid = one(source, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", slot_name(source))
        with pytest.raises(Retry, match=f"active for PID {pid}"), stream_of(source):
            pass


def test_a_slot_that_is_gone_or_somebody_elses_is_final(source: str) -> None:
    with pytest.raises(SlotLost, match="was dropped") as gone, stream_of(source):
        pass
    assert gone.value.todo and not gone.value.retryable
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    do(source, f"SELECT pg_drop_replication_slot('{slot_name(source)}')")
    do(source, f"SELECT pg_create_physical_replication_slot('{slot_name(source)}')")
    with pytest.raises(StageFailed, match="somebody else's"), stream_of(source):
        pass
    do(source, f"SELECT pg_drop_replication_slot('{slot_name(source)}')")


def test_a_publication_that_was_gone_while_rows_changed_is_final(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    name = slot_name(source)
    do(source, f"DROP PUBLICATION {name}", "INSERT INTO t VALUES (1)", f"CREATE PUBLICATION {name} FOR ALL TABLES")
    with pytest.raises(SlotLost, match=f"publication '{name}' was dropped"), stream_of(source) as stream:
        read(stream, source)


def test_a_role_that_may_not_replicate_is_told_what_it_lacks(source: str, pg16: Cluster, pg18: Cluster) -> None:
    cluster = pg16 if f"port={pg16.port}" in source else pg18
    do(source, "DROP ROLE IF EXISTS plain_reader", f"CREATE ROLE plain_reader LOGIN PASSWORD '{cluster.password}'")
    try:
        with pytest.raises(PgddlError, match="refuses") as error:
            connect_replication(cluster.conninfo(database_name(source), user="plain_reader"), purpose="test")
        assert not error.value.retryable and "REPLICATION" in str(error.value.todo)
        assert cluster.password not in str(error.value)
    finally:
        do(source, "DROP ROLE plain_reader")


def test_a_slot_that_has_lost_its_wal_is_told_from_one_that_was_dropped() -> None:
    with Cluster(16, settings={"max_slot_wal_keep_size": "1MB", "wal_keep_size": "0"}) as cluster:
        dsn = cluster.conninfo()
        capture(dsn, "CREATE TABLE t (id int PRIMARY KEY)")
        for _ in range(3):
            do(dsn, "INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t", "SELECT pg_switch_wal()")
        do(dsn, "CHECKPOINT")
        assert one(dsn, "SELECT wal_status FROM pg_replication_slots") == "lost"
        with pytest.raises(SlotLost, match="has lost WAL that it needs") as error, stream_of(dsn):
            pass
        assert error.value.todo


def test_a_server_that_shuts_down_does_not_wait_for_us_and_the_next_one_goes_on() -> None:
    with Cluster(18) as cluster:
        dsn = cluster.conninfo()
        capture(dsn, "CREATE TABLE t (id int PRIMARY KEY)")
        do(dsn, "INSERT INTO t VALUES (1)")

        def read_on() -> None:
            with stream_of(dsn) as stream:
                for _ in stream.messages(2**63):
                    pass

        with Underway(read_on) as reader:
            wait_for(lambda: is_active(dsn), reader)
            cluster.stop("fast")
            reader.fails(Retry)
        cluster.start()
        with stream_of(dsn) as stream:
            assert rows(read(stream, dsn)) == [("I", None, (b"1",))]
        cluster.stop("immediate")
        with pytest.raises(Unreachable), stream_of(dsn):
            pass
