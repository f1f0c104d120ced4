"""Ways in which a swap once could have left rows or definitions behind, one test each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs, differences
from airflow_provider_pgddl.engine.errors import (
    Fenced,
    PreflightRefused,
    StageFailed,
    UsageError,
)
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.rows import windows
from airflow_provider_pgddl.engine.swapping import across, readiness
from tests.conftest import Database
from tests.failpoints import At
from tests.failpoints import once as once_at
from tests.integration.calls import before_each, once
from tests.integration.items import log_of
from tests.integration.lifecycle import Lifecycle, left_behind
from tests.integration.sessions import do, one
from tests.integration.swaps.pipelines import (
    END_SESSIONS,
    FOREIGN_KEYS,
    SMALL,
    UNCAPTURED,
    Killed,
    Make,
    has_cut_over,
    reset,
    type_of_id,
)

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


# --- runs that were taken over ----------------------------------------------------------------------------------------


@contextmanager
def taken_over(
    monkeypatch: pytest.MonkeyPatch, move: Lifecycle, tables: list[str] | None, before: str
) -> Iterator[list[Lease]]:
    """A newer run takes over before the first call of this step of windows, in the block; it lives until its end."""
    newer: list[Lease] = []

    def take_over(_: int) -> None:
        if not newer:
            assert one(move.target, END_SESSIONS, f"pgddl:{move.name}:%:lease") == 1
            newer.append(Lease(move.target, move.name, "replay", tables).__enter__())
            newer[0].take()

    before_each(monkeypatch, windows, before, take_over)
    try:
        yield newer
    finally:
        for run in newer:
            run.close()


@pytest.mark.parametrize("lost", ["shop.parent", "shop.child"])
def test_a_run_that_lost_one_of_its_tables_commits_nothing_more(
    shop: Make, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    move = shop()
    move.run_all(until="schema_sync")
    do(move.source, "UPDATE shop.parent SET name = 'later'", "UPDATE shop.child SET note = 'later'")
    with taken_over(monkeypatch, move, [lost], "flush") as newer:
        move.refused("replay", Fenced, tables=["shop.parent", "shop.child"])
        later = "SELECT (SELECT count(*) FROM shop.parent WHERE name = 'later') + (SELECT count(*) FROM shop.child)"
        assert one(move.target, later) == 60
        assert one(move.target, "SELECT count(*) FROM shop.child WHERE note = 'later'") == 0
        with psycopg.connect(move.target, autocommit=True) as conn:
            lease.check(conn, newer[0].fence)
    move.run_all(after="schema_sync", until="swap")
    assert differences(move.source, move.target) == []


def test_a_run_in_place_that_was_taken_over_commits_nothing_more(
    rewrite: Make, monkeypatch: pytest.MonkeyPatch, at: At
) -> None:
    """Neither a window nor, with nothing left to drain, the swap itself."""
    move = rewrite()
    move.run_all(until="replay")
    do(move.source, "UPDATE items SET code = 'later' || id")
    with taken_over(monkeypatch, move, None, "note_window"):
        move.refused("replay", Fenced)
        assert one(move.target, "SELECT count(*) FROM pgddl_copy_public.items WHERE code LIKE 'later%'") == 0
    move.run_all(after="replay", until="verify")
    with ExitStack() as stack:

        def take_over() -> None:
            assert one(move.target, END_SESSIONS, f"pgddl:{move.name}:%:lease") == 1
            stack.enter_context(Lease(move.target, move.name, "replay", None)).take()

        at("swap.after_lock", once_at(take_over))
        move.refused("swap", Fenced)
    assert not has_cut_over(move)
    move.run("swap")
    assert one(move.target, "SELECT count(*) FROM items WHERE code LIKE 'later%'") == 60


def test_a_setup_that_was_killed_before_its_record_looks_anew(shop: Make, at: At) -> None:
    move = shop()

    def kill(_: int) -> None:
        raise Killed

    with at("setup.before_table_commit", kill), pytest.raises(Killed):
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
