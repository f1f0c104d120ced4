"""Migrations that do not go as planned: rows that copies do not take or that differ, a window that is too long, a fence
that waits, a cut-over that dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import catalog_lines, compare_sequences, diff_catalogs, differences
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.rows import timed_comparison
from airflow_provider_pgddl.engine.rows.range_checksums import RangeCompared, Sides
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.stages import swap
from airflow_provider_pgddl.engine.swapping import across
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import Underway, rounds

Lifecycles = Callable[..., Lifecycle]


def looser(source: str, move: Lifecycle) -> None:
    """Rows that copies do not take as they are, for what came to the schema right before; and one ordinary row."""
    execute(
        source,
        """
        CREATE TYPE mood AS ENUM ('sad', 'ok');
        CREATE TABLE labelled (id integer PRIMARY KEY, m mood);
        CREATE TABLE checked (id integer PRIMARY KEY, n integer CONSTRAINT small CHECK (n < 10));
        CREATE TABLE once (id integer PRIMARY KEY, n integer CONSTRAINT unique_n UNIQUE);
        CREATE TABLE fine (id integer PRIMARY KEY, n integer);
        INSERT INTO labelled VALUES (1, 'ok'), (2, 'ok');
        INSERT INTO checked VALUES (1, 1), (2, 2);
        INSERT INTO once VALUES (1, 1), (2, 2);
        INSERT INTO fine VALUES (1, 1), (2, 2);
        """,
    )
    move.run_all(until="schema_sync")
    execute(source, "ALTER TYPE mood ADD VALUE 'happy'; ALTER TABLE checked DROP CONSTRAINT small")
    execute(source, "ALTER TABLE once DROP CONSTRAINT unique_n")
    execute(source, "UPDATE labelled SET m = 'happy' WHERE id = 1; UPDATE checked SET n = 11 WHERE id = 1")
    execute(source, "UPDATE once SET n = 2 WHERE id = 1; UPDATE fine SET n = 5 WHERE id = 1")


def test_rows_of_a_schema_that_became_looser_come_behind_it(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]})
    looser(source_dsn, move)
    assert not move.run("replay").blocked
    assert differences(source_dsn, target_dsn) == []
    move.run_all(after="replay")
    assert differences(source_dsn, target_dsn) == []
    assert diff_catalogs(catalog_lines(source_dsn), catalog_lines(target_dsn)) == []


def test_rows_that_the_copy_does_not_take_stop_their_table_alone(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, capture={"ddl": "off"})
    looser(source_dsn, move)
    for _ in range(2):
        result = move.run("replay")
        assert {b["table"] for b in result.blocked} == {"public.labelled", "public.checked", "public.once"}
        assert result.exit_code == 3
        assert differences(source_dsn, target_dsn, [("public", "fine")]) == []
        execute(source_dsn, "UPDATE once SET n = 3 WHERE id = 2; UPDATE fine SET n = 6 WHERE id = 2")
    assert "is blocked" in str(move.refused("swap"))
    reset(move.job("replay").pipeline, source_dsn, target_dsn)
    move.run_all()
    assert differences(source_dsn, target_dsn) == []


def test_verify_finds_what_differs_and_swap_refuses_it(source_dsn: str, target_dsn: str, lifecycle: Lifecycles) -> None:
    execute(
        source_dsn,
        """
        CREATE TABLE a (id integer PRIMARY KEY, n integer, x text);
        CREATE TABLE b (k text, k2 date, n numeric, PRIMARY KEY (k, k2));
        INSERT INTO a SELECT i, i, i FROM generate_series(1, 3000) i;
        INSERT INTO b SELECT i, '2024-01-01'::date + i, i FROM generate_series(1, 1000) i;
        """,
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]})
    move.run_all(until="replay")
    assert "verif" in str(move.refused("swap"))
    damage = (
        "DELETE FROM a WHERE id = 17",
        "UPDATE a SET x = '' WHERE id = 2999",
        "INSERT INTO a VALUES (-5)",
        "UPDATE b SET n = 5.0 WHERE k = '5'",
    )
    execute(target_dsn, ";".join(damage))
    error = move.refused("verify")
    assert "public.a: 3 rows differ" in error.what and "public.b: 1 rows differ" in error.what
    for key in ("(17)", "(2999)", "(-5)", "(5,2024-01-06)"):
        assert key in error.what
    assert "rows differ" in str(move.refused("swap"))
    execute(target_dsn, "DELETE FROM a WHERE id = -5")
    execute(source_dsn, "UPDATE a SET n = n WHERE id IN (17, 2999); UPDATE b SET n = n WHERE k = '5'")
    move.run_all(after="replay")
    assert differences(source_dsn, target_dsn) == []


def test_what_was_compared_before_it_gave_way_stands(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is truncated all the time keeps nobody from being compared with the others."""
    execute(source_dsn, "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a SELECT generate_series(1, 50)")
    execute(source_dsn, "CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b SELECT generate_series(1, 50)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    move.run_all(until="replay")
    compared: list[int] = []
    compare = timed_comparison.compare_range
    client = Underway(lambda: execute(source_dsn, "TRUNCATE a, b"))

    def waited_for(source: Session, copy: Session, sides: Sides, within: Range, latest: float | None) -> RangeCompared:
        compared.append(within.id)
        if len(compared) == 2:
            client.__enter__()
            source.execute("SELECT pg_catalog.pg_sleep(60)")  # until it is cancelled, for the client waits
        return compare(source, copy, sides, within, latest)

    with monkeypatch.context() as patched:
        patched.setattr(timed_comparison, "compare_range", waited_for)
        move.run("verify")
    client.finish()
    first, second, third = compared
    assert first != second == third
    move.run_all(after="verify")
    assert differences(source_dsn, target_dsn) == []


def test_replay_ends_where_a_window_takes_longer_than_the_lag_may_be(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    execute(source_dsn, "CREATE TABLE a (id integer PRIMARY KEY)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, replay={"until_lag": "0s"})
    move.run_all(until="swap")


def test_a_fence_that_waits_lets_nothing_through_unseen(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    execute(source_dsn, "CREATE TABLE a (id integer PRIMARY KEY, n integer); INSERT INTO a VALUES (1, 0), (2, 0)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, swap={"fence": "lock"})
    move.run_all(until="verify")
    over = threading.Event()

    def write() -> int:
        done = 0
        with psycopg.connect(source_dsn, autocommit=True) as conn:
            for _ in rounds(over):
                conn.execute("UPDATE a SET n = n + 1 WHERE id = 1")
                done += 1
        return done

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        wait_until(lambda: move.on_source("SELECT n FROM a WHERE id = 1") > [(20,)])
        move.run("swap")
        over.set()
        total = written.result()
    [(arrived,)] = move.journal("SELECT n FROM a WHERE id = 1")
    [(late,)] = move.on_source("SELECT count(*) FROM pgddl." + move.journal("SELECT log_table FROM pgddl.tables")[0][0])
    assert arrived + late == total
    assert arrived > 20


@pytest.mark.parametrize(
    ("where", "fence"),
    [
        ("set_exactly", "read_only"),
        ("_add_foreign_keys", "none"),
        ("apply_together", "read_only"),
        ("apply_together", "none"),
        ("set_cut_over", "none"),
        ("after", "read_only"),
    ],
)
def test_a_cut_over_that_dies_is_finished_by_a_retry(
    source_dsn: str,
    target_dsn: str,
    lifecycle: Lifecycles,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    fence: str,
) -> None:
    execute(
        source_dsn,
        """
        CREATE TABLE a (id serial PRIMARY KEY, n integer);
        CREATE TABLE b (id integer PRIMARY KEY, a integer REFERENCES a ON DELETE CASCADE);
        CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.n := NEW.n + 1; RETURN NEW; END';
        CREATE TRIGGER t BEFORE INSERT OR UPDATE ON a FOR EACH ROW EXECUTE FUNCTION f();
        INSERT INTO a (n) SELECT 1 FROM generate_series(1, 10);
        INSERT INTO b SELECT i, i FROM generate_series(1, 10) i;
        """,
    )
    structure = catalog_lines(source_dsn)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, swap={"fence": fence})
    move.run_all(until="verify")
    execute(source_dsn, "INSERT INTO a (n) VALUES (2)")
    with monkeypatch.context() as patch:
        owner = Journal if where == "set_cut_over" else swap if where == "after" else across
        name = "follow_up" if where == "after" else where
        real = getattr(owner, name)

        def die(*args: object, **named: object) -> None:
            real(*args, **named)
            raise Killed

        patch.setattr(owner, name, die)
        with pytest.raises(Killed):
            move.run("swap")
    if fence == "none" and where != "after":
        # Were foreign keys and triggers there already, replaying this would delete from b and count n twice.
        execute(source_dsn, "UPDATE a SET n = 7")
    move.run_all(after="verify")
    assert differences(source_dsn, target_dsn) == []
    assert compare_sequences(source_dsn, target_dsn) == []
    assert diff_catalogs(structure, catalog_lines(target_dsn)) == []
    assert move.journal("SELECT conname FROM pg_constraint WHERE NOT convalidated") == []


class Killed(BaseException):
    """No error handler of ours sees it coming."""
