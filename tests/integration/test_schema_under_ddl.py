"""Looks at two schemas while DDL runs on either side: a verdict, or an error that is worth another try."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.engine.errors import (
    EXIT_BLOCKED,
    EXIT_DONE,
    EXIT_RETRY,
    EXIT_USAGE,
    PgddlError,
    Retry,
    from_postgres,
)
from airflow_provider_pgddl.engine.server import schema_reading
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.schema_commands import Shell, Shop, rows, shop_of
from tests.integration.sessions import Underway, in_transaction, wait_for, waits_for_anything


@pytest.fixture
def shop(
    lifecycle: Callable[..., Lifecycle],
    source_dsn: str,
    target_dsn: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> Shop:
    """``shop(source, target, role=…, schema={...})``: both sides with these tables, and nothing set up."""
    return shop_of(lifecycle, (source_dsn, target_dsn), tmp_path, capfd)


def test_a_table_dropped_while_it_is_validated(shop: Shop) -> None:
    """The drop is under way when the catalog is read, so that the look has to wait for it."""
    made = "CREATE TABLE t (id int PRIMARY KEY, n int, CHECK (n > 0))"
    pgddl = shop(made, made)
    for look in ("validate", "diff --table t"):
        with in_transaction(pgddl.move.target, "DROP TABLE public.t") as drop:
            with Underway(lambda look=look: pgddl("schema", *look.split())) as looking:  # type: ignore[misc]
                wait_for(lambda: waits_for_anything(pgddl.move.target), looking)
                drop.commit()
                assert looking.finish()[0] == EXIT_DONE
        execute(pgddl.move.target, made)


def test_a_table_held_locked_is_worth_another_try(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_reading, "_SET", sql.SQL("SET LOCAL lock_timeout = '100ms'"))
    made = "CREATE TABLE t (id int PRIMARY KEY, n int, CHECK (n > 0))"
    pgddl = shop(made, schema={"validation": "strict"}, ddl={"lock_timeout": "100ms", "retry_for": "100ms"})
    pgddl.move.run_all(until="replay")
    execute(pgddl.move.source, "INSERT INTO t VALUES (1, 1)")
    for side in (pgddl.move.source, pgddl.move.target):
        with in_transaction(side, "ALTER TABLE public.t ADD COLUMN later int"):
            for command in (["schema", "validate"], ["schema", "diff", "--table", "t"], ["schema", "sync", "--apply"]):
                code, said = pgddl(*command)
                assert (code, "held a table locked" in said) == (EXIT_RETRY, True), command
            with pytest.raises(Retry, match="held a table locked"):
                pgddl.gate()
            assert pgddl.stage("replay")[0] == EXIT_RETRY
    assert pgddl.stage("replay")[0] == EXIT_DONE
    assert rows(pgddl.move.target, "t") == rows(pgddl.move.source, "t")


# What is done to table `{t}` in turn, with a type `{e}` of its own; in the end it is as it was.
DDL = (
    "ALTER TABLE public.{t} ADD COLUMN n int DEFAULT 5, ADD CHECK (n > 0)",
    "CREATE UNIQUE INDEX ON public.{t} ((n + id)) WHERE n > 0",
    "CREATE TYPE public.{e} AS ENUM ('a', 'b')",
    "ALTER TABLE public.{t} ADD COLUMN e public.{e}[], ADD COLUMN g int GENERATED ALWAYS AS (n) STORED",
    "ALTER TABLE public.{t} ALTER COLUMN note TYPE varchar(9)",
    "ALTER TABLE public.{t} DROP COLUMN n CASCADE",
    "ALTER TABLE public.{t} RENAME TO {t}_away",
    "ALTER TABLE public.{t}_away RENAME TO {t}",
    "DROP TYPE public.{e} CASCADE",
    "ALTER TABLE public.{t} ALTER COLUMN note TYPE text",
)
ANEW = ("DROP TABLE public.{t}", "CREATE TABLE public.{t} (id int PRIMARY KEY, note text)")
ROUNDS = 5


@pytest.mark.parametrize("until", [None, "replay"])
def test_catalogs_are_read_under_ddl_on_both_sides(shop: Shop, until: str | None) -> None:
    """Tables, types and constraints come and go on both servers while every command looks; one table is left alone."""
    tables = "".join(f"CREATE TABLE {name} (id int PRIMARY KEY, note text);" for name in ("stays", "t0", "t1"))
    pgddl = shop(tables, "" if until else tables)
    if until:
        pgddl.move.run_all(until=until)
    source, target = pgddl.move.source, pgddl.move.target
    enough = Event()

    def ddl(dsn: str) -> int:
        turns = 0
        with psycopg.connect(dsn, autocommit=True) as conn:
            while not enough.is_set() and turns < 400:  # a table has room for 1600 columns in all its life
                for t, statements in (("t0", DDL), ("t1", (*DDL, *ANEW))):
                    for statement in statements:
                        conn.execute(statement.format(t=t, e=f"{t}_e").encode())
                turns += 1
        return turns

    asked: dict[str, Callable[[], int]] = {
        **{words: (lambda words=words: pgddl(*words.split())[0]) for words in COMMANDS},  # type: ignore[misc]
        "gate": lambda: gated(pgddl),
    }
    odd: list[str] = []

    def replay() -> int:
        code, said = pgddl.stage("replay")
        if code not in (EXIT_DONE, EXIT_BLOCKED, EXIT_RETRY):
            odd.append(said)
        return code

    if until:
        asked["replay"] = replay
    codes: dict[str, Counter[int]] = {name: Counter() for name in asked}
    with Underway(lambda: ddl(source)) as there, Underway(lambda: ddl(target)) as here:
        try:
            for _ in range(ROUNDS):
                for name, ask in asked.items():
                    codes[name][ask()] += 1
        finally:
            enough.set()
        turns = there.finish(), here.finish()
    print(turns, codes, *odd)
    assert min(turns) > 1
    # A table that is away in this moment is none that could be asked for.
    assert codes.pop("schema diff --table t1").keys() <= {EXIT_DONE, EXIT_BLOCKED, EXIT_RETRY, EXIT_USAGE}
    assert {code for found in codes.values() for code in found} <= {EXIT_DONE, EXIT_BLOCKED, EXIT_RETRY}
    if until:
        execute(source, "INSERT INTO stays VALUES (1, 'one'); INSERT INTO t0 VALUES (1, 'one')")
        assert pgddl.stage("replay")[0] in (EXIT_DONE, EXIT_BLOCKED)  # t1 is another table on either side
        for table in ("stays", "t0"):
            assert rows(target, table) == rows(source, table) != []
            assert pgddl.gate()[f"public.{table}"].status == "compatible"


COMMANDS = (
    "schema validate", "schema diff --table t1", "schema sync --dry-run", "status", "metrics",
)  # fmt: skip


def gated(pgddl: Shell) -> int:
    try:
        return EXIT_BLOCKED if any(r.status == "mismatch" for r in pgddl.gate().values()) else EXIT_DONE
    except PgddlError as error:
        pgddl.check(str(error))
        return error.exit_code
    except psycopg.Error as error:  # as the sensor takes it
        failure = from_postgres(error, doing="looking at the schemas")
        pgddl.check(str(failure))
        return failure.exit_code
