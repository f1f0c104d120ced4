"""Ways to code of a role that nobody trusts beside the tables whose rows are moved: structure alone, what others do to
her tables, what she has on one side only. Each runs with her rights or not at all (C28)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PgddlError, PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.failpoints import At, once
from tests.integration.attempts import Attempt, rewritten
from tests.integration.foreign_code import begun, migration
from tests.integration.lifecycle import Lifecycle
from tests.integration.mallory import Mallory
from tests.integration.mallory_kinds import BY_NAME, PLAIN, Kind
from tests.integration.sessions import do

Make = Callable[..., Lifecycle]


HER_TABLE = Kind("t", PLAIN)
UNTIL_REPLAY = ("setup", "snapshot", "backfill", "schema_sync", "replay")


def findings(move: Lifecycle) -> list[dict[str, Any]]:
    checked = stages.check(load_pipeline(move.content), move.source, move.target)["findings"]
    return [finding for finding in checked if finding["code"] == "foreign_code"]


def events(move: Lifecycle) -> list[tuple[str, str | None]]:
    return [tuple(row) for row in move.journal("SELECT status, note FROM pgddl.ddl_events ORDER BY id")]  # type: ignore[misc]


def test_structure_without_rows_is_made_with_her_rights(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make
) -> None:
    names = ("check", "partition_key", "partition_key_constant", "partition_index_constant", "generated_constant")
    kinds = [BY_NAME[name] for name in names]
    tables = {"schema_only": ["m.partition*", "m.generated*", "lair.*"]}
    attempt = begun(mallory, lifecycle, on_both, kinds, tables={"include": ["m.*"], **tables})
    assert {kind.name for kind in kinds} - {kind.name for kind in attempt.kinds} == {
        "partition_key", "partition_key_constant",
    }  # fmt: skip
    for stage in ("setup", "snapshot"):
        attempt.stage(stage)
    attempt.stays()


@pytest.mark.parametrize("where", ["across", "in place"])
def test_what_an_administrator_does_to_her_table_meets_what_she_has_on_the_copy(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make, where: str
) -> None:
    """On the source it was safe: her code is on the other side only."""
    source, target = on_both
    mallory.makes(source, [HER_TABLE])
    if where == "across":
        move = migration(lifecycle, source, target, [HER_TABLE])
    else:
        move = lifecycle(source, rewrite=rewritten([HER_TABLE]))
    attempt = Attempt(mallory, move, [HER_TABLE])
    for stage in UNTIL_REPLAY:
        attempt.stage(stage)
    if where == "across":
        do(target, "GRANT ALL ON SCHEMA m, lair TO PUBLIC")
        mallory.does(target, "ALTER TABLE m.t ADD CHECK (m.evil(1, 't') > 0 AND v <> 'x')")
    else:
        do(source, f'GRANT USAGE ON SCHEMA pgddl_copy_m TO "{mallory.name}"')
        mallory.does(source, "ALTER TABLE pgddl_copy_m.t ADD CHECK (m.evil(1, 't') > 0 AND v <> 'x')")
    do(source, "ALTER TABLE m.t ALTER v TYPE varchar(90)", "ALTER TABLE m.t ALTER v SET NOT NULL")
    with suppress(PgddlError):
        move.run("replay")
    assert {status for status, _ in events(move)[-2:]} <= {"applied", "failed"}, events(move)[-3:]
    attempt.gained_nothing()


def test_a_foreign_key_of_others_to_her_table_is_not_checked_by_planning_her_code(
    mallory: Mallory, pg16: Cluster, source_dsn: str, database: Callable[[Cluster], str], lifecycle: Make
) -> None:
    """Below 18 a partitioned table takes no key that is NOT VALID."""
    target = database(pg16)
    mallory.joins(pg16).moves_in(source_dsn)
    mallory.visits(target)
    mallory.makes(source_dsn, [HER_TABLE])
    do(
        source_dsn,
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.orders (id bigint PRIMARY KEY REFERENCES m.t) PARTITION BY RANGE (id)",
        "CREATE TABLE shop.orders_1 PARTITION OF shop.orders DEFAULT",
        "INSERT INTO shop.orders VALUES (1), (2)",
    )
    mallory.does(source_dsn, "CREATE INDEX ON m.t (id) WHERE m.evil(1, 't') > 0")
    tables = {"include": ["m.*", "shop.*"], "schema_only": ["lair.*"]}
    attempt = Attempt(mallory, lifecycle(source_dsn, target, tables=tables, swap={"fence": "none"}), [HER_TABLE])
    with suppress(PgddlError):
        for stage in (*UNTIL_REPLAY, "verify", "swap"):
            attempt.move.run(stage)
            attempt.mallory.lets_in(target)
    attempt.gained_nothing()
    assert "swap" in attempt.move.results or attempt.names_her(attempt.move.refused("swap"))


@pytest.mark.parametrize("powers", ["SUPERUSER", "CREATEROLE", "trusted by our role's membership"])
def test_who_may_more_on_the_target_does_not_do_it_through_a_pipeline(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make, powers: str
) -> None:
    source, target = on_both
    kind = BY_NAME["check"]
    mallory.makes(source, [kind])
    move = migration(lifecycle, source, target, [kind])
    her = sql.Identifier(mallory.name).as_string()
    give, take = f"ALTER ROLE {her} {powers}", f"ALTER ROLE {her} NO{powers}"
    if powers.startswith("trusted"):
        give, take = f"GRANT pg_execute_server_program TO {her}", f"REVOKE pg_execute_server_program FROM {her}"
    do(target, give)
    try:
        said = [f for f in findings(move) if f["where"] == "target" and f["severity"] == "error"]
        assert len(said) == 1 and mallory.name in said[0]["what"], said
        do(target, said[0]["fix"].rstrip(";"))
        assert [f for f in findings(move) if f["severity"] == "error"] == []
        for stage in UNTIL_REPLAY:
            move.run(stage)
        do(target, give)
        mallory.does(source, f"ALTER TABLE {kind.relation} ADD CHECK (m.evil(id, 'late') > 0)")
        with suppress(PgddlError):
            move.run("replay")
        assert [e for e in events(move) if e[0] == "failed" and mallory.name in str(e[1])], events(move)[-3:]
    finally:
        do(target, take)
    Attempt(mallory, move, [kind]).gained_nothing()


def test_an_extensions_function_that_runs_what_it_is_given_is_code_of_whoever_calls_it(
    mallory: Mallory, pg16: Cluster, source_dsn: str, lifecycle: Make
) -> None:
    """It belongs to a superuser. The servers at hand bring no such extension, so another gets the name of one."""
    mallory.joins(pg16).moves_in(source_dsn)
    mallory.makes(source_dsn, [HER_TABLE])
    do(
        source_dsn,
        "CREATE FUNCTION public.runs(text) RETURNS int LANGUAGE plpgsql AS 'BEGIN EXECUTE $1; RETURN 1; END'",
        "CREATE EXTENSION vector SCHEMA public",
        "ALTER EXTENSION vector ADD FUNCTION public.runs(text)",
        "UPDATE pg_extension SET extname = 'dblink' WHERE extname = 'vector'",
    )
    mallory.does(source_dsn, "ALTER TABLE m.t ADD CHECK (public.runs('SELECT m.strike(''t'')') = 1)")
    move = lifecycle(source_dsn, rewrite=rewritten([HER_TABLE]))
    attempt = Attempt(mallory, move, [HER_TABLE])
    assert [f["severity"] for f in findings(move)] == ["warning"]
    for stage in UNTIL_REPLAY:
        attempt.stage(stage)
        attempt.writes()
    attempt.stays()


# --- types of hers on tables of others --------------------------------------------------------------------------------


def test_a_type_of_hers_on_a_table_of_others_is_refused(
    mallory: Mallory, pg16: Cluster, source_dsn: str, lifecycle: Make
) -> None:
    """She can bring a cast of it at any time, which would run as whoever casts."""
    mallory.joins(pg16).moves_in(source_dsn)
    mallory.does(source_dsn, "CREATE TYPE m.mood AS ENUM ('a', 'b')")
    do(source_dsn, "CREATE TABLE m.t (id bigint PRIMARY KEY, v m.mood)")
    said = findings(lifecycle(source_dsn, rewrite={"m.t": {"alter": ["ALTER COLUMN v TYPE text"]}}))
    assert [(f["severity"], f["table"]) for f in said] == [("error", "m.t")]
    assert "type m.mood" in said[0]["what"] and mallory.name in said[0]["what"]


# --- she stops nobody else --------------------------------------------------------------------------------------------

FAILS = """
CREATE FUNCTION m.fails(bigint) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
    IF session_user <> {name} THEN RAISE EXCEPTION 'no' USING ERRCODE = '%s'; END IF;
    RETURN true;
END $$
"""


@pytest.mark.parametrize("code", ["XX000", "42P01", "40001"])
@pytest.mark.parametrize("when", matrix("backfill", "replay"))
def test_an_error_of_hers_stops_her_table_alone(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make, code: str, when: str
) -> None:
    source, target = on_both
    mallory.makes(source, [HER_TABLE])
    fails = FAILS % code
    if when == "replay":
        fails = fails.replace("session_user <>", f"session_user <> {{name}} AND $1 > 100 AND '{code}' <>")
    mallory.does(source, fails, "ALTER TABLE m.t ADD CHECK (m.fails(id))")
    do(source, "CREATE SCHEMA shop", "CREATE TABLE shop.fine (id int PRIMARY KEY)", "INSERT INTO shop.fine VALUES (1)")
    tables = {"include": ["m.*", "shop.*"], "schema_only": ["lair.*"]}
    move = lifecycle(source, target, tables=tables)
    blocked = set()
    for stage in UNTIL_REPLAY:
        if stage == "replay":
            mallory.writes(source, [HER_TABLE], 7)
            do(source, "INSERT INTO shop.fine VALUES (2)")
        result = move.run(stage)
        blocked |= {stopped["table"] for stopped in result.blocked}
        if stage == "snapshot":
            mallory.lets_in(target)
    assert blocked == {"m.t"}
    assert move.journal("SELECT count(*) FROM shop.fine") == [(2,)]


# --- she hides rows from whoever reads as her ------------------------------------------------------------------------

HIDES = (
    "ALTER TABLE m.t ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE m.t FORCE ROW LEVEL SECURITY",
    "CREATE POLICY few ON m.t USING (id < 3) WITH CHECK (true)",
)


@pytest.mark.parametrize("when", ["before a look", "behind it"])
def test_rows_that_she_hides_are_not_taken_for_deleted_ones(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make, at: At, when: str
) -> None:
    source, target = on_both
    mallory.makes(source, [HER_TABLE])
    harmless = (
        "CREATE FUNCTION m.harmless(bigint) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN true; END'"
    )
    mallory.does(source, harmless, "CREATE INDEX ON m.t (v) WHERE m.harmless(id)")  # planned whenever it is read
    move = lifecycle(source, target, tables={"include": ["m.*"], "schema_only": ["lair.*"]})
    for stage in UNTIL_REPLAY:
        assert not move.run(stage).blocked
        if stage == "snapshot":
            mallory.lets_in(target)
    do(source, "UPDATE m.t SET v = v")
    if when == "before a look":
        mallory.does(source, *HIDES)
        blocked = move.run("replay").blocked
        assert "row security is forced" in blocked[0]["reason"]
    else:
        with at("replay.before_lock", once(lambda: mallory.does(source, *HIDES))):
            blocked = move.run("replay").blocked
        assert "affected by row-level security" in blocked[0]["reason"]
    assert [entry["table"] for entry in blocked] == ["m.t"]
    assert move.run("verify").blocked
    move.refused("swap", PreflightRefused)
    mallory.does(source, "ALTER TABLE m.t NO FORCE ROW LEVEL SECURITY")
    assert not move.run("replay").blocked
    assert differences(source, target) == []
