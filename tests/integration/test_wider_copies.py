"""A copy whose columns write the same values otherwise, as with more digits behind the point: equal is equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgddl.engine.errors import StageFailed
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do, one

Make = Callable[..., Lifecycle]
PRICES = """
CREATE DOMAIN public.price AS numeric(8, 2); CREATE DOMAIN public.wide AS numeric(12, 4);
CREATE TABLE public.prices (
    number numeric(8, 2), code char(5), price numeric(8, 2), label char(5), prices numeric(8, 2)[], labels char(5)[],
    of_domain public.price, free numeric(8, 2), more numeric(8, 2), PRIMARY KEY (number, code));
INSERT INTO public.prices
SELECT n, 'k' || n, n / 4.0, 'l' || n, ARRAY[n, n / 4.0], ARRAY['a', 'l' || n], n / 4.0, n, n
FROM generate_series(1, 200) n
"""
WIDER = """
ALTER TABLE public.prices ALTER number TYPE numeric(12, 4), ALTER code TYPE char(10), ALTER price TYPE numeric(12, 4),
ALTER label TYPE char(10), ALTER prices TYPE numeric(12, 4)[], ALTER labels TYPE char(10)[],
ALTER of_domain TYPE public.wide,
ALTER free TYPE numeric, ALTER more TYPE numeric(12, 2)
"""


@pytest.fixture
def prices(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, *PRICES.split(";"))
    return lifecycle(
        source_dsn, target_dsn, swap={"fence": "read_only"},
        tables={"include": ["public.*"]},
    )  # fmt: skip


@pytest.mark.parametrize("until", ["snapshot", "replay"])
def test_values_that_are_written_otherwise_are_equal(prices: Lifecycle, until: str) -> None:
    prices.run_all(until=until)
    do(prices.target, WIDER)
    do(prices.source, "UPDATE public.prices SET price = 77.5 WHERE number <= 3")
    prices.run_all(until="verify", after=until)
    do(
        prices.target,
        "DELETE FROM public.prices WHERE number = 7",
        "UPDATE public.prices SET label = 'x' WHERE number = 8",
    )
    refused = str(prices.refused("verify", StageFailed, asked=True))
    assert "public.prices: 2 rows differ" in refused
    prices.run("verify", mend=True)
    prices.run("swap")
    assert one(prices.target, "SELECT sum(price)::text FROM public.prices") == "5256.0000"


def test_rows_that_are_there_in_a_wider_table_are_not_read_again(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    do(source_dsn, *PRICES.split(";"))
    do(target_dsn, *PRICES.split(";"), WIDER)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"], "existing": "adopt"})
    move.run_all(until="verify")
    assert move.results["schema_sync"].figures.get("keys", 0) == 0
