"""The longest that writers may have waited for a lock of ours is measured in every stage that takes one, and told."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from airflow_provider_pgddl.engine.commands.metrics import text
from airflow_provider_pgddl.engine.commands.status import status
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import Underway, in_transaction, wait_for, waits

Make = Callable[..., Lifecycle]


@pytest.fixture
def rewrite(source_dsn: str, lifecycle: Make) -> Lifecycle:
    execute(source_dsn, "CREATE TABLE item (id int PRIMARY KEY, body text); INSERT INTO item VALUES (1, 'one')")
    return lifecycle(source_dsn, rewrite={"public.item": {}}, swap={"lock_timeout": "20s"})


@pytest.mark.parametrize(
    ("stage", "mode"),
    [("setup", "ShareRowExclusiveLock"), ("swap", "AccessExclusiveLock"), ("cleanup", "AccessExclusiveLock")],
)
def test_it_is_as_long_as_we_are_seen_waiting(rewrite: Lifecycle, stage: str, mode: str) -> None:
    """Whoever comes after our request waits for at least as long as we do."""
    if stage != "setup":
        rewrite.run_all(until="verify" if stage == "swap" else "swap")
    table = "pgddl_old_public.item" if stage == "cleanup" else "public.item"
    work = f"SELECT FROM {table}" if stage == "cleanup" else f"UPDATE {table} SET body = 'two' WHERE id = 1"
    with in_transaction(rewrite.source, work) as client, Underway(lambda: rewrite.run(stage)) as running:
        wait_for(lambda: waits(rewrite.source, mode, table), running)
        seen = time.monotonic()
        wait_for(lambda: time.monotonic() - seen > 0.3 and waits(rewrite.source, mode, table), running)
        at_least = (time.monotonic() - seen) * 1000
        client.commit()
        result = running.finish()
    assert result.figures["longest_wait_ms"] >= round(at_least)
    told = status(load_pipeline(rewrite.content), rewrite.source, rewrite.target)["longest_wait"]
    assert told == {"ms": result.figures["longest_wait_ms"], "stage": stage}
    scraped = text(load_pipeline(rewrite.content), rewrite.source, rewrite.target)
    (seconds,) = re.findall(r"^pgddl_longest_wait_seconds\{.*\} (.*)$", scraped, re.MULTILINE)
    assert round(float(seconds) * 1000) == told["ms"]


def test_a_stage_that_takes_no_such_lock_has_none(rewrite: Lifecycle) -> None:
    results = rewrite.run_all(until="verify")
    assert [stage for stage, result in results.items() if "longest_wait_ms" in result.figures] == ["setup"]
