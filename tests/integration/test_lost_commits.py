"""C33: a failover that lost commits, of either server, is told by whoever runs next; what differs is read again."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands import ddl as ddl_commands
from airflow_provider_pgddl.engine.commands import metrics
from airflow_provider_pgddl.engine.errors import EXIT_BLOCKED, Retry, StageFailed
from airflow_provider_pgddl.engine.following import failover
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import StageResult
from tests.failpoints import At
from tests.integration.lifecycle import Lifecycle, wait_until
from tests.integration.sessions import do, one
from tests.integration.standbys import KEEPS_SLOTS, SMALL, caught_up, leave_behind, promote, with_standby

Make = Callable[..., Lifecycle]
ROWS = 40_000
TABLES = (
    "CREATE TABLE item (id int PRIMARY KEY, email text UNIQUE, body text)",
    f"INSERT INTO item SELECT n, n || '@example.org', repeat('x', 20) FROM generate_series(1, {ROWS}) n",
    "CREATE TABLE word (word text PRIMARY KEY, body text)",
    "INSERT INTO word SELECT 'w' || n, 'x' FROM generate_series(1, 500) n",
    "ANALYZE item, word",
)
EVERYTHING: dict[str, Any] = {"tables": {"include": ["*.*"]}}
COMMAND = "run verify --mend"
LSN = "SELECT pg_current_wal_insert_lsn()::text"


def received(move: Lifecycle) -> None:
    """What the slot has into the logs, and no window over them."""
    with ExitStack() as stack:
        held = stack.enter_context(Lease(move.target, move.name, "replay", None))
        held.take()
        Context(move.job("replay"), held, stack).receive()


def told(move: Lifecycle, result: StageResult) -> None:
    """By everything that tells."""
    assert result.exit_code == EXIT_BLOCKED
    assert {b["table"] for b in result.blocked} == {"public.item", "public.word"}
    assert all(COMMAND in b["reason"] for b in result.blocked)
    pipeline = load_pipeline(move.content)
    reports = stages.gate(pipeline, move.source, move.target)
    assert {r.table: r.status for r in reports} == {"public.item": "mismatch", "public.word": "mismatch"}
    assert all(any(f.reason == "lost_commits" and f.commands for f in r.findings) for r in reports)
    assert all(COMMAND in str(r.resolution) for r in reports)
    with_verify = stages.gate(pipeline, move.source, move.target, behind=("replay", "verify"))
    assert {r.status for r in with_verify} == {"compatible"}, "a gate that waited for the task behind it"
    first = stages.gate(pipeline, move.source, move.target, announce=True)
    again = stages.gate(pipeline, move.source, move.target, announce=True)
    assert [r.new for r in first] == [True, True]
    assert [r.new for r in again] == [False, False]
    assert "pgddl_verify_needed" in (text := metrics.text(pipeline, move.source, move.target))
    assert f'pgddl_verify_needed{{pipeline="{move.name}"}} 1.0' in text
    assert stages.status(pipeline, move.source, move.target)["state"] == "verify needed"


def mended(move: Lifecycle) -> StageResult:
    assert differences(move.source, move.target) != []
    result = move.run("verify", mend=True)
    assert not result.blocked
    assert differences(move.source, move.target) == []
    assert 0 < int(result.figures["mended"]) < ROWS // 4
    assert not move.run("replay").blocked
    pipeline = load_pipeline(move.content)
    assert all(r.status == "compatible" for r in stages.gate(pipeline, move.source, move.target))
    assert f'pgddl_verify_needed{{pipeline="{move.name}"}} 0.0' in metrics.text(pipeline, move.source, move.target)
    assert stages.status(pipeline, move.source, move.target)["state"] == "under way"
    return result


def gone(move: Lifecycle, view: str) -> None:
    """A person takes away what never was."""
    ((event,),) = move.journal("SELECT id FROM pgddl.ddl_events WHERE status = 'unhandled'")
    do(move.target, f"DROP VIEW {view}")
    pipeline = load_pipeline(move.content)
    ddl_commands.record_decision(pipeline, move.source, move.target, event, "resolved", "it never was", "me")


@pytest.mark.parametrize(("rows", "ddl"), [("change_log", "queue"), ("wal", "wal"), ("change_log", "wal")])
def test_c33_a_target_that_lost_windows(source_dsn: str, lifecycle: Make, rows: str, ddl: str) -> None:
    do(source_dsn, *TABLES)
    with with_standby(16) as (primary, standby):
        move = lifecycle(source_dsn, primary.conninfo(), capture={"rows": rows, "ddl": ddl}, **EVERYTHING)
        move.run_all(until="replay")
        caught_up(primary, standby)
        leave_behind(standby)
        do(
            source_dsn,
            "UPDATE item SET body = 'in a window that gets lost' WHERE id BETWEEN 1000 AND 1200",
            "DELETE FROM item WHERE id IN (7, 20000)",
            "INSERT INTO item SELECT n, '7@example.org' FROM generate_series(50000, 50000) n",  # 7's email
            "INSERT INTO word VALUES ('wénew', 'x')",
            "DELETE FROM word WHERE word = 'w400'",
            *(["ALTER TABLE word ADD COLUMN lost int", "UPDATE word SET lost = 1"] if ddl == "wal" else []),
        )
        move.run("replay")
        assert differences(source_dsn, primary.conninfo()) == []
        move.target_moved(promote(primary, standby))
        do(source_dsn, "UPDATE item SET body = 'after it' WHERE id = 3000")
        if ddl == "wal":  # the slot has let go of it: the schemas tell
            reasons = {b["table"]: b["reason"] for b in move.run("replay").blocked}
            assert "lost" in reasons["public.word"]
            do(move.target, "ALTER TABLE word ADD COLUMN lost int")
        told(move, move.run("replay"))
        told_again = move.refused("verify", StageFailed)
        assert COMMAND in str(told_again)
        mended(move)


@pytest.mark.parametrize(("rows", "ddl"), [("wal", "wal"), ("change_log", "queue")])
def test_c33_a_source_that_lost_commits_that_were_read(target_dsn: str, lifecycle: Make, rows: str, ddl: str) -> None:
    with with_standby(18, **KEEPS_SLOTS) as (primary, standby):
        source = primary.conninfo()
        do(source, *TABLES)
        capture = {"rows": rows, "ddl": ddl, **({"failover": True} if rows == "wal" else {})}
        move = lifecycle(source, target_dsn, capture=capture, **EVERYTHING)
        move.run_all(until="replay")
        ready = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'pgddl%' AND synced AND NOT temporary"

        def kept_in_step() -> bool:
            do(source, "UPDATE word SET body = NULL WHERE word = 'w1'", "SELECT pg_log_standby_snapshot()")
            move.run("replay")
            return rows != "wal" or bool(one(standby.conninfo(), ready) == 2)

        wait_until(kept_in_step, 90)
        caught_up(primary, standby)
        leave_behind(standby)
        with psycopg.connect(source, autocommit=True) as conn:
            for n in range(1, 300):
                conn.execute("UPDATE item SET body = 'never was' WHERE id = %s", [n])
            conn.execute("UPDATE item SET email = 'taken@example.org' WHERE id = 900")
            conn.execute("INSERT INTO item SELECT n, n || '@example.org' FROM generate_series(60000, 60100) n")
            conn.execute("CREATE VIEW phantom AS SELECT 1 AS one")
            move.run("replay")
            conn.execute("TRUNCATE word")  # in the log at most: no window takes it
        if rows == "wal":
            received(move)
        promoted = promote(primary, standby)
        move.moved(promoted)
        do(
            promoted,
            "UPDATE item SET body = 'after it' WHERE id BETWEEN 100 AND 250",
            "INSERT INTO item VALUES (70000, 'taken@example.org', 'after it')",
            "CREATE VIEW later AS SELECT 2 AS two",
            "INSERT INTO word VALUES ('new', 'after it')",
        )
        move.run("setup")
        result = move.run("replay")
        blocked = {b["table"]: b["reason"] for b in result.blocked}
        assert "CREATE VIEW" in blocked.pop("public.phantom")
        gone(move, "phantom")
        told(move, move.run("replay"))
        assert one(target_dsn, "SELECT two FROM later") == 2
        mended(move)


@pytest.mark.parametrize("capture", ["change_log", "wal"])
def test_c33_a_failover_that_lost_nothing_needs_no_verification(target_dsn: str, lifecycle: Make, capture: str) -> None:
    with with_standby(18, **KEEPS_SLOTS) as (primary, standby):
        source = primary.conninfo()
        do(source, *TABLES[2:4])
        more = {"failover": True} if capture == "wal" else {}
        move = lifecycle(source, target_dsn, capture={"rows": capture, **more}, **EVERYTHING)
        move.run_all(until="replay")
        ready = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'pgddl%' AND synced AND NOT temporary"

        def kept_in_step() -> bool:
            do(source, "UPDATE word SET body = NULL WHERE word = 'w1'", "SELECT pg_log_standby_snapshot()")
            move.run("replay")
            return capture != "wal" or bool(one(standby.conninfo(), ready) == 2)

        wait_until(kept_in_step, 90)
        do(source, "UPDATE word SET body = 'before it' WHERE word = 'w2'")
        caught_up(primary, standby)
        promoted = promote(primary, standby)
        move.moved(promoted)
        do(promoted, "UPDATE word SET body = 'after it' WHERE word = 'w3'")
        assert not move.run("replay").blocked
        assert differences(promoted, target_dsn) == []


class Killed(Exception):
    pass


@contextmanager
def rolled_back(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """What is called puts the storage of a cluster back to what it was at first, slots and all."""
    kept = cluster.data.with_name("kept")

    def copy(of: Path, to: Path) -> None:
        cluster.stop()
        shutil.rmtree(to, ignore_errors=True)
        subprocess.run(["cp", "-a", of, to], check=True)
        cluster.start()

    copy(cluster.data, kept)
    yield lambda: copy(kept, cluster.data)


@pytest.mark.parametrize(("rows", "ddl"), [("wal", "wal"), ("change_log", "queue")])
def test_c33_a_source_whose_storage_was_rolled_back(
    target_dsn: str, lifecycle: Make, at: At, rows: str, ddl: str
) -> None:
    """On the same timeline, LSNs and transaction ids come again. Before a window that was read is acknowledged, the WAL
    tells; behind that, its number."""
    with Cluster(18, settings=SMALL) as cluster:
        source = cluster.conninfo()
        do(source, *TABLES)
        move = lifecycle(source, target_dsn, capture={"rows": rows, "ddl": ddl}, **EVERYTHING)
        move.run_all(until="replay")
        with rolled_back(cluster) as roll_back:
            with psycopg.connect(source, autocommit=True) as conn:
                for n in range(1, 100):
                    conn.execute("UPDATE item SET body = 'never was' WHERE id = %s", [n])
                conn.execute("INSERT INTO item SELECT n, n || '@example.org' FROM generate_series(60000, 60100) n")
                conn.execute("CREATE VIEW phantom AS SELECT 1 AS one")

            def die(_: int) -> None:
                raise Killed

            with at("replay.before_acknowledge", die), pytest.raises(Killed):
                move.run("replay")
            roll_back()
            do(source, "INSERT INTO item VALUES (70000, 'a@example.org', 'after it')")
            if rows == "wal":
                with pytest.raises(Retry, match="went back"):
                    received(move)
            do(source, "CREATE VIEW later AS SELECT 2 AS two", "UPDATE word SET body = 'after it' WHERE word = 'w7'")
            assert "its WAL was read up to" in str(move.run("replay").blocked)
            gone(move, "phantom")
            told(move, move.run("replay"))
            assert one(target_dsn, "SELECT two FROM later") == 2
            mended(move)
            roll_back()
            at_once = "SELECT pg_switch_wal()", "UPDATE word SET body = 'once more' WHERE word < 'w2'"
            do(source, *at_once, "CREATE VIEW latest AS SELECT 3 AS three")  # its WAL is beyond what was read
            move.run("setup")
            assert "it had acknowledged window" in str(move.run("replay").blocked)
            gone(move, "later")
            told(move, move.run("replay"))
            assert one(target_dsn, "SELECT three FROM latest") == 3
            mended(move)


def test_c33_reading_a_table_again_counts_as_a_window(
    source_dsn: str, target_dsn: str, lifecycle: Make, at: At
) -> None:
    """It has read which keys there are, and forgotten the log of what was before. One run dies right behind it."""
    do(source_dsn, *TABLES[2:4])
    move = lifecycle(source_dsn, target_dsn, **EVERYTHING)
    move.run_all(until="replay")
    ((number, run),) = move.journal("SELECT window_no, run FROM pgddl.pipelines")
    switch = one(source_dsn, LSN)
    do(source_dsn, "DELETE FROM word WHERE word = 'w3'")
    do(target_dsn, "ALTER TABLE word ADD COLUMN made uuid DEFAULT gen_random_uuid()")  # which rewrites the copy

    def die(_: int) -> None:
        if again.times:
            raise Killed

    again = at("settle.before_reload_commit")
    with at("replay.before_target_commit", die), pytest.raises(Killed):
        move.run("replay")
    assert one(source_dsn, "SELECT window_no FROM pgddl.captures") > number
    with ExitStack() as stack:
        held = stack.enter_context(Lease(move.target, move.name, "replay", None))
        held.take()
        context = Context(move.job("replay"), held, stack)
        assert failover._read_beyond(context, switch)
        do(source_dsn, f"UPDATE pgddl.captures SET born_run = {run}, born_lsn = '0/1', born_position = '3:3:'")
        assert failover._read_beyond(context, switch), "the equality at a birth says nothing of what came behind it"
        do(source_dsn, "UPDATE pgddl.captures SET born_run = NULL, born_lsn = NULL, born_position = NULL")
    # As a standby of the target is that has not got it.
    do(target_dsn, f"UPDATE pgddl.pipelines SET window_no = {number}")
    assert all(COMMAND in b["reason"] for b in move.run("replay").blocked)
    assert move.results["replay"].exit_code == EXIT_BLOCKED
    assert not move.run("verify", mend=True).blocked
    assert not move.run("replay").blocked


ANOTHER = "UPDATE {} SET body = 'by hand' WHERE id BETWEEN 500 AND 505", "DELETE FROM {} WHERE id = 9"


def test_what_differs_for_another_reason_is_mended_too(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    """And what only the target knows of these rows stays."""
    do(source_dsn, *TABLES)
    move = lifecycle(source_dsn, target_dsn, **EVERYTHING)
    move.run_all(until="replay")
    do(target_dsn, "ALTER TABLE item ADD COLUMN note text", "UPDATE item SET note = 'of ' || id WHERE id < 5000")
    move.run("replay")
    do(target_dsn, *(statement.format("item") for statement in ANOTHER))
    assert COMMAND in str(move.refused("verify", StageFailed))
    assert int(move.run("verify", mend=True).figures["mended"]) < ROWS // 4
    assert one(target_dsn, "SELECT count(*) FROM item WHERE body = 'by hand'") == 0
    assert one(target_dsn, "SELECT count(*) FROM item WHERE note = 'of ' || id AND id BETWEEN 500 AND 505") == 6
    assert one(target_dsn, "SELECT count(*) FROM item") == ROWS


def test_in_place_as_well(source_dsn: str, lifecycle: Make) -> None:
    do(source_dsn, *TABLES)
    move = lifecycle(source_dsn, rewrite={"public.item": {"alter": ["ALTER id TYPE bigint"]}})
    move.run_all(until="replay")
    ((copy,),) = move.journal(
        "SELECT format('%%I.%%I', plan ->> 'copy_schema', plan ->> 'copy_name') FROM pgddl.tables WHERE pipeline = %s",
        [move.name],
    )
    do(source_dsn, *(statement.format(copy) for statement in ANOTHER))
    assert COMMAND in str(move.refused("verify", StageFailed))
    assert int(move.run("verify", mend=True).figures["mended"]) < ROWS // 4
    move.run("swap")
    assert one(source_dsn, "SELECT count(*) FROM item WHERE body = 'by hand'") == 0
    assert one(source_dsn, "SELECT count(*) FROM item") == ROWS
