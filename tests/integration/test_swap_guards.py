"""Ways in which a swap once could have left rows or definitions behind, one test each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs, differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import (
    EXIT_BLOCKED,
    EXIT_DONE,
    Fenced,
    PreflightRefused,
    StageFailed,
    UsageError,
)
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableJournal, TableRow
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.rows import windows
from airflow_provider_pgddl.engine.rows.chunks import ShareDone
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.stages import backfill, cleanup, swap
from airflow_provider_pgddl.engine.swapping import across, readiness, schema_guard
from airflow_provider_pgddl.engine.swapping import in_place as exchange
from airflow_provider_pgddl.engine.swapping.schema_guard import SchemaGuard
from tests.conftest import Database
from tests.integration.calls import after_each, before_each, once
from tests.integration.items import log_of
from tests.integration.lifecycle import Lifecycle, left_behind
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for

Make = Callable[..., Lifecycle]

SMALL: dict[str, Any] = {"backfill": {"workers": 1}}

# Without event triggers, as where nobody is a superuser.
UNCAPTURED: dict[str, Any] = {"capture": {"ddl": "off"}}

SHOP = """
    CREATE SCHEMA shop;
    CREATE TABLE shop.parent (id int PRIMARY KEY, name text NOT NULL);
    CREATE TABLE shop.child (
        id int PRIMARY KEY, parent int NOT NULL REFERENCES shop.parent ON DELETE CASCADE, note text NOT NULL);
    INSERT INTO shop.parent SELECT n, 'p' || n FROM generate_series(1, 20) n;
    INSERT INTO shop.child SELECT n, 1 + n % 20, 'c' || n FROM generate_series(1, 60) n
"""

ITEMS = """
    CREATE TABLE items (id int PRIMARY KEY, code text NOT NULL UNIQUE);
    INSERT INTO items SELECT n, 'c' || n FROM generate_series(1, 60) n
"""

TO_BIGINT = {"public.items": {"alter": ["ALTER COLUMN id TYPE bigint"]}}


@pytest.fixture
def shop(source_dsn: str, target_dsn: str, lifecycle: Make) -> Make:
    """A migration of parent and child, 16 to 18; what is given is the pipeline's."""
    do(source_dsn, SHOP)

    def make(**pipeline: Any) -> Lifecycle:
        return lifecycle(source_dsn, target_dsn, **({"tables": {"include": ["shop.*"]}} | SMALL | pipeline))

    return make


@pytest.fixture
def rewrite(pg18: Cluster, database: Database, lifecycle: Make) -> Make:
    """A rewrite of items on 18."""
    dsn = database(pg18)
    do(dsn, ITEMS)

    def make(**pipeline: Any) -> Lifecycle:
        return lifecycle(dsn, **({"rewrite": TO_BIGINT} | SMALL | pipeline))

    return make


def has_cut_over(pipeline: Lifecycle) -> bool:
    return pipeline.journal("SELECT cut_over_at IS NOT NULL FROM pgddl.pipelines WHERE pipeline = %s", [pipeline.name])[
        0
    ][0]


FOREIGN_KEYS = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND connamespace = 'shop'::regnamespace"


def type_of_id(pipeline: Lifecycle) -> str:
    return str(one(pipeline.source, "SELECT pg_typeof(id)::text FROM items LIMIT 1"))


def sessions(pipeline: Lifecycle, dsn: str) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s AND datname = current_database()"
    return int(one(dsn, query, f"pgddl:{pipeline.name}:%"))


def reset(pipeline: Lifecycle, *tables: str) -> None:
    stages.reset(load_pipeline(pipeline.content), pipeline.source, pipeline.target, list(tables) or None)


# --- what the last windows find ---------------------------------------------------------------------------------------

LATE = {
    "another_column": ["ALTER TABLE shop.child ADD late int DEFAULT 1", "UPDATE shop.child SET late = 2 WHERE id < 9"],
    "unwatched": [
        "ALTER TABLE shop.child DISABLE TRIGGER ALL",
        "INSERT INTO shop.child VALUES (1001, 1, 'not in the log')",
        "ALTER TABLE shop.child ENABLE TRIGGER ALL",
        "UPDATE shop.child SET note = 'in the log' WHERE id < 9",
    ],
}


@pytest.mark.parametrize(
    ("late", "fence", "settings"),
    [("another_column", "read_only", {}), ("unwatched", "none", {}), ("unwatched", "read_only", UNCAPTURED)],
)
def test_what_the_last_windows_find_is_followed(
    shop: Make, monkeypatch: pytest.MonkeyPatch, fence: str, late: str, settings: dict[str, Any]
) -> None:
    """The table is compared once more, without a fence, before it is cut over."""
    move = shop(swap={"fence": fence}, **settings)
    move.run_all(until="verify")
    compared = before_each(monkeypatch, readiness, "compare_rows", lambda _: None)
    before_each(monkeypatch, across, "_fence", once(*LATE[late], dsn=move.source))
    move.run("swap")
    assert compared == [1]
    assert differences(move.source, move.target) == []
    assert diff_catalogs(catalog_lines(move.source), catalog_lines(move.target)) == []


@pytest.mark.parametrize("fence", ["none", "read_only"])
def test_a_table_that_the_last_windows_block_is_not_cut_over(
    shop: Make, monkeypatch: pytest.MonkeyPatch, fence: str
) -> None:
    move = shop(swap={"fence": fence}, **UNCAPTURED)
    move.run_all(until="verify")
    before_each(monkeypatch, across, "_fence", once(*LATE["another_column"], dsn=move.source))
    assert "shop.child: is blocked" in str(move.refused("swap", PreflightRefused))
    assert not has_cut_over(move)
    do(move.source, "INSERT INTO shop.parent VALUES (1001, 'the fence is down')")
    assert one(move.source, f"SELECT count(*) FROM {log_of(move, 'child')} WHERE op = 'U'") == 8
    assert one(move.target, FOREIGN_KEYS) == 0
    assert "shop.child: is blocked" in str(move.refused("swap", PreflightRefused))
    if fence == "read_only":
        reset(move, "shop.child")
        move.run_all(until="swap")
        assert differences(move.source, move.target) == []


# --- a cut-over is one transaction ------------------------------------------------------------------------------------

MARK = """
    CREATE FUNCTION shop.mark() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN NEW.note := NEW.note || '!'; RETURN NEW; END$$;
    CREATE TRIGGER mark BEFORE INSERT ON shop.child FOR EACH ROW EXECUTE FUNCTION shop.mark()
"""


def test_a_cut_over_that_fails_at_its_end_has_changed_nothing(shop: Make) -> None:
    move = shop(swap={"fence": "read_only"})
    do(move.source, MARK)
    move.run_all(until="verify")
    do(move.target, "CREATE TRIGGER mark AFTER TRUNCATE ON shop.child EXECUTE FUNCTION shop.mark()")
    assert "mark" in str(move.refused("swap", StageFailed))
    assert not has_cut_over(move)
    assert one(move.target, FOREIGN_KEYS) == 0
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid IN ('shop.child'::regclass, 'shop.parent'::regclass)"
    assert one(move.target, triggers) == 1
    do(
        move.source,
        "INSERT INTO shop.child VALUES (1001, 1, 'marked once')",
        "UPDATE shop.parent SET name = 'children stay' WHERE id = 2",
        "UPDATE shop.child SET note = 'again' WHERE id = 3",
        "DELETE FROM shop.parent WHERE id = 5",
    )
    do(move.target, "DROP TRIGGER mark ON shop.child")
    move.run("swap")
    assert differences(move.source, move.target) == []
    assert one(move.target, "SELECT note FROM shop.child WHERE id = 1001") == "marked once!"
    do(move.target, "INSERT INTO shop.child VALUES (1002, 1, 'marked')", "DELETE FROM shop.parent WHERE id = 2")
    assert one(move.target, "SELECT note FROM shop.child WHERE id = 1002") == "marked!"
    assert one(move.target, "SELECT count(*) FROM shop.child WHERE parent = 2") == 0


# --- what came after setup or after the snapshot ----------------------------------------------------------------------


LATE_TABLE = [
    "CREATE TABLE shop.late (id int PRIMARY KEY, child int REFERENCES shop.child)",
    "INSERT INTO shop.late VALUES (1, 7)",
]


def test_a_table_that_came_after_setup_is_taken_along(shop: Make) -> None:
    move = shop()
    move.run_all(until="verify")
    do(move.source, *LATE_TABLE)
    move.run("swap")
    assert differences(move.source, move.target) == []
    assert diff_catalogs(catalog_lines(move.source), catalog_lines(move.target)) == []
    with pytest.raises(pg.ForeignKeyViolation):
        do(move.target, "INSERT INTO shop.late VALUES (2, 1001)")


def test_uncaptured_a_table_that_came_after_setup_is_not_left_behind(shop: Make) -> None:
    move = shop(**UNCAPTURED)
    move.run_all(until="verify")
    do(move.source, *LATE_TABLE)
    assert "shop.late: " in str(move.refused("swap", PreflightRefused))
    assert not has_cut_over(move)
    move.run_all(until="swap")
    assert differences(move.source, move.target) == []
    assert one(move.target, "SELECT child FROM shop.late") == 7


# What is done, how it is undone, and how the refusal names it.
Change = tuple[str, str, str]

BESIDE_ROWS: list[Change] = [
    ("CREATE INDEX late ON items (code, id)", "DROP INDEX late", "new: CREATE INDEX late"),
    (
        "CREATE TRIGGER late BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "DROP TRIGGER late ON items",
        "new: CREATE TRIGGER late",
    ),
    ("ALTER TABLE items ADD CONSTRAINT late CHECK (id > 0)", "ALTER TABLE items DROP CONSTRAINT late", "late CHECK"),
    (
        "ALTER TABLE items ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE items DISABLE ROW LEVEL SECURITY",
        "ENABLE ROW LEVEL SECURITY",
    ),
    ("CREATE POLICY late ON items USING (true)", "DROP POLICY late ON items", "new: CREATE POLICY late"),
    ("REVOKE SELECT ON items FROM pg_monitor", "GRANT SELECT ON items TO pg_monitor", "gone: GRANT SELECT"),
    ("COMMENT ON COLUMN items.code IS 'late'", "COMMENT ON COLUMN items.code IS NULL", "new: COMMENT ON COLUMN"),
]

REFUSED: list[Change] = [
    (
        "CREATE MATERIALIZED VIEW late AS SELECT id FROM items",
        "DROP MATERIALIZED VIEW late",
        "public.late refers to it",
    ),
    ("CREATE TABLE heir () INHERITS (items)", "DROP TABLE heir", "public.heir inherits from it"),
]
CARRIED = ["CREATE VIEW seen AS SELECT code FROM items", "CREATE PUBLICATION late FOR TABLE items"]


def in_place_difference(before: list[str], after: list[str]) -> list[str]:
    """What a swap has changed, but for what it is for."""
    return [line for line in diff_catalogs(before, after) if " items column 1 id: " not in line.replace("public.", " ")]


def test_a_change_after_the_snapshot_is_swapped_too(rewrite: Make) -> None:
    move = rewrite()
    do(move.source, "GRANT SELECT ON items TO pg_monitor")
    move.run_all(until="verify")
    for change, undo, named in REFUSED:
        do(move.source, change)
        assert named in str(move.refused("swap", PreflightRefused))
        do(move.source, undo)
    do(move.source, *(change for change, _, _ in BESIDE_ROWS), *CARRIED)
    before = catalog_lines(move.source)
    move.run("swap")
    assert type_of_id(move) == "bigint"
    assert in_place_difference(before, catalog_lines(move.source)) == []


def test_uncaptured_a_change_after_the_snapshot_stops_the_swap_in_place(
    rewrite: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_guard, "NAMED", len(BESIDE_ROWS))
    move = rewrite(**UNCAPTURED)
    do(move.source, "GRANT SELECT ON items TO pg_monitor")
    move.run_all(until="verify")
    before = catalog_lines(move.source)
    changes = [[change] for change in REFUSED]
    for together in [BESIDE_ROWS, *changes]:
        do(move.source, *(change for change, _, _ in together))
        refusal = str(move.refused("swap", PreflightRefused))
        assert [named for _, _, named in together if named not in refusal] == []
        assert type_of_id(move) == "integer"
        do(move.source, *(undo for _, undo, _ in together))
    assert diff_catalogs(before, catalog_lines(move.source)) == []
    do(move.source, *CARRIED)
    move.run("swap")
    assert type_of_id(move) == "bigint"
    assert one(move.source, "SELECT count(*) FROM seen") == one(move.source, "SELECT count(*) FROM items")


ELSEWHERE: list[Change] = [
    ("CREATE UNIQUE INDEX late ON shop.child (note)", "DROP INDEX shop.late", "new: CREATE UNIQUE INDEX late"),
    (
        "CREATE TRIGGER late AFTER DELETE ON shop.child EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "DROP TRIGGER late ON shop.child",
        "new: CREATE TRIGGER late",
    ),
    ("CREATE SEQUENCE shop.seq", "DROP SEQUENCE shop.seq", "new: CREATE SEQUENCE shop.seq"),
    ("CREATE VIEW shop.v AS SELECT 1 AS n", "DROP VIEW shop.v", "new: CREATE VIEW shop.v"),
    ("CREATE FUNCTION shop.f() RETURNS int RETURN 1", "DROP FUNCTION shop.f()", "new: CREATE FUNCTION shop.f()"),
]


def test_a_change_after_the_snapshot_is_cut_over_too(shop: Make) -> None:
    move = shop()
    move.run_all(until="verify")
    do(move.source, *(change for change, _, _ in ELSEWHERE))
    move.run("swap")
    assert differences(move.source, move.target) == []
    assert diff_catalogs(catalog_lines(move.source), catalog_lines(move.target)) == []


def test_uncaptured_a_change_after_the_snapshot_stops_the_cut_over(shop: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_guard, "NAMED", 20)
    move = shop(**UNCAPTURED)
    move.run_all(until="verify")
    do(move.source, *(change for change, _, _ in ELSEWHERE))
    refusal = str(move.refused("swap", PreflightRefused))
    assert [named for _, _, named in ELSEWHERE if named not in refusal] == []
    assert not has_cut_over(move)
    do(move.source, *(undo for _, undo, _ in ELSEWHERE))
    move.run("swap")
    assert differences(move.source, move.target) == []


# What somebody makes, and what else somebody may have made under the same name.
BY_HAND = [
    ("CREATE SCHEMA late", None),
    ("CREATE TYPE shop.size AS ENUM ('s', 'l')", "CREATE TYPE shop.size AS ENUM ('s')"),
    (
        "CREATE DOMAIN shop.code AS varchar(5) CHECK (VALUE IN ('a', 'b'))",
        "CREATE DOMAIN shop.code AS varchar(5) CHECK (VALUE IN ('a', 'c'))",
    ),
    ("CREATE SEQUENCE shop.seq INCREMENT 5", "CREATE SEQUENCE shop.seq"),
    ("CREATE FUNCTION shop.f() RETURNS int RETURN 1", "CREATE FUNCTION shop.f() RETURNS int RETURN 2"),
    (
        "CREATE VIEW shop.v AS SELECT id FROM shop.child WHERE note::varchar IN ('a', 'b')",
        "CREATE VIEW shop.v AS SELECT id FROM shop.child WHERE note::varchar IN ('a', 'c')",
    ),
]


@pytest.mark.parametrize("captured", [True, False])
def test_what_is_the_same_by_both_dumps_was_carried_whoever_did_it(
    shop: Make, monkeypatch: pytest.MonkeyPatch, captured: bool
) -> None:
    monkeypatch.setattr(schema_guard, "NAMED", 20)
    move = shop(**(UNCAPTURED if not captured else {}))
    do(move.source, "CREATE FUNCTION shop.g() RETURNS int RETURN 1")
    move.run_all(until="verify")
    unseen = "SET pgddl.skip = on"  # as what the scope leaves out
    do(move.source, unseen, *(made for made, _ in BY_HAND), "DROP FUNCTION shop.g()")
    do(move.target, *(other for _, other in BY_HAND if other))
    refusal = str(move.refused("swap", PreflightRefused))
    for made, _ in BY_HAND:
        assert f"new: {' '.join(made.split()[:3])}" in refusal
    assert "gone: CREATE FUNCTION shop.g()" in refusal
    drop = (
        "DROP VIEW shop.v; DROP SEQUENCE shop.seq; DROP TYPE shop.size; DROP DOMAIN shop.code; DROP FUNCTION shop.f()"
    )
    do(move.target, drop, *(made for made, _ in BY_HAND), "DROP FUNCTION shop.g()")
    move.run("swap")
    assert diff_catalogs(catalog_lines(move.source), catalog_lines(move.target)) == []


def test_a_schema_that_came_with_an_event_is_cut_over(shop: Make) -> None:
    move = shop(tables={"include": ["*.*"]}, ddl={"scope": "everything"})
    move.run_all(until="snapshot")
    do(move.source, "CREATE SCHEMA late", "CREATE TABLE late.t (id int PRIMARY KEY)", "INSERT INTO late.t VALUES (1)")
    move.run_all(after="snapshot", until="swap")
    assert differences(move.source, move.target) == []
    assert diff_catalogs(catalog_lines(move.source), catalog_lines(move.target)) == []


def test_what_others_have_on_the_target_is_not_asked_for(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    """By a role that may not read it, at which pg_dump would give up."""
    database = one(target_dsn, "SELECT current_database()")
    role = f"mover_of_{database}"
    mine = f"CREATE ROLE {role} LOGIN PASSWORD 'moves'"
    do(source_dsn, SHOP, mine, *(f"ALTER {what} OWNER TO {role}" for what in OWNED))
    do(target_dsn, mine, f"ALTER DATABASE {database} OWNER TO {role}", "CREATE SCHEMA theirs")
    do(target_dsn, "CREATE TABLE theirs.t (id int)", "CREATE TABLE hidden (id int)")
    try:
        limited = make_conninfo(target_dsn, user=role, password="moves")
        move = lifecycle(source_dsn, limited, tables={"include": ["shop.*"]}, **SMALL, **UNCAPTURED)
        move.run_all(until="verify")
        do(source_dsn, "CREATE SEQUENCE shop.seq", f"ALTER SEQUENCE shop.seq OWNER TO {role}")
        assert "CREATE SEQUENCE shop.seq" in str(move.refused("swap", PreflightRefused))
        do(limited, "CREATE SEQUENCE shop.seq")
        move.run("swap")
    finally:
        for dsn in (source_dsn, target_dsn):
            do(dsn, f"REASSIGN OWNED BY {role} TO CURRENT_USER", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


OWNED = ("SCHEMA shop", "TABLE shop.parent", "TABLE shop.child")


def test_what_an_applied_event_was_about_has_arrived_only_as_the_target_shows_it(shop: Make) -> None:
    move = shop()
    move.run_all(until="verify")
    do(move.source, "CREATE VIEW shop.v AS SELECT id FROM shop.child", "CREATE FUNCTION shop.f() RETURNS int RETURN 1")
    move.run("replay")
    change = ["CREATE OR REPLACE VIEW shop.v AS SELECT id FROM shop.child WHERE id > 5",
              "CREATE OR REPLACE FUNCTION shop.f() RETURNS int RETURN 2"]  # fmt: skip
    do(move.source, "SET pgddl.skip = on", *change)
    refusal = str(move.refused("swap", PreflightRefused))
    assert "CREATE VIEW shop.v" in refusal
    assert "CREATE FUNCTION shop.f()" in refusal
    do(move.target, *change)
    move.run("swap")
    assert diff_catalogs(catalog_lines(move.source), catalog_lines(move.target)) == []


# What one server prints otherwise than another, or than itself after a restore, among it.
OF_EVERY_KIND = """
    CREATE DOMAIN shop.dn AS int NOT NULL;
    CREATE DOMAIN shop.dc AS varchar(3) COLLATE "C" DEFAULT 'a' CONSTRAINT named CHECK (VALUE IN ('a','b')) NOT
        NULL;
    CREATE TYPE shop.rng AS RANGE (subtype = float8);
    CREATE TYPE shop.comp AS (a int, b varchar(3), c shop.dn);
    CREATE AGGREGATE shop.agg(int) (SFUNC = int4pl, STYPE = int, INITCOND = '0');
    CREATE PROCEDURE shop.proc(INOUT a int DEFAULT 3) LANGUAGE plpgsql AS $$ BEGIN a := 1; END $$;
    CREATE FUNCTION shop.fb(x int, VARIADIC y text[]) RETURNS TABLE (a int, b text) LANGUAGE sql STABLE PARALLEL
        SAFE COST 7 ROWS 9 SET search_path = shop, public BEGIN ATOMIC SELECT id, note FROM shop.child WHERE id
        IN (1, x) AND note::varchar IN ('a','b'); END;
    CREATE FUNCTION shop.fw(shop.child) RETURNS int LANGUAGE sql AS 'SELECT 1';
    CREATE VIEW shop.v1 WITH (security_barrier) AS SELECT c.id, p.name FROM shop.child c JOIN shop.parent p ON
        p.id = c.parent WHERE c.note::varchar IN ('a','b') ORDER BY c.id;
    CREATE VIEW shop.v2 AS SELECT id, max(parent) OVER w FROM shop.child WINDOW w AS (PARTITION BY note ORDER BY
        id) ;
    CREATE VIEW shop.v3 AS SELECT * FROM shop.v1 UNION SELECT id, note FROM shop.child EXCEPT SELECT 1, 'x'
        ORDER BY 1;
    CREATE VIEW shop.v4 AS WITH RECURSIVE r AS (SELECT id FROM shop.child WHERE id = 1 UNION ALL SELECT r.id + 1
        FROM r WHERE r.id < 5) SELECT r.id, (SELECT count(*) FROM shop.child c WHERE c.id = r.id) AS n FROM r;
    CREATE VIEW shop.v5 AS SELECT child.* FROM shop.child WHERE (id, parent) IN (SELECT id, id FROM shop.parent)
        LIMIT 5;
    CREATE VIEW shop.v6 AS SELECT shop.fw(c) AS f, c FROM shop.child c;
    CREATE VIEW shop.v7 AS SELECT id AS k, note FROM shop.child GROUP BY id, note HAVING count(*) > 0 ORDER BY k
        DESC, note;
    CREATE VIEW shop.v8 AS SELECT DISTINCT ON (note) note, id FROM shop.child ORDER BY note, id;
    CREATE VIEW shop.v9 AS SELECT id, note FROM shop.child WITH CASCADED CHECK OPTION;
    CREATE VIEW shop.v10 AS SELECT x.id, u.n FROM shop.child x, unnest(ARRAY[x.id, 2]) WITH ORDINALITY u(e, n);
    CREATE MATERIALIZED VIEW shop.m1 AS SELECT id FROM shop.child WHERE note::varchar IN ('a','b');
    CREATE SEQUENCE shop.sq AS smallint START 5 CYCLE;
    CREATE TABLE shop.newt (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, d shop.dn, s varchar(3) DEFAULT 'x'
        CHECK (s IN ('a','x')), g bool GENERATED ALWAYS AS (s IN ('a')) STORED);
    ALTER TYPE shop.comp ADD ATTRIBUTE z int;
    CREATE OR REPLACE VIEW shop.v2 AS SELECT id, max(parent) OVER w, 3 AS three FROM shop.child WINDOW w AS
        (PARTITION BY note ORDER BY id);
    ALTER TABLE shop.child RENAME note TO remark;
"""


def test_what_came_by_events_is_the_same_by_both_dumps(
    pg15: Cluster, pg18: Cluster, database: Database, lifecycle: Make
) -> None:
    source, target = database(pg15), database(pg18)
    do(source, SHOP)
    tags = ["DOMAIN", "TYPE", "AGGREGATE", "PROCEDURE", "FUNCTION", "VIEW", "MATERIALIZED VIEW", "SEQUENCE", "TABLE"]
    follow = {"scope": "everything", "create_tags": [*(f"CREATE {tag}" for tag in tags), "ALTER TYPE", "ALTER TABLE"]}
    move = lifecycle(source, target, tables={"include": ["shop.*"]}, ddl=follow, **SMALL)
    move.run_all(until="verify")
    do(source, *OF_EVERY_KIND.strip().split(";\n"))
    assert not move.run("replay").blocked
    assert move.run("swap").state == "done"
    assert differences(source, target) == []


def test_a_change_between_the_dump_and_the_lock_is_swapped_too(rewrite: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    move = rewrite()
    move.run_all(until="verify")
    after_each(monkeypatch, SchemaGuard, "refuse_changed", once("CREATE INDEX late ON items (code)", dsn=move.source))
    move.run("swap")
    assert type_of_id(move) == "bigint"
    assert one(move.source, "SELECT 'items'::regclass = indrelid FROM pg_index WHERE indexrelid = 'late'::regclass")


def test_a_change_between_the_dump_and_the_cut_over_is_cut_over_too(
    shop: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = shop(swap={"fence": "read_only"})
    move.run_all(until="verify")
    late = once("CREATE SEQUENCE shop.seq", "SELECT setval('shop.seq', 77)", dsn=move.source)
    after_each(monkeypatch, SchemaGuard, "refuse_changed", late)
    move.run("swap")
    assert one(move.target, "SELECT nextval('shop.seq')") == 78


def test_uncaptured_a_change_between_the_dump_and_the_lock_is_seen_in_place(
    rewrite: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = rewrite(**UNCAPTURED)
    move.run_all(until="verify")
    after_each(monkeypatch, SchemaGuard, "refuse_changed", once("CREATE INDEX late ON items (code)", dsn=move.source))
    assert "CREATE INDEX late" in str(move.refused("swap", PreflightRefused))
    assert type_of_id(move) == "integer"


def test_uncaptured_a_change_between_the_dump_and_the_cut_over_is_seen(
    shop: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = shop(swap={"fence": "read_only"}, **UNCAPTURED)
    move.run_all(until="verify")
    after_each(monkeypatch, SchemaGuard, "refuse_changed", once("CREATE SEQUENCE shop.seq", dsn=move.source))
    assert "CREATE SEQUENCE shop.seq" in str(move.refused("swap", PreflightRefused))
    assert not has_cut_over(move)
    do(move.source, "UPDATE shop.child SET note = 'the fence is down' WHERE id = 1")


RICH = """
    CREATE TYPE mood AS ENUM ('sad', 'ok');
    CREATE DOMAIN age AS int;
    CREATE TABLE items (
        id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, serial serial,
        code text CONSTRAINT short CHECK (code <> ''));
    CREATE INDEX by_code ON items (lower(code));
    CREATE STATISTICS together ON id, code FROM items;
    CREATE POLICY mine ON items;
    CREATE RULE ignored AS ON INSERT TO items WHERE false DO NOTHING;
    CREATE TRIGGER own BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
    CREATE TABLE parent (id int);
    CREATE FUNCTION f(int) RETURNS int LANGUAGE sql AS 'SELECT $1';
    CREATE OPERATOR FAMILY family USING btree;
    CREATE FOREIGN DATA WRAPPER wrapper;
    CREATE TEXT SEARCH CONFIGURATION config (COPY = simple)
"""

# Changes of a table or of what belongs to it.
OF_THE_TABLE = """
    ALTER TABLE items SET (fillfactor = 50)
    ALTER TABLE items SET (toast.autovacuum_enabled = false)
    ALTER TABLE items ALTER code SET STATISTICS 10
    ALTER TABLE items ALTER code SET DEFAULT 'x'
    ALTER TABLE items ENABLE ALWAYS RULE ignored
    ALTER TABLE items DISABLE TRIGGER own
    ALTER TABLE items CLUSTER ON by_code
    ALTER TABLE items REPLICA IDENTITY FULL
    ALTER TABLE items INHERIT heritage
    ALTER TABLE items RENAME CONSTRAINT short TO shorter
    ALTER INDEX by_code RENAME TO by_lower_code
    ALTER INDEX by_lower_code SET (fillfactor = 50)
    ALTER INDEX by_lower_code ALTER COLUMN 1 SET STATISTICS 10
    ALTER SEQUENCE items_id_seq INCREMENT 5
    ALTER POLICY mine ON items TO pg_monitor
    ALTER STATISTICS together SET STATISTICS 10
    GRANT SELECT ON items TO pg_monitor
    GRANT SELECT (code) ON items TO pg_monitor
    GRANT USAGE ON SEQUENCE items_id_seq TO pg_monitor
    COMMENT ON TABLE items IS 'a word'
    COMMENT ON COLUMN items.code IS 'a word'
    COMMENT ON INDEX by_lower_code IS 'a word'
    COMMENT ON CONSTRAINT shorter ON items IS 'a word'
    COMMENT ON TRIGGER own ON items IS 'a word'
    COMMENT ON RULE ignored ON items IS 'a word'
    COMMENT ON POLICY mine ON items IS 'a word'
    COMMENT ON STATISTICS together IS 'a word'
    COMMENT ON SEQUENCE items_id_seq IS 'a word'
"""

# Changes of anything else that a cut-over carries over.
OF_ANYTHING = """
    ALTER TYPE mood ADD VALUE 'happy'
    ALTER DOMAIN age ADD CONSTRAINT grown CHECK (VALUE > 0)
    ALTER DOMAIN age SET DEFAULT 1
    COMMENT ON TYPE mood IS 'a word'
    COMMENT ON CONSTRAINT grown ON DOMAIN age IS 'a word'
    COMMENT ON FUNCTION f(int) IS 'a word'
    ALTER FUNCTION f(int) COST 5
    CREATE AGGREGATE many(int) (SFUNC = int4pl, STYPE = int)
    CREATE TYPE pair AS (a int, b int)
    ALTER TYPE pair ADD ATTRIBUTE c int
    CREATE CAST (mood AS int) WITH INOUT
    CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq)
    ALTER OPERATOR FAMILY family USING btree ADD OPERATOR 1 <(int, int), FUNCTION 1 btint4cmp(int, int)
    CREATE OPERATOR CLASS class FOR TYPE int USING btree FAMILY family AS STORAGE int
    CREATE COLLATION simple FROM "C"
    CREATE TEXT SEARCH DICTIONARY words (TEMPLATE = simple)
    ALTER TEXT SEARCH CONFIGURATION config ALTER MAPPING FOR word WITH words
    CREATE CONVERSION conversion FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8
    CREATE SERVER server FOREIGN DATA WRAPPER wrapper
    CREATE USER MAPPING FOR PUBLIC SERVER server
    CREATE FOREIGN TABLE far (id int) SERVER server
    ALTER FOREIGN TABLE far OPTIONS (ADD name 'x')
    CREATE EVENT TRIGGER watch ON ddl_command_end WHEN TAG IN ('CREATE POLICY') EXECUTE FUNCTION noticed()
    ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO pg_monitor
    GRANT USAGE ON SCHEMA public TO pg_monitor
    CREATE SCHEMA another
    COMMENT ON SCHEMA another IS 'a word'
    CREATE VIEW seen AS SELECT 1 AS n
    CREATE OR REPLACE VIEW seen AS SELECT 2 AS n
    CREATE MATERIALIZED VIEW kept AS SELECT 1 AS n
    CREATE TRANSFORM FOR int LANGUAGE sql (FROM SQL WITH FUNCTION prsd_lextype(internal))
    DROP EXTENSION plpgsql CASCADE
"""


def digest(conn: psycopg.Connection[Any], oids: list[int] | None) -> str:
    row = conn.execute(queries("catalog")["schema_digest"], {"oids": oids, "out": []}).fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize("in_place", [True, False])
def test_the_digest_sees_whatever_a_dump_would(target_dsn: str, in_place: bool) -> None:
    do(
        target_dsn,
        RICH,
        "CREATE TABLE heritage ()",
        "CREATE FUNCTION noticed() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'",
    )
    oids = [one(target_dsn, "SELECT 'items'::regclass::oid")] if in_place else None
    unseen = []
    with psycopg.connect(target_dsn, autocommit=True) as conn:
        for change in (OF_THE_TABLE if in_place else OF_THE_TABLE.rstrip() + OF_ANYTHING).strip().splitlines():
            before = digest(conn, oids)
            conn.execute(change.encode())
            if digest(conn, oids) == before:
                unseen.append(change.strip())
        assert unseen == []
        before = digest(conn, oids)
        conn.execute("INSERT INTO items (code) SELECT 'c' || n FROM generate_series(1, 500) n")
        for statement in ("VACUUM FULL items", "ANALYZE", "TRUNCATE items", "SELECT nextval('items_id_seq')"):
            conn.execute(statement.encode())
        conn.execute("CREATE TEMPORARY TABLE mine (id int PRIMARY KEY)")
        assert digest(conn, oids) == before


# --- one change log, one journal --------------------------------------------------------------------------------------


def test_a_name_belongs_to_one_target(shop: Make, pg18: Cluster, database: Database, lifecycle: Make) -> None:
    move = shop()
    move.run_all(until="backfill")
    other = lifecycle(move.source, database(pg18), tables={"include": ["shop.*"]}, **SMALL)
    other.content["pipeline"] = move.name
    assert "captures on this source for another target" in str(other.refused("setup", UsageError))
    assert left_behind(other.target) == []
    with pytest.raises(UsageError, match="captures on this source for another target"):
        reset(other)
    do(
        move.source,
        "UPDATE shop.child SET note = 'still captured' WHERE id < 9",
        "DELETE FROM shop.parent WHERE id = 3",
    )
    move.run_all(after="backfill", until="swap")
    assert differences(move.source, move.target) == []


# --- the fence --------------------------------------------------------------------------------------------------------


def fenced(pipeline: Lifecycle) -> bool:
    try:
        do(pipeline.source, "UPDATE shop.parent SET name = name || '.' WHERE id = 1")
    except pg.ReadOnlySqlTransaction:
        return True
    return False


END_SESSIONS = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE application_name LIKE %s"


class Killed(BaseException):
    """What a process that is killed does next: nothing."""


def test_a_swap_that_is_killed_behind_its_fence_is_begun_anew(shop: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    move = shop(swap={"fence": "read_only"}, ddl={"tags": "pgl_ddl_deploy"})
    move.run_all(until="verify")

    def kill(number: int) -> None:
        if number == 1:
            for dsn in (move.source, move.target):
                one(dsn, END_SESSIONS, f"pgddl:{move.name}:%")
            raise Killed

    before_each(monkeypatch, across, "_make_ready", kill)
    with monkeypatch.context() as dead:
        dead.setattr(across, "_certainly_not_cut_over", lambda _: False)
        with pytest.raises(Killed):
            move.run("swap")
    assert fenced(move)
    do(move.source, "CREATE DOMAIN shop.beyond_the_tags AS int")
    assert "new: CREATE DOMAIN shop.beyond_the_tags" in str(move.refused("swap", PreflightRefused))
    assert not fenced(move)
    do(move.source, "DROP DOMAIN shop.beyond_the_tags")
    move.run("swap")
    assert fenced(move)
    assert differences(move.source, move.target) == []


def test_the_fence_stays_up_where_the_answer_to_the_commit_was_lost(
    shop: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = shop(swap={"fence": "read_only"})
    move.run_all(until="verify")

    def lose(number: int) -> None:
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as losing:
        after_each(losing, across, "_make_ready", lose)
        move.refused("swap")
    assert has_cut_over(move)
    assert fenced(move)
    assert differences(move.source, move.target) == []
    move.run_all(after="verify")
    assert fenced(move)


def test_the_fence_stays_up_while_the_commit_may_still_happen(shop: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is gone, and the server is still at work on the commit."""
    move = shop(swap={"fence": "read_only"})
    move.run_all(until="verify")
    note = f"UPDATE pgddl.pipelines SET cut_over_at = now() WHERE pipeline = '{move.name}'"
    at_work = threading.Event()
    with psycopg.connect(move.target) as server:

        def lose(*_: object) -> None:
            server.execute(note.encode())
            at_work.set()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(across, "_make_ready", lose)
        with Underway(lambda: move.refused("swap")) as swapping:
            wait_for(at_work.is_set, swapping)
            waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid)))"
            wait_for(lambda: one(move.target, waiting, server.info.backend_pid), swapping)
            server.commit()
    assert fenced(move)


def test_tries_behind_a_fence_open_no_sessions_of_their_own(shop: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    move = shop(swap={"fence": "read_only"})
    move.run_all(until="verify")
    counts = []

    def disturb(number: int) -> None:
        counts.append((sessions(move, move.source), sessions(move, move.target)))
        do(move.source, *(["CREATE SEQUENCE shop.seq", "DROP SEQUENCE shop.seq"] if number < 5 else []))
        if number < 5:
            raise readiness.NotYet("disturbed")

    before_each(monkeypatch, across, "_make_ready", disturb)
    move.run("swap")
    assert len(counts) == 5
    assert set(counts[1:]) == {counts[1]}


def test_a_subscription_that_would_write_behind_the_fence_is_refused(
    shop: Make, pg16: Cluster, database: Database
) -> None:
    """Apply workers fire no statement trigger, so no fence stops them."""
    move = shop(swap={"fence": "read_only"})
    publisher = database(pg16)
    do(
        publisher,
        SHOP,
        "CREATE PUBLICATION p FOR TABLE shop.parent",
        "SELECT pg_create_logical_replication_slot('pgddl_test', 'pgoutput')",
    )
    options = "slot_name = pgddl_test, create_slot = false, copy_data = false"
    do(move.source, f"CREATE SUBSCRIPTION upstream CONNECTION '{publisher}' PUBLICATION p WITH ({options})")
    try:
        move.run_all(until="verify")
        assert "subscription upstream writes into it" in str(move.refused("swap", PreflightRefused))
        assert not fenced(move)
        do(publisher, "UPDATE shop.parent SET name = 'upstream' WHERE id = 2")
        wait_for(lambda: one(move.source, "SELECT name FROM shop.parent WHERE id = 2") == "upstream")
        do(move.source, "ALTER SUBSCRIPTION upstream DISABLE")
        wait_for(
            lambda: one(move.source, "SELECT count(pid) FROM pg_stat_subscription WHERE subname = 'upstream'") == 0
        )
        move.run("swap")
        assert fenced(move)
        assert differences(move.source, move.target) == []
    finally:
        for end in ("DISABLE", "SET (slot_name = NONE)"):
            do(move.source, f"ALTER SUBSCRIPTION upstream {end}")
        do(move.source, "DROP SUBSCRIPTION upstream")


# --- cleanup ----------------------------------------------------------------------------------------------------------


def test_a_write_between_cleanups_count_and_its_lock_is_not_lost(shop: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    move = shop()
    move.run_all(until="swap")
    with monkeypatch.context() as late:
        after_each(late, cleanup, "refuse_late_changes", once("DELETE FROM shop.parent WHERE id = 4", dsn=move.source))
        assert "shop.parent: 1" in str(move.refused("cleanup", StageFailed))
    log = log_of(move, "parent")
    assert move.on_source(f"SELECT op::text, old_1 FROM {log}") == [("D", 4)]
    do(move.target, "DELETE FROM shop.parent WHERE id = 4")
    remedy = move.refused("cleanup", StageFailed).sql
    assert remedy
    do(move.source, remedy)
    assert move.run("cleanup").state == "done"
    assert left_behind(move.source) == []


def test_a_write_into_the_table_that_was_replaced_is_not_lost(rewrite: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    move = rewrite()
    stale = "UPDATE pgddl_old_public.items SET code = 'stale' WHERE id = 7"
    move.run_all(until="swap")
    do(move.source, stale)
    remedy = move.refused("cleanup", StageFailed).sql
    assert remedy
    assert one(move.source, "SELECT code FROM pgddl_old_public.items WHERE id = 7") == "stale"
    do(move.source, remedy)
    with monkeypatch.context() as late:
        after_each(late, cleanup, "refuse_late_changes", once(stale, dsn=move.source))
        move.refused("cleanup", StageFailed)
    do(move.source, remedy)
    # What comes later than that finds no table any more.
    unseen = []

    def too_late(number: int) -> None:
        try:
            do(move.source, stale)
        except pg.UndefinedTable:
            return
        unseen.append(number)

    after_each(monkeypatch, cleanup, "stop_capture", too_late)
    move.run("cleanup")
    assert unseen == []
    assert left_behind(move.source) == ["schema pgddl"]


def test_a_cleanup_that_is_killed_at_its_end_is_finished_by_the_next(
    shop: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = shop()
    move.run_all(until="swap")

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(cleanup, "forget_capture", kill)
        with pytest.raises(Killed):
            move.run("cleanup")
    assert left_behind(move.source) != []
    assert move.run("cleanup").state == "nothing_to_do"
    assert left_behind(move.source) == []


# --- the swap in place waits for others -------------------------------------------------------------------------------


def test_a_swap_that_waits_opens_no_more_sessions(rewrite: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    move = rewrite(swap={"lock_timeout": "10ms"})
    move.run_all(until="verify")
    counts = []
    with in_transaction(move.source, "SELECT count(*) FROM items") as reader:

        def count(number: int) -> None:
            counts.append(sessions(move, move.source))
            if number == 8:
                reader.commit()

        before_each(monkeypatch, exchange, "lock_all", count)
        move.run("swap")
    assert len(counts) >= 8
    assert set(counts[1:]) == {counts[1]}


SIGNALLED = "SELECT signal, pid, succeeded FROM pgddl.killed_blockers ORDER BY id"


def test_who_has_been_in_the_way_for_long_is_signalled_where_that_is_asked_for_and_nobody_else(rewrite: Make) -> None:
    move = rewrite(swap={"signal_blockers": "cancel_then_terminate"})
    do(move.source, "CREATE TABLE elsewhere (id int)", "INSERT INTO elsewhere VALUES (1)")
    move.run_all(until="verify")
    uses, over, expected = [0], threading.Event(), []

    def use() -> None:
        """The table's users, whose short transactions are in the way of many a try."""
        with psycopg.connect(move.source) as conn:
            while not over.is_set():
                conn.execute("SELECT count(*), pg_sleep(0.02) FROM items")
                conn.commit()
                uses[0] += 1

    held_elsewhere = ["UPDATE elsewhere SET id = 2", "SELECT pg_advisory_lock(7)"]
    with in_transaction(move.source, *held_elsewhere) as other, Underway(use) as using:
        for stage, becomes in (("swap", "bigint"), ("revert", "integer")):
            with psycopg.connect(move.source) as reader:
                pid = reader.info.backend_pid
                reader.execute("SELECT count(*) FROM items")
                wait_for(lambda n=uses[0]: uses[0] > n + 3, using)
                move.run(stage)
                with pytest.raises(psycopg.OperationalError):
                    reader.execute("SELECT")
            expected += [("cancel", pid, True), ("terminate", pid, True)]
            assert type_of_id(move) == becomes
        over.set()
        using.finish()
        other.commit()
    assert move.journal(SIGNALLED) == expected


def test_nobody_is_signalled_where_that_is_not_asked_for(rewrite: Make) -> None:
    move = rewrite()
    move.run_all(until="verify")
    with in_transaction(move.source, "SELECT count(*) FROM items") as reader:
        assert move.refused("swap", swap={"retries": 5}).retryable
        assert reader.execute("SELECT count(*) FROM items").fetchone() == (60,)
    assert move.journal(SIGNALLED) == []
    assert type_of_id(move) == "integer"


def test_the_swap_waits_for_a_transaction_with_an_older_snapshot(
    rewrite: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = rewrite()
    do(move.source, "CREATE TABLE elsewhere (id int)")
    move.run_all(until="verify")
    tries = before_each(monkeypatch, exchange, "wait_out_old_snapshots", lambda _: None)
    older = ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM elsewhere"]
    with in_transaction(move.source, *older) as reader, Underway(lambda: move.run("swap")) as swapping:
        do(move.source, "INSERT INTO items VALUES (1001, 'newer')")
        # It stays idle: one that comes to the table while a try holds the lock, younger than a second, is not told from
        # an application's own short transactions, and may find the new table.
        wait_for(lambda: len(tries) > 3, swapping)
        assert type_of_id(move) == "integer"
        reader.commit()
        assert swapping.finish().state == "done"
    assert type_of_id(move) == "bigint"
    assert one(move.source, "SELECT count(*) FROM items") == 61


# --- killed right behind its commit -----------------------------------------------------------------------------------


def test_views_are_filled_and_keys_validated_though_the_swap_was_killed(
    shop: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = shop()
    do(
        move.source,
        "CREATE MATERIALIZED VIEW shop.numbers AS SELECT count(*) AS n FROM shop.child",
        "CREATE MATERIALIZED VIEW shop.doubled AS SELECT 2 * n AS n FROM shop.numbers",
        "CREATE MATERIALIZED VIEW shop.unfilled AS SELECT 1 AS n WITH NO DATA",
    )
    move.run_all(until="verify")

    def kill(context: object) -> int:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(swap, "follow_up", kill)
        with pytest.raises(Killed):
            move.run("swap")
    assert has_cut_over(move)
    assert "has not been finished" in str(move.refused("cleanup", UsageError))
    move.run("swap")
    assert one(move.target, "SELECT n FROM shop.doubled") == 120
    assert one(move.target, "SELECT relispopulated FROM pg_class WHERE relname = 'unfilled'") is False
    assert one(move.target, "SELECT bool_and(convalidated) FROM pg_constraint WHERE contype = 'f'") is True
    assert move.run("cleanup").state == "done"


BROKEN = """
    CREATE TABLE p (id int PRIMARY KEY);
    CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p, note text);
    CREATE TABLE d (id int PRIMARY KEY, p int REFERENCES p);
    CREATE TABLE e (id int PRIMARY KEY, p int);
    ALTER TABLE e ADD FOREIGN KEY (p) REFERENCES p NOT VALID;
    CREATE MATERIALIZED VIEW mv AS SELECT count(*) AS n FROM c;
    CREATE MATERIALIZED VIEW most AS SELECT 100 / min(id) AS n FROM d;
    INSERT INTO p VALUES (1);
    SET session_replication_role = replica;
    INSERT INTO c VALUES (1, 5, 'secret');
    INSERT INTO d VALUES (1, 1)
"""


@pytest.mark.parametrize("in_place", [True, False])
def test_a_foreign_key_that_rows_violate_already_keeps_nothing_else_from_its_end(
    source_dsn: str, target_dsn: str, lifecycle: Make, capfd: pytest.CaptureFixture[str], in_place: bool
) -> None:
    do(source_dsn, BROKEN)
    do(source_dsn, "REFRESH MATERIALIZED VIEW most", "UPDATE d SET id = 0")  # a view that cannot be filled any more
    if in_place:
        rewrite: dict[str, Any] = {f"public.{name}": {} for name in "pcde"}
        move = lifecycle(source_dsn, rewrite=rewrite, swap={"recreate_materialized_views": True}, **SMALL)
        do(source_dsn, "DROP MATERIALIZED VIEW most")  # in place it is filled under the swap's locks
    else:
        move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)
    dsn = move.target
    findings = stages.check(load_pipeline(move.content), source_dsn, dsn)["findings"]
    found = [f for f in findings if f["code"] == "foreign_key"]
    assert [(f["severity"], f["table"]) for f in found] == [("warning", "public.c"), ("warning", "public.e")]
    assert one(source_dsn, f"SELECT (x).p FROM ({found[0]['fix'].split(';')[0]}) x") == 5
    move.run_all(until="verify")
    swapped = move.run("swap")
    assert (swapped.state, swapped.exit_code) == ("done", EXIT_BLOCKED)
    told = {entry["table"]: entry["reason"] for entry in swapped.blocked}
    assert told.keys() == ({"public.c"} if in_place else {"public.c", "public.most"})
    assert "c_p_fkey" in told["public.c"] and "Key (p)=(5) is not present" in told["public.c"]
    assert 'ALTER TABLE "public"."c" VALIDATE CONSTRAINT "c_p_fkey";' in told["public.c"]
    assert "secret" not in str(told) + capfd.readouterr().out
    assert one(dsn, "SELECT n FROM mv") == 1
    valid = "SELECT convalidated FROM pg_constraint WHERE contype = 'f' AND conrelid = %s::regclass"
    assert [one(dsn, valid, f"public.{table}") for table in "cde"] == [False, True, False]

    again = move.run("swap")
    assert (again.state, again.exit_code, list(again.blocked)) == ("nothing_to_do", EXIT_BLOCKED, list(swapped.blocked))
    do(dsn, "UPDATE d SET id = 1", "DELETE FROM c")
    assert (move.run("swap").exit_code, one(dsn, valid, "public.c")) == (EXIT_DONE, True)
    assert in_place or one(dsn, "SELECT n FROM most") == 100
    assert move.run("swap").state == "nothing_to_do"
    assert move.run("cleanup").state == "done"


# Partitions of two levels, one of which has a key of its own, and another something that is called like the root's.
PARTITIONED = """
    CREATE TABLE p (id int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
    CREATE TABLE p_1 PARTITION OF p DEFAULT;
    CREATE TABLE q (id int PRIMARY KEY);
    CREATE TABLE c (id int PRIMARY KEY, p int, note text) PARTITION BY RANGE (id);
    CREATE TABLE c_1 PARTITION OF c FOR VALUES FROM (0) TO (10);
    CREATE TABLE c_2 PARTITION OF c FOR VALUES FROM (10) TO (30) PARTITION BY RANGE (id);
    CREATE TABLE c_21 PARTITION OF c_2 FOR VALUES FROM (10) TO (20);
    CREATE TABLE c_22 PARTITION OF c_2 FOR VALUES FROM (20) TO (30);
    CREATE TABLE empty (id int PRIMARY KEY REFERENCES q) PARTITION BY RANGE (id);
    ALTER TABLE c_1 ADD CONSTRAINT own FOREIGN KEY (p) REFERENCES q;
    ALTER TABLE c_22 ADD CONSTRAINT c_p_fkey CHECK (id > 0);
    ALTER TABLE c ADD CONSTRAINT c_p_fkey FOREIGN KEY (p) REFERENCES p ON DELETE CASCADE DEFERRABLE;
    COMMENT ON CONSTRAINT c_p_fkey ON c IS 'to p';
    CREATE MATERIALIZED VIEW mv AS SELECT count(*) AS n FROM c;
    INSERT INTO p VALUES (1);
    INSERT INTO q VALUES (1), (5);
    SET session_replication_role = replica;
    INSERT INTO c VALUES (1, 5, 'secret'), (11, 1, ''), (21, 1, '')
"""


def test_before_18_a_foreign_key_of_partitions_that_rows_violate_already_keeps_nothing_from_its_end(
    pg16: Cluster, database: Database, lifecycle: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    """C23: no row is read while the fence is up, and the violated key is left to a person."""
    source, dsn = database(pg16), database(pg16)
    do(source, PARTITIONED)
    move = lifecycle(source, dsn, tables={"include": ["public.*"]}, swap={"fence": "read_only"}, **SMALL)
    findings = stages.check(load_pipeline(move.content), source, dsn)["findings"]
    assert [(f["severity"], f["table"]) for f in findings if "foreign_key" in f["code"]] == [("warning", "public.c")]
    move.run_all(until="verify")
    swapped = move.run("swap")
    assert (swapped.state, swapped.exit_code) == ("done", EXIT_BLOCKED)
    told = {entry["table"]: entry["reason"] for entry in swapped.blocked if "COMMENT" not in entry["reason"]}
    assert told.keys() == {"public.c_1", "public.c"}
    assert "c_p_fkey" in told["public.c_1"] and "Key (p)=(5) is not present" in told["public.c_1"]
    assert 'ALTER TABLE "public"."c_1" VALIDATE CONSTRAINT "c_p_fkey";' in told["public.c_1"]
    assert "c_p_fkey is NOT VALID on its partition public.c_1" in told["public.c"]
    assert "secret" not in str(told) + capfd.readouterr().out
    assert one(dsn, "SELECT n FROM mv") == 3
    with pytest.raises(pg.ForeignKeyViolation):
        do(dsn, "INSERT INTO c VALUES (12, 77)")
    valid = "SELECT bool_and(convalidated) FROM pg_constraint WHERE contype = 'f' AND conrelid = %s::regclass"
    valid += " AND conparentid = 0"
    tables = ("c_1", "c_21", "c_22", "empty")
    assert [one(dsn, valid, f"public.{table}") for table in tables] == [False, True, True, True]

    again = move.run("swap")
    assert (again.state, again.exit_code, list(again.blocked)) == ("nothing_to_do", EXIT_BLOCKED, list(swapped.blocked))
    do(dsn, "DELETE FROM c WHERE p = 5")
    assert move.run("swap").exit_code == EXIT_DONE
    adopted = "SELECT array_agg(DISTINCT conrelid::regclass::text) FROM pg_constraint WHERE contype = 'f'"
    assert one(dsn, adopted + " AND conparentid <> 0 AND conrelid <> 'c'::regclass") == ["c_1", "c_2", "c_21", "c_22"]
    assert diff_catalogs(catalog_lines(source), catalog_lines(dsn)) == []
    assert move.run("cleanup").state == "done"


@pytest.mark.parametrize("answer", ["none", "dropped"])
def test_a_key_that_stays_not_valid_holds_cleanup_up_no_longer(shop: Make, answer: str) -> None:
    move = shop()
    do(move.source, "SET session_replication_role = replica", "INSERT INTO shop.child VALUES (99, 99, 'nobody')")
    move.run_all(until="verify")
    assert move.run("swap").exit_code == EXIT_BLOCKED
    if answer == "dropped":
        do(move.target, "ALTER TABLE shop.child DROP CONSTRAINT child_parent_fkey")
        assert move.run("swap").exit_code == EXIT_DONE
    assert move.run("cleanup").state == "done"


def test_tables_that_are_rewritten_once_each_are_no_table_that_never_rests(
    source_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(backfill.RESTARTS + 1)]
    for name in names:
        do(source_dsn, f"CREATE TABLE {name} AS SELECT n AS id FROM generate_series(1, 50) n")
        do(source_dsn, f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
    move = lifecycle(source_dsn, rewrite={f"public.{name}": {} for name in names}, **SMALL)
    move.run_all(until="snapshot")
    left, copy = [t.id for t in Journal(connect(source_dsn, purpose="test"), move.name).tables.of(1)], backfill._copy

    def one_more_is_rewritten(context: Context, tables: Sequence[TableRow]) -> list[ShareDone]:
        return [replace(done, rewritten=(left.pop(),) if left else ()) for done in copy(context, tables)]

    monkeypatch.setattr(backfill, "_copy", one_more_is_rewritten)
    assert set(move.run("backfill").tables) == {f"public.{name}" for name in names} and not left
    move.run_all(until="verify", after="backfill")
    assert [one(source_dsn, f"SELECT count(*) FROM pgddl_copy_public.{name}") for name in names] == [50] * len(names)


def test_differing_rows_are_counted_as_far_as_anybody_has(shop: Make) -> None:
    move = shop()
    do(move.source, "INSERT INTO shop.parent SELECT n, 'p' FROM generate_series(100, 400) n")
    move.run_all(until="replay")
    do(move.target, "UPDATE shop.parent SET name = 'other' WHERE id >= 100")
    assert "shop.parent: at least 100 rows differ" in move.refused("verify").what
    assert "at least 100 rows differ" in str(move.refused("swap"))


# --- runs that were taken over ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["shop.parent", "shop.child"])
def test_a_run_that_lost_one_of_its_tables_commits_nothing_more(
    shop: Make, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    move = shop()
    move.run_all(until="schema_sync")
    do(move.source, "UPDATE shop.parent SET name = 'later'", "UPDATE shop.child SET note = 'later'")
    newer: list[Lease] = []

    def take_over(number: int) -> None:
        if not newer:
            assert one(move.target, END_SESSIONS, f"pgddl:{move.name}:%:lease") == 1
            newer.append(Lease(move.target, move.name, "replay", [lost]).__enter__())
            newer[0].take()

    before_each(monkeypatch, windows, "flush", take_over)
    move.refused("replay", Fenced, tables=["shop.parent", "shop.child"])
    later = "SELECT (SELECT count(*) FROM shop.parent WHERE name = 'later') + (SELECT count(*) FROM shop.child)"
    assert one(move.target, later) == 60
    assert one(move.target, "SELECT count(*) FROM shop.child WHERE note = 'later'") == 0
    with psycopg.connect(move.target, autocommit=True) as conn:
        lease.check(conn, newer[0].fence)
    newer[0].close()
    move.run_all(after="schema_sync", until="swap")
    assert differences(move.source, move.target) == []


def test_a_setup_that_was_killed_before_its_record_looks_anew(shop: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    move = shop()

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(TableJournal, "add", kill)
        with pytest.raises(Killed):
            move.run("setup")
    do(
        move.source,
        "ALTER TABLE shop.child DROP CONSTRAINT child_pkey, ALTER id TYPE bigint, ADD PRIMARY KEY (parent, id)",
        "UPDATE shop.child SET parent = 2 WHERE id = 1",
    )
    move.run_all(until="replay")
    assert move.results["setup"].tables["shop.child"]["key"] == ["parent", "id"]
    do(move.source, "UPDATE shop.child SET parent = 3, id = id + 100 WHERE id < 20")
    move.run_all(after="replay", until="swap")
    assert differences(move.source, move.target) == []


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("timestamptz", "timestamptz(0)"),
        ("int", "text"),
        ("numeric", "numeric(10, 1)"),
    ],
)
def test_a_type_that_cannot_keep_keys_apart_is_refused_before_any_row_is_copied(
    pg18: Cluster, database: Database, lifecycle: Make, was: str, becomes: str
) -> None:
    dsn = database(pg18)
    do(dsn, f"CREATE TABLE items (id {was} PRIMARY KEY, code text)")
    move = lifecycle(dsn, rewrite={"public.items": {"alter": [f"ALTER COLUMN id TYPE {becomes}"]}}, **SMALL)
    move.run("setup")
    assert "key column id" in str(move.refused("snapshot", StageFailed))
    move.refused("backfill")
    reset(move)
    assert left_behind(dsn) == []


@pytest.mark.parametrize("in_place", [True, False])
def test_a_key_of_a_domain_over_an_enum(source_dsn: str, target_dsn: str, lifecycle: Make, in_place: bool) -> None:
    do(
        source_dsn,
        "CREATE SCHEMA kinds",
        "CREATE TYPE kinds.mood AS ENUM ('sad', 'ok', 'happy', 'very happy')",
        "CREATE DOMAIN kinds.known AS kinds.mood NOT NULL",
        "CREATE TABLE public.items (mood kinds.known, n int, note text, PRIMARY KEY (mood, n))",
        "INSERT INTO items SELECT m, n, '' FROM unnest(enum_range(NULL::kinds.mood)) m, generate_series(1, 9) n",
    )
    table = {"alter": ["ALTER COLUMN n TYPE bigint"]}
    move = lifecycle(
        source_dsn,
        *([] if in_place else [target_dsn]),
        **({"rewrite": {"public.items": table}} if in_place else {"tables": {"include": ["*.*"]}}),
        **SMALL,
    )
    late = [
        "UPDATE items SET note = 'changed' WHERE mood::kinds.mood = 'ok'",
        "UPDATE items SET mood = 'very happy', n = n + 20 WHERE mood::kinds.mood = 'happy'",
        "DELETE FROM items WHERE mood::kinds.mood = 'sad'",
    ]
    move.run_all(until="backfill")
    do(move.source, late[0])
    move.run_all(after="backfill", until="schema_sync")
    do(move.source, *late[1:])
    move.run_all(after="schema_sync", until="swap")
    rows = "SELECT string_agg(mood || ' ' || n || ' ' || note, ',' ORDER BY mood, n) FROM "
    before = one(source_dsn, rows + ("pgddl_old_public.items" if in_place else "items"))
    assert one(move.target, rows + "items") == before
    assert one(move.target, "SELECT count(*) FROM items") == 27
    move.run("cleanup")


# --- what the target adds ---------------------------------------------------------------------------------------------


def test_default_privileges_do_not_leak_onto_a_rewritten_table(rewrite: Make) -> None:
    move = rewrite()
    do(
        move.source,
        "ALTER TABLE items ADD number int GENERATED ALWAYS AS IDENTITY",
        "GRANT UPDATE ON items TO pg_read_all_stats",
        "GRANT SELECT ON SEQUENCE items_number_seq TO pg_read_all_stats",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO pg_monitor",
        "ALTER DEFAULT PRIVILEGES GRANT INSERT ON TABLES TO PUBLIC",
        "ALTER DEFAULT PRIVILEGES GRANT USAGE ON SEQUENCES TO pg_monitor",
    )
    grants = (
        "SELECT string_agg(c.relname || ': ' || a.grantee::regrole || ' ' || a.privilege_type, ', '"
        ' ORDER BY c.relname COLLATE "C", a.privilege_type)'
        " FROM pg_class c, aclexplode(c.relacl) a"
        " WHERE c.relnamespace = 'public'::regnamespace AND a.grantee <> c.relowner"
    )
    before = one(move.source, grants)
    assert before == "items: pg_read_all_stats UPDATE, items_number_seq: pg_read_all_stats SELECT"
    move.run_all(until="swap")
    assert type_of_id(move) == "bigint"
    assert one(move.source, grants) == before


def test_settings_of_the_target_do_not_change_what_a_text_means(shop: Make, target_dsn: str) -> None:
    move = shop()
    do(
        move.source,
        "CREATE TABLE shop.lists (id int PRIMARY KEY, words text[], relation regclass)",  # a regclass travels as text
        "INSERT INTO shop.lists VALUES (1, '{NULL,a}', 'shop.child'), (2, '{\"NULL\",b}', NULL), (3, '{}', NULL)",
    )
    database = psycopg.conninfo.conninfo_to_dict(target_dsn)["dbname"]
    do(target_dsn, f'ALTER DATABASE "{database}" SET array_nulls = off')
    move.run_all(until="backfill")
    do(move.source, "INSERT INTO shop.lists VALUES (4, '{c,NULL}', NULL)")
    move.run_all(after="backfill", until="swap")
    assert one(move.target, "SELECT words[1] IS NULL FROM shop.lists WHERE id = 1") is True
    assert one(move.target, "SELECT words[2] IS NULL FROM shop.lists WHERE id = 4") is True
    assert differences(move.source, move.target) == []
