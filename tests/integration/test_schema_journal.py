"""The schema gate's journal: verdicts change only where they differ, are kept, announced once, and counted once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

import psycopg
import pytest
from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.journal.schema import Recorded, SchemaJournal
from airflow_provider_pgddl.engine.schema.verdict import Choice, SchemaFinding, stopped
from airflow_provider_pgddl.engine.server.connect import Session, connect
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.lifecycle import wait_until
from tests.integration.sessions import Underway

USERS, ORDERS = ("public", "users"), ("public", "orders")

PHONE = SchemaFinding(
    "source_added_column",
    "mismatch",
    "Source has new column 'phone' not in target",
    column="phone",
    fix=("ALTER TABLE public.users ADD COLUMN phone text;",),
    choices=(Choice("Skip this column", "--skip-columns=public.users.phone"),),
)
PRICE = SchemaFinding(
    "type_mismatch",
    "mismatch",
    "Casting would lose precision",
    column="price",
    reason="type_mismatch",
    metric="unsafe_cast",
)
EXTRA = SchemaFinding("target_added_column", "warning", "Target has extra column: 'by'", column="by")


def set_up(conn: Session, *pipelines: str) -> None:
    for name in pipelines:
        conn.execute(
            "INSERT INTO pgddl.pipelines (pipeline, job, config, source_system, source_timeline)"
            " VALUES (%s, 'migrate', %s, '1', 1)",
            [name, Jsonb({})],
        )


@pytest.fixture(params=matrix("pg16", "pg18"))
def open_journal(request: pytest.FixtureRequest, database: Database) -> Iterator[Callable[[], SchemaJournal]]:
    """``open_journal()``: the journal of pipeline shop over another session each time; in place it is on the source."""
    dsn = database(request.getfixturevalue(request.param))
    sessions: list[Session] = []

    def another() -> SchemaJournal:
        sessions.append(connect(dsn, purpose="test"))
        return SchemaJournal(sessions[-1], "shop")

    first = another()
    migrations.apply(first.conn, "journal")
    set_up(first.conn, "shop", "other")
    yield another
    for session in sessions:
        session.close()


@pytest.fixture
def journal(open_journal: Callable[[], SchemaJournal]) -> SchemaJournal:
    return open_journal()


def one(journal: SchemaJournal, query: str) -> object:
    row = journal.conn.execute(query.encode()).fetchone()
    return row[0] if row else None


def versions(journal: SchemaJournal) -> list[tuple[object, ...]]:
    """The row versions of all verdicts: another one where something was written."""
    return journal.conn.execute("SELECT table_name, xmin, ctid FROM pgddl.schema_status ORDER BY 1").fetchall()


def test_a_verdict_comes_back_as_it_was_recorded(journal: SchemaJournal) -> None:
    assert journal.statuses() == {}
    assert journal.record(USERS, "mismatch", [PHONE, EXTRA], resolution="Add it", fingerprints=("a", "b"))
    row = journal.statuses()[USERS]
    assert [f.to_json() for f in row.findings] == [PHONE.to_json(), EXTRA.to_json()]
    assert (row.status, row.resolution, row.fingerprints) == ("mismatch", "Add it", ("a", "b"))
    assert row.notified_at is None and row.since == row.checked_at
    assert SchemaJournal(journal.conn, "other").statuses() == {}


def test_nothing_is_written_while_nothing_changes(journal: SchemaJournal) -> None:
    many: dict[tuple[str, str], Recorded] = {
        ("public", f"t{n:03}"): ("mismatch", [PHONE, EXTRA], "Add it", ("a", "b")) for n in range(500)
    }
    assert journal.record_many(many) == set(many)
    before = versions(journal)
    shuffled: dict[tuple[str, str], Recorded] = {
        name: (status, list(reversed(findings)), *rest) for name, (status, findings, *rest) in reversed(many.items())
    }
    assert journal.record_many(shuffled) == set()
    assert versions(journal) == before
    assert len(journal.history()) == 500
    times = {row.checked_at for row in journal.statuses().values()}
    journal.touch(many)
    assert all(row.checked_at > max(times) for row in journal.statuses().values())
    assert journal.record_many({}) == set()


def test_the_number_of_queries_does_not_depend_on_the_number_of_tables(
    journal: SchemaJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def queries_for(tables: int, findings: list[SchemaFinding]) -> int:
        sent: list[object] = []

        class Counted(psycopg.Cursor[Any]):
            def execute(self, *args: Any, **options: Any) -> Self:
                sent.append(args)
                return super().execute(*args, **options)

        with monkeypatch.context() as patched:
            patched.setattr(journal.conn, "cursor_factory", Counted)
            journal.record_many({("public", f"t{n}"): ("mismatch", findings, None, ("a", "b")) for n in range(tables)})
        return len(sent)

    queries_for(1, [PHONE])
    assert queries_for(2, [PRICE]) == queries_for(300, [PHONE])  # one that is known, the others new
    assert queries_for(300, [PHONE]) == 1


def test_since_moves_with_the_status_and_history_with_the_verdict(journal: SchemaJournal) -> None:
    journal.record(USERS, "compatible", [])
    journal.record(USERS, "mismatch", [PHONE], resolution="Add it")
    stopped_at = journal.statuses()[USERS].since
    assert journal.record(USERS, "mismatch", [PHONE, PRICE])
    assert journal.statuses()[USERS].since == stopped_at
    assert not journal.record(USERS, "mismatch", [PHONE, PRICE], resolution="Add both", fingerprints=("a", "b"))
    assert journal.statuses()[USERS].resolution == "Add both"
    assert journal.statuses()[USERS].fingerprints == ("a", "b")
    assert journal.record(USERS, "compatible", [])
    assert journal.statuses()[USERS].since > stopped_at
    journal.record(ORDERS, "warning", [EXTRA])
    rows = journal.history(USERS)
    assert [(r.status, len(r.findings), r.resolution, r.run) for r in rows] == [
        ("compatible", 0, None, 1),
        ("mismatch", 1, "Add it", 1),
        ("mismatch", 2, None, 1),
        ("compatible", 0, None, 1),
    ]
    assert [r.until for r in rows] == [*[r.since for r in rows[1:]], None]
    assert rows[1].since == stopped_at
    assert [r.name for r in journal.history()] == [USERS] * 4 + [ORDERS]


def test_an_undone_transaction_leaves_nothing(journal: SchemaJournal) -> None:
    with journal.conn.transaction(force_rollback=True):
        journal.record(USERS, "mismatch", [PHONE])
        journal.validated("fail_unsafe", 1.5)
        assert not journal.shown("sensor", "a")
        assert journal.claim_new([ORDERS, USERS]) == [USERS]
    assert journal.statuses() == {} and journal.history() == [] and journal.counters() == {}
    assert not journal.shown("sensor", "a") and journal.claim_new([ORDERS, USERS]) == []


def test_what_is_forgotten_stays_in_the_history(journal: SchemaJournal) -> None:
    journal.record(USERS, "mismatch", [PHONE])
    journal.record(ORDERS, "compatible", [])
    journal.forget(USERS)
    assert list(journal.statuses()) == [ORDERS]
    (row,) = journal.history(USERS)
    assert row.until is not None
    assert journal.record(USERS, "mismatch", [PHONE])
    assert [r.until is None for r in journal.history(USERS)] == [False, True]
    journal.forget(*journal.statuses())
    assert journal.statuses() == {} and len(journal.history()) == 3
    other = SchemaJournal(journal.conn, "other")
    other.record(USERS, "mismatch", [PHONE])
    other.shown("sensor", "a")
    journal.forget_all()
    assert journal.history() == [] and journal.counters() == {}
    assert len(other.history()) == 1 and other.counters() and other.shown("sensor", "a")


def test_findings_that_are_new_are_counted_once(journal: SchemaJournal) -> None:
    journal.record(USERS, "mismatch", [PHONE, EXTRA])
    journal.record(USERS, "mismatch", [PHONE, EXTRA])
    journal.record(USERS, "mismatch", [replace(PHONE, fix=("another",)), EXTRA])
    email = replace(PHONE, column="email", what="Source has new column 'email' not in target")
    journal.record(USERS, "mismatch", [PHONE, EXTRA, PRICE, email])
    journal.record(USERS, "compatible", [])
    journal.record(USERS, "mismatch", [PHONE])
    journal.record(ORDERS, "mismatch", [stopped("DDL waits", "ddl")])
    assert journal.counters() == {
        (USERS, "mismatches", "source_added_column"): 3,
        (USERS, "mismatches", "target_added_column"): 1,
        (USERS, "mismatches", "unsafe_cast"): 1,
        (USERS, "tables_blocked", "data_loss_risk"): 2,
        (USERS, "tables_blocked", "type_mismatch"): 1,
        (ORDERS, "mismatches", "stopped"): 1,
        (ORDERS, "tables_blocked", "ddl"): 1,
    }


def test_a_new_mismatch_is_announced_once(journal: SchemaJournal) -> None:
    journal.record(USERS, "warning", [EXTRA])
    assert journal.claim_new([ORDERS, USERS]) == []
    journal.record(USERS, "mismatch", [PHONE, EXTRA])
    journal.record(ORDERS, "mismatch", [PRICE])
    assert journal.claim_new([ORDERS, USERS]) == [ORDERS, USERS]
    assert journal.claim_new([ORDERS, USERS]) == []
    assert journal.statuses()[USERS].notified_at is not None
    journal.record(USERS, "mismatch", [PHONE])  # one finding less is no news
    assert journal.claim_new([ORDERS, USERS]) == []
    journal.record(USERS, "mismatch", [PHONE, PRICE])
    assert journal.claim_new([ORDERS, USERS]) == [USERS]
    journal.record(USERS, "compatible", [])
    assert journal.statuses()[USERS].notified_at is None
    journal.record(USERS, "mismatch", [PHONE])
    assert journal.claim_new([ORDERS, USERS]) == [USERS]


def test_of_two_that_ask_at_once_one_is_told(journal: SchemaJournal, open_journal: Callable[[], SchemaJournal]) -> None:
    journal.record(USERS, "mismatch", [PHONE])
    other = open_journal()
    with journal.conn.transaction():
        assert journal.claim_new([ORDERS, USERS]) == [USERS]
        assert other.claim_new([ORDERS, USERS]) == []  # and does not wait
    assert other.claim_new([ORDERS, USERS]) == []


def waits(journal: SchemaJournal, pid: int) -> bool:
    row = journal.conn.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid]).fetchone()
    return bool(row and row[0])


@pytest.mark.parametrize("known", [True, False])
def test_two_sessions_may_record_one_table_at_once(
    journal: SchemaJournal, open_journal: Callable[[], SchemaJournal], known: bool
) -> None:
    if known:
        journal.record(USERS, "compatible", [])
    other, watcher = open_journal(), open_journal()
    pid = other.conn.info.backend_pid

    def records() -> set[tuple[str, str]]:
        with other.conn.transaction():
            return other.record_many({USERS: ("mismatch", [PHONE, PRICE], None, (None, None))})

    with journal.conn.transaction():
        journal.record(USERS, "mismatch", [PHONE])
        beside = Underway(records)
        beside.__enter__()
        wait_until(lambda: waits(watcher, pid))
        watcher.touch([USERS])  # whoever holds the row is about to do so
    assert beside.finish() == {USERS}
    rows = journal.history(USERS)
    assert [len(r.findings) for r in rows] == ([0, 1, 2] if known else [1, 2])
    assert [r.until for r in rows] == [*[r.since for r in rows[1:]], None]
    assert journal.counters() == {
        (USERS, "mismatches", "source_added_column"): 1,
        (USERS, "mismatches", "unsafe_cast"): 1,
        (USERS, "tables_blocked", "data_loss_risk"): 1,
        (USERS, "tables_blocked", "type_mismatch"): 1,
    }


def test_two_sessions_may_record_the_same_verdict_at_once(
    journal: SchemaJournal, open_journal: Callable[[], SchemaJournal]
) -> None:
    other, watcher = open_journal(), open_journal()
    pid = other.conn.info.backend_pid
    with journal.conn.transaction():
        journal.record(USERS, "mismatch", [PHONE])
        beside = Underway(lambda: other.record(USERS, "mismatch", [PHONE]))
        beside.__enter__()
        wait_until(lambda: waits(watcher, pid))
    assert beside.finish() is False
    assert len(journal.history()) == 1
    assert journal.counters()[USERS, "mismatches", "source_added_column"] == 1


def test_sessions_that_record_many_tables_in_any_order_do_not_block_each_other_for_good(
    open_journal: Callable[[], SchemaJournal],
) -> None:
    names = [("public", f"t{n}") for n in range(40)]

    def records(journal: SchemaJournal, order: list[tuple[str, str]], findings: list[SchemaFinding]) -> None:
        for _ in range(25):
            for status, found in (("mismatch", findings), ("compatible", [])):
                journal.record_many(dict.fromkeys(order, (status, found, None, (None, None))))
                journal.touch(order)
                journal.claim_new([ORDERS, USERS])

    sessions = [open_journal(), open_journal(), open_journal()]
    with (
        Underway(lambda: records(sessions[0], names, [PHONE])) as first,
        Underway(lambda: records(sessions[1], names[::-1], [PRICE])) as second,
    ):
        first.finish()
        second.finish()
    for name in names:
        rows = sessions[2].history(name)
        assert [r.until for r in rows] == [*[r.since for r in rows[1:]], None]
        assert rows[-1].status == sessions[2].statuses()[name].status


def test_those_who_count_wait_for_nobody_and_nothing_is_lost_by_folding(
    journal: SchemaJournal, open_journal: Callable[[], SchemaJournal]
) -> None:
    other, reader = open_journal(), open_journal()
    other.conn.execute("SET lock_timeout = 1")
    for _ in range(80):
        journal.count(USERS, "rows_skipped", "column_mismatch", 2)
    with journal.conn.transaction():
        journal.count(USERS, "rows_skipped", "column_mismatch", 5)
        journal.validated("pass", 1)  # folds
        other.count(USERS, "rows_skipped", "column_mismatch", 7)
        other.validated("pass", 0.25)
        assert reader.counters()[USERS, "rows_skipped", "column_mismatch"] == 167
    assert reader.counters() == {
        (USERS, "rows_skipped", "column_mismatch"): 172,
        (None, "validations", "pass"): 2,
        (None, "validation_seconds", ""): 1.25,
    }
    assert one(reader, "SELECT count(*) FROM pgddl.schema_counters WHERE name = 'rows_skipped'") == 2


def test_a_digest_is_shown_once_per_change(journal: SchemaJournal) -> None:
    said = [journal.shown("gate", digest) for digest in "aabbaa"]
    assert said == [False, True, False, True, False, True]
    assert not journal.shown("another", "a")
    journal.conn.execute("UPDATE pgddl.schema_shown SET shown_at = shown_at - interval '91 days'")
    assert journal.shown("gate", "a")
    assert not journal.shown("gate", "b")
    assert one(journal, "SELECT count(*) FROM pgddl.schema_shown") == 1


def test_a_journal_of_an_older_version_is_taken_over(target_dsn: str) -> None:
    with connect(target_dsn, purpose="test") as conn:
        migrations.apply(conn, "journal")
        (down,) = conn.execute(
            "SELECT down FROM pgddl.migrations WHERE set_name = 'journal' AND version = 3"
        ).fetchone()
        set_up(conn, "shop")
        journal = SchemaJournal(conn, "shop")
        journal.record(USERS, "mismatch", [stopped("its copy is gone"), PHONE])
        conn.execute(down.encode())
        conn.execute("DELETE FROM pgddl.migrations WHERE set_name = 'journal' AND version = 3")
        assert one(journal, "SELECT findings FROM pgddl.schema_status") == ["its copy is gone", PHONE.what]
        migrations.apply(conn, "journal")
        row = journal.statuses()[USERS]
        assert row.findings == (replace(stopped("its copy is gone"), metric=""), stopped(PHONE.what))
        (before,) = journal.history()
        assert (before.status, before.since, before.until) == ("mismatch", row.since, None)
        assert not journal.record(USERS, "mismatch", [stopped("its copy is gone"), stopped(PHONE.what)])
        assert journal.record(USERS, "compatible", [])
        assert [r.status for r in journal.history()] == ["mismatch", "compatible"]


def test_a_verdict_that_is_none_is_refused(journal: SchemaJournal) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        journal.record(USERS, "broken", [])
