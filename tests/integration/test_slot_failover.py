"""capture.failover: a standby keeps the slot in step, and once it is promoted the run goes on with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.integration.lifecycle import Lifecycle, wait_until
from tests.integration.sessions import do, one
from tests.integration.standbys import KEEPS_SLOTS, promote, with_standby

Make = Callable[..., Lifecycle]


def test_a_promoted_standby_goes_on_with_the_slot(target_dsn: str, lifecycle: Make) -> None:
    with with_standby(18, **KEEPS_SLOTS) as (primary, standby):
        source = primary.conninfo()
        do(
            source,
            "CREATE TABLE item (id int PRIMARY KEY, body text)",
            "INSERT INTO item SELECT n FROM generate_series(1, 99) n",
        )
        move = lifecycle(source, target_dsn, tables={"include": ["*.*"]}, capture={"rows": "wal", "failover": True})
        move.run_all(until="replay")
        # The slot there is of use once it is persistent: the one here has to have moved on behind where that began.
        ready = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'pgddl%' AND synced AND NOT temporary"

        def kept_in_step() -> bool:
            do(source, "UPDATE item SET body = NULL WHERE id = 1", "SELECT pg_log_standby_snapshot()")
            move.run("replay")
            return bool(one(standby.conninfo(), ready) == 2)

        wait_until(kept_in_step, 90)
        do(source, "UPDATE item SET body = 'read by nobody yet' WHERE id < 10", "DELETE FROM item WHERE id = 50")
        wait_until(lambda: one(standby.conninfo(), "SELECT count(*) FROM item WHERE body IS NOT NULL") == 9)
        wait_until(lambda: one(standby.conninfo(), "SELECT count(*) FROM item") == 98)
        promoted = promote(primary, standby)
        do(promoted, "UPDATE item SET body = 'after it' WHERE id > 90")
        move.moved(promoted)
        move.run_all(after="schema_sync")
        assert differences(promoted, target_dsn) == []


def test_before_17_it_is_refused(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    do(source_dsn, "CREATE TABLE item (id int PRIMARY KEY)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, capture={"rows": "wal", "failover": True})
    with pytest.raises(PreflightRefused, match=r"capture\.failover needs Postgres 17"):
        move.run("setup")
    move.content["swap"] = {"fence": "read_only", "way_back": "home"}  # then it is about either server
    (told,) = stages.check(load_pipeline(move.content), source_dsn, target_dsn)["findings"]
    assert told["severity"] == "warning" and "It holds for the other server" in told["what"]
