"""Tables that the target has already, and that belong to a role that nobody trusts: what they have there is hers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.combinations import matrix
from tests.integration.foreign_code import arrived, begun
from tests.integration.lifecycle import Lifecycle
from tests.integration.mallory import Mallory
from tests.integration.mallory_kinds import BY_NAME

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
