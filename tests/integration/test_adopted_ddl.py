"""Tables of the target that are taken as they are, beside DDL: those that are partitioned otherwise than the source's,
and those that have seen some."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import Retry, StageFailed
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import do

Lifecycles = Callable[..., Lifecycle]

PARTS = """
CREATE TABLE public.part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE public.part_1 PARTITION OF public.part FOR VALUES FROM ({0}) TO ({1});
CREATE TABLE public.part_2 PARTITION OF public.part FOR VALUES FROM ({1}) TO ({2});
CREATE TABLE public.part_rest PARTITION OF public.part DEFAULT;
"""
NESTED = """
CREATE TABLE public.part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE public.part_low PARTITION OF public.part FOR VALUES FROM (1) TO (200) PARTITION BY RANGE (id);
CREATE TABLE public.part_1 PARTITION OF public.part_low FOR VALUES FROM (1) TO (100);
CREATE TABLE public.part_rest PARTITION OF public.part DEFAULT;
CREATE TABLE public.part_2 PARTITION OF public.part_low FOR VALUES FROM (100) TO (200);
"""
DEFAULT_ALONE = """
CREATE TABLE public.part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE public.part_rest PARTITION OF public.part DEFAULT;
"""
ROWS = "INSERT INTO public.part SELECT i, 'v' || i FROM generate_series(1, 400) i;"
SOURCE = PARTS.format(1, 100, 200)


@pytest.mark.parametrize("ddl", ["queue", "off"])
@pytest.mark.parametrize(("source", "target"), [
    (SOURCE, PARTS.format(1, 150, 300)), (SOURCE, PARTS.format(200, 300, 400)), (SOURCE, SOURCE), (NESTED, SOURCE),
    (SOURCE, DEFAULT_ALONE), (SOURCE, SOURCE.replace("id int", "id bigint")),
], ids=["other bounds", "no common rows", "alike", "in two steps", "not there", "bigint"])  # fmt: skip
def test_a_leaf_is_emptied(
    lifecycle: Lifecycles,
    source_dsn: str,
    target_dsn: str,
    source: str,
    target: str,
    ddl: str,
    capsys: pytest.CaptureFixture[str],
    at: At,
) -> None:
    """What it takes from the source leaves the target, and nothing else does; also where the run dies that meets it."""

    def die() -> None:
        raise Retry("here")

    execute(source_dsn, source + ROWS)
    execute(target_dsn, target)
    pipeline = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"], "existing": "adopt"}, capture={"ddl": ddl}
    )
    pipeline.run_all(until="replay")
    assert differences(source_dsn, target_dsn) == []
    alike = target.replace("bigint", "int") == source
    for leaf in ("part_1", "part_rest"):
        do(source_dsn, f"TRUNCATE public.{leaf}", "INSERT INTO public.part VALUES (5, 'new') ON CONFLICT DO NOTHING")
        with at("follow.before_lost_track_commit", once(die), perhaps=True) as border:
            if not alike:
                pipeline.refused("replay", Retry)
            assert bool(border.times) != alike
        assert not pipeline.run("replay").blocked
        assert differences(source_dsn, target_dsn) == []
    assert ("the copy has with other bounds" in capsys.readouterr().out) != alike


def test_one_that_has_followed_ddl_is_attached_again(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> None:
    """It is not taken for one that this DDL has made, which waits for no snapshot."""
    for dsn in (source_dsn, target_dsn):
        execute(dsn, "CREATE TABLE public.kept (id int PRIMARY KEY, v text);" + ROWS.replace("part", "kept"))
    pipeline = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"], "existing": "adopt"}, capture={"ddl": "queue"}
    )
    pipeline.run_all(until="replay")
    execute(source_dsn, "ALTER TABLE public.kept ADD COLUMN more int DEFAULT 3")
    execute(source_dsn, "CREATE TABLE public.late (id int PRIMARY KEY); INSERT INTO public.late VALUES (1)")
    assert not pipeline.run("replay").blocked
    stages.reset(load_pipeline(pipeline.content), source_dsn, target_dsn, ["public.kept"])
    execute(source_dsn, "UPDATE public.kept SET v = 'later' WHERE id < 9")
    pipeline.run_all(until="verify")
    assert differences(source_dsn, target_dsn) == []


@pytest.mark.parametrize("rows", ["change_log", "wal"])
def test_one_that_keeps_rows_is_attached_to_another_and_detached_again(
    lifecycle: Lifecycles, source_dsn: str, target_dsn: str, rows: str
) -> None:
    """The first is refused, and what takes it back goes on without the loss of a kept row of either."""
    made = """
        CREATE TABLE public.a (id int PRIMARY KEY); INSERT INTO public.a SELECT generate_series(1, 20);
        CREATE TABLE public.b (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE public.b_1 PARTITION OF public.b FOR VALUES FROM (100) TO (200);
        INSERT INTO public.b SELECT generate_series(100, 120);
    """
    execute(source_dsn, made)
    execute(target_dsn, made + "INSERT INTO public.a VALUES (50); INSERT INTO public.b VALUES (150)")
    tables = {"include": ["public.*"], "existing": "adopt", "keep_extra": True}
    move = lifecycle(source_dsn, target_dsn, tables=tables, capture={"ddl": "queue", "rows": rows})
    move.run_all(until="replay")
    do(
        source_dsn, "ALTER TABLE public.b ATTACH PARTITION public.a FOR VALUES FROM (0) TO (100)",
        "INSERT INTO public.b VALUES (30)", "DELETE FROM public.b WHERE id IN (3, 103)",
    )  # fmt: skip
    for _ in range(2):
        assert "the target keeps rows of one of" in str(move.refused("replay", StageFailed))
        assert move.journal("SELECT count(*) FROM public.b WHERE id IN (50, 150)") == [(2,)]
    do(
        source_dsn, "ALTER TABLE public.b DETACH PARTITION public.a",
        "INSERT INTO public.a VALUES (31); DELETE FROM public.a WHERE id = 4",
    )  # fmt: skip
    assert not move.run("replay").blocked
    for table, kept in (("public.a", 50), ("public.b", 150)):
        rows_of = "SELECT id FROM {} UNION SELECT {} ORDER BY 1".format
        assert move.on_source(rows_of(table, kept)) == move.journal(f"SELECT id FROM {table} ORDER BY 1")
