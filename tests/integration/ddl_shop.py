"""A small shop whose DDL is followed, and what must hold of it at the end."""

from __future__ import annotations

from airflow_provider_pgddl.demo.compare import compare_catalogs, differences
from tests.integration.lifecycle import Lifecycle, execute, left_behind

SHOP = """
CREATE TABLE public.orders (id int PRIMARY KEY, note text);
CREATE TABLE public.lines (id int PRIMARY KEY, text text);
CREATE TABLE public.events (id int PRIMARY KEY, what text) PARTITION BY RANGE (id);
CREATE TABLE public.events_1 PARTITION OF public.events FOR VALUES FROM (0) TO (100);
CREATE TABLE public.events_2 PARTITION OF public.events FOR VALUES FROM (100) TO (200);
INSERT INTO public.orders SELECT i, 'o' || i FROM generate_series(1, 500) i;
INSERT INTO public.lines SELECT i, 'l' || i FROM generate_series(1, 100) i;
INSERT INTO public.events SELECT i, 'e' FROM generate_series(0, 199) i;
"""


def equal(pipeline: Lifecycle) -> None:
    assert differences(pipeline.source, pipeline.target) == []
    assert compare_catalogs(pipeline.source, pipeline.target, ["public"]) == []
    assert left_behind(pipeline.source) == []


def each(dsn: str, statements: str) -> None:
    """One statement a line, each in a transaction of its own."""
    for statement in statements.strip().splitlines():
        execute(dsn, statement)


def all_through(pipeline: Lifecycle, after: str) -> None:
    pipeline.run_all(after=after)
    equal(pipeline)


def killed(*_: object) -> None:
    raise KeyboardInterrupt
