"""capture.rows: wal — what is published, by which replica identity, and whom that gets in the way of (C19)."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import failpoints
from airflow_provider_pgddl.engine.errors import PreflightRefused
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits
from tests.integration.slot_shop import CHANGES, SHOP

Make = Callable[..., Lifecycle]
PUBLISHED = (
    "SELECT array_agg(r.prrelid::regclass::text ORDER BY r.prrelid::regclass::text) FROM pg_publication_rel r"
    " JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname LIKE 'pgddl_rows_of_%'"
)


@pytest.fixture
def shop(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, SHOP)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"rows": "wal"})


@pytest.mark.parametrize(
    ("prepare", "identity"),
    [
        ([], "d"),
        (["ALTER TABLE items REPLICA IDENTITY FULL"], "f"),
        (["CREATE UNIQUE INDEX other ON items (id, code)", "ALTER TABLE items ALTER code SET NOT NULL",
          "ALTER TABLE items REPLICA IDENTITY USING INDEX other"], "i"),
    ],
)  # fmt: skip
def test_every_replica_identity(shop: Lifecycle, prepare: list[str], identity: str) -> None:
    do(shop.source, *prepare)
    shop.run_all(until="replay")
    assert one(shop.source, "SELECT relreplident::text FROM pg_class WHERE relname = 'items'") == identity
    do(shop.source, *CHANGES, "UPDATE items SET body = repeat('toast', 100000) WHERE id = 1")
    do(shop.source, "UPDATE items SET id = 3000 WHERE id = 1")
    shop.run("replay")
    assert differences(shop.source, shop.target) == []


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE pairs DROP CONSTRAINT pairs_pkey",
        "ALTER TABLE pairs REPLICA IDENTITY NOTHING",
        "ALTER TABLE pairs REPLICA IDENTITY FULL",
        "ALTER TABLE pairs DROP CONSTRAINT pairs_pkey, ADD PRIMARY KEY (b)",
        "ALTER TABLE pairs DROP CONSTRAINT pairs_pkey, ADD PRIMARY KEY (a, b) DEFERRABLE",
    ],
)
def test_c19_a_publication_breaks_no_applications_update(shop: Lifecycle, ddl: str) -> None:
    shop.run_all(until="replay")
    do(
        shop.source,
        "DELETE FROM pairs WHERE a > 40",
        ddl,
        "UPDATE pairs SET body = 'z'",
        "DELETE FROM pairs WHERE a = 7",
    )
    result = shop.run("replay")
    if "FULL" in ddl or ddl.endswith("ADD PRIMARY KEY (b)"):
        assert not result.blocked
        assert differences(shop.source, shop.target) == []
    else:
        (blocked,) = result.blocked
        assert blocked["table"] == "public.pairs"


@pytest.mark.parametrize("kind", ["VIRTUAL", "STORED"])
@pytest.mark.parametrize(
    "late", [None, "ALTER TABLE v ADD g int GENERATED ALWAYS AS (n + 1) {}", "ALTER TABLE v REPLICA IDENTITY FULL"]
)
def test_c19_whole_rows_as_identity_and_a_generated_column(
    pg18: Cluster, database: Database, lifecycle: Make, kind: str, late: str | None
) -> None:
    """From 18 on an UPDATE fails where an identity has what is not published."""
    source, target = database(pg18), database(pg18)
    do(source, "CREATE TABLE v (id int PRIMARY KEY, n int)", "INSERT INTO v SELECT n, n FROM generate_series(1, 9) n")
    if late is None or "IDENTITY" in late:
        do(source, f"ALTER TABLE v ADD g int GENERATED ALWAYS AS (n + 1) {kind}")
    if late is None or "ADD" in late:
        do(source, "ALTER TABLE v REPLICA IDENTITY FULL")
    move = lifecycle(source, target, tables={"include": ["public.*"]}, capture={"rows": "wal"})
    if late is None:
        assert "REPLICA IDENTITY DEFAULT" in str(move.refused("setup", PreflightRefused))
    else:
        move.run_all(until="replay")
        do(source, late.format(kind), "UPDATE v SET n = n + 100 WHERE id < 5", "DELETE FROM v WHERE id = 9")
        for _ in range(2):
            (blocked,) = move.run("replay").blocked
            assert "has g in its replica identity, which is generated" in blocked["reason"]
            do(source, "UPDATE v SET n = n + 1 WHERE id = 8")
    do(source, "ALTER TABLE v REPLICA IDENTITY DEFAULT")
    if late is None:
        move.run_all(until="replay")
    assert not move.run("replay").blocked
    do(source, "UPDATE v SET n = n + 1", "DELETE FROM v WHERE id = 1")
    assert not move.run("replay").blocked
    assert differences(source, target) == []


COMPUTED = [
    "ALTER TABLE v ALTER g SET EXPRESSION AS (n * 3)",
    'alter table only public . "v" /* x */ add more int, alter column "G" set\n expression as (n * 4)',
    "DO $$ BEGIN EXECUTE 'ALTER TABLE p ALTER COLUMN g SET EXPRESSION AS (id * 5)'; END $$",
]


def test_c19_a_virtual_column_is_computed_by_another_expression(
    pg18: Cluster, database: Database, lifecycle: Make
) -> None:
    """From 18 on Postgres refuses that for a published table, whatever of it is published."""
    source, target = database(pg18), database(pg18)
    do(
        source,
        "CREATE TABLE v (id int PRIMARY KEY, n int, g int GENERATED ALWAYS AS (n + 1))",
        'ALTER TABLE v ADD "G" int GENERATED ALWAYS AS (n)',
        "CREATE TABLE p (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (1) TO (99)",
        "CREATE TABLE s (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) STORED)",
        *(f"INSERT INTO {table} (id) SELECT n FROM generate_series(1, 90) n" for table in ("v", "p", "s")),
        "UPDATE v SET n = id",
    )
    tables = {"include": ["public.*"], "where": {"public.p": "g % 2 = 0", "public.v": "g % 2 = 0"}}
    move = lifecycle(source, target, tables=tables, capture={"rows": "wal"})
    move.run_all(until="replay")
    published = one(source, PUBLISHED)
    do(source, "ALTER TABLE s ALTER g SET EXPRESSION AS (id + 7)", "ALTER TABLE v ALTER n SET DEFAULT 1")
    assert one(source, PUBLISHED) == published
    do(source, *COMPUTED, "UPDATE v SET n = n + 1 WHERE id < 9")
    assert not move.run("replay").blocked
    for table, where in (("v", "g % 2 = 0"), ("p", "g % 2 = 0"), ("s", "true")):
        rows = f"SELECT array_agg(t ORDER BY id)::text FROM {table} t WHERE {where}"
        assert one(source, rows) == one(target, rows), table
    assert one(source, PUBLISHED) == published
    assert one(source, "SELECT count(*) FROM pgddl.exceptions") == 0


def test_c19_a_table_with_a_key_of_its_own_that_becomes_a_partition(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    """It would be published by its root's key, of which its own identity is no part."""
    do(
        source_dsn,
        "CREATE TABLE users (id int PRIMARY KEY, email text NOT NULL)",
        "CREATE TABLE mails (id int NOT NULL, email text NOT NULL UNIQUE) PARTITION BY RANGE (email)",
        "CREATE TABLE mails_0 PARTITION OF mails FOR VALUES FROM ('a') TO ('b')",
        "ALTER TABLE mails_0 REPLICA IDENTITY FULL",
        "INSERT INTO users SELECT n, 's' || n FROM generate_series(1, 100) n",
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"rows": "wal"})
    move.run_all(until="replay")
    do(
        source_dsn,
        "ALTER TABLE mails ATTACH PARTITION users FOR VALUES FROM ('s') TO ('t')",
        "UPDATE users SET email = 'snew' || id WHERE id % 5 = 0",
        "DELETE FROM users WHERE id = 7",
        "INSERT INTO mails VALUES (101, 'a1'), (102, 's1x')",
    )
    for _ in range(2):
        (blocked,) = move.run("replay").blocked
        assert blocked["table"] == "public.mails" and "public.users has id in its replica identity" in blocked["reason"]
        do(source_dsn, "UPDATE users SET email = email || 'y' WHERE id < 50", "DELETE FROM mails WHERE id IN (60, 61)")
    do(source_dsn, "ALTER TABLE users REPLICA IDENTITY FULL")
    for _ in range(2):
        assert not move.run("replay").blocked
        assert differences(source_dsn, target_dsn) == []
        do(source_dsn, "UPDATE users SET email = email || 'z' WHERE id < 50", "DELETE FROM mails WHERE id IN (70, 71)")
    move.run_all(after="schema_sync", until="verify")


UNFIT = {
    "an index of a part of the key": (
        "CREATE UNIQUE INDEX u ON parts_0 (id)",
        "ALTER TABLE parts_0 REPLICA IDENTITY USING INDEX u",
        "lacks at of the key in its replica identity",
    ),
    "a primary key that is a part of the root's": (
        "ALTER TABLE parts DROP CONSTRAINT parts_pkey, ALTER id SET NOT NULL, ALTER at SET NOT NULL",
        "ALTER TABLE parts ADD UNIQUE (id, at); ALTER TABLE parts_0 ADD PRIMARY KEY (id)",
        "lacks at of the key in its replica identity",
    ),
    "an index that was dropped": (
        "CREATE UNIQUE INDEX u ON parts_0 (id, at); ALTER TABLE parts_0 REPLICA IDENTITY USING INDEX u",
        "DROP INDEX u",
        "has no replica identity",
    ),
}


@pytest.mark.parametrize("ddl", UNFIT.values(), ids=UNFIT)
def test_c19_what_a_publication_does_not_go_with_is_refused_by_setup(
    shop: Lifecycle, ddl: tuple[str, str, str]
) -> None:
    do(shop.source, "ALTER TABLE parts_1 REPLICA IDENTITY FULL", *ddl[:2])
    error = shop.refused("setup", PreflightRefused)
    assert f"public.parts_0): {ddl[2]}" in error.what, error.what
    do(shop.source, "UPDATE parts SET body = 'y'", "ALTER TABLE parts_0 REPLICA IDENTITY FULL")
    shop.run_all(until="replay")
    do(shop.source, "UPDATE parts_0 SET at = at - 1", "DELETE FROM parts WHERE at = 7")
    shop.run("replay")
    assert differences(shop.source, shop.target) == []


@pytest.mark.parametrize("capture_ddl", ["queue", "off"])
def test_an_old_key_that_is_no_part_of_a_partitions_identity_is_not_lost(shop: Lifecycle, capture_ddl: str) -> None:
    """A partition's identity is its own, and no part of what its table is compared by."""
    shop.content["capture"]["ddl"] = capture_ddl
    shop.run_all(until="replay")
    do(shop.source, *UNFIT["an index of a part of the key"][:2])
    for _ in range(2):
        do(
            shop.source,
            "UPDATE parts_0 SET at = at - 1 WHERE id BETWEEN 9 AND 50",
            "DELETE FROM parts WHERE id = 60",
            "UPDATE pairs SET body = 'y'",
        )
        (blocked,) = shop.run("replay").blocked
        assert blocked["table"] == "public.parts" and "public.parts_0 lacks at of the key" in blocked["reason"]
    do(shop.source, "ALTER TABLE parts_0 REPLICA IDENTITY DEFAULT")
    for _ in range(2):
        assert not shop.run("replay").blocked
        assert differences(shop.source, shop.target) == []
        do(shop.source, "UPDATE parts_0 SET at = at - 1 WHERE id BETWEEN 40 AND 50")


def test_c19_what_becomes_unfit_before_its_capture_has_its_lock_is_not_published(shop: Lifecycle) -> None:
    def drop_identity(_: object) -> None:
        failpoints.turn_off("capture.before_slot_log_commit")
        do(shop.source, "ALTER TABLE items REPLICA IDENTITY NOTHING")

    failpoints.turn_on("capture.before_slot_log_commit", drop_identity)
    try:
        error = shop.refused("setup", PreflightRefused)
    finally:
        failpoints.turn_off("capture.before_slot_log_commit")
    assert "has no replica identity" in str(error)
    do(shop.source, "UPDATE items SET body = 'y'")


def test_what_an_index_includes_is_no_part_of_an_identity(shop: Lifecycle) -> None:
    do(
        shop.source,
        "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id) INCLUDE (body)",
        "CREATE UNIQUE INDEX included ON pairs (a, b) INCLUDE (body)",
        "ALTER TABLE pairs REPLICA IDENTITY USING INDEX included",
    )
    shop.run_all(until="replay")
    published = one(shop.source, PUBLISHED)
    do(shop.source, "ALTER TABLE items SET (fillfactor = 90)", *CHANGES)
    assert one(shop.source, PUBLISHED) == published
    shop.run("replay")
    assert differences(shop.source, shop.target) == []


def test_partitions_that_come_are_published_at_once(shop: Lifecycle) -> None:
    shop.run_all(until="replay")
    do(
        shop.source,
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (200) TO (300)",
        "INSERT INTO parts VALUES (1, 250, 'a'), (2, 251, 'b')",
        "CREATE TABLE parts_3 (at int NOT NULL, body text, id int NOT NULL, PRIMARY KEY (id, at))",
        "INSERT INTO parts_3 VALUES (350, 'came with it', 9)",
        "ALTER TABLE parts ATTACH PARTITION parts_3 FOR VALUES FROM (300) TO (400)",
        "UPDATE parts SET at = 351 WHERE at = 250",
        "ALTER TABLE parts DETACH PARTITION parts_0",
    )
    shop.run("replay")
    assert {"parts_1", "parts_2", "parts_3"} <= set(one(shop.source, PUBLISHED))
    both = [set(shop.on_source("TABLE parts")), set(shop.journal("TABLE parts"))]
    assert both[0] == both[1]


SPELLINGS = {
    "ALTER TABLE items ALTER id TYPE numeric": "items",
    "alter table IF EXISTS only public . ITEMS /* x */ alter column ID set data -- y\n type numeric": "items",
    "SET standard_conforming_strings = off; ALTER TABLE items DROP COLUMN id": "items",
    "ALTER TABLE pairs DROP b, DROP COLUMN IF EXISTS a": "pairs",
    "ALTER TABLE items* SET UNLOGGED": "items",
    "ALTER TABLE parts ALTER id TYPE bigint": "parts_0 parts_1",
    "ALTER TABLE parts_1 SET UNLOGGED": "parts_1",
    'ALTER TABLE "Mixed ""Case" ADD n int, ALTER "Id" TYPE bigint': "mixed",
    "ALTER TABLE item ALTER items TYPE varchar, ALTER id TYPE bigint": "item",
    "SET search_path = other, public; ALTER TABLE item ALTER id TYPE bigint": "other",
    # Of a string with many, each in its turn.
    "ALTER TABLE items ALTER body TYPE varchar; ALTER TABLE pairs ALTER a TYPE bigint; TABLE item;"
    " ALTER TABLE item ALTER id TYPE bigint": "item pairs",
    "DO $$ BEGIN ALTER TABLE items ALTER id TYPE numeric; END $$": "items",
    "DO $$ BEGIN FOR i IN 0..1 LOOP EXECUTE format('ALTER TABLE parts_%s SET UNLOGGED', i); END LOOP; END $$":
        "parts_0 parts_1",
    "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN ALTER TABLE pairs DROP a;"
    " ALTER TABLE item ADD b int; ALTER TABLE items DROP id; END $$; SELECT f()": "items pairs",
    # What Postgres does not refuse.
    "ALTER TABLE items ALTER body TYPE varchar": "",
    "ALTER TABLE items DROP COLUMN code": "",
    'ALTER TABLE "Mixed ""Case" ALTER "type" TYPE varchar': "",
    "ALTER TABLE items ALTER id SET DEFAULT 5, DROP COLUMN body": "",
    "ALTER TABLE items RENAME id TO type": "",
    "ALTER TABLE ALL IN TABLESPACE pg_default SET TABLESPACE pg_default": "",
}  # fmt: skip
GONE = """
    SELECT coalesce(string_agg(CASE WHEN n.nspname = 'other' THEN 'other' WHEN c.relname ~ 'Mixed' THEN 'mixed'
                               ELSE c.relname END, ' ' ORDER BY c.relname), '')
    FROM pgddl.captured s JOIN pg_class c ON c.oid = s.leaf JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE NOT EXISTS (SELECT FROM pg_publication_rel r WHERE r.prrelid = s.leaf)
"""


@pytest.fixture(params=matrix(16, 18))
def captured(request: pytest.FixtureRequest, database: Database, target_dsn: str, lifecycle: Make) -> str:
    """A source whose tables are in the publication."""
    source = database(request.getfixturevalue(f"pg{request.param}"))
    do(
        source,
        SHOP,
        'CREATE TABLE "Mixed ""Case" ("Id" int PRIMARY KEY, "type" text); CREATE SCHEMA other',
        "CREATE TABLE item (id int PRIMARY KEY, items text); CREATE TABLE other.item (id int PRIMARY KEY)",
    )
    lifecycle(source, target_dsn, tables={"include": ["public.*", "other.*"]}, capture={"rows": "wal"}).run("setup")
    return source


def test_c19_a_table_is_published_no_more_before_ddl_that_postgres_would_refuse(captured: str) -> None:
    with psycopg.connect(captured) as client:
        for ddl, gone in SPELLINGS.items():
            client.execute(ddl.encode())
            assert client.execute(GONE.encode()).fetchone() == (gone,), ddl
            assert client.execute("SELECT count(*) FROM pgddl.exceptions").fetchone() == (0,), ddl
            client.rollback()
        with pytest.raises(psycopg.errors.DatatypeMismatch):
            client.execute("ALTER TABLE items ALTER id TYPE date")
        client.rollback()
        with pytest.raises(psycopg.errors.FeatureNotSupported):  # no text tells which table it is
            client.execute("CREATE FUNCTION f() RETURNS void LANGUAGE sql AS 'ALTER TABLE items ALTER id TYPE numeric'")
            client.execute("SELECT f()")
        client.rollback()
        with client.transaction(force_rollback=True):
            client.execute("ALTER TABLE items ALTER id TYPE numeric")
        client.commit()
        assert client.execute(GONE.encode()).fetchone() == ("",)


RETYPE = "ALTER TABLE items ALTER id TYPE numeric"


def test_c19_whoever_waits_or_fails_there_would_have_without_us(captured: str) -> None:
    """Before the command begins its own lock is taken, and no other: one that is made stronger meets whoever has
    written and wants to alter the table too."""
    with (
        in_transaction(captured, "UPDATE items SET body = 'w'") as writer,
        Underway(lambda: do(captured, RETYPE)) as alter,
    ):
        wait_for(lambda: waits(captured, "AccessExclusiveLock", "items"), alter)
        writer.execute("ALTER TABLE items ADD behind int")
        writer.execute("ALTER TABLE items ALTER body TYPE varchar")
        writer.execute("ANALYZE items")
        assert not alter.over
        writer.commit()
        alter.finish()
    if not one(captured, "SELECT to_regrole('stranger_to_items') IS NOT NULL"):
        do(captured, "CREATE ROLE stranger_to_items")
    with in_transaction(captured, "UPDATE pairs SET body = 'w'"):
        with pytest.raises(psycopg.errors.LockNotAvailable):
            do(captured, "SET lock_timeout = '50ms'; ALTER TABLE pairs ALTER a TYPE bigint")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            do(captured, "SET statement_timeout = '5s'; SET ROLE stranger_to_items; ALTER TABLE public.pairs DROP a")
    assert one(captured, GONE) == "items"


def test_c19_ddl_on_a_key_that_waited_for_the_capture_of_its_table_is_not_refused(captured: str) -> None:
    do(captured, RETYPE)
    publication = one(captured, "SELECT pubname FROM pg_publication WHERE pubname LIKE 'pgddl_rows%'")
    with (
        in_transaction(captured, "LOCK items IN SHARE ROW EXCLUSIVE MODE") as capture,
        Underway(lambda: do(captured, "ALTER TABLE items ALTER id TYPE bigint")) as alter,
    ):
        wait_for(lambda: waits(captured, "AccessExclusiveLock", "items"), alter)
        capture.execute(f"ALTER PUBLICATION {publication} ADD TABLE ONLY items (id)".encode())
        capture.commit()
        alter.finish()
    assert one(captured, GONE) == "items"


def test_c19_what_takes_a_weaker_lock_still_does(captured: str) -> None:
    do(
        captured,
        "ALTER TABLE items ADD CONSTRAINT later CHECK (id > 0) NOT VALID; CREATE VIEW seen AS SELECT id FROM items",
        "CREATE TABLE old_one ()",
    )
    with in_transaction(captured, "SELECT FROM items"):
        do(
            captured,
            "SET lock_timeout = '2s'; ALTER TABLE items VALIDATE CONSTRAINT later; DROP TABLE old_one",
            "SET lock_timeout = '2s'; ALTER TABLE seen ALTER id DROP DEFAULT; ALTER TABLE seen ALTER id SET DEFAULT 1",
        )
    assert one(captured, GONE) == ""


WAITS_FOR_A_PUBLICATION = "SELECT count(*) FROM pg_locks WHERE NOT granted AND classid = 'pg_publication'::regclass"


def test_c19_two_that_alter_keys_at_once_do_not_wait_for_each_other_for_long(captured: str) -> None:
    """Postgres keeps a publication locked for who has altered it. Where that lasts, the second is refused as it was
    without us; and the first goes on, whatever it wants next."""
    with in_transaction(captured, RETYPE) as first:
        with Underway(lambda: do(captured, "ALTER TABLE item ALTER id TYPE bigint")) as second:
            wait_for(lambda: one(captured, WAITS_FOR_A_PUBLICATION), second)
            first.execute("SELECT count(*) FROM item")
            second.fails(psycopg.errors.FeatureNotSupported)
        first.commit()
    do(captured, "ALTER TABLE item ALTER id TYPE bigint")
    assert one(captured, GONE) == "item items"
    assert one(captured, "SELECT count(*) FROM pgddl.exceptions") == 0


@pytest.mark.parametrize(
    "ddl",
    [
        RETYPE,
        "ALTER TABLE items ALTER id TYPE bigint USING -id",
        "ALTER TABLE parts ALTER id TYPE bigint",
        "ALTER TABLE items DROP COLUMN id",
        "ALTER TABLE items SET UNLOGGED",
    ],
)
def test_c19_rows_beside_ddl_on_the_key_are_read_again(shop: Lifecycle, ddl: str) -> None:
    shop.run_all(until="replay")
    with psycopg.connect(shop.source) as client:
        client.execute("UPDATE items SET body = 'before', id = id + 5000 WHERE id < 9; DELETE FROM parts WHERE id = 3")
        client.execute(ddl.encode())
        client.execute("UPDATE items SET body = 'after' WHERE code > 'c5'; UPDATE parts SET at = at + 1 WHERE at = 99")
    do(shop.source, "UPDATE items SET body = 'later' WHERE code = 'c1'", "UPDATE pairs SET body = 'z'")
    result = shop.run("replay")
    if "TYPE" not in ddl:
        assert [blocked["table"] for blocked in result.blocked] == ["public.items"]
        return
    assert not result.blocked
    assert differences(shop.source, shop.target) == []
    assert one(shop.source, GONE) == ""
