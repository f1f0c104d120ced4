"""What people are told of a pipeline without having asked: each thing once, to each who tells it."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.commands import ddl
from airflow_provider_pgddl.engine.commands.news import News, claim, give_back
from airflow_provider_pgddl.engine.errors import StageFailed
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute


def test_each_thing_is_told_once(
    pg16: Cluster, pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle]
) -> None:
    source, target = database(pg16), database(pg18)
    execute(source, "CREATE TABLE orders (id int PRIMARY KEY, total int)")
    execute(source, "INSERT INTO orders SELECT n, n FROM generate_series(1, 50) n")
    move = lifecycle(source, target, tables={"include": ["public.*"]}, ddl={"approval": "required"})

    def told(who: str = "ann", lag_limit: float | None = None) -> list[News]:
        return list(claim(move.name, target, who, lag_limit=lag_limit))

    assert told() == [], "it is not set up"
    move.run_all(until="replay")
    assert told(lag_limit=3600) == []

    # Lag: once while it is over its limit, and again once it has been within.
    (late,) = told(lag_limit=0)
    assert (late.event, "0 s is the limit" in late.subject, "no stage" in late.message) == ("lag", True, True)
    assert told(lag_limit=0) == []
    assert told(lag_limit=3600) == []
    assert [one.event for one in told(lag_limit=0)] == ["lag"]

    # DDL that waits, and the table that waits for it.
    execute(source, "ALTER TABLE orders ADD COLUMN note text")
    assert move.run("replay").blocked
    (waits,) = (one for one in told() if one.event == "ddl")
    assert "ADD COLUMN note" in waits.message and "pgddl ddl approve" in waits.message
    assert told() == []
    later = claim(move.name, target, "carl", lag_limit=0)
    assert next(later).event == "ddl"
    later.close()
    assert [one.event for one in told("carl", 0)] == ["lag"], "what was not reached is still to be told"
    assert [one.event for one in told("bob")] == ["ddl"]
    give_back(move.name, target, "bob", [waits])
    assert told("bob") == [waits]
    assert told() == []
    ddl.approve(move.job("replay").pipeline, target, [], "ann")
    assert not move.run("replay").blocked
    assert told() == []

    # A mismatch, gone, and there again.
    for _ in range(2):
        execute(target, "ALTER TABLE orders DROP COLUMN note")
        assert move.run("replay").blocked
        (stopped,) = told()
        assert (stopped.event, stopped.table) == ("mismatch", "public.orders")
        assert "ADD COLUMN note text" in stopped.message
        assert told() == []
        execute(target, "ALTER TABLE orders ADD COLUMN note text")
        assert not move.run("replay").blocked

    # A verification that differs.
    execute(target, "UPDATE orders SET total = 0 WHERE id IN (7, 8)")
    move.refused("verify", StageFailed)
    (differs,) = told()
    assert (differs.event, differs.table) == ("verification", "public.orders")
    assert "2 rows differ" in differs.subject and "--mend" in differs.message
    move.run("verify", mend=True)
    assert told() == []

    move.run("swap")
    (swapped,) = told(lag_limit=0)
    assert swapped.event == "swap" and "Applications belong on the target" in swapped.message
    assert told(lag_limit=0) == []
