"""A superuser rewrites tables of a role that nobody trusts: her code runs with her rights, in every stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import STAGES
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.attempts import Attempt, admitted, gained_where_trusted
from tests.integration.foreign_code import rewrite
from tests.integration.lifecycle import Lifecycle
from tests.integration.mallory import Mallory, differing
from tests.integration.mallory_code import LEAVINGS
from tests.integration.mallory_kinds import BY_NAME, HERS_ALONE, KINDS, Kind
from tests.integration.sessions import do

Make = Callable[..., Lifecycle]


HERS = [kind for kind in KINDS if "in place" in kind.where]
BOTH_WAYS = [kind for kind in HERS if not kind.one_way]
ONE_WAY = [kind for kind in HERS if kind.one_way]


@pytest.fixture(params=matrix(15, 16, 18))
def server(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(f"pg{request.param}")
    return cluster


def begun(mallory: Mallory, lifecycle: Make, dsn: str, kinds: Sequence[Kind], **sections: Any) -> Attempt:
    """Her tables, and a pipeline over those of them that preflight takes."""
    mallory.makes(dsn, kinds)
    taken = admitted(partial(rewrite, lifecycle, dsn, **sections), kinds)
    print("refused:", sorted(taken.refused))
    return Attempt(mallory, rewrite(lifecycle, dsn, taken.kinds, **sections), taken.kinds)


def swapped(attempt: Attempt) -> None:
    """All the way to the swap, with writes of hers before every stage, and no row is another one then."""
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "replay"):
        attempt.stage(stage)
        attempt.writes()
    attempt.stage("verify")
    attempt.writes()
    attempt.stage("verify")
    before = {kind: attempt.mallory.rows(attempt.move.source, kind) for kind in attempt.going}
    attempt.stage("swap")
    for kind, rows in before.items():
        assert differing(rows, attempt.mallory.rows(attempt.move.source, kind)) == [], kind.name


@pytest.mark.parametrize("rows", ["change_log", "direct_trigger"])
def test_code_on_a_table_runs_as_its_owner(
    mallory: Mallory, server: Cluster, database: Database, lifecycle: Make, rows: str
) -> None:
    dsn = database(server)
    mallory.joins(server).moves_in(dsn)
    attempt = begun(mallory, lifecycle, dsn, BOTH_WAYS, capture={"rows": rows})
    swapped(attempt)
    attempt.writes()
    attempt.stage("revert")
    attempt.writes()
    for stage in ("replay", "verify", "swap", "cleanup"):
        attempt.stage(stage)
    attempt.stays()
    there = begun(mallory, lifecycle, dsn, ONE_WAY, capture={"rows": rows})
    swapped(there)
    there.writes()
    there.stage("cleanup")
    there.stays()


@pytest.mark.parametrize("after", ["snapshot", "schema_sync", "verify"])
def test_a_reset_runs_no_code_of_hers(
    mallory: Mallory, pg18: Cluster, target_dsn: str, lifecycle: Make, after: str
) -> None:
    mallory.joins(pg18).moves_in(target_dsn)
    rows = "change_log" if after == "snapshot" else "direct_trigger"
    attempt = begun(mallory, lifecycle, target_dsn, SOME, capture={"rows": rows})
    for stage in STAGES[: STAGES.index(after) + 1]:
        attempt.stage(stage)
        attempt.writes()
    stages.reset(load_pipeline(attempt.move.content), target_dsn, target_dsn, [SOME[0].relation])
    attempt.writes()
    stages.reset(load_pipeline(attempt.move.content), target_dsn, target_dsn, None)
    attempt.writes()
    attempt.stays()


def test_a_pipeline_that_follows_goes_on_beside_her(
    mallory: Mallory, pg16: Cluster, source_dsn: str, lifecycle: Make
) -> None:
    """Its stages over and over, with DDL of hers in between."""
    mallory.joins(pg16).moves_in(source_dsn)
    attempt = begun(mallory, lifecycle, source_dsn, SOME, ddl={"on_failure": "queue"})
    for turn in range(3):
        for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify"):
            attempt.stage(stage)
            attempt.writes()
        mallory.does(source_dsn, f"ALTER TABLE {SOME[0].relation} ADD COLUMN d{turn} bigint DEFAULT m.evil(1, 'check')")
    attempt.stays()
    assert [kind for kind in SOME if kind not in attempt.going] == []


def test_a_pipeline_that_is_no_superuser_s_gives_her_nothing_either(
    mallory: Mallory, pg16: Cluster, source_dsn: str, lifecycle: Make
) -> None:
    """It is a member of her role, and she is none of its: with what preflight asks for, and nothing more."""
    mallory.joins(pg16).moves_in(source_dsn)
    mallory.makes(source_dsn, SOME)
    keeper, her = f"keeper_of_{mallory.name}", sql.Identifier(mallory.name).as_string()
    do(source_dsn, f"CREATE ROLE {keeper} LOGIN PASSWORD '{pg16.password}' IN ROLE {her}")
    do(source_dsn, "CREATE SCHEMA safe", "CREATE TABLE safe.t (id int)", f"ALTER SCHEMA safe OWNER TO {keeper}",
       f"ALTER TABLE safe.t OWNER TO {keeper}")  # fmt: skip
    weak = make_conninfo(source_dsn, user=keeper)
    move = rewrite(lifecycle, weak, SOME, capture={"ddl": "off"})
    try:
        for _ in range(5):
            checked = stages.check(load_pipeline(move.content), weak, weak)["findings"]
            wrong = [finding for finding in checked if finding["severity"] == "error"]
            for finding in wrong:
                do(source_dsn, finding["fix"])
            if not wrong:
                break
        else:
            raise AssertionError(wrong)
        attempt = Attempt(mallory, move, SOME)
        attempt.dsns = [source_dsn]
        for stage in ("setup", "snapshot", "backfill"):
            attempt.stage(stage)
            attempt.writes()
        # What a copy is found by is its name: she has CREATE there until cleanup, and gets none of them.
        taken = 'CREATE TABLE pgddl_copy_m."check" (id bigint)'
        with psycopg.connect(mallory.at(source_dsn)) as conn, pytest.raises(psycopg.errors.DuplicateTable):
            conn.execute(taken)
        for stage in ("schema_sync", "replay", "verify", "swap"):
            attempt.stage(stage)
            attempt.writes()
        assert {who for seen in mallory.seen(source_dsn).values() for who in seen} <= {mallory.name}
        attempt.stage("cleanup")
        attempt.stays()
    finally:
        do(source_dsn, f"DROP OWNED BY {keeper} CASCADE")
        do(source_dsn, f"ALTER ROLE {keeper} NOLOGIN")


SOME = [
    BY_NAME[name] for name in ("check", "check_constant", "generated", "index_expression", "index_constant", "names")
]
LEAVE = [BY_NAME[name] for name in ("check", "generated", "index_expression", "index_predicate", "using_domain")]


def test_what_is_left_can_be_left(mallory: Mallory, pg16: Cluster, source_dsn: str) -> None:
    """Her code swallows its errors: nothing would be left, and nobody would know."""
    mallory.joins(pg16).moves_in(source_dsn)
    for what in LEAVINGS:
        mallory.leaves_behind(source_dsn, what)
        with mallory.session(source_dsn) as conn, conn.transaction():
            conn.execute("SELECT lair.leave()")


@pytest.mark.parametrize("what", LEAVINGS)
def test_nothing_that_code_leaves_in_our_session_is_used_with_our_rights(
    mallory: Mallory, server: Cluster, database: Database, lifecycle: Make, what: str
) -> None:
    """In one stage at a time; a stage may fail for it, and must say whose code it was. Without it, it goes on."""
    dsn = database(server)
    mallory.joins(server).moves_in(dsn)
    mallory.makes(dsn, LEAVE)
    attempt = Attempt(mallory, rewrite(lifecycle, dsn, LEAVE), LEAVE)
    for number, stage in enumerate(STAGES):
        attempt.writes()
        mallory.leaves_behind(dsn, what)
        attempt.may_stop = True
        through = attempt.stage_or_stops(stage)
        mallory.leaves_behind(dsn, "")
        attempt.starts_over(STAGES[:number])
        attempt.may_stop = False
        if not through:
            attempt.stage(stage)
    attempt.stays()


def test_all_code_of_a_role_that_is_trusted_runs_as_we_do(
    mallory: Mallory, pg16: Cluster, source_dsn: str, lifecycle: Make
) -> None:
    """Each kind is known to bite: were it not for the guards, the tests above would see it. Domains do not, whose
    values come as they are from one column to another of the same type."""
    mallory.joins(pg16).moves_in(source_dsn)
    kinds = [kind for kind in HERS if kind.name != "cast_of_row"]  # no copy can have its row's type
    mallory.makes(source_dsn, kinds)
    move = rewrite(lifecycle, source_dsn, kinds, trusted_roles=[mallory.name, mallory.bob])
    gained = gained_where_trusted(mallory, move, kinds)
    assert {kind.name for kind in kinds} - gained == (HERS_ALONE - {"cast_of_row"}) | {
        "domain", "domain_constant", "domain_key", "domain_in_array", "domain_in_composite",
    }  # fmt: skip


def test_the_code_of_a_role_that_is_trusted_runs_as_we_do(
    mallory: Mallory, server: Cluster, database: Database, lifecycle: Make
) -> None:
    """Which also shows that the other tests would see it."""
    dsn = database(server)
    mallory.joins(server).moves_in(dsn)
    attempt = begun(mallory, lifecycle, dsn, LEAVE, trusted_roles=[mallory.name])
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay"):
        assert not attempt.stage(stage).blocked
        attempt.writes()
    seen = mallory.seen(dsn)
    assert [kind.name for kind in LEAVE if "postgres" not in seen.get(kind.name, set())] == []
    attempt.stage("replay")
    attempt.stage("verify")
    attempt.stage("swap")
