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


def test_one_of_many_statements_of_an_execute(following: Moves) -> None:
    """Each of its events has the text of all. Rails validates each foreign key that way, which changes nothing that
    the metadata would show."""
    life = following(
        "CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p VALUES (1);"
        "CREATE TABLE c (id int PRIMARY KEY, p int CONSTRAINT fk REFERENCES p, a int, b int)"
    )
    execute(
        life.source,
        """
        DO $$ BEGIN
            EXECUTE 'UPDATE pg_catalog.pg_constraint SET convalidated = false WHERE conname = ''fk'';'
                    ' ALTER TABLE public.c VALIDATE CONSTRAINT fk;';
            EXECUTE 'ALTER TABLE c ALTER a SET STATISTICS 50; INSERT INTO c VALUES (1, 1); CREATE INDEX ON c (a);'
                    ' COMMENT ON TABLE c IS ''it''''s; c''; ALTER TABLE p SET (fillfactor = 80)';
            EXECUTE 'ALTER TABLE c ADD d int; ALTER TABLE c ADD e int';
        END $$
        """,
    )
    ends_equal(life)
    told = life.journal(
        "SELECT status, rebuilt, count(*) FROM pgddl.ddl_events WHERE captured_id IS NOT NULL GROUP BY 1, 2"
    )
    # What the end of the swap makes, the foreign key and the comment, is skipped until then.
    assert sorted(told) == [("applied", False, 3), ("applied", True, 2), ("skipped", False, 2)]
