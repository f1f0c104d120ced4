"""tables.operations: the target keeps what the source deletes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.commands.status import status
from airflow_provider_pgddl.engine.errors import PreflightRefused, UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.failpoints import At
from tests.integration.conditions import rows
from tests.integration.lifecycle import Lifecycle, execute, left_behind, wait_until
from tests.integration.sessions import rounds

Make = Callable[..., Lifecycle]

# What a trigger of the source's own writes down: each state of each row that was ever committed.
SHOP = """
    CREATE SCHEMA s; CREATE SCHEMA h;
    CREATE TABLE s.customer (id int PRIMARY KEY, name text);
    CREATE TABLE s.orders (region text, no int, customer int REFERENCES s.customer ON DELETE CASCADE ON UPDATE CASCADE,
                           body text, PRIMARY KEY (region, no));
    CREATE TABLE h.history (at bigserial, tab text, key text, row jsonb);
    CREATE FUNCTION h.note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
        INSERT INTO h.history (tab, key, row) SELECT TG_TABLE_NAME, coalesce(j->>'id', (j->>'region') || (j->>'no')), j
        FROM to_jsonb(NEW) AS j;
        RETURN NULL;
    END$$;
    CREATE TRIGGER note AFTER INSERT OR UPDATE ON s.customer FOR EACH ROW EXECUTE FUNCTION h.note();
    CREATE TRIGGER note AFTER INSERT OR UPDATE ON s.orders FOR EACH ROW EXECUTE FUNCTION h.note();
    INSERT INTO s.customer SELECT n, 'c' || n FROM generate_series(1, 300) n;
    INSERT INTO s.orders SELECT (ARRAY['n', 's'])[1 + n % 2], n, 1 + n % 300, 'o' || n FROM generate_series(1, 900) n;
"""
TABLES = {"include": ["s.*"], "operations": ["insert", "update"]}
KEYS = {"customer": "t.id::text", "orders": "t.region || t.no"}


def by_key(dsn: str, table: str) -> dict[str, str]:
    with psycopg.connect(dsn) as conn:
        query = f"SELECT {KEYS[table]}, to_jsonb(t)::text FROM s.{table} AS t"
        return dict(conn.execute(query.encode()).fetchall())


def assert_archived(move: Lifecycle, before: dict[str, set[str]], *, updated: bool = True) -> int:
    """All rows that the source has, as they are, and with them all that the target had at any earlier look; each as it
    was at some time. Returns how many only the target has."""
    alone = 0
    for table in KEYS:
        there, here = by_key(move.source, table), by_key(move.target, table)
        assert there.keys() <= here.keys(), table
        if updated:
            assert there.items() <= here.items(), table
        assert before.setdefault(table, set()) <= here.keys(), (table, before[table] - here.keys())
        with psycopg.connect(move.source) as conn:
            known = dict[str, set[str]]()
            for key, row in conn.execute("SELECT key, row::text FROM h.history WHERE tab = %s", [table]):
                known.setdefault(key, set()).add(row)
        assert all(row in known[key] for key, row in here.items()), table
        before[table] |= here.keys()
        alone += len(here.keys() - there.keys())
    return alone


def change(conn: psycopg.Connection[Any], chance: random.Random, *truncates: str) -> None:
    some = chance.randint(1, 400)
    statement = chance.choice([
        f"DELETE FROM s.customer WHERE id BETWEEN {some} AND {some} + 2",
        f"DELETE FROM s.orders WHERE no BETWEEN {some} AND {some} + 4",
        f"UPDATE s.customer SET id = id + 1000 WHERE id = {some}",
        f"UPDATE s.customer SET id = id - 1000 WHERE id = {some} + 1000",
        f"UPDATE s.customer SET name = name || '.' WHERE id BETWEEN {some} AND {some} + 5",
        f"UPDATE s.orders SET region = CASE region WHEN 'n' THEN 's' ELSE 'n' END, body = 'moved' WHERE no = {some}",
        f"INSERT INTO s.customer VALUES ({some}, 'again') ON CONFLICT DO NOTHING",
        f"INSERT INTO s.orders SELECT 'n', {some}, id, 'again' FROM s.customer LIMIT 1 ON CONFLICT DO NOTHING",
        "INSERT INTO s.customer SELECT max(id) + 1, 'new' FROM s.customer",
        f"WITH d AS (DELETE FROM s.orders WHERE no = {some}) UPDATE s.customer SET name = 'x' WHERE id = {some}",
        *truncates,
    ])  # fmt: skip
    try:
        with conn.transaction():
            conn.execute(statement.encode())
            if chance.random() < 0.2:
                conn.execute(f"INSERT INTO s.customer VALUES ({some}, 'at once') ON CONFLICT DO NOTHING".encode())
    except (pg.IntegrityError, pg.DeadlockDetected):
        pass


@contextmanager
def writing(dsn: str, seed: int, *truncates: str) -> Iterator[Callable[[], None]]:
    """Two writers; the call waits until both have written some more."""
    stop, counts = threading.Event(), [0, 0]

    def write(number: int) -> None:
        chance = random.Random(seed + number)
        with psycopg.connect(dsn, autocommit=True) as conn:
            for _ in rounds(stop, 0.002):
                change(conn, chance, *truncates)
                counts[number] += 1

    def some_more() -> None:
        wanted = [n + 30 for n in counts]
        wait_until(lambda: all(n >= w for n, w in zip(counts, wanted, strict=True)))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield some_more
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def die_once(move: Lifecycle, at: At, point: str) -> None:
    with at(point) as passes:
        passes.act = lambda n: passes.lose() if n == 1 else None
        move.refused("replay")


@pytest.mark.parametrize("capture", matrix("change_log", "wal"))
def test_what_a_window_has_brought_stays_whatever_dies(
    source_dsn: str, target_dsn: str, lifecycle: Make, at: At, capture: str
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables=TABLES, capture={"rows": capture}, replay={"until_lag": "10s"})
    before = dict[str, set[str]]()
    with writing(source_dsn, seed) as some_more:
        move.run_all(until="schema_sync")
        die_once(move, at, "archive.before_begun_commit")
        move.run("replay")
    move.run("replay")
    assert_archived(move, before)
    with writing(source_dsn, seed + 7, "TRUNCATE s.orders") as some_more:
        for point in ("replay.before_target_commit", "replay.before_acknowledge", "replay.before_source_commit"):
            some_more()
            die_once(move, at, point)
            some_more()
            move.run("replay")
    # Keys that wait for longer than one window, and lose their rows meanwhile.
    move.run("replay", replay={"window_rows": 7, "until_lag": "10s"})
    move.run("replay")
    assert assert_archived(move, before) > 0
    verified = move.run("verify").tables
    there = {f"s.{table}": by_key(source_dsn, table).keys() for table in KEYS}
    kept = {f"s.{table}": len(by_key(target_dsn, table)) - len(there[f"s.{table}"]) for table in KEYS}
    assert {name: (found["rows"], found["archived"]) for name, found in verified.items()} == {
        name: (len(there[name]), kept[name]) for name in kept
    }
    told = status(load_pipeline(move.content), source_dsn, target_dsn)["tables"]
    assert {name: table["archived_rows"] for name, table in told.items()} == kept
    execute(source_dsn, "TRUNCATE s.customer CASCADE; INSERT INTO s.customer VALUES (1, 'first again')")
    move.run_all(after="schema_sync", until="verify")
    # An order that is kept may refer to a customer whom no window has seen.
    assert all("stays NOT VALID" in blocked["reason"] for blocked in move.run("swap").blocked)
    assert_archived(move, before)
    move.run("cleanup")
    assert left_behind(source_dsn) == []


def test_each_way_of_a_row_and_what_is_refused(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables={**TABLES, "where": {"s.customer": "name <> 'hidden'"}})
    move.run_all(until="replay")
    execute(target_dsn, "ALTER TABLE s.customer ADD COLUMN seen timestamptz DEFAULT now(), ADD mine text")
    execute(target_dsn, "UPDATE s.customer SET mine = 'm' || id")
    execute(
        source_dsn,
        """
        DELETE FROM s.orders; DELETE FROM s.customer WHERE id = 1;
        UPDATE s.customer SET id = 7000 WHERE id = 2;
        UPDATE s.customer SET name = 'hidden' WHERE id = 3;
        UPDATE s.customer SET name = 'other' WHERE id = 4;
        DELETE FROM s.customer WHERE id = 5; INSERT INTO s.customer VALUES (5, 'reborn');
        """,
    )
    move.run("replay")
    named = dict(move.journal("SELECT id, (name, mine)::text FROM s.customer WHERE id < 6 OR id = 7000 ORDER BY id"))
    assert named == {
        1: "(c1,m1)", 2: "(c2,m2)", 3: "(c3,m3)", 4: "(other,m4)", 5: "(reborn,m5)", 7000: "(c2,)"
    }  # fmt: skip
    assert move.run("verify").tables["s.customer"] == {"rows": 298, "differ": 0, "archived": 3}
    # What the target lacks or has otherwise is found and mended; a row of somebody else becomes one that is kept.
    execute(target_dsn, "DELETE FROM s.customer WHERE id = 9; UPDATE s.customer SET name = 'y' WHERE id = 10")
    execute(target_dsn, "INSERT INTO s.customer VALUES (8000, 'stranger')")
    execute(source_dsn, "UPDATE s.customer SET name = name WHERE id = 12")
    move.run("replay")
    assert "3 rows differ" in str(move.refused("verify"))
    move.run("verify", mend=True)
    assert dict(move.journal("SELECT id, name FROM s.customer WHERE id IN (9, 10, 8000)")) == {
        9: "c9", 10: "c10", 8000: "stranger"
    }  # fmt: skip
    # DDL: a rewrite is read again, a key takes a wider type, and the table outlives its source's.
    execute(source_dsn, "ALTER TABLE s.customer ALTER id TYPE bigint, ADD COLUMN v float8 DEFAULT random()")
    execute(source_dsn, "INSERT INTO s.customer VALUES (5000000000, 'far'); DELETE FROM s.customer WHERE id = 11")
    assert not move.run("replay").blocked
    execute(source_dsn, "DELETE FROM s.customer WHERE id = 5000000000")
    assert not move.run("replay").blocked
    assert move.run("verify").tables["s.customer"]["archived"] == 6
    assert rows(target_dsn, "s.customer", "id IN (11, 5000000000)", "t.id") == ["11", "5000000000"]
    # A unique index that comes later: the row that cannot be beside one that is kept is named, nothing is lost.
    execute(source_dsn, "CREATE UNIQUE INDEX once ON s.customer (name) WHERE id <> 2")
    move.run("replay")
    execute(source_dsn, "INSERT INTO s.customer VALUES (600, 'c1')")
    (stopped,) = [b for b in move.run("replay").blocked if b["table"] == "s.customer"]
    assert "(600)" in stopped["reason"] and "a row that the target keeps" in stopped["reason"], stopped
    execute(target_dsn, "UPDATE s.customer SET name = 'was c1' WHERE id = 1")
    assert not move.run("replay").blocked
    assert rows(target_dsn, "s.customer", "id IN (1, 600)", "t.name") == ['"c1"', '"was c1"']
    with pytest.raises(UsageError, match="a reset would drop rows"):
        reset(load_pipeline(move.content), source_dsn, target_dsn)
    before = move.journal("SELECT count(*) FROM s.orders")
    execute(source_dsn, "DROP TABLE s.orders")
    assert [b["table"] for b in move.run("replay").blocked] == ["s.orders"]
    assert move.journal("SELECT count(*) FROM s.orders") == before == [(900,)]
    execute(
        target_dsn, "CREATE SCHEMA kept; ALTER TABLE s.orders SET SCHEMA kept; ALTER TABLE s.customer SET SCHEMA kept"
    )
    reset(load_pipeline(move.content), source_dsn, target_dsn)
    assert left_behind(source_dsn) == []
    assert move.journal("SELECT count(*) FROM kept.orders") == before


def test_insert_alone_leaves_rows_as_they_came(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables={**TABLES, "operations": ["insert"]}, follow={"finish": True})
    move.run_all(until="replay")
    execute(
        source_dsn,
        """
        UPDATE s.customer SET name = 'other' WHERE id = 1; DELETE FROM s.customer WHERE id = 2;
        INSERT INTO s.customer VALUES (2, 'reborn'), (400, 'new'); UPDATE s.customer SET id = 500 WHERE id = 3;
        """,
    )
    before = {table: set(by_key(target_dsn, table)) for table in KEYS}
    move.run("replay")
    assert dict(move.journal("SELECT id, name FROM s.customer WHERE id IN (1, 2, 3, 400, 500)")) == {
        1: "c1", 2: "c2", 3: "c3", 400: "new", 500: "c3"
    }  # fmt: skip
    assert_archived(move, before, updated=False)
    assert move.run("verify").tables["s.customer"] == {"rows": 301, "differ": 0, "archived": 1}
    execute(target_dsn, "SET session_replication_role = replica; DELETE FROM s.customer WHERE id = 1")
    execute(source_dsn, "INSERT INTO s.customer VALUES (401, 'new')")
    move.run("replay")
    assert "1 rows differ" in str(move.refused("verify"))
    move.run("verify", mend=True)
    assert move.journal("SELECT name FROM s.customer WHERE id = 1") == [("other",)]


def test_preflight_names_tables_that_cannot_be_kept(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(
        source_dsn,
        "CREATE SCHEMA s; CREATE TABLE s.good (a int, b int, PRIMARY KEY (a), UNIQUE (b, a));"
        "CREATE TABLE s.email (id int PRIMARY KEY, email text UNIQUE);"
        "CREATE TABLE s.part (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    )
    move = lifecycle(source_dsn, target_dsn, tables=TABLES)
    refused = str(move.refused("setup", PreflightRefused))
    assert "s.email_email_key" in refused and "s.part" in refused and "s.good" not in refused
    move.content["tables"] = {**TABLES, "exclude": ["s.email", "s.part"]}
    move.run_all(until="replay")
    # One that comes later stops alone.
    execute(
        source_dsn,
        "CREATE TABLE s.late (id int PRIMARY KEY, code text UNIQUE); CREATE TABLE s.fine (id int PRIMARY KEY)",
    )
    execute(source_dsn, "INSERT INTO s.late VALUES (1, 'a'); INSERT INTO s.fine VALUES (1)")
    (stopped,) = move.run("replay").blocked
    assert stopped["table"] == "s.late" and "s.late_code_key" in stopped["reason"]
    assert move.journal("SELECT id FROM s.fine") == [(1,)]
    execute(source_dsn, "DELETE FROM s.fine")
    move.run("replay")
    assert move.journal("SELECT id FROM s.fine") == [(1,)]
