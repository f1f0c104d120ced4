"""What a swap owes behind its commit, whoever kills it there: views that are filled, keys that are validated or that
rows violate already."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import EXIT_BLOCKED, EXIT_DONE, UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import swap
from tests.conftest import Database
from tests.integration.sessions import do, one
from tests.integration.swaps.pipelines import SMALL, Killed, Make, has_cut_over


def test_views_are_filled_and_keys_validated_though_the_swap_was_killed(
    shop: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = shop()
    do(
        move.source,
        "CREATE MATERIALIZED VIEW shop.numbers AS SELECT count(*) AS n FROM shop.child",
        "CREATE MATERIALIZED VIEW shop.doubled AS SELECT 2 * n AS n FROM shop.numbers",
        "CREATE MATERIALIZED VIEW shop.unfilled AS SELECT 1 AS n WITH NO DATA",
    )
    move.run_all(until="verify")

    def kill(context: object) -> int:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(swap, "follow_up", kill)
        with pytest.raises(Killed):
            move.run("swap")
    assert has_cut_over(move)
    assert "has not been finished" in str(move.refused("cleanup", UsageError))
    move.run("swap")
    assert one(move.target, "SELECT n FROM shop.doubled") == 120
    assert one(move.target, "SELECT relispopulated FROM pg_class WHERE relname = 'unfilled'") is False
    assert one(move.target, "SELECT bool_and(convalidated) FROM pg_constraint WHERE contype = 'f'") is True
    assert move.run("cleanup").state == "done"


BROKEN = """
    CREATE TABLE p (id int PRIMARY KEY);
    CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p, note text);
    CREATE TABLE d (id int PRIMARY KEY, p int REFERENCES p);
    CREATE TABLE e (id int PRIMARY KEY, p int);
    ALTER TABLE e ADD FOREIGN KEY (p) REFERENCES p NOT VALID;
    CREATE MATERIALIZED VIEW mv AS SELECT count(*) AS n FROM c;
    CREATE MATERIALIZED VIEW most AS SELECT 100 / min(id) AS n FROM d;
    INSERT INTO p VALUES (1);
    SET session_replication_role = replica;
    INSERT INTO c VALUES (1, 5, 'secret');
    INSERT INTO d VALUES (1, 1)
"""


@pytest.mark.parametrize("in_place", [True, False])
def test_a_foreign_key_that_rows_violate_already_keeps_nothing_else_from_its_end(
    source_dsn: str, target_dsn: str, lifecycle: Make, capfd: pytest.CaptureFixture[str], in_place: bool
) -> None:
    do(source_dsn, BROKEN)
    do(source_dsn, "REFRESH MATERIALIZED VIEW most", "UPDATE d SET id = 0")  # a view that cannot be filled any more
    if in_place:
        rewrite: dict[str, Any] = {f"public.{name}": {} for name in "pcde"}
        move = lifecycle(source_dsn, rewrite=rewrite, swap={"recreate_materialized_views": True}, **SMALL)
        do(source_dsn, "DROP MATERIALIZED VIEW most")  # in place it is filled under the swap's locks
    else:
        move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)
    dsn = move.target
    findings = stages.check(load_pipeline(move.content), source_dsn, dsn)["findings"]
    found = [f for f in findings if f["code"] == "foreign_key"]
    assert [(f["severity"], f["table"]) for f in found] == [("warning", "public.c"), ("warning", "public.e")]
    assert one(source_dsn, f"SELECT (x).p FROM ({found[0]['fix'].split(';')[0]}) x") == 5
    move.run_all(until="verify")
    swapped = move.run("swap")
    assert (swapped.state, swapped.exit_code) == ("done", EXIT_BLOCKED)
    told = {entry["table"]: entry["reason"] for entry in swapped.blocked}
    assert told.keys() == ({"public.c"} if in_place else {"public.c", "public.most"})
    assert "c_p_fkey" in told["public.c"] and "Key (p)=(5) is not present" in told["public.c"]
    assert 'ALTER TABLE "public"."c" VALIDATE CONSTRAINT "c_p_fkey";' in told["public.c"]
    assert "secret" not in str(told) + capfd.readouterr().out
    assert one(dsn, "SELECT n FROM mv") == 1
    valid = "SELECT convalidated FROM pg_constraint WHERE contype = 'f' AND conrelid = %s::regclass"
    assert [one(dsn, valid, f"public.{table}") for table in "cde"] == [False, True, False]

    again = move.run("swap")
    assert (again.state, again.exit_code, list(again.blocked)) == ("nothing_to_do", EXIT_BLOCKED, list(swapped.blocked))
    do(dsn, "UPDATE d SET id = 1", "DELETE FROM c")
    assert (move.run("swap").exit_code, one(dsn, valid, "public.c")) == (EXIT_DONE, True)
    assert in_place or one(dsn, "SELECT n FROM most") == 100
    assert move.run("swap").state == "nothing_to_do"
    assert move.run("cleanup").state == "done"


# Partitions of two levels, one of which has a key of its own, and another something that is called like the root's.
PARTITIONED = """
    CREATE TABLE p (id int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
    CREATE TABLE p_1 PARTITION OF p DEFAULT;
    CREATE TABLE q (id int PRIMARY KEY);
    CREATE TABLE c (id int PRIMARY KEY, p int, note text) PARTITION BY RANGE (id);
    CREATE TABLE c_1 PARTITION OF c FOR VALUES FROM (0) TO (10);
    CREATE TABLE c_2 PARTITION OF c FOR VALUES FROM (10) TO (30) PARTITION BY RANGE (id);
    CREATE TABLE c_21 PARTITION OF c_2 FOR VALUES FROM (10) TO (20);
    CREATE TABLE c_22 PARTITION OF c_2 FOR VALUES FROM (20) TO (30);
    CREATE TABLE empty (id int PRIMARY KEY REFERENCES q) PARTITION BY RANGE (id);
    ALTER TABLE c_1 ADD CONSTRAINT own FOREIGN KEY (p) REFERENCES q;
    ALTER TABLE c_22 ADD CONSTRAINT c_p_fkey CHECK (id > 0);
    ALTER TABLE c ADD CONSTRAINT c_p_fkey FOREIGN KEY (p) REFERENCES p ON DELETE CASCADE DEFERRABLE;
    COMMENT ON CONSTRAINT c_p_fkey ON c IS 'to p';
    CREATE MATERIALIZED VIEW mv AS SELECT count(*) AS n FROM c;
    INSERT INTO p VALUES (1);
    INSERT INTO q VALUES (1), (5);
    SET session_replication_role = replica;
    INSERT INTO c VALUES (1, 5, 'secret'), (11, 1, ''), (21, 1, '')
"""


def test_before_18_a_foreign_key_of_partitions_that_rows_violate_already_keeps_nothing_from_its_end(
    pg16: Cluster, database: Database, lifecycle: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    """C23: no row is read while the fence is up, and the violated key is left to a person."""
    source, dsn = database(pg16), database(pg16)
    do(source, PARTITIONED)
    move = lifecycle(source, dsn, tables={"include": ["public.*"]}, swap={"fence": "read_only"}, **SMALL)
    findings = stages.check(load_pipeline(move.content), source, dsn)["findings"]
    assert [(f["severity"], f["table"]) for f in findings if "foreign_key" in f["code"]] == [("warning", "public.c")]
    move.run_all(until="verify")
    swapped = move.run("swap")
    assert (swapped.state, swapped.exit_code) == ("done", EXIT_BLOCKED)
    told = {entry["table"]: entry["reason"] for entry in swapped.blocked if "COMMENT" not in entry["reason"]}
    assert told.keys() == {"public.c_1", "public.c"}
    assert "c_p_fkey" in told["public.c_1"] and "Key (p)=(5) is not present" in told["public.c_1"]
    assert 'ALTER TABLE "public"."c_1" VALIDATE CONSTRAINT "c_p_fkey";' in told["public.c_1"]
    assert "c_p_fkey is NOT VALID on its partition public.c_1" in told["public.c"]
    assert "secret" not in str(told) + capfd.readouterr().out
    assert one(dsn, "SELECT n FROM mv") == 3
    with pytest.raises(pg.ForeignKeyViolation):
        do(dsn, "INSERT INTO c VALUES (12, 77)")
    valid = "SELECT bool_and(convalidated) FROM pg_constraint WHERE contype = 'f' AND conrelid = %s::regclass"
    valid += " AND conparentid = 0"
    tables = ("c_1", "c_21", "c_22", "empty")
    assert [one(dsn, valid, f"public.{table}") for table in tables] == [False, True, True, True]

    again = move.run("swap")
    assert (again.state, again.exit_code, list(again.blocked)) == ("nothing_to_do", EXIT_BLOCKED, list(swapped.blocked))
    do(dsn, "DELETE FROM c WHERE p = 5")
    assert move.run("swap").exit_code == EXIT_DONE
    adopted = "SELECT array_agg(DISTINCT conrelid::regclass::text) FROM pg_constraint WHERE contype = 'f'"
    assert one(dsn, adopted + " AND conparentid <> 0 AND conrelid <> 'c'::regclass") == ["c_1", "c_2", "c_21", "c_22"]
    assert diff_catalogs(catalog_lines(source), catalog_lines(dsn)) == []
    assert move.run("cleanup").state == "done"


@pytest.mark.parametrize("answer", ["none", "dropped"])
def test_a_key_that_stays_not_valid_holds_cleanup_up_no_longer(shop: Make, answer: str) -> None:
    move = shop()
    do(move.source, "SET session_replication_role = replica", "INSERT INTO shop.child VALUES (99, 99, 'nobody')")
    move.run_all(until="verify")
    assert move.run("swap").exit_code == EXIT_BLOCKED
    if answer == "dropped":
        do(move.target, "ALTER TABLE shop.child DROP CONSTRAINT child_parent_fkey")
        assert move.run("swap").exit_code == EXIT_DONE
    assert move.run("cleanup").state == "done"
