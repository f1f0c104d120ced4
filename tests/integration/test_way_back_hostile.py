"""The way back of tables whose owner nobody trusts: returning windows write to the server where her code is live."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.way_back import way_back_of
from tests.combinations import matrix
from tests.integration.attempts import Attempt
from tests.integration.foreign_code import ACROSS, arrived, begun
from tests.integration.lifecycle import Lifecycle
from tests.integration.mallory import Mallory
from tests.integration.mallory_kinds import BY_NAME

Make = Callable[..., Lifecycle]

REFUSED = ("trigger_always", "rule")  # they would act on rows that come back: a swap says so before it fences anything


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_code_on_a_table_runs_as_its_owner_on_the_way_back_too(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make, rows: str
) -> None:
    """Her triggers, checks, policies and the like are all there on the old server, and its fence stands."""
    kinds = [kind for kind in ACROSS if kind.name not in REFUSED and (rows != "wal" or kind.name != "cast_of_key")]
    swap = {"fence": "read_only", "way_back": "shop_back"}
    attempt = begun(mallory, lifecycle, on_both, kinds, capture={"rows": rows}, swap=swap)
    there = attempt.move
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap"):
        attempt.stage(stage)
    back = Attempt(mallory, lifecycle(there.target, there.source), attempt.going)
    back.move.content = way_back_of(load_pipeline(there.content)).to_json()
    back.turn = 20  # keys of her own
    for way in (back, attempt):
        for stage in ("replay", "verify", "swap"):
            way.writes()
            way.stage(stage)
        arrived(way)
    back.stays()
    attempt.stays()


def test_what_would_act_on_rows_that_come_back_is_refused_before_the_fence(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make
) -> None:
    """Before setup; and where there was none of it at setup, by `check`, and by the swap before its fence."""
    kinds = [BY_NAME["rule"], BY_NAME["check"]]
    attempt = begun(mallory, lifecycle, on_both, kinds, swap={"fence": "read_only"})
    move, without = attempt.move, attempt.move.content
    leading_back = {**without, "swap": {"fence": "read_only", "way_back": "shop_back"}}
    move.content = leading_back
    assert "rule r on m.rule" in str(move.refused("setup", PreflightRefused))
    move.content = without
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify"):
        attempt.stage(stage)
    move.content = leading_back
    found = stages.check(load_pipeline(move.content), move.source, move.target)["findings"]
    assert {f["table"] for f in found} == {"m.rule"} and "rule r on m.rule" in str(found)
    assert "rule r on m.rule" in str(move.refused("swap", PreflightRefused))
    attempt.writes()
    attempt.stays()
