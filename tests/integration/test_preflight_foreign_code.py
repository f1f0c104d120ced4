"""What preflight says of code of roles that are not trusted: what runs as whom, what is refused, and what mends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do

Make = Callable[..., Lifecycle]

MADE = """
DO $$ BEGIN
    IF to_regrole('code_owner') IS NULL THEN CREATE ROLE code_owner; CREATE ROLE code_bob; END IF;
END $$;
CREATE SCHEMA m AUTHORIZATION code_owner;
CREATE SCHEMA n AUTHORIZATION code_bob;
GRANT USAGE ON SCHEMA n TO PUBLIC;
SET ROLE code_bob;
CREATE FUNCTION n.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1; END';
SET ROLE code_owner;
CREATE FUNCTION m.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1; END';
CREATE TABLE m.plain (id int PRIMARY KEY, a int CHECK (a > 0));
CREATE TABLE m.t (id int PRIMARY KEY, a int CONSTRAINT fine CHECK (m.f(a) > 0));
RESET ROLE;
"""


@pytest.fixture
def source(source_dsn: str) -> str:
    do(source_dsn, MADE)
    return source_dsn


@pytest.fixture
def target(target_dsn: str) -> str:
    do(target_dsn, "DO $$ BEGIN IF to_regrole('code_owner') IS NULL THEN CREATE ROLE code_owner; END IF; END $$")
    return target_dsn


def findings(move: Lifecycle) -> list[dict[str, Any]]:
    checked = stages.check(load_pipeline(move.content), move.source, move.target)
    return [finding for finding in checked["findings"] if finding["code"] == "foreign_code"]


def test_what_runs_as_its_owner_is_said_and_nothing_of_tables_without_code(
    source: str, target: str, lifecycle: Make
) -> None:
    (found,) = findings(lifecycle(source, target, tables={"include": ["m.*"]}))
    assert (found["severity"], found["table"]) == ("warning", "m.t")
    assert "function m.f(integer) of role code_owner (in check fine) runs as code_owner" in found["what"]
    assert findings(lifecycle(source, target, tables={"include": ["m.*"]}, trusted_roles=["code_owner"])) == []


def test_a_third_role_s_code_is_refused_until_that_role_is_trusted(source: str, lifecycle: Make) -> None:
    do(source, "ALTER TABLE m.plain ADD CONSTRAINT of_bob CHECK (n.f(a) > 0)")
    rewrite = {"m.plain": {}}
    (found,) = findings(lifecycle(source, rewrite=rewrite))
    assert (found["severity"], found["table"]) == ("error", "m.plain")
    assert "function n.f(integer) of role code_bob (in check of_bob) would run as code_owner" in found["what"]
    assert "trusted_roles: [code_bob]" in found["fix"]
    assert [f["severity"] for f in findings(lifecycle(source, rewrite=rewrite, trusted_roles=["code_bob"]))] == []


def test_an_owner_without_a_way_to_its_table_gets_one_by_the_sql_that_is_named(source: str, lifecycle: Make) -> None:
    do(source, "ALTER SCHEMA m OWNER TO CURRENT_USER", "REVOKE ALL ON SCHEMA m FROM code_owner")
    move = lifecycle(source, rewrite={"m.t": {}})
    errors = [f for f in findings(move) if f["severity"] == "error"]
    assert [f["fix"] for f in errors] == ["GRANT USAGE ON SCHEMA m TO code_owner;"]
    do(source, errors[0]["fix"])
    assert [f["severity"] for f in findings(move)] == ["warning"]


def test_an_author_whom_the_target_lacks_is_made_there_by_the_sql_that_is_named(
    source: str, target: str, lifecycle: Make
) -> None:
    do(
        source,
        "ALTER TABLE m.t DROP CONSTRAINT fine",
        "ALTER TABLE m.plain ADD CHECK (n.f(a) > 0)",
        "GRANT code_owner TO code_bob",
    )
    move = lifecycle(source, target, tables={"include": ["m.*"]})
    try:
        missing = [f for f in findings(move) if f["where"] == "target"]
        assert [f["fix"] for f in missing] == ["CREATE ROLE code_bob;"]
        with psycopg.connect(target, autocommit=True) as conn:
            conn.execute(missing[0]["fix"])
        assert [f["where"] for f in findings(move)] == ["source"]
    finally:
        do(source, "REVOKE code_owner FROM code_bob")
        do(target, "DROP ROLE IF EXISTS code_bob")
