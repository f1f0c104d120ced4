"""What the journal keeps of a client's string where values are to stay on the source."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.ddl.redact import VALUE_LEFT_OUT, without_values


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE t SET email = 'jane'",
        "INSERT INTO t VALUES ('jane')",
        "WITH x AS (DELETE FROM t WHERE email = 'jane' RETURNING 1) SELECT * FROM x",
        "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET email = 'jane'",
        "SELECT f('jane')",
        "SELECT id INTO u FROM t WHERE email = 'jane'",
        "CREATE TABLE u AS SELECT id FROM t WHERE email = 'jane'",
        "CREATE TABLE u AS EXECUTE p('jane')",
        "PREPARE p AS SELECT 'jane'",
        "EXECUTE p('jane')",
        "CALL p('jane')",
        "DO $$ BEGIN UPDATE t SET email = 'jane'; END $$",
        "COPY (SELECT 'jane') TO STDOUT",
        "SET app.who = 'jane'",
        "NOTIFY c, 'jane'",
        "EXPLAIN SELECT 'jane'",
        "DECLARE c CURSOR FOR SELECT 'jane'",
        "UPDTE t SET email = 'jane'",
        "UPDATE t SET email = 'jane",
    ],
)
def test_what_may_say_a_value_is_left_out(text: str) -> None:
    assert without_values(text) == VALUE_LEFT_OUT
    if text.count("'") % 2 == 0:
        assert without_values(f"ALTER TABLE t ADD x int; {text}") == f"ALTER TABLE t ADD x int;\n{VALUE_LEFT_OUT}"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("ALTER TABLE t ADD x text DEFAULT 'a'", "ALTER TABLE t ADD x text DEFAULT 'a'"),
        ("BEGIN; DROP VIEW v; COMMIT", "BEGIN;\nDROP VIEW v;\nCOMMIT"),
        ("CREATE MATERIALIZED VIEW m AS SELECT 1 AS x", "CREATE MATERIALIZED VIEW m AS SELECT 1 AS x"),
        ("-- jane\nDROP TABLE t /* jane */", "DROP TABLE t"),
        ("", ""),
    ],
)
def test_what_says_what_a_schema_is_stays(text: str, kept: str) -> None:
    assert without_values(text) == kept
