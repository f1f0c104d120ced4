"""What becomes of a copy behind its comparison: emptied, written anew, lost in a crash, written to by others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.swapping import in_place as swaps_in_place
from tests.failpoints import At, once
from tests.integration import calls
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do, one

Make = Callable[..., Lifecycle]
SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (id int PRIMARY KEY, note text NOT NULL);
CREATE TABLE shop.lines (id int PRIMARY KEY, note text NOT NULL);
CREATE TABLE shop.parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE shop.parts_1 PARTITION OF shop.parts FOR VALUES FROM (0) TO (100);
CREATE TABLE shop.parts_2 PARTITION OF shop.parts FOR VALUES FROM (100) TO (1000);
INSERT INTO shop.orders SELECT n, 'order ' || n FROM generate_series(1, 300) n;
INSERT INTO shop.lines SELECT n, 'line ' || n FROM generate_series(1, 300) n;
INSERT INTO shop.parts SELECT n FROM generate_series(1, 300) n;
"""
MORE = """
CREATE TABLE shop.parts_3 (id int PRIMARY KEY); INSERT INTO shop.parts_3 VALUES (1000);
ALTER TABLE shop.parts ATTACH PARTITION shop.parts_3 FOR VALUES FROM (1000) TO (2000)
"""
REPLACED = ["TRUNCATE shop.orders", "TRUNCATE shop.parts_1", "DROP TABLE shop.parts_1", MORE]


@pytest.fixture
def shop(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, SHOP)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["shop.*"]}, swap={"fence": "read_only"})


@pytest.fixture
def in_place(source_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, SHOP)
    return lifecycle(source_dsn, rewrite={"shop.orders": {"alter": ["ALTER id TYPE bigint"]}})


@pytest.mark.parametrize("replaced", REPLACED)
def test_a_copy_that_somebody_has_replaced_since_does_not_go_live(shop: Lifecycle, replaced: str) -> None:
    shop.run_all(until="verify")
    do(shop.target, replaced)
    refused = str(shop.refused("swap"))
    assert "rows differ" in refused or "is blocked" in refused, refused
    assert one(shop.source, "SELECT count(*) FROM shop.orders") == 300


def test_it_does_not_in_place_either(in_place: Lifecycle) -> None:
    in_place.run_all(until="verify")
    do(in_place.target, "TRUNCATE pgddl_copy_shop.orders")
    assert "shop.orders: at least 100 rows differ" in str(in_place.refused("swap", StageFailed))
    assert one(in_place.target, "SELECT count(*) FROM shop.orders") == 300


@pytest.fixture
def growing(source_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, SHOP)
    by = {"column": "id", "range": 1000}
    return lifecycle(source_dsn, rewrite={"shop.orders": {"partition_by": by}})


def test_a_partition_that_our_own_window_has_made_is_known(
    growing: Lifecycle, capsys: pytest.CaptureFixture[str]
) -> None:
    growing.run_all(until="verify")
    do(growing.source, "INSERT INTO shop.orders VALUES (500500, 'far off')")
    capsys.readouterr()
    growing.run("swap")
    assert "compared again" not in capsys.readouterr().out
    assert one(growing.target, "SELECT note FROM shop.orders WHERE id = 500500") == "far off"
    assert "500" in str(one(growing.target, "SELECT tableoid::regclass::text FROM shop.orders WHERE id = 500500"))


def test_one_that_somebody_attaches_with_rows_does_not_go_live(growing: Lifecycle) -> None:
    growing.run_all(until="verify")
    do(
        growing.target,
        "CREATE TABLE pgddl_copy_shop.mine (LIKE pgddl_copy_shop.orders INCLUDING ALL)",
        "INSERT INTO pgddl_copy_shop.mine VALUES (500500, 'nobody knows it')",
        "ALTER TABLE pgddl_copy_shop.orders ATTACH PARTITION pgddl_copy_shop.mine FOR VALUES FROM (500000) TO (501000)",
    )
    assert "shop.orders: 1 rows differ" in str(growing.refused("swap", StageFailed))


def test_verify_sees_it_and_mend_brings_the_rows_back(shop: Lifecycle) -> None:
    shop.run_all(until="verify")
    do(shop.target, "TRUNCATE shop.orders")
    assert "shop.orders: at least 100 rows differ" in str(shop.refused("verify", StageFailed))
    assert shop.run("verify", mend=True).figures["mended"] >= 300
    shop.run_all(after="verify")
    assert differences(shop.source, shop.target) == []


def test_rows_that_are_written_anew_are_compared_again_and_go_live(shop: Lifecycle) -> None:
    shop.run_all(until="verify")
    do(shop.target, "VACUUM FULL shop.orders")
    do(shop.target, "CLUSTER shop.parts_2 USING parts_2_pkey")
    shop.run_all(after="verify")
    assert differences(shop.source, shop.target) == []


def test_what_the_source_empties_is_no_reason_to_compare_again(
    shop: Lifecycle, capsys: pytest.CaptureFixture[str]
) -> None:
    """A queue that is emptied twice a second would keep every swap from happening."""
    shop.run_all(until="verify")
    do(shop.source, "TRUNCATE shop.orders; INSERT INTO shop.orders VALUES (1, 'again'); TRUNCATE shop.parts_1")
    capsys.readouterr()
    shop.run_all(after="verify")
    assert "compared again" not in capsys.readouterr().out
    assert differences(shop.source, shop.target) == []


def test_a_queue_that_the_source_empties_before_each_fence_is_cut_over(shop: Lifecycle, at: At) -> None:
    shop.run_all(until="verify")
    with at("cut_over.before_fence", lambda _: do(shop.source, "TRUNCATE shop.orders")) as fences:
        shop.run_all(after="verify")
    assert fences.times == 1
    assert one(shop.target, "SELECT count(*) FROM shop.orders") == 0
    assert differences(shop.source, shop.target) == []


@pytest.mark.parametrize("border", ["cut_over.before_fence", "cut_over.behind_fence"])
def test_a_copy_that_is_emptied_during_the_cut_over_does_not_go_live(shop: Lifecycle, at: At, border: str) -> None:
    shop.run_all(until="verify")
    with at(border, once(lambda: do(shop.target, "TRUNCATE shop.orders"))):
        assert "shop.orders: at least 100 rows differ" in str(shop.refused("swap", StageFailed))
    do(shop.source, "INSERT INTO shop.orders VALUES (999, 'applications go on here')")


def test_a_copy_that_is_emptied_before_the_lock_of_a_swap_does_not_go_live(
    in_place: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place.run_all(until="verify")
    empty = calls.once("TRUNCATE pgddl_copy_shop.orders", dsn=in_place.target)
    calls.before_each(monkeypatch, swaps_in_place, "lock_unseen", empty)
    assert "shop.orders: at least 100 rows differ" in str(in_place.refused("swap", StageFailed))
    assert one(in_place.target, "SELECT count(*) FROM shop.orders") == 300


def test_whoever_asks_for_a_comparison_gets_one(shop: Lifecycle) -> None:
    """Rows that others write to a copy no catalog tells of."""
    shop.run_all(until="verify")
    do(shop.target, "DELETE FROM shop.lines WHERE id <= 7")
    assert shop.run("verify").state == "nothing_to_do", "a task that is tried again at once"
    assert "shop.lines: 7 rows differ" in str(shop.refused("verify", StageFailed, asked=True))
    shop.run("verify", mend=True)
    do(shop.target, "DELETE FROM shop.lines WHERE id <= 5")
    assert shop.run("verify", mend=True).figures["mended"]
    do(shop.target, "UPDATE shop.lines SET note = '' WHERE id <= 3")
    do(shop.target, "UPDATE pgddl.stage_runs SET finished_at = finished_at - interval '1 hour'")
    assert "shop.lines: 3 rows differ" in str(shop.refused("verify", StageFailed))


def test_a_crash_empties_an_unlogged_copy_and_somebody_notices(shop: Lifecycle, pg18: Cluster) -> None:
    do(shop.source, "ALTER TABLE shop.lines SET UNLOGGED")
    shop.run_all(until="verify")
    pg18.restart("immediate")
    assert one(shop.target, "SELECT count(*) FROM shop.lines") == 0
    assert "shop.lines: at least 100 rows differ" in str(shop.refused("swap", StageFailed))
    assert "shop.lines: at least 100 rows differ" in str(shop.refused("verify", StageFailed))
    assert shop.run("verify", mend=True).figures["mended"] >= 300
    shop.run_all(after="verify")
    assert differences(shop.source, shop.target) == []


@pytest.mark.parametrize("table", ["shop.lines", "shop.parts_2"])
def test_a_copy_that_was_made_unlogged_does_not_go_live(shop: Lifecycle, table: str) -> None:
    shop.run_all(until="backfill")
    do(shop.target, f"ALTER TABLE {table} SET UNLOGGED")
    shop.run_all(until="verify", after="backfill")
    refused = shop.refused("swap", PreflightRefused)
    assert f"its copy {table} is UNLOGGED" in str(refused)
    do(shop.target, refused.sql or "")
    shop.run_all(after="verify")
    assert one(shop.target, f"SELECT relpersistence FROM pg_class WHERE oid = '{table}'::regclass") == "p"
    assert differences(shop.source, shop.target) == []


def test_verify_tells_of_one_before_it_compares(shop: Lifecycle, capsys: pytest.CaptureFixture[str]) -> None:
    shop.run_all(until="replay")
    do(shop.target, "ALTER TABLE shop.lines SET UNLOGGED")
    capsys.readouterr()
    shop.run("verify")
    said = capsys.readouterr().out
    assert "its copy shop.lines is UNLOGGED, and it is not: no swap takes it so" in said
    assert said.index('ALTER TABLE "shop"."lines" SET LOGGED;') < said.index("rows compared")


def test_a_verify_that_is_tried_again_compares_unlogged_tables_alone(
    shop: Lifecycle, capsys: pytest.CaptureFixture[str]
) -> None:
    do(shop.source, "ALTER TABLE shop.lines SET UNLOGGED")
    shop.run_all(until="verify")
    do(shop.target, "DELETE FROM shop.orders WHERE id <= 7")  # of which nothing tells
    capsys.readouterr()
    assert shop.run("verify").state == "done"
    said = capsys.readouterr().out
    assert "300 rows compared" in said and "UNLOGGED" not in said
    do(shop.target, "DELETE FROM shop.lines WHERE id <= 5")
    assert "shop.lines: 5 rows differ" in str(shop.refused("verify", StageFailed))


def test_a_swap_compares_unlogged_tables_whoever_has_compared_them_before(shop: Lifecycle) -> None:
    do(shop.source, "ALTER TABLE shop.lines SET UNLOGGED")
    shop.run_all(until="verify")
    do(shop.target, """UPDATE pgddl.stage_runs SET result = jsonb_set(result, '{state}', '"nothing_to_do"')
                       WHERE stage = 'verify'""")  # fmt: skip
    shop.run_all(after="verify")
    assert differences(shop.source, shop.target) == []


def test_the_gate_tells_of_an_unlogged_copy(shop: Lifecycle) -> None:
    shop.run_all(until="backfill")
    do(shop.target, "ALTER TABLE shop.lines SET UNLOGGED")
    shop.run_all(until="replay", after="backfill")
    findings = [f for (found,) in shop.journal("SELECT findings FROM pgddl.schema_status") for f in found]
    assert [(f["kind"], f["severity"], f["fix"]) for f in findings if f["kind"] == "unlogged"] == [
        ("unlogged", "warning", ["ALTER TABLE shop.lines SET LOGGED;"])
    ]


def test_rows_that_a_crash_of_the_source_takes_leave_the_copy(shop: Lifecycle, pg16: Cluster) -> None:
    """Its log is there still, and says nothing of that."""
    do(shop.source, "ALTER TABLE shop.lines SET UNLOGGED")
    shop.run_all(until="replay")
    pg16.restart("immediate")
    assert one(shop.source, "SELECT count(*) FROM shop.lines") == 0
    shop.run("replay")
    assert "shop.lines: at least 100 rows differ" in str(shop.refused("verify", StageFailed))
    shop.run("verify", mend=True)
    assert one(shop.target, "SELECT count(*) FROM shop.lines") == 0
