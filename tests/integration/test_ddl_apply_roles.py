"""Captured DDL on the target as its client: whose rights it has, which role is missing, and behind the wall."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine.apply.as_client import run_as
from airflow_provider_pgddl.engine.errors import Retry
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.applied_ddl import BUILD, OWNER, VALID, WEAK, Target, concurrent, killed_while, opened, settings
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits


@pytest.fixture(params=matrix("pg16", "pg18"))
def target(request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    with opened(database(request.getfixturevalue(request.param)), monkeypatch) as target:
        yield target


def test_a_statement_runs_as_its_client_and_leaves_no_trace(target: Target) -> None:
    do(target.dsn, f"CREATE SCHEMA app AUTHORIZATION {OWNER}", "CREATE TYPE app.mood AS ENUM ('ok')")
    before = settings(target.conn)
    event = target.record(
        "CREATE TABLE made (day date DEFAULT '02/03/2024', at timestamptz DEFAULT '2024-06-01 12:00', m mood)",
        tag="CREATE TABLE", role=OWNER, path=["app", "pg_catalog", "pg_temp_3"],
        settings={"DateStyle": "SQL, DMY", "TimeZone": "Asia/Tokyo", "session_replication_role": "replica"},
    )  # fmt: skip
    assert target.apply(event).status == "applied"
    made = "pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'app.made'::regclass AND adnum = %s"
    assert one(target.dsn, f"SELECT {made}", 1) == "'2024-03-02'::date"
    utc = psycopg.conninfo.make_conninfo(target.dsn, options="-c TimeZone=UTC")
    assert "2024-06-01 03:00:00+00" in one(utc, f"SELECT {made}", 2)
    owner = "SELECT relowner::regrole::text FROM pg_class WHERE oid = 'app.made'::regclass"
    assert one(target.dsn, owner) == OWNER
    assert settings(target.conn) == before
    bad = target.record("CREATE TABLE made (n int)", role=OWNER, path=["app"], settings={"TimeZone": "Asia/Tokyo"})
    assert target.apply(bad).status == "failed"
    assert settings(target.conn) == before


@pytest.mark.parametrize(
    ("missing_role", "status", "owner"),
    [("ignore", "applied", "postgres"), ("fail", "failed", None), ({"nobody_here": OWNER}, "applied", OWNER),
     ({"somebody": OWNER}, "failed", None)],
)  # fmt: skip
def test_a_missing_role(target: Target, missing_role: Any, status: str, owner: str | None) -> None:
    do(target.dsn, f"GRANT CREATE ON SCHEMA public TO {OWNER}")
    event = target.record("CREATE TABLE public.u (n int)", role="nobody_here")
    outcome = target.apply(event, missing_role=missing_role)
    assert outcome.status == status
    found = one(target.dsn, "SELECT (SELECT relowner::regrole::text FROM pg_class WHERE relname = 'u')")
    assert found == owner
    if status == "failed":
        assert "no role nobody_here" in str(outcome.message)
    elif owner == "postgres":
        assert "the target has no role nobody_here: run with our own rights" in target.journal.row(event).notes


def test_a_missing_role_that_the_source_does_not_trust_gets_no_rights_of_ours(target: Target) -> None:
    event = target.record("CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'", role="nobody_here")
    outcome = target.apply(event, trusted=False)
    assert outcome.status == "failed"
    assert "the target has no role nobody_here" in str(outcome.message)
    assert 'CREATE ROLE "nobody_here";' in str(outcome.message)
    assert one(target.dsn, "SELECT count(*) FROM pg_proc WHERE proname = 'f'") == 0
    gone = target.record("GRANT SELECT ON public.t TO nobody_here", tag="GRANT", role="nobody_here")
    assert target.apply(gone, trusted=False).status == "skipped"


def test_mapped_roles_in_a_statement_are_replaced(target: Target) -> None:
    both = target.record("ALTER TABLE public.t OWNER TO nobody_here", "GRANT SELECT ON public.t TO nobody_here")
    assert target.apply(both, missing_role={"nobody_here": OWNER}).status == "applied"
    found = one(target.dsn, "SELECT relowner::regrole::text FROM pg_class WHERE oid = 'public.t'::regclass")
    assert found == OWNER
    assert one(target.dsn, f"SELECT has_table_privilege('{OWNER}', 'public.t', 'SELECT')") is True


def test_missing_roles_in_a_statement_are_cut_out(target: Target) -> None:
    both = target.record("ALTER TABLE public.t ADD COLUMN a int, OWNER TO nobody_here",
                         "GRANT SELECT ON public.t TO nobody_here")  # fmt: skip
    assert target.apply(both).status == "applied"
    assert target.columns() == ["id", "a"]
    assert len(target.journal.row(both).notes) == 2
    grant = target.record("GRANT SELECT ON public.t TO nobody_here", tag="GRANT")
    outcome = target.apply(grant)
    assert outcome.status == "skipped" and "no role nobody_here" in str(outcome.message)
    assert target.status(grant) == "skipped"
    assert (
        target.apply(target.record("GRANT SELECT ON public.t TO nobody_here"), missing_role="fail").status == "failed"
    )


def test_what_the_client_may_not_do_fails_with_the_grant_that_is_missing(target: Target) -> None:
    do(target.dsn, "CREATE SCHEMA closed")
    event = target.record("CREATE TABLE closed.made (n serial PRIMARY KEY)", tag="CREATE TABLE", role=WEAK)
    outcome = target.apply(event)
    grant = f'GRANT USAGE, CREATE ON SCHEMA "closed" TO "{WEAK}";'
    assert outcome.status == "failed"
    said = "permission denied for schema closed (while applying CREATE TABLE)"
    assert outcome.message == f"{said}; on the target: {grant} then `pgddl ddl retry`"
    do(target.dsn, grant)
    assert target.apply(event).status == "applied"
    owned = "SELECT array_agg(relowner::regrole::text) FROM pg_class WHERE relnamespace = 'closed'::regnamespace"
    assert one(target.dsn, owned) == [WEAK] * 3
    assert target.attempts(event) == ["failed", "applied"]


THEIRS = f"""
CREATE SCHEMA theirs AUTHORIZATION {OWNER}; GRANT USAGE ON SCHEMA theirs TO {WEAK};
CREATE TABLE theirs.t (id int PRIMARY KEY); ALTER TABLE theirs.t OWNER TO {OWNER};
CREATE FUNCTION theirs.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
REVOKE ALL ON FUNCTION theirs.f() FROM PUBLIC; GRANT EXECUTE ON FUNCTION theirs.f() TO {OWNER};
CREATE TYPE theirs.mood AS ENUM ('ok'); REVOKE ALL ON TYPE theirs.mood FROM PUBLIC;
CREATE SCHEMA mine AUTHORIZATION {WEAK}; GRANT CREATE ON SCHEMA mine TO {OWNER};
CREATE TABLE mine.t (id int); ALTER TABLE mine.t OWNER TO {WEAK}
"""


@pytest.mark.parametrize(
    ("statement", "grant"),
    [
        ("ALTER TABLE theirs.t ADD COLUMN a int", 'GRANT "pgddl_apply_owner" TO "pgddl_apply_weak";'),
        ("ALTER TABLE public.t ADD COLUMN a int", 'ALTER TABLE public.t OWNER TO "pgddl_apply_weak";'),
        ("CREATE TABLE mine.m AS SELECT * FROM theirs.t", 'GRANT SELECT ON TABLE theirs.t TO "pgddl_apply_weak";'),
        ("ALTER TABLE mine.t ADD FOREIGN KEY (id) REFERENCES theirs.t",
         'GRANT REFERENCES ON TABLE theirs.t TO "pgddl_apply_weak";'),
        ("CREATE TRIGGER g BEFORE INSERT ON mine.t FOR EACH ROW EXECUTE FUNCTION theirs.f()",
         'GRANT EXECUTE ON ROUTINE theirs.f() TO "pgddl_apply_weak";'),
        ("ALTER TABLE mine.t ADD COLUMN m theirs.mood", 'GRANT USAGE ON TYPE theirs.mood TO "pgddl_apply_weak";'),
        ("ALTER TABLE mine.t RENAME TO moved; ALTER TABLE mine.moved SET SCHEMA theirs",
         'GRANT CREATE ON SCHEMA "theirs" TO "pgddl_apply_weak";'),
        ("ALTER TABLE mine.t OWNER TO pgddl_apply_owner", 'GRANT "pgddl_apply_owner" TO "pgddl_apply_weak";'),
    ],
)  # fmt: skip
def test_whoever_runs_the_grant_that_is_named_can_go_on(target: Target, statement: str, grant: str) -> None:
    do(target.dsn, THEIRS)
    event = target.record(*statement.split("; "), role=WEAK)
    outcome = target.apply(event)
    assert outcome.status == "failed" and grant in str(outcome.message)
    do(target.dsn, grant)
    assert target.apply(event).status == "applied"
    do(target.dsn, f"REVOKE {OWNER} FROM {WEAK}")


def test_what_code_of_the_client_says_of_rights_is_no_advice(target: Target) -> None:
    """A person would run the GRANT that we name."""
    do(target.dsn, THEIRS, "CREATE TABLE public.payroll (id int)", f"ALTER TABLE public.payroll OWNER TO {OWNER}",
       "CREATE FUNCTION mine.says() RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
       " RAISE insufficient_privilege USING MESSAGE = 'must be owner of table payroll'; END $$",
       "CREATE FUNCTION mine.does() RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
       " ALTER TABLE public.payroll ADD COLUMN a int; RETURN 1; END $$",
       "INSERT INTO mine.t VALUES (1)")  # fmt: skip
    for function in ("says", "does"):
        event = target.record(f"ALTER TABLE mine.t ADD COLUMN a int DEFAULT mine.{function}()", role=WEAK)
        outcome = target.apply(event)
        assert outcome.status == "failed"
        assert "must be owner of table payroll" in str(outcome.message)
        assert "GRANT" not in str(outcome.message)


def test_only_statements_about_rights_take_on_a_role(target: Target) -> None:
    """What runs code of its owner would take the role back."""
    do(target.dsn, f"ALTER TABLE public.t OWNER TO {OWNER}")
    run_as(target.conn, OWNER, f"GRANT SELECT ON public.t TO {WEAK}")
    run_as(target.conn, OWNER, f"REVOKE SELECT ON public.t FROM {WEAK}")
    run_as(target.conn, OWNER, f"ALTER DEFAULT PRIVILEGES FOR ROLE {OWNER} GRANT SELECT ON TABLES TO {WEAK}")
    run_as(target.conn, OWNER, f"ALTER DEFAULT PRIVILEGES FOR ROLE {OWNER} REVOKE SELECT ON TABLES FROM {WEAK}")
    with pytest.raises(ValueError, match="only behind the wall"):
        run_as(target.conn, OWNER, "ALTER TABLE public.t ADD CHECK (id > 0)")
    run_as(target.conn, None, "ALTER TABLE public.t ADD CHECK (id > 0)")


# --- behind the wall ------------------------------------------------------------------------------------------------


def test_behind_the_wall_locks_notices_and_settings_are_as_in_front_of_it(target: Target) -> None:
    do(target.dsn, "GRANT USAGE, CREATE ON SCHEMA public TO pgddl_apply_owner",
       f"ALTER TABLE public.t OWNER TO {OWNER}", "ALTER TABLE public.t ADD COLUMN a int")  # fmt: skip
    before = settings(target.conn)
    event = target.record("ALTER TABLE t ADD COLUMN IF NOT EXISTS a int, ADD COLUMN d date DEFAULT '02/03/2024'",
                          role=OWNER, path=["public"], settings={"DateStyle": "SQL, DMY"})  # fmt: skip
    with in_transaction(target.dsn, "SET application_name = 'nightly report'", "SELECT * FROM public.t") as blocker:
        with pytest.raises(Retry, match=f"session {blocker.info.backend_pid} .*nightly report"):
            target.apply(event, lock_timeout="500ms", retry_for="1s")
        with Underway(lambda: target.apply(event, lock_timeout="300ms", retry_for="60s")) as applying:
            wait_for(lambda: waits(target.dsn, "AccessExclusiveLock", "public.t"), applying)
            blocker.commit()
            assert applying.finish().status == "applied"
    assert any('column "a" of relation "t" already exists' in note for note in target.journal.row(event).notes)
    default = "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'public.t'::regclass"
    assert one(target.dsn, default) == "'2024-03-02'::date"
    assert settings(target.conn) == before


def test_an_index_of_an_untrusted_client_is_built_behind_the_wall_in_one_transaction(target: Target) -> None:
    do(
        target.dsn,
        "GRANT USAGE, CREATE ON SCHEMA public TO pgddl_apply_owner",
        f"ALTER TABLE public.t OWNER TO {OWNER}",
    )
    event = concurrent(target, BUILD, role=OWNER)
    with in_transaction(target.dsn, "INSERT INTO public.t VALUES (1)"):
        killed_while(target, event, lambda: waits(target.dsn, "ShareLock", "public.t"))
    assert (target.status(event), one(target.dsn, VALID)) == ("applying", None)
    target.start_run()
    assert target.apply(event).status == "applied"
    assert one(target.dsn, VALID) is True
    assert any("run without CONCURRENTLY" in note for note in target.journal.row(event).notes)
