"""The way back of a cut-over where one server has what the other has not: columns and tables of its own, and other
types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.commands.way_back import way_back_file
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.ways_back import SHOP, WORK, Lifecycles, Ways

DIFFERENT = """
ALTER TABLE shop.purchase ALTER COLUMN id TYPE bigint;
ALTER TABLE shop.part ADD COLUMN only_new text DEFAULT 'new';
"""


def test_what_one_side_alone_has_and_other_types(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> None:
    execute(source_dsn, SHOP + "ALTER TABLE shop.customer ADD COLUMN secret text")
    execute(source_dsn, "UPDATE shop.customer SET secret = 's' || id; CREATE TABLE shop.diary (id int PRIMARY KEY)")
    execute(source_dsn, "INSERT INTO shop.diary VALUES (1)")
    ways = Ways(
        lifecycle,
        source_dsn,
        target_dsn,
        tables={
            "include": ["shop.*"],
            "skip_columns": {"shop.customer": ["secret"]},
            "schema_only": ["shop.diary"],
        },
        schema={"type_mismatches": "cast_if_safe"},
        capture={"ddl": "off"},
    )
    there, back, old, new = ways.there, ways.back, ways.old, ways.new
    there.run_all(until="schema_sync")
    execute(new, DIFFERENT)
    there.run_all(after="schema_sync", until="swap")
    assert there.on_source("SELECT state FROM pgddl.tables") == [("indexed",)] * 3
    back.content = way_back_file(load_pipeline(there.content), old, new)
    secrets = "SELECT id, secret FROM shop.customer WHERE id <= 300 ORDER BY id"
    before = dict(there.on_source(secrets))
    execute(new, WORK.format("there", 2) + "UPDATE shop.part SET only_new = 'x' WHERE id = 5")
    execute(new, "INSERT INTO shop.diary VALUES (2)")
    assert not back.run("replay").blocked
    assert there.on_source("SELECT id FROM shop.diary") == [(1,)]
    after = dict(there.on_source(secrets))
    assert after == {key: value for key, value in before.items() if key in after} and len(after) == 294
    rows = "SELECT id, customer, total, note FROM shop.purchase ORDER BY id"
    assert there.on_source(rows) == back.on_source(rows)

    execute(new, "INSERT INTO shop.purchase (id, customer, total) VALUES (3000000000, 11, 7)")
    execute(new, "UPDATE shop.customer SET name = 'goes on' WHERE id = 12")
    blocked = back.run("replay").blocked
    assert {b["table"] for b in blocked} == {"shop.purchase"} and "3000000000" in blocked[0]["reason"], blocked
    assert there.on_source("SELECT name FROM shop.customer WHERE id = 12") == [("goes on",)]
    execute(new, "DELETE FROM shop.purchase WHERE id = 3000000000")
    assert not back.run("replay").blocked
    assert there.on_source(rows) == back.on_source(rows)


THING = """
CREATE TABLE shop.thing (id int PRIMARY KEY, n int, "Secret" text, "Legacy" text, gone text);
INSERT INTO shop.thing SELECT n, n, 's' || n, 'l' || n, 'g' || n FROM generate_series(1, 20) n;
"""


def things(dsn: str, *columns: str) -> dict[int, tuple[Any, ...]]:
    """By what no window changes: n of a row, without the sign and the thousands that updates give it."""
    with psycopg.connect(dsn) as conn:
        listed = ", ".join(f'"{column}"' for column in columns)
        query = f"SELECT abs(n) % 100, {listed} FROM shop.thing"
        return {n: tuple(rest) for n, *rest in conn.execute(query.encode())}


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_columns_of_one_side_alone_keep_their_values_to_and_fro(
    lifecycle: Lifecycles, database: Callable[[Cluster], str], pg16: Cluster, pg18: Cluster, rows: str
) -> None:
    """Skipped, preserved, nulled and added ones; rows change, get other keys, come and go on both sides."""
    old, new = database(pg16), database(pg18)
    execute(old, SHOP + THING)
    ways = Ways(
        lifecycle,
        old,
        new,
        tables={"include": ["shop.*"], "skip_columns": {"shop.thing": ['"Secret"']}},
        schema={
            "preserve_columns": {"shop.thing": ['"Legacy"']},
            "null_removed_columns": {"shop.thing": ["gone"]},
            "force": True,
        },
        capture={"rows": rows, "ddl": "off"},
    )
    there, back = ways.there, ways.back

    def gone(move: Lifecycle) -> None:
        for stage in ("replay", "verify", "swap"):
            assert not move.run(stage).blocked
        assert things(old, "id") == things(new, "id")

    there.run_all(until="replay")
    execute(old, 'ALTER TABLE shop.thing DROP COLUMN "Legacy", DROP COLUMN gone')
    execute(new, """ALTER TABLE shop.thing ADD COLUMN "Added" text DEFAULT 'new'""")
    execute(old, "UPDATE shop.thing SET n = -n WHERE id <= 10")
    gone(there)
    secrets = {n: (f"s{n}",) for n in range(1, 21)}
    theirs = {n: (None, f"l{n}", None, "new") for n in range(1, 21)}
    assert things(old, "Secret") == secrets
    assert things(new, "Secret", "Legacy", "gone", "Added") == theirs

    back.content = way_back_file(load_pipeline(there.content), old, new)
    execute(
        new,
        """UPDATE shop.thing SET n = n + sign(n) * 100, "Legacy" = 'L', gone = 'G', "Added" = 'A',
        "Secret" = 'N' WHERE abs(n) % 5 = 0""",
    )
    execute(new, "UPDATE shop.thing SET id = id + 100 WHERE abs(n) % 5 = 1; DELETE FROM shop.thing WHERE id = 2")
    execute(new, "INSERT INTO shop.thing (id, n, gone) VALUES (21, 21, 'g21')")
    theirs |= dict.fromkeys((5, 10, 15, 20), ("N", "L", "G", "A")) | {21: (None, None, "g21", "new")}
    gone(back)
    secrets[21] = (None,)
    for known in (secrets, theirs):
        del known[2]
    assert things(old, "Secret") == secrets
    assert things(new, "Secret", "Legacy", "gone", "Added") == theirs

    execute(old, """UPDATE shop.thing SET n = n + sign(n) * 100, "Secret" = 'S' WHERE abs(n) % 100 % 3 = 0""")
    execute(old, "UPDATE shop.thing SET id = id + 200 WHERE abs(n) % 100 % 7 = 1; DELETE FROM shop.thing WHERE id = 3")
    execute(old, "INSERT INTO shop.thing VALUES (22, 22, 's22')")
    secrets |= {n: ("S",) for n in secrets if n % 3 == 0}
    secrets[22] = ("s22",)
    theirs[22] = (None, None, None, "new")
    gone(there)
    for known in (secrets, theirs):
        del known[3]
    assert things(old, "Secret") == secrets
    assert things(new, "Secret", "Legacy", "gone", "Added") == theirs


JUST_BEFORE = """
UPDATE shop.thing SET n = n + 100 * sign(n) WHERE id <= 10;
UPDATE shop.thing SET id = -id WHERE abs(id) BETWEEN 5 AND 8;
UPDATE shop.part SET v = v || '!' WHERE id % 3 = 0;
CREATE TEMPORARY TABLE loaded AS SELECT * FROM shop.part_2024;
TRUNCATE shop.part_2024;
INSERT INTO shop.part SELECT * FROM loaded;
DROP TABLE loaded;
"""


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_rows_that_change_just_before_a_fence_keep_the_values_of_columns_that_are_left_alone(
    lifecycle: Lifecycles, database: Callable[[Cluster], str], pg16: Cluster, pg18: Cluster, rows: str, at: At
) -> None:
    """The last windows bring them under the capture of the way back, in whose log each of them leaves and comes."""
    old, new = database(pg16), database(pg18)
    execute(old, SHOP + THING + "ALTER TABLE shop.part ADD COLUMN mine text; UPDATE shop.part SET mine = 'm' || id")
    skipped = {"shop.thing": ['"Secret"'], "shop.part": ["mine"]}
    tables = {"include": ["shop.*"], "skip_columns": skipped}
    ways = Ways(lifecycle, old, new, tables=tables, capture={"rows": rows, "ddl": "off"})
    there, back = ways.there, ways.back
    there.run_all(until="replay")
    execute(
        new,
        """ALTER TABLE shop.thing ADD COLUMN "Added" text; UPDATE shop.thing SET "Added" = 'a' || abs(n);
        ALTER TABLE shop.part ADD COLUMN added text; UPDATE shop.part SET added = 'a' || id""",
    )

    def parts(dsn: str, column: str) -> dict[int, str]:
        with psycopg.connect(dsn) as conn:
            return dict(conn.execute(f"SELECT id, {column} FROM shop.part".encode()))

    for here, move, other in ((old, there, back), (new, back, there), (old, there, back)):
        for stage in ("replay", "verify"):
            assert not move.run(stage).blocked
        with at("cut_over.before_fence", once(lambda here=here: execute(here, JUST_BEFORE))):
            assert not move.run("swap").blocked
        back.content = way_back_file(load_pipeline(there.content), old, new)
        for stage in ("replay", "verify"):
            assert not other.run(stage).blocked
        assert things(old, "id") == things(new, "id")
        assert things(old, "Secret") == {n: (f"s{n}",) for n in range(1, 21)}
        assert things(new, "Added") == {n: (f"a{n}",) for n in range(1, 21)}
        # A TRUNCATE takes what only the other server has.
        column = "mine" if here == old else "added"
        assert parts(here, column) == {n: f"{column[0]}{n}" for n in range(1, 701)}
        if here == old:
            execute(new, "UPDATE shop.part SET added = 'a' || id")
        else:
            execute(old, "UPDATE shop.part SET mine = 'm' || id")
