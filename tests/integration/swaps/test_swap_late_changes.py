"""What comes after setup, after the snapshot or between a dump and the lock is swapped too, or stops the swap."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs, differences
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.swapping import schema_guard
from airflow_provider_pgddl.engine.swapping.schema_guard import SchemaGuard
from tests.conftest import Database
from tests.integration.calls import after_each, once
from tests.integration.sessions import do, one
from tests.integration.swaps.pipelines import SHOP, SMALL, UNCAPTURED, Make, has_cut_over, type_of_id

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


NAMED = """
    CREATE TABLE named (id int PRIMARY KEY, n int NOT NULL, m int NOT NULL, CHECK (n > 0));
    INSERT INTO named SELECT n, n, n FROM generate_series(1, 60) n
"""
RENAMES = [  # what is done, and how it is undone
    ("RENAME CONSTRAINT named_n_check TO late", "RENAME CONSTRAINT late TO named_n_check"),
    ("RENAME CONSTRAINT named_n_not_null TO other", "RENAME CONSTRAINT other TO named_n_not_null"),
    ("ALTER CONSTRAINT named_m_not_null NO INHERIT", "ALTER CONSTRAINT named_m_not_null INHERIT"),
]


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "across"])
def test_uncaptured_names_of_constraints_are_not_lost(
    pg18: Cluster, database: Database, lifecycle: Make, in_place: bool
) -> None:
    """By what they ask of rows both sides are the same."""
    dsn = database(pg18)
    do(dsn, NAMED)
    how: dict[str, Any] = {"rewrite": {"public.named": {"alter": ["ALTER COLUMN id TYPE bigint"]}}}
    if not in_place:
        how = {"tables": {"include": ["public.named"]}}
    move = lifecycle(dsn, *([] if in_place else [database(pg18)]), **how, **SMALL, **UNCAPTURED)
    move.run_all(until="verify")
    for change, undo in RENAMES:
        do(move.source, f"ALTER TABLE named {change}")
        assert "changed: CREATE TABLE public.named" in str(move.refused("swap", PreflightRefused)), change
        do(move.target, f"ALTER TABLE named {undo if in_place else change}")
    # What is the same on both sides is no reason, whoever brought it, nor are names that were there before.
    do(move.source, "ALTER TABLE named ALTER n SET DEFAULT 5")
    do(move.target, f"ALTER TABLE {'pgddl_copy_public' if in_place else 'public'}.named ALTER n SET DEFAULT 5")
    before = catalog_lines(move.source)
    move.run("swap")
    after = catalog_lines(move.target)
    assert [line for line in diff_catalogs(before, after) if "named column 1 id: " not in line] == []


LATE_CHECK = "ALTER TABLE {} ADD CONSTRAINT late CHECK (id > 0) NOT VALID"


def test_what_asks_something_of_new_rows_only_is_not_lost(shop: Make) -> None:
    """A dump has NOT VALID constraints behind the rows, like indexes, which a swap makes by itself."""
    move = shop()
    do(move.source, "CREATE DOMAIN shop.code AS varchar(5)")
    move.run_all(until="verify")
    late = [LATE_CHECK.format("shop.child"), "ALTER DOMAIN shop.code ADD CONSTRAINT late CHECK (VALUE <> '') NOT VALID"]
    do(move.source, "SET pgddl.skip = on", *late)
    refusal = str(move.refused("swap", PreflightRefused))
    assert "new: ALTER TABLE" in refusal and "new: ALTER DOMAIN" in refusal, refusal
    do(move.target, *late)
    move.run("swap")
    assert diff_catalogs(catalog_lines(move.source), catalog_lines(move.target)) == []


def test_what_asks_something_of_new_rows_only_is_not_lost_in_place(rewrite: Make) -> None:
    move = rewrite()
    move.run_all(until="verify")
    do(move.source, "SET pgddl.skip = on", LATE_CHECK.format("items"))
    assert "new: ALTER TABLE" in str(move.refused("swap", PreflightRefused))
    do(move.source, "ALTER TABLE items DROP CONSTRAINT late", LATE_CHECK.format("items").replace("late", "known"))
    move.run("swap")
    assert type_of_id(move) == "bigint"
    assert one(move.source, "SELECT convalidated FROM pg_constraint WHERE conname = 'known'") is False


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
