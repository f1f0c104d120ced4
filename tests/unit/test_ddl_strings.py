"""A string of many statements, and what events say of each other: what is applied of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.decide import decide
from airflow_provider_pgddl.engine.ddl.decision import Decision
from tests.unit.hand_made import column, event, gone, table, thing
from tests.unit.judged import KNOWN_TABLES, NEW, OUT, T, app, judged, on


def string(text: str, *commands: CapturedEvent) -> list[CapturedEvent]:
    """Commands of one string."""
    return [{**each, "statement": text, "seq": n, "id": f"800.{n}"} for n, each in enumerate(commands, 1)]  # type: ignore[typeddict-item]


CREATED = on(table(9, "app", "x", ["id"]), "CREATE TABLE", "")
DROPPED = event("DROP TABLE", "", dropped=[gone("table", "app", "x", oid=9)])
WIDER = on(NEW, "ALTER TABLE", "")


def applied(decisions: Sequence[Decision]) -> list[str]:
    return [statement for decision in decisions for statement in decision.statements]


# fmt: off
STRINGS: dict[str, tuple[list[CapturedEvent], list[str]]] = {
    "DML and transaction control fall away": (
        string(
            "begin; create table x (id int); insert into x values (1); alter table x add b int; commit", CREATED, WIDER
        ),
        ["CREATE TABLE app.x (id int)", "ALTER TABLE app.x ADD COLUMN b int"],
    ),
    "the same text three times": (
        string("create table x (id int); drop table x; create table x (id int); drop table x; create table x (id int)",
               CREATED, DROPPED, CREATED, DROPPED, CREATED),
        ["CREATE TABLE app.x (id int)", "DROP TABLE app.x"] * 2 + ["CREATE TABLE app.x (id int)"],
    ),
    "create, drop, create another": (
        string("create table x (id int); drop table x; create table x (id int, b int)",
               CREATED, DROPPED, on(NEW, "CREATE TABLE", "")),
        ["CREATE TABLE app.x (id int)", "DROP TABLE app.x", "CREATE TABLE app.x (id int, b int)"],
    ),
    "IF NOT EXISTS that did nothing": (
        string("create table if not exists t (z int); create table x (id int); create table if not exists u (z int)",
               CREATED),
        ["CREATE TABLE app.x (id int)"],
    ),
    "a no-op that cannot be told from its twin is rebuilt": (
        string("create table if not exists x (id int); create table if not exists x (z int)", CREATED),
        ["CREATE TABLE app.x (id int)"],
    ),
    "a temporary table of the same name": (
        string("create temp table x (z int); create table app.x (id int); alter table app.x add b int", CREATED, WIDER),
        ["CREATE TABLE app.x (id int)", "ALTER TABLE app.x ADD COLUMN b int"],
    ),
    "taken back by a savepoint": (
        string("create table x (id int); savepoint s; alter table x add z int; rollback to s; alter table x add b int",
               CREATED, WIDER),
        ["CREATE TABLE app.x (id int)", "ALTER TABLE app.x ADD COLUMN b int"],
    ),
    "a statement in scope, one out of it": (
        string("create table x (id int); create table other.x (id int)", CREATED,
               on(table(8, "other", "x", ["id"]), "CREATE TABLE", "")),
        ["CREATE TABLE app.x (id int)"],
    ),
    "the same name in two schemas": (
        string("create table other.x (id int, z int); create table app.x (id int)",
               on(table(8, "other", "x", ["id", "z"]), "CREATE TABLE", ""), CREATED),
        ["CREATE TABLE app.x (id int)"],
    ),
    "a statement that cannot be read between others": (
        string("create table x (id int); alter tabel x add z int; alter table x add b int", CREATED, WIDER),
        ["CREATE TABLE app.x (id int)", "ALTER TABLE app.x ADD COLUMN b int"],
    ),
    "renamed, and the name taken again": (
        string(
            "alter table t rename to t2; create table t (id int); alter table t add b int",
            on(table(1, "app", "t2", ["id", "a"]), "ALTER TABLE", "", names={"t": "app"}),
            on(table(9, "app", "t", ["id"]), "CREATE TABLE", ""),
            on(table(9, "app", "t", ["id", "b"]), "ALTER TABLE", ""),
        ),
        ["ALTER TABLE app.t RENAME TO t2", "CREATE TABLE app.t (id int)", "ALTER TABLE app.t ADD COLUMN b int"],
    ),
}
# fmt: on


@pytest.mark.parametrize(("events", "statements"), STRINGS.values(), ids=STRINGS.keys())
def test_a_string_of_many_statements(events: list[CapturedEvent], statements: list[str]) -> None:
    decisions = judged(events)
    assert [decision.event for decision in decisions] == events
    assert applied(decisions) == statements
    assert not [decision for decision in decisions if decision.verdict == "unhandled"]


@pytest.mark.parametrize(
    ("rule", "text", "verdicts"),
    [
        ("single_only", "create table x (id int)", ["apply"]),
        ("single_only", "begin; create table x (id int); commit", ["apply"]),
        ("single_only", "create table x (id int); alter table x add b int", ["unhandled", "unhandled"]),
        ("safe_only", "create table x (id int); alter table x add b int", ["apply", "apply"]),
        ("safe_only", "create table x (id int); insert into x values (1); alter table x add b int", ["unhandled"] * 2),
        ("safe_only", "create table x (id int); do 'begin end'; alter table x add b int", ["unhandled"] * 2),
        ("safe_only", "create table x (id int); create extension e; alter table x add b int", ["unhandled"] * 2),
        ("split", "create table x (id int); insert into x values (1); alter table x add b int", ["apply"] * 2),
    ],
)
def test_multi_statements(rule: str, text: str, verdicts: list[str]) -> None:
    events = string(text, *[CREATED, WIDER][: len(verdicts)])
    assert [decision.verdict for decision in judged(events, app(multi_statements=rule))] == verdicts


def test_single_only_takes_nothing_from_within_functions() -> None:
    nested = on(NEW, "CREATE TABLE", "select f()", nested=True, inner="create table x (id int, b int)")
    (decision,) = judged([nested], app(multi_statements="single_only"))
    assert decision.verdict == "unhandled"
    assert "single_only" in decision.rule


def test_what_is_out_of_scope_stays_so_in_a_string_that_is_refused() -> None:
    events = string("create table other.x (id int); insert into other.x values (1)", on(OUT, "CREATE TABLE", ""))
    (decision,) = judged(events, app(multi_statements="safe_only"))
    assert decision.verdict == "skip"


def test_versions_follow_the_events() -> None:
    versions = {meta["oid"]: meta for meta in KNOWN_TABLES}
    events = [
        on(table(1, "app", "t2", ["id"]), "ALTER TABLE", "alter table t rename to t2"),
        event("DROP TABLE", "drop table u", dropped=[gone("table", "app", "u", oid=2)]),
        event("ALTER SCHEMA", "alter schema other rename to o2", [thing("ALTER SCHEMA", "schema", 30, None, "o2")]),
    ]
    decide(events, app(), versions)
    assert {oid: (meta["schema"], meta["name"]) for oid, meta in versions.items()} == {
        1: ("app", "t2"),
        3: ("o2", "o"),
        4: ("app", "v"),
    }


def test_a_renamed_table_stays_the_pipelines() -> None:
    events = [
        on(table(1, "app", "t2", ["id"]), "ALTER TABLE", "alter table t rename to t2"),
        on(table(1, "app", "t2", ["id", "b"]), "ALTER TABLE", "alter table t2 add b int", batch="801.1"),
    ]
    by = app(include=["app.t"])
    assert [decision.verdict for decision in judged(events, by)] == ["apply", "apply"]


def test_a_decision_tells_what_it_touches() -> None:
    (decision,) = judged([on(table(1, "app", "t2", ["id"]), "ALTER TABLE", "alter table t rename to t2")])
    assert set(decision.touches) == {("app", "t"), ("app", "t2")}
    assert decision.kind == "table"
    typed = table(5, "app", "typed", [column(1, "m", "app.mood"), column(2, "ms", "app.mood[]")])
    enum = event(
        "ALTER TYPE",
        "alter type mood add value 'x'",
        [thing("ALTER TYPE", "type", 40, "app", "mood", identity="app.mood")],
    )
    (decision,) = judged([enum], known=[T, typed])
    assert decision.statements == ("ALTER TYPE app.mood ADD VALUE 'x'",)
    assert set(decision.touches) == {("app", "mood"), ("app", "typed")}
    assert decision.kind == "type"
