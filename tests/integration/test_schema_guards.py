"""Ways in which the schema gate once could have lost, kept or mixed up values, one test each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do, one

Make = Callable[..., Lifecycle]

SMALL: dict[str, Any] = {"backfill": {"workers": 1}}
# The source's DDL is followed by nobody.
UNCAPTURED: dict[str, Any] = {"capture": {"ddl": "off"}, **SMALL}

ITEMS = """
    CREATE TABLE items (id int PRIMARY KEY, code text NOT NULL);
    INSERT INTO items SELECT n, 'c' || n FROM generate_series(1, 20) n
"""
SOMEBODYS = """
    CREATE TABLE archive (id int PRIMARY KEY, code text NOT NULL);
    INSERT INTO archive SELECT n, 'somebody''s' FROM generate_series(1, 20) n
"""


@pytest.fixture
def make(source_dsn: str, target_dsn: str, lifecycle: Make) -> Make:
    """Replaying, 16 to 18: the source's tables as they are given."""

    def made(tables: str = ITEMS, **pipeline: Any) -> Lifecycle:
        do(source_dsn, tables)
        move = lifecycle(source_dsn, target_dsn, **({"tables": {"include": ["public.*"]}} | SMALL | pipeline))
        move.run_all(until="replay")
        return move

    return made


def findings(pipeline: Lifecycle) -> list[str]:
    """What the gate is closed for."""
    reports = stages.gate(load_pipeline(pipeline.content), pipeline.source, pipeline.target)
    return [f.what for r in reports for f in r.findings if f.severity == "mismatch"]


def replays(pipeline: Lifecycle, **changed: Any) -> None:
    """Nothing is blocked, and the rows are equal."""
    assert not pipeline.run("replay", **changed).blocked
    assert differences(pipeline.source, pipeline.target) == []


# --- a copy that is not what it was -----------------------------------------------------------------------------------


def test_a_column_that_the_target_had_before_the_source_added_it_is_read(make: Make) -> None:
    """IF NOT EXISTS adds nothing there, so old rows have not got what they show on the source: `brought` takes a
    statement that was run for what it says."""
    move = make()
    do(move.target, "ALTER TABLE items ADD COLUMN state int")
    do(move.source, "ALTER TABLE items ADD COLUMN IF NOT EXISTS state int DEFAULT 5")
    replays(move)
    assert one(move.target, "SELECT count(*) FROM items WHERE state = 5") == 20


def test_a_column_that_comes_with_its_event_needs_no_rows_again(make: Make) -> None:
    move = make()
    do(move.source, "ALTER TABLE items ADD COLUMN IF NOT EXISTS state int DEFAULT 5")
    file = one(move.target, "SELECT pg_relation_filenode('items')")
    replays(move)
    assert one(move.target, "SELECT pg_relation_filenode('items')") == file


def test_a_partition_of_the_copy_that_was_made_again_is_read_again(make: Make) -> None:
    """The root is the same table with the same columns, which is all that a window looks at."""
    move = make("""
        CREATE TABLE items (id int PRIMARY KEY, code text) PARTITION BY RANGE (id);
        CREATE TABLE items_1 PARTITION OF items FOR VALUES FROM (0) TO (10);
        CREATE TABLE items_2 PARTITION OF items FOR VALUES FROM (10) TO (100);
        INSERT INTO items SELECT n, 'c' || n FROM generate_series(1, 20) n""")
    do(move.target, "DROP TABLE items_1", "CREATE TABLE items_1 PARTITION OF items FOR VALUES FROM (0) TO (10)")
    replays(move)
    file = one(move.target, "SELECT pg_relation_filenode('items_2')")
    do(move.source, "DROP TABLE items_1")
    replays(move)
    assert one(move.target, "SELECT pg_relation_filenode('items_2')") == file


def test_tables_that_trade_names_have_each_their_own_rows(make: Make) -> None:
    move = make(
        f"{ITEMS}; CREATE TABLE others (LIKE items INCLUDING ALL); INSERT INTO others VALUES (7, 'other')", **UNCAPTURED
    )
    do(
        move.source,
        "ALTER TABLE items RENAME TO aside; ALTER TABLE others RENAME TO items;"
        " ALTER TABLE aside RENAME TO others; UPDATE items SET code = 'changed'",
    )
    replays(move)


# --- tables of somebody else ------------------------------------------------------------------------------------------


def test_a_table_that_has_a_renamed_tables_name_on_the_target_is_left_alone(make: Make) -> None:
    """It would be taken for a copy that was made again, and emptied."""
    move = make(**UNCAPTURED)
    do(move.target, SOMEBODYS)
    do(move.source, "ALTER TABLE items RENAME TO archive", "UPDATE archive SET code = 'changed' WHERE id = 3")
    assert move.run("replay").blocked
    (what,) = findings(move)
    assert "another table of the name public.archive" in what
    assert one(move.target, "SELECT count(*) FROM archive WHERE code = 'somebody''s'") == 20
    (report,) = stages.gate(load_pipeline(move.content), move.source, move.target)
    do(move.target, *report.findings[0].fix)
    assert one(move.target, "SELECT count(*) FROM archive_before_pgddl WHERE code = 'somebody''s'") == 20
    do(move.target, "DROP TABLE archive_before_pgddl")
    replays(move)


def test_a_table_that_a_new_tables_event_found_on_the_target_is_not_emptied(make: Make) -> None:
    """CREATE TABLE IF NOT EXISTS made nothing there: what has the name is no copy."""
    move = make()
    do(move.target, SOMEBODYS)
    do(move.source, SOMEBODYS.replace("TABLE", "TABLE IF NOT EXISTS").replace("somebody''s", "ours"))
    (blocked,) = move.run("replay").blocked
    assert blocked["table"] == "public.archive" and "with rows of its own" in blocked["reason"]
    assert one(move.target, "SELECT count(*) FROM archive WHERE code = 'somebody''s'") == 20
    do(move.target, "TRUNCATE archive")
    replays(move)


@pytest.mark.parametrize("policy", ["drop", "null"])
def test_a_new_column_with_the_name_of_one_that_both_sides_have_lost_is_somebodys_own(make: Make, policy: str) -> None:
    """The policy is about the column that the source had."""
    schema = {"source_removed_columns": policy, "force": True}
    move = make(
        "CREATE TABLE items (id int PRIMARY KEY, code text, note text); INSERT INTO items VALUES (1, 'a', 'b')",
        **UNCAPTURED,
        schema=schema,
    )
    do(move.source, "ALTER TABLE items DROP COLUMN note")
    assert not move.run("replay").blocked
    do(move.target, "ALTER TABLE items DROP COLUMN IF EXISTS note")
    assert not move.run("replay").blocked
    do(move.target, "ALTER TABLE items ADD COLUMN note text", "UPDATE items SET note = 'mine'")
    do(move.source, "UPDATE items SET code = 'changed'")
    assert not move.run("replay").blocked
    assert move.journal("SELECT code, note FROM items") == [("changed", "mine")]


# --- values that the copy alone has -----------------------------------------------------------------------------------

NOTED = ("ALTER TABLE items ADD COLUMN note text", "UPDATE items SET note = 'of ' || code")
STRAYED = "SELECT count(*) FROM items WHERE note <> 'of ' || code"
LOST = "SELECT count(*) FROM items WHERE note IS NULL"


def test_kept_values_outlive_a_wider_key(make: Make) -> None:
    """Rows that have just changed are away from the copy when the event is applied: their values wait by a key of the
    type that it had."""
    move = make()
    do(move.target, *NOTED)
    assert not move.run("replay").blocked
    do(move.source, "UPDATE items SET id = id WHERE id < 5", "ALTER TABLE items ALTER id TYPE bigint")
    assert not move.run("replay").blocked
    assert (one(move.target, STRAYED), one(move.target, LOST)) == (0, 0)


def test_kept_values_never_come_to_another_rows_key(make: Make) -> None:
    """The new key is of the same type, so that values which wait by the old one would fit."""
    move = make("""
        CREATE TABLE items (id int PRIMARY KEY, other int NOT NULL, code text NOT NULL);
        INSERT INTO items SELECT n, 21 - n, 'c' || n FROM generate_series(1, 20) n""")
    do(move.target, *NOTED)
    assert not move.run("replay").blocked
    do(
        move.source,
        "UPDATE items SET id = id WHERE id < 5",
        "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (other)",
    )
    (blocked,) = move.run("replay").blocked
    assert "has another key now, and 4 rows of it are away" in blocked["reason"]
    do(move.target, *blocked["reason"][blocked["reason"].index("CREATE TABLE") :].split(";")[:2])
    assert not move.run("replay").blocked
    assert one(move.target, STRAYED) == 0
    assert one(move.target, LOST) == one(move.target, "SELECT count(*) FROM public.put_aside") == 4


# --- what a swap lets through -----------------------------------------------------------------------------------------

UNCARRIED = {
    "ALTER TABLE items ALTER n SET DEFAULT 5": "ALTER TABLE items ALTER n DROP DEFAULT",
    "ALTER TABLE items ALTER n SET NOT NULL": "ALTER TABLE items ALTER n DROP NOT NULL",
    "ALTER TABLE items ALTER id SET INCREMENT BY 10": "ALTER TABLE items ALTER id SET INCREMENT BY 1",
    "ALTER TABLE items SET (fillfactor = 50)": "ALTER TABLE items RESET (fillfactor)",
    "ALTER TABLE items ALTER n SET STATISTICS 500": "ALTER TABLE items ALTER n SET STATISTICS -1",
    "ALTER SEQUENCE items_s_seq MAXVALUE 1000": "ALTER SEQUENCE items_s_seq NO MAXVALUE",
}


def test_what_nobody_carried_keeps_a_swap_away_also_where_the_columns_are_equal_but_for_one(make: Make) -> None:
    """A finding on a column, of its type, is no excuse for what else changed of it, nor are equal columns one for what
    a table is set to."""
    move = make(
        """CREATE TABLE items (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, n int, s serial);
        INSERT INTO items (n) SELECT n FROM generate_series(1, 20) n""",
        **UNCAPTURED,
        verify={"before_swap": False},
    )
    do(move.target, "ALTER TABLE items ALTER n TYPE bigint")
    for change, undo in UNCARRIED.items():
        do(move.source, change)
        assert "changed since the snapshot" in str(move.refused("swap", PreflightRefused)), change
        do(move.source, undo)
    for dsn in (move.source, move.target):
        do(dsn, "ALTER TABLE items ADD COLUMN more int DEFAULT 1, ADD CHECK (n > 0), ALTER n SET NOT NULL")
    assert not move.run("swap").blocked


# --- labels -----------------------------------------------------------------------------------------------------------


def test_the_fix_for_a_label_that_the_source_has_renamed_renames_it(make: Make) -> None:
    """Added as a new one it would leave the old one in rows that are not written again."""
    move = make(
        """CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad');
        CREATE TABLE items (id int PRIMARY KEY, mood mood);
        INSERT INTO items SELECT n, (enum_range(NULL::mood))[1 + n % 3] FROM generate_series(1, 20) n""",
        **UNCAPTURED,
    )
    do(
        move.source,
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'well'",
        "ALTER TYPE mood ADD VALUE 'calm' BEFORE 'sad'",
    )
    do(move.source, "UPDATE items SET mood = 'calm' WHERE id = 3")
    assert move.run("replay").blocked
    (report,) = stages.gate(load_pipeline(move.content), move.source, move.target)
    do(move.target, *report.findings[0].fix)
    replays(move)
