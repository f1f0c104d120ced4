"""What a person reads in the log of whatever takes long: at which table it is, how much of all is done, how fast, and
for how long it goes on."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import progress
from airflow_provider_pgddl.engine.apply import dump_events
from airflow_provider_pgddl.engine.following import catch_up, row_comparison, staying
from airflow_provider_pgddl.engine.job import at_work
from airflow_provider_pgddl.engine.rows import ranges
from tests.integration.calls import before_each, once
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import Underway, in_transaction, wait_for

ROWS = 3000
# The function waits, at a row in the middle, for whoever holds the lock on its server.
TABLE = f"""
CREATE FUNCTION waits(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF n = 2000 THEN PERFORM pg_advisory_xact_lock_shared(7); END IF;
    RETURN n;
END $$;
CREATE TABLE t (id int PRIMARY KEY, n int);
INSERT INTO t SELECT i, i FROM generate_series(1, {ROWS}) i;
CREATE INDEX ON t (waits(n));
CREATE TABLE other (id int PRIMARY KEY);
"""
HELD = "SELECT pg_advisory_xact_lock(7)"
LEFT = r"\d+:\d\d left"


def test_it_is_said_of_everything_that_takes_long(
    lifecycle: Callable[..., Lifecycle],
    source_dsn: str,
    target_dsn: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = list[str]()

    def said(line: str) -> bool:
        lines.extend(capsys.readouterr().out.splitlines())
        return any(re.search(f"^pgddl {line}$", each) for each in lines)

    for module in (progress, catch_up):
        monkeypatch.setattr(module, "TELL_EVERY", 0.0)
    monkeypatch.setattr(dump_events, "GROUP", 1)
    monkeypatch.setattr(row_comparison, "WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(ranges, "FEWEST_ROWS", 100)
    execute(source_dsn, TABLE)
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["*.*"]}, replay={"window_rows": 500},
        backfill={"chunk_bytes": "16kB", "workers": 1},
    )  # fmt: skip
    move.run_all(until="backfill")
    assert said(rf"setup: capturing: 1/2 tables, \S+ tables/s, {LEFT}; at public\.\w+"), lines
    assert said(rf"snapshot: making what is not there: 1/\d statements, \S+ .*{LEFT}(; at public\.t)?"), lines
    with monkeypatch.context() as often:
        for module, name in ((progress, "LINE_EVERY"), (at_work, "LOOK_EVERY"), (at_work, "QUIET")):
            often.setattr(module, name, 0.1)
        with (
            in_transaction(target_dsn, HELD) as holder,
            in_transaction(target_dsn, "LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE") as other,
            Underway(lambda: move.run("schema_sync")) as running,
        ):
            # Of a statement that waits the server knows no progress.
            wait_for(lambda: said(r"schema_sync: (ALTER TABLE|CREATE INDEX) [^(]*\bt\b[^(]*: \d:\d\d so far"), running)
            other.rollback()
            built = rf"schema_sync: \d/\d statements, \d/2 tables indexed, \S+ bytes/s, {LEFT}; at public\.t \(\d+%\)"
            wait_for(lambda: said(built), running)
            wait_for(lambda: said(rf"schema_sync: at public\.t: \d+ of \d+ blocks, \S+ blocks/s, {LEFT}"), running)
            holder.rollback()

    execute(source_dsn, "UPDATE t SET n = n + 1 WHERE id <> 1999")
    move.run("replay")
    assert said(rf"replay: window \d+: .* pending, .* behind; \S+ of 3k keys, \S+ keys/s, {LEFT}; at public\.t"), lines
    lines.clear()
    before_each(monkeypatch, staying, "catch_up", once("UPDATE t SET n = n + 1 WHERE id <> 1998", dsn=source_dsn))
    move.run("replay", replay={"window_rows": 500, "run_for": "1s"})
    assert said(rf"replay: window \d+: .* pending, .* behind; \S+ of 3k keys, \S+ keys/s, {LEFT}; at public\.t"), lines

    execute(target_dsn, "DELETE FROM t WHERE id % 300 = 0")
    move.run("verify", mend=True)
    assert said(rf"verify: \d+/\d+ ranges, \S+ rows compared, \S+ ranges/s, {LEFT}; at public\.t"), lines
    assert said(rf"verify: rows that differ: \d+/\d+ ranges, \S+ ranges/s, {LEFT}; at public\.t"), lines
    assert differences(source_dsn, target_dsn, [("public", "t")]) == []
