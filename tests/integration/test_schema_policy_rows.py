"""What every word of the gate's policy does to rows, on two servers: in each state of a table, under a writer, and when
the word is another one later."""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from airflow_provider_pgddl import cli
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.parallel import spark
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.rows import chunks
from airflow_provider_pgddl.engine.rows.transfer import copy_between
from airflow_provider_pgddl.engine.schema import flags
from airflow_provider_pgddl.engine.stages import StageResult
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import Underway, do

Make = Callable[..., Lifecycle]
# Nobody follows the source's DDL, so every difference is the gate's; some chunks a table, no SparkSession.
UNCAPTURED: dict[str, Any] = {
    "capture": {"ddl": "off"},
    "backfill": {"chunk_bytes": "8kB", "workers": 1},
    "replay": {"until_lag": "60s"},
}

# `who` tells rows apart whatever their keys become.
TABLE = """
    CREATE TABLE {0} (
        id int PRIMARY KEY, who int NOT NULL, code varchar(20) NOT NULL, price numeric(10,2), num int,
        legacy text, ssn text, at timestamp, filler text NOT NULL DEFAULT repeat('x', 400)
    );
    INSERT INTO {0}
    SELECT n, n, 'code ' || n, n + n / 100.0, n, 'l' || n, 's' || n, '2026-01-01'::timestamp + n * interval '0.7 s'
    FROM generate_series(1, 40) n;
"""
ALIKE = ("id", "who", "filler")
FIRST = "who <= 40"  # the rows that were there from the start


@dataclass(frozen=True)
class Step:
    """What happens to one table, `{0}`, under which policy, and what becomes of it then.

    `policy` is its override, `listed` what the lists of columns say of it. `stops`: it stops, with this in the finding;
    else it goes on. `alike`: columns of the target → what they show of the source; `own`: what else holds of every row
    of the target; `{moved}` in it is whether its rows were there when it began."""

    policy: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    target: str = ""
    stops: str = ""
    alike: Mapping[str, str] = field(default_factory=dict)
    own: str = "true"
    gone: Sequence[str] = ()
    listed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    status: str = "warning"


SAME = {"code": "code", "price": "price", "num": "num", "legacy": "legacy", "ssn": "ssn", "at": "at"}


def same_but(*columns: str, **others: str) -> dict[str, str]:
    return {c: e for c, e in SAME.items() if c not in columns} | others


PHONE = "ALTER TABLE {0} ADD COLUMN phone text; UPDATE {0} SET phone = 'p' || who"
LOST = "ALTER TABLE {0} DROP COLUMN legacy"
KEPT = f"legacy IS NOT DISTINCT FROM CASE WHEN {FIRST} THEN 'l' || who END OR NOT {{moved}} AND legacy IS NULL"
TO_INTEGER = "ALTER TABLE {0} ALTER price TYPE integer"
NOTED = "ALTER TABLE {0} ADD COLUMN note text; UPDATE {0} SET note = 'n' || who"
MIXED: dict[str, Any] = {"source": f"{PHONE}; {LOST}", "target": f"{NOTED}; {TO_INTEGER}"}
MIXED_ROWS: dict[str, Any] = {
    "alike": same_but("legacy", "price", price="price::integer"),
    "own": f"({KEPT}) AND (note = 'n' || who OR NOT ({FIRST} AND {{moved}}) AND note IS NULL)",
    "gone": ["phone"],
}
SHORTEN = "ALTER TABLE {0} ALTER code TYPE varchar(6) USING left(code, 6)"
ALIGN = "ALTER TABLE {0} ADD COLUMN phone text, DROP COLUMN legacy, ALTER price TYPE numeric(10,2)"

CASES: Mapping[str, Sequence[Step]] = {
    "untouched": [Step(alike=SAME, status="compatible")],
    "added": [
        Step({}, PHONE, stops="Source has new column 'phone'"),
        Step({"source_added_columns": "skip"}, alike=SAME, gone=["phone"]),
        Step({"source_added_columns": "stop"}, stops="Source has new column 'phone'"),
        Step({"source_added_columns": "add"}, alike=same_but(phone="phone"), status="compatible"),
    ],
    "skipped": [
        Step(
            {"skip_columns": ["ssn"]}, "UPDATE {0} SET ssn = 'secret ' || who", alike=same_but("ssn"),
            own=f"ssn IS NULL OR ssn = 's' || who AND {FIRST}", status="compatible",
        ),
        Step(
            {"skip_columns": ["ssn"]}, "ALTER TABLE {0} RENAME ssn TO social", stops="social",
            own="ssn IS NULL OR ssn NOT LIKE 'secret%'",
        ),
        Step(
            {"skip_columns": ["ssn"]}, target="ALTER TABLE {0} RENAME ssn TO social", alike=same_but("ssn"),
            own="social IS NULL OR social NOT LIKE 'secret%'", status="compatible",
        ),
        Step({}, alike=same_but("ssn", social="social"), status="compatible"),
    ],
    "renamed": [
        Step({"skip_columns": ["ssn"]}, alike=same_but("ssn"), own=f"ssn IS NULL OR ssn = 's' || who AND {FIRST}",
             status="compatible"),
        Step(
            {"skip_columns": ["ssn"], "source_removed_columns": "preserve"},
            "UPDATE {0} SET ssn = 'secret ' || who; ALTER TABLE {0} RENAME ssn TO social", alike=same_but("ssn"),
            own="ssn IS NULL OR ssn NOT LIKE 'secret%'", gone=["social"],
        ),
        Step({"validation": "warn_only", "skip_columns": ["ssn"]}, alike=same_but("ssn"),
             own="ssn IS NULL OR ssn NOT LIKE 'secret%'", gone=["social"]),
    ],
    "target_added": [
        Step({}, target=NOTED, alike=SAME, own=f"note = 'n' || who OR NOT ({FIRST} AND {{moved}}) AND note IS NULL"),
        Step({"target_added_columns": "stop"}, stops="'note'"),
        Step({"target_added_columns": "stop"}, listed={"preserve_columns": ["note"]}, alike=SAME,
             own=f"note = 'n' || who OR NOT ({FIRST} AND {{moved}}) AND note IS NULL"),
        Step({}, listed={"null_removed_columns": ["note"]}, alike=SAME, own="note IS NULL"),
    ],
    "target_default": [
        Step({}, target="ALTER TABLE {0} ADD COLUMN origin text NOT NULL DEFAULT 'here'", alike=SAME,
             own="origin = 'here'"),
    ],
    "target_not_null": [
        Step({"validation": "disabled"},
             target="ALTER TABLE {0} ADD COLUMN origin text NOT NULL DEFAULT 'x'; "
             "ALTER TABLE {0} ALTER origin DROP DEFAULT", stops="'origin'"),
        Step({}, target="ALTER TABLE {0} ALTER origin DROP NOT NULL", alike=SAME),
    ],
    "removed": [
        Step({}, LOST, stops="'legacy' that no longer exists in source"),
        Step({"source_removed_columns": "preserve"}, alike=same_but("legacy"), own=KEPT),
        Step({"source_removed_columns": "stop"}, stops="'legacy' that no longer exists in source"),
        Step({"source_removed_columns": "null"}, alike=same_but("legacy"), own="legacy IS NULL"),
        Step({"source_removed_columns": "drop"}, alike=same_but("legacy"), gone=["legacy"], status="compatible"),
    ],
    "preserved": [
        Step({"source_removed_columns": "preserve"}, LOST, alike=same_but("legacy"), own=KEPT),
        Step({"source_removed_columns": "preserve", "source_added_columns": "add"}, PHONE,
             alike=same_but("legacy", phone="phone"), own=KEPT),
        Step({"source_removed_columns": "drop"}, alike=same_but("legacy"), gone=["legacy"], status="compatible"),
    ],
    "listed": [
        Step({}, LOST, listed={"preserve_columns": ["legacy"]}, alike=same_but("legacy"), own=KEPT),
        Step({}, listed={"null_removed_columns": ["legacy"]}, alike=same_but("legacy"), own="legacy IS NULL"),
    ],
    "back_again": [
        Step({"source_removed_columns": "null"}, LOST, alike=same_but("legacy"), own="legacy IS NULL"),
        Step({}, "ALTER TABLE {0} ADD COLUMN legacy text DEFAULT 'again'", alike=SAME, status="compatible"),
    ],
    "constrained": [
        Step({}, target="ALTER TABLE {0} ADD CHECK (price < 1000000)", stops="CHECK"),
        Step({"target_added_constraints": "allow"}, alike=SAME),
    ],
    "converted": [
        Step({}, target=TO_INTEGER, stops="integer"),
        Step({"type_mismatches": "cast_if_safe"}, stops="integer"),
        Step({"type_mismatches": "cast_always"}, alike=same_but(price="price::integer")),
        Step({"type_mismatches": "cast_always"}, target="ALTER TABLE {0} ALTER price TYPE numeric(10,2)", alike=SAME,
             status="compatible"),
    ],
    "shortened": [
        Step({"type_mismatches": "cast_always"}, target=SHORTEN,
             alike=same_but(code="code::varchar(6)")),
        Step({}, target="ALTER TABLE {0} ALTER code TYPE varchar(20)", alike=SAME, status="compatible"),
    ],
    "widened_more": [
        Step({"type_mismatches": "cast_always"}, target=SHORTEN,
             alike=same_but(code="code::varchar(6)")),
        Step({}, target="ALTER TABLE {0} ALTER code TYPE text", alike=SAME, status="compatible"),
    ],
    "rounded": [
        Step({"type_mismatches": "cast_always"},
             target="CREATE DOMAIN {0}_at AS timestamp(0); ALTER TABLE {0} ALTER at TYPE {0}_at",
             alike=same_but(at="at::timestamp(0)")),
        Step({}, target="ALTER TABLE {0} ALTER at TYPE timestamp", alike=SAME, status="compatible"),
    ],
    "rounded_less": [
        Step({"type_mismatches": "cast_always"}, target="ALTER TABLE {0} ALTER at TYPE timestamp(0)",
             alike=same_but(at="at::timestamp(0)")),
        Step({}, target="ALTER TABLE {0} ALTER at TYPE timestamp", alike=SAME, status="compatible"),
    ],
    "named_cast": [
        Step({"allow_type_cast": {"price": "bigint"}}, target=TO_INTEGER, stops="A cast to bigint is allowed, but"),
        Step({"allow_type_cast": {"price": "int4"}}, alike=same_but(price="price::integer")),
    ],
    "safe": [
        Step({"safe_casts_allowed": False}, target="ALTER TABLE {0} ALTER num TYPE bigint", stops="safe_casts_allowed"),
        Step({"safe_casts_allowed": False, "type_mismatches": "cast_if_safe"}, alike=SAME, status="compatible"),
        Step({}, alike=SAME, status="compatible"),
    ],
    "warned": [
        Step({"validation": "warn_only"}, **MIXED, **MIXED_ROWS),
        Step({}, stops="Source has new column 'phone'"),
        Step({}, target=ALIGN, alike=same_but("legacy", phone="phone")),
    ],
    "permissive": [
        Step({"validation": "permissive"}, **MIXED, **MIXED_ROWS),
        Step({"validation": "disabled"}, **MIXED_ROWS, status="compatible"),
        Step({"source_added_columns": "add", "source_removed_columns": "drop", "type_mismatches": "cast_always"},
             alike=same_but("legacy", price="price::integer", phone="phone"), gone=["legacy"]),
    ],
}  # fmt: skip


@dataclass
class Scene:
    """A table for every case, or, where rows can be compared at the end only, one for every beginning of a case after
    which they go on; all in one pipeline."""

    move: Lifecycle
    state: str

    @cached_property
    def tables(self) -> dict[str, Sequence[Step]]:
        if self.state == "indexed":
            return dict(CASES)
        return {
            f"{name}_{n}": steps[:n] for name, steps in CASES.items() for n, s in enumerate(steps, 1) if not s.stops
        }

    @property
    def steps(self) -> int:
        return max(map(len, CASES.values()))

    def step(self, number: int) -> dict[str, Step]:
        """Each table's step, or the last that it has had."""
        return {name: steps[min(number, len(steps) - 1)] for name, steps in self.tables.items()}

    def happens(self, number: int) -> None:
        for name, steps in self.tables.items():
            if number < len(steps):
                for dsn, text in ((self.move.source, steps[number].source), (self.move.target, steps[number].target)):
                    do(dsn, *(s for s in text.format(name).split("; ") if s))

    def policy(self, number: int) -> dict[str, Any]:
        steps = self.step(number)
        lists: dict[str, dict[str, Sequence[str]]] = {"preserve_columns": {}, "null_removed_columns": {}}
        for name, step in steps.items():
            for key, columns in step.listed.items():
                lists[key][f"public.{name}"] = columns
        return {"force": True, "overrides": {f"public.{n}": dict(s.policy) for n, s in steps.items()}, **lists}

    def run(self, stage: str, number: int) -> None:
        """Exactly those tables stop that this step stops."""
        steps = self.step(number)
        result = self.move.run(stage, schema=self.policy(number))
        blocked = {b["table"].removeprefix("public."): b["reason"] for b in result.blocked}
        expected = {name: step.stops for name, step in steps.items() if step.stops}
        assert {n: why for n, why in blocked.items() if n not in expected} == {}
        for name, words in expected.items():
            assert words in blocked.get(name, "not blocked"), name

    def compare(self, number: int) -> None:
        """Once nothing is written and everything has been replayed."""
        statuses = dict(self.move.journal("SELECT table_name, status FROM pgddl.schema_status"))
        wrong = []
        for name, step in self.step(number).items():
            expected = "mismatch" if step.stops else step.status
            if (status := statuses.get(name, "compatible")) != expected:
                wrong.append(f"{name}: {status}, not {expected}")
            if not step.stops:
                wrong += [f"{name}: {row}" for row in self.unlike(name, step)]
        assert not wrong, f"step {number}\n" + "\n".join(wrong)

    def unlike(self, name: str, step: Step) -> list[Any]:
        """Rows in which the two sides differ, and rows of the target that are not what they should be."""
        columns = {c: c for c in ALIKE} | dict(step.alike)
        sides = []
        for ask, listed in ((self.move.on_source, columns.values()), (self.move.journal, columns)):
            sides.append(ask(f"SELECT {', '.join(f'({c})::text' for c in listed)} FROM {name} ORDER BY id"))
        own = step.own.format(moved="false" if self.state == "created" else "true")
        wrong = self.move.journal(f"SELECT to_jsonb(t) - 'filler' FROM {name} t WHERE NOT coalesce({own}, false)")
        there = self.move.journal(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = ANY(%s)",
            [name, list(step.gone)],
        )
        counts = [] if len(sides[0]) == len(sides[1]) else [f"{len(sides[0])} rows, {len(sides[1])} on the target"]
        return [*sorted(set(sides[0]) ^ set(sides[1]))[:6], *wrong[:6], *there, *counts]


def writing(
    dsn: str, tables: Sequence[str], seed: int, exchanges: bool, turn: threading.Lock, over: threading.Event
) -> int:
    """An application: rows come, go, change, and move to other keys, with `exchanges` to those of other rows, too."""
    rng, who = random.Random(seed), 1000
    with psycopg.connect(dsn, autocommit=True) as conn:
        while not over.is_set():
            table, a, b = rng.choice(tables), rng.randint(1, 60), rng.randint(1, 60)
            who += 1
            steps = [
                [f"UPDATE {table} SET price = price + 1.01, code = 'w{who}', num = num + 1 WHERE id = {a}"],
                [f"UPDATE {table} SET at = at + interval '0.3 s' WHERE id BETWEEN {a} AND {a + 5}"],
                [f"UPDATE {table} SET id = {who} WHERE id = {a}"],
                [f"DELETE FROM {table} WHERE id = {a} AND who % 3 = 0"],
                [f"INSERT INTO {table} (id, who, code, price) VALUES ({b}, {who}, 'new code {who}', 0.99)"],
            ]
            if exchanges:
                steps += [
                    [f"UPDATE {table} SET id = {b} WHERE id = {a}"],
                    [f"UPDATE {table} SET id = {n} WHERE id = {o}" for o, n in ((a, -1), (b, a), (-1, b))],
                ]
            with turn, suppress(psycopg.errors.UniqueViolation), conn.transaction():
                for statement in rng.choice(steps):
                    conn.execute(statement.encode())
            over.wait(0.005)  # the cores are for what is tested
    return who - 1000


@contextmanager
def a_writer(dsn: str, tables: Sequence[str], *, exchanges: bool = True) -> Iterator[threading.Lock]:
    """While the lock is held, nothing is written."""
    seed = int(os.environ.get("PGDDL_SEED") or random.randrange(10**6))
    print(f"PGDDL_SEED={seed}")
    turn, over = threading.Lock(), threading.Event()
    with Underway(lambda: writing(dsn, tables, seed, exchanges, turn, over)) as writer:
        try:
            yield turn
        finally:
            over.set()
        assert writer.finish() > 0


class _Killed(BaseException):
    pass


def dying_backfill(move: Lifecycle, at: int, **changed: Any) -> None:
    """A backfill that dies at this chunk, so its tables are copied as a whole, in part or not at all."""
    with pytest.MonkeyPatch.context() as patch:
        copied = [0]

        def copying(*args: Any, **options: Any) -> Any:
            copied[0] += 1
            if copied[0] == at:
                raise _Killed
            return copy_between(*args, **options)

        patch.setattr(chunks, "copy_between", copying)
        with pytest.raises(_Killed):
            move.run("backfill", **changed)


@pytest.mark.parametrize("state", ["created", "backfilled", "indexed"])
def test_every_word_in_every_state_under_a_writer(
    source_dsn: str, target_dsn: str, lifecycle: Make, state: str
) -> None:
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **UNCAPTURED)
    scene = Scene(move, state)
    do(source_dsn, *(TABLE.format(name) for name in scene.tables))
    move.run_all(until={"created": "snapshot", "backfilled": "backfill", "indexed": "replay"}[state])
    with a_writer(source_dsn, list(scene.tables), exchanges=state != "created") as waits:
        if state == "created":
            dying_backfill(move, 40)
        for number in range(scene.steps):
            scene.happens(number)
            if state == "created":
                dying_backfill(move, 15, schema=scene.policy(number))
            elif state == "backfilled":
                scene.run("backfill", number)
            else:
                scene.run("replay", number)
                with waits:
                    scene.run("replay", number)
                    scene.compare(number)
    for stage in ("backfill", "schema_sync", "replay"):
        scene.run(stage, scene.steps - 1)
    scene.compare(scene.steps - 1)


# --- one at a time ----------------------------------------------------------------------------------------------------

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
