"""The way back of a cut-over: the old server stays current behind its fence, and applications can go to and fro."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands.ddl import record_decision
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.failpoints import At, once
from tests.integration.lifecycle import execute, left_behind
from tests.integration.sessions import do
from tests.integration.ways_back import SHOP, WORK, Lifecycles, Ways, refused


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
