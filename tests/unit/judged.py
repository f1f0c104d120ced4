"""Events judged by rules, as `decide` is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, TableMeta
from airflow_provider_pgddl.engine.ddl.decide import decide
from airflow_provider_pgddl.engine.ddl.decision import Decision
from airflow_provider_pgddl.engine.ddl.scope import Rules
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.tags import CREATE_TAGS, DROP_TAGS
from tests.unit.hand_made import event, of_table, table

T = table(1, "app", "t", ["id", "a"])
U = table(2, "app", "u", ["id"])
O = table(3, "other", "o", ["id"])  # noqa: E741
V = table(4, "app", "v", ["id"], kind="v", definition="SELECT id FROM app.t")
KNOWN_TABLES = (T, U, O, V)
EVERY_CREATE = [
    *CREATE_TAGS,
    "CREATE INDEX",
    "CREATE POLICY",
    "GRANT",
    "REVOKE",
    "ALTER SCHEMA",
    "CREATE STATISTICS",
    "ALTER DEFAULT PRIVILEGES",
    "CREATE DOMAIN",
    "ALTER DOMAIN",
    "CREATE MATERIALIZED VIEW",
    "ALTER INDEX",
    "CREATE CAST",
    "REINDEX",
]
EVERY_DROP = [*DROP_TAGS, "DROP INDEX", "DROP POLICY", "DROP TRIGGER", "DROP OWNED", "DROP AGGREGATE", "DROP DOMAIN"]
OUT = table(9, "other", "x", ["id", "b"])


def rules(
    tables: Sequence[tuple[str, str]] = (), *, include: Sequence[str] = ("*.*",), in_place: bool = False, **ddl: Any
) -> Rules:
    file: dict[str, Any] = {"pipeline": "shop", "source": {"conn_id": "a"}, "ddl": ddl}
    if in_place:
        file["rewrite"] = {"app.t": {}}
    else:
        file |= {"target": {"conn_id": "b"}, "tables": {"include": list(include)}}
    return Rules.of(load_pipeline(file), tables)


def app(**more: Any) -> Rules:
    """Schema app only, every tag."""
    return rules(**({"schemas": "^app$", "create_tags": EVERY_CREATE, "drop_tags": EVERY_DROP} | more))


def judged(
    events: Sequence[CapturedEvent], by: Rules | None = None, known: Sequence[TableMeta] = KNOWN_TABLES
) -> list[Decision]:
    return decide(events, by or app(), {meta["oid"]: meta for meta in known})


def on(meta: TableMeta, tag: str, statement: str, **more: Any) -> CapturedEvent:
    """A command on one relation, `meta` as it is behind it."""
    kind = {"v": "view", "m": "materialized view"}.get(meta["kind"], "table")
    names = {meta["name"]: meta["schema"]} | more.pop("names", {})
    return event(tag, statement, [of_table(meta, tag, kind)], tables=[meta], names=names, **more)


NEW = table(9, "app", "x", ["id", "b"])


@dataclass(frozen=True)
class Case:
    event: CapturedEvent
    verdict: str
    statements: tuple[str, ...] = ()
    rule: str = ""
    """A part of it."""
    notes: str = ""
    """A part of the only one."""
    by: Callable[[], Rules] = app


def applies(what: CapturedEvent, *statements: str, **more: Any) -> Case:
    return Case(what, "apply", statements, **more)


def assert_decided(case: Case) -> None:
    (decision,) = judged([case.event], case.by())
    assert (decision.verdict, decision.statements) == (case.verdict, case.statements), decision
    assert case.rule in decision.rule, decision
    if case.notes:
        (note,) = decision.notes
        assert case.notes in note
    assert decision.rebuilt == ("rebuilt" in "".join(decision.notes))
    assert decision.concurrently == ("CONCURRENTLY" in "".join(decision.statements))
