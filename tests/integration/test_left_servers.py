"""A server that applications have left by one pipeline's cut-over, as others meet it: who writes to it, rewrites it, or
follows it has nobody's rows any more, and is told so."""

from __future__ import annotations

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.way_back import way_back_of
from tests.conftest import Database
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.ways_back import Lifecycles, refused

ITEMS = """
CREATE TABLE public.items (id int PRIMARY KEY, v text);
INSERT INTO public.items SELECT n, 'v' || n FROM generate_series(1, 200) n;
"""
ITEM_PARTS = """
CREATE TABLE public.items (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE public.items_low PARTITION OF public.items FOR VALUES FROM (0) TO (100);
CREATE TABLE public.items_rest PARTITION OF public.items DEFAULT;
INSERT INTO public.items SELECT n, 'v' || n FROM generate_series(1, 200) n;
"""
TABLES = {"tables": {"include": ["public.items"]}}
CLOSED = {**TABLES, "swap": {"fence": "read_only"}}


def rows(dsn: str) -> list[tuple[int, str]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute("SELECT id, v FROM public.items ORDER BY id").fetchall()


def way_back(lifecycle: Lifecycles, there: Lifecycle) -> Lifecycle:
    back = lifecycle(there.target, there.source)
    back.content = way_back_of(load_pipeline(there.content)).to_json()
    return back


@pytest.fixture
def first(pg16: Cluster, database: Database) -> str:
    return database(pg16)


@pytest.mark.parametrize("shape", [ITEMS, ITEM_PARTS], ids=["plain", "partitioned"])
@pytest.mark.parametrize("named", [None, "shop_back"], ids=["no_way_back", "way_back"])
def test_what_fed_it_goes_on_writing_nowhere(
    lifecycle: Lifecycles, first: str, source_dsn: str, target_dsn: str, shape: str, named: str | None
) -> None:
    """A chain: what one pipeline brings to a server is taken on by the next, until that one has cut over."""
    execute(first, shape)
    feed = lifecycle(first, source_dsn, **TABLES)
    feed.run_all(until="replay")
    shop = lifecycle(source_dsn, target_dsn, **{**CLOSED, "swap": {"fence": "read_only", "way_back": named}})
    shop.run_all(until="schema_sync")
    execute(first, "INSERT INTO public.items VALUES (501, 'by feed'); UPDATE public.items SET v = 'x' WHERE id = 3")
    feed.run("replay")
    shop.run_all(after="schema_sync", until="swap")
    assert rows(target_dsn) == rows(source_dsn) == rows(first)
    execute(first, "INSERT INTO public.items VALUES (502, 'late')")
    for _ in range(2):
        error = feed.refused("replay", StageFailed)
        assert error.table == "public.items" and repr(shop.name) in error.what
    assert rows(source_dsn) == rows(target_dsn)
    if named:  # what comes back does pass
        back = way_back(lifecycle, shop)
        execute(target_dsn, "INSERT INTO public.items VALUES (601, 'new server')")
        back.run("replay")
        assert rows(source_dsn) == rows(target_dsn)
        feed.refused("replay", StageFailed)


def test_whoever_follows_it_is_told_that_its_rows_are_old(
    lifecycle: Lifecycles, pg18: Cluster, database: Database, source_dsn: str, target_dsn: str
) -> None:
    execute(source_dsn, ITEMS)
    elsewhere = database(pg18)
    report = lifecycle(source_dsn, elsewhere, **TABLES)
    report.run_all(until="verify")
    shop = lifecycle(source_dsn, target_dsn, **CLOSED)
    shop.run_all(until="verify")
    execute(source_dsn, "INSERT INTO public.items VALUES (501, 'before')")
    shop.run("swap")
    execute(target_dsn, "INSERT INTO public.items VALUES (502, 'behind')")
    for _ in range(2):
        (blocked,) = report.run("replay").blocked
        assert blocked["table"] == "public.items" and repr(shop.name) in blocked["reason"]
    assert (501, "before") in rows(elsewhere)  # it has all that was there
    error = report.refused("swap", PreflightRefused)
    assert repr(shop.name) in error.what and shop.name in str(error.todo)
    shop.run("cleanup")  # the fence stays
    report.refused("swap", PreflightRefused)
    another = lifecycle(source_dsn, database(pg18), **TABLES)
    assert repr(shop.name) in another.refused("setup", PreflightRefused).what


def test_not_so_while_rows_come_back_to_it(
    lifecycle: Lifecycles, pg18: Cluster, database: Database, source_dsn: str, target_dsn: str
) -> None:
    execute(source_dsn, ITEMS)
    elsewhere = database(pg18)
    report = lifecycle(source_dsn, elsewhere, **TABLES)
    report.run_all(until="verify")
    shop = lifecycle(source_dsn, target_dsn, **{**CLOSED, "swap": {"fence": "read_only", "way_back": "shop_back"}})
    shop.run_all(until="swap")
    back = way_back(lifecycle, shop)
    execute(target_dsn, "INSERT INTO public.items VALUES (502, 'behind')")
    back.run("replay")
    assert report.run("replay").blocked == []
    assert rows(elsewhere) == rows(target_dsn)
    shop.run("cleanup")
    back.run("cleanup")  # it lives no more, and nothing comes
    assert [b["table"] for b in report.run("replay").blocked] == ["public.items"]


WIDEN = {"rewrite": {"public.items": {"alter": ["ALTER COLUMN id TYPE bigint"]}}}


def in_place(lifecycle: Lifecycles, dsn: str) -> Lifecycle:
    return lifecycle(dsn, **WIDEN)


def test_no_rewrite_in_place_opens_it_again(lifecycle: Lifecycles, source_dsn: str, target_dsn: str, at: At) -> None:
    """Neither one that was under way before, nor one that begins behind it; nor with the cut-over between its look and
    its lock."""
    execute(source_dsn, ITEMS)
    shop, widen = lifecycle(source_dsn, target_dsn, **CLOSED), in_place(lifecycle, source_dsn)
    widen.run_all(until="verify")
    shop.run_all(until="verify")
    at("swap.before_lock", once(lambda: shop.run("swap")))
    assert repr(shop.name) in widen.refused("swap", PreflightRefused).what
    refused(source_dsn, "INSERT INTO public.items VALUES (501, 'of one who stayed')")
    widen.refused("swap", PreflightRefused)
    refused(source_dsn, "INSERT INTO public.items VALUES (501, 'of one who stayed')")
    assert repr(shop.name) in in_place(lifecycle, source_dsn).refused("setup", PreflightRefused).what


def test_no_way_back_in_place_opens_it_again(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> None:
    execute(source_dsn, ITEMS)
    widen = in_place(lifecycle, source_dsn)
    widen.run_all(until="swap")
    shop = lifecycle(source_dsn, target_dsn, **CLOSED)
    shop.run_all(until="swap")
    assert repr(shop.name) in widen.refused("revert", PreflightRefused).what
    refused(source_dsn, "INSERT INTO public.items VALUES (501, 'of one who stayed')")
    widen.run("cleanup")
    assert rows(source_dsn) == rows(target_dsn)


def test_no_table_that_takes_its_place_opens_it_again(
    lifecycle: Lifecycles, first: str, source_dsn: str, target_dsn: str
) -> None:
    """`tables.existing: replace` puts new tables in the place of those of the target."""
    execute(first, ITEMS)
    execute(source_dsn, ITEMS)
    feed = lifecycle(first, source_dsn, **{**TABLES, "tables": {"include": ["public.items"], "existing": "replace"}})
    feed.run_all(until="verify")
    shop = lifecycle(source_dsn, target_dsn, **CLOSED)
    shop.run_all(until="swap")
    assert repr(shop.name) in feed.refused("swap", PreflightRefused).what
    refused(source_dsn, "INSERT INTO public.items VALUES (501, 'of one who stayed')")
