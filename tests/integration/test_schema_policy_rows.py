"""What every word of the gate's policy does to rows, on two servers: in each state of a table, under a writer, and when
the word is another one later."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine.rows import chunks
from airflow_provider_pgddl.engine.rows.transfer import copy_between
from tests.integration.lifecycle import Lifecycle
from tests.integration.policy_tables import TABLE, UNCAPTURED
from tests.integration.sessions import Underway, do, rounds

Make = Callable[..., Lifecycle]

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


def insisting(conn: psycopg.Connection[Any], statement: str) -> None:
    """The writer locks rows in another order than a statement over all of them: whom the server picks tries again."""
    while True:
        with suppress(psycopg.errors.DeadlockDetected):
            conn.execute(statement.encode())
            return


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
                    with psycopg.connect(dsn, autocommit=True) as conn:
                        for statement in filter(None, text.format(name).split("; ")):
                            insisting(conn, statement)

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
        for _ in rounds(over, 0.005):
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
