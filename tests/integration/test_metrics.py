"""What Prometheus is told of a pipeline, from before setup to after the last stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
from prometheus_client import parser

from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands import metrics, view
from airflow_provider_pgddl.engine.errors import Unreachable
from airflow_provider_pgddl.engine.journal.ddl import STATUSES
from airflow_provider_pgddl.engine.journal.schema import GateResult, SchemaJournal
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.schema.verdict import Reason, SchemaFinding, stopped
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.lifecycle import Lifecycle, execute

SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.users (id int PRIMARY KEY, name text);
CREATE TABLE shop."or ""ders" (id int PRIMARY KEY);
INSERT INTO shop.users SELECT n, 'user ' || n FROM generate_series(1, 50) n;
"""
PHONE = SchemaFinding("source_added_column", "mismatch", "Source has new column 'phone' not in target", column="phone")
CAST = SchemaFinding(
    "type_mismatch", "mismatch", "Casting would lose cents", reason="type_mismatch", metric="unsafe_cast"
)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def move(lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str) -> Lifecycle:
    execute(source_dsn, SHOP)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["shop.*"]})


def scraped(move: Lifecycle) -> Samples:
    """(name, labels) → value as Prometheus reads the text; none twice, and none without the pipeline's name."""
    text = metrics.text(load_pipeline(move.content), move.source, move.target)
    families = list(parser.text_string_to_metric_families(text))
    samples = [sample for family in families for sample in family.samples]
    found = {(s.name, frozenset(s.labels.items())): s.value for s in samples}
    assert len(found) == len(samples)
    assert {s.labels["pipeline"] for s in samples} == {move.name}
    assert all(s.name.startswith("pgddl_") for s in samples)
    return found


def value(found: Samples, name: str, **labels: str) -> float | None:
    """The one sample that has these labels; None: there is none."""
    values = [v for (n, has), v in found.items() if n == name and labels.items() <= dict(has).items()]
    assert len(values) <= 1
    return values[0] if values else None


def test_before_setup_there_are_counters_at_zero_and_no_tables(move: Lifecycle) -> None:
    found = scraped(move)
    assert set(found.values()) == {0}
    assert all("table" not in dict(labels) for _, labels in found)
    for reason in get_args(Reason):
        assert value(found, "pgddl_tables_blocked_schema_total", reason=reason) == 0
    for result in get_args(GateResult):
        assert value(found, "pgddl_schema_validations_total", result=result) == 0
    for status in STATUSES:
        assert value(found, "pgddl_ddl_events", status=status) == 0
    assert value(found, "pgddl_schema_validation_duration_seconds_count") == 0
    with connect(move.target, purpose="test") as conn:
        assert conn.execute("SELECT to_regnamespace('pgddl')").fetchone() == (None,)


def test_every_table_has_its_series_from_setup_on_and_progress_shows(move: Lifecycle) -> None:
    move.run("setup")
    execute(move.source, "INSERT INTO shop.users VALUES (51, 'one more'), (52, 'and another')")
    found = scraped(move)
    for table in ("users", 'or "ders'):
        of = {"schema": "shop", "table": table}
        for kind in (
            "source_added_column",
            "target_added_column",
            "type_mismatch",
            "source_removed_column",
            "safe_cast",
            "unsafe_cast",
        ):
            assert value(found, "pgddl_schema_mismatches_total", type=kind, **of) == 0
        for reason in ("column_mismatch", "cast_error", "constraint_violation"):
            assert value(found, "pgddl_rows_skipped_schema_total", reason=reason, **of) == 0
        assert value(found, "pgddl_table_rows_pending", **of) == 0
        assert value(found, "pgddl_chunks_left", **of) == 0
    assert value(found, "pgddl_changes_in_log", table="users") == 2
    move.run_all(after="setup", until="replay")
    found = scraped(move)
    assert value(found, "pgddl_changes_in_log", table="users") == 0
    assert value(found, "pgddl_schema_status", table="users") == 1
    move.run_all(after="replay")
    assert value(scraped(move), "pgddl_table_rows_pending", table="users") == 0


def test_what_the_journal_counts_is_told(move: Lifecycle) -> None:
    move.run_all(until="replay")
    before = scraped(move)
    users = ("shop", "users")
    with connect(move.target, purpose="test") as conn:
        journal = SchemaJournal(conn, move.name)
        journal.record(users, "mismatch", [PHONE, CAST])
        journal.record(("shop", "gone"), "mismatch", [stopped("has no key")])
        journal.count(users, "rows_skipped", "column_mismatch", 40)
        journal.count(users, "rows_skipped", "cast_error")
        journal.validated("fail_unsafe", 0.25)
        journal.validated("fail_unsafe", 0.5)
    found = scraped(move)

    def added(name: str, **labels: str) -> float:
        return (value(found, name, **labels) or 0) - (value(before, name, **labels) or 0)

    assert value(found, "pgddl_schema_status", table="users") == 0
    assert value(found, "pgddl_schema_status", table="gone") == 0
    assert value(found, "pgddl_schema_status", table='or "ders') == 1
    assert added("pgddl_schema_mismatches_total", table="users", type="source_added_column") == 1
    assert added("pgddl_schema_mismatches_total", table="users", type="unsafe_cast") == 1
    assert added("pgddl_schema_mismatches_total", table="gone", type="stopped") == 1
    assert added("pgddl_tables_blocked_schema_total", reason="data_loss_risk") == 1
    assert added("pgddl_tables_blocked_schema_total", reason="type_mismatch") == 1
    assert added("pgddl_tables_blocked_schema_total", reason="stopped") == 1
    assert added("pgddl_rows_skipped_schema_total", table="users", reason="column_mismatch") == 40
    assert added("pgddl_rows_skipped_schema_total", table="users", reason="cast_error") == 1
    assert added("pgddl_schema_validations_total", result="fail_unsafe") == 2
    assert added("pgddl_schema_validation_duration_seconds_count") == 2
    assert added("pgddl_schema_validation_duration_seconds_sum") == 0.75


def test_a_finished_run_alerts_nobody_of_what_it_has_left(move: Lifecycle) -> None:
    """A way back that is given up is finished without having cut over."""
    move.run_all(until="replay")
    execute(move.target, "UPDATE pgddl.pipelines SET verify_needed = 'the source has lost commits'")
    execute(move.source, "ALTER TABLE shop.users ALTER COLUMN id TYPE bigint")
    with connect(move.target, purpose="test") as conn:
        SchemaJournal(conn, move.name).record(("shop", "users"), "mismatch", [PHONE])
    found = scraped(move)
    assert value(found, "pgddl_lag_seconds") is not None
    assert (value(found, "pgddl_schema_status", table="users"), value(found, "pgddl_verify_needed")) == (0, 1)
    assert [r.table for r in stages.gate(load_pipeline(move.content), move.source, move.target)]

    execute(move.target, "UPDATE pgddl.pipelines SET finished_at = now()")
    found = scraped(move)
    assert value(found, "pgddl_lag_seconds") is value(found, "pgddl_lag_bytes") is None
    assert (value(found, "pgddl_schema_status", table="users"), value(found, "pgddl_verify_needed")) == (1, 0)
    assert stages.gate(load_pipeline(move.content), move.source, move.target) == []
    assert view.view(move.name, move.target)["boxes"] == []


def test_a_table_that_waits_behind_ddl_is_blocked(move: Lifecycle) -> None:
    move.run_all(until="replay")
    execute(move.target, "CREATE TABLE shop.taken (id int)")
    execute(move.source, "CREATE TABLE shop.taken (id int PRIMARY KEY); ALTER TABLE shop.users ADD COLUMN age int")
    move.run("replay")
    found = scraped(move)
    assert value(found, "pgddl_schema_status", table="users") == 0
    assert value(found, "pgddl_ddl_events", status="failed") == 1


def test_a_server_that_does_not_answer_is_an_error_and_no_half_text(move: Lifecycle) -> None:
    with pytest.raises(Unreachable):
        metrics.text(load_pipeline(move.content), move.source, "host=127.0.0.1 port=1 dbname=x")
