"""The scenarios of schema evolution, each from the difference to its end, while an application goes on writing: what is
said, what is recorded, whom it stops, what the sensor and `pgddl schema validate` make of it, the way out as it was
printed, and that every row arrives."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.following import row_comparison
from airflow_provider_pgddl.engine.rows import chunks
from airflow_provider_pgddl.engine.swapping import across
from tests.integration.calls import before_each
from tests.integration.lifecycle import Lifecycle, wait_until
from tests.integration.sessions import do, one
from tests.integration.shells import SchemaShell
from tests.integration.stories import (
    LEFT_OUT,
    OTHERS,
    Application,
    MadeStory,
    Story,
    boxed,
    columns,
    said,
    text,
    writes,
)

Make = Callable[..., Lifecycle]

OFF: dict[str, Any] = {"capture": {"ddl": "off"}}
SMALL: dict[str, Any] = {"backfill": {"chunk_bytes": "64kB", "workers": 1}}
# How the source's DDL comes to be followed by nobody: it is not captured at all, or this statement was left out.
UNFOLLOWED = pytest.mark.parametrize("unfollowed", ["capture_off", "statement_left_out"])


@pytest.fixture
def story(
    lifecycle: Make, source_dsn: str, target_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[MadeStory]:
    """``story({"users": "name text"}, until="replay")``: these tables, each with id and phase, and rows in them."""
    applications = []

    def make(
        tables: Mapping[str, str], *, before: str = "", until: str = "replay", unfollowed: str = "capture_off",
        values: Mapping[str, str] | None = None, **sections: Any,
    ) -> Story:  # fmt: skip
        do(source_dsn, *([before] if before else []))
        for table, own in {**tables, "others": ""}.items():
            do(
                source_dsn,
                f"CREATE TABLE {table} (id integer PRIMARY KEY, phase text{', ' * bool(own)}{own})",
                f"INSERT INTO {table} (id, phase) SELECT n, 'before' FROM generate_series(1, 300) n",
            )
        sections = {**SMALL, **(OFF if unfollowed == "capture_off" else {}), **sections}
        move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **sections)
        statements = [s for table in tables for s in writes(table, (values or {}).get(table, ""))]
        application = Application(source_dsn, *OTHERS, *statements)
        applications.append(application)
        application.__enter__()
        move.run_all(until=until)
        return Story(move, SchemaShell(move, tmp_path / "shop.yaml", capsys), application)

    yield make
    for application in applications:
        application.stop()


# --- 1: a column was added to the source ----------------------------------------------------------------------------

ADDED = "Source has new column 'phone_number' not in target"
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


REQUIRED = "Target has new column 'created_by_system' (NOT NULL, no DEFAULT)"
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


# --- 3: a type that loses something ---------------------------------------------------------------------------------

LOSSY = "Type mismatch on public.products.price: numeric(10,2) on the source, integer on the target"
LOSSY_LINES = text("""
    [ERROR] Type mismatch on public.products.price
      Source: numeric(10,2)
      Target: integer

      Casting would lose precision (19.99 → 20)

      Fix:
        1. Match types (RECOMMENDED):
           ALTER TABLE public.products ALTER COLUMN price TYPE numeric(10,2);
        2. Or explicitly allow cast (DATA LOSS):
           pgddl run replay -p shop.yaml --allow-type-cast=public.products.price:integer --force
           (in the pipeline file: schema.allow_type_cast: {public.products.price: integer} with schema.force: true)
        3. Or allow all casts (DANGEROUS):
           pgddl run replay -p shop.yaml --allow-schema-drift=type_casts --force
           (in the pipeline file: schema.allow_schema_drift: [type_casts] with schema.force: true)
""")
LOSSY_BOX = text("""
    SYNC STOPPED: Type Mismatch
    Table: public.products
    Column: price

    Problem:
      Source: numeric(10,2) - e.g., 19.99
      Target: integer       - e.g., 20

    Impact:
      Casting would lose precision (19.99 → 20)
      Rows inserted/updated since schema change: ~N

    Fix (RECOMMENDED):
      Match target type to source:

      ALTER TABLE public.products
      ALTER COLUMN price TYPE numeric(10,2);

    Alternative (DATA LOSS):
      Explicitly allow cast:

      pgddl run replay -p shop.yaml \\
      --allow-type-cast=public.products.price:integer --force
      (in the pipeline file: schema.allow_type_cast:
      {public.products.price: integer} with schema.force: true)

    Alternative (DANGEROUS):
      Allow all casts:

      pgddl run replay -p shop.yaml \\
      --allow-schema-drift=type_casts --force
      (in the pipeline file: schema.allow_schema_drift:
      [type_casts] with schema.force: true)

    More info:
      pgddl schema diff -p shop.yaml --table public.products
""")
# What a column was on both sides, what the source makes of it, and what is written then and would not fit.
NARROW = {
    "big": ("integer", "bigint", "9000000000000000000"),
    "note": ("varchar(5)", "text", "'longer than five'"),
    "name": ("char(3)", "varchar(20)", "'blank at the end '"),
    "at": ("date", "timestamptz", "'2026-07-01 12:34:56.789+02'"),
    "shot": ("timestamp(0)", "timestamp", "'2026-07-01 12:34:56.789'"),
    "ratio": ("real", "double precision", "0.1234567890123456"),
    "rate": ("numeric(6,2)", "numeric(12,4)", "12345678.1234"),
    "code": ("integer", "text", "'A-1'"),
    "mood": ("mood", "mood_now", "'elated'"),
    "tags": ("integer[]", "bigint[]", "'{9000000000000000000}'"),
    "flag": ("boolean", "integer", "7"),
}
MOODS = "CREATE TYPE mood AS ENUM ('calm'); CREATE TYPE mood_now AS ENUM ('calm', 'elated')"


@UNFOLLOWED
def test_3_a_type_that_would_lose_something_stops_until_both_have_the_same(story: MadeStory, unfollowed: str) -> None:
    told = story(
        {"products": "price integer", "measures": ", ".join(f"{c} {was}" for c, (was, _, _) in NARROW.items())},
        before=MOODS,
        values={"products": "price = 20"},
        unfollowed=unfollowed,
    )
    do(told.move.source, "UPDATE measures SET big = id, note = id, code = id, at = '2026-01-01', flag = id < 9")
    told.on_source(
        "ALTER TABLE products ALTER price TYPE numeric(10,2)",
        "ALTER TABLE measures "
        + ", ".join(f"ALTER {c} TYPE {now} USING {c}::text::{now}" for c, (_, now, _) in NARROW.items() if c != "flag")
        + ", ALTER flag TYPE integer USING flag::integer",
        then=[
            *writes("products", "price = 19.99"),
            *writes("measures", ";".join(f"{c} = {value}" for c, (_, _, value) in NARROW.items())),
        ],
    )
    first = "Type mismatch on public.measures.big: bigint on the source, integer on the target"
    reports = told.closed(products=LOSSY, measures=first, looked=unfollowed == "capture_off")
    assert said(reports["products"]) == LOSSY_LINES
    assert boxed(reports["products"]) == LOSSY_BOX
    assert reports["products"].resolution == "Fix target schema or use --allow-type-cast"
    stops = [f for f in reports["measures"].findings if f.severity == "mismatch"]
    assert [(f.column, f.kind, f.metric) for f in stops] == [(c, "type_mismatch", "unsafe_cast") for c in NARROW]
    assert one(told.move.target, "SELECT count(*) FROM products WHERE price <> 20") == 0
    for report in reports.values():
        told.fix(report)
    told.open("products", "measures")
    told.move.run_all(after="replay", until="swap")
    for table in ("products", "measures"):
        assert columns(told.move.target, table) == columns(told.move.source, table)
    assert one(told.move.target, "SELECT count(*) FROM products WHERE price = 19.99") > 7
    assert one(told.move.target, "SELECT count(*) FROM measures WHERE mood = 'elated' AND big > 8e18") > 7


# --- 4: a type that takes every value -------------------------------------------------------------------------------

WIDER_LINES = text("""
    [INFO] Type difference on public.users.id
      Source: integer
      Target: bigint
      Safe widening cast - continuing
""")
# What the source has, what a person makes of it on the target, and a value at the edge of it.
WIDER = {
    "small": ("smallint", "integer", "-32768"),
    "whole": ("integer", "bigint", "2147483647"),
    "exact": ("integer", "numeric", "-2147483648"),
    "code": ("varchar(10)", "varchar(20)", "'ten chars!'"),
    "note": ("varchar(10)", "text", "'ends in   '"),
    "day": ("date", "timestamp", "'0044-03-15 BC'"),
    "at": ("timestamp", "timestamptz", "'2026-03-29 02:30:00.123456'"),
    "ratio": ("real", "double precision", "0.1"),
    "price": ("numeric(8,2)", "numeric(12,4)", "999999.99"),
    "mood": ("mood", "text", "'calm'"),
    "positive": ("positive", "integer", "2147483647"),
    "list": ("integer[]", "bigint[]", "'{1,NULL,-2147483648}'"),
}
POSITIVE = "CREATE DOMAIN positive AS integer CHECK (VALUE > 0)"
MORE_MOODS = "ALTER TYPE mood ADD VALUE 'elated' BEFORE 'calm'"


@pytest.mark.parametrize("captured", ["capture_off", "captured"])
def test_4_a_wider_type_on_the_target_goes_on(story: MadeStory, captured: str) -> None:
    told = story(
        {"users": ", ".join(f"{c} {was}" for c, (was, _, _) in WIDER.items()) + ", temper mood DEFAULT 'calm'"},
        before=f"{MOODS}; {POSITIVE}",
        values={"users": ";".join(f"{c} = {value}" for c, (_, _, value) in WIDER.items())},
        unfollowed=captured,
    )
    told.on_target(
        MORE_MOODS,
        "ALTER TABLE users ALTER id TYPE bigint, "
        + ", ".join(f"ALTER {c} TYPE {now} USING {c}::text::{now}" for c, (_, now, _) in WIDER.items()),
    )
    report = told.gate()["public.users"]
    assert said(report).startswith(WIDER_LINES + "\n[INFO]")
    assert {(f.column, f.kind, f.severity) for f in report.findings} == {
        (c, "safe_cast", "info") for c in ("id", *WIDER)
    }
    told.open("users")
    assert columns(told.move.target, "users")["id"] == "bigint"
    assert one(told.move.target, "SELECT at AT TIME ZONE 'UTC' FROM users WHERE id > 1000 LIMIT 1") == one(
        told.move.source, "SELECT at FROM users WHERE id > 1000 LIMIT 1"
    )


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


# --- at any moment --------------------------------------------------------------------------------------------------

CHECKED = "Target has constraint 'short' that source does not have: CHECK ((length(phase) < 1000))"
# Where a mismatch arises, what is done, and what is said then: a chunk sees its table changed, or its copy; and what
# neither shows is seen by the timer.
IN_THE_MIDDLE = {
    "source": (ADDED, ["ALTER TABLE users ADD COLUMN phone_number varchar DEFAULT 'none'"]),
    "source, left out": (ADDED, ["ALTER TABLE users ADD COLUMN phone_number varchar DEFAULT 'none'"]),
    "target": (
        REQUIRED,
        [
            "ALTER TABLE users ADD COLUMN created_by_system text NOT NULL DEFAULT ''",
            "ALTER TABLE users ALTER created_by_system DROP DEFAULT",
        ],
    ),
    "timer": (CHECKED, ["ALTER TABLE users ADD CONSTRAINT short CHECK (length(phase) < 1000)"]),
}


@pytest.mark.parametrize("where", IN_THE_MIDDLE)
def test_a_mismatch_in_the_middle_of_a_backfill_stops_its_table_there(
    story: MadeStory, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    error, statements = IN_THE_MIDDLE[where]
    on_source = where.startswith("source")
    told = story(
        {"users": "filler text NOT NULL DEFAULT repeat('x', 400)"},
        until="snapshot",
        unfollowed="statement_left_out" if where == "source, left out" else "capture_off",
        backfill={"chunk_bytes": "16kB", "workers": 1},
        schema={"validation_interval": "50ms" if where == "timer" else "1h"},
    )
    copy, copied = chunks._Worker._copy, list[str]()

    def changed_and_copied(worker: chunks._Worker, claimed: Sequence[chunks._Chunk], watch: Any) -> Any:
        copied.extend(chunk.table.plan.name for chunk in claimed)
        if copied.count("users") == 3 and told.application.phase == "before":
            (told.on_source if on_source else told.on_target)(*statements)
            if where == "timer":
                wait_until(lambda: told.history("users")[-1:] == [("mismatch", True, error)])
        return copy(worker, claimed, watch)

    monkeypatch.setattr(chunks._Worker, "_copy", changed_and_copied)
    result = told.move.run("backfill")
    assert result.exit_code == 3
    assert [(b["table"], b["reason"]) for b in result.blocked] == [("public.users", error)]
    assert copied.count("users") == 3
    assert dict(told.move.journal("SELECT table_name, state FROM pgddl.tables")) == {
        "users": "created",
        "others": "backfilled",
    }
    assert told.move.run("schema_sync").exit_code == 3
    report = told.closed(users=error, looked=where != "source, left out")["users"]
    assert error in str(told.move.refused("swap", PreflightRefused))
    assert copied.count("users") == 3
    told.fix(report)
    told.open("users", users="warning" if where == "target" else "compatible")
    assert copied.count("users") > 3
    told.move.run("verify")
    if on_source:
        # The fix lets rows go on; what applications will miss on the target is asked for before they come there.
        refusal = str(told.move.refused("swap", PreflightRefused))
        assert "DEFAULT 'none'" in refusal
        assert "make the target the same (of a table DEFAULT, NOT NULL and CHECK too)" in refusal
        do(told.move.target, "ALTER TABLE users ALTER phone_number SET DEFAULT 'none'")
    told.move.run("swap")


def test_a_mismatch_between_two_stages_is_met_by_the_next(story: MadeStory) -> None:
    """After the indexes are built, and before the first window."""
    told = story(
        {"added": "", "renamed": "name text", "retyped": "price integer", "required": "", "checked": ""},
        until="schema_sync",
        values={"renamed": "name = 'n'"},
    )
    told.on_source(
        "ALTER TABLE added ADD COLUMN phone_number varchar",
        "ALTER TABLE renamed RENAME COLUMN name TO full_name",
        "ALTER TABLE retyped ALTER price TYPE numeric(10,2)",
        then=[
            *writes("added", "phone_number = '1'"),
            *writes("renamed", "full_name = 'full'"),
            *writes("retyped", "price = 19.99"),
            *writes("required"),
            *writes("checked"),
        ],
    )
    told.on_target(
        *(statement.replace("users", "required") for statement in IN_THE_MIDDLE["target"][1]),
        *(statement.replace("users", "checked") for statement in IN_THE_MIDDLE["timer"][1]),
    )
    reports = told.closed(
        added=ADDED,
        renamed="Source has renamed column 'name' to 'full_name', target has not",
        retyped=LOSSY.replace("products", "retyped"),
        required=REQUIRED,
        checked=CHECKED,
    )
    for report in reports.values():
        told.fix(report)
    told.open(*reports, required="warning")
    for table in ("added", "renamed", "retyped", "checked"):
        assert columns(told.move.target, table) == columns(told.move.source, table)
    told.move.run_all(after="replay", until="swap")


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_mismatch_during_verify_or_right_before_the_swap_keeps_it_from_happening(
    story: MadeStory, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    told = story({"users": ""})
    move = told.move

    def statements(number: int) -> tuple[list[str], str]:
        if side == "source":
            error = f"Source has new column 'late_{number}' not in target"
            return [
                f"ALTER TABLE users ADD COLUMN late_{number} text",
                f"UPDATE users SET late_{number} = 'given' WHERE id < 200",
            ], error
        error = f"Target has new column 'late_{number}' (NOT NULL, no DEFAULT)"
        return [
            f"ALTER TABLE users ADD COLUMN late_{number} text NOT NULL DEFAULT ''",
            f"ALTER TABLE users ALTER late_{number} DROP DEFAULT",
        ], error

    def change(number: int) -> None:
        (told.on_source if side == "source" else told.on_target)(*statements(number)[0])

    with monkeypatch.context() as while_comparing:
        before_each(while_comparing, row_comparison, "one_window", lambda n: change(1) if n == 1 else None)
        result = move.run("verify")
    assert result.exit_code == 3
    assert [b["table"] for b in result.blocked] == ["public.users"]
    assert "others" in str(result.tables)
    assert statements(1)[1] in str(move.refused("swap", PreflightRefused))
    told.fix(told.closed(users=statements(1)[1])["users"])
    move.run_all(after="schema_sync", until="verify")

    change(2)
    assert statements(2)[1] in str(move.refused("swap", PreflightRefused))
    told.fix(told.closed(users=statements(2)[1])["users"])
    told.open("users", users="warning" if side == "target" else "compatible")
    move.run("verify")

    dsn = move.source if side == "source" else move.target
    with monkeypatch.context() as while_swapping:
        before_each(while_swapping, across, "refuse_unready", lambda n: do(dsn, *statements(3)[0]) if n == 1 else None)
        assert statements(3)[1] in str(move.refused("swap", PreflightRefused))
    told.fix(told.gate()["public.users"])
    move.run_all(after="schema_sync", until="swap")
    assert told.arrived("users") == {"before", "during", "after"}
    assert move.journal("SELECT cut_over_at IS NOT NULL FROM pgddl.pipelines") == [(True,)]
