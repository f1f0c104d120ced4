"""correctness.md, part three: structure under way. What is done to a table is followed, or, where DDL is not captured,
seen and stops it."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs, differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests import failpoints
from tests.integration.items import ITEMS, REWRITE, SMALL, UNCAPTURED, log_of, unequal
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do, one

Make = Callable[..., Lifecycle]


def gate(pipeline: Lifecycle) -> dict[str, list[str]]:
    """The tables for which the schema gate is closed, and why."""
    reports = stages.gate(load_pipeline(pipeline.content), pipeline.source, pipeline.target)
    closed = [r for r in reports if r.status == "mismatch"]
    return {r.table: [f.what for f in r.findings if f.severity == "mismatch"] for r in closed}


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


def test_a_quiet_table_may_be_packed_years_after_a_column_was_granted(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    """Each alone changes no row. Nobody writes to the table, so no window ever locks it."""
    do(
        source_dsn,
        "CREATE TABLE old (id int PRIMARY KEY, v text); INSERT INTO old SELECT n, 'v' FROM generate_series(1, 20) n",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100); INSERT INTO parts VALUES (1)",
        "CREATE TABLE busy (id int PRIMARY KEY)",
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    move.run_all(until="replay")
    for number, (change, packed) in enumerate(
        [
            ("GRANT SELECT (v) ON old TO pg_monitor; GRANT SELECT (id) ON parts_1 TO pg_monitor", "VACUUM FULL {}"),
            (
                "ALTER TABLE old ALTER v SET STATISTICS 7; ALTER TABLE parts_1 ALTER id SET STATISTICS 7",
                "CLUSTER {0} USING {0}_pkey",
            ),
        ]
    ):
        do(source_dsn, *change.split("; "), f"INSERT INTO busy VALUES ({number})")
        assert not move.run("replay").blocked
        do(source_dsn, *(packed.format(table) for table in ("old", "parts_1")), f"DELETE FROM busy WHERE id = {number}")
        done = move.run("replay")
        assert not done.blocked
        assert done.figures["rows"] == 0, done.tables
    do(source_dsn, "ALTER TABLE old ALTER v TYPE text USING v || '!'")
    move.run("replay")
    assert differences(source_dsn, target_dsn) == []


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


def test_c04_a_rewrite_while_a_window_looks_at_a_table_that_it_has_nothing_to_do_with(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], at: failpoints.At
) -> None:
    """The server says which file a table is in by now, beside its columns as the window's snapshot shows them."""
    for name in ("idle", "busy"):
        do(source_dsn, f"CREATE TABLE public.{name} (id int PRIMARY KEY, v text)",
           f"INSERT INTO public.{name} SELECT n, 'v' FROM generate_series(1, 50) n")  # fmt: skip
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": "off"})
    move.run_all(until="replay")
    do(source_dsn, "UPDATE public.busy SET v = 'w' WHERE id = 1")
    rewrite = "ALTER TABLE public.idle ALTER COLUMN v TYPE text USING upper(v)"
    with at("replay.after_snapshot", failpoints.once(lambda: do(source_dsn, rewrite))):
        move.run("replay")
    for _ in range(2):
        do(source_dsn, "UPDATE public.busy SET v = v || '!' WHERE id = 1")
        move.run("replay")
    assert differences(source_dsn, target_dsn) == []
