"""What the follow group's runs do, one after the other: rows and DDL, also of tables that come, go or are renamed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.journal import stage_runs, windows
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import Underway, rounds

Lifecycles = Callable[..., Lifecycle]

BEFORE_THE_GATE = ("setup", "snapshot", "backfill", "schema_sync")
ACCOUNTS = 40
TOTAL = ACCOUNTS * 2 * 100
SHOP = f"""
CREATE SCHEMA shop;
CREATE TABLE shop.checking (id int PRIMARY KEY, balance int NOT NULL);
CREATE TABLE shop.savings (id int PRIMARY KEY, balance int NOT NULL);
INSERT INTO shop.checking SELECT n, 100 FROM generate_series(1, {ACCOUNTS}) n;
INSERT INTO shop.savings SELECT n, 100 FROM generate_series(1, {ACCOUNTS}) n;
"""


@pytest.fixture
def shop(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> Lifecycle:
    execute(source_dsn, SHOP)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["shop.*"]})


def closed_for(move: Lifecycle) -> list[str]:
    """The tables that the gate is closed for."""
    reports = stages.gate(load_pipeline(move.content), move.source, move.target)
    return [r.table for r in reports if r.status == "mismatch"]


def one_run(move: Lifecycle) -> dict[str, str]:
    """One run of the DAG, whose gate has to be open; the state that each stage ended with."""
    states = {stage: move.run(stage).state for stage in BEFORE_THE_GATE}
    assert closed_for(move) == []
    return states | {"replay": move.run("replay").state}


def test_the_first_run_copies_and_a_quiet_one_has_nothing_to_do(shop: Lifecycle) -> None:
    assert set(one_run(shop).values()) == {"done"}
    assert differences(shop.source, shop.target) == []
    assert set(one_run(shop).values()) == {"nothing_to_do"}
    execute(shop.source, "UPDATE shop.checking SET balance = 7 WHERE id = 3; DELETE FROM shop.savings WHERE id = 4")
    assert one_run(shop) == dict.fromkeys(BEFORE_THE_GATE, "nothing_to_do") | {"replay": "done"}
    assert differences(shop.source, shop.target) == []


def test_a_replay_says_which_tables_it_has_changed(shop: Lifecycle) -> None:
    """And the next one for those before it of which nobody was told."""

    def last() -> str:
        ((job,),) = shop.journal("SELECT job_id FROM pgddl.stage_runs ORDER BY started_at DESC LIMIT 1")
        return str(job)

    def untold(told: str | None) -> dict[str, int | None] | None:
        with connect(shop.target, purpose="look", pipeline=shop.name) as conn:
            journal = Journal(conn, shop.name)
            found = journal.stage_runs.untold(journal.run, "replay", last(), told)
            return None if found is None else {table: told.get("keys") for table, told in found.items()}

    one_run(shop)
    first = last()
    assert untold(None) == {"shop.checking": None, "shop.savings": None}, "the backfill has brought them"
    execute(shop.source, "UPDATE shop.checking SET balance = 7 WHERE id IN (3, 4)")
    one_run(shop)
    second = last()
    assert untold(first) == {"shop.checking": 2}
    assert shop.results["replay"].tables["shop.checking"]["rows"] == 2 == shop.results["replay"].figures["rows"]
    (window,) = {t["window"] for t in shop.results["replay"].tables.values() if "window" in t}
    assert window in [n for (n,) in shop.journal("SELECT window_no FROM pgddl.windows WHERE keys = 2")]
    execute(shop.source, "TRUNCATE shop.savings; CREATE TABLE shop.new (id int PRIMARY KEY)")
    one_run(shop)
    third = last()
    assert untold(second) == {"shop.savings": 0, "shop.new": None}
    one_run(shop)
    assert untold(third) == {}
    assert untold(second) == {"shop.savings": 0, "shop.new": None}, "one that was done has told nobody"
    execute(shop.source, "DELETE FROM shop.checking WHERE id = 3; INSERT INTO shop.new VALUES (1)")
    one_run(shop)
    assert untold(third) == {"shop.checking": 1, "shop.new": 1}
    assert untold("of another run") is None
    execute(shop.target, f"UPDATE pgddl.stage_runs SET result = NULL WHERE job_id = '{third}'")
    assert untold(second) is None, "one that was killed has told nobody"


# As many runs of one stage as some days of @continuous leave.
RUNS_OF_DAYS = """
INSERT INTO pgddl.stage_runs (job_id, pipeline, run, stage, token, started_at, finished_at, result)
SELECT r.stage || n, r.pipeline, r.run, r.stage, r.token, r.started_at + n * interval '1 ms',
       r.finished_at + n * interval '1 ms', r.result || '{"state": "nothing_to_do", "figures": {}}'
FROM pgddl.stage_runs r CROSS JOIN generate_series(1, 1500) n WHERE r.stage IN ('snapshot', 'replay')
"""


def test_runs_of_days_do_not_pile_up_and_what_they_say_stays(shop: Lifecycle) -> None:
    one_run(shop)
    waited = "UPDATE pgddl.stage_runs SET result = jsonb_set(result, '{figures,longest_wait_ms}', '77')"
    execute(shop.target, waited + " WHERE stage = 'replay'")
    execute(shop.target, RUNS_OF_DAYS)
    assert set(one_run(shop).values()) == {"nothing_to_do"}
    counts = shop.journal(
        "SELECT stage, count(*) FROM pgddl.stage_runs GROUP BY stage HAVING count(*) > 10 ORDER BY stage"
    )
    assert counts == [("replay", stage_runs.KEPT + 1), ("snapshot", stage_runs.KEPT + 1)]
    assert stages.status(load_pipeline(shop.content), shop.source, shop.target)["longest_wait"]["ms"] == 77
    execute(shop.source, "UPDATE shop.checking SET balance = 7 WHERE id = 3")
    assert one_run(shop)["replay"] == "done"  # though the snapshot that was done is the oldest run of its stage
    assert differences(shop.source, shop.target) == []


def test_what_is_newer_is_told_behind_a_clock_that_was_set_back(shop: Lifecycle) -> None:
    """Else nobody is told of what a replay has changed, until the clock is where it was."""
    one_run(shop)
    for column in ("started_at", "finished_at"):
        execute(shop.target, f"UPDATE pgddl.stage_runs SET {column} = {column} + interval '1 hour'")
    ((told,),) = shop.journal("SELECT job_id FROM pgddl.stage_runs WHERE stage = 'replay'")
    execute(shop.source, "UPDATE shop.checking SET balance = 7 WHERE id IN (3, 4)")
    assert one_run(shop)["replay"] == "done"
    ((now,),) = shop.journal("SELECT job_id FROM pgddl.stage_runs WHERE stage = 'replay' AND job_id <> %s", [told])
    with connect(shop.target, purpose="look", pipeline=shop.name) as conn:
        journal = Journal(conn, shop.name)
        found = journal.stage_runs.untold(journal.run, "replay", now, told)
        assert found is not None
        assert {table: result.get("keys") for table, result in found.items()} == {"shop.checking": 2}
        (latest,) = (run for run in journal.stage_runs.latest(journal.run) if run.stage == "replay")
        assert latest.result == journal.stage_runs.last_done(journal.run, "replay")
        assert latest.result is not None
        assert latest.result["figures"]["keys"] == 2


# As many windows as a replay that stays (`run_for`) opens in an hour or two.
WINDOWS_OF_HOURS = """
INSERT INTO pgddl.windows (pipeline, window_no, run, keys, rows, pending, taken_at, lsn)
SELECT pipeline, window_no + n, run, 2, 1, 0, taken_at, lsn
FROM (SELECT * FROM pgddl.windows ORDER BY window_no DESC LIMIT 1) w CROSS JOIN generate_series(1, %s) n;
UPDATE pgddl.pipelines SET window_no = (SELECT max(window_no) FROM pgddl.windows);
"""


def test_windows_of_hours_do_not_pile_up_and_what_they_say_stays(shop: Lifecycle) -> None:
    def fill() -> int:
        """Up to right before the next sum; returns the number before."""
        ((number,),) = shop.journal("SELECT window_no FROM pgddl.pipelines")
        execute(shop.target, WINDOWS_OF_HOURS % (windows.KEPT + 5 * windows.SUMMED_UP_EVERY - 1 - number % 1000))
        return int(number)

    def lines() -> int:
        ((number,),) = shop.journal("SELECT count(*) FROM pgddl.windows")
        return int(number)

    one_run(shop)
    with connect(shop.target, purpose="look", pipeline=shop.name) as conn:
        journal = Journal(conn, shop.name)
        for _ in range(2):
            fill()
            before = journal.windows.summary(journal.run)
            execute(shop.source, "UPDATE shop.checking SET balance = balance + 1 WHERE id = 1")
            taken = one_run(shop) and shop.results["replay"].figures
            after = journal.windows.summary(journal.run)
            assert lines() < windows.KEPT + 10
            assert after.windows == before.windows + int(taken["windows"])
            assert (after.keys, after.rows) == (before.keys + 1, before.rows + 1)
        shown = fill()
        execute(shop.target, f"UPDATE pgddl.windows SET lsn = NULL WHERE window_no > {shown}")  # a table is stopped
        known = journal.windows.last_complete(journal.run), journal.windows.furthest()
        assert known[0] is not None
        journal.windows.add(0, journal.run, 2, 1, 7, known[0].taken_at)
        assert lines() < windows.KEPT + 10
        assert (journal.windows.last_complete(journal.run), journal.windows.furthest()) == known


def test_a_verification_takes_the_place_of_the_one_before(shop: Lifecycle) -> None:
    """Ranges of every night would pile up, and whoever asks for the last ones would go over them all."""
    one_run(shop)
    jobs = "SELECT count(DISTINCT job_id), count(*) FROM pgddl.verifications"
    for night in range(3):
        execute(shop.source, f"UPDATE shop.checking SET balance = {night} WHERE id = 3")
        shop.run("replay")
        assert shop.run("verify").state == "done"
        assert shop.journal(jobs) == [(1, 2)]
    shop.run("replay")
    shop.run("verify", tables=["shop.checking"])
    assert shop.journal(jobs) == [(2, 2)]
    execute(shop.target, "UPDATE shop.savings SET balance = 7 WHERE id = 3")
    shop.run("replay")
    assert "shop.savings" in str(shop.refused("verify"))
    shop.run("verify", mend=True)
    assert shop.journal(jobs) == [(1, 2)]
    assert differences(shop.source, shop.target) == []


def test_what_windows_count_does_not_pile_up(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> None:
    """Also where nobody asks the gate, which folds what it finds."""
    execute(source_dsn, SHOP)
    execute(source_dsn, "ALTER TABLE shop.checking ALTER balance SET DEFAULT 1")
    tables = {"include": ["shop.checking"], "skip_columns": {"shop.checking": ["balance"]}}
    move = lifecycle(source_dsn, target_dsn, tables=tables)
    one_run(move)
    counted = "SELECT count(*), sum(value)::int FROM pgddl.schema_counters WHERE label = 'column_mismatch'"
    execute(
        target_dsn,
        "INSERT INTO pgddl.schema_counters (pipeline, schema_name, table_name, name, label, value) SELECT"
        f" '{move.name}', 'shop', 'checking', 'rows_skipped', 'column_mismatch', 1 FROM generate_series(1, 100)",
    )
    ((_, before),) = move.journal(counted)
    execute(source_dsn, "UPDATE shop.checking SET balance = 7 WHERE id = 3")
    assert not move.run("replay").blocked
    ((rows, after),) = move.journal(counted)
    assert rows <= 2
    assert after == before + 1


def test_tables_come_go_and_get_other_names_between_runs(shop: Lifecycle) -> None:
    one_run(shop)
    execute(
        shop.source,
        """
        CREATE TABLE shop.orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text UNIQUE);
        INSERT INTO shop.orders (note) SELECT 'order ' || n FROM generate_series(1, 500) n;
        """,
    )
    execute(shop.source, "CREATE TABLE shop.passing (id int PRIMARY KEY); INSERT INTO shop.passing VALUES (1)")
    one_run(shop)
    assert differences(shop.source, shop.target) == []
    execute(
        shop.source,
        """
        ALTER TABLE shop.orders RENAME TO purchases;
        UPDATE shop.purchases SET note = 'changed ' || id WHERE id % 7 = 0;
        DROP TABLE shop.passing;
        ALTER TABLE shop.savings RENAME TO orders;
        INSERT INTO shop.orders VALUES (1000, 5);
        """,
    )
    one_run(shop)
    assert differences(shop.source, shop.target) == []
    execute(shop.source, "INSERT INTO shop.purchases (note) VALUES ('one more'); DELETE FROM shop.orders WHERE id < 9")
    one_run(shop)
    assert differences(shop.source, shop.target) == []
    there = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'shop'::regnamespace ORDER BY 1"
    assert shop.journal(there) == [("checking",), ("orders",), ("purchases",)]


def test_a_new_table_without_a_key_closes_the_gate_until_it_has_one(shop: Lifecycle) -> None:
    """The gate waits within a run, so it has to see by itself that it may open: nothing else runs meanwhile."""
    one_run(shop)
    execute(shop.source, "CREATE TABLE shop.log (id int NOT NULL, what text); INSERT INTO shop.log VALUES (1, 'a')")
    for stage in BEFORE_THE_GATE:
        assert shop.run(stage).state == "nothing_to_do"
    assert closed_for(shop) == ["shop.log"]
    execute(shop.source, "ALTER TABLE shop.log ADD PRIMARY KEY (id)")
    assert closed_for(shop) == []
    one_run(shop)
    assert differences(shop.source, shop.target) == []


@pytest.mark.parametrize("rows", ["change_log", "wal"])
def test_a_reader_of_the_target_never_sees_money_that_is_on_its_way(shop: Lifecycle, rows: str) -> None:
    """Each transaction on the source takes from one table and gives to the other: a window is one transaction here."""
    shop.content["capture"] = {"rows": rows}
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    one_run(shop)
    with moving_money(shop.source, random.Random(seed)) as moved, reading_sums(shop.target) as seen:
        for _ in range(6):
            before = len(moved)
            wait_until(lambda: len(moved) > before + 20)  # noqa: B023
            assert shop.run("replay").state == "done"
    assert set(seen) == {TOTAL}
    shop.run("replay")
    assert differences(shop.source, shop.target) == []


@contextmanager
def moving_money(dsn: str, dice: random.Random) -> Iterator[list[int]]:
    """Amounts between random accounts of both tables, sometimes with a key that changes or an account that is new."""
    over, moved = threading.Event(), list[int]()

    def move() -> None:
        with psycopg.connect(dsn) as conn:
            for _ in rounds(over):
                amount, one, other = dice.randint(-50, 50), dice.randint(1, ACCOUNTS), dice.randint(1, ACCOUNTS)
                conn.execute("UPDATE shop.checking SET balance = balance - %s WHERE id = %s", [amount, one])
                conn.execute("UPDATE shop.savings SET balance = balance + %s WHERE id = %s", [amount, other])
                if dice.random() < 0.2:
                    fresh = 1000 + len(moved)
                    conn.execute("UPDATE shop.savings SET balance = balance - 5 WHERE id = %s", [other])
                    conn.execute("INSERT INTO shop.checking VALUES (%s, 5)", [fresh])
                conn.commit()
                moved.append(amount)

    with beside(move, over):
        yield moved


@contextmanager
def reading_sums(dsn: str) -> Iterator[list[int]]:
    over, seen = threading.Event(), list[int]()
    query = "SELECT (SELECT sum(balance) FROM shop.checking) + (SELECT sum(balance) FROM shop.savings)"

    def read() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            for _ in rounds(over):
                row = conn.execute(query).fetchone()
                assert row is not None
                seen.append(row[0])

    with beside(read, over):
        yield seen


@contextmanager
def beside(act: Callable[[], None], over: threading.Event) -> Iterator[None]:
    """`act` in a thread until the block ends, which `over` tells it; what it raises fails the test."""
    with Underway(act):
        try:
            yield
        finally:
            over.set()
