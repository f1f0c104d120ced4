"""Rebuilt statements of random commands and of random versions of a table, run on the servers."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines
from airflow_provider_pgddl.engine.errors import CannotRebuild
from airflow_provider_pgddl.engine.schema.table_versions import table_diff
from tests.combinations import matrix
from tests.integration.random_tables import RandomDdl
from tests.integration.rebuilt import Pair, event, versions
from tests.integration.sessions import do


@pytest.fixture(params=matrix("16", "18", "16 to 18"))
def pair(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Callable[..., str]) -> Pair:
    source = pg18 if request.param == "18" else pg16
    target = pg16 if request.param == "16" else pg18
    return Pair(database(source), database(target))


PLAYGROUND = """
    CREATE SCHEMA other; CREATE SCHEMA "Sh.op";
    CREATE TYPE other.mood AS ENUM ('fine', 'Bad'); CREATE DOMAIN other.dom AS int CHECK (VALUE > 0);
    CREATE TYPE other.pair AS (i int, t text); CREATE TABLE other.ref (id int PRIMARY KEY);
    DO $$ BEGIN CREATE ROLE random_ddl; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$
"""
SEEDS = [int(seed) for seed in os.environ.get("PGDDL_DDL_SEEDS", "1 2").split()]
COMMANDS = 60


@pytest.mark.parametrize("seed", SEEDS)
def test_random_commands_are_rebuilt(pair: Pair, seed: int) -> None:
    """One after the other, each from its event. What cannot be rebuilt has changed nothing."""
    pair.both(PLAYGROUND)
    pair.captured()
    random_ddl = RandomDdl(seed)
    done = 0
    while done < COMMANDS:
        tables = [m for m in versions(pair.source).values() if m["name"] != "ref"]
        command = random_ddl.command(tables)
        was = catalog_lines(pair.source)
        try:
            pair.follow(command)
        except psycopg.Error as error:
            if not pair.failed_on_source:
                raise AssertionError(f"seed {seed}: {command}\n{pair.statements}") from error
            continue
        except CannotRebuild:
            assert catalog_lines(pair.source) == was, f"seed {seed}: {command}"
        done += 1
        assert pair.differences() == [], f"seed {seed}: {command}\n{pair.statements}"
    assert done == COMMANDS


@pytest.mark.parametrize("seed", SEEDS)
def test_random_versions_are_rebuilt(pair: Pair, seed: int) -> None:
    """Many commands as one event: whatever lies between two versions of a table is done to the first. Versions hold
    neither sequences nor grants."""
    pair.both(PLAYGROUND)
    random_ddl = RandomDdl(seed)
    for _ in range(10):
        create = random_ddl.command([])
        with suppress(psycopg.Error):
            do(pair.source, create)
            do(pair.target, create)
    for oid in [oid for oid, meta in versions(pair.source).items() if meta["name"] != "ref"]:
        before = versions(pair.source)
        for _ in range(10):
            meta = versions(pair.source)[oid]
            with suppress(psycopg.Error):
                do(pair.source, random_ddl.alter(meta, [meta]))
        after = versions(pair.source)
        if not table_diff(before[oid], after[oid]):
            continue
        tables = [after[o] for o in (oid, *after[oid]["descendants"])]
        try:
            pair.run(event("ALTER TABLE", [after[oid]], tables), before)
        except psycopg.Error as error:
            raise AssertionError(f"seed {seed}: {pair.statements}\n{before[oid]}\n{after[oid]}") from error
        assert pair.differences(ignore=[" sequence: ", "grant "]) == [], f"seed {seed}: {pair.statements}"
