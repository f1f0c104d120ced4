"""capture.rows: wal — the change logs are filled by a slot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import failpoints
from airflow_provider_pgddl.engine.capture import kept_stream, slot_log
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.commands.status import status
from airflow_provider_pgddl.engine.errors import (
    EXIT_RETRY,
    GaveWay,
    PgddlError,
    PreflightRefused,
    SlotLost,
    StageFailed,
)
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.slot_receiver import one_stream
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs, count_changes
from airflow_provider_pgddl.engine.rows.window_locks import logs_of
from airflow_provider_pgddl.engine.server import catalog
from tests.combinations import matrix
from tests.conftest import Database
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits

Make = Callable[..., Lifecycle]
SHOP = """
    CREATE TABLE items (id bigint PRIMARY KEY, code text UNIQUE, body text);
    CREATE TABLE pairs (b text, a int, body text, PRIMARY KEY (a, b));
    CREATE TABLE parts (id int, at int, body text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
    CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (100);
    CREATE TABLE parts_1 (body text, at int NOT NULL, id int NOT NULL);
    ALTER TABLE parts ATTACH PARTITION parts_1 FOR VALUES FROM (100) TO (200);
    INSERT INTO items SELECT n, 'c' || n, 'x' FROM generate_series(1, 200) n;
    INSERT INTO pairs SELECT E'tab\\t\\\\' || n, n, 'x' FROM generate_series(1, 50) n;
    INSERT INTO parts SELECT n, n, 'x' FROM generate_series(1, 150) n;
"""
CHANGES = [
    "UPDATE items SET body = 'y' WHERE id % 3 = 0",
    "UPDATE items SET id = id + 1000 WHERE id % 7 = 0",
    "DELETE FROM items WHERE id % 5 = 0",
    "UPDATE items SET code = 'd' || id",
    "UPDATE pairs SET b = b || E'\\n' WHERE a % 2 = 0; DELETE FROM pairs WHERE a % 9 = 0",
    "UPDATE parts SET at = at + 60 WHERE at BETWEEN 60 AND 90",  # to the other partition
    "INSERT INTO parts VALUES (500, 5, 'new'), (501, 105, 'new')",
]


@pytest.fixture
def shop(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, SHOP)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"rows": "wal"})


@pytest.mark.parametrize("changed_after", ["setup", "snapshot", "backfill", "schema_sync", "replay"])
def test_whatever_changes_arrives(shop: Lifecycle, changed_after: str) -> None:
    shop.run_all(until=changed_after)
    do(shop.source, *CHANGES)
    shop.run_all()
    assert differences(shop.source, shop.target) == []
    assert one(shop.source, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == 0
    assert one(shop.source, "SELECT count(*) FROM pg_publication") == 0


def test_a_slot_that_a_killed_setup_did_not_note_is_made_again(shop: Lifecycle) -> None:
    """Made on one server, noted on the other: a crash may come in between."""
    slot_name = slot_log.slot_name(shop.name)
    do(shop.source, f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')", *CHANGES)
    shop.run("setup")
    do(shop.source, "UPDATE items SET body = 'z' WHERE id < 20")
    shop.run_all(after="setup")
    assert differences(shop.source, shop.target) == []


def test_a_slot_of_another_database_is_left_alone(shop: Lifecycle) -> None:
    slot_name, other = slot_log.slot_name(shop.name), psycopg.conninfo.make_conninfo(shop.source, dbname="postgres")
    do(other, f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')")
    try:
        with pytest.raises(StageFailed, match="is somebody else's"):
            shop.run("setup")
        reset(load_pipeline(shop.content), shop.source, shop.target)
        assert one(shop.source, f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot_name}'") == 1
    finally:
        do(other, f"SELECT pg_drop_replication_slot('{slot_name}')")


@contextmanager
def pipeline_context(shop: Lifecycle) -> Iterator[Context]:
    """A stage's sessions and lease, without its work."""
    with ExitStack() as stack:
        held = stack.enter_context(Lease(shop.target, shop.name, "replay", None))
        held.take()
        yield Context(shop.job("replay"), held, stack)


STREAM = "SELECT active_pid FROM pg_replication_slots WHERE slot_name LIKE 'pgddl_rows%' AND active"


def test_one_stream_is_read_by_window_after_window(shop: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a transaction open on the source a new stream would begin with all that came since it began."""
    shop.run_all(until="replay")
    with psycopg.connect(shop.source) as old, pipeline_context(shop) as context:
        old.execute("UPDATE parts SET body = 'old' WHERE id = 1")
        with one_stream(context):
            do(shop.source, *CHANGES[:3])
            context.receive()
            reader = one(shop.source, STREAM)
            do(shop.source, "ALTER TABLE items RENAME COLUMN id TO ident; UPDATE items SET body = 'z' WHERE ident < 9",
               "UPDATE pairs SET body = 'z' WHERE a < 9")  # fmt: skip
            context.receive()
            assert one(shop.source, STREAM) == reader
            logged = len(log_rows(shop, "items"))
            # Who ends it is told of, and what was not confirmed is read by the next one.
            do(shop.source, f"SELECT pg_terminate_backend({reader})", "UPDATE items SET body = 'a' WHERE ident < 5")
            with pytest.raises(PgddlError) as told:
                context.receive()
            assert told.value.exit_code == EXIT_RETRY
            context.receive()
            assert one(shop.source, STREAM) != reader
            assert len(log_rows(shop, "items")) > logged
            # A server that shuts down waits for its streams, so one that nobody reads is closed.
            with monkeypatch.context() as soon:
                soon.setattr(kept_stream, "LEFT_ALONE", 0.1)
                wait_until(lambda: one(shop.source, f"SELECT NOT EXISTS ({STREAM})"))
            do(shop.source, "UPDATE items SET body = 'b' WHERE ident BETWEEN 20 AND 24")
            context.receive()
            assert one(shop.source, STREAM)
        assert one(shop.source, f"SELECT NOT EXISTS ({STREAM})")
        with one_stream(context), pytest.raises(ZeroDivisionError), context.stream.taken():  # type: ignore[union-attr]
            raise ZeroDivisionError
        wait_until(lambda: one(shop.source, f"SELECT NOT EXISTS ({STREAM})"))
        old.commit()
    shop.run_all(after="schema_sync")
    assert differences(shop.source, shop.target) == []


PUBLISHED = (
    "SELECT array_agg(r.prrelid::regclass::text ORDER BY r.prrelid::regclass::text) FROM pg_publication_rel r"
    " JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname LIKE 'pgddl_rows_of_%'"
)


def log_rows(shop: Lifecycle, table: str) -> list[tuple[str, ...]]:
    (name,) = shop.journal("SELECT log_table FROM pgddl.tables WHERE table_name = %s", [table])[0]
    return shop.journal(f'SELECT op, leaf::text FROM pgddl."{name}" ORDER BY at')


def test_the_source_keeps_no_wal_for_a_long_backfill(shop: Lifecycle) -> None:
    """What is read from the slot is in the target's own log, and confirmed."""
    shop.run_all(until="snapshot")
    do(shop.source, "UPDATE items SET body = 'y' WHERE id <= 10")
    shop.run("backfill", tables=["public.pairs"])
    with pipeline_context(shop) as context:
        context.receive()
    assert log_rows(shop, "items")[:1] == [("U", str(one(shop.source, "SELECT 'items'::regclass::oid::int")))]
    assert len(log_rows(shop, "items")) == 10
    confirmed = "SELECT confirmed_flush_lsn >= (SELECT slot_lsn FROM known) FROM pg_replication_slots"
    known = one(shop.target, "SELECT slot_lsn::text FROM pgddl.pipelines")
    assert one(
        shop.source,
        f"WITH known AS (SELECT '{known}'::pg_lsn AS slot_lsn) {confirmed} WHERE slot_name LIKE 'pgddl_rows%'",
    )
    shop.run_all(after="snapshot")
    assert differences(shop.source, shop.target) == []


def test_a_commit_that_is_decoded_and_not_shown_yet_waits_in_the_log(shop: Lifecycle) -> None:
    """C1, as a window meets it: the transaction is above the snapshot that was taken before it."""
    shop.run_all(until="replay")
    with pipeline_context(shop) as context:
        source = context.replica.source
        with source.transaction():
            source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            source.execute("SELECT count(*) FROM public.items")
            do(shop.source, "UPDATE items SET body = 'late' WHERE id = 1")
            logs = logs_of(context.replica)
            table = next(t for t in context.tables() if t.name == "items")
            assert count_changes(logs, [table]) == {table.id: 0}
            assert count_changes(context.logs, [table]) == {table.id: 1}
    shop.run("replay")
    assert differences(shop.source, shop.target) == []


@pytest.mark.parametrize(
    ("prepare", "identity"),
    [
        ([], "d"),
        (["ALTER TABLE items REPLICA IDENTITY FULL"], "f"),
        (["CREATE UNIQUE INDEX other ON items (id, code)", "ALTER TABLE items ALTER code SET NOT NULL",
          "ALTER TABLE items REPLICA IDENTITY USING INDEX other"], "i"),
    ],
)  # fmt: skip
def test_every_replica_identity(shop: Lifecycle, prepare: list[str], identity: str) -> None:
    do(shop.source, *prepare)
    shop.run_all(until="replay")
    assert one(shop.source, "SELECT relreplident::text FROM pg_class WHERE relname = 'items'") == identity
    do(shop.source, *CHANGES, "UPDATE items SET body = repeat('toast', 100000) WHERE id = 1")
    do(shop.source, "UPDATE items SET id = 3000 WHERE id = 1")
    shop.run("replay")
    assert differences(shop.source, shop.target) == []


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE pairs DROP CONSTRAINT pairs_pkey",
        "ALTER TABLE pairs REPLICA IDENTITY NOTHING",
        "ALTER TABLE pairs REPLICA IDENTITY FULL",
        "ALTER TABLE pairs DROP CONSTRAINT pairs_pkey, ADD PRIMARY KEY (b)",
        "ALTER TABLE pairs DROP CONSTRAINT pairs_pkey, ADD PRIMARY KEY (a, b) DEFERRABLE",
    ],
)
def test_c19_a_publication_breaks_no_applications_update(shop: Lifecycle, ddl: str) -> None:
    shop.run_all(until="replay")
    do(
        shop.source,
        "DELETE FROM pairs WHERE a > 40",
        ddl,
        "UPDATE pairs SET body = 'z'",
        "DELETE FROM pairs WHERE a = 7",
    )
    result = shop.run("replay")
    if "FULL" in ddl or ddl.endswith("ADD PRIMARY KEY (b)"):
        assert not result.blocked
        assert differences(shop.source, shop.target) == []
    else:
        (blocked,) = result.blocked
        assert blocked["table"] == "public.pairs"


def test_c19_a_table_with_a_key_of_its_own_that_becomes_a_partition(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    """It would be published by its root's key, of which its own identity is no part."""
    do(
        source_dsn,
        "CREATE TABLE users (id int PRIMARY KEY, email text NOT NULL)",
        "CREATE TABLE mails (id int NOT NULL, email text NOT NULL UNIQUE) PARTITION BY RANGE (email)",
        "CREATE TABLE mails_0 PARTITION OF mails FOR VALUES FROM ('a') TO ('b')",
        "ALTER TABLE mails_0 REPLICA IDENTITY FULL",
        "INSERT INTO users SELECT n, 's' || n FROM generate_series(1, 100) n",
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"rows": "wal"})
    move.run_all(until="replay")
    do(
        source_dsn,
        "ALTER TABLE mails ATTACH PARTITION users FOR VALUES FROM ('s') TO ('t')",
        "UPDATE users SET email = 'snew' || id WHERE id % 5 = 0",
        "DELETE FROM users WHERE id = 7",
        "INSERT INTO mails VALUES (101, 'a1'), (102, 's1x')",
    )
    for _ in range(2):
        (blocked,) = move.run("replay").blocked
        assert blocked["table"] == "public.mails" and "public.users has id in its replica identity" in blocked["reason"]
        do(source_dsn, "UPDATE users SET email = email || 'y' WHERE id < 50", "DELETE FROM mails WHERE id IN (60, 61)")
    do(source_dsn, "ALTER TABLE users REPLICA IDENTITY FULL")
    for _ in range(2):
        assert not move.run("replay").blocked
        assert differences(source_dsn, target_dsn) == []
        do(source_dsn, "UPDATE users SET email = email || 'z' WHERE id < 50", "DELETE FROM mails WHERE id IN (70, 71)")
    move.run_all(after="schema_sync", until="verify")


def test_a_partition_of_a_transaction_that_is_not_visible_yet_is_waited_for(
    shop: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1, as while a commit waits for a standby: its WAL is there, and every snapshot still shows it as running."""
    shop.run_all(until="replay")
    with pipeline_context(shop) as context:
        before, known = catalog.current_snapshot(context.source), slot_log._captured(context.source, shop.name)
        execute(
            shop.source,
            "CREATE TABLE parts_9 PARTITION OF parts FOR VALUES FROM (900) TO (999);"
            "INSERT INTO parts VALUES (9, 950, 'with it')",
        )
        with monkeypatch.context() as patch:
            patch.setattr(catalog, "current_snapshot", lambda _: before)
            patch.setattr(slot_log, "_captured", lambda *_: known)
            with pytest.raises(GaveWay, match="is not visible yet"):
                context.receive()
        context.receive()
    shop.run("replay")
    assert one(shop.target, "SELECT body FROM parts WHERE at = 950") == "with it"
    assert differences(shop.source, shop.target) == []


def test_that_track_was_lost_meanwhile_is_not_forgotten(shop: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another run, which begins anew with the slot: its row is one that every snapshot shows."""
    shop.run_all(until="replay")
    do(shop.source, "UPDATE items SET body = 'y' WHERE id = 1")
    ((name,),) = shop.journal("SELECT log_table FROM pgddl.tables WHERE table_name = 'items'")
    forget, left = Logs.forget, list[int]()

    def meanwhile(logs: Logs, tables: Iterable[TableRow], **how: bool) -> None:
        if not left:
            do(shop.target, f"INSERT INTO pgddl.{name} (op, leaf, xid, at) VALUES ('X', 0, '3', '0/0')")
        forget(logs, tables, **how)
        row = logs.session.execute(f"SELECT count(*) FROM pgddl.{name} WHERE op = 'X'".encode()).fetchone()
        left.append(row[0] if row else 0)

    monkeypatch.setattr(Logs, "forget", meanwhile)
    shop.run("replay")
    shop.run("replay")
    assert left[0] == 1 and left[-1] == 0, "the table was read again"
    assert differences(shop.source, shop.target) == []


UNFIT = {
    "an index of a part of the key": (
        "CREATE UNIQUE INDEX u ON parts_0 (id)",
        "ALTER TABLE parts_0 REPLICA IDENTITY USING INDEX u",
        "lacks at of the key in its replica identity",
    ),
    "a primary key that is a part of the root's": (
        "ALTER TABLE parts DROP CONSTRAINT parts_pkey, ALTER id SET NOT NULL, ALTER at SET NOT NULL",
        "ALTER TABLE parts ADD UNIQUE (id, at); ALTER TABLE parts_0 ADD PRIMARY KEY (id)",
        "lacks at of the key in its replica identity",
    ),
    "an index that was dropped": (
        "CREATE UNIQUE INDEX u ON parts_0 (id, at); ALTER TABLE parts_0 REPLICA IDENTITY USING INDEX u",
        "DROP INDEX u",
        "has no replica identity",
    ),
}


@pytest.mark.parametrize("ddl", UNFIT.values(), ids=UNFIT)
def test_c19_what_a_publication_does_not_go_with_is_refused_by_setup(
    shop: Lifecycle, ddl: tuple[str, str, str]
) -> None:
    do(shop.source, "ALTER TABLE parts_1 REPLICA IDENTITY FULL", *ddl[:2])
    error = shop.refused("setup", PreflightRefused)
    assert f"public.parts_0): {ddl[2]}" in error.what, error.what
    do(shop.source, "UPDATE parts SET body = 'y'", "ALTER TABLE parts_0 REPLICA IDENTITY FULL")
    shop.run_all(until="replay")
    do(shop.source, "UPDATE parts_0 SET at = at - 1", "DELETE FROM parts WHERE at = 7")
    shop.run("replay")
    assert differences(shop.source, shop.target) == []


@pytest.mark.parametrize("capture_ddl", ["queue", "off"])
def test_an_old_key_that_is_no_part_of_a_partitions_identity_is_not_lost(shop: Lifecycle, capture_ddl: str) -> None:
    """A partition's identity is its own, and no part of what its table is compared by."""
    shop.content["capture"]["ddl"] = capture_ddl
    shop.run_all(until="replay")
    do(shop.source, *UNFIT["an index of a part of the key"][:2])
    for _ in range(2):
        do(
            shop.source,
            "UPDATE parts_0 SET at = at - 1 WHERE id BETWEEN 9 AND 50",
            "DELETE FROM parts WHERE id = 60",
            "UPDATE pairs SET body = 'y'",
        )
        (blocked,) = shop.run("replay").blocked
        assert blocked["table"] == "public.parts" and "public.parts_0 lacks at of the key" in blocked["reason"]
    do(shop.source, "ALTER TABLE parts_0 REPLICA IDENTITY DEFAULT")
    for _ in range(2):
        assert not shop.run("replay").blocked
        assert differences(shop.source, shop.target) == []
        do(shop.source, "UPDATE parts_0 SET at = at - 1 WHERE id BETWEEN 40 AND 50")


def test_c19_what_becomes_unfit_before_its_capture_has_its_lock_is_not_published(shop: Lifecycle) -> None:
    def drop_identity(_: object) -> None:
        failpoints.turn_off("capture.before_slot_log_commit")
        do(shop.source, "ALTER TABLE items REPLICA IDENTITY NOTHING")

    failpoints.turn_on("capture.before_slot_log_commit", drop_identity)
    try:
        error = shop.refused("setup", PreflightRefused)
    finally:
        failpoints.turn_off("capture.before_slot_log_commit")
    assert "has no replica identity" in str(error)
    do(shop.source, "UPDATE items SET body = 'y'")


def test_what_an_index_includes_is_no_part_of_an_identity(shop: Lifecycle) -> None:
    do(
        shop.source,
        "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id) INCLUDE (body)",
        "CREATE UNIQUE INDEX included ON pairs (a, b) INCLUDE (body)",
        "ALTER TABLE pairs REPLICA IDENTITY USING INDEX included",
    )
    shop.run_all(until="replay")
    published = one(shop.source, PUBLISHED)
    do(shop.source, "ALTER TABLE items SET (fillfactor = 90)", *CHANGES)
    assert one(shop.source, PUBLISHED) == published
    shop.run("replay")
    assert differences(shop.source, shop.target) == []


def test_partitions_that_come_are_published_at_once(shop: Lifecycle) -> None:
    shop.run_all(until="replay")
    do(
        shop.source,
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (200) TO (300)",
        "INSERT INTO parts VALUES (1, 250, 'a'), (2, 251, 'b')",
        "CREATE TABLE parts_3 (at int NOT NULL, body text, id int NOT NULL, PRIMARY KEY (id, at))",
        "INSERT INTO parts_3 VALUES (350, 'came with it', 9)",
        "ALTER TABLE parts ATTACH PARTITION parts_3 FOR VALUES FROM (300) TO (400)",
        "UPDATE parts SET at = 351 WHERE at = 250",
        "ALTER TABLE parts DETACH PARTITION parts_0",
    )
    shop.run("replay")
    assert {"parts_1", "parts_2", "parts_3"} <= set(one(shop.source, PUBLISHED))
    both = [set(shop.on_source("TABLE parts")), set(shop.journal("TABLE parts"))]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE items",
        "TRUNCATE parts",
        "TRUNCATE parts_0",
        "BEGIN; TRUNCATE items RESTART IDENTITY CASCADE; INSERT INTO items VALUES (1, 'again', 'x'); COMMIT",
    ],
)
def test_truncate(shop: Lifecycle, statement: str) -> None:
    shop.run_all(until="replay")
    do(shop.source, "UPDATE items SET body = 'y'", statement, "INSERT INTO items VALUES (2000, 'new', 'x')")
    shop.run("replay")
    assert differences(shop.source, shop.target) == []


@pytest.mark.parametrize("how", ["dropped", "made anew", "read by somebody else", "out of the publication"])
@pytest.mark.parametrize("policy", ["fail", "restart_tables"])
def test_changes_that_no_log_has_are_never_passed_over(shop: Lifecycle, how: str, policy: str) -> None:
    shop.content["capture"]["on_slot_lost"] = policy
    shop.run_all(until="replay")
    slot = f"pgddl_rows_of_{shop.name}"
    lose = {
        "dropped": f"SELECT pg_drop_replication_slot('{slot}')",
        "made anew": f"SELECT pg_drop_replication_slot('{slot}');"
        f" SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        "read by somebody else": f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())",
        "out of the publication": f"ALTER PUBLICATION {slot} DROP TABLE items",
    }[how]
    do(shop.source, "UPDATE items SET body = 'before' WHERE id < 50", "DELETE FROM pairs WHERE a < 10", lose)
    do(shop.source, "UPDATE items SET body = 'after' WHERE id > 150")
    if policy == "fail" and how == "dropped":
        error = shop.refused("replay", SlotLost)
        assert slot in error.what
        assert not error.retryable
        return
    result = shop.run("replay")
    if policy == "fail" and how != "out of the publication":
        assert {b["table"] for b in result.blocked} == {"public.items", "public.pairs", "public.parts"}
        assert all("--mend" in b["reason"] and slot in b["reason"] for b in result.blocked)
        assert shop.refused("verify", StageFailed).what
        assert shop.run("verify", mend=True).figures["mended"] > 0
        assert not shop.run("replay").blocked
    assert differences(shop.source, shop.target) == []


def test_a_slot_is_lost_while_a_table_is_read_again(shop: Lifecycle, at: At) -> None:
    """Which keys there are was read before the new slot begins: what came between the two is in neither."""
    shop.content["capture"]["on_slot_lost"] = "restart_tables"
    shop.run_all(until="replay")
    do(shop.target, "ALTER TABLE items ALTER COLUMN body TYPE text USING body || ''")
    do(shop.source, f"SELECT pg_drop_replication_slot('pgddl_rows_of_{shop.name}')")
    with at("replay.after_snapshot", once(lambda: do(shop.source, "INSERT INTO items VALUES (7000, 'between', 'x')"))):
        shop.run("replay")
    shop.run("replay")
    assert differences(shop.source, shop.target) == []


def test_a_publication_that_is_gone_is_made_again(shop: Lifecycle) -> None:
    shop.content["capture"]["on_slot_lost"] = "restart_tables"
    shop.run_all(until="replay")
    do(shop.source, f"DROP PUBLICATION pgddl_rows_of_{shop.name}", "UPDATE items SET body = 'unseen' WHERE id < 9")
    shop.run("replay")
    do(shop.source, "DELETE FROM items WHERE id < 5")
    shop.run("replay")
    assert differences(shop.source, shop.target) == []


@pytest.mark.parametrize("stage", ["setup", "snapshot", "backfill"])
def test_blocks_are_read_again_where_their_changes_are_lost(shop: Lifecycle, stage: str) -> None:
    """Indexes could not be built on rows of different times."""
    shop.run_all(until=stage)
    do(shop.source, "UPDATE items SET code = code || 'x' WHERE id < 50", "DELETE FROM items WHERE id = 7",
       "UPDATE items SET code = 'c7' WHERE id = 3",
       f"SELECT pg_replication_slot_advance('pgddl_rows_of_{shop.name}', pg_current_wal_lsn())")  # fmt: skip
    shop.run_all(after=stage, until="replay")
    assert status_of(shop)["state"] == "under way"
    assert differences(shop.source, shop.target) == []


def test_a_transaction_that_holds_back_too_much_wal_pauses_the_pipeline(shop: Lifecycle) -> None:
    shop.content["capture"]["max_retained_wal"] = "1MB"
    shop.run_all(until="replay")
    with in_transaction(shop.source, "INSERT INTO items VALUES (9000, 'open', 'x')"):
        do(
            shop.source,
            "CREATE SCHEMA other",
            "CREATE TABLE other.filler AS SELECT repeat('x', 1000) FROM generate_series(1, 5000)",
        )
        error = shop.refused("replay")
        assert error.retryable
        assert "max_retained_wal" in error.what
    do(shop.source, "DROP SCHEMA other CASCADE")
    shop.run("replay")
    assert differences(shop.source, shop.target) == []


def test_the_wal_that_is_kept_back_is_told(shop: Lifecycle) -> None:
    shop.run_all(until="replay")
    before = status_of(shop)["retained_wal_bytes"]
    with in_transaction(shop.source, "INSERT INTO items VALUES (9000, 'open', 'x')"):
        do(shop.source, "UPDATE items SET body = repeat('y', 10000)")
        after = status_of(shop)["retained_wal_bytes"]
    assert after > before >= 0


def test_a_slot_is_read_from_where_it_was_read_to(shop: Lifecycle) -> None:
    """And not from where the server last noted by itself what was in progress, up to 15 s of WAL before."""
    shop.run_all(until="replay")

    def restarts_behind_what_was_there() -> bool:
        do(shop.source, "UPDATE items SET body = 'again' WHERE id < 50")
        there = one(shop.source, "SELECT pg_current_wal_insert_lsn()")
        shop.run("replay")
        mine = "SELECT restart_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name LIKE 'pgddl_rows_of_%%' AND"
        return bool(one(shop.source, f"{mine} database = current_database()", there))

    # A note of the server's own may come in between, and then the next one counts.
    assert any(restarts_behind_what_was_there() for _ in range(3))


def test_what_the_source_gets_after_a_cut_over_without_a_fence_is_told(shop: Lifecycle) -> None:
    shop.run_all(until="verify")
    shop.run("swap", swap={"fence": "none"})
    assert status_of(shop)["changes_since_cut_over"] == 0
    do(shop.source, "UPDATE items SET body = 'late' WHERE id IN (1, 2)", "INSERT INTO items VALUES (9001, 'late', 'x')")
    assert [status_of(shop)["changes_since_cut_over"] for _ in range(2)] == [3, 3]
    error = shop.refused("cleanup", swap={"fence": "none"})
    assert "3" in error.what
    assert status_of(shop)["changes_since_cut_over"] == 3


def status_of(shop: Lifecycle) -> dict[str, Any]:
    return status(load_pipeline(shop.content), shop.source, shop.target)


SPELLINGS = {
    "ALTER TABLE items ALTER id TYPE numeric": "items",
    "alter table IF EXISTS only public . ITEMS /* x */ alter column ID set data -- y\n type numeric": "items",
    "SET standard_conforming_strings = off; ALTER TABLE items DROP COLUMN id": "items",
    "ALTER TABLE pairs DROP b, DROP COLUMN IF EXISTS a": "pairs",
    "ALTER TABLE items* SET UNLOGGED": "items",
    "ALTER TABLE parts ALTER id TYPE bigint": "parts_0 parts_1",
    "ALTER TABLE parts_1 SET UNLOGGED": "parts_1",
    'ALTER TABLE "Mixed ""Case" ADD n int, ALTER "Id" TYPE bigint': "mixed",
    "ALTER TABLE item ALTER items TYPE varchar, ALTER id TYPE bigint": "item",
    "SET search_path = other, public; ALTER TABLE item ALTER id TYPE bigint": "other",
    # Of a string with many, each in its turn.
    "ALTER TABLE items ALTER body TYPE varchar; ALTER TABLE pairs ALTER a TYPE bigint; TABLE item;"
    " ALTER TABLE item ALTER id TYPE bigint": "item pairs",
    "DO $$ BEGIN ALTER TABLE items ALTER id TYPE numeric; END $$": "items",
    "DO $$ BEGIN FOR i IN 0..1 LOOP EXECUTE format('ALTER TABLE parts_%s SET UNLOGGED', i); END LOOP; END $$":
        "parts_0 parts_1",
    "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN ALTER TABLE pairs DROP a;"
    " ALTER TABLE item ADD b int; ALTER TABLE items DROP id; END $$; SELECT f()": "items pairs",
    # What Postgres does not refuse.
    "ALTER TABLE items ALTER body TYPE varchar": "",
    "ALTER TABLE items DROP COLUMN code": "",
    'ALTER TABLE "Mixed ""Case" ALTER "type" TYPE varchar': "",
    "ALTER TABLE items ALTER id SET DEFAULT 5, DROP COLUMN body": "",
    "ALTER TABLE items RENAME id TO type": "",
    "ALTER TABLE ALL IN TABLESPACE pg_default SET TABLESPACE pg_default": "",
}  # fmt: skip
GONE = """
    SELECT coalesce(string_agg(CASE WHEN n.nspname = 'other' THEN 'other' WHEN c.relname ~ 'Mixed' THEN 'mixed'
                               ELSE c.relname END, ' ' ORDER BY c.relname), '')
    FROM pgddl.captured s JOIN pg_class c ON c.oid = s.leaf JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE NOT EXISTS (SELECT FROM pg_publication_rel r WHERE r.prrelid = s.leaf)
"""


@pytest.fixture(params=matrix(16, 18))
def captured(request: pytest.FixtureRequest, database: Database, target_dsn: str, lifecycle: Make) -> str:
    """A source whose tables are in the publication."""
    source = database(request.getfixturevalue(f"pg{request.param}"))
    do(
        source,
        SHOP,
        'CREATE TABLE "Mixed ""Case" ("Id" int PRIMARY KEY, "type" text); CREATE SCHEMA other',
        "CREATE TABLE item (id int PRIMARY KEY, items text); CREATE TABLE other.item (id int PRIMARY KEY)",
    )
    lifecycle(source, target_dsn, tables={"include": ["public.*", "other.*"]}, capture={"rows": "wal"}).run("setup")
    return source


def test_c19_a_table_is_published_no_more_before_ddl_that_postgres_would_refuse(captured: str) -> None:
    with psycopg.connect(captured) as client:
        for ddl, gone in SPELLINGS.items():
            client.execute(ddl.encode())
            assert client.execute(GONE.encode()).fetchone() == (gone,), ddl
            assert client.execute("SELECT count(*) FROM pgddl.exceptions").fetchone() == (0,), ddl
            client.rollback()
        with pytest.raises(psycopg.errors.DatatypeMismatch):
            client.execute("ALTER TABLE items ALTER id TYPE date")
        client.rollback()
        with pytest.raises(psycopg.errors.FeatureNotSupported):  # no text tells which table it is
            client.execute("CREATE FUNCTION f() RETURNS void LANGUAGE sql AS 'ALTER TABLE items ALTER id TYPE numeric'")
            client.execute("SELECT f()")
        client.rollback()
        with client.transaction(force_rollback=True):
            client.execute("ALTER TABLE items ALTER id TYPE numeric")
        client.commit()
        assert client.execute(GONE.encode()).fetchone() == ("",)


RETYPE = "ALTER TABLE items ALTER id TYPE numeric"


def test_c19_whoever_waits_or_fails_there_would_have_without_us(captured: str) -> None:
    """Before the command begins its own lock is taken, and no other: one that is made stronger meets whoever has
    written and wants to alter the table too."""
    with (
        in_transaction(captured, "UPDATE items SET body = 'w'") as writer,
        Underway(lambda: do(captured, RETYPE)) as alter,
    ):
        wait_for(lambda: waits(captured, "AccessExclusiveLock", "items"), alter)
        writer.execute("ALTER TABLE items ADD behind int")
        writer.execute("ALTER TABLE items ALTER body TYPE varchar")
        writer.execute("ANALYZE items")
        assert not alter.over
        writer.commit()
        alter.finish()
    if not one(captured, "SELECT to_regrole('stranger_to_items') IS NOT NULL"):
        do(captured, "CREATE ROLE stranger_to_items")
    with in_transaction(captured, "UPDATE pairs SET body = 'w'"):
        with pytest.raises(psycopg.errors.LockNotAvailable):
            do(captured, "SET lock_timeout = '50ms'; ALTER TABLE pairs ALTER a TYPE bigint")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            do(captured, "SET statement_timeout = '5s'; SET ROLE stranger_to_items; ALTER TABLE public.pairs DROP a")
    assert one(captured, GONE) == "items"


def test_c19_ddl_on_a_key_that_waited_for_the_capture_of_its_table_is_not_refused(captured: str) -> None:
    do(captured, RETYPE)
    publication = one(captured, "SELECT pubname FROM pg_publication WHERE pubname LIKE 'pgddl_rows%'")
    with (
        in_transaction(captured, "LOCK items IN SHARE ROW EXCLUSIVE MODE") as capture,
        Underway(lambda: do(captured, "ALTER TABLE items ALTER id TYPE bigint")) as alter,
    ):
        wait_for(lambda: waits(captured, "AccessExclusiveLock", "items"), alter)
        capture.execute(f"ALTER PUBLICATION {publication} ADD TABLE ONLY items (id)".encode())
        capture.commit()
        alter.finish()
    assert one(captured, GONE) == "items"


def test_c19_what_takes_a_weaker_lock_still_does(captured: str) -> None:
    do(
        captured,
        "ALTER TABLE items ADD CONSTRAINT later CHECK (id > 0) NOT VALID; CREATE VIEW seen AS SELECT id FROM items",
        "CREATE TABLE old_one ()",
    )
    with in_transaction(captured, "SELECT FROM items"):
        do(
            captured,
            "SET lock_timeout = '2s'; ALTER TABLE items VALIDATE CONSTRAINT later; DROP TABLE old_one",
            "SET lock_timeout = '2s'; ALTER TABLE seen ALTER id DROP DEFAULT; ALTER TABLE seen ALTER id SET DEFAULT 1",
        )
    assert one(captured, GONE) == ""


WAITS_FOR_A_PUBLICATION = "SELECT count(*) FROM pg_locks WHERE NOT granted AND classid = 'pg_publication'::regclass"


def test_c19_two_that_alter_keys_at_once_do_not_wait_for_each_other_for_long(captured: str) -> None:
    """Postgres keeps a publication locked for who has altered it. Where that lasts, the second is refused as it was
    without us; and the first goes on, whatever it wants next."""
    with in_transaction(captured, RETYPE) as first:
        with Underway(lambda: do(captured, "ALTER TABLE item ALTER id TYPE bigint")) as second:
            wait_for(lambda: one(captured, WAITS_FOR_A_PUBLICATION), second)
            first.execute("SELECT count(*) FROM item")
            second.fails(psycopg.errors.FeatureNotSupported)
        first.commit()
    do(captured, "ALTER TABLE item ALTER id TYPE bigint")
    assert one(captured, GONE) == "item items"
    assert one(captured, "SELECT count(*) FROM pgddl.exceptions") == 0


@pytest.mark.parametrize(
    "ddl",
    [
        RETYPE,
        "ALTER TABLE items ALTER id TYPE bigint USING -id",
        "ALTER TABLE parts ALTER id TYPE bigint",
        "ALTER TABLE items DROP COLUMN id",
        "ALTER TABLE items SET UNLOGGED",
    ],
)
def test_c19_rows_beside_ddl_on_the_key_are_read_again(shop: Lifecycle, ddl: str) -> None:
    shop.run_all(until="replay")
    with psycopg.connect(shop.source) as client:
        client.execute("UPDATE items SET body = 'before', id = id + 5000 WHERE id < 9; DELETE FROM parts WHERE id = 3")
        client.execute(ddl.encode())
        client.execute("UPDATE items SET body = 'after' WHERE code > 'c5'; UPDATE parts SET at = at + 1 WHERE at = 99")
    do(shop.source, "UPDATE items SET body = 'later' WHERE code = 'c1'", "UPDATE pairs SET body = 'z'")
    result = shop.run("replay")
    if "TYPE" not in ddl:
        assert [blocked["table"] for blocked in result.blocked] == ["public.items"]
        return
    assert not result.blocked
    assert differences(shop.source, shop.target) == []
    assert one(shop.source, GONE) == ""
