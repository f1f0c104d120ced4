"""The scenarios of schema evolution, each from the difference to its end, while an application goes on writing: what is
said, what is recorded, whom it stops, what the sensor and `pgddl schema validate` make of it, the way out as it was
printed, and that every row arrives. Those of columns; `test_schema_scenarios_types` has those of types."""

from __future__ import annotations

import shlex

import pytest

from tests.integration.sessions import do, one
from tests.integration.stories import (
    ADDED,
    LEFT_OUT,
    OTHERS,
    REQUIRED,
    UNFOLLOWED,
    MadeStory,
    boxed,
    columns,
    said,
    text,
    writes,
)

# --- 1: a column was added to the source ----------------------------------------------------------------------------

ADDED_LINES = text("""
    [ERROR] Schema mismatch detected on public.users
      Source has new column: 'phone_number' (type: character varying)
      Target does not have this column

      Sync STOPPED to prevent data loss.

      Actions:
        1. Add column to target (RECOMMENDED):
           ALTER TABLE public.users ADD COLUMN phone_number character varying;
        2. Or explicitly skip this column (NOT RECOMMENDED - data loss):
           pgddl run replay -p shop.yaml --skip-columns=public.users.phone_number
           (in the pipeline file: tables.skip_columns: [public.users.phone_number])
        3. Or allow all source-only columns (DANGEROUS):
           pgddl run replay -p shop.yaml --allow-schema-drift=source_superset --force
           (in the pipeline file: schema.allow_schema_drift: [source_superset] with schema.force: true)
""")
ADDED_BOX = text("""
    SYNC STOPPED: Schema Mismatch
    Table: public.users

    Problem:
      Source database has new column 'phone_number' (character
      varying)
      Target database does not have this column

    Impact:
      If sync continues, phone_number data will be LOST
      Rows inserted/updated since schema change: ~N

    Fix (RECOMMENDED):
      Add column to target database:

      ALTER TABLE public.users
      ADD COLUMN phone_number character varying;

    Alternative (NOT RECOMMENDED - DATA LOSS):
      Explicitly skip this column:

      pgddl run replay -p shop.yaml \\
      --skip-columns=public.users.phone_number
      (in the pipeline file: tables.skip_columns:
      [public.users.phone_number])

    Alternative (DANGEROUS):
      Allow all source-only columns:

      pgddl run replay -p shop.yaml \\
      --allow-schema-drift=source_superset --force
      (in the pipeline file: schema.allow_schema_drift:
      [source_superset] with schema.force: true)

    More info:
      pgddl schema diff -p shop.yaml --table public.users
""")


@UNFOLLOWED
def test_1_a_column_added_to_the_source_stops_until_the_target_has_it(story: MadeStory, unfollowed: str) -> None:
    told = story({"users": "name text"}, unfollowed=unfollowed)
    told.on_source(
        "ALTER TABLE users ADD COLUMN phone_number varchar", then=writes("users", "phone_number = '+49 ' || %(n)s")
    )
    report = told.closed(users=ADDED, looked=unfollowed == "capture_off")["users"]
    assert said(report) == ADDED_LINES
    assert boxed(report) == ADDED_BOX
    assert report.resolution == "Add column to target or use --skip-columns"
    told.fix(report)
    told.open("users")
    told.move.run_all(after="replay", until="swap")
    assert columns(told.move.target, "users") == columns(told.move.source, "users")
    assert one(told.move.target, "SELECT count(*) FROM users WHERE id < 1000 AND phone_number LIKE '+49 %'") == 7


# --- 2: a column was added to the target ----------------------------------------------------------------------------

EXTRA_LINES = text("""
    [WARN] Schema difference on public.users
      Target has extra column 'created_by_system' (nullable)
      This column will be NULL for all synced rows
      This is OK for audit/metadata columns
    [WARN] Schema difference on public.users
      Target has extra column 'origin' (DEFAULT 'pgddl'::text)
      This column will have its default for all synced rows
    [WARN] Schema difference on public.users
      Target has extra column 'number' (identity)
      The target numbers all synced rows by itself
    [WARN] Schema difference on public.users
      Target has extra column 'loud' (generated)
      The target computes its values
""")


def test_2_a_column_added_to_the_target_is_warned_of_where_rows_need_no_value_for_it(story: MadeStory) -> None:
    told = story({"users": "name text"}, values={"users": "name = 'n' || %(n)s"})
    told.on_target(
        "ALTER TABLE users ADD COLUMN created_by_system text",
        "ALTER TABLE users ADD COLUMN origin text NOT NULL DEFAULT 'pgddl'",
        "ALTER TABLE users ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY",
        "ALTER TABLE users ADD COLUMN loud text GENERATED ALWAYS AS (upper(name)) STORED",
        "UPDATE users SET created_by_system = 'by hand ' || id WHERE id <= 20",
    )
    reports = told.open("users", users="warning")
    assert said(reports["public.users"]) == EXTRA_LINES
    new = "FROM users WHERE id > 1000 AND phase LIKE 'after%'"
    assert one(told.move.target, f"SELECT count(*) {new}") > 0
    assert one(told.move.target, f"SELECT count(*) {new} AND (created_by_system IS NOT NULL OR origin <> 'pgddl')") == 0
    assert one(told.move.target, f"SELECT count(*) {new} AND (number IS NULL OR loud <> upper(name))") == 0
    # What the target has of its own stays, also where the application has changed the row since.
    assert one(told.move.target, "SELECT count(*) FROM users WHERE created_by_system = 'by hand ' || id") == 20


REQUIRED_LINES = text("""
    [ERROR] Schema mismatch on public.users
      Target has new column 'created_by_system' (NOT NULL, no DEFAULT)
      Source does not have this column

      Cannot insert rows - column requires a value

      Fix:
        ALTER TABLE public.users ALTER COLUMN created_by_system DROP NOT NULL;
        -- OR --
        ALTER TABLE public.users ALTER COLUMN created_by_system SET DEFAULT 'pgddl';
""")
REQUIRED_BOX = text("""
    SYNC STOPPED: Schema Mismatch
    Table: public.users

    Problem:
      Target database has new column 'created_by_system' (NOT
      NULL, no DEFAULT)
      Source database does not have this column

    Impact:
      Cannot insert rows - column requires a value
      Rows inserted/updated since schema change: ~N

    Fix (RECOMMENDED):
      Let target database do without a value:

      ALTER TABLE public.users
      ALTER COLUMN created_by_system DROP NOT NULL;
      -- OR --
      ALTER TABLE public.users
      ALTER COLUMN created_by_system SET DEFAULT 'pgddl';

    More info:
      pgddl schema diff -p shop.yaml --table public.users
""")


@pytest.mark.parametrize("captured", ["capture_off", "captured"])
def test_2_a_column_of_the_target_that_needs_a_value_stops(story: MadeStory, captured: str) -> None:
    """`users` loses its NOT NULL, `people` gets a default: either is enough."""
    told = story({"users": "", "people": ""}, unfollowed=captured)
    for table in ("users", "people"):
        told.on_target(
            f"ALTER TABLE {table} ADD COLUMN created_by_system text NOT NULL DEFAULT 'old'",
            f"ALTER TABLE {table} ALTER created_by_system DROP DEFAULT",
        )
    reports = told.closed(users=REQUIRED, people=REQUIRED)
    assert said(reports["users"]) == REQUIRED_LINES
    assert boxed(reports["users"]) == REQUIRED_BOX
    told.fix(reports["users"], way=0)
    told.fix(reports["people"], way=1)
    told.open("users", "people", users="warning", people="warning")
    values = (
        "SELECT string_agg(DISTINCT coalesce(created_by_system, '-'), ' ') FROM {} WHERE id > 1000 AND phase ~ 'after'"
    )
    assert one(told.move.target, values.format("users")) == "-"
    assert one(told.move.target, values.format("people")) == "pgddl"


# --- 5: a column was removed from the source ------------------------------------------------------------------------

REMOVED = "Target has column 'legacy_id' that no longer exists in source"
REMOVED_LINES = text("""
    [ERROR] Schema mismatch on public.users
      Target has column 'legacy_id' that no longer exists in source

      Decide what to do with target column:
        1. Remove from target:
           ALTER TABLE public.users DROP COLUMN legacy_id;
        2. Keep existing values, stop updating:
           pgddl run replay -p shop.yaml --preserve-columns=public.users.legacy_id
           (in the pipeline file: schema.preserve_columns: [public.users.legacy_id])
        3. Set to NULL on all synced rows:
           pgddl run replay -p shop.yaml --null-removed-columns=public.users.legacy_id --force
           (in the pipeline file: schema.null_removed_columns: [public.users.legacy_id] with schema.force: true)
""")


@UNFOLLOWED
def test_5_a_column_removed_from_the_source_stops_until_somebody_decides(story: MadeStory, unfollowed: str) -> None:
    """`users` loses it, `kept` keeps its values, in `emptied` they become NULL."""
    tables = ("users", "kept", "emptied")
    told = story(
        dict.fromkeys(tables, "legacy_id integer DEFAULT 7"),
        values=dict.fromkeys(tables, "legacy_id = 100 + %(n)s"),
        unfollowed=unfollowed,
    )
    # A row that was written after the last replay has no value on the target to be kept.
    with told.application.between():
        told.move.run("replay")
        before = dict(told.move.journal("SELECT id, legacy_id FROM kept"))
        left_out = LEFT_OUT if unfollowed == "statement_left_out" else ""
        do(told.move.source, *(f"{left_out}ALTER TABLE {table} DROP COLUMN legacy_id" for table in tables))
        told.application.change(*OTHERS, *(s for table in tables for s in writes(table)))
    told.application.more()
    reports = told.closed(**dict.fromkeys(tables, REMOVED), looked=unfollowed == "capture_off")
    assert said(reports["users"]) == REMOVED_LINES
    assert boxed(reports["users"]).startswith("SYNC STOPPED: Schema Mismatch\nTable: public.users\n")
    preserve, null = (choice.flag for choice in reports["kept"].findings[0].choices)
    assert null == "--null-removed-columns=public.kept.legacy_id --force"

    told.fix(reports["users"])
    told.closed(kept=REMOVED, emptied=REMOVED)
    for table, way in {"kept": preserve, "emptied": null.replace("kept", "emptied")}.items():
        code, words = told.shell.say("validate", *shlex.split(way), "--tables", f"public.{table}")
        assert code == 0, words
        told.take(way)
    reports = told.open(*tables, kept="warning", emptied="warning")
    assert "Its values are kept, and not updated" in said(reports["public.kept"])
    assert "It is set to NULL on all synced rows" in said(reports["public.emptied"])
    assert columns(told.move.target, "users") == columns(told.move.source, "users")
    assert one(told.move.target, "SELECT count(legacy_id) FROM emptied") == 0
    now = dict(told.move.journal("SELECT id, legacy_id FROM kept"))
    assert {i: value for i, value in now.items() if i in before} == {i: v for i, v in before.items() if i in now}
    assert len(before.keys() & now.keys()) > 300
    assert len({before[i] for i in range(1, 8)}) == 7
    told.move.run_all(after="replay", until="swap")
    assert {value for i, value in now.items() if i not in before} <= {None, 7}


# --- 6: another order -----------------------------------------------------------------------------------------------


def test_6_the_order_of_columns_never_matters(story: MadeStory) -> None:
    """The target's is another one before rows are copied, and becomes yet another when they are there."""
    told = story(
        {"users": "name text, email text, age integer"},
        until="snapshot",
        values={"users": "name = 'n' || %(n)s; email = 'e' || %(n)s; age = %(n)s"},
    )
    again = "ALTER TABLE users DROP COLUMN name, ADD COLUMN name text"
    told.on_target(again)
    told.move.run_all(after="snapshot", until="replay")
    order = (
        "SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = 'users'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    assert one(told.move.target, order) == "id,phase,email,age,name"
    told.on_target("ALTER TABLE users DROP COLUMN email, ADD COLUMN email text")
    assert one(told.move.target, order) == "id,phase,age,name,email"
    reports = told.open("users")
    assert (said(reports["public.users"]), told.shell("diff", "--table", "users")[0]) == ("", 0)
    assert {status for status, _, _ in told.history("users")} == {"compatible"}
