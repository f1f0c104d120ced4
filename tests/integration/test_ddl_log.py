"""Reading what was captured: nothing twice, nothing lost, in commit order; and no client that fails or waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.capture import change_log, ddl_log
from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.errors import Retry, StageFailed, UsageError
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.ddl_source import Source
from tests.integration.lifecycle import left_behind
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits

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


# No client fails or waits


def test_what_cannot_be_recorded_is_an_exception_and_no_client_fails(source: Source) -> None:
    do(source.dsn, "CREATE TABLE t (id int PRIMARY KEY, b int)")
    source.events()
    do(source.dsn, "SET pgddl.skip = on; ALTER FUNCTION pgddl.describe_relations(oid[]) RENAME TO missing")
    do(source.dsn, "ALTER TABLE t DROP b", "CREATE TEMP TABLE x (id int)")
    do(source.dsn, "SET pgddl.skip = on; ALTER FUNCTION pgddl.missing(oid[]) RENAME TO describe_relations")
    do(source.dsn, "ALTER TABLE t ADD c int")
    read = source.read()
    # What the failed one dropped does not stick to the next.
    assert [(e["statement"], e["dropped"]) for e in read.events] == [("ALTER TABLE t ADD c int", [])]
    assert [(x["tag"], x["statement"], x["role"]) for x in read.lost] == [
        ("ALTER TABLE", "ALTER TABLE t DROP b", "postgres")
    ]
    assert "describe_relations" in read.lost[0]["what"]
    with source.session() as session:
        ddl_log.resolve_exception(session, read.lost[0]["id"], "dropped by hand")
        with pytest.raises(UsageError, match="no unresolved exception"):
            ddl_log.resolve_exception(session, read.lost[0]["id"], "again")
    assert source.tags() == ["ALTER TABLE"]


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE pgddl.ddl_queue",
        "DROP TABLE pgddl.ddl_token",
        "DROP TABLE pgddl.captures CASCADE",
        "DROP TABLE pgddl.exceptions",
        "DROP FUNCTION pgddl.emit_command(text, text, jsonb)",
        "DROP FUNCTION pgddl.stash_key(text)",
        "DROP FUNCTION pgddl.record_exception(text, text, text, oid)",
        (
            "CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION $$no$$; END';"
            "CREATE TRIGGER no BEFORE INSERT ON pgddl.ddl_queue FOR EACH ROW EXECUTE FUNCTION public.no()"
        ),
    ],
)
def test_no_client_fails_whatever_was_done_to_our_schema(queue: Source, damage: str) -> None:
    do(queue.dsn, "CREATE TABLE t (id int, b int)")
    do(queue.dsn, f"SET pgddl.skip = on; {damage}")
    with psycopg.connect(queue.dsn) as conn:
        conn.execute("ALTER TABLE t DROP b")
        conn.execute("ALTER TABLE t ADD c int DEFAULT random()")
        conn.execute("DROP TABLE t")
    assert one(queue.dsn, "SELECT to_regclass('public.t') IS NULL")


def test_a_cancel_of_the_client_still_cancels(queue: Source) -> None:
    do(
        queue.dsn,
        "SET pgddl.skip = on; CREATE OR REPLACE FUNCTION pgddl.describe_relations(relations oid[]) RETURNS jsonb"
        " LANGUAGE plpgsql AS 'BEGIN PERFORM pg_catalog.pg_sleep(30); RETURN NULL; END'",
    )
    with psycopg.connect(queue.dsn) as conn:
        conn.execute("SET statement_timeout = '100ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            conn.execute("CREATE TABLE t (id int)")


def test_no_client_waits_for_a_table_that_it_has_not_locked(source: Source) -> None:
    do(
        source.dsn,
        "CREATE TABLE t (id int PRIMARY KEY, b int DEFAULT 1 CHECK (b > 0))",
        "CREATE INDEX i ON t (b) WHERE b > 1",
        "CREATE VIEW v AS SELECT id FROM t",
        "CREATE FUNCTION f() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM t; END",
    )
    source.events()
    with in_transaction(source.dsn, "LOCK TABLE t IN ACCESS EXCLUSIVE MODE"):
        with psycopg.connect(source.dsn, autocommit=True) as conn:
            conn.execute("SET lock_timeout = '20s'")
            for statement in (
                "ALTER INDEX i RENAME TO j",
                "ALTER VIEW v RENAME TO w",
                "ALTER FUNCTION f() RENAME TO g",
                "COMMENT ON VIEW w IS 'x'",
            ):
                with Underway(lambda s=statement: conn.execute(s.encode())) as command:
                    wait_for(lambda c=command: c.over, seconds=60)
        events = source.events()
    assert [e["tag"] for e in events] == ["ALTER INDEX", "ALTER VIEW", "ALTER FUNCTION", "COMMENT"]
    assert [e["objects"][0]["name"] for e in events] == ["j", "w", "g", "w"]


def test_a_short_wait_for_the_queue_loses_no_event(queue: Source) -> None:
    with in_transaction(queue.dsn, "LOCK TABLE pgddl.ddl_queue, pgddl.captures IN ACCESS EXCLUSIVE MODE") as migration:
        with psycopg.connect(queue.dsn, autocommit=True) as conn:
            with Underway(lambda: conn.execute("SET lock_timeout = '1ms'; CREATE TABLE t (id int)")) as command:
                wait_for(lambda: waits(queue.dsn, "AccessShareLock", "pgddl.captures"), command)
                migration.commit()
                command.finish()
            assert conn.execute("SHOW lock_timeout").fetchone() == ("1ms",)
    assert queue.tags() == ["CREATE TABLE"]


def test_a_long_one_ends_in_an_exception(queue: Source) -> None:
    with in_transaction(queue.dsn, "LOCK TABLE pgddl.ddl_queue IN ACCESS EXCLUSIVE MODE"):
        with psycopg.connect(queue.dsn, autocommit=True) as conn:
            conn.execute("CREATE TABLE t (id int)")
    assert [x["statement"] for x in queue.read().lost] == ["CREATE TABLE t (id int)"]


def test_what_a_client_sends_or_sets_by_itself_is_nothing(source: Source, database: Database) -> None:
    do(source.dsn, "CREATE TABLE t (id int)", "CREATE TABLE precious (id int)")
    forged = source.events()[0]
    with psycopg.connect(source.dsn) as conn:
        conn.execute("SELECT pg_logical_emit_message(true, 'pgddl', %s)", ['{"id": "1.1", "xid": "1"}'])
        conn.execute("SELECT pg_logical_emit_message(true, 'pgddl', %s)", ["x" * 72 + str(forged)])
        stash = '{"%s": {"dropped": [{"identity": "public.precious"}]}}'
        for key in ("", one(source.dsn, "SELECT md5('')")):
            conn.execute("SELECT set_config('pgddl.stash', %s, false)", [stash % key])
        conn.execute("""SELECT set_config('pgddl.client', '{"role": "root"}', false)""")
        conn.execute("ALTER TABLE t ADD b int")
        for nonsense in ("{", "[]", "null", "1"):
            conn.execute("SELECT set_config('pgddl.stash', %s, false)", [nonsense])
            conn.execute("ALTER TABLE t ADD IF NOT EXISTS c int")
    read = source.read()
    assert read.events[0]["role"] == "postgres"
    assert {e["tag"] for e in read.events} == {"ALTER TABLE"} and all(e["dropped"] == [] for e in read.events)


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


# The change log follows


@pytest.fixture
def captured(queue: Source) -> Source:
    """A table with a key of two columns, and a partitioned one, whose rows are captured."""
    do(
        queue.dsn,
        "CREATE TABLE t (id int, part text, b int, PRIMARY KEY (id, part))",
        "CREATE TABLE p (id int, at int, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    )
    with queue.session() as session:
        for name in ("t", "p"):
            oid = catalog.oid_of(session, "public", name)
            assert oid is not None
            prepared = change_log.prepare(session, queue.pipeline, [oid], 1.0)[oid]
            change_log.start(session, queue.pipeline, prepared, 1.0)
    queue.events()
    return queue


def log_of(source: Source, name: str) -> list[tuple[Any, ...]]:
    with source.session() as session:
        oid = catalog.oid_of(session, "public", name)
        logs = change_log.captured_roots(session, source.pipeline)
        log = change_log.log_table(logs[oid or 0])
        rows = session.execute(
            sql.SQL("SELECT op, old_1, old_2, new_1, new_2 FROM {} ORDER BY ctid").format(log)
        ).fetchall()
        session.execute(sql.SQL("DELETE FROM {}").format(log))
        return rows


def test_c18_a_renamed_key_column_goes_on_being_captured(captured: Source) -> None:
    with psycopg.connect(captured.dsn) as writer:  # has its functions compiled already
        writer.execute("INSERT INTO t VALUES (1, 'a', 0)")
        writer.commit()
        do(captured.dsn, 'ALTER TABLE t RENAME id TO "the ""id"', "ALTER TABLE t RENAME part TO id")
        writer.execute("UPDATE t SET id = 'b'")
        writer.commit()
    with psycopg.connect(captured.dsn) as conn:
        conn.execute("ALTER TABLE p RENAME at TO moment")
        conn.execute("INSERT INTO p VALUES (1, 2)")
    assert log_of(captured, "t") == [("I", None, None, 1, "a"), ("U", 1, "a", 1, "b")]
    assert log_of(captured, "p") == [("I", None, None, 1, 2)]
    assert [e["tag"] for e in captured.events()] == ["ALTER TABLE"] * 3
    do(captured.dsn, 'ALTER TABLE t ALTER "the ""id" TYPE bigint', "INSERT INTO t VALUES (9, 'z', 0)")
    assert log_of(captured, "t") == [("X", None, None, None, None)]


def test_a_rename_that_is_rolled_back_is_not_followed(captured: Source) -> None:
    with psycopg.connect(captured.dsn) as conn:
        conn.execute("ALTER TABLE t RENAME id TO other")
        conn.execute("INSERT INTO t (other, part) VALUES (1, 'a')")
        conn.rollback()
        conn.execute("INSERT INTO t (id, part) VALUES (2, 'b')")
    assert log_of(captured, "t") == [("I", None, None, 2, "b")]


def test_new_partitions_are_captured_from_their_first_row(captured: Source) -> None:
    with psycopg.connect(captured.dsn) as conn:
        conn.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20); INSERT INTO p VALUES (1, 15)")
    do(
        captured.dsn,
        "CREATE TABLE sub PARTITION OF p FOR VALUES FROM (20) TO (40) PARTITION BY RANGE (at)",
        'CREATE TABLE "odd.name" (at int NOT NULL, id int NOT NULL)',
        'ALTER TABLE sub ATTACH PARTITION "odd.name" DEFAULT',
        "INSERT INTO p VALUES (2, 25)",
        "TRUNCATE p2",
        'SET session_replication_role = replica; DELETE FROM "odd.name"',
    )
    assert log_of(captured, "p") == [
        ("I", None, None, 1, 15),
        ("I", None, None, 2, 25),
        ("T", None, None, None, None),
        ("D", 2, 25, None, None),
    ]
    # Rows that come along with it are in no log.
    do(captured.dsn, "CREATE TABLE full_ (id int NOT NULL, at int NOT NULL)", "INSERT INTO full_ VALUES (1, 45)")
    do(captured.dsn, "ALTER TABLE p ATTACH PARTITION full_ FOR VALUES FROM (40) TO (50)")
    assert [row[0] for row in log_of(captured, "p")] == ["X"]
    assert "CREATE TRIGGER" not in captured.tags()
    with captured.session() as session:
        with session.transaction():
            change_log.stop(session, captured.pipeline, catalog.oid_of(session, "public", "p") or 0)
        assert session.execute(
            "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'pgddl_%%p%%' AND tgrelid = 'public.p2'::regclass"
        ).fetchone() == (0,)
    do(captured.dsn, "INSERT INTO p VALUES (3, 15)")


def test_nobody_waits_while_a_partition_is_attached(captured: Source) -> None:
    do(captured.dsn, "CREATE TABLE p3 (id int NOT NULL, at int NOT NULL)")
    with in_transaction(captured.dsn, "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (50) TO (60)") as client:
        do(captured.dsn, "SET lock_timeout = '5s'; INSERT INTO p VALUES (1, 1)")
        client.commit()
    do(captured.dsn, "INSERT INTO p VALUES (1, 55)")
    assert log_of(captured, "p") == [("I", None, None, 1, 1), ("I", None, None, 1, 55)]


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
