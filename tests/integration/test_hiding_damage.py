"""Settings by which a server passes over damaged pages: without a word rows would be missing on either side."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from psycopg import sql

from airflow_provider_pgddl.engine.errors import PreflightRefused
from tests.conftest import database_name
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do

Make = Callable[..., Lifecycle]


@pytest.mark.parametrize("setting", ["zero_damaged_pages", "ignore_checksum_failure"])
@pytest.mark.parametrize("where", ["source", "target"])
def test_who_reads_past_damage_compares_nothing(
    source_dsn: str, target_dsn: str, lifecycle: Make, setting: str, where: str
) -> None:
    do(source_dsn, "CREATE TABLE public.t (id int PRIMARY KEY)", "INSERT INTO public.t VALUES (1)")
    dsn = source_dsn if where == "source" else target_dsn
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, swap={"fence": "read_only"})
    database = sql.Identifier(database_name(dsn)).as_string()
    told = f"error ({where}): {setting} is on"
    do(dsn, f"ALTER DATABASE {database} SET {setting} = on")
    assert told in str(move.refused("setup", PreflightRefused))
    do(dsn, f"ALTER DATABASE {database} RESET {setting}")
    move.run_all(until="replay")
    do(dsn, f"ALTER DATABASE {database} SET {setting} = on")
    refused = str(move.refused("verify", PreflightRefused))
    assert told in refused and f"ALTER DATABASE {database_name(dsn)} RESET {setting};" in refused
    do(dsn, f"ALTER DATABASE {database} RESET {setting}")
    move.run_all(after="replay")
