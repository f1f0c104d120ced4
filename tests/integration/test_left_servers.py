"""A server that applications have left by one pipeline's cut-over, as others meet it: who writes to it, rewrites it, or
follows it has nobody's rows any more, and is told so."""

from __future__ import annotations

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.way_back import way_back_of
from tests.conftest import Database
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.resets import reset
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
        (blocked,) = feed.run("replay").blocked
        assert blocked["table"] == "public.items" and repr(shop.name) in blocked["reason"]
    assert rows(source_dsn) == rows(target_dsn)
    if named:  # what comes back does pass
        back = way_back(lifecycle, shop)
        execute(target_dsn, "INSERT INTO public.items VALUES (601, 'new server')")
        back.run("replay")
        assert rows(source_dsn) == rows(target_dsn)
        assert feed.run("replay").blocked


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
    execute(target_dsn, "INSERT INTO public.items VALUES (503, 'not back yet')")
    assert repr(shop.name) in report.refused("swap", PreflightRefused).what
    shop.run("cleanup")
    back.run("cleanup")  # it lives no more, and nothing comes
    assert [b["table"] for b in report.run("replay").blocked] == ["public.items"]


def test_one_closed_table_stops_itself_alone(
    lifecycle: Lifecycles, first: str, source_dsn: str, target_dsn: str
) -> None:
    others = "CREATE TABLE public.others (id int PRIMARY KEY, v text)"
    execute(first, f"{ITEMS}; {others}")
    feed = lifecycle(first, source_dsn, tables={"include": ["public.*"]})
    feed.run_all(until="replay")
    shop = lifecycle(source_dsn, target_dsn, **CLOSED)
    shop.run_all(until="swap")
    for n in (1, 2):
        execute(first, f"INSERT INTO public.items VALUES ({500 + n}, 'late'); INSERT INTO public.others VALUES ({n})")
        assert [b["table"] for b in feed.run("replay").blocked] == ["public.items"]
        assert feed.journal("SELECT count(*) FROM public.others") == [(n,)]


def test_nothing_is_copied_or_adopted_there(
    lifecycle: Lifecycles, first: str, source_dsn: str, target_dsn: str
) -> None:
    execute(first, ITEMS)
    execute(source_dsn, ITEMS)
    early = lifecycle(first, source_dsn, tables={"include": ["public.items"], "existing": "adopt"})
    early.run_all(until="snapshot")
    shop = lifecycle(source_dsn, target_dsn, **CLOSED)
    shop.run_all(until="swap")
    execute(first, "DELETE FROM public.items WHERE id = 7")
    early.run("backfill")
    assert [b["table"] for b in early.run("schema_sync").blocked] == ["public.items"]
    assert rows(source_dsn) == rows(target_dsn)
    late = lifecycle(first, source_dsn, tables={"include": ["public.items"], "existing": "adopt"})
    assert repr(shop.name) in late.refused("setup", PreflightRefused).what
    reset(shop)  # as is said
    early.run_all(after="backfill", until="verify")
    assert rows(source_dsn) == rows(first)


def test_of_two_cut_overs_at_once_one_is_refused(
    lifecycle: Lifecycles, pg18: Cluster, database: Database, source_dsn: str, target_dsn: str, at: At
) -> None:
    execute(source_dsn, ITEMS)
    report = lifecycle(source_dsn, database(pg18), **CLOSED)
    shop = lifecycle(source_dsn, target_dsn, **CLOSED)
    for one in (report, shop):
        one.run_all(until="verify")
    at("cut_over.before_fence_lock", once(lambda: shop.run("swap")))
    assert repr(shop.name) in report.refused("swap", PreflightRefused).what
    refused(source_dsn, "INSERT INTO public.items VALUES (501, 'of one who stayed')")
    assert report.on_source("SELECT tgname FROM pg_trigger WHERE tgname ~ 'fence'") == [(f"pgddl_fence_{shop.name}",)]


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
    shop.run("cleanup")
    of_the_same_name = lifecycle(source_dsn, **WIDEN, pipeline=shop.name)
    assert repr(shop.name) in of_the_same_name.refused("setup", PreflightRefused).what


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


@pytest.mark.parametrize("late", [False, True], ids=["before", "between_look_and_lock"])
def test_no_table_that_takes_its_place_opens_it_again(
    lifecycle: Lifecycles, first: str, source_dsn: str, target_dsn: str, at: At, late: bool
) -> None:
    """`tables.existing: replace` puts new tables in the place of those of the target."""
    execute(first, ITEMS)
    execute(source_dsn, ITEMS)
    feed = lifecycle(first, source_dsn, **{**TABLES, "tables": {"include": ["public.items"], "existing": "replace"}})
    feed.run_all(until="verify")
    shop = lifecycle(source_dsn, target_dsn, **CLOSED)
    if late:
        shop.run_all(until="verify")
        at("replace.before_lock", once(lambda: shop.run("swap")))
    else:
        shop.run_all(until="swap")
    for _ in range(2):
        assert repr(shop.name) in feed.refused("swap", PreflightRefused).what
        refused(source_dsn, "INSERT INTO public.items VALUES (501, 'of one who stayed')")


def test_no_table_that_comes_back_opens_it_again(
    lifecycle: Lifecycles, first: str, source_dsn: str, target_dsn: str
) -> None:
    execute(first, ITEMS)
    execute(source_dsn, ITEMS)
    feed = lifecycle(first, source_dsn, **{**TABLES, "tables": {"include": ["public.items"], "existing": "replace"}})
    feed.run_all(until="swap")
    shop = lifecycle(source_dsn, target_dsn, **CLOSED)
    shop.run_all(until="swap")
    assert repr(shop.name) in feed.refused("revert", PreflightRefused).what
    refused(source_dsn, "INSERT INTO public.items VALUES (501, 'of one who stayed')")
