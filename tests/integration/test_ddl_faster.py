"""DDL that comes faster than pg_dump takes, and tables that are in the making or gone while they are looked at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine.following import source_dump
from airflow_provider_pgddl.engine.job.context import Context
from tests.combinations import matrix
from tests.failpoints import At, once
from tests.integration.ddl_shop import SHOP, all_through, equal
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import Underway, rounds

Make = Callable[..., Lifecycle]


@pytest.fixture(params=matrix("queue", "wal"))
def make(lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, request: pytest.FixtureRequest) -> Make:
    def made(schema: str = SHOP, **pipeline: Any) -> Lifecycle:
        execute(source_dsn, schema)
        content: dict[str, Any] = {"tables": {"include": ["public.*"]}, "capture": {"ddl": request.param}}
        return lifecycle(source_dsn, target_dsn, **{**content, **pipeline})

    return made


STAGING = """
CREATE TABLE {table} AS SELECT i AS id FROM generate_series(1, 10) i;
ALTER TABLE {table} ADD PRIMARY KEY (id);
DROP TABLE {table};
"""


@pytest.mark.parametrize("table", ["etl.staging", "public.staging"])
def test_staging_tables_that_come_and_go_all_day_hold_nothing_up(make: Make, table: str) -> None:
    """One left out, one that is followed."""
    pipeline = make(SHOP + "CREATE SCHEMA etl;")
    stop, loaded = threading.Event(), [0]

    def load() -> None:
        with psycopg.connect(pipeline.source, autocommit=True) as conn:
            for _ in rounds(stop, 0.05):
                for statement in STAGING.format(table=table).strip().splitlines():
                    conn.execute(statement.encode())
                loaded[0] += 1

    pipeline.run("setup")
    loader = threading.Thread(target=load)
    loader.start()
    try:
        for stage in ("snapshot", "backfill", "schema_sync", "replay", "verify"):
            before = loaded[0]
            assert not pipeline.run(stage).blocked
            wait_until(lambda before=before: loaded[0] > before + 1)
    finally:
        stop.set()
        loader.join()
    pipeline.run_all(after="verify")
    equal(pipeline)


def test_a_table_whose_key_waits_for_our_dump_is_in_the_making(
    make: Make, at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DDL is held for the second dump, and what gives the table its key with it."""
    pipeline = make()
    pipeline.run_all(until="backfill")
    execute(pipeline.source, "ALTER TABLE public.lines ADD COLUMN more int")  # so that schema_sync dumps
    hold = source_dump.ddl_held
    key = Underway(lambda: execute(pipeline.source, "ALTER TABLE public.staging ADD PRIMARY KEY (id)"))

    @contextmanager
    def ddl_held(context: Context) -> Iterator[None]:
        execute(pipeline.source, "CREATE TABLE public.staging AS SELECT 1 AS id")
        with hold(context):
            key.__enter__()
            yield

    monkeypatch.setattr(source_dump, "ddl_held", ddl_held)
    faster = once(lambda: execute(pipeline.source, "ALTER TABLE public.orders ADD COLUMN faster int"))
    with at("snapshot.before_pg_dump", faster):
        assert pipeline.run("schema_sync").blocked == []
    key.finish()
    all_through(pipeline, after="schema_sync")


@pytest.mark.parametrize("then", ["ALTER TABLE public.staging ADD PRIMARY KEY (id)", "DROP TABLE public.staging"])
def test_a_table_is_looked_at_between_its_creation_and_its_key(make: Make, at: At, then: str) -> None:
    """Nobody hears of a table that is in the making."""
    pipeline = make()
    pipeline.run_all(until="replay")
    execute(pipeline.source, "CREATE TABLE public.staging AS SELECT 1 AS id")
    with at("ddl.before_event", once(lambda: execute(pipeline.source, then))) as looks:
        assert pipeline.run("setup").blocked == [], "a stage that looks once"
    assert looks.times
    all_through(pipeline, after="schema_sync")


def test_an_index_goes_between_the_snapshot_and_the_look_at_it(make: Make, at: At) -> None:
    """The server prints a constraint by its index as that is now, whatever snapshot asks."""
    pipeline = make(SHOP + "CREATE TABLE public.staging (id int PRIMARY KEY, n int CONSTRAINT once UNIQUE);")
    pipeline.run("setup")
    drop = "ALTER TABLE public.staging DROP CONSTRAINT once"
    with at("snapshot.before_look", once(lambda: execute(pipeline.source, drop))) as looks:
        assert not pipeline.run("snapshot").blocked
    assert looks.times > 1
    all_through(pipeline, after="snapshot")


BEFORE_LOCK = {"change_log": "capture.before_start_lock", "wal": "capture.before_slot_log_commit"}


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("late.before_capture", "DROP TABLE public.staging"),
        ("lock", "DROP TABLE public.staging"),
        ("lock", "ALTER TABLE public.staging RENAME TO landed"),
        ("lock", "ALTER TABLE public.staging DROP CONSTRAINT staging_pkey"),
    ],
)
def test_a_new_table_is_another_when_it_is_to_be_captured(make: Make, at: At, rows: str, where: str, what: str) -> None:
    pipeline = make(capture={"ddl": "queue", "rows": rows})
    pipeline.run_all(until="replay")
    execute(pipeline.source, "CREATE TABLE public.staging (id int PRIMARY KEY); INSERT INTO public.staging VALUES (1)")
    with at(BEFORE_LOCK[rows] if where == "lock" else where, once(lambda: execute(pipeline.source, what))):
        blocked = [b["table"] for b in pipeline.run("replay").blocked]
    assert blocked == (["public.staging"] if "CONSTRAINT" in what else []), "without a key nobody follows it"
    if "CONSTRAINT" in what:
        execute(pipeline.source, "ALTER TABLE public.staging ADD PRIMARY KEY (id)")
    pipeline.run_all(after="schema_sync", until="replay")
    all_through(pipeline, after="schema_sync")
    assert pipeline.journal("SELECT relname FROM pg_class WHERE relname LIKE 'log\\_%'") == []


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
@pytest.mark.parametrize(
    "what",
    ["DROP TABLE public.lines", "ALTER TABLE public.lines RENAME TO rows", "ALTER TABLE public.lines ADD more int"],
)
def test_a_table_is_another_when_setup_is_to_capture_it(make: Make, at: At, rows: str, what: str) -> None:
    pipeline = make(capture={"ddl": "queue", "rows": rows})
    with at(BEFORE_LOCK[rows], once(lambda: execute(pipeline.source, what))):
        assert not pipeline.run("setup").blocked
    all_through(pipeline, after="setup")


@pytest.mark.parametrize(
    "what",
    ["DROP TABLE public.lines", "ALTER TABLE public.lines RENAME TO rows", "ALTER TABLE public.lines ADD more int"],
)
def test_a_table_is_another_when_its_new_key_is_to_be_captured(make: Make, at: At, what: str) -> None:
    pipeline = make(SHOP + "ALTER TABLE public.lines ADD code int NOT NULL GENERATED ALWAYS AS IDENTITY")
    pipeline.run_all(until="replay")
    execute(pipeline.source, """
        ALTER TABLE public.lines DROP CONSTRAINT lines_pkey;
        ALTER TABLE public.lines ADD PRIMARY KEY (code)""")  # fmt: skip
    with at("settle.before_capture_again", once(lambda: execute(pipeline.source, what))):
        assert not pipeline.run("replay").blocked
    execute(pipeline.source, "UPDATE public.orders SET note = 'later' WHERE id < 9")
    all_through(pipeline, after="schema_sync")


def test_a_table_is_renamed_right_before_it_is_locked(make: Make, at: At) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    execute(pipeline.source, "INSERT INTO public.orders VALUES (1000, 'before')")
    rename = "ALTER TABLE public.orders RENAME TO orders_then"
    with at("replay.before_lock", once(lambda: execute(pipeline.source, rename))):
        assert not pipeline.run("replay").blocked
    all_through(pipeline, after="schema_sync")


@pytest.mark.parametrize(
    "unseen",
    [
        "ALTER TABLE public.orders SET (fillfactor = 70)",
        "ALTER TABLE public.orders ALTER COLUMN note SET STATISTICS 7",
        "ALTER TABLE public.orders OWNER TO pg_monitor",
        "ALTER SEQUENCE public.numbers INCREMENT BY 5",
        "ALTER TABLE public.orders SET UNLOGGED",
        "CREATE TABLE public.kept (id int)",
    ],
)
def test_what_no_event_tells_of_a_table_that_another_was_about_is_seen(make: Make, unseen: str) -> None:
    """Events say why, and prove nothing."""
    pipeline = make(SHOP + "CREATE SEQUENCE public.numbers;")
    pipeline.run_all(until="replay")
    execute(pipeline.source, "ALTER TABLE public.orders ADD COLUMN more int; ALTER SEQUENCE public.numbers CACHE 3")
    execute(pipeline.source, "CREATE TABLE public.kept (id int PRIMARY KEY); DROP TABLE public.kept")
    pipeline.run("replay")
    pipeline.run("verify")
    execute(pipeline.source, f"SET pgddl.skip = on; {unseen}")
    error = pipeline.refused("swap")
    assert not error.retryable
    execute(pipeline.target, unseen)  # a person does it on both sides
    if "kept" not in unseen:
        all_through(pipeline, after="verify")


@pytest.mark.parametrize("seen", [True, False], ids=["by the snapshot", "later"])
def test_the_mark_of_cluster_goes_across(make: Make, seen: bool) -> None:
    """CLUSTER fires no event trigger, and marks its index all the same."""
    pipeline = make(SHOP + "CREATE INDEX by_note ON public.orders (note);")
    if not seen:
        pipeline.run_all(until="verify")
    execute(pipeline.source, "CLUSTER public.orders USING by_note; ALTER TABLE public.lines CLUSTER ON lines_pkey")
    pipeline.run_all(after="verify" if not seen else None, until="swap")
    marked = "SELECT indexrelid::regclass::text FROM pg_index WHERE indisclustered ORDER BY 1"
    assert pipeline.journal(marked) == pipeline.on_source(marked) == [("by_note",), ("lines_pkey",)]


def test_a_new_table_takes_no_name_that_an_index_is_still_to_get(make: Make) -> None:
    """The source has called its indexes otherwise, for the renamed table has kept its own."""
    pipeline = make()
    pipeline.run_all(until="backfill")
    execute(pipeline.source, """
        ALTER TABLE public.orders RENAME TO orders_then;
        CREATE TABLE public.orders (id int PRIMARY KEY, note text UNIQUE, n int, UNIQUE (n, id));
        ALTER TABLE public.orders ADD COLUMN code int UNIQUE, ADD EXCLUDE USING btree (code WITH =);
        INSERT INTO public.orders VALUES (1, 'new', 2, 3)""")  # fmt: skip
    all_through(pipeline, after="backfill")
