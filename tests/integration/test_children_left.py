"""A child of a followed table that the pipeline does not take: whoever reads the parent sees its rows, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.preflight import preflight
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.swapping import across
from tests.integration import calls
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do, in_transaction, one

Make = Callable[..., Lifecycle]
EVENTS = """
CREATE SCHEMA app; CREATE SCHEMA archive;
CREATE TABLE app.events (id int PRIMARY KEY);
CREATE TABLE app.events_2020 (PRIMARY KEY (id)) INHERITS (app.events);
INSERT INTO app.events VALUES (1); INSERT INTO app.events_2020 VALUES (2)
"""
CHILD = """
CREATE TABLE archive.events_2019 (PRIMARY KEY (id)) INHERITS (app.events); INSERT INTO archive.events_2019 VALUES (3)
"""
COUNT = "SELECT count(*) FROM app.events"


@pytest.fixture
def events(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, EVENTS)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["app.*"]}, swap={"fence": "read_only"})


def found(move: Lifecycle, **tables: list[str]) -> list[Finding]:
    content = {**move.content, "tables": {**move.content["tables"], **tables}}
    names = [("app", "events"), ("app", "events_2020")]
    with connect(move.source, purpose="test") as source, connect(move.target, purpose="test") as target:
        return [f for f in preflight(load_pipeline(content), source, target, names) if f.code == "inheritance"]


def test_it_is_refused_and_with_it_all_rows_come(events: Lifecycle) -> None:
    do(events.source, CHILD)
    refused = str(events.refused("setup", PreflightRefused))
    assert "archive.events_2019 inherits from it and its rows stay" in refused
    assert "add archive.events_2019 to tables.include" in refused
    events.content["tables"] = {"include": ["app.*", "archive.events_2019"]}
    events.run_all()
    assert one(events.target, COUNT) == 3


def test_one_that_is_left_out_on_purpose_is_a_warning(events: Lifecycle) -> None:
    do(events.source, CHILD)
    assert [f.severity for f in found(events)] == ["error"]
    assert [f.severity for f in found(events, exclude=["archive.*"])] == ["warning"]
    assert [f.severity for f in found(events, schema_only=["archive.events_2019"])] == ["warning"]


def test_a_temporary_one_is_nobody_elses(events: Lifecycle) -> None:
    with in_transaction(events.source, "CREATE TEMP TABLE mine () INHERITS (app.events)") as session:
        session.commit()
        assert found(events) == []


def test_one_that_comes_later_keeps_the_swap_from_happening(events: Lifecycle) -> None:
    events.run_all(until="verify")
    do(events.source, CHILD)
    assert "archive.events_2019 inherits from it" in str(events.refused("swap", PreflightRefused))
    do(events.source, "ALTER TABLE archive.events_2019 NO INHERIT app.events")
    events.run_all(after="schema_sync")
    assert one(events.target, COUNT) == one(events.source, COUNT) == 2


def test_one_of_the_file_that_comes_during_a_try_is_taken_along(
    events: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.run_all(until="verify")
    come = calls.once(CHILD.replace("archive.", "app."), dsn=events.source)
    tries = calls.before_each(monkeypatch, across, "refuse_children_left", come)
    events.run("swap")
    assert len(tries) == 2
    assert one(events.target, COUNT) == one(events.source, COUNT) == 3
