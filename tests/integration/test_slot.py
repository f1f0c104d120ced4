"""capture.rows: wal — the change logs are filled by a slot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.capture import kept_stream, slot_log
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.commands.status import status
from airflow_provider_pgddl.engine.errors import EXIT_RETRY, GaveWay, PgddlError, Retry, SlotLost, StageFailed
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.slot_receiver import one_stream
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs, count_changes
from airflow_provider_pgddl.engine.rows.window_locks import logs_of
from airflow_provider_pgddl.engine.server import catalog
from tests.failpoints import At, once
from tests.integration.calls import before_each
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for
from tests.integration.slot_shop import CHANGES, SHOP

Make = Callable[..., Lifecycle]


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


def test_c33_what_was_read_while_a_failover_was_recorded_is_not_kept(
    shop: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run has looked at what the new timeline lacks: places of the old one say nothing of it."""
    shop.run("setup")
    do(shop.source, "UPDATE items SET body = 'old' WHERE id <= 10")
    known = "SELECT slot_lsn::text, source_timeline FROM pgddl.pipelines"
    before = shop.journal(known)
    recorded = "UPDATE pgddl.pipelines SET source_timeline = source_timeline {} 1"
    with pipeline_context(shop) as context, monkeypatch.context() as patch:
        before_each(patch, slot_log, "_write_some", once(lambda: do(shop.target, recorded.format("-"))))
        with pytest.raises(Retry, match="failed over just now"):
            context.receive()
    do(shop.target, recorded.format("+"))
    assert (shop.journal(known), log_rows(shop, "items")) == (before, [])


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
    """Which keys there are was read before the new slot begins: what came between the two is in neither. What is older
    than the new one's start may not be visible yet, though its commit is behind (C2)."""
    shop.content["capture"]["on_slot_lost"] = "restart_tables"
    shop.run_all(until="replay")
    do(shop.target, "ALTER TABLE items ALTER COLUMN body TYPE text USING body || ''")
    do(shop.source, f"SELECT pg_drop_replication_slot('pgddl_rows_of_{shop.name}')")
    older = psycopg.connect(shop.source)
    at("replay.after_snapshot", once(lambda: do(shop.source, "INSERT INTO items VALUES (7000, 'between', 'x')")))
    at("slot.before_anew_commit", once(lambda: older.execute("SELECT pg_current_xact_id()")))
    with older, Underway(lambda: shop.run("replay")) as replay:
        asked = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE %s AND query LIKE %s)"
        wait_for(lambda: one(shop.source, asked, f"pgddl:{shop.name}:%", "%pg_snapshot_xip%"), replay)
        assert not replay.over
        older.commit()
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


@pytest.mark.parametrize("capture", [{"rows": "wal", "ddl": "queue"}, {"rows": "change_log", "ddl": "wal"}])
def test_the_wal_that_is_kept_back_is_told(shop: Lifecycle, capture: dict[str, str]) -> None:
    """By a slot for rows, and by one for DDL."""
    shop.content["capture"] = capture
    shop.run_all(until="setup")
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
