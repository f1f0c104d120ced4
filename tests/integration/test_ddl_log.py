"""Reading what was captured: nothing twice, nothing lost, in commit order; and how capture begins and ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.capture import change_log, ddl_log
from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.errors import Retry, StageFailed
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.server.connect import connect
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.ddl_source import Source
from tests.integration.lifecycle import left_behind
from tests.integration.sessions import do, in_transaction, one

WRITERS, COMMANDS = 4, 100


@pytest.fixture(params=matrix("16 queue", "18 wal"))
def source(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Database) -> Iterator[Source]:
    version, transport = request.param.split()
    source = Source(database(pg16 if version == "16" else pg18), transport)
    source.start()
    yield source
    source.stop()


@pytest.fixture
def queue(pg18: Cluster, database: Database) -> Source:
    source = Source(database(pg18), "queue")
    source.start()
    return source


# Windows


def test_c01_every_event_is_read_once_whatever_commits_around_the_snapshot(source: Source) -> None:
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with psycopg.connect(source.dsn, autocommit=True) as conn:
                for n in range(COMMANDS // 2):
                    conn.execute(f"CREATE TABLE t_{number}_{n} (id int); ALTER TABLE t_{number}_{n} ADD b int".encode())
        except BaseException as error:  # noqa: BLE001 - shown at the end
            errors.append(error)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    read, windows = list[CapturedEvent](), 0
    with source.session() as session, source.session() as other:
        while any(w.is_alive() for w in writers):
            window = source.read(session, other)
            ddl_log.confirm(other, source.pipeline, window)
            source.position = window.position
            read += window.events
            windows += 1
    read += source.events()
    assert errors == [] and windows > 5
    assert len({e["id"] for e in read}) == len(read) == WRITERS * COMMANDS
    for number in range(WRITERS):
        mine = [e["statement"].split()[2] for e in read if f"t_{number}_" in e["statement"]]
        assert mine == [f"t_{number}_{n // 2}" for n in range(COMMANDS)]


def test_what_is_not_confirmed_is_read_again(source: Source) -> None:
    do(source.dsn, "CREATE TABLE a (id int)")
    first = source.read()
    do(source.dsn, "CREATE TABLE b (id int)")
    assert source.read().events[0]["id"] == first.events[0]["id"]
    with source.session() as other:
        ddl_log.confirm(other, source.pipeline, first)
        ddl_log.confirm(other, source.pipeline, first)
    # The journal's position counts, not what the source had forgotten by then.
    source.position = first.position
    assert [e["statement"] for e in source.events()] == ["CREATE TABLE b (id int)"]


def test_a_transaction_under_way_is_left_for_the_next_window_and_keeps_its_place(source: Source) -> None:
    with in_transaction(source.dsn, "CREATE TABLE slow (id int)") as slow:
        do(source.dsn, "CREATE TABLE quick (id int)")
        assert [e["statement"] for e in source.events()] == ["CREATE TABLE quick (id int)"]
        assert source.events() == []
        slow.execute("ALTER TABLE slow ADD b int")
        do(source.dsn, "CREATE TABLE other (id int)")
        slow.commit()
    do(source.dsn, "DROP TABLE slow")
    events = source.events()
    assert [e["statement"] for e in events if "slow" in e["statement"]] == [
        "CREATE TABLE slow (id int)",
        "ALTER TABLE slow ADD b int",
        "DROP TABLE slow",
    ]
    assert len(events) == 4 and [e["seq"] for e in events if e["xid"] == events[-2]["xid"]][-1] in {1, 2}


def test_the_order_is_that_of_commits_where_one_needed_the_other(source: Source) -> None:
    with in_transaction(source.dsn, "CREATE TABLE early (id int)") as early:
        do(source.dsn, "CREATE TABLE base (id int PRIMARY KEY)")
        early.execute("CREATE TABLE late (id int REFERENCES base)")
        early.commit()
    assert [e["statement"].split()[2] for e in source.events()] == ["base", "early", "late"]


def test_two_pipelines_have_their_own_positions(pg18: Cluster, database: Database) -> None:
    dsn = database(pg18)
    one_, two = Source(dsn, "queue", "one"), Source(dsn, "queue", "two")
    wal = Source(dsn, "wal", "three")
    one_.start()
    do(dsn, "CREATE TABLE a (id int)")
    two.start()
    wal.start()
    do(dsn, "CREATE TABLE b (id int)")
    assert one_.tags() == ["CREATE TABLE"] * 2
    assert one(dsn, "SELECT count(*) FROM pgddl.ddl_queue") == 2
    assert two.tags() == ["CREATE TABLE"] * 2
    assert one(dsn, "SELECT count(*) FROM pgddl.ddl_queue") == 0
    assert [e["statement"] for e in wal.events()] == ["CREATE TABLE b (id int)"]
    one_.stop()
    do(dsn, "CREATE TABLE c (id int)")
    assert (two.tags(), wal.tags()) == (["CREATE TABLE"], ["CREATE TABLE"])
    with two.session() as session:
        ddl_log.set_enabled(session, "two", False)
    do(dsn, "CREATE TABLE d (id int)")
    assert [e["disabled_for"] for e in two.events()] == [["two"]]
    two.stop()
    wal.stop()
    assert one(dsn, "SELECT count(*) FROM pg_event_trigger") == 0


# Beginning and end


def test_start_and_stop_can_be_repeated_and_leave_nothing(source: Source) -> None:
    for _ in range(2):
        source.start()
    do(source.dsn, "CREATE TABLE t (id int)")
    assert source.tags() == ["CREATE TABLE"]
    for _ in range(2):
        source.stop()
    with source.session() as session:
        assert session.execute("SELECT ddl FROM pgddl.captures").fetchall() == [("off",)]
        for catalog_ in ("pg_event_trigger", "pg_publication", "pg_replication_slots"):
            where = "WHERE database = current_database()" if catalog_ == "pg_replication_slots" else ""
            assert session.execute(f"SELECT count(*) FROM {catalog_} {where}".encode()).fetchone() == (0,)
        do(source.dsn, "DROP TABLE t")
        migrations.revert(session, "core")
    assert left_behind(source.dsn) == []
    with source.session() as session:
        ddl_log.stop(session, source.pipeline)  # also where our schema is gone


def test_stop_waits_for_commands_that_are_under_way(queue: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_transaction(queue.dsn, "CREATE TABLE t (id int)"):
        monkeypatch.setattr(ddl_log, "OLDER_TRANSACTIONS_WAIT", 0.3)
        with pytest.raises(Retry, match="did not end"):
            queue.stop()
    queue.stop()


def test_a_slot_that_is_gone_is_said_and_not_made_anew(pg18: Cluster, database: Database) -> None:
    source = Source(database(pg18), "wal")
    source.start()
    do(source.dsn, "SELECT pg_drop_replication_slot('pgddl_shop')")
    for call in (source.read, source.start):
        with pytest.raises(StageFailed, match="was dropped") as failed:
            call()
        assert "compare the schemas" in str(failed.value)
    source.stop()
    source.start()
    assert source.after("CREATE TABLE t (id int)")


def test_event_triggers_that_were_disabled_or_dropped_are_said(queue: Source) -> None:
    do(queue.dsn, "ALTER EVENT TRIGGER pgddl_2_command DISABLE")
    for call in (queue.start, queue.read):
        with pytest.raises(StageFailed, match="disabled by hand") as failed:
            call()
        assert failed.value.sql == "ALTER EVENT TRIGGER pgddl_2_command ENABLE;"
    do(queue.dsn, "ALTER EVENT TRIGGER pgddl_2_command ENABLE", "CREATE TABLE t (id int)")
    assert queue.tags() == ["CREATE TABLE"]
    do(queue.dsn, "DROP EVENT TRIGGER pgddl_2_drop")
    for call in (queue.start, queue.read):
        with pytest.raises(StageFailed, match="dropped by hand"):
            call()
    queue.stop()
    queue.start()
    assert queue.after("DROP TABLE t")[0]["dropped"]


def test_a_newer_package_brings_its_event_triggers_to_a_source_that_captures_already(queue: Source) -> None:
    triggers = "SELECT array_agg(evtname::text ORDER BY evtname) FROM pg_event_trigger"
    before = one(queue.dsn, triggers)
    with queue.session() as session:
        every = migrations.migrations("core")
        since = every[[m.name for m in every].index("leave") :]
        versions = [m.version for m in since]
        for m in reversed(since):
            session.execute(m.down)
        session.execute("DELETE FROM pgddl.migrations WHERE set_name = 'core' AND version = ANY(%s)", [versions])
        assert len(one(queue.dsn, triggers)) == len(before) - 5
        queue.read()
        assert migrations.apply(session, "core") == versions
    queue.start()
    assert one(queue.dsn, triggers) == before


def test_without_a_superuser_it_is_said_what_to_do(pg18: Cluster, database: Database) -> None:
    dsn = database(pg18)
    do(dsn, "DROP ROLE IF EXISTS plain_owner", f"CREATE ROLE plain_owner LOGIN PASSWORD '{pg18.password}'")
    do(dsn, sql.SQL("GRANT CREATE ON DATABASE {} TO plain_owner").format(sql.Identifier(database_of(dsn))).as_string())
    with connect(pg18.conninfo(database_of(dsn), user="plain_owner"), purpose="test") as session:
        migrations.apply(session, "core")
        change_log.register_pipeline(session, "shop", "journal")
        with pytest.raises(StageFailed, match="event triggers cannot be made"):
            ddl_log.start(session, "shop", "queue")
        migrations.revert(session, "core")
    do(dsn, "DROP OWNED BY plain_owner", "DROP ROLE plain_owner")


def database_of(dsn: str) -> str:
    return str(one(dsn, "SELECT current_database()"))


# Long strings


@pytest.mark.every_combination
def test_a_long_string_of_many_commands_is_stored_once(source: Source) -> None:
    commands = [f"CREATE TABLE t{n} (id int PRIMARY KEY, r int REFERENCES t{max(n - 1, 0)})" for n in range(100)]
    commands += [
        f"COMMENT ON TABLE t0 IS '{'x' * 20000}'",
        "SET LOCAL search_path = public, pg_catalog",
        "DROP TABLE t99",
    ]
    text = "; ".join(commands)
    do(source.dsn, text)
    size = one(source.dsn, "SELECT coalesce(sum(length(event ->> 'statement')), 0) FROM pgddl.ddl_queue")
    assert size == (2 * len(text) if source.transport == "queue" else 0)
    events = source.events()
    assert len(events) == 102 and {e["statement"] for e in events} == {text}
    assert len({e["batch"] for e in events}) == 1 and [e["seq"] for e in events] == list(range(1, 103))
    for n, event in enumerate(events[:100]):
        assert {k for k in event["names"] if k.startswith("t") and "_" not in k} == {f"t{i}" for i in range(n + 1)}
    assert "t99" in events[100]["names"] and "t99" not in events[101]["names"]


def test_a_long_string_whose_first_command_is_rolled_back_is_stored_with_the_next(source: Source) -> None:
    do(
        source.dsn,
        f"""DO $$ BEGIN
            BEGIN CREATE TABLE a (id int); RAISE 'no'; EXCEPTION WHEN OTHERS THEN NULL; END;
            CREATE TABLE b (id int); CREATE TABLE c (id int); -- {"x" * 3000}
        END $$""",
    )
    events = source.events()
    assert [e["inner"] for e in events] == ["CREATE TABLE b (id int)", "CREATE TABLE c (id int)"]
    assert all(len(e["statement"]) > 3000 for e in events) and events[1]["names"] == {"b": "public", "c": "public"}


def test_confirming_a_read_without_events_lets_the_source_forget_its_wal(pg18: Cluster, database: Database) -> None:
    source = Source(database(pg18), "wal")
    source.start()
    flushed = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()"
    before = one(source.dsn, flushed)
    do(source.dsn, "SET pgddl.skip = on; CREATE TABLE t AS SELECT generate_series(1, 1000) AS id")
    assert source.events() == []
    assert one(source.dsn, f"SELECT ({flushed}) > %s::pg_lsn", before)
    with in_transaction(source.dsn, "CREATE TABLE u (id int)") as client:
        assert source.events() == []
        client.commit()
    assert source.tags() == ["CREATE TABLE"]
