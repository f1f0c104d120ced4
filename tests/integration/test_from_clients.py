"""What the clients of tests/clients have met, each by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgddl.demo.compare import compare_catalogs, differences
from tests.integration.lifecycle import Lifecycle, execute

Moves = Callable[..., Lifecycle]


@pytest.fixture
def following(lifecycle: Moves, source_dsn: str, target_dsn: str) -> Moves:
    """``following(statements, capture=...)``: what these made is followed, with all DDL of the database."""

    def make(statements: str, **pipeline: object) -> Lifecycle:
        execute(source_dsn, statements)
        content = {"tables": {"include": ["public.*"]}, "ddl": {"scope": "everything"}, **pipeline}
        life = lifecycle(source_dsn, target_dsn, backfill={"workers": 1}, **content)
        for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay"):
            assert not life.run(stage).blocked
        return life

    return make


def ends_equal(life: Lifecycle) -> None:
    for stage in ("replay", "verify", "swap", "cleanup"):
        result = life.run(stage)
        assert not result.blocked, f"{stage}: {result.blocked}"
    assert differences(life.source, life.target) == []
    assert compare_catalogs(life.source, life.target, ignore=["publication"]) == []


@pytest.mark.parametrize(
    ("rows", "publication"),
    [
        ("wal", ""),
        ("change_log", 'CREATE PUBLICATION theirs FOR TABLE "Go.ne" (id), stays (id)'),
        ("change_log", 'CREATE PUBLICATION "in publication" FOR TABLE "Go.ne" WHERE (id > 1)'),
    ],
)
def test_a_published_table_is_dropped(following: Moves, rows: str, publication: str) -> None:
    """Of one of which a publication has some columns or rows Postgres says that only CASCADE takes that along."""
    tables = 'CREATE TABLE "Go.ne" (id int PRIMARY KEY, a int); CREATE TABLE stays (id int PRIMARY KEY, a int);'
    life = following(f"{tables} {publication}", capture={"rows": rows})
    execute(life.source, 'DROP TABLE "Go.ne"; ALTER TABLE stays ADD b int; INSERT INTO stays VALUES (1, 2, 3)')
    ends_equal(life)
    assert life.journal("SELECT notes FROM pgddl.ddl_events WHERE statement LIKE 'DROP TABLE%'") == [([],)]
