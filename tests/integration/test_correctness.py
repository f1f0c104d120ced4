"""correctness.md, part one: rows. Each test bears the number of its rule and fails where the rule is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import EXIT_REFUSED, PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.rows import chunks, window_locks
from airflow_provider_pgddl.engine.server import catalog, giving_way
from airflow_provider_pgddl.engine.server import connect as connecting
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.calls import after_each, before_each, once
from tests.integration.items import ITEMS, SMALL, log_of
from tests.integration.lifecycle import Lifecycle, left_behind
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits

Make = Callable[..., Lifecycle]


@pytest.fixture
def items(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    """A migration of one table of several chunks."""
    do(source_dsn, ITEMS)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.items"]}, **SMALL)


# --- C2: capture starts before the first row is read ------------------------------------------------------------------


def test_c02_a_row_in_flight_while_setup_runs_is_not_lost(items: Lifecycle) -> None:
    with in_transaction(items.source, "INSERT INTO items VALUES (1001, 'in flight', 'x')") as writer:
        with Underway(lambda: items.run("setup")) as setup:
            wait_for(lambda: waits(items.source, "ShareRowExclusiveLock", "public.items"), setup)
            writer.execute("UPDATE items SET filler = 'y' WHERE id = 1001")
            writer.commit()
    # A snapshot taken from here on shows the row; bounds read before would not have.
    items.run_all(after="setup", until="swap")
    assert differences(items.source, items.target) == []
    assert one(items.target, "SELECT filler FROM items WHERE id = 1001") == "y"


def test_c02_setup_waits_for_every_transaction_that_is_older_than_capture(items: Lifecycle) -> None:
    do(items.source, "CREATE TABLE elsewhere (n int)")
    with in_transaction(items.source, "INSERT INTO elsewhere VALUES (1)") as older:
        with Underway(lambda: items.run("setup")) as setup:
            captured = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'items'::regclass AND tgname LIKE 'pgddl%'"
            wait_for(lambda: one(items.source, captured) == 2, setup)
            asked = (
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE %s"
                " AND query LIKE '%%pg_snapshot_xip%%')"
            )
            wait_for(lambda: one(items.source, asked, f"pgddl:{items.name}:%"), setup)
            assert not setup.over
            older.execute("INSERT INTO items VALUES (1002, 'older', 'x')")
            older.commit()
    assert items.on_source(f"SELECT new_1 FROM {log_of(items, 'items')}") == [(1002,)]


# --- C3: lock before snapshot -----------------------------------------------------------------------------------------

# How a table comes by a new file; `{}` is the table.
NEW_FILES = {
    "truncated": ["TRUNCATE {0}", "INSERT INTO {0} SELECT n, 'new ' || n, 'y' FROM generate_series(1, 50) n"],
    "vacuumed": ["DELETE FROM {0} WHERE id % 3 > 0", "VACUUM FULL {0}"],
    "clustered": ["UPDATE {0} SET filler = repeat('z', 300) WHERE id % 7 = 0", "CLUSTER {0}"],
}


def replaced(how: str, table: str) -> list[str]:
    return [statement.format(table) for statement in NEW_FILES[how]]


def test_c03_a_table_whose_file_is_replaced_is_copied_again(
    source_dsn: str,
    target_dsn: str,
    lifecycle: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Right before its first chunk (planned before) and between two of its chunks."""
    moments = {f"{how}_before_{chunk}": (how, chunk) for how in NEW_FILES for chunk in (1, 3)}
    do(source_dsn, *(ITEMS.replace("items", table) for table in moments))
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)
    move.run_all(until="snapshot")
    chunks_of: Counter[str] = Counter()
    copy = chunks._Worker._copy

    def replace_and_copy(worker: chunks._Worker, claimed: Sequence[chunks._Chunk], watch: Any) -> Any:
        for name in (chunk.table.plan.name for chunk in claimed):
            chunks_of[name] += 1
            how, chunk = moments[name]
            if chunks_of[name] == chunk:
                do(source_dsn, *replaced(how, name))
        return copy(worker, claimed, watch)

    monkeypatch.setattr(chunks._Worker, "_copy", replace_and_copy)
    move.run_all(after="snapshot", until="swap")
    said = capsys.readouterr().out
    assert [name for name in moments if f"{name}: its file was replaced meanwhile" not in said] == []
    assert differences(source_dsn, target_dsn) == []


def test_c03_without_looking_at_the_file_rows_are_lost(items: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above is good for: nothing else would have noticed but verify."""
    items.run_all(until="snapshot")
    before_each(monkeypatch, chunks._Worker, "_copy", once(*replaced("vacuumed", "items"), dsn=items.source, at=3))
    monkeypatch.setattr(chunks._Worker, "_lock_and_compare", lambda *_: None)
    items.run_all(after="snapshot", until="replay")
    (lost,) = differences(items.source, items.target)
    assert lost.only_source > 50
    assert "rows differ" in str(items.refused("verify", StageFailed))


def test_c03_a_file_of_now_is_not_taken_for_that_of_a_snapshot(items: Lifecycle) -> None:
    """A plan that is recorded with the one and the columns of the other would know a rewrite that it has not seen."""
    with connect(items.source, purpose="look", pipeline=items.name) as conn:
        oid = catalog.oid_of(conn, "public", "items")
        assert oid is not None
        (before,) = catalog.describe(conn, [oid])[oid].leaves
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT pg_current_snapshot()")
        do(items.source, "ALTER TABLE public.items ALTER COLUMN id TYPE bigint")
        (leaf,) = catalog.describe(conn, [oid])[oid].leaves
        assert before.filenode and leaf.attributes == before.attributes and not leaf.filenode
        conn.execute("ROLLBACK")
        (after,) = catalog.describe(conn, [oid])[oid].leaves
        assert after.filenode not in (0, before.filenode) and after.attributes != before.attributes


@pytest.mark.parametrize("insist_from", [giving_way.INSIST_FROM, 0])
def test_c03_a_window_locks_before_it_has_a_snapshot(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch, insist_from: int
) -> None:
    """Tables are replaced at the last moment at which they still can be, with keys pending from the window before. One
    that waits for its locks takes no snapshot while it waits."""
    monkeypatch.setattr(giving_way, "INSIST_FROM", insist_from)
    do(source_dsn, *(ITEMS.replace("items", table) for table in NEW_FILES))
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)
    move.run_all(until="schema_sync")
    do(source_dsn, *(f"UPDATE {table} SET code = 'changed ' || id WHERE id <= 100" for table in NEW_FILES))
    snapshots: list[str] = []
    waited = set[float]()
    lock = window_locks.lock_tables

    def lock_and_look(replica: window_locks.Replica, tables: Any, wait: float) -> None:
        if len(snapshots) == 2:
            for how in NEW_FILES:
                do(source_dsn, *replaced(how, how))
        lock(replica, tables, wait)
        waited.add(wait)
        query = "SELECT coalesce(backend_xmin::text, 'none') FROM pg_stat_activity WHERE pid = %s"
        snapshots.append(one(source_dsn, query, replica.source.info.backend_pid))

    monkeypatch.setattr(window_locks, "lock_tables", lock_and_look)
    move.run_all(after="schema_sync", until="swap")
    assert len(snapshots) > 5
    assert set(snapshots) == {"none"}
    assert waited == ({0.0} if insist_from else {0.0, 0.05})
    assert differences(source_dsn, target_dsn) == []


def test_c03_in_place_a_table_is_replaced_while_it_is_copied(
    source_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(source_dsn, ITEMS)
    rewrite = lifecycle(source_dsn, rewrite={"public.items": {"alter": ["ALTER COLUMN id TYPE bigint"]}}, **SMALL)
    rewrite.run_all(until="snapshot")
    before_each(monkeypatch, chunks._Worker, "_copy", once(*replaced("vacuumed", "items"), dsn=source_dsn, at=3))
    rewrite.run_all(after="snapshot", until="swap")
    unequal = (
        "SELECT count(*) FROM pgddl_old_public.items o FULL JOIN public.items n ON o::text = n::text"
        " WHERE o.id IS NULL OR n.id IS NULL"
    )
    assert one(source_dsn, unequal) == 0
    assert one(source_dsn, "SELECT count(*) FROM items") == 200


# --- C4: partitions and inheritance -----------------------------------------------------------------------------------

FAMILIES = """
    CREATE TABLE readings (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
    CREATE TABLE january PARTITION OF readings FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
    CREATE TABLE february (junk int, v text, at date NOT NULL, id int NOT NULL);
    ALTER TABLE february DROP COLUMN junk;
    ALTER TABLE readings ATTACH PARTITION february FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
    CREATE TABLE later PARTITION OF readings DEFAULT PARTITION BY HASH (id);
    CREATE TABLE later_0 PARTITION OF later FOR VALUES WITH (MODULUS 2, REMAINDER 0);
    CREATE TABLE later_1 PARTITION OF later FOR VALUES WITH (MODULUS 2, REMAINDER 1);
    INSERT INTO readings SELECT n, date '2026-01-01' + n % 120, repeat('r', 300) FROM generate_series(1, 1200) n;
    CREATE TABLE animals (id int PRIMARY KEY, name text);
    CREATE TABLE dogs (tricks text, PRIMARY KEY (id)) INHERITS (animals);
    INSERT INTO animals SELECT n, 'animal ' || n || repeat('.', 300) FROM generate_series(1, 400) n;
    INSERT INTO dogs SELECT n, 'dog ' || n || repeat('.', 300), 'sit' FROM generate_series(201, 600) n;
    CREATE TABLE meters (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
    CREATE TABLE meters_1 PARTITION OF meters FOR VALUES FROM (1) TO (100);
    INSERT INTO meters SELECT n, 'm' FROM generate_series(1, 99) n
"""


@pytest.fixture
def families(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    """A migration of partitions, sub-partitions, a default partition, and a child that inherits."""
    do(source_dsn, FAMILIES)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)


def test_c04_rows_move_between_partitions_and_leaves_are_truncated(
    families: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    families.run_all(until="snapshot")
    moves = [
        # From leaves not read yet to ones that are done, and the other way round.
        "UPDATE readings SET at = at - 40, v = 'moved' WHERE at BETWEEN '2026-02-10' AND '2026-02-20'",
        "UPDATE readings SET at = at + 90, v = 'moved' WHERE at BETWEEN '2026-01-10' AND '2026-01-20'",
        "UPDATE animals SET name = 'both of them' WHERE id BETWEEN 190 AND 210",
    ]
    calls = before_each(monkeypatch, chunks._Worker, "_copy", once(*moves, dsn=families.source, at=6))
    families.run_all(after="snapshot", until="schema_sync")
    assert len(calls) > 10
    do(
        families.source,
        "TRUNCATE february",
        "INSERT INTO february (id, at, v) VALUES (1, '2026-02-02', 'through the leaf')",
        "TRUNCATE later",
        "INSERT INTO readings VALUES (2, '2026-07-07', 'after its truncation')",
        "TRUNCATE ONLY animals",
        "INSERT INTO animals VALUES (205, 'its child has this key as well')",
        "DELETE FROM ONLY animals WHERE id = 205",
        "INSERT INTO animals VALUES (205, 'again')",
        "UPDATE animals SET id = id + 5000 WHERE id = 300",
    )
    families.run_all(after="schema_sync", until="swap")
    assert differences(families.source, families.target) == []
    assert one(families.target, "SELECT count(*) FROM february") == 1
    assert one(families.target, "SELECT name FROM ONLY animals") == "again"
    assert one(families.target, "SELECT count(*) FROM dogs") == 400


def attach_partition(families: Lifecycle) -> Callable[[int], None]:
    return once(
        "CREATE TABLE meters_2 AS SELECT n AS id, 'm2' AS v FROM generate_series(100, 150) n",
        "ALTER TABLE meters_2 ADD PRIMARY KEY (id)",
        "ALTER TABLE meters ATTACH PARTITION meters_2 FOR VALUES FROM (100) TO (200)",
        "INSERT INTO meters VALUES (160, 'nobody logs this')",
        "UPDATE readings SET v = 'others go on' WHERE id = 7",
        dsn=families.source,
    )


def test_c04_a_partition_attached_under_our_locks_comes_with_its_rows(
    families: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    families.run_all(until="schema_sync")
    after_each(monkeypatch, window_locks, "lock_tables", attach_partition(families))
    for stage in ("replay", "verify"):
        assert not families.run(stage).blocked
    assert differences(families.source, families.target) == []
    assert one(families.target, "SELECT count(*) FROM meters_2") == 52
    families.run("swap")


def test_c04_uncaptured_a_partition_attached_under_our_locks_stops_its_table_only(
    families: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    families.content["capture"] = {"ddl": "off"}
    families.run_all(until="schema_sync")
    after_each(monkeypatch, window_locks, "lock_tables", attach_partition(families))
    replayed = families.run("replay")
    (blocked,) = replayed.blocked
    assert blocked["table"] == "public.meters"
    assert "Source has partition public.meters_2" in blocked["reason"]
    families.run("replay")
    assert [d.table for d in differences(families.source, families.target)] == ["meters"]
    assert "is blocked" in str(families.refused("swap", PreflightRefused))
    query = "SELECT findings -> 0 -> 'fix' ->> 0 FROM pgddl.schema_status WHERE table_name = 'meters'"
    do(families.target, one(families.target, query))
    assert not families.run("replay").blocked
    assert differences(families.source, families.target) == []


# --- C7: row security -------------------------------------------------------------------------------------------------


@contextmanager
def role(cluster: Cluster, dsn: str, name: str) -> Iterator[str]:
    """A role that may do what a role without BYPASSRLS can be allowed; yields its connection string."""
    database = conninfo_to_dict(dsn)["dbname"]
    do(dsn, f"CREATE ROLE {name} LOGIN PASSWORD 'secret'", f"GRANT CREATE ON DATABASE {database} TO {name}")
    try:
        yield make_conninfo(dsn, user=name, password="secret")
    finally:
        do(dsn, f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


HIDING = """
    ALTER TABLE items OWNER TO {0}; GRANT ALL ON SCHEMA public TO {0};
    CREATE POLICY even ON items USING (id % 2 = 0);
    ALTER TABLE items ENABLE ROW LEVEL SECURITY
"""


def test_c07_row_security_that_would_hide_rows_is_refused(
    pg16: Cluster, source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    do(source_dsn, ITEMS)
    with role(pg16, source_dsn, "c07_forced") as dsn:
        do(source_dsn, HIDING.format("c07_forced"), "ALTER TABLE items FORCE ROW LEVEL SECURITY")
        move = lifecycle(dsn, target_dsn, tables={"include": ["public.items"]}, **SMALL)
        error = move.refused("setup", PreflightRefused)
        assert error.exit_code == EXIT_REFUSED
        assert "row security would hide rows from role c07_forced" in str(error)
        assert "BYPASSRLS" in str(error)
        assert left_behind(source_dsn) == left_behind(target_dsn) == []


def test_c07_row_security_that_comes_during_the_run_is_an_error_and_hides_nothing(
    pg16: Cluster, source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(source_dsn, ITEMS)
    with role(pg16, source_dsn, "c07_later") as dsn:
        do(source_dsn, HIDING.format("c07_later"))
        move = lifecycle(dsn, target_dsn, tables={"include": ["public.items"]}, capture={"ddl": "off"}, **SMALL)
        move.run_all(until="snapshot")
        do(source_dsn, "ALTER TABLE items FORCE ROW LEVEL SECURITY")
        assert "row-level security" in str(move.refused("backfill"))
        with monkeypatch.context() as naive:
            naive.setitem(connecting.PINNED, "row_security", "on")
            with connect(dsn, purpose="naive") as conn:
                assert conn.execute("SELECT count(*) FROM public.items").fetchone() == (300,)
        do(source_dsn, "ALTER TABLE items NO FORCE ROW LEVEL SECURITY")
        move.run_all(after="snapshot", until="verify")
        assert differences(source_dsn, target_dsn) == []


# --- C14: binary or text ----------------------------------------------------------------------------------------------

TYPES = r"""
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE TYPE point3 AS (x int, m mood, t text);
    CREATE TYPE span AS RANGE (subtype = bigint, multirange_type_name = spans);
    CREATE DOMAIN moods AS mood[];
    CREATE DOMAIN price AS numeric(10, 2) CHECK (VALUE >= 0);
    CREATE DOMAIN place AS point3;
    CREATE DOMAIN kind AS regtype;

    CREATE TABLE plain (id bigint PRIMARY KEY, m mood, p price, n numeric, d double precision, b bytea, j jsonb,
        t timestamptz, a int[], r int4range, s text, u uuid, i interval);
    CREATE TABLE enum_keys (id mood PRIMARY KEY, v text);
    CREATE TABLE regs (id int PRIMARY KEY, c regclass, t regtype, n regnamespace, p regprocedure, o regoperator,
        r regrole, k kind, a regclass[]);
    CREATE TABLE enums (id int PRIMARY KEY, ms mood[], d moods);
    CREATE TABLE composites (id int PRIMARY KEY, p point3, ps point3[], d place);
    CREATE TABLE ranges (id int PRIMARY KEY, s span, ss span[], m spans);
    CREATE TABLE composite_keys (id point3 PRIMARY KEY, v text);
    CREATE TABLE array_keys (id mood[] PRIMARY KEY, v text);

    INSERT INTO plain SELECT n, 'ok', 1.5, '123456789012345678901234567890.000100', 'NaN', '\x00ff5c',
        '{"a": "\u00e9"}', 'infinity', '[-1:1]={1,NULL,3}', '[1,5)', E'tab\t, \\N, \\., \r\n', gen_random_uuid(),
        '1 mon -3 days 00:00:00.000001' FROM generate_series(1, 5) n;
    INSERT INTO plain (id, n, d, t, a, s) VALUES (6, 'NaN', '-Infinity', '0044-03-15 00:00:00 BC', '{}', '\N'),
        (7, 'Infinity', -0.0, '294276-12-31 23:59:59.999999', NULL, NULL);
    INSERT INTO enum_keys VALUES ('sad', 'a'), ('happy', 'b');
    INSERT INTO regs VALUES (2, 'pg_class', 'int', NULL, NULL, NULL, NULL, NULL, NULL), (1, 'plain', 'mood', 'public',
        'lower(text)', '+(int,int)', 'postgres', 'mood[]', '{plain,NULL,regs}');
    INSERT INTO enums VALUES (1, '{sad,NULL,happy}', '{ok}'), (2, '{}', NULL);
    INSERT INTO composites VALUES (2, ROW(NULL, NULL, NULL), '{}', NULL), (3, NULL, NULL, NULL),
        (1, ROW(1, 'sad', 'a "quoted", (text)'), ARRAY[ROW(NULL, 'ok', ''), NULL]::point3[], ROW(2, NULL, NULL));
    INSERT INTO ranges VALUES (1, '[1,10)', '{"[1,2)",empty}', '{[1,2),[5,)}');
    INSERT INTO composite_keys VALUES (ROW(1, 'sad', 'x'), 'a'), (ROW(2, 'ok', 'y, "z"'), 'b');
    INSERT INTO array_keys VALUES ('{sad,ok}', 'a'), ('{happy}', 'b')
"""


def test_c14_what_carries_oids_travels_as_text(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    do(source_dsn, TYPES)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)
    move.run_all(until="schema_sync")
    do(
        source_dsn,
        "INSERT INTO regs SELECT id + 10, 'enums', t, n, p, o, r, k, a FROM regs",
        "UPDATE enum_keys SET id = 'ok' WHERE id = 'sad'",
        "UPDATE enums SET ms = ms || 'ok'::mood",
        "UPDATE composites SET p.x = 7",
        "UPDATE ranges SET s = '(,5)'",
        "UPDATE composite_keys SET id.x = 9 WHERE v = 'a'",
        "DELETE FROM composite_keys WHERE v = 'b'",
        "UPDATE array_keys SET id = id || 'ok'::mood",
        "UPDATE plain SET id = id + 100",
    )
    move.run_all(after="schema_sync", until="swap")
    oid = "SELECT 'public.mood'::regtype::oid::int"
    assert one(source_dsn, oid) != one(target_dsn, oid), "equal oids would prove nothing"
    assert differences(source_dsn, target_dsn) == []
    query = "SELECT table_name, (plan ->> 'binary')::bool, (plan ->> 'key_binary')::bool FROM pgddl.tables"
    assert {table: (rows, keys) for table, rows, keys in move.journal(query)} == {
        **dict.fromkeys(["plain", "enum_keys"], (True, True)),
        **dict.fromkeys(["regs", "enums", "composites", "ranges"], (False, True)),
        **dict.fromkeys(["composite_keys", "array_keys"], (False, False)),
    }
