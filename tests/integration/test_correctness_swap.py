"""correctness.md, part three: structure at a swap. What a table has it keeps, whatever is done to it right before; and
what today's tools are known to lose is not lost here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs, differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.rows import window_locks
from airflow_provider_pgddl.engine.swapping import fence, readiness
from airflow_provider_pgddl.engine.swapping import in_place as exchange
from tests.integration.calls import Paused, at_calls, before_each, once
from tests.integration.items import ITEMS, REWRITE, SMALL, UNCAPTURED, unequal
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import Underway, do, one, wait_for

Make = Callable[..., Lifecycle]


def start_again(pipeline: Lifecycle, *tables: str) -> None:
    """`pgddl reset --tables`"""
    stages.reset(load_pipeline(pipeline.content), pipeline.source, pipeline.target, tables=list(tables))


@pytest.fixture(params=["in place", "across clusters"])
def items(request: pytest.FixtureRequest, source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    """One table of several chunks, moved or rewritten."""
    do(source_dsn, ITEMS)
    if request.param == "in place":
        return lifecycle(source_dsn, rewrite=REWRITE, swap={"keep_old": True}, **SMALL)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.items"]}, **SMALL)


def finish(pipeline: Lifecycle, after: str | None = None) -> None:
    """To the end of the swap, and the rows are equal."""
    in_place = pipeline.source == pipeline.target
    pipeline.run_all(after=after, until="swap")
    if in_place:
        assert unequal(pipeline.source, "pgddl_old_public.items", "public.items") == 0
    else:
        assert differences(pipeline.source, pipeline.target) == []


# --- what psycopack loses ---------------------------------------------------------------------------------------------

# Every row's unique value goes to the row after it, by way of a value that nobody has.
HAND_ON = """
    UPDATE items SET code = 'on its way ' || id;
    UPDATE items i SET code = 'c' || (i.id % 600 + 1 + {0}) WHERE id BETWEEN 1 AND 600
"""


def test_unique_values_are_handed_from_row_to_row_between_windows(
    items: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    items.run_all(until="backfill")
    do(items.source, HAND_ON.format(0))
    items.run("schema_sync")
    turns = {n: [HAND_ON.format(n)] for n in range(1, 6)}
    calls = before_each(monkeypatch, window_locks, "lock_tables", at_calls(items.source, turns))
    finish(items, after="schema_sync")
    assert len(calls) > 20


def test_a_changed_key_leaves_no_ghost(items: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys change while rows are copied, and between windows; some come to be other rows' keys."""
    items.run_all(until="snapshot")
    do(items.source, "UPDATE items SET id = id + 10000 WHERE id % 10 = 0")
    items.run("backfill")
    do(items.source, "UPDATE items SET id = -id", "UPDATE items SET id = 601 + id WHERE id BETWEEN -600 AND -1")
    items.run("schema_sync")
    changes = {
        1: ["UPDATE items SET id = id + 20000 WHERE id % 3 = 0"],
        3: ["DELETE FROM items WHERE id = 7", "UPDATE items SET id = 7 WHERE id = 20300"],
        4: ["UPDATE items SET id = id - 20000 WHERE id > 20000"],
    }
    before_each(monkeypatch, window_locks, "lock_tables", at_calls(items.source, changes))
    with pytest.raises(pg.UniqueViolation):
        do(items.source, "INSERT INTO items SELECT id, 'twice', '' FROM items LIMIT 1")
    finish(items, after="schema_sync")


def test_a_change_meets_a_chunk_that_is_not_committed(items: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk carries the rows as they were, and commits after the change."""
    items.run_all(until="snapshot")
    paused = Paused(monkeypatch, "copy")
    with Underway(lambda: items.run("backfill")) as backfill:
        wait_for(paused.reached.is_set, backfill)
        do(
            items.source,
            "UPDATE items SET filler = 'changed' WHERE id <= 20",
            "DELETE FROM items WHERE id BETWEEN 11 AND 30",
            "UPDATE items SET id = id + 5000 WHERE id <= 5",
        )
        paused.go_on.set()
    finish(items, after="backfill")


def test_truncate_and_sessions_in_replica_role_are_seen(items: Lifecycle) -> None:
    items.run_all(until="snapshot")
    do(items.source, "SET session_replication_role = replica; UPDATE items SET code = 'replica ' || id WHERE id < 9")
    items.run("backfill")
    do(items.source, "SET session_replication_role = replica; DELETE FROM items WHERE id BETWEEN 100 AND 120")
    items.run("schema_sync")
    do(
        items.source,
        "SET session_replication_role = replica; TRUNCATE items;"
        " INSERT INTO items SELECT n, 'after ' || n, '' FROM generate_series(50, 200) n",
    )
    finish(items, after="schema_sync")


def test_an_index_predicate_with_on_in_a_literal_stays_as_it_is(items: Lifecycle) -> None:
    do(
        items.source,
        "CREATE UNIQUE INDEX tricky ON items (code, lower(filler || ' ON public.x USING ')) INCLUDE (id)"
        " WHERE filler <> 'a ON b; -- \"items\"' AND code NOT LIKE E'%''\\\\ WHERE %'",
    )
    definition = "SELECT pg_get_indexdef('tricky'::regclass)"
    before = one(items.source, definition)
    finish(items)
    assert one(items.target, definition) == before


# --- DDL before a swap ------------------------------------------------------------------------------------------------

# What concerns no row, how it is undone, and what is said of it.
BESIDE_ROWS = [
    ("CREATE INDEX another ON items (filler)", "DROP INDEX another", "new: CREATE INDEX another"),
    ("DROP INDEX by_filler", "CREATE INDEX by_filler ON items (filler)", "gone: CREATE INDEX by_filler"),
    ("ALTER TABLE items ADD CONSTRAINT p CHECK (id > 0)", "ALTER TABLE items DROP CONSTRAINT p", "+ CONSTRAINT p"),
    (
        "CREATE TRIGGER own BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "DROP TRIGGER own ON items",
        "new: CREATE TRIGGER own",
    ),
    ("CREATE POLICY mine ON items USING (true)", "DROP POLICY mine ON items", "new: CREATE POLICY mine"),
    ("GRANT SELECT (code) ON items TO PUBLIC", "REVOKE SELECT (code) ON items FROM PUBLIC", "new: GRANT SELECT(code)"),
    ("COMMENT ON TABLE items IS 'a word'", "COMMENT ON TABLE items IS NULL", "new: COMMENT ON TABLE"),
    ("CREATE STATISTICS pair ON id, code FROM items", "DROP STATISTICS pair", "new: CREATE STATISTICS"),
]


def test_ddl_that_concerns_no_row_is_not_lost_at_the_swap(items: Lifecycle) -> None:
    do(
        items.source,
        "CREATE INDEX by_filler ON items (filler)",
        "CREATE INDEX by_both ON items (filler, code)",
        "CREATE INDEX as_it_is ON items (filler)",
        "CREATE STATISTICS other ON id, code FROM items",
    )
    items.run_all(until="verify")
    kept = items.on_source("SELECT oid FROM pg_class WHERE relname = 'as_it_is' ORDER BY oid DESC LIMIT 1")
    do(
        items.source,
        *(statement for statement, _, _ in BESIDE_ROWS),
        "DROP INDEX by_both",
        "CREATE UNIQUE INDEX by_both ON items (code, lower(filler)) WHERE code <> ' ON public.x USING '",
        "DROP STATISTICS other",
        "CREATE STATISTICS other (ndistinct) ON code, filler FROM items",
        "ALTER STATISTICS other SET STATISTICS 77",
        "ALTER INDEX items_code_key RENAME TO by_code",
        "ALTER TABLE items RENAME filler TO padding",
    )
    before = catalog_lines(items.source)
    items.run("swap")
    after = catalog_lines(items.target)
    if items.source == items.target:
        assert items.on_source("SELECT 'as_it_is'::regclass::oid") == kept
        assert diff_catalogs(before, after) == [
            "+ public.items column 1 id: bigint not null",
            "- public.items column 1 id: integer not null",
        ]
    else:
        assert diff_catalogs(before, after) == []


@pytest.mark.parametrize("across", [True, False])
def test_uncaptured_ddl_that_concerns_no_row_is_refused_by_the_swap(
    source_dsn: str, target_dsn: str, lifecycle: Make, across: bool
) -> None:
    do(source_dsn, ITEMS, "CREATE INDEX by_filler ON items (filler)")
    if across:
        move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.items"]}, **UNCAPTURED)
    else:
        move = lifecycle(source_dsn, rewrite=REWRITE, **UNCAPTURED)
    move.run_all(until="verify")
    for statement, undo, words in BESIDE_ROWS:
        do(source_dsn, statement)
        assert words in str(move.refused("swap", PreflightRefused))
        do(source_dsn, undo)
    move.run("swap")


LATE_NUMBER = ["ALTER TABLE items ADD COLUMN late int DEFAULT 1", "UPDATE items SET late = 2 WHERE id < 10"]


def test_ddl_right_before_the_cut_over_is_cut_over_too(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too late for any window before the fence; the fence goes up for a table that is compared again first."""
    do(source_dsn, ITEMS)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.items"]}, swap={"fence": "read_only"}, **SMALL)
    move.run_all(until="verify")
    compared = before_each(monkeypatch, readiness, "compare_rows", lambda _: None)
    before_each(monkeypatch, fence, "lock_all", once(*LATE_NUMBER, dsn=source_dsn))
    move.run("swap")
    assert compared == [1]
    assert differences(source_dsn, target_dsn) == []
    assert one(target_dsn, "SELECT count(*) FROM items WHERE late = 2") == 9


def test_uncaptured_ddl_right_before_the_cut_over_is_not_cut_over(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too late for any window to stop the table: then the swap does, and lets writers go on where they are."""
    do(source_dsn, ITEMS)
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.items"]}, swap={"fence": "read_only"}, **UNCAPTURED
    )
    move.run_all(until="verify")
    before_each(monkeypatch, fence, "lock_all", once(*LATE_NUMBER, dsn=source_dsn))
    assert "Source has new column 'late'" in str(move.refused("swap", PreflightRefused))
    assert move.journal("SELECT cut_over_at FROM pgddl.pipelines") == [(None,)]
    do(source_dsn, "UPDATE items SET late = 3 WHERE id = 11")
    start_again(move, "public.items")
    move.run_all(until="swap")
    assert differences(source_dsn, target_dsn) == []


def test_ddl_right_before_the_swap_in_place_is_swapped_too(
    source_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(source_dsn, ITEMS)
    rewrite = lifecycle(source_dsn, rewrite=REWRITE, **SMALL)
    rewrite.run_all(until="verify")
    compared = before_each(monkeypatch, readiness, "compare_rows", lambda _: None)
    before_each(monkeypatch, exchange, "lock_all", once(*LATE_NUMBER, dsn=source_dsn))
    rewrite.run("swap")
    assert compared == [1]
    assert unequal(source_dsn, "pgddl_old_public.items", "public.items") == 0
    assert one(source_dsn, "SELECT count(*) FROM items WHERE late = 2") == 9
    assert one(source_dsn, "SELECT pg_typeof(id)::text FROM items LIMIT 1") == "bigint"


def test_uncaptured_ddl_right_before_the_swap_in_place_is_not_swapped(
    source_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(source_dsn, ITEMS)
    rewrite = lifecycle(source_dsn, rewrite=REWRITE, **UNCAPTURED)
    rewrite.run_all(until="verify")
    before_each(monkeypatch, exchange, "lock_all", once(*LATE_NUMBER, dsn=source_dsn))
    assert "column late was added" in str(rewrite.refused("swap", PreflightRefused))
    assert one(source_dsn, "SELECT count(*) FROM items WHERE late = 2") == 9
    assert one(source_dsn, "SELECT pg_typeof(id)::text FROM items LIMIT 1") == "integer"
