"""Way back alive, and what logs the new tables was off for a while: an empty log is no proof then (C9)."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.errors import Retry, StageFailed
from tests.conftest import Database
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import in_transaction, one

Lifecycles = Callable[..., Lifecycle]

TABLE = "CREATE TABLE public.items (id int PRIMARY KEY, note text)"
ROWS = "INSERT INTO public.items SELECT n, 'new' FROM generate_series(1, 200) n"
LOADED = (
    "ALTER TABLE public.items DISABLE TRIGGER USER;"
    "INSERT INTO public.items SELECT n, 'loaded' FROM generate_series(1001, 1003) n;"
    "ALTER TABLE public.items ENABLE TRIGGER USER"
)
REWRITTEN = "ALTER TABLE public.items ALTER note TYPE text USING upper(note)"
UNSEEN = "what was written then is in no log"


# A change that was undone, and what gives the table a new file: as ALTER TABLE … TYPE … USING would.
UNDONE = "ALTER TABLE public.items ADD extra int; ALTER TABLE public.items DROP extra"


@pytest.fixture
def replaced(source_dsn: str, target_dsn: str, lifecycle: Lifecycles) -> Lifecycle:
    """Swapped: `public.items` of the target has given way."""
    execute(source_dsn, TABLE + ";" + ROWS)
    execute(target_dsn, TABLE + "; INSERT INTO public.items VALUES (1, 'old')")
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.items"], "existing": "replace"},
        swap={"fence": "read_only"}, backfill={"workers": 1},
    )  # fmt: skip
    move.run_all(until="swap")
    return move


def enabled(move: Lifecycle) -> str:
    """For each session, as the refusal asks for it."""
    names = (f"pgddl_row_{move.name}-new", f"pgddl_truncate_{move.name}-new")
    return ";".join(f'ALTER TABLE public.items ENABLE ALWAYS TRIGGER "{name}"' for name in names)


@pytest.mark.parametrize("what", [LOADED, REWRITTEN])
def test_rows_that_no_log_has_keep_replaced_tables_from_coming_back(replaced: Lifecycle, what: str) -> None:
    move = replaced
    execute(move.target, what)
    refused = move.refused("revert", StageFailed)
    assert UNSEEN in refused.what and refused.sql
    if what == LOADED:
        assert refused.sql.replace('"public"."items"', "public.items") == enabled(move).replace(";", ";\n") + ";"
        execute(move.target, refused.sql)
        refused = move.refused("revert", StageFailed)
    assert one(move.target, "SELECT count(*) FROM public.items") >= 200
    # Somebody has looked, and said so; and what comes after that is another thing.
    assert refused.sql and refused.sql.startswith("UPDATE pgddl.")
    execute(move.target, refused.sql)
    execute(move.target, "ALTER TABLE public.items DISABLE TRIGGER ALL; ALTER TABLE public.items ENABLE TRIGGER ALL;")
    execute(move.target, enabled(move))
    refused = move.refused("revert", StageFailed)
    assert refused.sql
    execute(move.target, refused.sql)
    move.run("revert")
    assert move.journal("SELECT id, note FROM public.items") == [(1, "old")]


def test_nor_do_they_where_these_came_just_before_the_locks(replaced: Lifecycle, at: At) -> None:
    with at("replace.before_back_lock", once(lambda: execute(replaced.target, LOADED))):
        assert UNSEEN in replaced.refused("revert", StageFailed).what
    assert one(replaced.target, "SELECT count(*) FROM public.items") == 203


@pytest.fixture
def rewritten(pg18: Cluster, database: Database, lifecycle: Lifecycles) -> Lifecycle:
    """Swapped in place."""
    dsn = database(pg18)
    execute(dsn, TABLE + ";" + ROWS)
    wider = {"public.items": {"alter": ["ALTER COLUMN id TYPE bigint"]}}
    move = lifecycle(dsn, rewrite=wider, backfill={"workers": 1}, capture={"ddl": "off"})
    move.run_all(until="swap")
    return move


def type_of_id(move: Lifecycle) -> str:
    return str(one(move.source, "SELECT pg_typeof(id)::text FROM public.items LIMIT 1"))


def vacuum_full(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("VACUUM FULL public.items")


def test_in_place_nothing_is_loaded_between_the_last_window_and_the_locks(rewritten: Lifecycle, at: At) -> None:
    move = rewritten
    with at("revert.before_lock", once(lambda: execute(move.source, LOADED))):
        refused = move.refused("revert", StageFailed)
    assert UNSEEN in refused.what and refused.sql and "ENABLE ALWAYS TRIGGER" in refused.sql
    execute(move.source, refused.sql)
    refused = move.refused("revert", StageFailed)
    assert type_of_id(move) == "bigint" and refused.sql
    execute(move.source, "UPDATE public.items SET id = id WHERE id > 1000")  # as it is told
    execute(move.source, refused.sql)
    move.run("revert")
    assert type_of_id(move) == "integer"
    assert one(move.source, "SELECT count(*) FROM public.items WHERE note = 'loaded'") == 3


def test_in_place_there_is_no_way_back_once_nothing_logs(rewritten: Lifecycle) -> None:
    move = rewritten
    execute(move.source, f"DROP TRIGGER pgddl_row_{move.name} ON public.items")
    refused = move.refused("revert", StageFailed)
    assert UNSEEN in refused.what and refused.sql is None and "run stage cleanup" in str(refused.todo)
    assert move.run("cleanup").state == "done"


def test_in_place_a_new_file_does_not_end_the_way_back_of_what_was_undone_before(rewritten: Lifecycle) -> None:
    move = rewritten
    execute(move.source, UNDONE)
    with in_transaction(move.source, "LOCK TABLE public.items IN ROW EXCLUSIVE MODE"):  # a window runs, and no more
        move.refused("revert", Retry, swap={"lock_timeout": "50ms", "retries": 2})
    vacuum_full(move.source)
    move.run("revert")
    assert type_of_id(move) == "integer"


def test_in_place_a_person_says_that_a_new_file_has_the_rows_of_the_old_one(rewritten: Lifecycle) -> None:
    move = rewritten
    execute(move.source, UNDONE)
    vacuum_full(move.source)
    refused = move.refused("revert", StageFailed)
    assert "rewritten by ALTER TABLE" in refused.what and refused.sql
    execute(move.source, refused.sql)
    move.run("revert")
    assert type_of_id(move) == "integer"
    assert one(move.source, "SELECT count(*) FROM public.items") == 200
