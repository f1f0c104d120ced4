"""DDL that makes partitions, parts them, or partitions a table under its applications: nothing is lost in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.demo.compare import differences
from tests.combinations import matrix
from tests.failpoints import At
from tests.integration.ddl_shop import SHOP, all_through, each, killed
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import one

Make = Callable[..., Lifecycle]


@pytest.fixture(params=matrix("queue", "wal"))
def make(lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, request: pytest.FixtureRequest) -> Make:
    def made(schema: str = SHOP, **pipeline: Any) -> Lifecycle:
        execute(source_dsn, schema)
        content: dict[str, Any] = {"tables": {"include": ["public.*"]}, "capture": {"ddl": request.param}}
        return lifecycle(source_dsn, target_dsn, **{**content, **pipeline})

    return made


# --- partitions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gone", ["DROP TABLE public.events_1", "ALTER TABLE public.events DETACH PARTITION public.events_1"]
)
def test_a_partition_emptied_and_then_gone(make: Make, gone: str) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    each(pipeline.source, f"""
        UPDATE public.events SET what = 'u'
        TRUNCATE public.events_1
        {gone}""")  # fmt: skip
    all_through(pipeline, after="schema_sync")


def test_a_table_that_was_taken_in_becomes_a_partition(make: Make) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    each(pipeline.source, """
        CREATE TABLE public.events_3 (id int PRIMARY KEY, what text)
        INSERT INTO public.events_3 SELECT i, 'l' FROM generate_series(200, 250) i""")  # fmt: skip
    pipeline.run("replay")
    each(pipeline.source, """
        UPDATE public.events_3 SET what = 'before' WHERE id % 4 = 0
        ALTER TABLE public.events ATTACH PARTITION public.events_3 FOR VALUES FROM (200) TO (300)
        UPDATE public.events SET what = 'after' WHERE id % 5 = 0
        INSERT INTO public.events VALUES (299, 'new')""")  # fmt: skip
    all_through(pipeline, after="schema_sync")


def test_a_partition_comes_back_after_windows_without_it(make: Make) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    execute(pipeline.source, "ALTER TABLE public.events DETACH PARTITION public.events_1")
    pipeline.run("replay")
    execute(pipeline.source, "UPDATE public.events_1 SET what = 'away' WHERE id % 3 = 0")
    pipeline.run("replay")
    each(pipeline.source, """
        ALTER TABLE public.events ATTACH PARTITION public.events_1 FOR VALUES FROM (0) TO (100)
        UPDATE public.events SET what = 'back' WHERE id % 5 = 0""")  # fmt: skip
    all_through(pipeline, after="schema_sync")


def test_a_table_is_emptied_before_it_becomes_a_partition(make: Make) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    each(pipeline.source, """
        CREATE TABLE public.events_3 (id int PRIMARY KEY, what text)
        INSERT INTO public.events_3 SELECT i, 'l' FROM generate_series(200, 250) i""")  # fmt: skip
    pipeline.run("replay")
    each(pipeline.source, """
        DELETE FROM public.events_3
        ALTER TABLE public.events ATTACH PARTITION public.events_3 FOR VALUES FROM (200) TO (300)""")  # fmt: skip
    all_through(pipeline, after="schema_sync")


def test_a_partition_comes_back_empty(make: Make) -> None:
    pipeline = make(tables={"include": ["public.events"]})
    pipeline.run_all(until="replay")
    execute(pipeline.source, "ALTER TABLE public.events DETACH PARTITION public.events_1")
    pipeline.run("replay")
    each(pipeline.source, """
        DELETE FROM public.events_1
        ALTER TABLE public.events ATTACH PARTITION public.events_1 FOR VALUES FROM (0) TO (100)
        INSERT INTO public.events VALUES (7, 'new')""")  # fmt: skip
    pipeline.run("replay")
    rows = "SELECT id, what FROM public.events ORDER BY id"
    assert pipeline.on_source(rows) == pipeline.journal(rows)


@pytest.mark.parametrize("rows", ["change_log", "wal"])
def test_a_partition_that_came_with_the_run_comes_back_with_what_nobody_saw(make: Make, rows: str) -> None:
    pipeline = make(tables={"include": ["public.events"]}, capture={"rows": rows})
    pipeline.run_all(until="replay")
    each(pipeline.source, """
        CREATE TABLE public.events_9 PARTITION OF public.events FOR VALUES FROM (900) TO (999)
        INSERT INTO public.events SELECT i, 'new' FROM generate_series(900, 940) i""")  # fmt: skip
    pipeline.run("replay")
    execute(pipeline.source, "ALTER TABLE public.events DETACH PARTITION public.events_9")
    pipeline.run("replay")
    each(pipeline.source, """
        UPDATE public.events_9 SET what = 'away' WHERE id % 3 = 0
        DELETE FROM public.events_9 WHERE id % 5 = 0
        INSERT INTO public.events_9 VALUES (950, 'away, too')
        ALTER TABLE public.events ATTACH PARTITION public.events_9 FOR VALUES FROM (900) TO (999)""")  # fmt: skip
    pipeline.run("replay")
    rows_now = "SELECT id, what FROM public.events ORDER BY id"
    assert pipeline.on_source(rows_now) == pipeline.journal(rows_now)


@pytest.mark.parametrize("rows", ["change_log", "wal"])
def test_a_table_is_a_partition_for_a_moment_between_two_looks(make: Make, rows: str) -> None:
    pipeline = make(capture={"rows": rows})
    execute(pipeline.source, "CREATE TABLE public.guest (id int PRIMARY KEY, what text);"
            "INSERT INTO public.guest SELECT i, 'g' FROM generate_series(200, 240) i")  # fmt: skip
    pipeline.run_all(until="replay")
    each(pipeline.source, """
        ALTER TABLE public.events ATTACH PARTITION public.guest FOR VALUES FROM (200) TO (300)
        UPDATE public.events SET what = 'as a part' WHERE id % 7 = 0
        ALTER TABLE public.events DETACH PARTITION public.guest
        UPDATE public.guest SET what = 'alone again' WHERE id % 5 = 0""")  # fmt: skip
    all_through(pipeline, after="schema_sync")


BORN = "CREATE TABLE public.events_9 PARTITION OF public.events FOR VALUES FROM (900) TO (999)"
TURNED_OFF = f"""
    {BORN}
    ALTER TABLE public.events_9 DISABLE TRIGGER ALL
    INSERT INTO public.events SELECT i, 'new' FROM generate_series(900, 940) i
    ALTER TABLE public.events_9 ENABLE TRIGGER ALL"""
ON_AGAIN = """
    ALTER TABLE public.events_9 ENABLE ALWAYS TRIGGER pgddl_row_{0}
    ALTER TABLE public.events_9 ENABLE ALWAYS TRIGGER pgddl_truncate_{0}"""
UNPUBLISHED = f"""
    {BORN}
    ALTER PUBLICATION pgddl_rows_of_{{0}} DROP TABLE public.events_9
    INSERT INTO public.events SELECT i, 'new' FROM generate_series(900, 940) i
    ALTER PUBLICATION pgddl_rows_of_{{0}} ADD TABLE public.events_9 (id)"""
FILLED_BEFORE = """
    CREATE TABLE public.more (id int PRIMARY KEY, what text) PARTITION BY RANGE (id)
    CREATE TABLE public.more_1 PARTITION OF public.more FOR VALUES FROM (900) TO (999)
    INSERT INTO public.more SELECT i, 'm' FROM generate_series(900, 940) i
    ALTER TABLE public.events ATTACH PARTITION public.more FOR VALUES FROM (900) TO (999)"""


@pytest.mark.parametrize(("rows", "how"), [
    ("change_log", TURNED_OFF), ("change_log", TURNED_OFF + ON_AGAIN), ("change_log", FILLED_BEFORE),
    ("wal", UNPUBLISHED), ("wal", FILLED_BEFORE),
], ids=["off", "off and on", "filled before", "unpublished", "filled before, wal"])  # fmt: skip
def test_c09_rows_that_a_new_partition_got_while_nobody_looked(make: Make, rows: str, how: str) -> None:
    pipeline = make(capture={"rows": rows})
    pipeline.run_all(until="replay")
    each(pipeline.source, how.format(pipeline.name))
    pipeline.run("replay")
    execute(pipeline.source, "SET session_replication_role = replica; DELETE FROM public.events WHERE id = 905")
    pipeline.run("replay")
    rows_of = "SELECT id, what FROM public.events ORDER BY id"
    assert pipeline.on_source(rows_of) == pipeline.journal(rows_of)
    all_through(pipeline, after="schema_sync")


def test_a_detached_partition_that_nobody_takes_is_not_left_stale_without_a_word(make: Make) -> None:
    pipeline = make(tables={"include": ["public.events"]})
    pipeline.run_all(until="replay")
    each(pipeline.source, """
        UPDATE public.events SET what = 'seen before' WHERE id % 2 = 0
        ALTER TABLE public.events DETACH PARTITION public.events_1""")  # fmt: skip
    pipeline.run("replay")
    pipeline.run("verify")
    assert "public.events_1: is blocked: was detached" in str(pipeline.refused("swap"))
    execute(pipeline.target, "DROP TABLE public.events_1")
    pipeline.run_all(after="verify")
    rows = "SELECT id, what FROM public.events ORDER BY id"
    assert pipeline.on_source(rows) == pipeline.journal(rows)


def test_a_partition_leaves_while_earlier_ddl_waits(make: Make) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    execute(pipeline.target, "ALTER TABLE public.events ADD COLUMN more int")  # in the way of the same below
    each(pipeline.source, """
        ALTER TABLE public.events ADD COLUMN more int
        ALTER TABLE public.events DETACH PARTITION public.events_1
        UPDATE public.orders SET note = 'goes on'""")  # fmt: skip
    result = pipeline.run("replay")
    assert "public.events" in {b["table"] for b in result.blocked}
    assert one(pipeline.target, "SELECT count(*) FROM public.orders WHERE note = 'goes on'") == 500


# --- a table that is partitioned under the applications ----------------------------------------------------------

PARTITIONED = {
    "renamed first": """
        ALTER TABLE public.lines RENAME TO lines_p0;
        CREATE TABLE public.lines (LIKE public.lines_p0 INCLUDING ALL) PARTITION BY RANGE (id);
        ALTER TABLE public.lines ATTACH PARTITION public.lines_p0 FOR VALUES FROM (MINVALUE) TO (1000);""",
    "renamed last": """
        CREATE TABLE public.fresh (LIKE public.lines INCLUDING ALL) PARTITION BY RANGE (id);
        ALTER TABLE public.fresh ATTACH PARTITION public.lines FOR VALUES FROM (MINVALUE) TO (1000);
        ALTER TABLE public.lines RENAME TO lines_p0;
        ALTER TABLE public.fresh RENAME TO lines;""",
}
MORE = "CREATE TABLE public.lines_p1 PARTITION OF public.lines FOR VALUES FROM (1000) TO (MAXVALUE);"


def partitioned(make: Make, how: str, rows: str) -> Lifecycle:
    """With rows written before, within and after."""
    pipeline = make(capture={"rows": rows})
    pipeline.run_all(until="replay")
    execute(
        pipeline.source, "UPDATE public.lines SET text = 'b' WHERE id < 5; INSERT INTO public.lines VALUES (500, 'b')"
    )
    execute(pipeline.source, f"{PARTITIONED[how]} {MORE} UPDATE public.lines SET text = 'w' WHERE id IN (4, 7)")
    execute(
        pipeline.source,
        "INSERT INTO public.lines VALUES (999, 'a'), (1001, 'a'); DELETE FROM public.lines WHERE id = 9",
    )
    return pipeline


@pytest.mark.parametrize("how", PARTITIONED)
@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_a_followed_table_becomes_a_partition_of_one_that_takes_its_name(make: Make, how: str, rows: str) -> None:
    pipeline = partitioned(make, how, rows)
    assert pipeline.run("replay").blocked == []
    assert differences(pipeline.source, pipeline.target) == []
    execute(pipeline.source, "UPDATE public.lines SET text = 'later' WHERE id IN (1, 999, 1001)")
    all_through(pipeline, after="schema_sync")


@pytest.mark.parametrize("where", ["late.before_capture", "late.before_taken_in"])
@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_killed_before_such_a_table_is_read(make: Make, at: At, rows: str, where: str) -> None:
    pipeline = partitioned(make, "renamed first", rows)
    with at(where, killed), pytest.raises(KeyboardInterrupt):
        pipeline.run("replay")
    execute(pipeline.source, "UPDATE public.lines SET text = 'meanwhile' WHERE id IN (2, 3, 1001)")
    assert pipeline.run("replay").blocked == []
    assert differences(pipeline.source, pipeline.target) == []


def test_rows_of_others_beside_an_attached_table_are_not_lost(make: Make) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    beside = "CREATE TABLE IF NOT EXISTS public.lines_p1 (LIKE public.{} INCLUDING ALL)"
    execute(pipeline.target, f"{beside.format('lines')}; INSERT INTO public.lines_p1 VALUES (5000, 'theirs')")
    attach = "ALTER TABLE public.lines ATTACH PARTITION public.lines_p1 FOR VALUES FROM (1000) TO (MAXVALUE)"
    execute(pipeline.source, f"{PARTITIONED['renamed first']} {beside.format('lines_p0')}; {attach}")
    blocked = {b["table"]: b["reason"] for b in pipeline.run("replay").blocked}
    assert "rows of its own" in blocked["public.lines"]
    assert one(pipeline.target, "SELECT text FROM public.lines_p1") == "theirs"
    execute(pipeline.target, "DELETE FROM public.lines_p1")
    assert pipeline.run("replay").blocked == []
    assert differences(pipeline.source, pipeline.target) == []


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_a_partitioned_table_becomes_a_partition_of_one_that_takes_its_name(make: Make, rows: str) -> None:
    pipeline = make(capture={"rows": rows})
    pipeline.run_all(until="replay")
    execute(pipeline.source, """
        UPDATE public.events SET what = 'b' WHERE id < 5;
        ALTER TABLE public.events RENAME TO events_p0;
        CREATE TABLE public.events (LIKE public.events_p0 INCLUDING ALL) PARTITION BY RANGE (id);
        ALTER TABLE public.events ATTACH PARTITION public.events_p0 FOR VALUES FROM (MINVALUE) TO (1000);
        UPDATE public.events SET what = 'w' WHERE id IN (4, 150)""")  # fmt: skip
    execute(pipeline.source, "UPDATE public.events SET what = 'a' WHERE id IN (6, 199)")
    assert pipeline.run("replay").blocked == []
    assert differences(pipeline.source, pipeline.target) == []
    all_through(pipeline, after="schema_sync")


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_a_partitioned_table_becomes_a_partition_of_one_that_is_followed(make: Make, rows: str) -> None:
    more = """
        CREATE TABLE public.more (id int PRIMARY KEY, what text) PARTITION BY RANGE (id);
        CREATE TABLE public.more_1 PARTITION OF public.more FOR VALUES FROM (200) TO (300);
        INSERT INTO public.more SELECT i, 'm' FROM generate_series(200, 299) i;"""
    pipeline = make(SHOP + more, capture={"rows": rows})
    pipeline.run_all(until="replay")
    execute(pipeline.source, """
        UPDATE public.more SET what = 'b' WHERE id < 205;
        ALTER TABLE public.events ATTACH PARTITION public.more FOR VALUES FROM (200) TO (300);
        UPDATE public.events SET what = 'w' WHERE id IN (204, 150)""")  # fmt: skip
    execute(
        pipeline.source,
        "UPDATE public.events SET what = 'a' WHERE id IN (6, 299); DELETE FROM public.more_1 WHERE id = 207",
    )
    assert pipeline.run("replay").blocked == []
    assert differences(pipeline.source, pipeline.target) == []
