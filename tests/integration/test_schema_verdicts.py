"""`pgddl status`, `pgddl metrics`, `pgddl schema validate` and the gate give one verdict on every table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from prometheus_client import parser

from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands import ddl, metrics, schema
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.schema.verdict import VerdictStatus
from tests.integration.lifecycle import Lifecycle, execute

Make = Callable[..., Lifecycle]
Verdicts = dict[str, VerdictStatus]

NAMES = ("same", "warned", "wrong", "waits", "waits_wrong", "refused")


def told(move: Lifecycle) -> dict[Literal["gate", "status", "metrics", "validate"], Verdicts]:
    """The verdicts of each, after the gate has looked; metrics tell only whether rows go on."""
    pipeline = load_pipeline(move.content)
    ends = (pipeline, move.source, move.target)
    reports = stages.gate(*ends)
    status = stages.status(*ends)
    validated = schema.validate(*ends)
    for listed in (reports, validated):
        assert len({r.table for r in listed}) == len(listed)  # one verdict a table
    blocked = status.get("mismatches", {})
    shown = {table: row["status"] for table, row in status.get("schema", {}).items()}
    assert {t for t, one in shown.items() if one == "mismatch"} == blocked.keys()
    families = parser.text_string_to_metric_families(metrics.text(*ends))
    samples = [s for family in families for s in family.samples if s.name == "pgddl_schema_status"]
    going = {f"{s.labels['schema']}.{s.labels['table']}": s.value for s in samples}
    assert len(going) == len(samples)
    assert set(going.values()) <= {0, 1}
    return {
        "gate": {r.table: r.status for r in reports},
        "status": shown,
        "metrics": {t: "mismatch" if value == 0 else "compatible" for t, value in going.items()},
        "validate": {r.table: r.status for r in validated},
    }


def agreed(move: Lifecycle) -> Verdicts:
    """What all of them say."""
    found = told(move)
    gate = found["gate"]
    assert found["status"] == gate
    assert found["metrics"] == {t: "mismatch" if v == "mismatch" else "compatible" for t, v in gate.items()}
    assert found["validate"] == gate
    return gate


@pytest.fixture
def move(lifecycle: Make, source_dsn: str, target_dsn: str) -> Lifecycle:
    execute(source_dsn, "".join(f"CREATE TABLE {n} (id int PRIMARY KEY, note text);" for n in NAMES))
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, ddl={"approval": "required"})


def test_every_verdict_is_the_same_wherever_it_is_shown(move: Lifecycle) -> None:
    """Compatible, warned of, a mismatch of schemas, DDL that waits, both, and a row that was refused."""
    nothing = told(move)
    assert (nothing["gate"], nothing["status"], nothing["metrics"]) == ({}, {}, {})
    move.run_all(until="replay")
    assert agreed(move) == {f"public.{n}": "compatible" for n in NAMES}

    execute(
        move.target,
        "ALTER TABLE warned ADD extra text; ALTER TABLE wrong ALTER note TYPE varchar(3);"
        "ALTER TABLE waits_wrong ALTER note TYPE varchar(3)",
    )
    expected: Verdicts = {f"public.{n}": "compatible" for n in NAMES}
    expected |= {"public.warned": "warning", "public.wrong": "mismatch", "public.waits_wrong": "mismatch"}
    assert agreed(move) == expected

    execute(move.source, "ALTER TABLE waits ADD later int; ALTER TABLE waits_wrong ADD later int")
    execute(move.source, "INSERT INTO waits VALUES (1, 'one'); INSERT INTO same VALUES (1, 'one')")
    assert {b["table"] for b in move.run("replay").blocked} == {"public.wrong", "public.waits", "public.waits_wrong"}
    expected |= {"public.waits": "mismatch"}
    assert agreed(move) == expected
    reports = {r.table: r for r in stages.gate(load_pipeline(move.content), move.source, move.target)}
    assert {f.reason for f in reports["public.waits"].findings if f.severity == "mismatch"} == {"ddl"}


def test_a_row_that_was_refused_and_a_table_that_could_not_be_made(move: Lifecycle) -> None:
    """What no comparison of two schemas shows; and after the swap nobody judges any more."""
    move.content["ddl"] = {"approval": "auto"}
    move.run_all(until="replay")
    execute(move.target, "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE check_violation; END'")
    execute(move.target, "CREATE TRIGGER no BEFORE INSERT ON refused FOR EACH ROW EXECUTE FUNCTION no()")
    execute(move.target, "ALTER TABLE refused ENABLE ALWAYS TRIGGER no; CREATE TABLE taken (other int)")
    execute(move.source, "INSERT INTO refused VALUES (1, 'one')")
    assert [b["table"] for b in move.run("replay").blocked] == ["public.refused"]
    ends = (load_pipeline(move.content), move.source, move.target)
    assert {t for t, row in stages.status(*ends)["schema"].items() if row["status"] == "mismatch"} == {"public.refused"}
    assert 'table="refused"} 0.0' in metrics.text(*ends)
    agreed(move)

    execute(move.source, "CREATE TABLE taken (id int PRIMARY KEY)")
    assert {b["table"] for b in move.run("replay").blocked} >= {"public.refused", "public.taken"}
    found = told(move)
    assert found["gate"]["public.taken"] == found["status"]["public.taken"] == found["metrics"]["public.taken"]
    assert found["gate"] == found["status"]
    assert {t for t, v in found["metrics"].items() if v == "mismatch"} == {
        t for t, v in found["gate"].items() if v == "mismatch"
    }

    execute(move.target, "DROP TABLE taken; DROP TRIGGER no ON refused")
    ddl.retry(load_pipeline(move.content), move.source, move.target)
    move.run_all(after="schema_sync", until="swap")
    found = told(move)
    assert (found["gate"], "mismatch" in found["status"].values(), "mismatch" in found["metrics"].values()) == (
        {}, False, False,
    )  # fmt: skip
