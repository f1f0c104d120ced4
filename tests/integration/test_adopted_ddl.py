"""Tables of the target that are taken as they are, beside DDL: those that are partitioned otherwise than the source's,
and those that have seen some."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
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
    (SOURCE, DEFAULT_ALONE),
], ids=["other bounds", "no common rows", "alike", "in two steps", "not there"])  # fmt: skip
def test_a_leaf_is_emptied(
    lifecycle: Lifecycles, source_dsn: str, target_dsn: str, source: str, target: str, ddl: str
) -> None:
    """What it takes from the source leaves the target, and nothing else does."""
    execute(source_dsn, source + ROWS)
    execute(target_dsn, target)
    pipeline = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"], "existing": "adopt"}, capture={"ddl": ddl}
    )
    pipeline.run_all(until="replay")
    assert differences(source_dsn, target_dsn) == []
    for leaf in ("part_1", "part_rest"):
        do(source_dsn, f"TRUNCATE public.{leaf}", "INSERT INTO public.part VALUES (5, 'new') ON CONFLICT DO NOTHING")
        assert not pipeline.run("replay").blocked
        assert differences(source_dsn, target_dsn) == []


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
