"""Setup chooses tables by their names, and captures many together: what clients rename, attach or drop meanwhile, and
what a killed setup leaves of tables that nobody chooses any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import Retry, UsageError
from airflow_provider_pgddl.engine.following import table_capture
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.stages import setup
from tests.combinations import matrix
from tests.failpoints import At
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import do

Make = Callable[..., Lifecycle]
CAPTURED = (
    "SELECT c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE t.tgname ~ '^pgddl_row_' "
    "UNION SELECT c.relname FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid ORDER BY 1"
)
JOURNAL = "SELECT table_name FROM pgddl.tables ORDER BY 1"


@pytest.fixture
def behind_the_choice(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """What happens between the choice of the first tables by their names and the look at them by their oids."""

    def happens(change: Callable[[], object]) -> None:
        left = [change]

        class Late(table_capture.TableCapture):
            def __init__(self, context: Context, chosen: Mapping[int, Name | None]) -> None:
                if left:
                    left.pop()()
                super().__init__(context, chosen)

        monkeypatch.setattr(setup, "TableCapture", Late)

    return happens


def captured(move: Lifecycle) -> list[str]:
    return [name for (name,) in move.on_source(CAPTURED)]


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_what_is_left_out_of_a_table_stays_out_when_it_is_renamed(
    source_dsn: str, target_dsn: str, lifecycle: Make, behind_the_choice: Callable[..., None], rows: str
) -> None:
    do(source_dsn, "CREATE TABLE users (id int PRIMARY KEY, secret text)", "CREATE TABLE zoo (id int PRIMARY KEY)")
    tables = {"include": ["public.*"], "skip_columns": {"public.users": ["secret"]}}
    move = lifecycle(source_dsn, target_dsn, tables=tables, capture={"rows": rows, "ddl": "off"})
    behind_the_choice(lambda: do(source_dsn, "ALTER TABLE users RENAME TO people"))
    move.refused("setup", UsageError)
    assert "people" not in captured(move)
    assert move.journal(JOURNAL) == [("zoo",)]


def test_what_is_left_out_of_a_table_stays_out_when_the_column_is_renamed(
    source_dsn: str, target_dsn: str, lifecycle: Make, behind_the_choice: Callable[..., None]
) -> None:
    do(source_dsn, "CREATE TABLE users (id int PRIMARY KEY, secret text)")
    tables = {"include": ["public.*"], "skip_columns": {"public.users": ["secret"]}}
    move = lifecycle(source_dsn, target_dsn, tables=tables, capture={"ddl": "off"})
    behind_the_choice(lambda: do(source_dsn, "ALTER TABLE users RENAME secret TO pin"))
    move.refused("setup", UsageError)
    assert captured(move) == []


def test_what_is_renamed_before_its_group_has_its_turn_is_looked_for_again(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(source_dsn, *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("a", "b", "gone")))
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": "off"})
    refuse = setup._refuse_lost_names
    left = ["ALTER TABLE a RENAME TO c", "ALTER TABLE b RENAME TO a", "DROP TABLE gone"]

    def rename(context: Context) -> None:
        refuse(context)
        while left:
            do(source_dsn, left.pop(0))

    monkeypatch.setattr(setup, "_refuse_lost_names", rename)
    move.run("setup")
    assert captured(move) == ["a", "c"]
    assert move.journal(JOURNAL) == [("a",), ("c",)]


def test_a_table_that_is_attached_is_captured_with_the_one_that_it_belongs_to(
    source_dsn: str, target_dsn: str, lifecycle: Make, behind_the_choice: Callable[..., None]
) -> None:
    do(
        source_dsn,
        "CREATE TABLE ev (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE ev_2 (id int PRIMARY KEY)",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": "off"})
    behind_the_choice(lambda: do(source_dsn, "ALTER TABLE ev ATTACH PARTITION ev_2 FOR VALUES FROM (10) TO (20)"))
    move.run("setup")
    assert captured(move) == ["ev_1", "ev_2", "other"]
    assert move.journal(JOURNAL) == [("ev",), ("other",)]


def test_tables_that_come_and_go_end_no_setup(
    source_dsn: str, target_dsn: str, lifecycle: Make, behind_the_choice: Callable[..., None]
) -> None:
    do(source_dsn, "CREATE TABLE short (id int PRIMARY KEY)", "CREATE TABLE stays (id int PRIMARY KEY)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": "off"})
    behind_the_choice(lambda: do(source_dsn, "DROP TABLE short"))
    move.run("setup")
    assert captured(move) == ["stays"]


def test_a_name_that_has_changed_hands_waits_until_that_is_followed(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    do(
        source_dsn,
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE SCHEMA aside CREATE TABLE a (id int CONSTRAINT other PRIMARY KEY, v text)",
        "INSERT INTO a VALUES (1)",
        "INSERT INTO aside.a VALUES (2, 'b')",
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    move.run("setup")
    do(source_dsn, "ALTER TABLE public.a RENAME TO a_before", "ALTER TABLE aside.a SET SCHEMA public")
    move.run("setup")
    assert captured(move) == ["a_before"]
    for stage in ("snapshot", "setup", "snapshot", "backfill", "schema_sync", "replay", "verify"):
        assert not move.run(stage).blocked
    assert move.journal("SELECT * FROM public.a_before") == [(1,)]
    assert move.journal("SELECT * FROM public.a") == [(2, "b")]


def test_what_a_killed_setup_has_captured_is_let_go_where_nobody_chooses_it_any_more(
    source_dsn: str, target_dsn: str, lifecycle: Make, at: At
) -> None:
    execute(source_dsn, "; ".join(f"CREATE TABLE t_{n} (id int PRIMARY KEY)" for n in range(4)))
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": "off"})
    with at("setup.before_table_commit") as passes:
        passes.act = lambda _: passes.lose()
        move.refused("setup", Retry)
    assert captured(move) == ["t_0", "t_1", "t_2", "t_3"]
    assert move.journal(JOURNAL) == []
    do(source_dsn, "CREATE SCHEMA aside", "ALTER TABLE t_1 SET SCHEMA aside", "DROP TABLE t_2")
    move.run("setup")
    assert captured(move) == ["t_0", "t_3"]
    assert move.journal(JOURNAL) == [("t_0",), ("t_3",)]
    assert move.on_source("SELECT count(*) FROM pg_class WHERE relname ~ '^log_test_'") == [(2,)]


def test_what_nobody_reads_ends_no_cleanup(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    """A capture that the journal does not know, with something in its log."""
    do(source_dsn, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]}, capture={"ddl": "off"})
    move.run_all(until="swap")
    with connect(source_dsn, purpose="test") as source:
        oid = catalog.oid_of(source, "public", "other")
        assert oid is not None
        prepared = change_log.prepare(source, move.name, [oid], 1.0)[oid]
        change_log.start(source, move.name, prepared, 1.0)
    do(source_dsn, "INSERT INTO other VALUES (1)")
    assert captured(move) == ["other", "t"]
    assert not move.run("cleanup").blocked
    assert captured(move) == []
