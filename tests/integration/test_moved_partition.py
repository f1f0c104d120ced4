"""A partition that goes from one captured table to another."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgddl.demo.compare import differences
from tests.integration.lifecycle import Lifecycle, execute

Lifecycles = Callable[..., Lifecycle]

TABLES = """
CREATE TABLE public.{0} (at int, v text, PRIMARY KEY (at)) PARTITION BY RANGE (at);
CREATE TABLE public.{0}_0 PARTITION OF public.{0} FOR VALUES FROM (0) TO (1000);
INSERT INTO public.{0} SELECT n, 'v' FROM generate_series(1, 300) n;
"""


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_what_captures_it_for_the_new_one_stays(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, names: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Whichever of both is looked at first."""
    old, new = names
    execute(source_dsn, TABLES.format("a") + TABLES.format("b"))
    execute(
        source_dsn,
        f"CREATE TABLE public.moves PARTITION OF public.{old} FOR VALUES FROM (1000) TO (2000);"
        "INSERT INTO public.moves SELECT n, 'moves' FROM generate_series(1000, 1004) n",
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.a", "public.b"]}, backfill={"workers": 1})
    move.run_all(until="replay")
    execute(
        source_dsn,
        f"ALTER TABLE public.{old} DETACH PARTITION public.moves;"
        f"ALTER TABLE public.{new} ATTACH PARTITION public.moves FOR VALUES FROM (1000) TO (2000);"
        "UPDATE public.moves SET v = 'moved'",
    )
    capsys.readouterr()
    for _ in range(2):
        assert not move.run("replay").blocked
    assert capsys.readouterr().out.count("its rows are read again") == 1
    execute(source_dsn, "UPDATE public.moves SET v = 'later'; INSERT INTO public.moves VALUES (1500, 'new')")
    assert not move.run("replay").blocked
    assert differences(source_dsn, target_dsn) == []
