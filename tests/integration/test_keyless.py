"""tables.keyless: copy_at_swap: a table without a key is copied whole under the swap's lock, or it is said why not."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import catalog_lines, compare_sequences, diff_catalogs, differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PgddlError, PreflightRefused, Retry, StageFailed
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.preflight import preflight
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.stages import STAGES
from airflow_provider_pgddl.engine.swapping import across
from tests.integration.faults import Faults, until_done
from tests.integration.lifecycle import Lifecycle, execute, left_behind, wait_until
from tests.integration.sessions import Underway, do, in_transaction, one, rounds, waits
from tests.table_writers import TableWriters

Lifecycles = Callable[..., Lifecycle]

# Tables without a key of every shape: twice the same row, rows that cannot be compared, a partial and an expression
# unique index, partitions, a serial, an identity, a generated column; and one that has a key.
SHOP = """
CREATE TABLE orders (id serial PRIMARY KEY, note text);
CREATE TABLE history (
    at timestamptz, who text, what json, n serial, twice int GENERATED ALWAYS AS (length(who) * 2) STORED);
CREATE INDEX history_at ON history (at);
CREATE UNIQUE INDEX history_open ON history (n) WHERE who = 'nobody else has this';
CREATE UNIQUE INDEX history_lower ON history ((n::text || coalesce(who, '')));
CREATE TABLE "Odd name" ("a b" int, x point, i int GENERATED ALWAYS AS IDENTITY);
CREATE TABLE part (at date, v text) PARTITION BY RANGE (at);
CREATE TABLE part_old PARTITION OF part FOR VALUES FROM (MINVALUE) TO ('2024-01-01');
CREATE TABLE part_rest PARTITION OF part DEFAULT;
INSERT INTO orders (note) SELECT 'order ' || i FROM generate_series(1, 500) i;
INSERT INTO history SELECT now(), 'x' || (i % 7), json_build_object('i', i % 5) FROM generate_series(1, 800) i;
INSERT INTO "Odd name" SELECT i % 3, point(i % 3, 1) FROM generate_series(1, 90) i;
INSERT INTO part SELECT '2023-11-01'::date + i % 100, repeat('v', i % 9) FROM generate_series(1, 600) i;
"""
TABLES = [("public", name) for name in ("orders", "history", "Odd name", "part")]
KEYLESS = ["public.Odd name", "public.history", "public.part"]
SETTINGS: dict[str, Any] = {
    "tables": {"include": ["*.*"], "keyless": "copy_at_swap"},
    "swap": {"fence": "read_only"},
    "backfill": {"chunk_bytes": "32kB", "workers": 1},
    "replay": {"window_rows": 400, "until_lag": "30s"},
}


@pytest.fixture
def shop(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> Lifecycle:
    execute(source_dsn, SHOP)
    return lifecycle(source_dsn, target_dsn, **SETTINGS)


@pytest.mark.parametrize(("rows", "fence"), [("change_log", "read_only"), ("wal", "lock")])
def test_it_is_copied_at_the_cut_over_while_applications_write(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, rows: str, fence: str
) -> None:
    execute(source_dsn, SHOP)
    structure = catalog_lines(source_dsn)
    move = lifecycle(source_dsn, target_dsn, **SETTINGS | {"capture": {"rows": rows}, "swap": {"fence": fence}})
    compared: list[object] = []

    def compare() -> None:
        compared.append([str(d) for d in differences(source_dsn, target_dsn)])
        compared.append([str(d) for d in compare_sequences(source_dsn, target_dsn)])

    # With `lock` applications are not told to go elsewhere: they write to what has a key, and are counted there.
    writers = TableWriters(
        [source_dsn, target_dsn], TABLES, truncate=[("public", "part_old")], pipeline=move.name, rate=60,
        on_cut_over=compare,
    )  # fmt: skip
    with writers:
        for stage in STAGES[:-2]:
            assert not move.run(stage).blocked
            before = writers.notes.committed.total()
            wait_until(lambda before=before: writers.notes.failures or writers.notes.committed.total() > before + 20)
            assert not writers.notes.failures, f"during {stage}: {writers.notes.failures}"
        assert [one(target_dsn, f"SELECT count(*) FROM {n}") for n in ("history", '"Odd name"', "part")] == [0, 0, 0]
        swapped = move.run("swap")
        wait_until(writers.accepted.is_set)
    print(f"seed {writers.seed}")
    assert writers.notes.failures == []
    if fence == "read_only":
        assert compared == [[], []]
    figures = swapped.figures
    assert figures["keyless_rows"] > 1000 and figures["keyless_ms"] >= 0
    if fence == "read_only":
        move.run("cleanup")
    assert diff_catalogs(structure, catalog_lines(target_dsn), ignore=["pgddl_"]) == []


def test_it_is_told_everywhere_that_it_is_passed_over(shop: Lifecycle, capsys: pytest.CaptureFixture[str]) -> None:
    shop.run("setup")
    told = capsys.readouterr()
    assert (told.out + told.err).count("it is copied whole at the swap") == 3
    shop.run_all(until="verify", after="setup")
    told = capsys.readouterr()
    assert (told.out + told.err).count("no change of it is followed") == 6  # replay and verify
    status = stages.status(load_pipeline(shop.content), shop.source, shop.target)
    assert sorted(n for n, t in status["tables"].items() if t["copied_at_swap"]) == KEYLESS
    reports = stages.gate(load_pipeline(shop.content), shop.source, shop.target)
    assert [r.table for r in reports if r.status == "mismatch"] == []
    assert "public.history" in {r.table for r in reports}
    assert set(shop.results["verify"].tables) == {"public.orders"}
    # Nothing of ours on the source but for what has a key.
    assert one(shop.source, "SELECT count(*) FROM pgddl.captured") == 1


def test_preflight_says_how_much_is_copied_and_that_a_follow_never_does(shop: Lifecycle) -> None:
    file = load_pipeline(shop.content)
    with connect(shop.source, purpose="test") as source, connect(shop.target, purpose="test") as target:
        found = preflight(file, source, target, TABLES)
    warned = [(f.table, f.what) for f in found if f.code == "keyless"]
    assert sorted(table for table, _ in warned) == sorted(['public."Odd name"', "public.history", "public.part"])
    assert all("at the swap, and its writers wait" in what and "never swaps" in what for _, what in warned)
    assert [f for f in found if f.severity == "error"] == []


def test_without_a_fence_it_is_refused(shop: Lifecycle) -> None:
    with pytest.raises(PgddlError, match=r"copy_at_swap needs swap\.fence: read_only or lock"):
        load_pipeline({**shop.content, "swap": {"fence": "none"}})


@pytest.mark.parametrize("fence", ["read_only", "lock"])
def test_who_writes_during_or_after_the_copy_is_refused_and_not_lost(
    shop: Lifecycle, monkeypatch: pytest.MonkeyPatch, fence: str
) -> None:
    shop.content["swap"] = {"fence": fence}
    shop.run_all(until="verify")
    insert = "INSERT INTO history (who) VALUES ('late')"
    copy_all, writing = across.copy_all, list[Underway[None]]()

    def meanwhile(*args: Any) -> dict[str, Any]:
        writer = Underway(lambda: do(shop.source, insert)).__enter__()
        writing.append(writer)
        wait_until(lambda: writer.over or waits(shop.source, "RowExclusiveLock", "history"))
        return copy_all(*args)

    monkeypatch.setattr(across, "copy_all", meanwhile)
    shop.run("swap")
    writing[0].fails(psycopg.errors.ReadOnlySqlTransaction)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        do(shop.source, "SET session_replication_role = replica; " + insert)
    assert differences(shop.source, shop.target) == []
    shop.run("cleanup")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        do(shop.source, insert)
    assert any("pgddl_fence" in line for line in left_behind(shop.source))
    stages.reset(load_pipeline(shop.content), shop.source, shop.target)
    assert left_behind(shop.source) == []


def test_a_writer_in_the_way_costs_a_try_and_no_row(shop: Lifecycle) -> None:
    shop.run_all(until="verify")
    shop.content["swap"] = {"fence": "read_only", "retries": 2}
    with in_transaction(shop.source, "INSERT INTO history (who) VALUES ('in flight')") as writer:
        shop.refused("swap", Retry)
        writer.commit()
    do(shop.source, "INSERT INTO history (who) VALUES ('the fence is down again')")
    shop.content["swap"] = {"fence": "read_only"}
    shop.run("swap")
    assert differences(shop.source, shop.target) == []
    assert one(shop.target, "SELECT count(*) FROM history WHERE who IN ('in flight', 'the fence is down again')") == 2


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_killed_swap_is_done_again(shop: Lifecycle, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Ours dies before the copy or behind it, without having taken the fence down; the next run ends the same."""
    shop.run_all(until="verify")
    copy_all = across.copy_all

    class Killed(BaseException):
        pass

    def dying(*args: Any) -> dict[str, Any]:
        if where == "after":
            copy_all(*args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(across, "copy_all", dying)
        patch.setattr(across, "_certainly_not_cut_over", lambda _: False)
        with pytest.raises(Killed):
            shop.run("swap")
    assert one(shop.target, "SELECT count(*) FROM history") == 0
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        do(shop.source, "DELETE FROM history")
    shop.run("swap")
    assert differences(shop.source, shop.target) == []
    assert shop.run("swap").state == "nothing_to_do"
    assert differences(shop.source, shop.target) == []


def test_connections_may_be_lost_at_any_statement(source_dsn: str, target_dsn: str, lifecycle: Lifecycles) -> None:
    execute(source_dsn, SHOP)
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    faults = Faults(seed, one_in=60)
    move = lifecycle(source_dsn, target_dsn, **SETTINGS)
    compared: list[object] = []
    writers = TableWriters(
        [source_dsn, target_dsn], TABLES, pipeline=move.name, rate=40, seed=seed,
        on_cut_over=lambda: compared.append([str(d) for d in differences(source_dsn, target_dsn)]),
    )  # fmt: skip
    with writers:
        for stage in STAGES[:-1]:
            until_done(move, stage, faults)
        wait_until(writers.accepted.is_set)
    assert writers.notes.failures == []
    assert compared == [[]]
    until_done(move, "cleanup", faults)


def test_a_copy_that_changes_rows_or_has_some_already_stops_the_swap(shop: Lifecycle) -> None:
    shop.run_all(until="verify")
    do(shop.target, "INSERT INTO history (who) VALUES ('by hand')")
    error = shop.refused("swap", StageFailed)
    assert error.table == "public.history" and "has rows already" in error.what
    do(shop.target, *(error.sql or "").splitlines())
    do(
        shop.target,
        "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER lose BEFORE INSERT ON history FOR EACH ROW WHEN (NEW.who = 'x3') EXECUTE FUNCTION lose()",
    )
    error = shop.refused("swap", StageFailed)
    assert error.table == "public.history" and "does not equal the source" in error.what
    do(shop.source, "INSERT INTO history (who) VALUES ('still open')")  # the fence is down again
    do(shop.target, "DROP TRIGGER lose ON history")
    shop.run("swap")
    assert differences(shop.source, shop.target) == []


def test_ddl_on_it_is_followed_until_the_swap(shop: Lifecycle) -> None:
    shop.run_all(until="backfill")
    do(shop.source, "ALTER TABLE history ADD stars int DEFAULT 5", "CREATE INDEX history_who ON history (who)")
    shop.run_all(until="verify", after="backfill")
    do(
        shop.source,
        "ALTER TABLE history RENAME TO past",
        "ALTER TABLE past DROP COLUMN twice",
        "ALTER TABLE past ALTER COLUMN who TYPE varchar(200)",
        "TRUNCATE part_old",
        "CREATE TABLE part_new PARTITION OF part FOR VALUES FROM ('2030-01-01') TO ('2031-01-01')",
        "INSERT INTO part VALUES ('2030-05-05', 'new')",
        "CREATE TABLE newcomer (a int, b text)",
        "CREATE INDEX newcomer_a ON newcomer (a)",
        "INSERT INTO newcomer VALUES (1, 'x'), (1, 'x')",
        'DROP TABLE "Odd name"',
    )
    shop.run("replay")
    assert one(shop.target, "SELECT count(*) FROM newcomer") == 0
    shop.run("swap")
    assert differences(shop.source, shop.target) == []
    assert one(shop.target, "SELECT count(*) FROM past") == 800
    assert diff_catalogs(catalog_lines(shop.source), catalog_lines(shop.target), ignore=["pgddl_"]) == []


@pytest.mark.parametrize("when", ["setup", "snapshot", "backfill", "schema_sync", "replay", "verify"])
def test_one_that_gets_a_key_is_followed_from_there_on(shop: Lifecycle, when: str) -> None:
    shop.run_all(until=when)
    do(shop.source, "ALTER TABLE history ADD COLUMN id bigserial", "ALTER TABLE history ADD PRIMARY KEY (id)")
    do(shop.source, "UPDATE history SET who = 'changed' WHERE n < 50", "DELETE FROM history WHERE n = 60")
    shop.run_all(until="verify", after=when if when != "verify" else "schema_sync")
    shop.run("replay")
    assert one(shop.target, "SELECT count(*) FROM history") == 799
    do(shop.source, "UPDATE history SET who = 'changed again' WHERE n < 5")
    shop.run("swap")
    assert differences(shop.source, shop.target) == []
    assert diff_catalogs(catalog_lines(shop.source), catalog_lines(shop.target), ignore=["pgddl_"]) == []


def test_one_that_loses_its_key_stops_alone_and_says_how_to_go_on(shop: Lifecycle) -> None:
    shop.run_all(until="replay")
    do(shop.source, "ALTER TABLE orders DROP CONSTRAINT orders_pkey", "UPDATE orders SET note = 'x' WHERE id = 1")
    blocked = shop.run("replay").blocked
    assert [b["table"] for b in blocked] == ["public.orders"]
    assert "has lost its key" in blocked[0]["reason"]
    reports = stages.gate(load_pipeline(shop.content), shop.source, shop.target)
    assert [r.table for r in reports if r.status == "mismatch"] == ["public.orders"]
    assert "has lost its key" in str(shop.refused("swap", PreflightRefused))
    stages.reset(load_pipeline(shop.content), shop.source, shop.target, ["public.orders"])
    shop.run_all(until="swap")
    assert differences(shop.source, shop.target) == []


def test_a_follow_never_copies_it_and_goes_on(shop: Lifecycle) -> None:
    for _ in range(2):
        shop.run_all(until="replay")
        do(shop.source, "INSERT INTO orders (note) VALUES ('new')", "INSERT INTO history (who) VALUES ('new')")
    shop.run("replay")
    assert one(shop.target, "SELECT count(*) FROM orders") == 502
    assert one(shop.target, "SELECT count(*) FROM history") == 0


# --- in place --------------------------------------------------------------------------------------------------------

LEDGER = """
CREATE TABLE ledger (n int NOT NULL DEFAULT 7, note text, big serial);
CREATE INDEX ledger_n ON ledger (n);
CREATE TABLE keyed (id int PRIMARY KEY);
INSERT INTO ledger (n, note) SELECT i % 10, 'row ' || i % 3 FROM generate_series(1, 1000) i;
"""


@pytest.mark.parametrize("rows", ["change_log", "direct_trigger"])
def test_in_place_it_is_copied_under_the_swaps_own_lock(source_dsn: str, lifecycle: Lifecycles, rows: str) -> None:
    execute(source_dsn, LEDGER)
    rewrite = {"public.ledger": {"alter": ["ALTER COLUMN big TYPE bigint", "ALTER COLUMN n TYPE numeric USING n * 2"]}}
    move = lifecycle(
        source_dsn, rewrite=rewrite | {"public.keyed": {}}, tables={"keyless": "copy_at_swap"}, capture={"rows": rows}
    )
    over, written = threading.Event(), list[int]()

    def write() -> None:
        with psycopg.connect(source_dsn, autocommit=True) as conn:
            for _ in rounds(over):
                conn.execute("INSERT INTO ledger (note) VALUES (%s)", [f"written {len(written)}"])
                written.append(len(written))

    with Underway(write):
        try:
            for stage in STAGES[:-1]:
                move.run(stage)
                before = len(written)
                wait_until(lambda before=before: len(written) > before + 10)
        finally:
            over.set()
    figures = move.results["swap"].figures
    assert 1000 < figures["keyless_rows"] <= 1000 + len(written)
    held = move.journal("SELECT note FROM ledger WHERE note LIKE 'written %'")
    assert sorted(held) == sorted((f"written {i}",) for i in written)
    assert move.journal("SELECT count(*), sum(n) FROM ledger WHERE note NOT LIKE 'written %'") == [(1000, 9000)]
    assert one(source_dsn, "SELECT pg_typeof(big)::text FROM ledger LIMIT 1") == "bigint"
    move.run("cleanup")
    assert left_behind(source_dsn) == ["schema pgddl"]  # the journal


def test_in_place_a_difference_undoes_the_swap(source_dsn: str, lifecycle: Lifecycles) -> None:
    execute(source_dsn, LEDGER)
    move = lifecycle(source_dsn, rewrite={"public.ledger": {}}, tables={"keyless": "copy_at_swap"})
    move.run_all(until="verify")
    do(
        source_dsn,
        "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER lose BEFORE INSERT ON pgddl_copy_public.ledger FOR EACH ROW WHEN (NEW.n = 3)"
        " EXECUTE FUNCTION lose()",
    )
    assert "does not equal the source" in str(move.refused("swap", StageFailed))
    assert one(source_dsn, "SELECT count(*) FROM public.ledger") == 1000
    do(source_dsn, "DROP TRIGGER lose ON pgddl_copy_public.ledger")
    move.run_all(until="cleanup", after="verify")
    assert one(source_dsn, "SELECT count(*) FROM public.ledger") == 1000


# No column that could be written: none at all, none any more, none but what the server makes. One has a key.
WITHOUT_COLUMNS = """
CREATE TABLE nothing ();
CREATE TABLE none_left (a int, b text);
CREATE TABLE made (a int GENERATED ALWAYS AS (1 + 1) STORED);
CREATE TABLE never ();
CREATE TABLE single (k int GENERATED ALWAYS AS (1) STORED PRIMARY KEY);
INSERT INTO none_left VALUES (1), (2);
ALTER TABLE none_left DROP a, DROP b;
INSERT INTO nothing DEFAULT VALUES; INSERT INTO nothing DEFAULT VALUES;
INSERT INTO made DEFAULT VALUES; INSERT INTO single DEFAULT VALUES;
"""


@pytest.mark.parametrize("in_place", [True, False])
def test_rows_without_a_column_that_could_be_written(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, in_place: bool
) -> None:
    execute(source_dsn, WITHOUT_COLUMNS)
    names = ("nothing", "none_left", "made", "never", "single")
    if in_place:
        rewritten = {f"public.{name}": {} for name in names}
        move = lifecycle(source_dsn, rewrite=rewritten, tables={"keyless": "copy_at_swap"})
    else:
        move = lifecycle(source_dsn, target_dsn, **SETTINGS)
    move.run_all(until="backfill")
    do(source_dsn, "DELETE FROM single", "INSERT INTO single DEFAULT VALUES", "INSERT INTO nothing DEFAULT VALUES")
    move.run_all(after="backfill")
    assert [one(move.target, f"SELECT count(*) FROM {name}") for name in names] == [3, 2, 1, 0, 1]
