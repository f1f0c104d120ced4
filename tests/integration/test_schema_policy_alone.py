"""Words of the schema policy one at a time: what becomes of rows, and of the target."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_pgddl import cli
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.parallel import spark
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.schema import flags
from airflow_provider_pgddl.engine.stages import StageResult
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle
from tests.integration.policy_tables import TABLE, UNCAPTURED
from tests.integration.sessions import do

Make = Callable[..., Lifecycle]

SHOP = """
    CREATE TABLE shop (id int PRIMARY KEY, who int NOT NULL, price text, legacy text, ssn text);
    INSERT INTO shop SELECT n, n, n::text, 'l' || n, 's' || n FROM generate_series(1, 20) n;
"""
EXCHANGE = [f"UPDATE shop SET id = {new} WHERE id = {old}" for old, new in ((1, -1), (2, 1), (-1, 2))]


@pytest.fixture
def shop(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, SHOP)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.shop"]}, **UNCAPTURED)


def unlike(move: Lifecycle, source: str, target: str | None = None) -> list[Any]:
    """Rows that only one side has, by these columns."""
    ours, theirs = move.on_source(f"SELECT {source} FROM shop"), move.journal(f"SELECT {target or source} FROM shop")
    return sorted(set(ours) ^ set(theirs), key=str) or ([] if len(ours) == len(theirs) else ["twice"])


def counted(move: Lifecycle, label: str) -> int:
    query = "SELECT coalesce(sum(value), 0)::int FROM pgddl.schema_counters WHERE name = 'rows_skipped' AND label = %s"
    ((rows,),) = move.journal(query, [label])
    return int(rows)


def blocked(result: StageResult) -> str:
    return "; ".join(b["reason"] for b in result.blocked)


def test_rows_without_a_skipped_column_are_counted(shop: Lifecycle) -> None:
    skip = {"tables": {"include": ["public.shop"], "skip_columns": {"public.shop": ["ssn"]}}}
    shop.content |= skip
    shop.run_all(until="replay")
    assert counted(shop, "column_mismatch") == 20
    assert shop.journal("SELECT DISTINCT ssn FROM shop") == [(None,)]
    do(shop.source, "UPDATE shop SET ssn = 'x' WHERE id <= 3", "INSERT INTO shop (id, who, ssn) VALUES (21, 21, 'y')")
    shop.run("replay")
    assert counted(shop, "column_mismatch") == 24
    assert shop.journal("SELECT DISTINCT ssn FROM shop") == [(None,)]
    assert unlike(shop, "id, who, price, legacy") == []
    shop.content["tables"] = {"include": ["public.shop"]}
    shop.run("replay")
    assert unlike(shop, "id, who, price, legacy, ssn") == []
    assert counted(shop, "column_mismatch") == 24


@pytest.mark.parametrize("state", ["setup", "snapshot", "backfill", "schema_sync", "replay"])
def test_a_skipped_column_stays_skipped_under_another_name_that_is_followed(
    source_dsn: str, target_dsn: str, lifecycle: Make, state: str
) -> None:
    """Captured DDL renames it, and its table, on both sides."""
    do(source_dsn, SHOP)
    tables = {"include": ["public.*"], "skip_columns": {"public.shop": ["ssn"]}}
    move = lifecycle(source_dsn, target_dsn, **UNCAPTURED | {"capture": {"ddl": "queue"}, "tables": tables})
    move.run_all(until=state)
    do(
        source_dsn,
        "UPDATE shop SET ssn = 'secret 1'",
        "ALTER TABLE shop RENAME ssn TO social",
        "UPDATE shop SET social = 'secret 2', price = 'after'",
        "ALTER TABLE shop RENAME TO store",
        "INSERT INTO store VALUES (30, 30, 'new', NULL, 'secret 3')",
        "CREATE VIEW shop AS TABLE store",
    )
    move.run_all(after=state, until="replay")
    assert move.run("replay").exit_code == 0
    store_without_secrets(move)


def store_without_secrets(move: Lifecycle) -> None:
    assert move.journal("SELECT DISTINCT social FROM store WHERE social LIKE 'secret%'") == []
    columns = "id, who, price, legacy"
    assert set(move.journal(f"SELECT {columns} FROM store")) == set(move.on_source(f"SELECT {columns} FROM store"))


@pytest.mark.parametrize("first", ["table", "column"])
def test_a_skipped_column_stays_skipped_under_another_name_given_by_hand(shop: Lifecycle, first: str) -> None:
    """On both sides, one name after the other."""
    shop.content["tables"] = {"include": ["public.shop"], "skip_columns": {"public.shop": ["ssn"]}}
    shop.run_all(until="replay")
    renames = ["ALTER TABLE shop RENAME TO store", "ALTER TABLE {} RENAME ssn TO social"]
    for rename in renames if first == "table" else reversed(renames):
        here = "store" if first == "table" else "shop"
        do(shop.source, rename.format(here))
        assert blocked(shop.run("replay"))
        do(shop.target, rename.format(here))
        assert not blocked(shop.run("replay"))
    do(shop.source, "UPDATE store SET social = 'secret', price = 'after'")
    shop.run("replay")
    store_without_secrets(shop)
    do(shop.target, "VACUUM FULL store", "ALTER TABLE store ALTER price TYPE varchar(10)")
    shop.content["schema"] = {"type_mismatches": "cast_always", "force": True}
    assert not blocked(shop.run("replay"))
    store_without_secrets(shop)


def test_a_table_that_starts_over_copies_no_skipped_column_under_its_new_name(shop: Lifecycle) -> None:
    """Its number is forgotten with the table, so the file has to name what it has become."""
    tables: dict[str, Any] = {"include": ["public.shop"], "skip_columns": {"public.shop": ["ssn"]}}
    shop.content |= {"tables": tables, "capture": {"ddl": "queue"}}
    shop.run_all(until="replay")
    do(shop.source, "ALTER TABLE shop RENAME ssn TO social", "UPDATE shop SET social = 'secret'")
    shop.run("replay")
    stages.reset(load_pipeline(shop.content), shop.source, shop.target, tables=["public.shop"])
    assert "has no column ssn" in str(shop.refused("setup"))
    do(shop.source, "ALTER TABLE shop RENAME TO store")
    tables["include"] = ["public.*"]
    shop.journal("UPDATE pgddl.pipelines SET config = jsonb_set(config, '{tables,include}', '[\"public.*\"]')")
    assert "public.shop is not on the source" in str(shop.refused("setup"))
    do(shop.source, "ALTER TABLE store RENAME TO shop")
    tables["skip_columns"] = {"public.shop": ["social"]}
    shop.run_all(until="replay")
    assert shop.journal("SELECT DISTINCT social FROM shop") == [(None,)]
    assert unlike(shop, "id, who, price, legacy") == []


CASTING = {"schema": {"allow_type_cast": {"public.shop.price": "integer"}, "force": True}}
TO_INT = "ALTER TABLE shop ALTER price TYPE integer USING price::integer"


@pytest.mark.parametrize("state", matrix("snapshot", "backfill", "replay"))
@pytest.mark.parametrize("mended", ["source", "target"])
def test_a_value_that_cannot_be_cast_stops_its_table_and_nothing_is_lost(
    shop: Lifecycle, state: str, mended: str
) -> None:
    shop.content |= CASTING
    shop.run_all(until=state)
    do(shop.target, TO_INT)
    if state == "replay":
        shop.run("replay")
        assert unlike(shop, "id, who, price::integer", "id, who, price") == []
    do(shop.source, "UPDATE shop SET price = 'none' WHERE id = 7", "UPDATE shop SET price = '700' WHERE id = 8")
    later = ["backfill", "schema_sync", "replay"]
    for stage in later:
        if "invalid input syntax" in blocked(result := shop.run(stage)):
            break
    else:
        pytest.fail("nothing has stopped it")
    assert result.exit_code == 3
    assert counted(shop, "cast_error") > 0
    assert "invalid input syntax" in blocked(shop.run(stage))
    do(shop.source, "UPDATE shop SET price = '900' WHERE id = 9", "DELETE FROM shop WHERE id = 10")
    if mended == "source":
        do(shop.source, "UPDATE shop SET price = '7.4'::numeric::integer::text WHERE id = 7")
    else:
        do(shop.target, "ALTER TABLE shop ALTER price TYPE text")
    for stage in later:
        assert not blocked(shop.run(stage))
    assert unlike(shop, "id, who, price, legacy, ssn", "id, who, price::text, legacy, ssn") == []
    assert shop.journal("SELECT price::text FROM shop WHERE id = 8") == [("700",)]


@pytest.mark.parametrize("exchanged", ["before", "after"])
def test_preserved_values_follow_keys_that_were_exchanged_while_rows_were_copied(
    shop: Lifecycle, exchanged: str
) -> None:
    """Before their blocks were read, or after."""
    shop.content |= {"schema": {"source_removed_columns": "preserve"}}
    shop.run_all(until="snapshot")
    if exchanged == "before":
        do(shop.source, *EXCHANGE)
    shop.run("backfill")
    if exchanged == "after":
        do(shop.source, *EXCHANGE)
    do(shop.source, "ALTER TABLE shop DROP COLUMN legacy")
    shop.run("schema_sync")
    shop.run("replay")
    assert unlike(shop, "id, who, price, ssn") == []
    assert shop.journal("SELECT who, legacy FROM shop WHERE legacy <> 'l' || who") == []
    assert shop.journal("SELECT count(*) FROM shop WHERE legacy IS NULL") == [(0,)]


# --- the target is altered by ourselves -------------------------------------------------------------------------------

WIDER = [
    "ALTER TABLE shop ADD COLUMN phone varchar(20)",
    "UPDATE shop SET phone = 'p' || who",
    "ALTER TABLE shop ALTER who TYPE bigint",
    "INSERT INTO shop VALUES (30, 3000000000, 'new', NULL, NULL, 'new')",
]
SHAPE = (
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
    " WHERE attrelid = 'shop'::regclass AND attname IN ('who', 'phone') AND NOT attisdropped"
)
BOTH = ["add_column", "safe_type_change"]


@pytest.fixture
def pgddl(shop: Lifecycle, tmp_path: Path) -> Callable[..., int]:
    """``pgddl("schema", "sync", "--apply")`` of the shop's pipeline: the exit code."""

    def call(*args: str) -> int:
        file = tmp_path / "shop.yaml"
        file.write_text(yaml.safe_dump(shop.content))
        return cli.main([*args, "-p", str(file)])

    return call


@pytest.mark.parametrize("state", matrix("snapshot", "backfill", "replay"))
@pytest.mark.parametrize("approval", ["auto", "required"])
def test_auto_migrate_alters_the_target_and_fills_rows_that_were_copied_before(
    shop: Lifecycle, pgddl: Callable[..., int], state: str, approval: str
) -> None:
    shop.content["schema"] = {"auto_migrate": {"types": BOTH, "approval": approval}}
    shop.run_all(until=state)
    do(shop.source, *WIDER)
    before = shop.journal(SHAPE)
    later = ["backfill", "schema_sync", "replay"]
    if approval == "required":
        why = blocked(shop.run("replay" if state == "replay" else "backfill"))
        assert "Source has new column 'phone'" in why
        assert why.count("waits for approval: pgddl schema sync --apply") == 2
        assert shop.journal(SHAPE) == before
        assert pgddl("schema", "sync", "--dry-run") == 3
        assert shop.journal(SHAPE) == before
        assert pgddl("schema", "sync", "--apply") == 0
    for stage in later:
        assert not blocked(shop.run(stage))
    assert sorted(shop.journal(SHAPE)) == [("phone", "character varying(20)"), ("who", "bigint")]
    assert unlike(shop, "id, who, price, legacy, ssn, phone") == []


@pytest.mark.parametrize(("types", "left"), [(["add_column"], "bigint"), (["safe_type_change"], "'phone'")])
def test_auto_migrate_does_what_it_is_asked_for_only(shop: Lifecycle, types: list[str], left: str) -> None:
    shop.content["schema"] = {"auto_migrate": {"types": types, "approval": "auto"}}
    shop.run_all(until="replay")
    do(shop.source, *WIDER)
    assert left in blocked(shop.run("replay"))
    assert (("phone", "character varying(20)") in shop.journal(SHAPE)) == (types == ["add_column"])
    shop.content["schema"] = {"auto_migrate": {"types": BOTH, "approval": "auto"}}
    assert not blocked(shop.run("replay"))
    assert unlike(shop, "id, who, price, legacy, ssn, phone") == []


def test_auto_migrate_narrows_nothing(shop: Lifecycle) -> None:
    """The target's column could not hold what it has any more."""
    shop.content["schema"] = {"auto_migrate": {"types": BOTH, "approval": "auto"}, "safe_casts_allowed": False}
    shop.run_all(until="replay")
    do(shop.target, "ALTER TABLE shop ALTER who TYPE bigint")
    assert "safe_casts_allowed is false" in blocked(shop.run("replay"))
    assert shop.journal(SHAPE) == [("who", "bigint")]


# --- flags ------------------------------------------------------------------------------------------------------------

KINDS = {
    "added": "ALTER TABLE {0} ADD COLUMN phone text; UPDATE {0} SET phone = 'p' || who",
    "removed": "ALTER TABLE {0} DROP COLUMN legacy",
}
KINDS_TARGET = {
    "typed": "ALTER TABLE {0} ALTER price TYPE integer",
    "refusing": "ALTER TABLE {0} ADD CHECK (num < 1000000)",
    "noted": "ALTER TABLE {0} ADD COLUMN note text; UPDATE {0} SET note = 'n' || who",
}
FILE = {"target_added_columns": "stop"}


@pytest.fixture
def drifted(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    """Each table drifts in a way of its own, and replay has gone through before."""
    tables = [*KINDS, *KINDS_TARGET]
    do(source_dsn, *(TABLE.format(t) for t in tables))
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, schema=FILE, **UNCAPTURED)
    move.run_all(until="replay")
    for dsn, kinds in ((source_dsn, KINDS), (target_dsn, KINDS_TARGET)):
        do(dsn, *(s for name, text in kinds.items() for s in text.format(name).split("; ")))
    return move


# What goes on: the rest of the five stops.
FLAGS = {
    "": set[str](),
    "--allow-schema-drift=source_superset --force": {"added"},
    "--allow-schema-drift=target_superset": {"removed", "noted"},
    "--allow-schema-drift=type_casts --force": {"typed"},
    "--allow-all-type-casts --force": {"typed"},
    "--allow-schema-drift=source_superset,type_casts --force": {"added", "typed"},
    "--allow-schema-drift=all --force": {"added", "removed", "noted", "typed", "refusing"},
    "--skip-columns=added.phone --preserve-columns=public.removed.legacy,noted.note": {"added", "removed", "noted"},
    "--allow-type-cast=typed.price:integer --force": {"typed"},
    "--allow-type-cast=typed.price:bigint --force": set(),
    "--schema-validation=warn-only": {"added", "removed", "noted", "typed", "refusing"},
    "--schema-validation=disabled --force": {"added", "removed", "noted", "typed", "refusing"},
    "--null-removed-columns=removed.legacy,noted.note --force": {"removed", "noted"},
    "--auto-migrate-schema": {"added"},
}
TYPED = {"price": "price::integer"}
OWN = {"removed": ("legacy", "l"), "noted": ("note", "n")}


def flagged(move: Lifecycle, line: str) -> StageResult:
    """What `pgddl run replay` with these flags makes its application run."""
    parser = argparse.ArgumentParser()
    for names, settings in flags.OPTIONS:
        parser.add_argument(*names, **settings)
    tree = flags.merged(load_pipeline(move.content).to_json(), parser.parse_args(line.split()))
    job = Job("replay", load_pipeline(tree))
    return stages.run(Job.from_json(job.to_json()))


def test_flags_are_good_for_one_call(drifted: Lifecycle) -> None:
    """Each call writes to every table before; what goes on has all rows, what stops has none of them."""
    everything, empty = {*KINDS, *KINDS_TARGET}, False
    for turn, (line, goes_on) in enumerate(FLAGS.items(), 1):
        for table in everything:
            do(
                drifted.source,
                f"UPDATE {table} SET code = 'turn {turn}', price = price + 0.6, id = id + 100 WHERE who % 3 = 0",
                f"INSERT INTO {table} (id, who, code, price) VALUES (-{turn}, -{turn}, 'turn {turn}', 0.5)",
            )
        result = flagged(drifted, line)
        assert {b["table"].removeprefix("public.") for b in result.blocked} == everything - goes_on, line
        assert result.exit_code == (0 if goes_on == everything else 3), line
        for table in everything - goes_on:
            reached = drifted.journal(f"SELECT count(*) FROM {table} WHERE code = 'turn {turn}'")
            assert reached == [(0,)], (line, table)
        for table in goes_on:
            columns = {"id": "id", "who": "who", "code": "code", "num": "num", "price": "price", "ssn": "ssn"}
            columns |= TYPED if table == "typed" else {}
            ours = drifted.on_source(f"SELECT {', '.join(columns.values())} FROM {table} ORDER BY id")
            theirs = drifted.journal(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id")
            assert ours == theirs, (line, table)
        empty |= "null-removed" in line
        for table, (column, letter) in OWN.items():
            value = "NULL" if empty else f"CASE WHEN who > 0 THEN '{letter}' || who END"
            wrong = drifted.journal(f"SELECT who, {column} FROM {table} WHERE {column} IS DISTINCT FROM {value}")
            assert wrong == [], (line, table)
    assert drifted.on_source("SELECT id, phone FROM added ORDER BY 1") == drifted.journal(
        "SELECT id, phone FROM added ORDER BY 1"
    )


LOSSY = [
    "--allow-schema-drift=source_superset",
    "--allow-schema-drift=type_casts",
    "--allow-schema-drift=all",
    "--allow-schema-drift=target_superset,all",
    "--allow-all-type-casts",
    "--allow-type-cast=shop.price:integer",
    "--null-removed-columns=shop.legacy",
    "--schema-validation=disabled",
]
LOSSY_FILES = [
    *({"allow_schema_drift": word} for word in ("source_superset", "type_casts", "all")),
    {"allow_type_cast": {"public.shop.price": "integer"}},
    {"null_removed_columns": {"public.shop": ["legacy"]}},
    {"validation": "disabled"},
    {"source_added_columns": "skip"},
    {"source_removed_columns": "null"},
    {"source_removed_columns": "drop"},
    {"type_mismatches": "cast_always"},
    {"overrides": {"public.shop": {"type_mismatches": "cast_always"}}},
]


def test_what_can_lose_data_is_refused_without_force(
    shop: Lifecycle, pgddl: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """By `pgddl run`, before it starts anything."""
    for line in LOSSY:
        assert pgddl("run", "replay", *line.split()) == 2, line
        said = capsys.readouterr().err
        assert "can lose data" in said
        assert "--force" in said
    for schema in LOSSY_FILES:
        shop.content["schema"] = schema
        assert pgddl("run", "replay") == 2, schema
        assert "needs schema.force: true" in capsys.readouterr().err


def test_flags_reach_the_stage_that_pgddl_run_starts(
    shop: Lifecycle, pgddl: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Python in the place of spark-submit."""

    def command(_submit: str, _master: str, application: object, job_file: object, **_: Any) -> list[str]:
        return [sys.executable, str(application), str(job_file)]

    monkeypatch.setattr(spark, "why_no_launch", lambda _: None)
    monkeypatch.setattr(spark, "command", command)
    shop.run_all(until="replay")
    do(shop.target, TO_INT)
    do(shop.source, "UPDATE shop SET price = price || '0', ssn = 'secret'")
    assert pgddl("run", "replay") == 3
    casts = ["--allow-type-cast=shop.price:integer", "--skip-columns=shop.ssn"]
    assert pgddl("run", "replay", *casts) == 2
    assert pgddl("run", "replay", *casts, "--force") == 0
    assert unlike(shop, "id, who, price::integer, legacy", "id, who, price, legacy") == []
    assert shop.journal("SELECT count(*) FROM shop WHERE ssn = 'secret'") == [(0,)]
