"""Somebody alters a copy between two of our transactions: nothing goes into columns that the plan does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import GaveWay
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.lease import Fence
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.plan import Plan, PlanColumns, PlanKey
from airflow_provider_pgddl.engine.rows import fill as fill_rows
from airflow_provider_pgddl.engine.rows import windows
from airflow_provider_pgddl.engine.rows.chunk_layout import plan_chunks
from airflow_provider_pgddl.engine.rows.chunk_rows import TableToCopy
from airflow_provider_pgddl.engine.rows.copy_shape import COPY_ALTERED, hold_copies
from airflow_provider_pgddl.engine.rows.fill import Filled, FillPart, fill_part
from airflow_provider_pgddl.engine.rows.reload import ChangedAgain, reload
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect
from tests.integration.by_hand import BY_HAND, ByHand, by_hand, copied_by_chunks
from tests.integration.calls import before_each, once
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits

Make = Callable[..., Lifecycle]

PRICES = """
    CREATE TABLE prices (id int PRIMARY KEY, cents bigint NOT NULL);
    INSERT INTO prices SELECT n, n FROM generate_series(1, 1000) n;
    CREATE TABLE other (id int PRIMARY KEY);
"""
# As wide as a bigint, so COPY in binary takes its bytes.
SAME_WIDTH = "ALTER TABLE prices ALTER COLUMN cents TYPE double precision"


@pytest.fixture
def prices(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, PRICES)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **BY_HAND)


@pytest.fixture
def replaying(prices: Lifecycle) -> Iterator[ByHand]:
    """Copied and indexed, each plan with the shape that its copy has."""
    prices.run_all(until="replay")
    with by_hand(prices) as hand:
        hand.remember_shapes()
        yield hand


def write(pipeline: Lifecycle) -> None:
    do(pipeline.source, "UPDATE prices SET cents = 4242 WHERE id <= 10", "INSERT INTO other VALUES (1)")


def test_a_window_stops_a_table_whose_copy_was_altered_and_goes_on_with_the_others(replaying: ByHand) -> None:
    prices, table = replaying.pipeline, replaying.table("prices")
    write(prices)
    do(prices.target, SAME_WIDTH)
    done = replaying.window()
    assert done.stopped == {table.id: [COPY_ALTERED]}
    assert prices.journal("SELECT count(*), sum(cents) FROM prices") == [(1000, 500500.0)]
    assert prices.journal("SELECT id FROM other") == [(1,)]
    assert prices.on_source(f"SELECT count(*) FROM pgddl.{table.log_table}") == [(10,)]
    # Compared again and planned anew, it has lost nothing.
    replaying.remember_shapes()
    replaying.plan("prices", binary=False)
    assert replaying.window().stopped == {}
    assert one(prices.target, "SELECT count(*) FROM prices WHERE cents = 4242") == 10


def test_without_the_check_other_values_arrive_and_nobody_says_so(replaying: ByHand) -> None:
    """What the test above is good for."""
    write(replaying.pipeline)
    do(replaying.pipeline.target, SAME_WIDTH)
    replaying.plan("prices", copy_attributes="")
    assert replaying.window().stopped == {}
    (value,) = {row[0] for row in replaying.pipeline.journal("SELECT cents FROM prices WHERE id <= 10")}
    assert 0 < value < 1e-300


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE prices ADD COLUMN note text",
        "ALTER TABLE prices DROP COLUMN cents",
        "ALTER TABLE prices RENAME COLUMN cents TO amount",
        "ALTER TABLE prices ALTER COLUMN cents SET DEFAULT 1",
        "DROP TABLE prices",
        "ALTER TABLE prices RENAME TO elsewhere",
    ],
)
def test_every_change_of_a_copys_columns_shows(replaying: ByHand, change: str) -> None:
    table = replaying.table("prices")
    do(replaying.pipeline.target, change)
    assert replaying.window().stopped == {table.id: [COPY_ALTERED]}


def test_what_does_not_change_a_column_does_not_show(replaying: ByHand) -> None:
    do(
        replaying.pipeline.target,
        "VACUUM FULL prices", "ANALYZE prices", "CLUSTER prices USING prices_pkey", "CREATE INDEX ON prices (cents)",
        "ALTER TABLE prices ADD CHECK (cents > 0)", "VACUUM (FREEZE) pg_catalog.pg_attribute",
    )  # fmt: skip
    write(replaying.pipeline)
    assert replaying.window().stopped == {}


def test_a_window_gives_way_to_who_is_altering_a_copy(replaying: ByHand) -> None:
    prices = replaying.pipeline
    write(prices)
    with in_transaction(prices.target, SAME_WIDTH) as altering:
        with pytest.raises(GaveWay):
            replaying.window()
        altering.rollback()
    assert replaying.window().stopped == {}
    assert one(prices.target, "SELECT count(*) FROM prices WHERE cents = 4242") == 10


def test_nobody_can_alter_a_copy_while_a_window_writes_to_it(
    replaying: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices, fill = replaying.pipeline, fill_rows.fill_across
    write(prices)
    held: list[bool] = []

    def look_and_fill(*args: Any, **options: Any) -> tuple[int, int]:
        query = (
            "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'prices'::regclass AND mode = 'AccessShareLock'"
            " AND granted)"
        )
        held.append(one(prices.target, query))
        return fill(*args, **options)

    monkeypatch.setattr(fill_rows, "fill_across", look_and_fill)
    replaying.window()
    assert held == [True, True]


# It fires whatever our role.
FIRING = """
    CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER act BEFORE INSERT OR DELETE ON prices FOR EACH ROW EXECUTE FUNCTION act();
    ALTER TABLE prices ENABLE ALWAYS TRIGGER act
"""


@pytest.mark.parametrize(("change", "stopped"), [(SAME_WIDTH, [COPY_ALTERED]), (FIRING, None)])
def test_a_copy_that_is_altered_between_ingest_and_fill_keeps_its_pending_keys(
    replaying: ByHand, change: str, stopped: list[str] | None
) -> None:
    """Of a trigger that came the next window tells."""
    prices, table = replaying.pipeline, replaying.table("prices")
    write(prices)

    def alter_and_fill(snapshot: str, tables: Sequence[TableRow], limit: int, _: Callable[[], bool]) -> Filled:
        do(prices.target, change)
        shares = tuple((t.id, t.plan) for t in tables)
        fence = replaying.replica.fence
        return fill_part(FillPart(prices.source, prices.target, prices.name, snapshot, fence, shares, limit))

    done = replaying.window(fill=2, fill_elsewhere=alter_and_fill)
    assert done.stopped == ({table.id: stopped} if stopped else {})
    assert one(prices.target, f"SELECT count(*) FROM pgddl.pending_{table.id}") == 10
    assert one(prices.target, "SELECT count(*) FROM prices") == 990


def test_a_trigger_that_comes_to_a_copy_before_a_windows_first_write_does_not_fire_unseen(
    replaying: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = replaying.pipeline
    write(prices)
    before_each(monkeypatch, windows, "stage_keys", once(FIRING, dsn=prices.target))
    with pytest.raises(GaveWay, match="changed just now"):
        replaying.window()
    do(prices.target, "DROP TRIGGER act ON prices")
    assert replaying.window().stopped == {}
    assert differences(prices.source, prices.target) == []


def test_a_chunk_is_not_copied_into_an_altered_copy(prices: Lifecycle) -> None:
    prices.run_all(until="snapshot")
    with by_hand(prices) as hand:
        hand.remember_shapes()
        do(prices.target, SAME_WIDTH)
        table = hand.table("prices")
        done = copied_by_chunks(hand, "prices")
        assert (done.rows, done.stopped) == (0, {table.id: [COPY_ALTERED]})
        assert one(prices.target, "SELECT count(*) FROM prices") == 0
        assert hand.journal.chunks.left([table.id])[table.id].chunks > 0


def test_a_copy_that_was_altered_is_not_read_again(replaying: ByHand) -> None:
    do(replaying.pipeline.target, SAME_WIDTH)
    recorded: list[Session] = []
    with pytest.raises(ChangedAgain, match="its copy was altered"):
        reload(replaying.replica, replaying.table("prices"), recorded.append)
    assert recorded == []
    assert one(replaying.pipeline.target, "SELECT count(*) FROM prices") == 1000


@pytest.mark.parametrize("changed", [1, 0], ids=["with changes", "without"])
def test_in_place_a_copy_that_was_altered_stops_its_table(source_dsn: str, lifecycle: Make, changed: int) -> None:
    do(source_dsn, PRICES)
    rewrite = lifecycle(source_dsn, rewrite={"public.prices": {}}, **BY_HAND)
    rewrite.run_all(until="replay")
    with by_hand(rewrite, in_place=True) as hand:
        hand.remember_shapes()
        do(
            source_dsn,
            f"UPDATE prices SET cents = 7 WHERE id <= {changed}",
            SAME_WIDTH.replace("prices", "pgddl_copy_public.prices"),
        )
        table = hand.table("prices")
        assert hand.window().stopped == {table.id: [COPY_ALTERED]}
        assert one(source_dsn, "SELECT sum(cents) FROM pgddl_copy_public.prices") == 500500.0
        assert one(source_dsn, f"SELECT count(*) FROM pgddl.{table.log_table}") == changed


def test_many_copies_cost_as_many_statements_as_one(
    source_dsn: str, target_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{n}" for n in range(200)]
    do(target_dsn, *(f"CREATE TABLE {name} (id int)" for name in names))
    columns = PlanColumns((), (), False)
    plans = {
        n: Plan("public", name, 0, False, "public", name, columns, PlanKey(), {}, copy_attributes="x")
        for n, name in enumerate(names)
    }
    with connect(target_dsn, purpose="test") as conn, conn.transaction():
        statements: list[object] = []
        execute = conn.execute

        def counted(query: Any, *args: Any, **kwargs: Any) -> Any:
            statements.append(query)
            return execute(query, *args, **kwargs)

        monkeypatch.setattr(conn, "execute", counted)
        assert hold_copies(conn, plans) == set(plans)
        assert len(statements) == 3
        statements.clear()
        assert hold_copies(conn, {0: replace(plans[0], copy_attributes="")}) == set()
        assert statements == []


# --- what metrics call skipped ----------------------------------------------------------------------------------------


def test_rows_that_come_without_a_column_are_counted_with_them(prices: Lifecycle) -> None:
    prices.run_all(until="snapshot")
    with by_hand(prices) as hand:
        hand.plan("prices", left_out={"3": "public.prices.note"})
        assert copied_by_chunks(hand, "prices").rows == 1000
        assert hand.counted() == {("prices", "column_mismatch"): 1000}


def test_a_window_counts_them_once_and_only_where_something_is_left_out(replaying: ByHand) -> None:
    replaying.plan("prices", left_out={"3": "public.prices.note"})
    write(replaying.pipeline)
    replaying.window()
    assert replaying.counted() == {("prices", "column_mismatch"): 10}
    replaying.window()
    assert replaying.counted() == {("prices", "column_mismatch"): 10}


def test_a_window_that_is_rolled_back_has_counted_nothing(replaying: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    replaying.plan("prices", left_out={"3": "public.prices.note"})
    write(replaying.pipeline)
    with monkeypatch.context() as broken, pytest.raises(RuntimeError):
        broken.setattr(lease, "check", lambda *_: (_ for _ in ()).throw(RuntimeError))
        replaying.window()
    assert replaying.counted() == {}
    assert replaying.window().rows == 11
    assert replaying.counted() == {("prices", "column_mismatch"): 10}


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ("ALTER TABLE prices ADD CHECK (cents < 1000000)", "constraint_violation"),
        ("ALTER TABLE prices ALTER COLUMN cents TYPE int", "cast_error"),
    ],
)
@pytest.mark.parametrize("fill", [1000, 1])
def test_a_row_that_the_copy_refuses_is_counted(replaying: ByHand, change: str, label: str, fill: int) -> None:
    """In the window's own transaction, and in one of a fill by itself."""
    prices = replaying.pipeline
    do(prices.target, change)
    replaying.plan("prices", copy_attributes="", binary=False)
    do(prices.source, "UPDATE prices SET cents = 3000000000 WHERE id <= 5")
    done = replaying.window(fill)
    assert "refused a row" in done.stopped[replaying.table("prices").id][0]
    assert replaying.counted() == {("prices", label): 1}


def test_a_chunk_with_a_row_that_the_copy_refuses_is_counted(prices: Lifecycle) -> None:
    prices.run_all(until="snapshot")
    with by_hand(prices) as hand:
        do(prices.target, "ALTER TABLE prices ADD CHECK (cents <> 500)")
        assert copied_by_chunks(hand, "prices").stopped
        assert hand.counted() == {("prices", "constraint_violation"): 1}


@pytest.mark.parametrize("order", [{}, {"order_by": ["id"]}], ids=["blocks", "values"])
def test_a_table_that_is_dropped_while_its_size_is_asked_for_is_a_retry(
    source_dsn: str, lifecycle: Make, order: dict[str, Any]
) -> None:
    """Its size is waited for as long as the DROP is under way, and then it has none."""
    execute(source_dsn, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 100)")
    move = lifecycle(source_dsn, rewrite={"public.t": order})
    move.run_all(until="snapshot")
    with connect(source_dsn, purpose="test") as source, connect(source_dsn, purpose="test") as journal:
        (row,) = Journal(journal, move.name).tables.of(1)
        table = TableToCopy(row.id, row.plan, row.version, row.physical, Fence(move.name, (), 0), ())
        now = catalog.describe(source, [row.oid])[row.oid]
        with (
            in_transaction(source_dsn, "DROP TABLE t CASCADE") as dropper,
            Underway(lambda: plan_chunks(journal, source, [(table, now)], 1 << 20, 8192)) as planning,
        ):
            wait_for(lambda: waits(source_dsn, "AccessShareLock", "t"), planning)
            dropper.commit()
            assert "dropped just now" in planning.fails(GaveWay).what
