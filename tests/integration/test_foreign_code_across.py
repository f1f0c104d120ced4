"""A superuser moves tables of a role that nobody trusts to another server: her code runs with her rights on both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import STAGES
from tests.combinations import matrix
from tests.integration.attempts import Attempt, gained_where_trusted
from tests.integration.foreign_code import ACROSS, arrived, begun, migration
from tests.integration.lifecycle import Lifecycle
from tests.integration.mallory import Mallory, differing
from tests.integration.mallory_kinds import BY_NAME, HERS_ALONE

Make = Callable[..., Lifecycle]


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_code_on_a_table_runs_as_its_owner_on_both_servers(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make, rows: str
) -> None:
    # With a slot the log is on the target before the types of keys are.
    kinds = [kind for kind in ACROSS if rows != "wal" or kind.name != "cast_of_key"]
    attempt = begun(mallory, lifecycle, on_both, kinds, capture={"rows": rows})
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "replay"):
        attempt.stage(stage)
        attempt.writes()
    for stage in ("replay", "verify", "swap", "cleanup"):
        attempt.stage(stage)
    attempt.stays()
    arrived(attempt)


def test_a_pipeline_that_follows_goes_on_beside_her(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make
) -> None:
    """Foreign keys and triggers that the target got by hand are hers there as well."""
    kinds = [BY_NAME[name] for name in ("check", "domain", "generated", "index_constant", "trigger_after", "names")]
    attempt = begun(mallory, lifecycle, on_both, kinds, swap={})
    for _ in range(3):
        for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay"):
            attempt.stage(stage)
        arrived(attempt)
        attempt.writes()
    attempt.stays()


def test_a_column_that_is_left_out_has_a_default_of_hers(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make
) -> None:
    """Its values are kept where a row leaves and comes back. That may be refused, or stop the table."""
    kind = replace(BY_NAME["default"], expected="refused")
    tables = {"skip_columns": {kind.relation: ["d"]}}
    attempt = begun(mallory, lifecycle, on_both, [kind], tables=tables)
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "replay") if attempt.kinds else ():
        attempt.stage(stage)
        attempt.writes()
    attempt.stays()
    if attempt.going:
        attempt.stage("replay")
        rows = [mallory.rows(dsn, kind, "id, v") for dsn in on_both]
        assert differing(*rows) == []


SOME = [BY_NAME[name] for name in ("check", "domain", "generated", "index_expression", "index_predicate")]


# The others are met in place; these meet COPY and sessions of the target's.
@pytest.mark.parametrize("what", ["temporary types", "deferred trigger", "held cursor"])
def test_nothing_that_code_leaves_in_our_session_is_used_with_our_rights(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make, what: str
) -> None:
    """Also where it is written into a table by COPY; a stage may fail for it, and must say whose code it was."""
    attempt = begun(mallory, lifecycle, on_both, SOME)
    ordered = ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap")
    for number, stage in enumerate(ordered):
        attempt.writes()
        for dsn in on_both:
            mallory.leaves_behind(dsn, what)
        attempt.may_stop = True
        through = attempt.stage_or_stops(stage)
        for dsn in on_both:
            mallory.leaves_behind(dsn, "")
        attempt.starts_over(ordered[:number])
        attempt.may_stop = False
        if not through:
            attempt.stage(stage)
    attempt.stays()


def test_the_code_of_a_role_that_is_trusted_runs_as_we_do(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make
) -> None:
    """Which also shows that the other tests would see it."""
    attempt = begun(mallory, lifecycle, on_both, SOME, trusted_roles=[mallory.name])
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "replay"):
        attempt.stage(stage)
        attempt.writes()
    seen = mallory.seen(on_both[1])
    assert [kind.name for kind in SOME if "postgres" not in seen.get(kind.name, set())] == []
    for stage in ("replay", "verify", "swap", "cleanup"):
        assert not attempt.stage(stage).blocked
    arrived(attempt)


@pytest.mark.parametrize("after", ["snapshot", "schema_sync", "verify"])
def test_a_reset_runs_no_code_of_hers(mallory: Mallory, on_both: tuple[str, str], lifecycle: Make, after: str) -> None:
    attempt = begun(mallory, lifecycle, on_both, SOME)
    for stage in STAGES[: STAGES.index(after) + 1]:
        attempt.stage(stage)
        attempt.writes()
    for tables in ([SOME[0].relation], None):
        stages.reset(load_pipeline(attempt.move.content), *on_both, tables)
        attempt.writes()
    attempt.stays()


def test_all_code_of_a_role_that_is_trusted_runs_as_we_do(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make
) -> None:
    """Each kind is known to bite: were it not for the guards, the tests above would see it."""
    mallory.makes(on_both[0], ACROSS)
    move = migration(lifecycle, *on_both, ACROSS, trusted_roles=[mallory.name, mallory.bob])
    gained = gained_where_trusted(mallory, move, ACROSS)
    assert {kind.name for kind in ACROSS} - gained == HERS_ALONE


def test_the_code_of_a_role_that_the_target_lacks_is_nobodys_there(
    mallory: Mallory, pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    """What she owns on the source would be ours on the target, and her code would be taken for ours from then on."""
    mallory.joins(pg16).moves_in(source_dsn)
    mallory.makes(source_dsn, SOME)
    mallory.visits(target_dsn)
    attempt = Attempt(mallory, migration(lifecycle, source_dsn, target_dsn, SOME), SOME)
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap"):
        attempt.writes()
        if not attempt.stage_or_stops(stage):
            break
    assert mallory.escalations(source_dsn, target_dsn) == []
    ours = (
        "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_roles r ON r.oid = p.proowner"
        " WHERE r.rolsuper AND p.pronamespace = to_regnamespace('m')"
    )
    with psycopg.connect(target_dsn) as conn:
        assert conn.execute(ours).fetchall() == []
