"""The way back of a cut-over: the old server stays current, and applications can go to and fro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands.ddl import record_decision
from airflow_provider_pgddl.engine.commands.way_back import way_back_file
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed, UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.swapping import way_back_across
from tests.combinations import matrix
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.sessions import do
from tests.integration.ways_back import EVERYTHING, SHOP, WORK, Lifecycles, Ways, refused


def checked(move: Lifecycle) -> list[str]:
    """What `pgddl check` says is in the way."""
    found = stages.check(load_pipeline(move.content), move.source, move.target)["findings"]
    return [f"{f['table']}: {f['what']}" for f in found if f["severity"] == "error"]


def test_a_cast_that_loses_something_has_no_way_back(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> None:
    """One that the file names, before setup; one that somebody has made on the target, before the fence."""
    execute(source_dsn, SHOP)
    named = {"allow_type_cast": {"shop.purchase.note": "character varying(40)"}, "force": True}
    ways = Ways(lifecycle, source_dsn, target_dsn, schema=named, capture={"ddl": "off"})
    there, why = ways.there, "so what comes back need not be what was there"
    assert why in str(there.refused("setup", PreflightRefused))
    (said,) = checked(there)
    assert why in said and said.startswith("shop.purchase: ")
    assert left_behind(ways.old) == left_behind(ways.new) == []
    there.content["schema"] = {"allow_type_cast": {"shop.purchase.id": "bigint"}, "force": True}
    assert checked(there) == []
    there.content["schema"] = {"type_mismatches": "cast_always", "force": True}
    there.run_all(until="schema_sync")
    execute(ways.new, "ALTER TABLE shop.purchase ALTER COLUMN note TYPE varchar(40)")
    there.run_all(after="schema_sync", until="replay")
    there.run("verify")
    assert checked(there) == [said]
    assert why in str(there.refused("swap", PreflightRefused))
    execute(ways.old, "INSERT INTO shop.customer (name) VALUES ('open')")


def test_what_would_fire_for_rows_that_come_back_is_refused_before_setup(
    lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    execute(source_dsn, SHOP + "ALTER TABLE shop.purchase ENABLE ALWAYS TRIGGER noted")
    ways = Ways(lifecycle, source_dsn, target_dsn)
    assert "noted" in str(ways.there.refused("setup", PreflightRefused))
    found = stages.check(load_pipeline(ways.there.content), ways.old, ways.new)["findings"]
    ((what, fix),) = [(f["what"], f["fix"]) for f in found if f["severity"] == "error"]
    assert "trigger noted" in what
    execute(ways.old, fix)
    ways.there.run("setup")
    execute(ways.old, "ALTER TABLE shop.purchase ENABLE REPLICA TRIGGER noted")
    ways.there.run_all(after="setup", until="verify")
    assert "noted" in checked(ways.there)[0]
    assert "noted" in str(ways.there.refused("swap", PreflightRefused))
    execute(ways.old, fix)
    execute(ways.old, "INSERT INTO shop.customer (name) VALUES ('open')")
    assert not ways.there.run("swap").blocked


@pytest.fixture
def ways(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> Ways:
    execute(source_dsn, SHOP)
    return Ways(lifecycle, source_dsn, target_dsn)


FEELING = """
CREATE TYPE shop.mood AS ENUM ('sad', 'ok');
CREATE TABLE shop.feeling (id int PRIMARY KEY, mood shop.mood NOT NULL);
"""


def test_values_that_the_old_server_does_not_take_stop_their_tables(
    lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    """A label and a missing constraint of the new server's alone; all else goes on."""
    execute(source_dsn, SHOP + FEELING)
    ways = Ways(lifecycle, source_dsn, target_dsn, capture={"ddl": "off"})
    ways.there.run_all(until="swap")
    execute(ways.new, "ALTER TYPE shop.mood ADD VALUE 'great'")
    execute(ways.new, "INSERT INTO shop.feeling SELECT n, 'ok' FROM generate_series(1, 40) n")
    execute(ways.new, "INSERT INTO shop.feeling VALUES (41, 'ok'), (42, 'great'), (43, 'ok'), (44, 'great')")
    execute(ways.new, "ALTER TABLE shop.purchase DROP CONSTRAINT purchase_total_check")
    execute(ways.new, "UPDATE shop.purchase SET total = -5 WHERE id = 743; UPDATE shop.part SET v = 'on' WHERE id = 7")
    blocked = {b["table"]: b["reason"] for b in ways.back.run("replay").blocked}  # before a row is looked at
    assert blocked.keys() == {"shop.feeling", "shop.purchase"}
    assert "mood" in blocked["shop.feeling"] and "purchase_total_check" in blocked["shop.purchase"], blocked
    rows_decide = {"target_added_constraints": "allow", "type_mismatches": "cast_always", "force": True}
    blocked = {b["table"]: b["reason"] for b in ways.back.run("replay", schema=rows_decide).blocked}
    assert blocked.keys() == {"shop.feeling", "shop.purchase"}
    assert "key (42), (44)" in blocked["shop.feeling"] and "key (743)" in blocked["shop.purchase"], blocked
    assert ways.there.on_source("SELECT v FROM shop.part WHERE id = 7") == [("on",)]
    ways.back.refused("swap")
    execute(
        ways.new, "DELETE FROM shop.feeling WHERE id IN (42, 44); UPDATE shop.purchase SET total = 5 WHERE id = 743"
    )
    execute(ways.new, "ALTER TABLE shop.purchase ADD CONSTRAINT purchase_total_check CHECK (total >= 0)")
    execute(ways.old, "ALTER TYPE shop.mood ADD VALUE 'great'")
    for stage in ("replay", "verify", "swap"):
        assert not ways.back.run(stage).blocked
    ways.alike()


def test_ddl_that_the_old_version_does_not_take_stops_its_table(ways: Ways) -> None:
    ways.there.run_all(until="swap")
    execute(ways.new, "ALTER TABLE shop.purchase ADD COLUMN twice numeric GENERATED ALWAYS AS (total * 2) VIRTUAL")
    execute(ways.new, WORK.format("there", 2))
    blocked = {b["table"]: b["reason"] for b in ways.back.run("replay").blocked}
    assert blocked.keys() == {"shop.purchase"} and "ALTER TABLE" in blocked["shop.purchase"], blocked
    assert ways.there.on_source("SELECT count(*) FROM shop.customer WHERE born = '2000-01-01'") != [(0,)]
    ways.back.refused("swap")
    execute(ways.new, "ALTER TABLE shop.purchase DROP COLUMN twice")
    for _ in range(2):  # that, too, is not to be had there
        query = "SELECT id FROM pgddl.ddl_events WHERE status IN ('unhandled', 'failed') ORDER BY id LIMIT 1"
        ((event,),) = ways.back.journal(query)
        back = load_pipeline(ways.back.content)
        record_decision(back, ways.new, ways.old, event, "resolved", "not on the old version", "me")
        ways.back.run("replay")
    for stage in ("replay", "verify", "swap"):
        assert not ways.back.run(stage).blocked
    ways.alike()


@pytest.fixture(params=matrix("16 to 18", "18 to 16", "15 to 18"))
def servers(request: pytest.FixtureRequest, database: Callable[[Cluster], str]) -> tuple[str, str]:
    """A database on an old server, and one on a new server."""
    old, new = (request.getfixturevalue(f"pg{version}") for version in request.param.split(" to "))
    return database(old), database(new)


# What one version prints otherwise than the other: names of NOT NULL, and whatever else is new with a partition.
PARTITION = (
    "CREATE TABLE shop.part_{0} PARTITION OF shop.part FOR VALUES FROM ('{0}-01-01') TO ('{0}-12-31');"
    " CREATE TABLE shop.new_{0} (id int PRIMARY KEY, n text NOT NULL DEFAULT 'n');"
    " INSERT INTO shop.part VALUES ('{0}-05-05', 10039, 'x'); INSERT INTO shop.new_{0} VALUES (1), (2)"
)


def test_to_and_fro_and_there_again(lifecycle: Lifecycles, servers: tuple[str, str]) -> None:
    old, new = servers
    execute(old, SHOP)
    ways = Ways(lifecycle, old, new)
    there, back = ways.there, ways.back
    there.run_all(until="verify")
    execute(old, WORK.format("before", 1))
    assert not there.run("swap").blocked
    ways.alike()
    refused(old, "DELETE FROM shop.purchase")
    assert there.run("cleanup").blocked  # while the way back lives

    execute(new, WORK.format("there", 2))
    execute(new, "ALTER TABLE shop.customer ADD COLUMN city text DEFAULT 'here'")
    execute(new, "UPDATE shop.customer SET city = 'there' WHERE id % 9 = 0")
    execute(new, PARTITION.format(2030))
    assert not back.run("replay").blocked
    ways.equal()
    refused(old, "INSERT INTO shop.part VALUES ('2024-01-01', 1, 'x')")
    execute(new, WORK.format("more", 3))
    assert not back.run("replay").blocked
    assert not back.run("verify").blocked
    execute(new, WORK.format("last", 4))
    assert not back.run("swap").blocked
    ways.alike()
    execute(old, "INSERT INTO shop.purchase (customer, total) SELECT min(id), 3 FROM shop.customer")
    refused(new, "DELETE FROM shop.purchase")

    execute(old, WORK.format("home", 5))
    execute(old, PARTITION.format(2031))
    assert not there.run("replay").blocked
    ways.equal()
    assert not there.run("verify").blocked
    execute(old, WORK.format("leaving", 6))
    assert not there.run("swap").blocked
    ways.alike()
    execute(new, WORK.format("arrived", 0))
    refused(old, "DELETE FROM shop.purchase")
    assert not back.run("replay").blocked
    ways.equal()

    assert not back.run("cleanup").blocked
    assert not there.run("cleanup").blocked
    refused(old, "DELETE FROM shop.purchase")
    assert left_behind(new) == ["schema pgddl"]
    fenced = {line for line in left_behind(old) if "pgddl_fence_" in line}
    assert set(left_behind(old)) == {"schema pgddl"} | fenced and len(fenced) == 9


def test_what_a_swap_prepared_goes_where_it_fails(ways: Ways) -> None:
    ways.there.run_all(until="verify")
    before = left_behind(ways.new), left_behind(ways.old)
    execute(ways.new, "CREATE TRIGGER noted BEFORE INSERT ON shop.purchase FOR EACH ROW EXECUTE FUNCTION shop.noted()")
    assert "noted" in str(ways.there.refused("swap"))
    assert (left_behind(ways.new), left_behind(ways.old)) == before
    assert ways.there.on_source("SELECT count(*) FROM pgddl.pipelines") == [(0,)]
    execute(ways.old, "INSERT INTO shop.customer (name) VALUES ('the source is open again')")
    execute(ways.new, "DROP TRIGGER noted ON shop.purchase")
    assert not ways.there.run("swap").blocked
    ways.alike()
    execute(ways.new, WORK.format("there", 2))
    assert not ways.back.run("replay").blocked
    ways.equal()


def test_it_is_void_until_the_cut_over(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    """The swap dies with everything prepared; what it leaves does nothing, and the next swap makes it anew."""
    ways.there.run_all(until="verify")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(way_back_across.WayBackAcross, "take_away", lambda _: None)
        patched.setattr(way_back_across.WayBackAcross, "note_birth", die)
        ways.there.run("swap")
    for stage in ("replay", "setup", "cleanup"):
        assert "has not cut over" in str(ways.back.refused(stage, UsageError))
    assert ways.back.on_source("SELECT born_run FROM pgddl.captures") == [(None,)]
    execute(ways.old, WORK.format("late", 3))
    assert not ways.there.run("swap").blocked
    ways.alike()
    execute(ways.new, WORK.format("there", 2))
    assert not ways.back.run("replay").blocked
    ways.equal()


def test_what_was_prepared_by_another_name_or_is_not_asked_for_any_more_is_no_way_back(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ways.there
    there.run_all(until="verify")
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(way_back_across.WayBackAcross, "take_away", lambda _: None)
        patched.setattr(way_back_across.WayBackAcross, "is_ready", lambda _: 1 / 0)
        there.run("swap")
    given_up = {"swap": {"fence": "read_only"}}
    assert not there.run("swap", **given_up).blocked
    assert there.run("cleanup", **given_up).state == "done"


def test_a_reset_takes_away_what_was_prepared_and_nothing_that_lives(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, back = ways.there, ways.back
    there.run_all(until="verify")
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(way_back_across.WayBackAcross, "take_away", lambda _: None)
        patched.setattr(way_back_across.WayBackAcross, "is_ready", lambda _: 1 / 0)
        there.run("swap")
    assert there.on_source("SELECT pipeline, unborn IS NULL FROM pgddl.pipelines") == [("shop_back", False)]
    stages.reset(load_pipeline(back.content), back.source, back.target)
    assert there.on_source("SELECT count(*) FROM pgddl.pipelines") == [(0,)]
    assert not there.run("swap").blocked
    rows = there.journal("SELECT count(*) FROM shop.purchase")
    forgotten = {"swap": {"fence": "read_only"}}  # the file does not know of it any more
    for content in (there.content, {**there.content, **forgotten}, back.content):
        with pytest.raises(UsageError, match="way back"):
            one = back if content is back.content else there
            stages.reset(load_pipeline(content), one.source, one.target)
    assert there.run("cleanup", **forgotten).blocked
    assert there.on_source("SELECT count(*) FROM shop.purchase") == rows
    back.run("cleanup")
    stages.reset(load_pipeline(there.content), there.source, there.target)
    execute(ways.old, "INSERT INTO shop.customer (name) VALUES ('the fence is down')")


def test_capture_of_the_old_server_ends_before_anything_comes_back(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    ways.there.run_all(until="verify")
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(way_back_across, "stop_capture", lambda *_: 1 / 0)
        ways.there.run("swap")
    execute(ways.new, WORK.format("there", 2))
    assert "has not ended its capture" in str(ways.back.refused("replay"))
    assert not ways.there.run("swap").blocked
    assert not ways.back.run("replay").blocked
    ways.equal()


def test_only_our_transactions_pass_the_fence(ways: Ways) -> None:
    ways.there.run_all(until="swap")
    execute(
        ways.old,
        "CREATE ROLE passer LOGIN; GRANT ALL ON SCHEMA shop TO passer;"
        " GRANT ALL ON ALL TABLES IN SCHEMA shop TO passer",
    )
    try:
        with psycopg.connect(ways.old, autocommit=True) as conn:
            conn.execute("SET SESSION AUTHORIZATION passer")
            conn.execute("SET application_name = 'pgddl:shop_back:1:window'")
            for attempt in (
                "SELECT pgddl.pass_fences()",
                "INSERT INTO pgddl.fence_passes SELECT pg_current_xact_id()",
            ):
                with pytest.raises(pg.InsufficientPrivilege):
                    conn.execute(attempt.encode())
            with pytest.raises(pg.ReadOnlySqlTransaction):
                conn.execute("DELETE FROM shop.part")
        # While one of ours is through, nobody else is.
        with psycopg.connect(ways.old) as ours, psycopg.connect(ways.old) as other:
            ours.execute("SELECT pgddl.pass_fences()")
            ours.execute("DELETE FROM shop.part WHERE id = 1")
            with pytest.raises(pg.ReadOnlySqlTransaction):
                other.execute("DELETE FROM shop.part WHERE id = 2")
            ours.rollback()
    finally:
        execute(ways.old, "DROP OWNED BY passer; DROP ROLE passer")


def test_a_write_past_the_fence_is_found_by_its_row(ways: Ways) -> None:
    ways.there.run_all(until="swap")
    execute(ways.new, WORK.format("there", 2))
    stray = (
        "ALTER TABLE shop.customer DISABLE TRIGGER USER; UPDATE shop.customer SET name = 'stray' WHERE id = 11;"
        " ALTER TABLE shop.customer ENABLE TRIGGER USER;"
    )
    always = f"ALTER TABLE shop.customer ENABLE ALWAYS TRIGGER pgddl_fence_{ways.there.name}"
    execute(ways.old, stray + always)
    assert not ways.back.run("replay").blocked
    assert "11" in str(ways.back.refused("verify", StageFailed))
    ways.back.run("verify", mend=True)
    ways.equal()
    execute(ways.old, stray)  # from here on whoever takes the replica role would pass
    assert {"had lost the fence" in b["reason"] for b in ways.back.run("replay").blocked} == {True}
    refused(ways.old, "SET session_replication_role = replica; DELETE FROM shop.customer")
    ways.back.run("verify", mend=True)
    assert not ways.back.run("replay").blocked
    ways.equal()


DIFFERENT = """
ALTER TABLE shop.purchase ALTER COLUMN id TYPE bigint;
ALTER TABLE shop.part ADD COLUMN only_new text DEFAULT 'new';
"""


def test_what_one_side_alone_has_and_other_types(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> None:
    execute(source_dsn, SHOP + "ALTER TABLE shop.customer ADD COLUMN secret text")
    execute(source_dsn, "UPDATE shop.customer SET secret = 's' || id; CREATE TABLE shop.diary (id int PRIMARY KEY)")
    execute(source_dsn, "INSERT INTO shop.diary VALUES (1)")
    ways = Ways(
        lifecycle,
        source_dsn,
        target_dsn,
        tables={
            "include": ["shop.*"],
            "skip_columns": {"shop.customer": ["secret"]},
            "schema_only": ["shop.diary"],
        },
        schema={"type_mismatches": "cast_if_safe"},
        capture={"ddl": "off"},
    )
    there, back, old, new = ways.there, ways.back, ways.old, ways.new
    there.run_all(until="schema_sync")
    execute(new, DIFFERENT)
    there.run_all(after="schema_sync", until="swap")
    assert there.on_source("SELECT state FROM pgddl.tables") == [("indexed",)] * 3
    back.content = way_back_file(load_pipeline(there.content), old, new)
    secrets = "SELECT id, secret FROM shop.customer WHERE id <= 300 ORDER BY id"
    before = dict(there.on_source(secrets))
    execute(new, WORK.format("there", 2) + "UPDATE shop.part SET only_new = 'x' WHERE id = 5")
    execute(new, "INSERT INTO shop.diary VALUES (2)")
    assert not back.run("replay").blocked
    assert there.on_source("SELECT id FROM shop.diary") == [(1,)]
    after = dict(there.on_source(secrets))
    assert after == {key: value for key, value in before.items() if key in after} and len(after) == 294
    rows = "SELECT id, customer, total, note FROM shop.purchase ORDER BY id"
    assert there.on_source(rows) == back.on_source(rows)

    execute(new, "INSERT INTO shop.purchase (id, customer, total) VALUES (3000000000, 11, 7)")
    execute(new, "UPDATE shop.customer SET name = 'goes on' WHERE id = 12")
    blocked = back.run("replay").blocked
    assert {b["table"] for b in blocked} == {"shop.purchase"} and "3000000000" in blocked[0]["reason"], blocked
    assert there.on_source("SELECT name FROM shop.customer WHERE id = 12") == [("goes on",)]
    execute(new, "DELETE FROM shop.purchase WHERE id = 3000000000")
    assert not back.run("replay").blocked
    assert there.on_source(rows) == back.on_source(rows)


def test_going_back_for_good_dies_before_the_pipeline_there_is_over(ways: Ways, at: At) -> None:
    """Without a way back of its own: applications are back, and nothing else than that is left to be said."""
    ways.there.run_all(until="swap")
    execute(ways.new, WORK.format("there", 2))
    ways.back.content["swap"] = {**ways.back.content["swap"], "way_back": None}
    ways.back.run_all(after="schema_sync", until="verify")
    with at("way_back.before_gone_back_commit") as passes:
        passes.act = once(passes.lose)
        ways.back.refused("swap")
    execute(ways.old, WORK.format("home", 4))  # they are
    refused(ways.new, "DELETE FROM shop.customer")
    assert not ways.back.run("swap").blocked
    assert ways.there.run("replay").state == "nothing_to_do"
    ways.back.run("cleanup")
    ways.there.run("cleanup")
    assert ways.there.on_source("SELECT count(*) FROM shop.customer WHERE name LIKE 'home%'") == [(20,)]


def test_by_a_slot(lifecycle: Lifecycles, servers: tuple[str, str]) -> None:
    execute(servers[0], SHOP)
    ways = Ways(lifecycle, *servers, capture={"rows": "wal"})
    ways.there.run_all(until="swap")
    ways.alike()
    execute(ways.new, WORK.format("there", 2))
    execute(ways.new, "ALTER TABLE shop.part ADD COLUMN city text")
    execute(ways.new, PARTITION.format(2030))
    execute(ways.new, WORK.format("more", 3))
    assert not ways.back.run("replay").blocked
    ways.home_and_forth()
    ways.back.run("cleanup")
    ways.there.run("cleanup")
    assert left_behind(ways.new) == ["schema pgddl"]


def test_a_table_without_a_key_comes_back_whole(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> None:
    execute(source_dsn, SHOP + "CREATE TABLE shop.note (at timestamptz, what text)")
    execute(source_dsn, "INSERT INTO shop.note VALUES (now(), 'a')")
    ways = Ways(lifecycle, source_dsn, target_dsn, tables={"include": ["shop.*"], "keyless": "copy_at_swap"})
    ways.there.run_all(until="swap")
    execute(ways.new, "INSERT INTO shop.note VALUES (now(), 'b')")
    assert not ways.back.run("replay").blocked
    assert ways.there.on_source("SELECT what FROM shop.note") == [("a",)]
    said = stages.status(load_pipeline(ways.back.content), ways.new, ways.old)["tables"]
    assert [name for name, of in said.items() if of["copied_at_swap"]] == ["shop.note"]
    for stage in ("verify", "swap"):
        assert not ways.back.run(stage).blocked
    ways.alike()
    execute(ways.old, "DELETE FROM shop.note WHERE what = 'a'; INSERT INTO shop.note VALUES (now(), 'c')")
    for stage in ("replay", "verify", "swap"):
        assert not ways.there.run(stage).blocked
    ways.alike()


def test_the_file_is_what_the_cut_over_recorded(ways: Ways) -> None:
    pipeline = load_pipeline(ways.there.content)
    before = way_back_file(pipeline, ways.old, ways.new)
    ways.there.run_all(until="swap")
    assert way_back_file(pipeline, ways.old, ways.new) == before
    assert before["pipeline"] == "shop_back" and before["swap"] == {"fence": "read_only", "way_back": ways.there.name}
    ways.back.content = before
    execute(ways.new, WORK.format("there", 2))
    assert not ways.back.run("replay").blocked
    ways.equal()


def test_both_directions_are_looked_at_before_anything_begins(ways: Ways, pg18: Cluster, lifecycle: Lifecycles) -> None:
    """A role that may own the tables of the new server, and not listen to its DDL."""
    database = str(conninfo_to_dict(ways.new)["dbname"])
    execute(ways.new, f"CREATE ROLE mover LOGIN PASSWORD 'p' BYPASSRLS; GRANT ALL ON DATABASE {database} TO mover")
    try:
        new = make_conninfo(ways.new, user="mover", password="p")
        there = lifecycle(ways.old, new, **EVERYTHING)
        assert "for the way back: " in str(there.refused("setup", PreflightRefused))
        assert left_behind(ways.old) == []
        there.content = {**there.content, "swap": {"fence": "read_only"}}
        assert "for the way back: " not in str(there.refused("setup", PreflightRefused))
    finally:
        execute(ways.new, "DROP OWNED BY mover; DROP ROLE mover")


def test_a_name_that_is_taken_is_refused_before_the_fence(
    ways: Ways, lifecycle: Lifecycles, database: Any, pg18: Cluster
) -> None:
    execute(ways.old, "CREATE TABLE other (id int PRIMARY KEY)")
    ways.there.run_all(until="verify")
    elsewhere = database(pg18)
    execute(elsewhere, "CREATE SCHEMA x; CREATE TABLE x.t (id int PRIMARY KEY)")
    other = lifecycle(elsewhere, ways.old, tables={"include": ["x.*"]}, pipeline="shop_back")
    other.run("setup")
    assert "already" in str(ways.there.refused("swap", UsageError))
    assert "'shop_back' already" in checked(ways.there)[0]
    execute(ways.old, "INSERT INTO shop.customer (name) VALUES ('open')")


THING = """
CREATE TABLE shop.thing (id int PRIMARY KEY, n int, "Secret" text, "Legacy" text, gone text);
INSERT INTO shop.thing SELECT n, n, 's' || n, 'l' || n, 'g' || n FROM generate_series(1, 20) n;
"""


def things(dsn: str, *columns: str) -> dict[int, tuple[Any, ...]]:
    """By what no window changes: n of a row, without the sign and the thousands that updates give it."""
    with psycopg.connect(dsn) as conn:
        listed = ", ".join(f'"{column}"' for column in columns)
        query = f"SELECT abs(n) % 100, {listed} FROM shop.thing"
        return {n: tuple(rest) for n, *rest in conn.execute(query.encode())}


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_columns_of_one_side_alone_keep_their_values_to_and_fro(
    lifecycle: Lifecycles, database: Callable[[Cluster], str], pg16: Cluster, pg18: Cluster, rows: str
) -> None:
    """Skipped, preserved, nulled and added ones; rows change, get other keys, come and go on both sides."""
    old, new = database(pg16), database(pg18)
    execute(old, SHOP + THING)
    ways = Ways(
        lifecycle,
        old,
        new,
        tables={"include": ["shop.*"], "skip_columns": {"shop.thing": ['"Secret"']}},
        schema={
            "preserve_columns": {"shop.thing": ['"Legacy"']},
            "null_removed_columns": {"shop.thing": ["gone"]},
            "force": True,
        },
        capture={"rows": rows, "ddl": "off"},
    )
    there, back = ways.there, ways.back

    def gone(move: Lifecycle) -> None:
        for stage in ("replay", "verify", "swap"):
            assert not move.run(stage).blocked
        assert things(old, "id") == things(new, "id")

    there.run_all(until="replay")
    execute(old, 'ALTER TABLE shop.thing DROP COLUMN "Legacy", DROP COLUMN gone')
    execute(new, """ALTER TABLE shop.thing ADD COLUMN "Added" text DEFAULT 'new'""")
    execute(old, "UPDATE shop.thing SET n = -n WHERE id <= 10")
    gone(there)
    secrets = {n: (f"s{n}",) for n in range(1, 21)}
    theirs = {n: (None, f"l{n}", None, "new") for n in range(1, 21)}
    assert things(old, "Secret") == secrets
    assert things(new, "Secret", "Legacy", "gone", "Added") == theirs

    back.content = way_back_file(load_pipeline(there.content), old, new)
    execute(
        new,
        """UPDATE shop.thing SET n = n + sign(n) * 100, "Legacy" = 'L', gone = 'G', "Added" = 'A',
        "Secret" = 'N' WHERE abs(n) % 5 = 0""",
    )
    execute(new, "UPDATE shop.thing SET id = id + 100 WHERE abs(n) % 5 = 1; DELETE FROM shop.thing WHERE id = 2")
    execute(new, "INSERT INTO shop.thing (id, n, gone) VALUES (21, 21, 'g21')")
    theirs |= dict.fromkeys((5, 10, 15, 20), ("N", "L", "G", "A")) | {21: (None, None, "g21", "new")}
    gone(back)
    secrets[21] = (None,)
    for known in (secrets, theirs):
        del known[2]
    assert things(old, "Secret") == secrets
    assert things(new, "Secret", "Legacy", "gone", "Added") == theirs

    execute(old, """UPDATE shop.thing SET n = n + sign(n) * 100, "Secret" = 'S' WHERE abs(n) % 100 % 3 = 0""")
    execute(old, "UPDATE shop.thing SET id = id + 200 WHERE abs(n) % 100 % 7 = 1; DELETE FROM shop.thing WHERE id = 3")
    execute(old, "INSERT INTO shop.thing VALUES (22, 22, 's22')")
    secrets |= {n: ("S",) for n in secrets if n % 3 == 0}
    secrets[22] = ("s22",)
    theirs[22] = (None, None, None, "new")
    gone(there)
    for known in (secrets, theirs):
        del known[3]
    assert things(old, "Secret") == secrets
    assert things(new, "Secret", "Legacy", "gone", "Added") == theirs


JUST_BEFORE = """
UPDATE shop.thing SET n = n + 100 * sign(n) WHERE id <= 10;
UPDATE shop.thing SET id = -id WHERE abs(id) BETWEEN 5 AND 8;
UPDATE shop.part SET v = v || '!' WHERE id % 3 = 0;
CREATE TEMPORARY TABLE loaded AS SELECT * FROM shop.part_2024;
TRUNCATE shop.part_2024;
INSERT INTO shop.part SELECT * FROM loaded;
DROP TABLE loaded;
"""


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_rows_that_change_just_before_a_fence_keep_the_values_of_columns_that_are_left_alone(
    lifecycle: Lifecycles, database: Callable[[Cluster], str], pg16: Cluster, pg18: Cluster, rows: str, at: At
) -> None:
    """The last windows bring them under the capture of the way back, in whose log each of them leaves and comes."""
    old, new = database(pg16), database(pg18)
    execute(old, SHOP + THING + "ALTER TABLE shop.part ADD COLUMN mine text; UPDATE shop.part SET mine = 'm' || id")
    skipped = {"shop.thing": ['"Secret"'], "shop.part": ["mine"]}
    tables = {"include": ["shop.*"], "skip_columns": skipped}
    ways = Ways(lifecycle, old, new, tables=tables, capture={"rows": rows, "ddl": "off"})
    there, back = ways.there, ways.back
    there.run_all(until="replay")
    execute(
        new,
        """ALTER TABLE shop.thing ADD COLUMN "Added" text; UPDATE shop.thing SET "Added" = 'a' || abs(n);
        ALTER TABLE shop.part ADD COLUMN added text; UPDATE shop.part SET added = 'a' || id""",
    )

    def parts(dsn: str, column: str) -> dict[int, str]:
        with psycopg.connect(dsn) as conn:
            return dict(conn.execute(f"SELECT id, {column} FROM shop.part".encode()))

    for here, move, other in ((old, there, back), (new, back, there), (old, there, back)):
        for stage in ("replay", "verify"):
            assert not move.run(stage).blocked
        with at("cut_over.before_fence", once(lambda here=here: execute(here, JUST_BEFORE))):
            assert not move.run("swap").blocked
        back.content = way_back_file(load_pipeline(there.content), old, new)
        for stage in ("replay", "verify"):
            assert not other.run(stage).blocked
        assert things(old, "id") == things(new, "id")
        assert things(old, "Secret") == {n: (f"s{n}",) for n in range(1, 21)}
        assert things(new, "Added") == {n: (f"a{n}",) for n in range(1, 21)}
        # A TRUNCATE takes what only the other server has.
        column = "mine" if here == old else "added"
        assert parts(here, column) == {n: f"{column[0]}{n}" for n in range(1, 701)}
        if here == old:
            execute(new, "UPDATE shop.part SET added = 'a' || id")
        else:
            execute(old, "UPDATE shop.part SET mine = 'm' || id")


def test_what_followed_ddl_makes_on_the_old_server_is_fenced(lifecycle: Lifecycles, servers: tuple[str, str]) -> None:
    """A table that is rebuilt and renamed, a partition, and a table of its own: an application that has stayed behind
    finds each of them closed from the moment that it is there."""
    old, new = servers
    execute(old, SHOP)
    ways = Ways(lifecycle, old, new)
    ways.there.run_all(until="swap")
    do(
        ways.new,
        "ALTER TABLE shop.purchase RENAME TO bought",
        "CREATE TABLE shop.purchase (id int PRIMARY KEY, total numeric)",
        "INSERT INTO shop.purchase SELECT id, total FROM shop.bought",
        "CREATE TABLE shop.part_2035 PARTITION OF shop.part FOR VALUES FROM ('2035-01-01') TO ('2036-01-01')",
        "CREATE TABLE shop.apart (LIKE shop.part INCLUDING ALL)",
    )
    assert not ways.back.run("replay").blocked
    refused(old, "INSERT INTO shop.purchase VALUES (-1, 1)")
    refused(old, "DELETE FROM shop.bought")
    refused(old, "INSERT INTO shop.part_2035 VALUES ('2035-05-05', 1, 'v')")
    refused(old, "TRUNCATE shop.apart")
    do(ways.new, "DROP TABLE shop.bought CASCADE", "ALTER TABLE shop.part DETACH PARTITION shop.part_2035")
    assert not ways.back.run("replay").blocked
    refused(old, "INSERT INTO shop.part_2035 VALUES ('2035-05-05', 1, 'v')")
    ways.equal()
    for stage in ("verify", "swap"):
        assert not ways.back.run(stage).blocked
    ways.equal()
    do(old, "INSERT INTO shop.purchase VALUES (-1, 1)", "INSERT INTO shop.part_2035 VALUES ('2035-05-05', 1, 'v')")
