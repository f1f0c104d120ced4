"""Statements without the roles that the target lacks, and without CONCURRENTLY."""

from __future__ import annotations

from typing import Any, cast

import pytest

from airflow_provider_pgddl.engine.apply.concurrently import Work, concurrent_work, plain
from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.roles import gifts, without_missing_roles
from airflow_provider_pgddl.engine.errors import StageFailed


@pytest.mark.parametrize(
    ("statement", "fitted", "missing"),
    [
        ("GRANT SELECT ON a.t TO here", "GRANT SELECT ON a.t TO here", []),
        ("GRANT SELECT ON a.t TO PUBLIC", "GRANT SELECT ON a.t TO PUBLIC", []),
        ("GRANT SELECT ON a.t TO here, gone", "GRANT select ON a.t TO here", ["gone"]),
        ("REVOKE SELECT ON a.t FROM gone, PUBLIC", "REVOKE select ON a.t FROM public", ["gone"]),
        ("GRANT SELECT ON a.t TO gone, CURRENT_USER", None, ["gone", "client"]),
        ("GRANT SELECT ON a.t TO here GRANTED BY gone", None, ["gone"]),
        ("GRANT SELECT ON a.t TO CURRENT_USER", None, ["client"]),
        ("ALTER TABLE a.t OWNER TO gone", None, ["gone"]),
        ("ALTER VIEW a.v OWNER TO here", "ALTER VIEW a.v OWNER TO here", []),
        ("ALTER FUNCTION a.f() OWNER TO gone", None, ["gone"]),
        ("ALTER TABLE a.t ADD n int, OWNER TO gone", "ALTER TABLE a.t ADD COLUMN n int", ["gone"]),
        ("ALTER TABLE a.t OWNER TO CURRENT_USER, ADD n int", "ALTER TABLE a.t ADD COLUMN n int", ["client"]),
        ("CREATE SCHEMA s AUTHORIZATION gone", "CREATE SCHEMA s", ["gone"]),
        ("CREATE SCHEMA AUTHORIZATION gone", "CREATE SCHEMA gone", ["gone"]),
        ("CREATE POLICY p ON a.t TO gone", None, ["gone"]),
        ("CREATE POLICY p ON a.t TO gone, here", "CREATE POLICY p ON a.t TO here", ["gone"]),
        ("ALTER POLICY p ON a.t TO gone, here USING (true)", "ALTER POLICY p ON a.t TO here USING (true)", ["gone"]),
        ("ALTER POLICY p ON a.t TO gone USING (true)", None, ["gone"]),
        ("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO here", None, ["client"]),
        ("ALTER DEFAULT PRIVILEGES FOR ROLE here GRANT SELECT ON TABLES TO PUBLIC",
         "ALTER DEFAULT PRIVILEGES FOR ROLE here GRANT SELECT ON TABLES TO PUBLIC", []),
        ("ALTER DEFAULT PRIVILEGES FOR ROLE here, gone GRANT SELECT ON TABLES TO here, gone",
         "ALTER DEFAULT PRIVILEGES FOR ROLE here GRANT select ON TABLES TO here", ["gone"]),
        ("this is no SQL", "this is no SQL", []),
    ],
)  # fmt: skip
def test_missing_roles(statement: str, fitted: str | None, missing: list[str]) -> None:
    assert without_missing_roles(statement, {"here"}, "client") == (fitted, missing)


def event(*objects: dict[str, Any]) -> CapturedEvent:
    return cast(CapturedEvent, {"objects": list(objects)})


@pytest.mark.parametrize(
    ("statement", "work"),
    [
        ("CREATE UNIQUE INDEX CONCURRENTLY i ON a.t (n)", ("create index", ("a", "i"), ("", ""), False)),
        ("CREATE INDEX CONCURRENTLY IF NOT EXISTS i ON a.t (n)", ("create index", ("a", "i"), ("", ""), True)),
        ("CREATE INDEX CONCURRENTLY ON a.t (n)", ("create index", ("a", "made"), ("", ""), False)),
        ("DROP INDEX CONCURRENTLY a.i", ("drop index", ("a", "i"), ("", ""), False)),
        ("DROP INDEX CONCURRENTLY IF EXISTS a.i", ("drop index", ("a", "i"), ("", ""), True)),
        ("ALTER TABLE a.p DETACH PARTITION b.c CONCURRENTLY", ("detach", ("b", "c"), ("a", "p"), False)),
        ("REINDEX INDEX CONCURRENTLY a.i", ("reindex", ("a", "i"), ("", ""), False)),
        ("REINDEX SCHEMA a", ("reindex", ("a", ""), ("", ""), False)),
    ],
)
def test_what_refuses_a_transaction_is_told_apart(statement: str, work: tuple[Any, ...]) -> None:
    found = concurrent_work(statement, event({"type": "index", "name": "made"}))
    assert (found.kind, found.name, found.table, found.lenient) == work
    assert isinstance(found, Work) and ("made" in found.statement) == ("made" in found.name)


@pytest.mark.parametrize(
    "statement",
    ["CREATE INDEX i ON a.t (n)", "ALTER TABLE a.p DETACH PARTITION b.c", "DROP SUBSCRIPTION s", "DROP INDEX a.i"],
)
def test_what_could_not_be_followed_up_is_refused(statement: str) -> None:
    with pytest.raises(StageFailed, match="refuses a transaction"):
        concurrent_work(statement, event())


def test_a_name_that_the_event_does_not_tell_is_not_guessed() -> None:
    with pytest.raises(StageFailed, match="does not tell the name of the index"):
        concurrent_work("CREATE INDEX CONCURRENTLY ON a.t (n)", event())


@pytest.mark.parametrize(
    ("statement", "without"),
    [
        ("CREATE INDEX CONCURRENTLY i ON a.t USING btree (n)", "CREATE INDEX i ON a.t USING btree (n)"),
        ("DROP INDEX CONCURRENTLY a.i", "DROP INDEX a.i"),
        ("ALTER TABLE a.p DETACH PARTITION b.c CONCURRENTLY", "ALTER TABLE a.p DETACH PARTITION b.c"),
        ("REINDEX (VERBOSE, CONCURRENTLY) TABLE a.t", "REINDEX (verbose) TABLE a.t"),
        ("ALTER TABLE a.t ADD COLUMN n int", "ALTER TABLE a.t ADD COLUMN n int"),
    ],
)
def test_a_copy_is_altered_in_a_transaction(statement: str, without: str) -> None:
    assert plain(statement).lower() == without.lower()


def test_what_was_made_for_a_client_is_given_to_its_owner() -> None:
    def made(
        kind: str, identity: str, owner: str | None = "here", tag: str = "CREATE X", sub: int = 0
    ) -> dict[str, Any]:
        return {"type": kind, "identity": identity, "owner": owner, "tag": tag, "objsubid": sub}

    given = gifts(
        event(
            made("table", 'a."T"'),
            made("index", "a.i"),
            made("function", "a.f(integer, text)"),
            made("type", "a.x"),
            made("view", "a.v", "gone"),
            made("table", "a.u", "old"),
            made("table", "a.w", tag="ALTER TABLE"),
            made("table column", "a.t.n", sub=1),
            made("schema", "s", None),
            made("statistics object", "a.st"),
        ),
        {"old": "here"},
        {"here"},
    )
    assert [statement.as_string(None) for _, _, statement in given] == [
        'ALTER TABLE a."T" OWNER TO "here"',
        'ALTER FUNCTION a.f(integer, text) OWNER TO "here"',
        'ALTER TYPE a.x OWNER TO "here"',
        'ALTER TABLE a.u OWNER TO "here"',
        'ALTER STATISTICS a.st OWNER TO "here"',
    ]
