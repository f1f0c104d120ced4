"""correctness.md, part three: structure. What a table has it keeps; what is done to it under way is followed, or, where
DDL is not captured, seen and stops it; and what today's tools are known to lose is not lost here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.demo.compare import catalog_lines, compare_sequences, diff_catalogs, differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.following import source_dump
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.rows import windows
from airflow_provider_pgddl.engine.swapping import across as cut_over
from airflow_provider_pgddl.engine.swapping import in_place as exchange
from airflow_provider_pgddl.engine.swapping import readiness
from tests.integration.calls import Paused, after_each, at_calls, before_each, once
from tests.integration.items import ITEMS, SMALL, log_of
from tests.integration.lifecycle import Lifecycle, left_behind
from tests.integration.sessions import Underway, do, one, wait_for

Make = Callable[..., Lifecycle]
Places = Callable[[str], Lifecycle]

# Without event triggers, as where nobody is a superuser.
UNCAPTURED = {"capture": {"ddl": "off"}, **SMALL}


def gate(pipeline: Lifecycle) -> dict[str, list[str]]:
    """The tables for which the schema gate is closed, and why."""
    reports = stages.gate(load_pipeline(pipeline.content), pipeline.source, pipeline.target)
    closed = [r for r in reports if r.status == "mismatch"]
    return {r.table: [f.what for f in r.findings if f.severity == "mismatch"] for r in closed}


def start_again(pipeline: Lifecycle, *tables: str) -> None:
    """`pgddl reset --tables`"""
    stages.reset(load_pipeline(pipeline.content), pipeline.source, pipeline.target, tables=list(tables))


def unequal(dsn: str, one_table: str, other: str) -> int:
    """Rows of two tables of one database that are not in the other, whatever the types of their columns."""
    query = (
        f"SELECT count(*) FROM (SELECT o::text AS r FROM {one_table} o) o"
        f" FULL JOIN (SELECT n::text AS r FROM {other} n) n USING (r) WHERE o.r IS NULL OR n.r IS NULL"
    )
    return int(one(dsn, query))


@pytest.fixture(params=["in place", "across clusters"])
def items(request: pytest.FixtureRequest, source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    """One table of several chunks, moved or rewritten."""
    do(source_dsn, ITEMS)
    if request.param == "in place":
        rewrite = {"public.items": {"alter": ["ALTER COLUMN id TYPE bigint"]}}
        return lifecycle(source_dsn, rewrite=rewrite, swap={"keep_old": True}, **SMALL)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.items"]}, **SMALL)


def finish(pipeline: Lifecycle, after: str | None = None) -> None:
    """To the end of the swap, and the rows are equal."""
    in_place = pipeline.source == pipeline.target
    pipeline.run_all(after=after, until="swap")
    if in_place:
        assert unequal(pipeline.source, "pgddl_old_public.items", "public.items") == 0
    else:
        assert differences(pipeline.source, pipeline.target) == []


# --- what psycopack loses ---------------------------------------------------------------------------------------------

# Every row's unique value goes to the row after it, by way of a value that nobody has.
HAND_ON = """
    UPDATE items SET code = 'on its way ' || id;
    UPDATE items i SET code = 'c' || (i.id % 600 + 1 + {0}) WHERE id BETWEEN 1 AND 600
"""


def test_unique_values_are_handed_from_row_to_row_between_windows(
    items: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    items.run_all(until="backfill")
    do(items.source, HAND_ON.format(0))
    items.run("schema_sync")
    turns = {n: [HAND_ON.format(n)] for n in range(1, 6)}
    calls = before_each(monkeypatch, windows, "lock_tables", at_calls(items.source, turns))
    finish(items, after="schema_sync")
    assert len(calls) > 20


def test_a_changed_key_leaves_no_ghost(items: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys change while rows are copied, and between windows; some come to be other rows' keys."""
    items.run_all(until="snapshot")
    do(items.source, "UPDATE items SET id = id + 10000 WHERE id % 10 = 0")
    items.run("backfill")
    do(items.source, "UPDATE items SET id = -id", "UPDATE items SET id = 601 + id WHERE id BETWEEN -600 AND -1")
    items.run("schema_sync")
    changes = {
        1: ["UPDATE items SET id = id + 20000 WHERE id % 3 = 0"],
        3: ["DELETE FROM items WHERE id = 7", "UPDATE items SET id = 7 WHERE id = 20300"],
        4: ["UPDATE items SET id = id - 20000 WHERE id > 20000"],
    }
    before_each(monkeypatch, windows, "lock_tables", at_calls(items.source, changes))
    with pytest.raises(pg.UniqueViolation):
        do(items.source, "INSERT INTO items SELECT id, 'twice', '' FROM items LIMIT 1")
    finish(items, after="schema_sync")


def test_a_change_meets_a_chunk_that_is_not_committed(items: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk carries the rows as they were, and commits after the change."""
    items.run_all(until="snapshot")
    paused = Paused(monkeypatch, "copy")
    with Underway(lambda: items.run("backfill")) as backfill:
        wait_for(paused.reached.is_set, backfill)
        do(
            items.source,
            "UPDATE items SET filler = 'changed' WHERE id <= 20",
            "DELETE FROM items WHERE id BETWEEN 11 AND 30",
            "UPDATE items SET id = id + 5000 WHERE id <= 5",
        )
        paused.go_on.set()
    finish(items, after="backfill")


def test_truncate_and_sessions_in_replica_role_are_seen(items: Lifecycle) -> None:
    items.run_all(until="snapshot")
    do(items.source, "SET session_replication_role = replica; UPDATE items SET code = 'replica ' || id WHERE id < 9")
    items.run("backfill")
    do(items.source, "SET session_replication_role = replica; DELETE FROM items WHERE id BETWEEN 100 AND 120")
    items.run("schema_sync")
    do(
        items.source,
        "SET session_replication_role = replica; TRUNCATE items;"
        " INSERT INTO items SELECT n, 'after ' || n, '' FROM generate_series(50, 200) n",
    )
    finish(items, after="schema_sync")


def test_an_index_predicate_with_on_in_a_literal_stays_as_it_is(items: Lifecycle) -> None:
    do(
        items.source,
        "CREATE UNIQUE INDEX tricky ON items (code, lower(filler || ' ON public.x USING ')) INCLUDE (id)"
        " WHERE filler <> 'a ON b; -- \"items\"' AND code NOT LIKE E'%''\\\\ WHERE %'",
    )
    definition = "SELECT pg_get_indexdef('tricky'::regclass)"
    before = one(items.source, definition)
    finish(items)
    assert one(items.target, definition) == before


# --- DDL on a table under way -----------------------------------------------------------------------------------------


TWO_TABLES = [ITEMS, "CREATE TABLE others AS TABLE items", "ALTER TABLE others ADD PRIMARY KEY (id)"]

LATE_COLUMN = [
    "UPDATE items SET code = 'before ' || id WHERE id < 100",
    "ALTER TABLE items ADD COLUMN late text DEFAULT 'given'",
    "UPDATE items SET late = 'changed', code = 'after ' || id WHERE id BETWEEN 50 AND 200",
    "INSERT INTO items VALUES (2000, 'new', '', 'new')",
    "UPDATE others SET code = 'goes on ' || id",
]


@pytest.mark.parametrize("late", ["snapshot", "backfill", "verify"])
def test_ddl_under_way_is_followed(source_dsn: str, target_dsn: str, lifecycle: Make, late: str) -> None:
    do(source_dsn, *TWO_TABLES)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)
    move.run_all(until=late)
    do(source_dsn, *LATE_COLUMN)
    assert gate(move) == {}
    if late != "verify":
        move.run_all(after=late, until="schema_sync")
    assert not move.run("replay").blocked
    assert differences(source_dsn, target_dsn) == []
    assert gate(move) == {}
    assert one(source_dsn, f"SELECT count(*) FROM {log_of(move, 'items')}") == 0
    move.run_all(after="replay", until="swap")
    assert differences(source_dsn, target_dsn) == []
    assert diff_catalogs(catalog_lines(source_dsn), catalog_lines(target_dsn)) == []
    assert one(target_dsn, "SELECT late FROM items WHERE id = 2000") == "new"


@pytest.mark.parametrize("late", ["snapshot", "backfill", "verify"])
def test_uncaptured_ddl_under_way_stops_its_table_and_loses_nothing(
    source_dsn: str, target_dsn: str, lifecycle: Make, late: str
) -> None:
    do(source_dsn, *TWO_TABLES)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **UNCAPTURED)
    move.run_all(until=late)
    do(source_dsn, *LATE_COLUMN)
    after = stages.STAGES.index(late) + 1
    for stage in [*stages.STAGES[after : stages.STAGES.index("verify")], "replay", "verify"]:
        result = move.run(stage)
        assert [b["table"] for b in result.blocked] == ["public.items"], stage
        assert "Source has new column 'late' not in target" in result.blocked[0]["reason"]
        assert result.exit_code == 3
    assert gate(move) == {"public.items": ["Source has new column 'late' not in target"]}
    assert differences(source_dsn, target_dsn, [("public", "others")]) == []
    assert one(source_dsn, f"SELECT count(*) FROM {log_of(move, 'items')}") > 150
    error = move.refused("swap", PreflightRefused)
    assert "public.items" in str(error)
    assert "Source has new column 'late'" in str(error)
    do(target_dsn, "ALTER TABLE items ADD COLUMN late text DEFAULT 'given'")
    assert gate(move) == {}
    move.run_all(after="schema_sync", until="swap")
    assert differences(source_dsn, target_dsn) == []
    assert one(target_dsn, "SELECT late FROM items WHERE id = 2000") == "new"


REWRITE = {"public.items": {"alter": ["ALTER COLUMN id TYPE bigint"]}}

LATE_IN_PLACE = [
    "ALTER TABLE items ADD COLUMN late text DEFAULT 'given'",
    "UPDATE items SET late = 'x' WHERE id < 9",
]


@pytest.mark.parametrize("stage", ["replay", "swap"])
def test_ddl_in_place_is_followed(source_dsn: str, lifecycle: Make, stage: str) -> None:
    """By a replay, or by the swap itself."""
    do(source_dsn, ITEMS)
    rewrite = lifecycle(source_dsn, rewrite=REWRITE, **SMALL)
    rewrite.run_all(until="verify")
    do(source_dsn, *LATE_IN_PLACE)
    assert rewrite.run(stage).exit_code == 0
    assert gate(rewrite) == {}
    rewrite.run("swap")
    assert unequal(source_dsn, "pgddl_old_public.items", "public.items") == 0
    assert one(source_dsn, "SELECT count(*) FROM items WHERE late = 'x'") == 8
    assert one(source_dsn, "SELECT pg_typeof(id)::text FROM items LIMIT 1") == "bigint"


def test_uncaptured_ddl_in_place_stops_its_table_and_loses_nothing(source_dsn: str, lifecycle: Make) -> None:
    do(source_dsn, ITEMS)
    rewrite = lifecycle(source_dsn, rewrite=REWRITE, **UNCAPTURED)
    rewrite.run_all(until="verify")
    do(source_dsn, *LATE_IN_PLACE)
    assert "Source has new column 'late'" in str(rewrite.refused("swap"))
    rewrite.run("replay")
    assert gate(rewrite) == {"public.items": ["Source has new column 'late' not in target"]}
    do(source_dsn, "ALTER TABLE pgddl_copy_public.items ADD COLUMN late text DEFAULT 'given'")
    rewrite.run_all(after="schema_sync", until="swap")
    assert unequal(source_dsn, "pgddl_old_public.items", "public.items") == 0
    assert one(source_dsn, "SELECT count(*) FROM items WHERE late = 'x'") == 8


# What is done to a table `{0}`; what is said of it where its copy does not take its rows any more, and what puts the
# copy right.
UNDER_WAY = {
    "dropped_column": ("ALTER TABLE {0} DROP COLUMN v", "no longer exists in source", "ALTER TABLE {0} DROP COLUMN v"),
    "renamed_column": ("ALTER TABLE {0} RENAME v TO w", "renamed", "ALTER TABLE {0} RENAME v TO w"),
    "new_type": ("ALTER TABLE {0} ALTER v TYPE varchar(50)", "", "ALTER TABLE {0} ALTER v TYPE varchar(50)"),
    "new_values": ("ALTER TABLE {0} ALTER n TYPE int USING n + 1", "", ""),
    "volatile_default": (
        "ALTER TABLE {0} ADD r float DEFAULT random()",
        "Source has new column 'r'",
        "ALTER TABLE {0} ADD r float DEFAULT random()",
    ),
    "not_null": ("ALTER TABLE {0} ALTER v SET NOT NULL", "", "ALTER TABLE {0} ALTER v SET NOT NULL"),
    "new_default": ("ALTER TABLE {0} ALTER v SET DEFAULT 'x'", "", "ALTER TABLE {0} ALTER v SET DEFAULT 'x'"),
    "new_key": (
        "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey, ADD PRIMARY KEY (id, n)",
        "key",
        "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey, ADD PRIMARY KEY (id, n)",
    ),
    "renamed_key": ("ALTER TABLE {0} RENAME id TO key", "renamed", "ALTER TABLE {0} RENAME id TO key"),
    "renamed": (
        "ALTER TABLE {0} RENAME TO another_name",
        "is called public.another_name now",
        "ALTER TABLE {0} RENAME TO another_name",
    ),
    "moved": (
        "ALTER TABLE {0} SET SCHEMA elsewhere",
        "is called elsewhere.moved now",
        "ALTER TABLE {0} SET SCHEMA elsewhere",
    ),
    "dropped": ("DROP TABLE {0}", "was dropped on the source", "DROP TABLE {0}"),
    "unlogged": ("ALTER TABLE {0} SET UNLOGGED", "", "ALTER TABLE {0} SET UNLOGGED"),
    "unwatched": ("ALTER TABLE {0} DISABLE TRIGGER ALL; ALTER TABLE {0} ENABLE TRIGGER ALL", "", ""),
}


def under_way(source: str, pipeline: Callable[[], Lifecycle]) -> Lifecycle:
    """A pipeline with copies of all these tables, and then what happens to each of them. Clients write as before, key
    renamed or not. What VACUUM and the like do is no change."""
    do(
        source,
        "CREATE SCHEMA elsewhere",
        "CREATE TABLE elsewhere.here (id int PRIMARY KEY)",
        *(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text, n int NOT NULL); CREATE INDEX {table}_v ON {table} (v);"
            f" INSERT INTO {table} SELECT n, 'v' || n, 1 FROM generate_series(1, 20) n"
            for table in [*UNDER_WAY, "healthy"]
        ),
        "ALTER TABLE healthy CLUSTER ON healthy_v",
    )
    move = pipeline()
    move.run_all(until="schema_sync")
    for table, (statement, _, _) in UNDER_WAY.items():
        do(source, *statement.format(table).split("; "))
    do(
        source,
        "VACUUM FULL healthy",
        "ANALYZE healthy",
        "CLUSTER healthy USING healthy_v",
        "REINDEX TABLE CONCURRENTLY healthy",
        "VACUUM (ANALYZE, FREEZE) healthy",
        "UPDATE healthy SET v = 'goes on'",
        "INSERT INTO renamed_key VALUES (100, 'by its new name', 1)",
        "UPDATE new_key SET n = 2 WHERE id = 3",
        "INSERT INTO another_name VALUES (100, 'by its new name', 1)",
    )
    return move


ELSEWHERE_TOO = {"include": ["public.*", "elsewhere.*"]}


def test_ddl_that_concerns_rows_is_followed_at_the_next_window(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    move = under_way(source_dsn, lambda: lifecycle(source_dsn, target_dsn, tables=ELSEWHERE_TOO, **SMALL))
    assert not move.run("replay").blocked
    assert gate(move) == {}
    assert differences(source_dsn, target_dsn) == []
    move.run_all(after="replay", until="swap")
    assert differences(source_dsn, target_dsn) == []
    assert diff_catalogs(catalog_lines(source_dsn), catalog_lines(target_dsn)) == []


def test_uncaptured_ddl_that_concerns_rows_stops_its_table_at_the_next_window(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    move = under_way(source_dsn, lambda: lifecycle(source_dsn, target_dsn, tables=ELSEWHERE_TOO, **UNCAPTURED))
    blocked = {b["table"].removeprefix("public."): b["reason"] for b in move.run("replay").blocked}
    stops = {table: words for table, (_, words, _) in UNDER_WAY.items() if words}
    assert {t: blocked.get(t, "") for t, words in stops.items() if words not in blocked.get(t, "")} == {}
    assert set(blocked) == set(stops)
    assert set(gate(move)) == {f"public.{table}" for table in stops}
    going_on = [("public", table) for table in UNDER_WAY.keys() - stops.keys()]
    assert differences(source_dsn, target_dsn, [("public", "healthy"), *going_on]) == []
    for table, (_, _, fix) in UNDER_WAY.items():
        if fix:
            do(target_dsn, fix.format(table))
    move.run_all(after="schema_sync", until="verify")
    assert gate(move) == {}
    assert differences(source_dsn, target_dsn) == []
    assert diff_catalogs(catalog_lines(source_dsn), catalog_lines(target_dsn)) == []


# What becomes of the key of a table, and the column that holds its number from then on.
KEYS = {
    "renamed": ("RENAME id TO number", "number"),
    "widened": ("ALTER id TYPE bigint", "id"),
    "retyped": ("ALTER id TYPE text", "id"),
    "dropped": ("DROP id", "extra"),
}
UNKNOWN = [("I", 2), ("X", 12)]  # operations in a log that has lost track


@pytest.mark.parametrize("captured", [True, False])
def test_clients_write_on_whatever_becomes_of_the_key(
    source_dsn: str, target_dsn: str, lifecycle: Make, captured: bool
) -> None:
    """In the session that changes it, in one that has written before, and in a new one."""
    do(source_dsn, *(f"CREATE TABLE {table} (id int PRIMARY KEY, v text, extra int)" for table in KEYS))
    settings = SMALL if captured else UNCAPTURED
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **settings)
    move.run("setup")
    with psycopg.connect(source_dsn, autocommit=True) as known, psycopg.connect(source_dsn, autocommit=True) as own:
        for table, (change, column) in KEYS.items():
            known.execute(f"INSERT INTO {table} VALUES (1, 'before')".encode())
            own.execute(f"INSERT INTO {table} VALUES (2, 'before')".encode())
            own.execute(f"ALTER TABLE {table} {change}".encode())
            for number, conn in enumerate((known, own), 3):
                conn.execute(f"INSERT INTO {table} ({column}, v) VALUES ({number}, 'after')".encode())
                conn.execute(f"UPDATE {table} SET v = v || '!'".encode())
                conn.execute(f"DELETE FROM {table} WHERE v = 'before!!'".encode())
            do(source_dsn, f"INSERT INTO {table} ({column}, v) VALUES (5, 'in a new session')")
    logged = {}
    for table in KEYS:
        log = log_of(move, table)
        logged[table] = move.on_source(f"SELECT op::text, count(*) FROM {log} GROUP BY 1 ORDER BY 1")
    # A trigger that the rename has brought up to date knows the key by its new name.
    assert logged.pop("renamed") == ([("D", 2), ("I", 5), ("U", 7)] if captured else UNKNOWN)
    assert logged == dict.fromkeys(logged, UNKNOWN)
    move.run("snapshot")
    keyless = {"public.dropped"}
    assert set(gate(move)) == keyless
    others = [("public", table) for table in logged if table != "dropped"] + [("public", "renamed")]
    for stage in ("backfill", "schema_sync", "replay"):
        assert {b["table"] for b in move.run(stage).blocked} == keyless
    assert differences(source_dsn, target_dsn, others) == []
    do(source_dsn, "ALTER TABLE dropped ADD PRIMARY KEY (extra)")
    move.run_all(after="setup", until="swap")
    assert differences(source_dsn, target_dsn) == []


# What concerns no row, how it is undone, and what is said of it.
BESIDE_ROWS = [
    ("CREATE INDEX another ON items (filler)", "DROP INDEX another", "new: CREATE INDEX another"),
    ("DROP INDEX by_filler", "CREATE INDEX by_filler ON items (filler)", "gone: CREATE INDEX by_filler"),
    ("ALTER TABLE items ADD CONSTRAINT p CHECK (id > 0)", "ALTER TABLE items DROP CONSTRAINT p", "+ CONSTRAINT p"),
    (
        "CREATE TRIGGER own BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "DROP TRIGGER own ON items",
        "new: CREATE TRIGGER own",
    ),
    ("CREATE POLICY mine ON items USING (true)", "DROP POLICY mine ON items", "new: CREATE POLICY mine"),
    ("GRANT SELECT (code) ON items TO PUBLIC", "REVOKE SELECT (code) ON items FROM PUBLIC", "new: GRANT SELECT(code)"),
    ("COMMENT ON TABLE items IS 'a word'", "COMMENT ON TABLE items IS NULL", "new: COMMENT ON TABLE"),
    ("CREATE STATISTICS pair ON id, code FROM items", "DROP STATISTICS pair", "new: CREATE STATISTICS"),
]


def test_ddl_that_concerns_no_row_is_not_lost_at_the_swap(items: Lifecycle) -> None:
    do(
        items.source,
        "CREATE INDEX by_filler ON items (filler)",
        "CREATE INDEX by_both ON items (filler, code)",
        "CREATE INDEX as_it_is ON items (filler)",
        "CREATE STATISTICS other ON id, code FROM items",
    )
    items.run_all(until="verify")
    kept = items.on_source("SELECT oid FROM pg_class WHERE relname = 'as_it_is' ORDER BY oid DESC LIMIT 1")
    do(
        items.source,
        *(statement for statement, _, _ in BESIDE_ROWS),
        "DROP INDEX by_both",
        "CREATE UNIQUE INDEX by_both ON items (code, lower(filler)) WHERE code <> ' ON public.x USING '",
        "DROP STATISTICS other",
        "CREATE STATISTICS other (ndistinct) ON code, filler FROM items",
        "ALTER STATISTICS other SET STATISTICS 77",
        "ALTER INDEX items_code_key RENAME TO by_code",
        "ALTER TABLE items RENAME filler TO padding",
    )
    before = catalog_lines(items.source)
    items.run("swap")
    after = catalog_lines(items.target)
    if items.source == items.target:
        assert items.on_source("SELECT 'as_it_is'::regclass::oid") == kept
        assert diff_catalogs(before, after) == [
            "+ public.items column 1 id: bigint not null",
            "- public.items column 1 id: integer not null",
        ]
    else:
        assert diff_catalogs(before, after) == []


@pytest.mark.parametrize("across", [True, False])
def test_uncaptured_ddl_that_concerns_no_row_is_refused_by_the_swap(
    source_dsn: str, target_dsn: str, lifecycle: Make, across: bool
) -> None:
    do(source_dsn, ITEMS, "CREATE INDEX by_filler ON items (filler)")
    if across:
        move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.items"]}, **UNCAPTURED)
    else:
        move = lifecycle(source_dsn, rewrite=REWRITE, **UNCAPTURED)
    move.run_all(until="verify")
    for statement, undo, words in BESIDE_ROWS:
        do(source_dsn, statement)
        assert words in str(move.refused("swap", PreflightRefused))
        do(source_dsn, undo)
    move.run("swap")


LATE_NUMBER = ["ALTER TABLE items ADD COLUMN late int DEFAULT 1", "UPDATE items SET late = 2 WHERE id < 10"]


def test_ddl_right_before_the_cut_over_is_cut_over_too(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too late for any window before the fence; the fence goes up for a table that is compared again first."""
    do(source_dsn, ITEMS)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.items"]}, swap={"fence": "read_only"}, **SMALL)
    move.run_all(until="verify")
    compared = before_each(monkeypatch, readiness, "compare_rows", lambda _: None)
    before_each(monkeypatch, cut_over, "lock_all", once(*LATE_NUMBER, dsn=source_dsn))
    move.run("swap")
    assert compared == [1]
    assert differences(source_dsn, target_dsn) == []
    assert one(target_dsn, "SELECT count(*) FROM items WHERE late = 2") == 9


def test_uncaptured_ddl_right_before_the_cut_over_is_not_cut_over(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too late for any window to stop the table: then the swap does, and lets writers go on where they are."""
    do(source_dsn, ITEMS)
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.items"]}, swap={"fence": "read_only"}, **UNCAPTURED
    )
    move.run_all(until="verify")
    before_each(monkeypatch, cut_over, "lock_all", once(*LATE_NUMBER, dsn=source_dsn))
    assert "Source has new column 'late'" in str(move.refused("swap", PreflightRefused))
    assert move.journal("SELECT cut_over_at FROM pgddl.pipelines") == [(None,)]
    do(source_dsn, "UPDATE items SET late = 3 WHERE id = 11")
    start_again(move, "public.items")
    move.run_all(until="swap")
    assert differences(source_dsn, target_dsn) == []


def test_ddl_right_before_the_swap_in_place_is_swapped_too(
    source_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(source_dsn, ITEMS)
    rewrite = lifecycle(source_dsn, rewrite=REWRITE, **SMALL)
    rewrite.run_all(until="verify")
    compared = before_each(monkeypatch, readiness, "compare_rows", lambda _: None)
    before_each(monkeypatch, exchange, "lock_all", once(*LATE_NUMBER, dsn=source_dsn))
    rewrite.run("swap")
    assert compared == [1]
    assert unequal(source_dsn, "pgddl_old_public.items", "public.items") == 0
    assert one(source_dsn, "SELECT count(*) FROM items WHERE late = 2") == 9
    assert one(source_dsn, "SELECT pg_typeof(id)::text FROM items LIMIT 1") == "bigint"


def test_uncaptured_ddl_right_before_the_swap_in_place_is_not_swapped(
    source_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(source_dsn, ITEMS)
    rewrite = lifecycle(source_dsn, rewrite=REWRITE, **UNCAPTURED)
    rewrite.run_all(until="verify")
    before_each(monkeypatch, exchange, "lock_all", once(*LATE_NUMBER, dsn=source_dsn))
    assert "column late was added" in str(rewrite.refused("swap", PreflightRefused))
    assert one(source_dsn, "SELECT count(*) FROM items WHERE late = 2") == 9
    assert one(source_dsn, "SELECT pg_typeof(id)::text FROM items LIMIT 1") == "integer"


# --- C21: what a swap in place keeps ----------------------------------------------------------------------------------

RICH = r"""
    CREATE SCHEMA shop;
    CREATE TABLE shop.customers (id int PRIMARY KEY);
    INSERT INTO shop.customers SELECT generate_series(1, 50);
    CREATE FUNCTION shop.touch() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN NEW.note := coalesce(NEW.note, '') || TG_NAME || coalesce(TG_ARGV[0], ''); RETURN NEW; END $$;
    CREATE TABLE shop.orders (
        id serial PRIMARY KEY,
        customer int NOT NULL CONSTRAINT known_customer REFERENCES shop.customers ON DELETE CASCADE
            DEFERRABLE INITIALLY DEFERRED,
        parent int REFERENCES shop.orders ON DELETE SET NULL,
        number int GENERATED BY DEFAULT AS IDENTITY (START 1000 INCREMENT 5 CACHE 3),
        code text COLLATE "C" CONSTRAINT "Code of all" UNIQUE DEFERRABLE,
        token text NOT NULL DEFAULT md5(random()::text),
        note text DEFAULT 'it''s "new"', doc jsonb, span int4range,
        doubled int GENERATED ALWAYS AS (customer * 2) STORED,
        extra bigserial, small smallserial,
        price numeric(8, 2) CONSTRAINT "not negative" CHECK (price >= 0),
        CONSTRAINT later CHECK (note <> 'never') NOT VALID,
        CONSTRAINT apart EXCLUDE USING gist (span WITH &&) DEFERRABLE
    ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, toast.autovacuum_enabled = false);
    CREATE TABLE shop.lines (order_id int REFERENCES shop.orders ON UPDATE CASCADE, n int, PRIMARY KEY (order_id, n));
    ALTER TABLE shop.orders ALTER note SET STORAGE EXTERNAL, ALTER note SET STATISTICS 500,
        ALTER doc SET COMPRESSION pglz, ALTER customer SET (n_distinct = 40, n_distinct_inherited = 10);
    ALTER SEQUENCE shop.orders_id_seq INCREMENT 2 CACHE 4;
    CREATE UNIQUE INDEX orders_token ON shop.orders (token) INCLUDE (id) WITH (fillfactor = 60);
    CREATE INDEX "by note" ON shop.orders (lower(note) text_pattern_ops DESC NULLS LAST) WHERE note <> 'a ON b';
    CREATE INDEX by_doc ON shop.orders USING gin (doc jsonb_path_ops);
    CREATE INDEX by_customer ON shop.orders USING brin (customer) WITH (pages_per_range = 16);
    ALTER TABLE shop.orders CLUSTER ON orders_token;
    ALTER TABLE shop.orders REPLICA IDENTITY USING INDEX orders_token;
    CREATE STATISTICS shop.orders_depend (dependencies, ndistinct) ON customer, note FROM shop.orders;
    ALTER STATISTICS shop.orders_depend SET STATISTICS 150;
    CREATE TRIGGER touched BEFORE INSERT OR UPDATE OF note ON shop.orders FOR EACH ROW
        WHEN (NEW.note IS DISTINCT FROM 'quiet; please') EXECUTE FUNCTION shop.touch('!');
    CREATE TRIGGER off BEFORE UPDATE ON shop.orders FOR EACH ROW EXECUTE FUNCTION shop.touch();
    ALTER TABLE shop.orders DISABLE TRIGGER off;
    CREATE TRIGGER replicas BEFORE UPDATE ON shop.orders FOR EACH ROW EXECUTE FUNCTION shop.touch();
    ALTER TABLE shop.orders ENABLE REPLICA TRIGGER replicas;
    CREATE CONSTRAINT TRIGGER in_the_end AFTER DELETE ON shop.orders DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION shop.touch('end');
    ALTER TABLE shop.orders ENABLE ALWAYS TRIGGER in_the_end;
    CREATE POLICY half ON shop.orders AS RESTRICTIVE FOR SELECT TO c21_reader
        USING (customer < 40 OR note = 'shop.orders');
    CREATE POLICY "every one" ON shop.orders FOR ALL USING (true) WITH CHECK (price < 1000);
    ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY;
    COMMENT ON TABLE shop.orders IS 'about shop.orders; "all" of it''s rows';
    COMMENT ON COLUMN shop.orders.note IS 'a note';
    COMMENT ON INDEX shop."by note" IS 'an index';
    COMMENT ON CONSTRAINT known_customer ON shop.orders IS 'a foreign key';
    COMMENT ON CONSTRAINT "not negative" ON shop.orders IS 'a check';
    COMMENT ON CONSTRAINT lines_order_id_fkey ON shop.lines IS 'from outside';
    COMMENT ON TRIGGER touched ON shop.orders IS 'a trigger';
    COMMENT ON POLICY half ON shop.orders IS 'a policy';
    COMMENT ON STATISTICS shop.orders_depend IS 'statistics';
    COMMENT ON SEQUENCE shop.orders_id_seq IS 'a sequence';
    GRANT USAGE ON SCHEMA shop TO c21_reader, c21_owner;
    GRANT CREATE ON SCHEMA shop TO c21_owner;
    INSERT INTO shop.orders (customer, code, price, span)
        SELECT 1 + n % 50, 'code ' || n, n, int4range(n * 2, n * 2 + 1) FROM generate_series(1, 300) n;
    UPDATE shop.orders SET parent = 1 WHERE id % 10 = 7;
    SET CONSTRAINTS ALL IMMEDIATE;
    INSERT INTO shop.lines SELECT id, n FROM shop.orders, generate_series(1, 2) n;
    ALTER TABLE shop.orders OWNER TO c21_owner;
    GRANT SELECT, INSERT ON shop.orders TO c21_reader WITH GRANT OPTION;
    GRANT UPDATE (note, price), REFERENCES (id) ON shop.orders TO PUBLIC;
    GRANT USAGE ON SEQUENCE shop.orders_id_seq, shop.orders_number_seq TO c21_reader
"""


@pytest.fixture
def rich(source_dsn: str) -> Iterator[str]:
    """A database with one table that has everything; roles are the whole cluster's."""
    roles = ("c21_owner", "c21_reader")
    do(source_dsn, *(f"CREATE ROLE {role}" for role in roles))
    try:
        do(source_dsn, RICH)
        yield source_dsn
    finally:
        do(source_dsn, *(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}" for role in roles))


def test_c21_the_swap_in_place_keeps_all_that_the_table_had(rich: str, lifecycle: Make) -> None:
    rewrite = lifecycle(rich, rewrite={"shop.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}}, **SMALL)
    before = catalog_lines(rich)
    rewrite.run_all(until="setup")
    do(rich, "INSERT INTO shop.orders (customer, code) VALUES (1, 'under way')")
    rewrite.run_all(after="setup", until="swap")
    own = "increment 2 cache 4 owned by shop.orders.id"
    assert diff_catalogs(before, catalog_lines(rich)) == [
        "+ shop.orders column 1 id: bigint not null default nextval('shop.orders_id_seq'::regclass)",
        "- shop.orders column 1 id: integer not null default nextval('shop.orders_id_seq'::regclass)",
        f"+ shop.orders_id_seq sequence: bigint start 1 min 1 max 9223372036854775807 {own}",
        f"- shop.orders_id_seq sequence: integer start 1 min 1 max 2147483647 {own}",
    ]
    assert unequal(rich, "pgddl_old_shop.orders", "shop.orders") == 0
    highest = one(rich, "SELECT max(id) FROM shop.orders")
    number = one(rich, "SELECT max(number) FROM shop.orders")
    with psycopg.connect(rich) as application:
        row = application.execute(
            "INSERT INTO shop.orders (customer, note) VALUES (2, 'x') RETURNING id, number, note, doubled, extra"
        ).fetchone()
        assert row is not None
        assert row[0] > highest, "the serial goes on"
        assert row[1] > number
        assert (row[1] - 1000) % 5 == 0, "the identity goes on in its steps"
        assert row[2] == "xtouched!", "this trigger fires once, the disabled ones do not"
        assert row[3] == 4
        assert row[4] > 300
        application.execute("SELECT setval('shop.orders_id_seq', 3000000000)")
        application.execute("INSERT INTO shop.orders (customer) VALUES (3)")
        application.execute("SET ROLE c21_reader")
        visible = application.execute("SELECT max(customer) FROM shop.orders").fetchone()
        assert visible == (39,), "its policies hold"
    rewrite.run("cleanup")
    assert left_behind(rich) == ["schema pgddl"]
    assert [line for line in diff_catalogs(before, catalog_lines(rich)) if "orders_id_seq" not in line] == []


# --- C22: names hide --------------------------------------------------------------------------------------------------

LONG = ['Schéma "A" . it\'s; long ' + "x" * 38, 'Schéma "A" . it\'s; long ' + "x" * 37 + "y"]


@pytest.mark.parametrize("across", [True, False])
def test_c22_any_name_that_postgres_takes(source_dsn: str, target_dsn: str, lifecycle: Make, across: bool) -> None:
    """Two schemas of 63 bytes that differ in the last one, with all that has a meaning somewhere in their names."""
    tables = [(schema, table) for schema in LONG for table in ("Orders", "order", "t" * 63)]
    with psycopg.connect(source_dsn) as conn:
        for schema in LONG:
            assert len(schema.encode()) == 63
            conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        for schema, table in tables:
            here = sql.Identifier(schema, table)
            hidden = f"{here.as_string(conn)} ON {table}"
            conn.execute(
                sql.SQL(
                    'CREATE TABLE {0} ("Id" serial, "order" int GENERATED ALWAYS AS IDENTITY, "a.b" text DEFAULT {1},'
                    ' CONSTRAINT {2} PRIMARY KEY ("Id"), CHECK ("a.b" <> \'no ON\'));'
                    'CREATE INDEX {3} ON {0} ("a.b") WHERE "a.b" <> \'x ON y\';'
                    'CREATE STATISTICS {4} ON "order", "a.b" FROM {0}; COMMENT ON TABLE {0} IS {5};'
                    'COMMENT ON COLUMN {0}."a.b" IS {5}; INSERT INTO {0} ("a.b") SELECT n FROM generate_series(1, 99) n'
                ).format(
                    here,
                    sql.Literal("it's %s {0}"),
                    sql.Identifier(f"{table} pk"[:60] + "pk"),
                    sql.Identifier(f"i {table}"[:63]),
                    sql.Identifier(schema, f"s {table}"[:63]),
                    sql.Literal(hidden),
                )
            )
    names = [".".join('"' + part.replace('"', '""') + '"' for part in table) for table in tables]
    if across:
        move = lifecycle(source_dsn, target_dsn, tables={"include": names}, **SMALL)
    else:
        rewrite = {name: {"alter": ['ALTER COLUMN "Id" TYPE bigint']} for name in names}
        move = lifecycle(source_dsn, rewrite=rewrite, **SMALL)
    before = catalog_lines(source_dsn)
    move.run_all(until="backfill")
    with psycopg.connect(source_dsn) as conn:
        for name in tables:
            conn.execute(sql.SQL('UPDATE {} SET "Id" = "Id" + 1000 WHERE "Id" < 50').format(sql.Identifier(*name)))
    move.run_all(after="backfill", until="cleanup")
    after = catalog_lines(move.target)
    changed = diff_catalogs(
        [x.replace("integer", "bigint") for x in before], [x.replace("integer", "bigint") for x in after]
    )
    assert [line for line in changed if "_seq" not in line] == []
    if across:
        assert differences(source_dsn, target_dsn) == []
        assert compare_sequences(source_dsn, target_dsn) == []
        assert diff_catalogs(before, after) == []


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE items ADD CHECK (code <> 'public.items')",
        'CREATE INDEX hidden ON items (code) WHERE code <> \'"public"."items"\'',
        "ALTER TABLE items ALTER filler SET DEFAULT 'public.items'::regclass::text",
    ],
)
def test_c22_a_live_name_that_is_left_in_a_statement_for_the_copy_is_refused(
    source_dsn: str, lifecycle: Make, statement: str
) -> None:
    do(source_dsn, ITEMS, statement)
    before = catalog_lines(source_dsn)
    rewrite = lifecycle(source_dsn, rewrite={"public.items": {}}, **SMALL)
    rewrite.run("setup")
    error = rewrite.refused("snapshot", StageFailed)
    assert "would still name the live public.items" in str(error)
    stages.reset(load_pipeline(rewrite.content), source_dsn, source_dsn)
    assert left_behind(source_dsn) == []
    assert diff_catalogs(before, catalog_lines(source_dsn)) == []


# --- C24: the dump against what happens meanwhile ---------------------------------------------------------------------


@pytest.mark.parametrize("captured", [True, False])
def test_c24_ddl_that_commits_while_the_dump_runs_is_dumped_or_followed(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch, captured: bool
) -> None:
    """Behind pg_dump's run at a snapshot, and before it is asked what has come since."""
    do(source_dsn, ITEMS, "CREATE TABLE others (id int PRIMARY KEY, v text)", "CREATE TABLE log_2026 (at date)")
    settings = SMALL if captured else UNCAPTURED
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"], "schema_only": ["public.log_*"]}, **settings
    )
    move.run("setup")
    meanwhile = once(
        "ALTER TABLE log_2026 ADD COLUMN what text NOT NULL DEFAULT 'nothing'",
        "CREATE INDEX by_date ON log_2026 (at)",
        "ALTER TABLE others ADD COLUMN w int",
        "INSERT INTO others VALUES (1, 'v', 2)",
        dsn=source_dsn,
    )
    dumps = after_each(monkeypatch, source_dump, "dump_sections", meanwhile)
    result = move.run("snapshot")
    assert len(dumps) == 2
    assert not result.blocked
    move.run_all(after="snapshot", until="swap")
    assert differences(source_dsn, target_dsn) == []
    assert diff_catalogs(catalog_lines(source_dsn), catalog_lines(target_dsn)) == []


def test_c24_ddl_during_every_dump_is_worth_a_retry(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(source_dsn, ITEMS, "CREATE TABLE log_2026 (at date)")
    move = lifecycle(
        source_dsn,
        target_dsn,
        tables={"include": ["public.items"], "schema_only": ["public.log_*"]},
        ddl={"retry_for": "2s"},
        **SMALL,
    )
    move.run("setup")
    with monkeypatch.context() as busy:
        # By somebody who does not wait for locks, and so not for the dump either.
        alter = "SET lock_timeout = '20ms'; ALTER TABLE log_2026 ADD COLUMN c{} int"
        after_each(busy, source_dump, "dump_sections", lambda n: do(source_dsn, alter.format(n)))
        error = move.refused("snapshot")
    assert error.retryable
    assert "changed while it was dumped, in each of " in str(error)
    move.run_all(after="setup", until="swap")
    assert diff_catalogs(catalog_lines(source_dsn), catalog_lines(target_dsn)) == []


def test_c24_a_table_made_after_setup_comes_along(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    do(source_dsn, ITEMS)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)
    move.run_all(until="verify")
    do(source_dsn, "CREATE TABLE late AS TABLE items")
    assert "public.late: is blocked: has no key" in str(move.refused("swap", PreflightRefused))
    do(source_dsn, "ALTER TABLE late ADD PRIMARY KEY (id)")
    move.run("swap")
    assert differences(source_dsn, target_dsn) == []
    assert one(target_dsn, "SELECT count(*) FROM late") == 600


def test_c24_an_uncaptured_table_made_after_setup_is_not_left_behind_in_silence(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    do(source_dsn, ITEMS)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **UNCAPTURED)
    move.run_all(until="verify")
    do(source_dsn, "CREATE TABLE late AS TABLE items", "ALTER TABLE late ADD PRIMARY KEY (id)")
    assert "public.late" in str(move.refused("swap"))
    move.run_all(until="swap")
    assert differences(source_dsn, target_dsn) == []
