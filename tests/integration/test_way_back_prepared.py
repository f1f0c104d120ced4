"""What a cut-over needs for its way back: looked at before setup and before the fence, prepared by the swap, and void
until it has cut over."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands.way_back import way_back_file
from airflow_provider_pgddl.engine.errors import PreflightRefused, UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.swapping import way_back_across
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.ways_back import EVERYTHING, SHOP, WORK, Lifecycles, Ways


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
