"""What snapshot records of a table is what all later looks compare with: it must not be a state in which changes were
not logged (C9)."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest

from airflow_provider_pgddl.engine.errors import Retry
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.ways_back import Lifecycles

ITEMS = """
CREATE TABLE public.items (id int NOT NULL PRIMARY KEY, other int NOT NULL UNIQUE, v text);
INSERT INTO public.items SELECT n, 1000 - n, 'v' || n FROM generate_series(1, 200) n;
"""
PARTS = """
CREATE TABLE public.items (id int PRIMARY KEY, other int NOT NULL, v text) PARTITION BY RANGE (id);
CREATE TABLE public.items_low PARTITION OF public.items FOR VALUES FROM (0) TO (1000);
INSERT INTO public.items SELECT n, 1000 - n, 'v' || n FROM generate_series(1, 200) n;
"""
HIGH = "CREATE TABLE public.items_high PARTITION OF public.items FOR VALUES FROM (1000) TO (2000)"
TABLES = {"tables": {"include": ["public.items"]}, "swap": {"lock_timeout": "20ms", "retries": 3}}


@pytest.fixture(params=["queue", "off"], ids=lambda ddl: f"ddl_{ddl}")
def move(lifecycle: Lifecycles, source_dsn: str, target_dsn: str, request: pytest.FixtureRequest) -> Lifecycle:
    return lifecycle(source_dsn, target_dsn, capture={"ddl": request.param}, **TABLES)


def rows(dsn: str) -> list[tuple[int, int, str]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute("SELECT id, other, v FROM public.items ORDER BY id, other").fetchall()


def equal_behind(move: Lifecycle, by_hand: str = "") -> None:
    """`by_hand`: what a person has to do on the target where DDL is not followed."""
    if by_hand and move.content["capture"]["ddl"] == "off":
        assert move.run("schema_sync").blocked
        execute(move.target, by_hand)
    move.run_all(after="backfill", until="verify")
    assert rows(move.source) == rows(move.target)


def test_c09_triggers_that_were_off_at_the_first_plan(move: Lifecycle, at: At) -> None:
    """A load without triggers, as pg_restore makes it, that begins behind the dump and ends behind the copying."""
    execute(move.source, ITEMS)
    move.run("setup")
    loader = psycopg.connect(move.source)

    def load() -> None:
        execute(move.source, "ALTER TABLE public.items DISABLE TRIGGER USER")
        loader.execute("INSERT INTO public.items VALUES (501, -1, 'loaded')")
        loader.execute("UPDATE public.items SET v = 'x' WHERE id = 3")

    at("apply.before_group_commit", once(load))
    with loader, suppress(Retry):  # who captures it anew waits for the load, and not for ever
        move.run("snapshot")
        move.run("backfill")
    execute(move.source, "ALTER TABLE public.items ENABLE TRIGGER USER")
    execute(move.source, "UPDATE public.items SET v = 'y' WHERE id = 4")
    move.run("backfill")
    equal_behind(move)


def test_c09_a_partition_that_comes_before_the_first_plan(move: Lifecycle, at: At) -> None:
    execute(move.source, PARTS)
    move.run("setup")
    at("apply.before_group_commit", once(lambda: execute(move.source, HIGH)))
    move.run("snapshot")
    if move.run("backfill").blocked:
        execute(move.target, HIGH)
        move.run("backfill")
    execute(move.source, "INSERT INTO public.items VALUES (1001, 1, 'behind its chunk')")
    equal_behind(move)


def test_c09_a_key_that_is_another_one_at_the_first_plan(move: Lifecycle, at: At) -> None:
    execute(move.source, ITEMS)
    move.run("setup")
    other = "ALTER TABLE public.items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (other)"
    at("apply.before_group_commit", once(lambda: execute(move.source, other)))
    move.run("snapshot")
    move.run("backfill")
    execute(move.source, "UPDATE public.items SET v = 'x' WHERE id = 3; DELETE FROM public.items WHERE id = 5")
    execute(move.source, "INSERT INTO public.items VALUES (800, 5000, 'new')")
    equal_behind(move, by_hand=other)


GOES = ["DROP TABLE public.items_high", "ALTER TABLE public.items DETACH PARTITION public.items_high"]


@pytest.fixture
def without_ddl(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> Lifecycle:
    """A partitioned table that is followed, and whose DDL is not."""
    execute(source_dsn, f"{PARTS}; {HIGH}; INSERT INTO public.items VALUES (1001, 1, 'old')")
    move = lifecycle(source_dsn, target_dsn, capture={"ddl": "off"}, **TABLES)
    move.run_all(until="replay")
    return move


def goes_on(move: Lifecycle) -> None:
    move.run_all(after="schema_sync", until="verify")
    assert rows(move.source) == rows(move.target)


@pytest.mark.parametrize("gone", GOES, ids=["drop", "detach"])
def test_c09_a_partition_that_goes_where_ddl_is_not_followed(without_ddl: Lifecycle, gone: str) -> None:
    """Its rows go without a row trigger, and the copy would keep them for ever."""
    execute(without_ddl.source, gone)
    execute(without_ddl.source, "UPDATE public.items SET v = 'x' WHERE id = 3")
    for _ in range(2):
        (blocked,) = without_ddl.run("replay").blocked
        assert "public.items_high" in blocked["reason"]
    ((fix,),) = without_ddl.journal("SELECT findings -> 0 -> 'fix' ->> 0 FROM pgddl.schema_status")
    execute(without_ddl.target, fix)
    goes_on(without_ddl)


def test_c09_a_partition_that_is_exchanged_where_ddl_is_not_followed(without_ddl: Lifecycle) -> None:
    """Under its name there is another one, which is captured anew and read, with nothing to do for anybody."""
    new = f"DROP TABLE public.items_high; {HIGH}; INSERT INTO public.items VALUES (1002, 2, 'new')"
    execute(without_ddl.source, new)
    goes_on(without_ddl)


def test_c09_a_partition_that_a_person_detached_alone_is_missed(without_ddl: Lifecycle) -> None:
    """A table of its name that is no partition any more takes no row."""
    execute(without_ddl.target, "ALTER TABLE public.items DETACH PARTITION public.items_high")
    execute(without_ddl.source, "INSERT INTO public.items VALUES (1002, 2, 'new')")
    (blocked,) = without_ddl.run("replay").blocked
    assert "the target has none" in blocked["reason"]
    back = "ALTER TABLE public.items ATTACH PARTITION public.items_high FOR VALUES FROM (1000) TO (2000)"
    execute(without_ddl.target, back)
    goes_on(without_ddl)
