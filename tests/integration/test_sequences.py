"""Sequences: ahead of the source's while rows are followed, and where they stand at the cut-over."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import compare_sequences
from airflow_provider_pgddl.engine.following import ddl, sequences
from airflow_provider_pgddl.engine.following.sequences import DRAWS_AHEAD, Position, Sequence, ahead
from airflow_provider_pgddl.engine.server.connect import Session
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import Underway, rounds

Lifecycles = Callable[..., Lifecycle]

BIG = Sequence(1, 1, 1, 2**63 - 1, False)


def drawn(sequence: Sequence, start: Position, draws: int) -> list[int]:
    """What nextval would hand out, step by step; shorter where the end is reached."""
    values: list[int] = []
    last, called = start.last, start.called
    for _ in range(draws):
        if called:
            following = last + sequence.increment
            if not sequence.low <= following <= sequence.high:
                if not sequence.cycle:
                    break
                following = sequence.low if sequence.increment > 0 else sequence.high
            last = following
        called = True
        values.append(last)
    return values


def test_it_is_set_ahead_and_stays_until_half_of_that_is_used_up() -> None:
    assert ahead(BIG, Position(500, True), Position(1, False)) == Position(500 + DRAWS_AHEAD, True)
    assert ahead(BIG, Position(1, False), Position(1, False)) == Position(1 + DRAWS_AHEAD, True)
    there = Position(500 + DRAWS_AHEAD, True)
    assert ahead(BIG, Position(500 + DRAWS_AHEAD // 2, True), there) is None
    assert ahead(BIG, Position(501 + DRAWS_AHEAD // 2, True), there) == Position(501 + DRAWS_AHEAD * 3 // 2, True)


def test_it_is_never_set_back() -> None:
    """TRUNCATE … RESTART IDENTITY on the source: what the target would hand out is merely further on."""
    assert ahead(BIG, Position(1, False), Position(7_000_000, True)) is None


def test_near_the_end_the_margin_shrinks_and_the_end_is_not_passed() -> None:
    narrow = Sequence(1, 1, 1, 1000, False)
    assert ahead(narrow, Position(100, True), Position(1, False)) == Position(109, True)
    assert ahead(narrow, Position(950, True), Position(950, False)) == Position(950, True)
    assert ahead(narrow, Position(1000, True), Position(1000, True)) is None
    assert ahead(narrow, Position(1001, True), Position(1000, True)) is None  # its ALTER has not been followed yet


@pytest.mark.parametrize("cycle", [False, True])
def test_what_it_hands_out_next_is_what_the_source_does_later(cycle: bool) -> None:
    """Of any sequence: the new position is one that the source's comes to, at most that many values on."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(3000):
        increment = dice.choice([1, 2, 3, 7, -1, -2, -5])
        low = dice.randint(-50, 50)
        sequence = Sequence(1, increment, low, low + dice.randint(abs(increment), 3000), cycle)
        source = Position(dice.randint(sequence.low, sequence.high), dice.random() < 0.8)
        new = ahead(sequence, source, Position(sequence.low if increment > 0 else sequence.high, False))
        if new is None:
            continue
        later = drawn(sequence, source, sequence.length // 50 + 2)
        assert new == source or new.last in (source.last, *later), (sequence, source, new)
        assert ahead(sequence, source, new) is None, (sequence, source, new)


KINDS = """
CREATE TABLE serials (id serial PRIMARY KEY, n int);
CREATE TABLE identities (id bigint GENERATED ALWAYS AS IDENTITY (INCREMENT BY 10 START WITH 5) PRIMARY KEY, n int);
CREATE TABLE smalls (id smallserial PRIMARY KEY, n int);
CREATE SEQUENCE falling INCREMENT BY -3 MINVALUE -10000 MAXVALUE 10000 START WITH 10000;
CREATE SEQUENCE around MINVALUE 1 MAXVALUE 1000 CYCLE;
CREATE SEQUENCE "Free standing's" START WITH 77;
CREATE SEQUENCE untouched;
CREATE TABLE nobodys (id int PRIMARY KEY DEFAULT nextval('"Free standing''s"'));
INSERT INTO serials (n) SELECT 1 FROM generate_series(1, 50);
INSERT INTO identities (n) SELECT 1 FROM generate_series(1, 50);
INSERT INTO smalls (n) SELECT 1 FROM generate_series(1, 50);
INSERT INTO nobodys DEFAULT VALUES;
SELECT nextval('falling') FROM generate_series(1, 50);
SELECT nextval('around') FROM generate_series(1, 998);
"""
DEFINITIONS = """
SELECT sequencename::text, data_type::text, increment_by, min_value, max_value, cycle FROM pg_sequences
WHERE schemaname = 'public'
"""
NEXT = {
    "serials_id_seq": 51 + DRAWS_AHEAD,
    "identities_id_seq": 505 + 10 * DRAWS_AHEAD,
    "smalls_id_seq": 51 + (32767 - 50) // 100,
    "falling": 10000 - 50 * 3 - 3 * ((20000 - 147) // 3 // 100),
    "around": 9,  # two are left, and eight more come from the start
    "Free standing's": 78 + DRAWS_AHEAD,
    "untouched": 2 + DRAWS_AHEAD,
}


@pytest.fixture
def move(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> Lifecycle:
    execute(source_dsn, KINDS)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, swap={"fence": "read_only"})


def next_on_target(move: Lifecycle) -> dict[str, int]:
    """What every sequence would hand out after a failover to the target."""
    return {
        name: move.journal("SELECT nextval(%s::regclass)", [f'"{name}"'])[0][0]
        for (name,) in move.journal("SELECT sequencename FROM pg_sequences WHERE schemaname = 'public'")
    }


def test_every_kind_of_sequence_is_ahead_after_a_replay_and_exact_after_the_swap(move: Lifecycle) -> None:
    move.run_all(until="replay")
    assert sorted(move.journal(DEFINITIONS)) == sorted(move.on_source(DEFINITIONS))
    assert next_on_target(move) == NEXT
    move.run_all(after="replay", until="swap")
    assert compare_sequences(move.source, move.target) == []


def test_a_quiet_replay_writes_nothing_to_them(move: Lifecycle) -> None:
    move.run_all(until="replay")
    logged = "SELECT last_value, log_cnt, is_called, xmin::text FROM serials_id_seq"
    before = move.journal(logged)
    execute(move.source, "INSERT INTO serials (n) VALUES (1)")
    move.run("replay")
    assert move.journal("SELECT count(*) FROM serials") == [(51,)]
    assert move.journal(logged) == before


def test_a_sequence_that_came_later_is_followed_too(move: Lifecycle) -> None:
    move.run_all(until="replay")
    execute(move.source, "CREATE SEQUENCE late; SELECT setval('late', 40); ALTER SEQUENCE untouched RENAME TO touched")
    move.run("replay")
    move.run("replay")
    found = next_on_target(move)
    assert found["late"] == 41 + DRAWS_AHEAD
    assert found["touched"] == 2 + DRAWS_AHEAD


def test_bounds_that_the_lead_is_beyond_are_taken(move: Lifecycle) -> None:
    execute(
        move.source,
        "CREATE TABLE narrow (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int GENERATED BY DEFAULT AS IDENTITY)",
    )
    move.run_all(until="replay")
    execute(
        move.source,
        """
        INSERT INTO narrow DEFAULT VALUES;
        ALTER SEQUENCE "Free standing's" AS bigint MAXVALUE 100000;
        ALTER SEQUENCE untouched RESTART WITH 5 MAXVALUE 900;
        ALTER SEQUENCE falling MAXVALUE 20000;
        ALTER TABLE narrow ALTER id TYPE smallint, ALTER n SET MAXVALUE 500;
        SELECT nextval('falling')
        """,
    )
    stands = move.journal("SELECT last_value FROM falling")
    move.run("replay")
    assert move.journal("SELECT rule, note FROM pgddl.ddl_events WHERE status IN ('failed', 'unhandled')") == []
    assert move.journal("SELECT last_value FROM falling") == stands  # as far ahead as it was
    found = next_on_target(move)
    assert (found["Free standing's"], found["narrow_id_seq"]) == (78 + (100000 - 77) // 100, 2 + 32766 // 100)
    assert (found["narrow_n_seq"], found["untouched"]) == (2 + 499 // 100, 6 + 895 // 100)
    assert sorted(move.journal(DEFINITIONS)) == sorted(move.on_source(DEFINITIONS))


def test_an_event_that_dies_leaves_no_sequence_behind_its_lead(
    move: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    move.run_all(until="replay")
    stands = move.journal("SELECT last_value FROM untouched")
    execute(move.source, "ALTER SEQUENCE untouched MAXVALUE 90000000")

    def die(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError("the connection is lost")

    with monkeypatch.context() as dying:
        dying.setattr(ddl, "apply_captured", die)
        assert move.refused("replay").retryable
    assert move.journal("SELECT last_value FROM untouched") == stands
    assert not move.run("replay").blocked
    assert sorted(move.journal(DEFINITIONS)) == sorted(move.on_source(DEFINITIONS))


def test_a_failover_at_any_moment_hands_out_no_value_that_a_row_has(move: Lifecycle) -> None:
    """Windows bring rows while they are written; the target is asked all the while, as a reader would."""
    move.run_all(until="schema_sync")
    over, behind = threading.Event(), []

    def look() -> None:
        query = "SELECT (SELECT max(id) FROM serials), (SELECT last_value FROM serials_id_seq)"
        with psycopg.connect(move.target, autocommit=True) as reader:
            for _ in rounds(over):
                row = reader.execute(query).fetchone()
                assert row is not None
                if row[0] is not None and row[0] >= row[1]:
                    behind.append(row)

    move.run("replay")
    with writing(move.source), beside(look, over):
        for _ in range(5):
            move.run("replay")
    assert behind == []


def test_sequences_are_exact_at_a_swap_under_writers(move: Lifecycle) -> None:
    """They draw until the fence refuses their rows; what it let through is on the target, and comes no second time."""
    move.run_all(until="verify")
    with writing(move.source) as written:
        wait_until(lambda: len(written) > 50)
        move.run("swap")
    assert move.journal("SELECT max(id), count(*) FROM serials") == move.on_source(
        "SELECT max(id), count(*) FROM serials"
    )
    [(following,)] = move.journal("SELECT nextval('serials_id_seq')")
    assert following > max(written)
    # The writer's last draw was for a row that the fence refused: it was used by nobody, and may come again.
    assert move.on_source("SELECT last_value FROM serials_id_seq")[0][0] in (following - 1, following)


def test_what_another_pipeline_has_cut_over_is_not_set_back(
    lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    """Tables that move in waves, within one database: applications have drawn from the first on the target since."""
    made = "CREATE TABLE {0}.t (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, n int);"
    made += "INSERT INTO {0}.t (n) SELECT 1 FROM generate_series(1, 50);"
    stands = "SELECT last_value FROM crm.t_id_seq"
    execute(source_dsn, "".join(f"CREATE SCHEMA {name}; {made.format(name)}" for name in ("crm", "shop")))
    for name in ("crm", "shop"):
        move = lifecycle(
            source_dsn, target_dsn, tables={"include": [f"{name}.*"]}, swap={"fence": "read_only"}, pipeline=name
        )
        move.run_all(until="verify")
        move.run("replay")
        move.run("swap")
        if name == "crm":
            execute(target_dsn, "INSERT INTO crm.t (n) SELECT 2 FROM generate_series(1, 30)")
        assert move.journal(stands) == [(80,)], "nor is it moved ahead"
    execute(target_dsn, "INSERT INTO crm.t (n) VALUES (3); INSERT INTO shop.t (n) VALUES (3)")
    assert move.journal("SELECT max(id), count(*) FROM shop.t") == [(51, 51)]


def test_a_sequence_that_waves_share_is_not_set_back(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> None:
    """It goes with no column, and is in a schema of both: applications draw from it on the target since the first."""
    table = "CREATE TABLE public.{} (id int DEFAULT nextval('public.ids') PRIMARY KEY, n int);"
    execute(source_dsn, "CREATE SEQUENCE public.ids;" + table.format("a") + table.format("b"))
    execute(source_dsn, "INSERT INTO a (n) SELECT 1 FROM generate_series(1, 20); INSERT INTO b (n) VALUES (1)")
    for name in ("a", "b"):
        move = lifecycle(
            source_dsn, target_dsn, tables={"include": [f"public.{name}"], "existing": "adopt"},
            swap={"fence": "read_only"}, pipeline=name,
        )  # fmt: skip
        move.run_all(until="swap")
        if name == "a":
            execute(target_dsn, "INSERT INTO a (n) SELECT 2 FROM generate_series(1, 30)")
    execute(target_dsn, "INSERT INTO b (n) VALUES (3); INSERT INTO a (n) VALUES (3)")
    assert move.journal("SELECT count(*) FROM (SELECT id FROM a UNION SELECT id FROM b) ids") == [(53,)]


def test_rows_that_only_the_target_has_keep_their_numbers(
    lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    made = "CREATE TABLE public.serials (id serial PRIMARY KEY, n int);"
    execute(source_dsn, made + "INSERT INTO serials (n) SELECT 1 FROM generate_series(1, 50)")
    execute(target_dsn, made + "INSERT INTO serials (id, n) SELECT n, 1 FROM generate_series(100, 110) n;"
            "SELECT setval('serials_id_seq', 110)")  # fmt: skip
    move = lifecycle(
        source_dsn, target_dsn, swap={"fence": "read_only"},
        tables={"include": ["public.*"], "existing": "adopt", "keep_extra": True},
    )  # fmt: skip
    move.run_all(until="swap")
    execute(target_dsn, "INSERT INTO serials (n) SELECT 2 FROM generate_series(1, 60)")
    assert move.journal("SELECT count(*) FROM serials") == [(121,)]


@contextmanager
def writing(dsn: str) -> Iterator[list[int]]:
    """Inserts into a table with a serial, one after the other, until it is refused or the block ends; their ids."""
    over, written = threading.Event(), list[int]()

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn, suppress(psycopg.Error):
            for _ in rounds(over):
                row = conn.execute("INSERT INTO serials (n) VALUES (1) RETURNING id").fetchone()
                assert row is not None
                written.append(row[0])

    with beside(write, over):
        yield written


@contextmanager
def beside(act: Callable[[], None], over: threading.Event) -> Iterator[None]:
    """`act` in a thread until the block ends, which `over` tells it; what it raises fails the test."""
    with Underway(act):
        try:
            yield
        finally:
            over.set()


TWO_OWNERS = """
DO $$ BEGIN CREATE ROLE seq_mallory; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE seq_bob; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
"""
HERS = """
CREATE SCHEMA m AUTHORIZATION seq_mallory;
SET ROLE seq_mallory;
CREATE TABLE m.t (id serial PRIMARY KEY, i int GENERATED ALWAYS AS IDENTITY, n int);
CREATE SEQUENCE m.free;
INSERT INTO m.t (n) VALUES (1), (2);
SELECT nextval('m.free'), nextval('m.free');
RESET ROLE;
"""
NAMESAKE = """
SET pgddl.skip = on;
CREATE SCHEMA billing AUTHORIZATION seq_mallory;
SET ROLE seq_mallory;
CREATE SEQUENCE billing.ids;
SELECT setval('billing.ids', 9223372036854775807);
"""


@pytest.mark.parametrize(("she", "schemas"), [("seq_gone", "m"), ("seq_mallory", ".*")])
def test_a_sequence_that_has_the_name_of_somebody_elses_moves_it_nowhere(
    lifecycle: Lifecycles, source_dsn: str, target_dsn: str, monkeypatch: pytest.MonkeyPatch, she: str, schemas: str
) -> None:
    """Bob's on the target, of which Mallory has made a namesake on the source; where the target has no role of hers,
    what the run has made for her is ours. DDL about hers does not move his either."""
    roles, made, namesake = (text.replace("seq_mallory", she) for text in (TWO_OWNERS, HERS, NAMESAKE))
    execute(source_dsn, roles + made)
    execute(target_dsn, roles if she == "seq_mallory" else roles.partition("\n")[2].partition("\n")[2])
    execute(target_dsn, "CREATE SCHEMA billing AUTHORIZATION seq_bob; SET ROLE seq_bob; CREATE SEQUENCE billing.ids")
    moved, move_them = set[int](), sequences._set

    def noted(target: Session, positions: Mapping[int, Position]) -> None:
        moved.update(positions)
        move_them(target, positions)

    monkeypatch.setattr(sequences, "_set", noted)
    ddl_of = {"on_failure": "queue", "schemas": schemas}
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["m.*"]}, swap={"fence": "read_only"}, ddl=ddl_of)
    move.run_all(until="replay")
    execute(source_dsn, namesake)
    move.run("replay")
    stands, followed = "SELECT last_value FROM {}", ("m.t_id_seq", "m.t_i_seq", "m.free")
    assert all(move.journal(stands.format(name))[0][0] > DRAWS_AHEAD for name in followed)
    if schemas == "m":
        execute(source_dsn, "SET pgddl.skip = on; DROP SCHEMA billing CASCADE")  # or the cut-over is refused
        move.run_all(after="replay", until="swap")
        assert all(move.journal(stands.format(name)) == move.on_source(stands.format(name)) for name in followed)
    else:
        execute(source_dsn, f"SET ROLE {she}; ALTER SEQUENCE billing.ids MINVALUE -5")
        move.run("replay")
        assert move.journal("SELECT status FROM pgddl.ddl_events WHERE captured_id IS NOT NULL") == [("failed",)]
    assert len(moved) == 3
    assert move.journal(stands.format("billing.ids")) == [(1,)]


def test_a_sequence_beside_followed_tables_is_moved_whosever_it_is(
    lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    """The target had it before, as another role's: the run has not made it, and rows would get its numbers again."""
    execute(source_dsn, TWO_OWNERS + HERS)
    execute(target_dsn, TWO_OWNERS + HERS.replace("SET ROLE seq_mallory;", ""))
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["m.*"], "existing": "adopt"}, swap={"fence": "read_only"}
    )
    execute(source_dsn, "SELECT nextval('m.free') FROM generate_series(1, 40)")
    move.run_all(until="swap")
    assert move.journal("SELECT last_value FROM m.free")[0][0] >= 42
