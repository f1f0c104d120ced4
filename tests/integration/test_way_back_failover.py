"""The server that a cut-over led to fails over to a standby: to one that has all, to one that has lost commits, and to
one that has lost the cut-over itself. The old server, which follows it, is told and mended, and never takes the place
of what is gone without being asked."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands.ddl import record_decision
from airflow_provider_pgddl.engine.errors import Retry, StageFailed, UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.conftest import Database
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute, left_behind, wait_until
from tests.integration.sessions import do, one
from tests.integration.standbys import KEEPS_SLOTS, caught_up, leave_behind, promote, with_standby
from tests.integration.ways_back import SHOP, WORK, Ways, refused

Lifecycles = Callable[..., Lifecycle]
COMMAND = "run verify --mend"
READY = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'pgddl%' AND synced AND NOT temporary"


def moved(ways: Ways, new: str) -> None:
    """Connections lead to the promoted standby."""
    ways.new = new
    ways.there.target_moved(new)
    ways.back.moved(new)


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_a_standby_without_the_last_commits(
    lifecycle: Lifecycles, source_dsn: str, database: Database, pg18: Cluster, rows: str
) -> None:
    """Windows have brought them to the old server: there they are too many."""
    capture = {"rows": "wal", "failover": True} if rows == "wal" else {"rows": rows}
    old = database(pg18) if rows == "wal" else source_dsn  # a slot of the old one's is to fail over as well
    execute(old, SHOP)
    with with_standby(18, **KEEPS_SLOTS) as (primary, standby):
        ways = Ways(lifecycle, old, primary.conninfo(), capture=capture)
        ways.there.run_all(until="swap")
        execute(ways.new, WORK.format("there", 2))

        def kept_in_step() -> bool:
            do(ways.new, "UPDATE shop.customer SET born = now() WHERE id = 3", "SELECT pg_log_standby_snapshot()")
            ways.back.run("replay")
            return rows != "wal" or bool(one(standby.conninfo(), READY) == 2)

        wait_until(kept_in_step, 90)
        caught_up(primary, standby)
        leave_behind(standby)
        execute(ways.new, WORK.format("gone", 3))
        execute(ways.new, "ALTER TABLE shop.part ADD COLUMN gone text")
        assert not ways.back.run("replay").blocked
        moved(ways, promote(primary, standby))
        execute(ways.new, WORK.format("after it", 5))
        blocked = {b["table"]: b["reason"] for b in ways.back.run("replay").blocked}
        assert blocked.keys() >= {"shop.customer", "shop.purchase", "shop.part"}
        assert "never had this statement" in blocked["shop.part"] and COMMAND in blocked["shop.customer"]
        assert COMMAND in str(ways.back.refused("verify", StageFailed))
        ways.back.refused("swap")
        ((event,),) = ways.back.journal("SELECT id FROM pgddl.ddl_events WHERE status = 'unhandled'")
        with psycopg.connect(ways.old, autocommit=True) as by_hand:
            by_hand.execute("ALTER TABLE shop.part DROP COLUMN gone")
        back = load_pipeline(ways.back.content)
        record_decision(back, ways.new, ways.old, event, "resolved", "it never was", "me")
        assert ways.back.run("replay").blocked  # until somebody has compared
        assert not ways.back.run("verify", mend=True).blocked
        assert not ways.back.run("replay").blocked
        ways.equal()
        ways.home_and_forth()


def test_a_standby_without_the_cut_over(lifecycle: Lifecycles, source_dsn: str) -> None:
    """The old server has everything that was ever committed, the new one has not: nothing may go on by itself."""
    execute(source_dsn, SHOP)
    with with_standby(18) as (primary, standby):
        ways = Ways(lifecycle, source_dsn, primary.conninfo())
        ways.there.run_all(until="verify")
        caught_up(primary, standby)
        leave_behind(standby)
        execute(ways.old, WORK.format("the new one loses this", 1))
        assert not ways.there.run("swap").blocked
        execute(ways.new, WORK.format("there", 2))
        assert not ways.back.run("replay").blocked
        rows = ways.there.on_source("SELECT * FROM shop.purchase ORDER BY id")
        moved(ways, promote(primary, standby))
        for stage in ("replay", "verify", "swap"):
            for way in (ways.back, ways.there):
                assert "has lost the cut-over" in str(way.refused(stage, StageFailed))
        assert "has lost the cut-over" in str(ways.there.refused("setup", StageFailed))
        ways.there.refused("cleanup", UsageError)
        refused(ways.old, "DELETE FROM shop.purchase")
        assert ways.there.on_source("SELECT * FROM shop.purchase ORDER BY id") == rows
        there, back = load_pipeline(ways.there.content), load_pipeline(ways.back.content)
        with pytest.raises(UsageError, match="way back"):
            stages.reset(there, ways.old, ways.new)
        assert not ways.back.run("cleanup").blocked
        stages.reset(there, ways.old, ways.new)
        stages.reset(back, ways.new, ways.old)
        assert left_behind(ways.old) == left_behind(ways.new) == []
        execute(ways.old, WORK.format("goes on here", 3))
        ways.there.run_all(until="swap")
        ways.alike()
        execute(ways.new, WORK.format("there again", 4))
        assert not ways.back.run("replay").blocked
        ways.equal()


def test_an_old_server_that_has_lost_the_birth_and_what_came_back(
    lifecycle: Lifecycles, target_dsn: str, at: At
) -> None:
    """The mark on the new server has its run born again, and windows are missing."""
    with with_standby(16) as (primary, standby):
        execute(primary.conninfo(), SHOP)
        ways = Ways(lifecycle, primary.conninfo(), target_dsn)
        ways.there.run_all(until="verify")

        def part() -> None:
            caught_up(primary, standby)
            leave_behind(standby)

        with at("way_back.before_birth_commit", once(part)):
            assert not ways.there.run("swap").blocked
        execute(ways.new, WORK.format("there", 2))
        assert not ways.back.run("replay").blocked
        ways.equal()
        ways.old = promote(primary, standby)
        ways.there.moved(ways.old)
        ways.back.target_moved(ways.old)
        execute(ways.new, WORK.format("after it", 5))
        reasons = {b["table"]: b["reason"] for b in ways.back.run("replay").blocked}
        assert reasons.keys() == {"shop.customer", "shop.purchase", "shop.part"}
        assert all("failed over to an older state" in reason for reason in reasons.values())
        assert not ways.back.run("verify", mend=True).blocked
        ways.equal()
        ways.home_and_forth()


@pytest.mark.parametrize("lost", matrix("fail", "restart_tables"))
def test_a_slot_that_does_not_fail_over(lifecycle: Lifecycles, database: Database, pg18: Cluster, lost: str) -> None:
    """Before 17 a promoted standby has none: the way back ends there, or all of its tables are read again."""
    old = database(pg18)
    execute(old, SHOP)
    capture = {"rows": "wal", "on_slot_lost": lost, "ddl": "wal" if lost == "fail" else "queue"}
    with with_standby(16) as (primary, standby):
        ways = Ways(lifecycle, old, primary.conninfo(), capture=capture)
        ways.there.run_all(until="swap")
        execute(ways.new, WORK.format("there", 2))
        assert not ways.back.run("replay").blocked
        execute(ways.new, WORK.format("read by nobody", 3))
        caught_up(primary, standby)
        moved(ways, promote(primary, standby))
        execute(ways.new, WORK.format("after it", 5))
        if lost == "fail":
            assert "was dropped" in str(ways.back.refused("replay", StageFailed))
            ways.back.refused("swap", StageFailed)
            for way in (ways.back, ways.there):
                assert not way.run("cleanup").blocked
            refused(ways.old, "DELETE FROM shop.purchase")
            assert left_behind(ways.new) == ["schema pgddl"]
            return
        assert not ways.back.run("replay").blocked
        ways.equal()
        ways.home_and_forth()


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_a_synchronous_standby_has_all(lifecycle: Lifecycles, source_dsn: str, rows: str) -> None:
    """Of slots those on the new server alone can fail over; the old one is older than 17."""
    capture = {"rows": "wal", "failover": True} if rows == "wal" else {"rows": rows}
    execute(source_dsn, SHOP)
    with with_standby(18, **KEEPS_SLOTS) as (primary, standby):
        ways = Ways(lifecycle, source_dsn, primary.conninfo(), capture=capture)
        ways.there.run_all(until="verify")
        do(ways.new, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        wait_until(lambda: one(ways.new, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1)
        assert not ways.there.run("swap").blocked
        if rows == "wal":

            def kept_in_step() -> bool:
                do(ways.new, "UPDATE shop.customer SET born = now() WHERE id = 3", "SELECT pg_log_standby_snapshot()")
                ways.back.run("replay")
                return bool(one(standby.conninfo(), READY) == 2)

            wait_until(kept_in_step, 90)
        execute(ways.new, WORK.format("there", 2))
        moved(ways, promote(primary, standby))
        execute(ways.new, WORK.format("after it", 5))
        do(ways.new, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        assert not ways.back.run("replay").blocked
        ways.equal()
        ways.home_and_forth()


@pytest.mark.parametrize("late", [True, False])
def test_an_old_server_that_has_lost_the_fence(lifecycle: Lifecycles, target_dsn: str, at: At, late: bool) -> None:
    """Applications that have stayed behind write there, and what had been moved before is missing there."""
    with with_standby(16) as (primary, standby):
        execute(primary.conninfo(), SHOP)
        ways = Ways(lifecycle, primary.conninfo(), target_dsn)
        ways.there.run_all(until="verify")

        def part() -> None:
            caught_up(primary, standby)
            leave_behind(standby)
            execute(ways.old, WORK.format("the standby never had this", 1))

        def die() -> None:
            raise Retry("here")

        with at("cut_over.before_fence", once(part)), at("cut_over.after_commit", once(die)):
            ways.there.refused("swap", Retry)
        execute(ways.new, WORK.format("there", 2))
        ways.old = promote(primary, standby)
        ways.there.moved(ways.old)
        ways.back.target_moved(ways.old)
        if late:
            execute(ways.old, "UPDATE shop.purchase SET note = 'late' WHERE id = 7")
            assert "written to after the swap (shop.purchase: 1)" in str(ways.there.refused("swap"))
        else:
            for border in ("way_back.before_lost_fence_commit", "cut_over.before_closed_again_commit"):
                with at(border, once(die)):
                    ways.there.refused("swap", Retry)
            assert not ways.there.run("swap").blocked
            reasons = {b["reason"] for b in ways.back.run("replay").blocked}
            assert len(reasons) == 1 and "had lost the fence" in reasons.pop()
            assert not ways.back.run("verify", mend=True).blocked
            ways.equal()
        refused(ways.old, "UPDATE shop.purchase SET note = 'too late' WHERE id = 7")
