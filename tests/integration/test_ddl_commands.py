"""`pgddl ddl …` on real servers: what it shows, what a decision does, and what the next replay makes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.shells import Shell

SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (id int PRIMARY KEY, note text);
CREATE TABLE shop.users (id int PRIMARY KEY, name text);
INSERT INTO shop.orders SELECT n, 'order ' || n FROM generate_series(1, 50) n;
"""
TABLES = {"tables": {"include": ["shop.*"]}}


class DdlShell(Shell):
    group = "ddl"

    def events(self, *args: str) -> list[tuple[str, str]]:
        """(status, tag) of what `list` shows."""
        return [(event["status"], event["tag"]) for event in self("list", *args)[1]["events"]]

    def only(self, status: str) -> dict[str, Any]:
        """The one event that waits, and that a person is asked for it."""
        code, found = self("list")
        assert code == 3
        (event,) = (e for e in found["events"] if e["status"] == status)
        assert found["waiting_for_a_person"] == [event["id"]]
        assert event["todo"]
        return dict(event)


Ready = Callable[..., tuple[Lifecycle, DdlShell]]


@pytest.fixture
def ready(
    lifecycle: Callable[..., Lifecycle],
    source_dsn: str,
    target_dsn: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Ready:
    """``ready(ddl={...})``: a pipeline that has been replayed once, so that what comes now is followed."""

    def make(**sections: Any) -> tuple[Lifecycle, DdlShell]:
        execute(source_dsn, SHOP)
        move = lifecycle(source_dsn, target_dsn, **TABLES, **sections)
        move.run_all(until="replay")
        return move, DdlShell(move, tmp_path / "shop.yaml", capsys)

    return make


def columns(dsn: str, table: str) -> list[str]:
    query = "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
    with psycopg.connect(dsn) as conn:
        return [name for (name,) in conn.execute(f"{query} ORDER BY attnum", [table])]


def rows(dsn: str, table: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(f"SELECT * FROM {table} ORDER BY 1".encode()).fetchall()


def test_what_was_applied_and_skipped_is_listed_on_demand(ready: Ready) -> None:
    move, ddl = ready()
    assert ddl("list") == (0, {**ddl("list")[1], "events": [], "waiting_for_a_person": []})
    execute(move.source, "ALTER TABLE shop.orders ADD paid boolean; GRANT SELECT ON shop.orders TO PUBLIC")
    move.run("replay")
    assert ddl.events() == []
    assert ddl.events("--all") == [("applied", "ALTER TABLE"), ("skipped", "GRANT")]
    assert ddl.events("--status", "skipped", "failed") == [("skipped", "GRANT")]
    code, said = ddl.say("list", "--all")
    assert code == 0
    assert said.splitlines()[0].split() == ["ID", "STATUS", "AGE", "COMMAND", "ON", "STATEMENT"]
    assert "shop.orders" in said
    assert said.splitlines()[-1] == f"{move.name}, run 1: 1 applied, 1 skipped"


def test_a_failed_event_is_retried_once_its_cause_is_gone(ready: Ready) -> None:
    move, ddl = ready()
    execute(move.target, "ALTER TABLE shop.orders ADD paid text")
    execute(move.source, "ALTER TABLE shop.orders ADD paid boolean DEFAULT true")
    assert move.run("replay").blocked
    event = ddl.only("failed")
    assert 'column "paid"' in event["reason"]
    assert ddl("retry")[0] == 3
    code, found = ddl("show", event["id"])
    assert code == 0
    assert [attempt["outcome"] for attempt in found["event"]["attempts"]] == ["failed", "failed"]
    (change,) = found["event"]["changes"]
    assert [column["name"] for column in change["columns_added"]] == ["paid"]
    said = ddl.say("show", event["id"])[1]
    assert "shop.orders: column paid added" in said
    assert "→ put right what the server says" in said

    execute(move.target, "ALTER TABLE shop.orders DROP paid")
    code, found = ddl("retry", event["id"])
    assert (code, [e["status"] for e in found["changed"]]) == (0, ["applied"])
    execute(move.source, "UPDATE shop.orders SET paid = false WHERE id < 10")
    assert not move.run("replay").blocked
    assert rows(move.target, "shop.orders") == rows(move.source, "shop.orders")


def test_retry_goes_in_commit_order_up_to_the_first_failure(ready: Ready) -> None:
    move, ddl = ready(ddl={"on_failure": "queue"})
    execute(move.target, "CREATE TABLE shop.a (x int); CREATE TABLE shop.b (x int)")
    for name in "ab":
        execute(move.source, f"CREATE VIEW shop.{name} AS SELECT id FROM shop.orders")
    assert not move.run("replay").blocked
    first, second = ddl("list")[1]["waiting_for_a_person"]
    code, found = ddl("retry")
    assert (code, [e["id"] for e in found["changed"]]) == (3, [first])
    execute(move.target, "DROP TABLE shop.a")
    code, found = ddl("retry")
    assert [(e["id"], e["status"]) for e in found["changed"]] == [(first, "applied"), (second, "failed")]
    assert code == 3
    execute(move.target, "DROP TABLE shop.b")
    assert ddl("retry", second)[0] == 0
    assert ddl("retry") == (0, {**ddl("retry")[1], "changed": []})
    assert "nothing to do" in ddl.say("retry")[1]


def test_an_unhandled_event_is_done_by_hand_and_resolved(ready: Ready) -> None:
    move, ddl = ready(ddl={"multi_statements": "single_only"})
    both = "ALTER TABLE shop.orders ADD paid boolean; ALTER TABLE shop.orders ADD sent boolean"
    execute(move.source, both)
    execute(move.source, "UPDATE shop.orders SET paid = true WHERE id = 1")
    assert move.run("replay").blocked
    code, found = ddl("list")
    assert code == 3
    waiting = found["waiting_for_a_person"]
    assert [e["status"] for e in found["events"] if e["id"] in waiting] == ["unhandled", "unhandled"]
    execute(move.target, both)
    for event_id in waiting:
        code, found = ddl("resolve", event_id, "--note", "by hand, ticket 17")
        assert [e["status"] for e in found["changed"]] == ["resolved"]
    assert code == 0
    assert "by hand, ticket 17" in ddl("show", waiting[0])[1]["event"]["note"]
    assert ddl.say("resolve", waiting[0], "--note", "again")[0] == 2
    assert not move.run("replay").blocked
    assert rows(move.target, "shop.orders") == rows(move.source, "shop.orders")


def test_an_event_that_nobody_wants_is_skipped(ready: Ready) -> None:
    move, ddl = ready()
    execute(move.target, "CREATE TABLE shop.recent (x int)")
    execute(move.source, "CREATE VIEW shop.recent AS SELECT id FROM shop.orders")
    execute(move.source, "ALTER TABLE shop.users ADD age int")
    move.run("replay")
    event = ddl.only("failed")
    assert "age" not in columns(move.target, "shop.users")
    assert ddl("skip", event["id"], "--note", "the name is taken here")[0] == 0
    assert not move.run("replay").blocked
    assert "age" in columns(move.target, "shop.users")
    assert ddl.events("--all") == [("skipped", "CREATE VIEW"), ("applied", "ALTER TABLE")]


def test_nothing_that_needs_approval_is_applied_before(ready: Ready) -> None:
    move, ddl = ready(ddl={"approval": "required"})
    for column in ("a", "b", "c"):
        execute(move.source, f"ALTER TABLE shop.orders ADD {column} int")
    assert move.run("replay").blocked
    code, found = ddl("list")
    assert (code, [e["status"] for e in found["events"]]) == (3, ["awaiting_approval"] * 3)
    first, second, third = found["waiting_for_a_person"]
    assert columns(move.target, "shop.orders") == ["id", "note"]

    assert ddl("approve", second)[0] == 3
    assert ddl.say("approve", second)[0] == 2
    move.run("replay")
    assert columns(move.target, "shop.orders") == ["id", "note"], "the first one is waited for"
    assert ddl("approve", first)[0] == 3
    move.run("replay")
    assert columns(move.target, "shop.orders") == ["id", "note", "a", "b"]
    code, found = ddl("approve", "--all")
    assert (code, [e["id"] for e in found["changed"]]) == (0, [third])
    assert not move.run("replay").blocked
    assert columns(move.target, "shop.orders") == ["id", "note", "a", "b", "c"]


@pytest.mark.parametrize("transport", ["queue", "wal"])
def test_what_is_run_while_disabled_does_not_follow(ready: Ready, transport: str) -> None:
    move, ddl = ready(capture={"ddl": transport})
    assert ddl("disable") == (0, {"pipeline": move.name, "enabled": False})
    execute(move.source, "CREATE VIEW shop.left_out AS SELECT id FROM shop.orders")
    assert ddl("enable") == (0, {"pipeline": move.name, "enabled": True})
    execute(move.source, "CREATE VIEW shop.taken AS SELECT id FROM shop.orders")
    assert not move.run("replay").blocked
    assert ddl.events("--all") == [("skipped", "CREATE VIEW"), ("applied", "CREATE VIEW")]


def test_a_table_altered_while_disabled_is_stopped_until_its_copy_is_too(ready: Ready) -> None:
    move, ddl = ready()
    ddl("disable")
    execute(move.source, "ALTER TABLE shop.orders ADD paid boolean DEFAULT true")
    (blocked,) = move.run("replay").blocked
    assert blocked == {"table": "shop.orders", "reason": "Source has new column 'paid' not in target"}
    ddl("enable")
    execute(move.target, "ALTER TABLE shop.orders ADD paid boolean DEFAULT true")
    execute(move.source, "UPDATE shop.orders SET paid = false WHERE id < 10")
    assert not move.run("replay").blocked
    assert rows(move.target, "shop.orders") == rows(move.source, "shop.orders")


def test_a_column_that_is_skipped_stops_its_table_until_it_is_gone(ready: Ready) -> None:
    move, ddl = ready(ddl={"approval": "required"})
    execute(move.source, "ALTER TABLE shop.orders ADD paid boolean")
    move.run("replay")
    assert ddl("skip", ddl.only("awaiting_approval")["id"], "--note", "not here")[0] == 0
    (blocked,) = move.run("replay").blocked
    assert blocked == {"table": "shop.orders", "reason": "Source has new column 'paid' not in target"}
    execute(move.source, "ALTER TABLE shop.orders DROP paid")
    move.run("replay")
    assert ddl("skip", ddl.only("awaiting_approval")["id"], "--note", "nor this")[0] == 0
    assert not move.run("replay").blocked
    assert columns(move.target, "shop.orders") == ["id", "note"]


def test_a_table_that_comes_into_the_scope_is_made_by_hand_and_filled(ready: Ready) -> None:
    move, ddl = ready(ddl={"schemas": "^shop$"})
    execute(move.source, "CREATE SCHEMA other; CREATE TABLE other.t (id int PRIMARY KEY, x text)")
    execute(move.source, "INSERT INTO other.t VALUES (1, 'a'), (2, 'b')")
    execute(move.source, "ALTER TABLE other.t SET SCHEMA shop")
    move.run("replay")
    event = ddl.only("unhandled")
    assert "comes into the scope" in event["reason"]
    execute(move.target, "CREATE TABLE shop.t (id int PRIMARY KEY, x text)")
    assert ddl("resolve", event["id"], "--note", "made without rows")[0] == 0
    execute(move.source, "INSERT INTO shop.t VALUES (3, 'c')")
    assert not move.run("replay").blocked
    assert rows(move.target, "shop.t") == [(1, "a"), (2, "b"), (3, "c")]


def test_what_could_not_be_recorded_is_told_and_resolved_in_both_places(ready: Ready) -> None:
    move, ddl = ready()
    execute(move.source, "ALTER TABLE pgddl.ddl_queue ADD CONSTRAINT full_disk CHECK (false) NOT VALID")
    secret = "SELECT 'host=h password=hunter2'"
    execute(move.source, f"CREATE VIEW shop.lost AS SELECT id FROM shop.orders; {secret}")
    execute(move.source, "ALTER TABLE pgddl.ddl_queue DROP CONSTRAINT full_disk")
    code, found = ddl("exceptions")
    assert (code, found["unresolved"]) == (3, 1)
    (exception,) = found["exceptions"]
    assert "hunter2" not in str(found)
    assert "full_disk" in exception["what"]
    assert exception["statement"].startswith("CREATE VIEW shop.lost")
    code, said = ddl.say("exceptions")
    assert "1 exception left: do by hand" in said

    move.run("replay")
    event = ddl.only("unhandled")
    assert f"exception {exception['id']}" in event["reason"]
    execute(move.target, "CREATE VIEW shop.lost AS SELECT id FROM shop.orders")
    assert ddl("resolve-exception", exception["id"], "--note", "by hand")[0] == 0
    assert ddl("resolve-exception", exception["id"], "--note", "by hand")[0] == 2
    assert ddl("exceptions")[1]["exceptions"] == []
    assert [e["note"].split(" (")[0] for e in ddl("exceptions", "--all")[1]["exceptions"]] == ["by hand"]
    assert ddl.events("--all") == [("resolved", "CREATE VIEW")]
    assert not move.run("replay").blocked


def test_an_exception_is_not_over_before_every_pipeline_has_read_of_it(
    ready: Ready,
    lifecycle: Callable[..., Lifecycle],
    pg18: Cluster,
    database: Database,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    move, ddl = ready()
    other = lifecycle(move.source, database(pg18), **TABLES)
    other.run_all(until="replay")
    others = DdlShell(other, tmp_path / "other.yaml", capsys)
    execute(move.source, "ALTER TABLE pgddl.ddl_queue ADD CONSTRAINT full_disk CHECK (false) NOT VALID")
    execute(move.source, "CREATE VIEW shop.lost AS SELECT id FROM shop.orders")
    execute(move.source, "ALTER TABLE pgddl.ddl_queue DROP CONSTRAINT full_disk")
    move.run("replay")
    event = ddl.only("unhandled")
    assert ddl("resolve", event["id"], "--note", "not wanted")[0] == 0
    (exception,) = others("exceptions")[1]["exceptions"]
    code, said = ddl.say("resolve-exception", exception["id"], "--note", "not wanted")
    assert code == 2
    assert f"pipeline {other.name} has not read exception" in said

    other.run("replay")
    event = others.only("unhandled")
    assert others("resolve", event["id"], "--note", "not wanted")[0] == 0
    assert ddl("exceptions") == (0, {"pipeline": move.name, "exceptions": [], "unresolved": 0})


def test_who_was_in_the_way_and_signalled_is_told_once(ready: Ready) -> None:
    move, ddl = ready(ddl={"signal_blockers": "cancel", "lock_timeout": "100ms"})
    holding = threading.Event()
    cancelled: list[str] = []

    def report() -> None:
        with psycopg.connect(move.target) as reader:
            reader.execute("LOCK shop.orders IN ACCESS SHARE MODE")
            holding.set()
            try:
                reader.execute("SELECT pg_sleep(60)")
            except psycopg.errors.QueryCanceled as error:
                cancelled.append(str(error))

    someone = threading.Thread(target=report)
    someone.start()
    assert holding.wait(30)
    execute(move.source, "ALTER TABLE shop.orders ADD paid boolean")
    assert not move.run("replay").blocked
    someone.join(60)
    assert len(cancelled) == 1
    (killed,) = ddl("killed")[1]["killed"]
    assert killed["signal"] == "cancel"
    assert killed["query"] == "SELECT pg_sleep(60)"
    assert ddl("killed", "--report") == (0, {**ddl("killed", "--all")[1], "reported": 1, "killed": [killed]})
    assert ddl("killed")[1]["killed"] == []
    assert [k["reported"] for k in ddl("killed", "--all")[1]["killed"]] == [True]
    assert "SELECT pg_sleep(60)" in ddl.say("killed", "--all")[1]


def test_in_place_a_retry_reaches_the_copy_only(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(source_dsn, SHOP)
    rewrite = lifecycle(source_dsn, rewrite={"shop.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}})
    rewrite.run_all(until="replay")
    ddl = DdlShell(rewrite, tmp_path / "shop.yaml", capsys)
    execute(source_dsn, "ALTER TABLE pgddl_copy_shop.orders ADD paid text")
    execute(source_dsn, "ALTER TABLE shop.orders ADD paid boolean DEFAULT true")
    assert rewrite.run("replay").blocked
    assert "pgddl_copy_shop.orders" in ddl.only("failed")["statement"]
    execute(source_dsn, "ALTER TABLE pgddl_copy_shop.orders DROP paid")
    assert ddl("retry")[0] == 0
    assert columns(source_dsn, "pgddl_copy_shop.orders") == columns(source_dsn, "shop.orders") == ["id", "note", "paid"]
    assert not rewrite.run("replay").blocked
    assert rows(source_dsn, "pgddl_copy_shop.orders") == rows(source_dsn, "shop.orders")


def test_what_waits_behind_another_says_so(ready: Ready) -> None:
    move, ddl = ready()
    execute(move.target, "ALTER TABLE shop.orders ADD paid text")
    execute(move.source, "ALTER TABLE shop.orders ADD paid boolean")
    execute(move.source, "ALTER TABLE shop.users ADD age int")
    blocked = move.run("replay").blocked
    assert {b["table"] for b in blocked} == {"shop.orders", "shop.users"}
    failed, pending = ddl("list")[1]["events"]
    assert pending["todo"] == f"nothing: it waits behind event {failed['id']}"


def test_one_event_is_refused_while_an_earlier_one_on_the_same_table_waits(ready: Ready) -> None:
    move, ddl = ready(ddl={"on_failure": "queue"})
    execute(move.target, "CREATE TABLE shop.recent (x int)")
    execute(move.source, "CREATE VIEW shop.recent AS SELECT id FROM shop.orders")
    execute(move.source, "CREATE OR REPLACE VIEW shop.recent AS SELECT id, note FROM shop.orders")
    move.run("replay")
    first, second = ddl("list")[1]["waiting_for_a_person"]
    code, said = ddl.say("retry", second)
    assert code == 2
    assert f"see to event {first} first" in said


def test_an_event_that_is_not_there_is_bad_usage(ready: Ready) -> None:
    _, ddl = ready()
    for command in (["show", 99], ["approve", 99], ["retry", 99], ["skip", 99, "--note", "x"]):
        code, said = ddl.say(*command)
        assert (code, "pgddl ddl list" in said) == (2, True), said


def test_while_a_run_is_alive_retry_says_so_and_decisions_are_taken(ready: Ready, monkeypatch: Any) -> None:
    from airflow_provider_pgddl.engine.journal import lease

    move, ddl = ready()
    execute(move.target, "CREATE TABLE shop.recent (x int)")
    execute(move.source, "CREATE VIEW shop.recent AS SELECT id FROM shop.orders")
    move.run("replay")
    event = ddl.only("failed")
    monkeypatch.setattr(lease, "TAKEOVER_WAIT", 0.1)
    with lease.Lease(move.target, move.name, "replay", None):
        code, said = ddl.say("retry")
        assert code == 5
        assert "another run" in said
        assert ddl("skip", event["id"], "--note", "not wanted")[0] == 0


def test_before_setup_there_is_nothing_to_see(
    lifecycle: Callable[..., Lifecycle],
    source_dsn: str,
    target_dsn: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    execute(source_dsn, SHOP)
    ddl = DdlShell(lifecycle(source_dsn, target_dsn, **TABLES), tmp_path / "shop.yaml", capsys)
    for command in (["list"], ["retry"], ["exceptions"], ["disable"]):
        code, said = ddl.say(*command)
        assert (code, "run stage setup first" in said) == (2, True), said
    code, found = ddl("preview")
    assert code == 0
    assert found["tables"] == ["shop.orders", "shop.users"]


def test_the_preview_shows_what_the_scope_matches_now(ready: Ready) -> None:
    move, ddl = ready(ddl={"schemas": "^sho"})
    execute(move.source, 'CREATE SCHEMA shoes; CREATE SCHEMA books; CREATE TABLE shoes."Left Ones" (id int)')
    code, found = ddl("preview")
    assert (code, found["schemas"], found["other_schemas"]) == (0, ["shoes", "shop"], ["books", "public"])
    assert found["tables"] == ["shop.orders", "shop.users"]
    assert found["other_tables"] == ['shoes."Left Ones"'], "tables.include does not name it"
    assert "CREATE TABLE" in found["create_tags"]
    assert "INSERT" in found["blocked_tags"]
    _, said = ddl.say("preview")
    assert "scope schemas, pattern ^sho" in said
    assert "drop_tags: DROP ACCESS METHOD, DROP AGGREGATE" in said


@pytest.mark.parametrize("sections", [{"ddl": {"scope": "replicated_tables"}}, {"rewrite": {"shop.orders": {}}}])
def test_by_table_the_preview_shows_no_schemas(
    lifecycle: Callable[..., Lifecycle],
    source_dsn: str,
    target_dsn: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sections: dict[str, Any],
) -> None:
    execute(source_dsn, SHOP)
    in_place = "rewrite" in sections
    content = sections if in_place else {**sections, "tables": {"include": ["shop.orders"]}}
    move = lifecycle(source_dsn, *([] if in_place else [target_dsn]), **content)
    ddl = DdlShell(move, tmp_path / "shop.yaml", capsys)
    found = ddl("preview")[1]
    assert (found["tables"], found["other_tables"], found["schemas"]) == (["shop.orders"], ["shop.users"], [])
    said = ddl.say("preview")[1]
    assert "schemas:" not in said
    assert ("create_tags: ALTER TABLE, COMMENT" in said) is not in_place
