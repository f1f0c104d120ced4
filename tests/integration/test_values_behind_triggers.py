"""DDL that changes the values that readers see, while no row is written: no trigger fires, no file is written anew."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.commands.ddl import record_decision
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do

Make = Callable[..., Lifecycle]

TABLE = "CREATE TABLE {} (id int PRIMARY KEY, n int, v int GENERATED ALWAYS AS ({}) VIRTUAL)"
ROWS = "INSERT INTO {} SELECT n, n FROM generate_series(1, 90) n"
ALTER = "ALTER TABLE {} ALTER v SET EXPRESSION AS ({})"


def rows(dsn: str, table: str, where: str = "true", made: str = "*") -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(f"SELECT {made} FROM {table} WHERE {where} ORDER BY 1".encode()).fetchall()


@pytest.mark.parametrize("by_ddl", ["queue", "off"])
def test_another_expression_of_a_virtual_column(
    pg18: Cluster, database: Database, lifecycle: Make, by_ddl: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One table's tells which rows are on the target; another's is an ordinary column there."""
    source, target = database(pg18), database(pg18)
    for table in ("part", "kept", "alike"):
        do(source, TABLE.format(table, "n % 2"), ROWS.format(table))
    do(target, "CREATE TABLE kept (id int PRIMARY KEY, n int, v int)")
    move = lifecycle(
        source, target, capture={"ddl": by_ddl},
        tables={"include": ["public.*"], "existing": "adopt", "where": {"public.part": "v = 1"}},
    )  # fmt: skip
    move.run_all(until="replay")
    assert rows(target, "part") == rows(source, "part", "v = 1") != []
    # Another name in an expression makes no other values.
    rename = [f"ALTER TABLE {table} RENAME n TO m" for table in ("part", "alike", "kept")]
    do(source, *rename)
    if by_ddl == "off":
        do(target, *rename)
    read_again(capsys)
    assert not move.run("replay").blocked
    assert read_again(capsys) == []
    alter = [ALTER.format(table, "m % 3") for table in ("part", "alike", "kept")]
    do(source, *alter)
    if by_ddl == "off":
        do(target, *alter[:2])
    else:
        (blocked,) = move.run("replay").blocked
        assert blocked["table"] == "public.kept" and "is not a generated column" in blocked["reason"]
        ((event,),) = move.journal("SELECT id FROM pgddl.ddl_events WHERE status = 'failed'")
        record_decision(load_pipeline(move.content), source, target, event, "resolved", "an ordinary column", "me")
    assert not move.run("replay").blocked
    assert rows(target, "part") == rows(source, "part", "v = 1")
    assert rows(target, "kept") == rows(source, "kept")
    assert read_again(capsys) == ["public.kept", "public.part"]


def test_a_partition_that_computes_otherwise_is_read_as_its_table_shows_it(
    pg18: Cluster, database: Database, lifecycle: Make
) -> None:
    """Postgres lets it. Blocks are read leaf by leaf, everything else through the root; what it computes becomes of the
    column's type, 1.5 is 2."""
    source, target = database(pg18), database(pg18)
    odd = "CREATE TABLE {} (id int NOT NULL, n int, v int GENERATED ALWAYS AS (n % 3) VIRTUAL)"
    fill = "INSERT INTO {0} SELECT n, n FROM generate_series({1}, {2}) n"
    attach = "ALTER TABLE parted ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})"
    do(source, f"{TABLE.format('parted', 'n % 2 * 1.5')} PARTITION BY RANGE (id)", odd.format("p1"), odd.format("p2"))
    do(source, fill.format("p1", 1, 45), attach.format("p1", 1, 46), fill.format("p2", 46, 90))
    tables = {"include": ["public.*"], "exclude": ["public.p2"], "where": {"public.parted": "v = 2"}}
    move = lifecycle(source, target, tables=tables, capture={"rows": "wal"})
    move.run_all(until="replay")
    assert rows(target, "parted") == rows(source, "parted", "v = 2") != []
    do(target, odd.format("p2"))
    do(source, attach.format("p2", 46, 91))
    assert not move.run("replay").blocked
    assert rows(target, "parted") == rows(source, "parted", "v = 2")
    move.run("verify")


MOOD = "CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE TYPE pair AS (a int, m mood)"
TYPED = (
    "CREATE TABLE {} (id int PRIMARY KEY, m mood, p pair[]);"
    " INSERT INTO {} SELECT n, 'good', ARRAY[(n, 'bad')::pair] FROM generate_series(1, 90) n"
)


@pytest.mark.parametrize("by_rows", matrix("change_log", "wal"))
@pytest.mark.parametrize(
    "alter", ["ALTER TYPE mood RENAME VALUE 'bad' TO 'sad'", "ALTER TYPE pair ADD ATTRIBUTE more int"]
)
def test_values_of_a_type_that_are_texts_on_the_target(
    source_dsn: str, target_dsn: str, lifecycle: Make, by_rows: str, alter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    do(source_dsn, MOOD, TYPED.replace("{}", "texts"), TYPED.replace("{}", "alike"))
    do(target_dsn, "CREATE TABLE texts (id int PRIMARY KEY, m text, p text)")
    move = lifecycle(
        source_dsn, target_dsn, capture={"rows": by_rows}, tables={"include": ["public.*"], "existing": "adopt"},
        schema={"type_mismatches": "cast_always", "force": True},
    )  # fmt: skip
    move.run_all(until="replay")
    read_again(capsys)
    do(source_dsn, "ALTER TYPE mood ADD VALUE 'new'")
    assert not move.run("replay").blocked
    assert read_again(capsys) == []
    do(source_dsn, alter)
    for _ in range(2):
        assert not move.run("replay").blocked
    assert read_again(capsys) == ["public.texts"]
    printed = "id, m::text, p::text"
    for table in ("texts", "alike"):
        assert rows(target_dsn, table, made=printed) == rows(source_dsn, table, made=printed)


def read_again(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The tables of which all rows were, since the last time that this was asked."""
    lines = capsys.readouterr().out.splitlines()
    print(*lines, sep="\n")
    return sorted({line.split(": ")[1] for line in lines if "rows are read again" in line})
