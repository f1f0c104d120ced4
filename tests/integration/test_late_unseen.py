"""What was written to a table that applications have left, while what captures it was off: an empty log lets nobody end
the capture then (C9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import cleanup
from tests.conftest import Database
from tests.failpoints import At, once
from tests.integration.ddl_shop import killed
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.resets import reset
from tests.integration.ways_back import refused

Lifecycles = Callable[..., Lifecycle]

TABLES = """
CREATE TABLE public.items (id int PRIMARY KEY, note text);
CREATE TABLE public.part (at int, id int, PRIMARY KEY (at, id)) PARTITION BY RANGE (at);
CREATE TABLE public.part_1 PARTITION OF public.part FOR VALUES FROM (0) TO (10);
INSERT INTO public.items SELECT n, 'old' FROM generate_series(1, 50) n;
INSERT INTO public.part SELECT n % 10, n FROM generate_series(1, 50) n;
"""
# As people load: the fence is off with the rest; as a maintenance job makes its next partition; as pg_restore --clean.
LOADED = (
    "ALTER TABLE public.items DISABLE TRIGGER USER; INSERT INTO public.items VALUES (1000, 'late');"
    "ALTER TABLE public.items ENABLE TRIGGER USER"
)
ATTACHED = (
    "CREATE TABLE public.part_2 (at int NOT NULL, id int NOT NULL); INSERT INTO public.part_2 VALUES (11, 1);"
    "ALTER TABLE public.part ATTACH PARTITION public.part_2 FOR VALUES FROM (10) TO (20)"
)
RESTORED = (
    "DROP TABLE public.items; CREATE TABLE public.items (id int PRIMARY KEY, note text);"
    "INSERT INTO public.items VALUES (1000, 'late')"
)
EMPTY = "CREATE TABLE public.part_3 PARTITION OF public.part FOR VALUES FROM (20) TO (30)"
UNSEEN = "what was written then is in no log"


@pytest.fixture
def moved(source_dsn: str, target_dsn: str, lifecycle: Lifecycles) -> Callable[..., Lifecycle]:
    """Cut over, without a way back."""
    execute(source_dsn, TABLES)

    def make(fence: str, **more: Any) -> Lifecycle:
        move = lifecycle(
            source_dsn, target_dsn,
            tables={"include": ["public.*"], **({} if fence == "none" else {"keyless": "copy_at_swap"})},
            swap={"fence": fence}, backfill={"workers": 1},
            **({"capture": {"ddl": "off"}} | more),
        )  # fmt: skip
        move.run_all(until="swap")
        return move

    return make


def go_on(move: Lifecycle, error: Any) -> None:
    """As the refusal says."""
    execute(move.source if "ENABLE ALWAYS" in error.sql else move.target, error.sql)


@pytest.mark.parametrize(
    ("what", "fence", "rows"),
    [
        (LOADED, "read_only", "change_log"),
        (LOADED, "none", "change_log"),
        (ATTACHED, "read_only", "change_log"),
        (ATTACHED, "none", "wal"),
        (RESTORED, "read_only", "change_log"),
        (RESTORED, "none", "wal"),
    ],
)
def test_nothing_is_cleaned_up_while_nobody_has_looked(
    moved: Callable[..., Lifecycle], what: str, fence: str, rows: str
) -> None:
    move = moved(fence, capture={"ddl": "off", "rows": rows})
    execute(move.source, EMPTY)  # has never held a row, so nobody has to look
    execute(move.source, what)
    table = "public.part" if what == ATTACHED else "public.items"
    pipeline = load_pipeline(move.content)
    assert list(stages.status(pipeline, move.source, move.target)["unseen_since_cut_over"]) == [table]
    with pytest.raises(StageFailed, match=UNSEEN):
        reset(move)
    error = move.refused("cleanup", StageFailed)
    assert UNSEEN in error.what and error.table == table
    if what == LOADED:
        assert error.sql and "ENABLE ALWAYS" in error.sql
        go_on(move, error)
        error = move.refused("cleanup", StageFailed)
    else:
        assert error.todo and error.todo.startswith(f"nothing logs {table}")
        if fence == "read_only":  # before anybody looks
            refused(move.source, f"DELETE FROM {table}_2" if what == ATTACHED else f"DELETE FROM {table}")
    go_on(move, error)
    assert stages.status(pipeline, move.source, move.target)["unseen_since_cut_over"] == {}
    assert move.run("cleanup").state == "done"


@pytest.mark.parametrize("by", ["cleanup", "reset"])
@pytest.mark.parametrize(
    ("what", "rows", "border"),
    [
        (LOADED, "change_log", "capture.before_stop_lock"),
        (ATTACHED, "change_log", "capture.before_stop_lock"),
        (ATTACHED, "wal", "capture.before_unpublish_lock"),
    ],
)
def test_what_comes_while_the_end_of_a_capture_waits_for_its_lock_is_seen_under_it(
    moved: Callable[..., Lifecycle], at: At, what: str, rows: str, border: str, by: str
) -> None:
    move = moved("none", capture={"ddl": "off", "rows": rows})
    with at(border, once(lambda: execute(move.source, what))):
        if by == "reset":
            with pytest.raises(StageFailed, match=UNSEEN):
                reset(move)
            return
        error = move.refused("cleanup", StageFailed)
    assert UNSEEN in error.what and error.table == ("public.part" if what == ATTACHED else "public.items")
    if what == LOADED:
        go_on(move, error)
        error = move.refused("cleanup", StageFailed)
    go_on(move, error)
    assert move.run("cleanup").state == "done"


def test_where_there_is_no_key_a_fence_that_was_lost_is_a_persons_to_look_at(
    source_dsn: str, moved: Callable[..., Lifecycle]
) -> None:
    execute(source_dsn, "CREATE TABLE public.bare (v text); INSERT INTO public.bare VALUES ('old')")
    move = moved("lock")
    execute(
        source_dsn,
        f"ALTER TABLE public.bare DISABLE TRIGGER pgddl_fence_{move.name}; INSERT INTO public.bare VALUES ('late')",
    )
    with pytest.raises(StageFailed, match="lost its fence where no log tells"):
        reset(move)
    assert "public.bare" in move.refused("cleanup", StageFailed).what
    refused(source_dsn, "INSERT INTO public.bare VALUES ('later')")
    assert move.run("cleanup").state == "done"


def test_where_there_is_no_key_that_refusal_comes_before_any_that_comes_again(
    source_dsn: str, moved: Callable[..., Lifecycle]
) -> None:
    execute(source_dsn, "CREATE TABLE public.bare (v text); INSERT INTO public.bare VALUES ('old')")
    move = moved("read_only")
    execute(source_dsn, f"DROP TRIGGER pgddl_fence_{move.name} ON public.bare")
    execute(source_dsn, f"DROP TRIGGER pgddl_fence_{move.name} ON public.items")
    close_again = cleanup.close_again

    def while_it_waits(*args: Any) -> None:
        execute(source_dsn, "INSERT INTO public.bare VALUES ('late'); INSERT INTO public.items VALUES (1000, 'late')")
        close_again(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleanup, "close_again", while_it_waits)
        assert "public.bare" in move.refused("cleanup", StageFailed).what
    assert "public.items: 1" in move.refused("cleanup", StageFailed).what


def test_where_no_table_has_a_key_a_reset_looks_at_the_fences_that_are_left(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, at: At
) -> None:
    execute(source_dsn, "CREATE TABLE public.bare (v text); CREATE TABLE public.bare_2 (v text)")
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"], "keyless": "copy_at_swap"},
        swap={"fence": "lock"}, backfill={"workers": 1}, capture={"ddl": "off"},
    )  # fmt: skip
    move.run_all(until="swap")
    execute(source_dsn, f"DROP TRIGGER pgddl_fence_{move.name} ON public.bare; INSERT INTO public.bare VALUES ('late')")
    with pytest.raises(StageFailed, match=r"lost its fence where no log tells.*: public\.bare\n"):
        reset(move)
    assert "public.bare" in move.refused("cleanup", StageFailed).what
    with at("reset.before_keys", once(killed)), pytest.raises(KeyboardInterrupt):  # the fences are down by then
        reset(move)
    reset(move)


def test_in_place_what_somebody_loads_into_an_old_table_is_not_dropped_in_silence(
    pg18: Cluster, database: Database, lifecycle: Lifecycles, at: At
) -> None:
    dsn = database(pg18)
    execute(dsn, TABLES)
    wider = {"public.items": {"alter": ["ALTER COLUMN id TYPE bigint"]}}
    move = lifecycle(dsn, rewrite=wider, backfill={"workers": 1})
    move.run_all(until="swap")
    execute(dsn, LOADED.replace("public.", "pgddl_old_public."))
    error = move.refused("cleanup", StageFailed)
    assert UNSEEN in error.what and error.sql
    go_on(move, error)
    go_on(move, move.refused("cleanup", StageFailed))
    again = LOADED.replace("public.", "pgddl_old_public.").replace("1000", "1001")
    with at("capture.before_stop_lock", once(lambda: execute(dsn, again))):
        error = move.refused("cleanup", StageFailed)
    assert UNSEEN in error.what
    go_on(move, error)
    go_on(move, move.refused("cleanup", StageFailed))
    move.run("cleanup")
