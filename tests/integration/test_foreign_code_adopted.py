"""Tables that the target has already, and that belong to a role that nobody trusts: what they have there is hers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import STAGES
from tests.combinations import matrix
from tests.integration.foreign_code import arrived, begun, migration
from tests.integration.lifecycle import Lifecycle
from tests.integration.mallory import Mallory
from tests.integration.mallory_kinds import BY_NAME, PLAIN, Kind

# What is computed, checked, looked up or fired where rows leave such a table and come to it.
NAMES = (
    "check check_constant check_not_valid generated default domain domain_key index_expression index_unique"
    " index_predicate index_constant exclusion exclusion_deferred statistics_constant operator_class partition_check"
    " partition_index_constant not_null_of_child trigger_before trigger_after trigger_when trigger_statement"
    " trigger_truncate trigger_deferred trigger_always policy policy_forced cast_of_key names third_role"
)
KINDS = [BY_NAME[name] for name in NAMES.split()]
KINDS.append(replace(BY_NAME["rule"], expected="refused"))  # it would take the place of what is written


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_code_on_an_adopted_table_runs_as_its_owner(
    rows: str,
    mallory: Mallory,
    pg16: Cluster,
    pg18: Cluster,
    source_dsn: str,
    target_dsn: str,
    lifecycle: Callable[..., Lifecycle],
) -> None:
    """Compared, emptied where they differ, read again, and rows of the target alone removed, by whoever can do all."""
    kinds = [kind for kind in KINDS if rows != "wal" or kind.name != "cast_of_key"]
    mallory.joins(pg16, pg18)
    for dsn in (source_dsn, target_dsn):
        mallory.moves_in(dsn)
    mallory.makes(target_dsn, kinds)
    mallory.writes(target_dsn, kinds, 9)
    tables = {"existing": "adopt", "keep_extra": False}
    attempt = begun(mallory, lifecycle, (source_dsn, target_dsn), kinds, tables=tables, capture={"rows": rows})
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay"):
        attempt.stage(stage)
        attempt.writes()
    for stage in ("replay", "verify", "swap", "cleanup"):
        attempt.stage(stage)
    attempt.stays()
    arrived(attempt)


REWRITTEN = "ALTER TABLE {t} ADD COLUMN w double precision DEFAULT pg_catalog.random()"


def test_rows_that_are_kept_are_told_from_no_others_as_us(
    mallory: Mallory,
    pg16: Cluster,
    pg18: Cluster,
    source_dsn: str,
    target_dsn: str,
    lifecycle: Callable[..., Lifecycle],
) -> None:
    """Their keys are not hers to read. So a table that has code, or comes to have some, is stopped alone."""
    first, truncated, reread, still, plain = kinds = [
        Kind(n, PLAIN) for n in ("first", "trunc", "reread", "still", "p")
    ]
    coded = "CREATE STATISTICS m.s_{w} ON (id + m.evil(1, '{w}')), v FROM {t}"
    mallory.joins(pg16, pg18)
    for dsn in (source_dsn, target_dsn):
        mallory.moves_in(dsn, kinds)
    mallory.does(target_dsn, *(kind.rows(5000, 5000) for kind in kinds), first.told(coded))
    move = migration(
        lifecycle, source_dsn, target_dsn, kinds, tables={"existing": "adopt", "keep_extra": True},
    )  # fmt: skip
    blocked = [b for s in STAGES[: STAGES.index("replay") + 1] for b in move.run(s).blocked]
    assert {b["table"] for b in blocked} == {"m.first"}
    for kind in (truncated, reread, still):
        mallory.does(target_dsn, kind.told(coded))
    mallory.does(source_dsn, truncated.told("TRUNCATE {t}"), reread.told(REWRITTEN), plain.told("TRUNCATE {t}"))
    blocked = [*move.run("replay").blocked, *move.run("verify").blocked]
    assert {b["table"]: "trusted_roles" in str(b) for b in blocked} == dict.fromkeys(
        ("m.first", "m.trunc", "m.reread", "m.still"), True
    )
    assert mallory.escalations(source_dsn, target_dsn) == []
    assert list(mallory.rows(target_dsn, plain, "id")) == [b"5000"]


@pytest.mark.parametrize("kept", ["a column", "an archive"])
def test_what_only_a_copy_knows_is_not_saved_as_us(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Callable[..., Lifecycle], kept: str
) -> None:
    """Of a table that is read again, and whose copy has come to have code."""
    kind = Kind("saved", PLAIN)
    mallory.makes(on_both[0], [kind])
    tables: dict[str, list[str]] = {"include": ["m.*"], "schema_only": ["lair.*"]}
    if kept == "an archive":
        tables["operations"] = ["insert", "update"]
    move = lifecycle(*on_both, tables=tables)
    move.run_all(until="snapshot")
    mallory.lets_in(on_both[1])
    if kept == "a column":
        mallory.does(on_both[1], "ALTER TABLE m.saved ADD COLUMN mine int DEFAULT 7")
    move.run_all(after="snapshot", until="replay")
    mallory.does(on_both[1], "CREATE STATISTICS m.s ON (id + m.evil(1, 'saved')), v FROM m.saved")
    mallory.does(on_both[0], kind.told(REWRITTEN))
    (stopped,) = move.run("replay").blocked
    assert mallory.escalations(*on_both) == []
    assert stopped["table"] == "m.saved" and "trusted_roles" in str(stopped)
    if kept == "an archive":
        with pytest.raises(UsageError, match="operations"):
            stages.reset(load_pipeline(move.content), *on_both, None)
        assert mallory.escalations(*on_both) == []
