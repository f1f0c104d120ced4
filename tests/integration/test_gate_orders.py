"""No order of events ends in a gate that waits for a task behind it: it opens by what comes next, or by a person."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Any

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands.schema import apply_migrations, plan_migrations
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.schema.verdict import TableReport
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle, execute

Lifecycles = Callable[..., Lifecycle]

BEHIND = ("replay", "verify")
BEFORE_REPLAY = ("setup", "snapshot", "backfill", "schema_sync")
# What happens to a table, in every order: a column that no trigger captures, DDL that is captured, and what a person
# does on the target about the first.
EVENTS = {
    "unseen": "SET LOCAL pgddl.skip = on; ALTER TABLE app.{t} ADD COLUMN unseen int DEFAULT 1",
    "captured": "ALTER TABLE app.{t} ADD COLUMN captured int DEFAULT 2; ALTER TABLE app.{t} ALTER COLUMN n TYPE bigint",
    "fix": "ALTER TABLE app.{t} ADD COLUMN IF NOT EXISTS unseen int",
}
FIX_ALL = (
    "ALTER TABLE app.{t} ADD COLUMN IF NOT EXISTS captured int;"
    "ALTER TABLE app.{t} ADD COLUMN IF NOT EXISTS unseen int; ALTER TABLE app.{t} ALTER COLUMN n TYPE bigint"
)
ORDERS = {f"t{n}": order for n, order in enumerate(itertools.permutations(EVENTS))}
APPROVED = "migrated once approved"
# What the pipeline says, and whether it takes a person.
MIGRATES = {"auto_migrate": {"types": ["add_column", "safe_type_change"], "approval": "auto"}}
POLICIES: dict[str, tuple[dict[str, Any], bool]] = {
    "stop": ({}, True),
    "migrated": (
        {"schema": {"auto_migrate": {"types": ["add_column", "safe_type_change"], "approval": "auto"}}},
        False,
    ),
    APPROVED: (
        {"schema": {"auto_migrate": {"types": ["add_column", "safe_type_change"], "approval": "required"}}},
        True,
    ),
    "added": ({"schema": {"source_added_columns": "add"}}, False),
    "nobody captures": ({"capture": {"ddl": "off"}}, True),
    "nobody captures, migrated": ({"capture": {"ddl": "off"}, "schema": MIGRATES}, False),
}


def gate(move: Lifecycle, behind: Collection[str] = BEHIND) -> dict[str, TableReport]:
    """The tables that the gate is closed for, with what it says."""
    reports = stages.gate(load_pipeline(move.content), move.source, move.target, behind=behind)
    return {r.table: r for r in reports if r.status == "mismatch"}


def approve(move: Lifecycle, *tables: str) -> list[str]:
    """As a person does who sees what `auto_migrate` would do; returns the tables that it was done to."""
    ends = load_pipeline(move.content), move.source, move.target
    shown = {p.table: p.statements for p in plan_migrations(*ends) if p.table in tables}
    return apply_migrations(*ends, shown, "a person")


def write(move: Lifecycle, number: int) -> None:
    """Rows to every table, whatever its columns are by now."""
    for table in (*ORDERS, "quiet"):
        execute(move.source, f"INSERT INTO app.{table} (id) VALUES ({number})")


@pytest.mark.parametrize("replayed", matrix(0, 1, 2, 3))
@pytest.mark.parametrize("policy", POLICIES)
def test_every_order_of_events_ends_with_an_open_gate(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, policy: str, replayed: int
) -> None:
    """`replayed`: behind which of the first two steps a replay ran before the gate, as bits."""
    settings, takes_a_person = POLICIES[policy]
    execute(
        source_dsn,
        "CREATE SCHEMA app;"
        + "".join(f"CREATE TABLE app.{t} (id int PRIMARY KEY, n int DEFAULT 7);" for t in (*ORDERS, "quiet")),
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["app.*"]}, **settings)
    move.run_all(until="replay")
    captured, approved = settings.get("capture", {}).get("ddl") != "off", set[str]()
    for step in range(len(EVENTS)):
        for table, order in ORDERS.items():
            event = order[step]
            if event == "fix" and not takes_a_person:
                continue
            if event == "fix" and policy == APPROVED:
                approved |= {*approve(move, f"app.{table}")}
                continue
            statement = EVENTS[event] if captured or event != "fix" else FIX_ALL
            execute(move.target if event == "fix" else move.source, statement.format(t=table))
        write(move, step)
        waits = {f"app.{t}" for t, order in ORDERS.items() if takes_a_person and "fix" not in order[: step + 1]}
        if policy == APPROVED:  # what is not there yet is not shown, nor beside DDL that is on its way
            waits = {f"app.{t}" for t in ORDERS} - approved
        if captured:
            waits &= {f"app.{t}" for t, order in ORDERS.items() if "unseen" in order[: step + 1]}
        else:  # a column that came after the fix takes another one
            waits = {f"app.{t}" for t in ORDERS} if takes_a_person else set()
        if step < 2 and replayed & (1 << step):
            blocked = {b["table"] for b in move.run("replay").blocked}
            assert blocked <= waits
            assert move.journal("SELECT count(*) FROM app.quiet") == [(step + 1,)]
        assert gate(move).keys() <= waits
    if policy == APPROVED:
        assert {f"app.{t}" for t, order in ORDERS.items() if order[:2] == ("unseen", "fix")} <= approved
        move.run("replay")
        approved |= {*approve(move, *(f"app.{table}" for table in ORDERS))}
        assert approved == {f"app.{table}" for table in ORDERS}
    elif takes_a_person and not captured:
        for table in ORDERS:
            execute(move.target, FIX_ALL.format(t=table))
    assert gate(move) == {}
    assert move.run("replay").blocked == []
    assert differences(move.source, move.target) == []
    assert gate(move, ()) == {}


@pytest.mark.parametrize("ddl", matrix("queue", "off"))
def test_a_table_dropped_on_both_sides_closes_no_gate(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, ddl: str
) -> None:
    execute(source_dsn, "CREATE TABLE public.a (id int PRIMARY KEY); CREATE TABLE public.b (id int PRIMARY KEY)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": ddl})
    move.run_all(until="replay")
    execute(source_dsn, "SET LOCAL pgddl.skip = on; DROP TABLE public.a; INSERT INTO public.b VALUES (1)")
    assert [b["table"] for b in move.run("replay").blocked] == ["public.a"]
    assert list(gate(move)) == ["public.a"]
    execute(target_dsn, "DROP TABLE public.a")
    assert gate(move) == {}
    assert move.run("replay").blocked == []
    assert gate(move, ()) == {}
    assert move.journal("SELECT id FROM public.b") == [(1,)]


def test_captured_ddl_that_came_while_a_table_was_stopped_is_left_to_replay(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    """And what a person still has to do is not: neither before nor behind that."""
    execute(source_dsn, "CREATE TABLE public.a (id int PRIMARY KEY)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    move.run_all(until="replay")
    execute(source_dsn, "SET LOCAL pgddl.skip = on; ALTER TABLE public.a ADD COLUMN x int")
    assert move.run("replay").blocked
    execute(source_dsn, "ALTER TABLE public.a ADD COLUMN y int; INSERT INTO public.a VALUES (1, 2, 3)")
    assert list(gate(move)) == ["public.a"]
    execute(target_dsn, "ALTER TABLE public.a ADD COLUMN x int")
    assert list(gate(move, ())) == ["public.a"], "nobody stands behind it who would do it"
    (told,) = gate(move, ()).values()
    assert {f.column for f in told.findings if f.severity == "mismatch"} == {"y"}
    assert gate(move) == {}
    assert move.run("replay").blocked == []
    assert differences(source_dsn, target_dsn) == []


def test_a_migration_that_fails_is_not_called_settled_where_nothing_comes_behind(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    execute(source_dsn, "CREATE TABLE public.a (id int PRIMARY KEY)")
    policy = {"auto_migrate": {"types": ["add_column"], "approval": "auto"}}
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": "off"}, schema=policy)
    move.run_all(until="replay")
    execute(
        target_dsn,
        "CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'not here'; END$$;"
        "CREATE EVENT TRIGGER refuse ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION public.refuse()",
    )
    execute(source_dsn, "ALTER TABLE public.a ADD COLUMN x int; INSERT INTO public.a VALUES (1, 2)")
    assert [b["table"] for b in move.run("replay").blocked] == ["public.a"]
    assert list(gate(move, ())) == ["public.a"]
    assert gate(move) == {}
    assert [b["table"] for b in move.run("verify").blocked] == ["public.a"]
    execute(target_dsn, "DROP EVENT TRIGGER refuse")
    assert move.run("replay").blocked == []
    assert differences(source_dsn, target_dsn) == []


@pytest.mark.parametrize("ddl", matrix("queue", "off"))
def test_healthy_tables_are_brought_while_others_are_blocked(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, ddl: str
) -> None:
    """A round of `follow` with its gate behind replay: whatever blocks a table, also new tables are brought."""
    execute(source_dsn, "CREATE TABLE public.a (id int PRIMARY KEY); CREATE TABLE public.b (id int PRIMARY KEY)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": ddl})
    move.run_all(until="replay")
    execute(source_dsn, "SET LOCAL pgddl.skip = on; ALTER TABLE public.a ADD COLUMN x int")
    execute(source_dsn, "INSERT INTO public.a VALUES (1, 2); INSERT INTO public.b VALUES (1)")
    if ddl == "queue":
        execute(source_dsn, "CREATE TABLE public.c (id int PRIMARY KEY); INSERT INTO public.c VALUES (1)")
        execute(source_dsn, "CREATE TABLE public.keyless (id int); INSERT INTO public.keyless VALUES (1)")
    new = ["c"] if ddl == "queue" else []
    for number in (2, 3):
        for stage in BEFORE_REPLAY:
            move.run(stage)
        blocked = {b["table"] for b in move.run("replay").blocked}
        assert blocked == {"public.a", *(["public.keyless"] if new else [])} == gate(move, ()).keys()
        for table in ("b", *new):
            counted = move.journal(f"SELECT count(*) FROM public.{table}")
            assert counted == move.on_source(f"SELECT count(*) FROM public.{table}"), table
            execute(source_dsn, f"INSERT INTO public.{table} VALUES ({number})")
        assert move.journal("SELECT count(*) FROM public.a") == [(0,)]
