"""Stored generated columns: each side computes them for itself, by what their functions say when a row is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.following.row_comparison import sides_of
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do, one

Make = Callable[..., Lifecycle]
OLD = """
CREATE OR REPLACE FUNCTION public.net(n numeric) RETURNS numeric IMMUTABLE LANGUAGE sql AS 'SELECT round(n / 1.19, 2)'
"""
NEW = OLD.replace("1.19", "1.16")
BILLS = """
CREATE TABLE public.bills (
    id int PRIMARY KEY, gross numeric NOT NULL, net numeric GENERATED ALWAYS AS (public.net(gross)) STORED,
    twice int GENERATED ALWAYS AS (id * 2) STORED)
"""
ROWS = "INSERT INTO public.bills SELECT n, n * 1.19 FROM generate_series(1, 3000) n"
DIFFERS = "public.bills: at least 100 rows differ, such as ("


@pytest.fixture
def bills(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, OLD, BILLS, ROWS, NEW, "INSERT INTO public.bills VALUES (9000, 116)")
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, swap={"fence": "read_only"})


def test_another_value_is_seen_and_not_read_again_for_nothing(bills: Lifecycle) -> None:
    bills.run_all(until="replay")
    for mend in (False, True):
        refused = bills.refused("verify", StageFailed, mend=mend)
        assert DIFFERS in refused.what and "has another value in a generated column" in refused.what
    assert bills.journal("SELECT keys FROM pgddl.windows WHERE keys > 0") == []
    do(bills.source, "UPDATE public.bills SET gross = gross WHERE id < 9000")
    bills.run_all(after="schema_sync")
    assert differences(bills.source, bills.target) == []


def test_the_sources_values_can_be_kept(bills: Lifecycle) -> None:
    before = bills.on_source("SELECT sum(net) FROM public.bills")
    bills.run_all(until="replay")
    refused = bills.refused("verify", StageFailed)
    drop = 'ALTER TABLE "public"."bills" ALTER COLUMN "net" DROP EXPRESSION;'
    assert refused.sql is not None and drop in refused.sql
    do(bills.target, *refused.sql.splitlines())
    bills.run_all(after="schema_sync")
    assert bills.journal("SELECT sum(net) FROM public.bills") == before
    assert differences(bills.source, bills.target) == []


def test_a_row_that_differs_otherwise_too_is_mended(bills: Lifecycle) -> None:
    bills.run_all(until="replay")
    do(bills.target, "UPDATE public.bills SET gross = 0 WHERE id = 7", "DELETE FROM public.bills WHERE id = 8")
    refused = bills.refused("verify", StageFailed)
    assert "(7) differs" in refused.what and "generated" not in refused.what
    assert "generated column" in bills.refused("verify", StageFailed, mend=True).what
    assert one(bills.target, "SELECT gross FROM public.bills WHERE id = 7") == one(
        bills.source, "SELECT gross FROM public.bills WHERE id = 7"
    )


def test_in_place_too(source_dsn: str, lifecycle: Make) -> None:
    do(source_dsn, OLD, BILLS, ROWS, NEW)
    rewrite = lifecycle(source_dsn, rewrite={"public.bills": {}})
    rewrite.run_all(until="replay")
    assert DIFFERS in rewrite.refused("verify", StageFailed).what


def test_what_is_computed_of_other_values_is_not_compared(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    do(source_dsn, OLD, BILLS, ROWS)
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"], "transform": {"public.bills": {"gross": "gross * 2"}}}
    )
    move.run_all(until="verify")
    with connect(move.source, purpose="test") as source, connect(move.target, purpose="test") as target:
        (table,) = Journal(target, move.name).tables.of(1)
        assert sides_of(source, target, [table], in_place=False)[table.id].computed == ("twice",)
