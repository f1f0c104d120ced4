"""The journal of captured DDL: once, in order, with versions and masks, and changed only where that is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.ddl.decision import Decision
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.journal.ddl import STATUSES, DdlJournal
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.sessions import one


@pytest.fixture
def journal(target_dsn: str) -> Iterator[DdlJournal]:
    with connect(target_dsn, purpose="test") as conn:
        migrations.apply(conn, "journal")
        for name in ("shop", "other"):
            conn.execute(
                "INSERT INTO pgddl.pipelines (pipeline, job, config, source_system, source_timeline)"
                " VALUES (%s, 'migrate', %s, '1', 1)",
                [name, Jsonb({})],
            )
        yield DdlJournal(conn, "shop", 1)


def table(oid: int, *columns: str) -> dict[str, Any]:
    return {
        "oid": oid,
        "schema": "public",
        "name": f"t{oid}",
        "columns": [{"attnum": n, "name": name} for n, name in enumerate(columns, 1)],
    }


def decision(
    number: int,
    statement: str = "ALTER TABLE public.t ADD COLUMN a int",
    *,
    verdict: str = "apply",
    statements: tuple[str, ...] | None = None,
    tables: tuple[dict[str, Any], ...] = (),
    dropped: tuple[int, ...] = (),
    kind: str = "table",
    tag: str = "ALTER TABLE",
) -> Decision:
    gone = [
        {"classid": "pg_class", "objid": oid, "objsubid": 0, "type": "table", "identity": f"public.t{oid}"}
        for oid in dropped
    ]
    event: Any = {
        "id": f"{number}.1",
        "xid": str(number),
        "seq": 1,
        "lsn": f"0/{number:X}00",
        "at": "",
        "batch": "",
        "tag": tag,
        "statement": statement,
        "nested": False,
        "inner": None,
        "role": "postgres",
        "session_role": "postgres",
        "path": [],
        "settings": {},
        "names": {},
        "functions": {},
        "objects": [],
        "dropped": gone,
        "rewritten": [],
        "tables": {str(t["oid"]): t for t in tables},
        "disabled_for": [],
    }
    run = statements if statements is not None else (statement,) if verdict == "apply" else ()
    return Decision(event, verdict, run, f"rule {number}", (), (("public", "t"),), False, False, kind)


def test_an_event_is_recorded_once_and_in_order(journal: DdlJournal) -> None:
    first = journal.record(decision(7))
    assert journal.record(decision(7)) is None
    second = journal.record(decision(3, verdict="skip"))
    third = journal.record(decision(5, verdict="unhandled"))
    fourth = journal.record(decision(9), approval="required")
    rows = journal.list()
    assert [(r.id, r.status) for r in rows] == [
        (first, "pending"),
        (second, "skipped"),
        (third, "unhandled"),
        (fourth, "awaiting_approval"),
    ]
    assert [r.id for r in journal.waiting()] == [first, third, fourth]
    assert [r.id for r in journal.list("skipped")] == [second]
    assert [r.id for r in journal.list(["pending", "unhandled"])] == [first, third]
    assert (rows[0].captured_id, rows[0].tag, rows[0].rule) == ("7.1", "ALTER TABLE", "rule 7")
    assert rows[0].touches == (("public", "t"),)
    assert journal.known(["7.1", "8.1"]) == {"7.1"}
    assert journal.counts() == {"pending": 1, "skipped": 1, "unhandled": 1, "awaiting_approval": 1}
    with pytest.raises(UsageError, match="there is no status 'done'"):
        journal.list("done")
    with pytest.raises(UsageError, match="there is no captured DDL event 99"):
        journal.show(99)
    assert DdlJournal(journal.conn, "other", 1).list() == []


def test_the_snapshots_events_are_left_alone(journal: DdlJournal) -> None:
    snapshot = Journal(journal.conn, "shop")
    event = journal.record(decision(1))
    assert snapshot.dump_events.to_apply(1, ["create", "index", "foreign_key", "finish"]) == []
    assert snapshot.dump_events.counts(1) == {} and snapshot.dump_events.recorded(1) == []
    snapshot.dump_events.queue_behind(1, 100, 200)
    assert [(r.id, r.seq) for r in journal.waiting()] == [(event, 0)]


@pytest.mark.parametrize(
    ("statement", "verdict", "kind", "table"),
    [
        ("CREATE INDEX i ON public.t (n)", "apply", "index", ["public", "t"]),
        ("ALTER TABLE public.t ADD CONSTRAINT c CHECK (n > 0)", "apply", "check", ["public", "t"]),
        ("DROP VIEW public.v", "apply", "view", ["public", "v"]),
        ("DO $$BEGIN CREATE TABLE public.t (n int); END$$", "unhandled", "table", ["public", "t"]),
        ("CREATE TABLE a (n int); CREATE TABLE b (n int)", "skip", "table", ["public", "t"]),
        ("SECURITY LABEL ON TABLE public.t IS 'x'", "apply", "table", ["public", "t"]),
        ("this is no SQL", "unhandled", "table", ["public", "t"]),
    ],
)
def test_the_event_has_the_json_of_a_snapshots(
    journal: DdlJournal, statement: str, verdict: str, kind: str, table: list[str]
) -> None:
    event = journal.record(decision(1, statement, verdict=verdict))
    found = journal.row(event or 0).event
    assert (found["kind"], found["table"], found["source"], found["section"]) == (kind, table, "captured", None)
    assert DdlEvent.from_json(found).to_json() == found


def test_versions_and_masks_by_lsn(journal: DdlJournal) -> None:
    before, after = table(11, "id"), table(11, "id", "secret", "a")
    journal.save_version(11, "0/80", before, [1])
    journal.save_version(12, "0/80", table(12, "id"), [1])
    first = journal.record(decision(1, tables=(after,)), masks={11: [1, 3]})
    second = journal.record(decision(2, dropped=(11, 999), tag="DROP TABLE"), masks={})
    details = journal.show(first or 0)
    assert details.previous_version == {"11": before}
    assert (details.previous_mask, details.mask) == ({"11": [1]}, {"11": [1, 3]})
    assert journal.show(second or 0).previous_version == {"11": after}
    assert journal.load_versions("0/100") == {11: after, 12: table(12, "id")}
    assert journal.load_versions("0/FF") == {11: before, 12: table(12, "id")}
    assert journal.load_masks("0/100") == {11: [1, 3], 12: [1]}
    assert set(journal.load_versions()) == {12}
    assert journal.prune_versions() == 0
    journal.set_position("100:100:", "0/100")
    assert (journal.position(), journal.lsn()) == ("100:100:", "0/100")
    assert journal.prune_versions() == 1
    assert journal.load_versions("0/100") == {11: after, 12: table(12, "id")}
    assert journal.prune_versions("0/300") == 2
    assert set(journal.load_versions()) == {12}


def test_a_person_decides(journal: DdlJournal) -> None:
    one_, two, three = (journal.record(decision(n), approval="required") or 0 for n in (1, 2, 3))
    broken = journal.record(decision(4, verdict="unhandled")) or 0
    assert journal.approve([two]) == [two]
    with pytest.raises(UsageError, match="is unhandled, not awaiting approval"):
        journal.approve([one_, broken])
    assert [r.status for r in journal.waiting()] == ["awaiting_approval", "pending", "awaiting_approval", "unhandled"]
    assert journal.approve() == [one_, three]
    with pytest.raises(UsageError, match="not failed"):
        journal.retry(one_)
    journal.resolve(broken, "did it by hand")
    journal.skip(three, "not wanted")
    assert [(r.id, r.status, r.note) for r in journal.list(["resolved", "skipped"])] == [
        (three, "skipped", "not wanted"),
        (broken, "resolved", "did it by hand"),
    ]
    for done in (three, broken):
        with pytest.raises(UsageError, match="cannot become"):
            journal.resolve(done, "again")
    assert journal.start_attempt(two) is not None
    for change in (journal.skip, journal.resolve):
        with pytest.raises(UsageError):
            change(two, "while it is being applied")
    journal.add_notes(two, ["seen"])
    assert journal.row(two).notes == ("seen",)


def test_what_was_decided_can_be_decided_anew_until_it_is_done(journal: DdlJournal) -> None:
    event = journal.record(decision(1, verdict="unhandled")) or 0
    assert journal.redecide(event, decision(1))
    assert journal.row(event).status == "pending"
    attempt = journal.start_attempt(event)
    assert attempt is not None and not attempt.interrupted
    assert not journal.redecide(event, decision(1, verdict="skip"))
    journal.finish_attempt(event, attempt, "applied")
    assert not journal.redecide(event, decision(1, verdict="skip"))
    assert journal.start_attempt(event) is None


def test_attempts_of_weeks_do_not_pile_up(journal: DdlJournal) -> None:
    event = journal.record(decision(1)) or 0
    for number in range(1, 251):
        attempt = journal.start_attempt(event)
        assert attempt is not None and attempt.number == number
        journal.put_off(event, attempt, f"not yet, {number}")
    attempts = journal.show(event).attempts
    assert [attempt["number"] for attempt in attempts] == [1, *range(151, 251)]


def test_what_the_source_could_not_record_waits_for_a_person(journal: DdlJournal) -> None:
    lost = {"id": 4, "tag": "CREATE VIEW", "what": "permission denied", "relation": '"My app".v',
            "statement": "CREATE ROLE r PASSWORD 'hunter2'; CREATE VIEW v AS SELECT 1"}  # fmt: skip
    event = journal.record_lost(lost) or 0
    assert journal.record_lost(lost) is None
    row = journal.row(event)
    assert (row.status, row.rule) == ("unhandled", "exception 4 on the source: permission denied")
    assert row.touches == (("My app", "v"),)
    assert "hunter2" not in str(journal.show(event).to_json())
    nowhere = journal.record_lost({**lost, "id": 5, "relation": None, "statement": None}) or 0
    assert journal.row(nowhere).touches == ()
    cut = "ALTER TABLE t ADD x int; UPDATE t SET email = 'jane@"  # its first 2000 characters
    part = journal.record_lost({**lost, "id": 6, "statement": cut}, in_part=True) or 0
    assert "jane" not in str(journal.show(part).to_json())


def test_secrets_do_not_reach_the_journal(journal: DdlJournal, target_dsn: str) -> None:
    mapping = "CREATE USER MAPPING FOR u SERVER s OPTIONS (password 'hunter2')"
    for number, text in enumerate(
        [mapping, f"CREATE TABLE t (password text); {mapping}", "DO $$BEGIN CREATE ROLE r PASSWORD 'hunter2'; END$$"], 1
    ):
        journal.record(decision(number, text, verdict="unhandled"))
    applied = journal.record(decision(8, mapping)) or 0
    assert (journal.row(applied).status, journal.row(applied).statements) == ("unhandled", ())
    plain = "CREATE TABLE t (password text DEFAULT 'none')"
    kept = journal.record(decision(9, plain)) or 0
    assert journal.captured(kept)["statement"] == plain
    assert "CREATE TABLE t (password text)" in journal.captured(journal.list()[1].id)["statement"]
    query = "SELECT count(*) FROM pgddl.ddl_events e WHERE e::text LIKE '%%hunter2%%'"
    assert one(target_dsn, query.replace("%%", "%")) == 0


def test_purge_leaves_other_pipelines_alone_and_nothing_of_this(journal: DdlJournal, target_dsn: str) -> None:
    other = DdlJournal(journal.conn, "other", 1)
    for each in (journal, other):
        event = each.record(decision(1, tables=(table(11, "id"),)), masks={11: [1]}) or 0
        assert each.start_attempt(event) is not None
        each.conn.execute(
            "INSERT INTO pgddl.killed_blockers (pipeline, event_id, pid, signal) VALUES (%s, %s, 1, 'cancel')",
            [each.pipeline, event],
        )
    assert Journal(journal.conn, "shop").purge() == 1
    with psycopg.connect(target_dsn) as conn:
        for name in ("ddl_events", "ddl_attempts", "schema_versions", "killed_blockers"):
            assert conn.execute(f"SELECT count(*) FROM pgddl.{name}").fetchone() == (1,)
    assert len(other.list()) == 1
    migrations.revert(journal.conn, "journal")
    assert one(target_dsn, "SELECT to_regnamespace('pgddl')") is None


def test_every_status_is_one_that_the_table_takes(journal: DdlJournal) -> None:
    for number, status in enumerate(STATUSES, 1):
        event = journal.record(decision(number))
        journal.conn.execute("UPDATE pgddl.ddl_events SET status = %s WHERE id = %s", [status, event])
    assert {row.status for row in journal.list()} == set(STATUSES)
