"""What becomes otherwise of a table that is partitioned, and what no partitioned table has."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine.preflight import partitioning, servers
from tests.integration.preflights.findings import apply_fix, errors, findings, only, run

EVENTS = "CREATE TABLE public.events (id int PRIMARY KEY, at date NOT NULL, no int, UNIQUE (id, at))"


def split(**sections: Any) -> dict[str, Any]:
    rewrite = {"public.events": {"partition_by": {"column": "at", "range": "month"}}}
    return {"pipeline": "shop", "source": {"conn_id": "shop"}, "rewrite": rewrite, **sections}


def test_row_triggers_that_a_moved_row_meets_otherwise_are_told(dsn: str) -> None:
    run(
        dsn,
        EVENTS,
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        'CREATE TRIGGER "After" AFTER UPDATE ON events FOR EACH ROW EXECUTE FUNCTION f()',
        "CREATE TRIGGER gone BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION f()",
        "CREATE TRIGGER once AFTER UPDATE ON events FOR EACH STATEMENT EXECUTE FUNCTION f()",
    )
    (told,) = [f.what for f in findings(split(), dsn) if "row triggers" in f.what]
    assert told.endswith('and no UPDATE to those that fire after it: "After", gone')


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "NO ACTION"])
def test_a_foreign_key_that_takes_a_moved_row_for_a_deleted_one_is_refused(
    dsn: str, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """Postgres 14 does, which no test has."""
    refers = f"FOREIGN KEY (event, at) REFERENCES events (id, at) ON DELETE {action}"
    run(dsn, EVENTS, f"CREATE TABLE o (event int, at date, {refers})")
    assert errors(findings(split(), dsn)) == []
    monkeypatch.setattr(partitioning, "MOVES_AS_UPDATES", 190_000)
    if action == "NO ACTION":
        assert errors(findings(split(), dsn)) == []
        return
    apply_fix(dsn, only(findings(split(), dsn), "partition_by"))
    assert errors(findings(split(), dsn)) == []


OVERLAPS = """
    ALTER TABLE events DROP CONSTRAINT events_pkey, ALTER id SET NOT NULL, ADD ids int4range, ADD during daterange,
    ADD CONSTRAINT k PRIMARY KEY (ids, during WITHOUT OVERLAPS)
"""
UNPARTITIONED = {
    "check": ("ALTER TABLE events ADD CONSTRAINT k CHECK (no > 0) NO INHERIT", "k is NO INHERIT", 140_000),
    "not null": ("ALTER TABLE events ADD CONSTRAINT k NOT NULL no NO INHERIT", "k is NO INHERIT", 180_000),
    "without overlaps": (OVERLAPS, "k is WITHOUT OVERLAPS", 180_000),
}


@pytest.mark.every_combination
@pytest.mark.parametrize("case", UNPARTITIONED)
def test_c23_what_no_partitioned_table_has_is_refused(dsn: str, case: str) -> None:
    statement, words, since = UNPARTITIONED[case]
    run(dsn, EVENTS)
    with psycopg.connect(dsn) as conn:
        if conn.info.server_version < since:
            pytest.skip("not before 18")
    run(dsn, statement)
    finding = only(findings(split(), dsn), "partition_by")
    assert words in finding.what
    apply_fix(dsn, finding)
    assert errors(findings(split(), dsn)) == []


@pytest.mark.parametrize(
    ("by", "parts"),
    [
        ({"range": "month", "ahead": 2}, 37 + 2),
        ({"column": "no", "range": 10, "ahead": 0}, 110),
        ({"hash": 7}, 7),
        ({"column": "id", "list": [1, [2, 3]], "default_partition": True}, 3),
        ({"column": "few", "list": True}, 5),
        ({"column": "id", "range": 1}, 1000),
    ],
)
def test_locks_of_the_partitions_are_counted(
    dsn: str, monkeypatch: pytest.MonkeyPatch, by: dict[str, Any], parts: int
) -> None:
    run(
        dsn,
        "CREATE TABLE public.events (id int PRIMARY KEY, at date NOT NULL, no int NOT NULL, few int NOT NULL)",
        "INSERT INTO events SELECT n, date '2023-01-01' + n, n, n % 5 FROM generate_series(0, 1095) n",
        "ANALYZE events",
    )
    file = split()
    file["rewrite"] = {"public.events": {"partition_by": {"column": "at", **by}}}
    monkeypatch.setattr(servers, "LOCKS_A_PARTITION", 1_000_000)
    (told,) = [f.what for f in findings(file, dsn) if f.code == "locks"]
    assert f"or {parts} partitions are made and moved, it takes up to {parts * 1_000_000 + 12}" in told
