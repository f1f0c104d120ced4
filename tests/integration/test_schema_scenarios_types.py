"""The scenarios of types that differ, each from the difference to its end, while an application goes on writing, as
`test_schema_scenarios` has those of columns."""

from __future__ import annotations

import pytest

from tests.integration.sessions import do, one
from tests.integration.stories import LOSSY, UNFOLLOWED, MadeStory, boxed, columns, said, text, writes

# --- 3: a type that loses something ---------------------------------------------------------------------------------

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
