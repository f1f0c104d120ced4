"""Captured DDL on the target: in one transaction with its bookkeeping, as the client, past whoever holds a lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.apply.as_client import run_as
from airflow_provider_pgddl.engine.apply.captured_events import EventOutcome, apply_captured
from airflow_provider_pgddl.engine.apply.dump_events import apply_events, apply_in_groups, apply_together
from airflow_provider_pgddl.engine.apply.index_build import Build, build
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.errors import Fenced, Retry
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.dump_events import EventRow
from airflow_provider_pgddl.engine.journal.lease import Fence
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.applied_ddl import OWNER, WEAK, Target, opened
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits


@pytest.fixture(params=matrix("pg16", "pg18"))
def target(request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    with opened(database(request.getfixturevalue(request.param)), monkeypatch) as target:
        yield target


SETTINGS = ("role", "search_path", "TimeZone", "DateStyle", "lock_timeout", "default_tablespace")


def settings(conn: Session) -> list[str]:
    return [conn.execute("SELECT current_setting(%s)", [name]).fetchone()[0] for name in SETTINGS]


def test_a_statement_and_its_bookkeeping_are_one(target: Target) -> None:
    before = settings(target.conn)
    event = target.record("ALTER TABLE public.t ADD COLUMN a int")
    assert [row.id for row in target.journal.waiting()] == [event]
    assert target.apply(event) == EventOutcome("applied")
    assert target.columns() == ["id", "a"]
    assert (target.status(event), target.attempts(event)) == ("applied", ["applied"])
    assert target.journal.waiting() == []
    again = target.apply(event)
    assert again.status == "applied" and again.over
    assert target.attempts(event) == ["applied"]
    assert settings(target.conn) == before


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


def test_what_is_not_on_the_target_gives_way_to_its_default(target: Target) -> None:
    event = target.record("CREATE TABLE public.u (n int)", settings={"default_tablespace": "fast",
                          "default_table_access_method": "columnar"})  # fmt: skip
    assert target.apply(event).status == "applied"
    notes = target.journal.row(event).notes
    assert "default_tablespace fast is not on the target: the default was taken" in notes
    assert "default_table_access_method columnar is not on the target: the default was taken" in notes


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


MADE = [
    {"classid": "pg_class", "objid": 1, "objsubid": 0, "tag": tag, "type": kind, "schema": "closed", "name": name,
     "identity": f"closed.{name}", "table": None, "definition": None, "owner": OWNER}
    for tag, kind, name in (("CREATE SEQUENCE", "sequence", "made_n_seq"), ("CREATE TABLE", "table", "made"),
                            ("CREATE INDEX", "index", "made_pkey"), ("ALTER SEQUENCE", "sequence", "made_n_seq"))
]  # fmt: skip


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


def test_a_failure_leaves_nothing_and_can_be_retried(target: Target) -> None:
    event = target.record("ALTER TABLE public.t ADD COLUMN a int", "ALTER TABLE public.missing ADD COLUMN b int")
    outcome = target.apply(event)
    assert outcome.status == "failed"
    assert 'relation "public.missing" does not exist' in str(outcome.message)
    assert target.columns() == ["id"]
    assert target.journal.row(event).note == outcome.message
    do(target.dsn, "CREATE TABLE public.missing (n int)")
    target.journal.retry(event)
    assert target.apply(event).status == "applied"
    assert target.columns("public.missing") == ["n", "b"]
    attempts = target.journal.show(event).attempts
    assert [(a["number"], a["outcome"]) for a in attempts] == [(1, "failed"), (2, "applied")]
    assert target.journal.row(event).note is None


def test_what_fails_at_the_commit_has_failed(target: Target) -> None:
    do(
        target.dsn,
        "INSERT INTO public.t VALUES (1)",
        "CREATE TABLE public.c (t int)",
        "INSERT INTO public.c VALUES (2)",
    )
    event = target.record("ALTER TABLE public.c ADD FOREIGN KEY (t) REFERENCES public.t DEFERRABLE INITIALLY DEFERRED")
    assert target.apply(event).status == "failed"
    assert (
        one(target.dsn, "SELECT count(*) FROM pg_constraint WHERE conrelid = 'public.c'::regclass AND contype = 'f'")
        == 0
    )


# --- what is done twice ---------------------------------------------------------------------------------------------


def dumped(target: Target, *statements: str) -> list[EventRow]:
    """Statements of a snapshot that are to be applied."""
    journal = Journal(target.conn, "shop")
    journal.record("migrate", {}, catalog.server(target.conn))
    for statement in statements:
        event = DdlEvent(seq=0, tag="CREATE INDEX", kind="index", section="post-data", phase="index",
                         statement=statement, schema="public", name=None, table=("public", "t"))  # fmt: skip
        args = [
            "shop",
            1,
            journal.dump_events.next_seq(1),
            "index",
            None,
            Jsonb(event.to_json()),
            statement,
            "pending",
            None,
        ]
        target.conn.execute(queries("journal")["insert_event"], args)
    return journal.dump_events.to_apply(1, ["index"])


def in_one_transaction(
    conn: Session, pipeline: str, fence: Fence, events: Sequence[EventRow], _: Sequence[str]
) -> None:
    with lease.fenced(conn, fence, "a test's"):
        apply_together(conn, pipeline, events, ())


@pytest.mark.parametrize("apply", [apply_events, apply_in_groups, in_one_transaction], ids=lambda f: f.__name__)
def test_a_task_that_is_started_again_after_its_commit_changes_nothing(
    target: Target, apply: Callable[..., object]
) -> None:
    events = dumped(target, "CREATE INDEX one ON public.t (id)", "CREATE INDEX two ON public.t (id)")
    statuses = "SELECT array_agg(status || ' ' || xmin::text ORDER BY seq) FROM pgddl.ddl_events"
    apply(target.conn, "shop", target.lease.fence, events, ())
    done = one(target.dsn, statuses)
    assert [status.split()[0] for status in done] == ["applied"] * 2
    apply(target.conn, "shop", target.lease.fence, events, ())
    assert one(target.dsn, statuses) == done
    assert one(target.dsn, "SELECT count(*) FROM pg_index WHERE indrelid = 'public.t'::regclass") == 3


def test_two_tasks_for_the_same_indexes_wait_for_each_other(target: Target) -> None:
    """As a speculative copy of a task does it, before the first has committed."""
    part = Build(target.dsn, "shop", target.lease.fence, tuple(dumped(target, "CREATE INDEX one ON public.t (id)")),
                 False, (sql.Identifier("public", "t"),), quick=True, trusted=())  # fmt: skip
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE '%%build'"
    with in_transaction(target.dsn, "LOCK public.t IN ACCESS EXCLUSIVE MODE") as blocker:
        with Underway(lambda: build(part)) as first, Underway(lambda: build(part)) as second:
            wait_for(lambda: one(target.dsn, waiting) == 2, first)
            blocker.commit()
            assert (first.finish(), second.finish()) == (1, 1)
    assert build(part) == 1
    assert one(target.dsn, "SELECT array_agg(status) FROM pgddl.ddl_events") == ["applied"]
    assert one(target.dsn, "SELECT count(*) FROM pg_index WHERE indrelid = 'public.t'::regclass") == 2


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


# --- whatever ends us in the middle -------------------------------------------------------------------------------


def test_killed_in_the_statement_the_next_run_does_it(target: Target) -> None:
    event = target.record("ALTER TABLE public.t ADD COLUMN a int")
    with in_transaction(target.dsn, "SELECT * FROM public.t"):
        with Underway(lambda: target.apply(event, lock_timeout="30s", retry_for="60s")) as applying:
            wait_for(lambda: waits(target.dsn, "AccessExclusiveLock", "public.t"), applying)
            do(target.dsn, f"SELECT pg_terminate_backend({target.conn.info.backend_pid})")
            assert applying.fails(Retry).retryable
    assert (target.status(event), target.attempts(event)) == ("applying", [None])
    target.die()
    target.start_run()
    assert [row.status for row in target.journal.waiting()] == ["applying"]
    assert target.apply(event).status == "applied"
    assert target.columns() == ["id", "a"]
    assert target.attempts(event) == ["interrupted", "applied"]


def test_an_older_run_commits_nothing_once_a_newer_one_has_begun(target: Target) -> None:
    event = target.record("ALTER TABLE public.t ADD COLUMN a int")
    with in_transaction(target.dsn, "SELECT * FROM public.t") as blocker:
        with Underway(lambda: target.apply(event, lock_timeout="30s", retry_for="60s")) as applying:
            wait_for(lambda: waits(target.dsn, "AccessExclusiveLock", "public.t"), applying)
            old, journal = target.lease, target.journal
            old.close()
            target.start_run()
            blocker.commit()
            applying.fails(Fenced)
    assert target.columns() == ["id"]
    assert journal.row(event).status == "applying"
    assert target.apply(event).status == "applied"


def test_what_a_person_settled_meanwhile_is_not_applied(target: Target) -> None:
    event = target.record("ALTER TABLE public.t ADD COLUMN a int")
    row = target.journal.row(event)
    target.journal.resolve(event, "done by hand")
    outcome = apply_captured(
        target.conn, target.session, target.pipeline, target.journal, target.lease.fence, row,
        trusted_on_source=lambda _: False, powers_on_source=lambda _: (),
    )  # fmt: skip
    assert outcome.status == "resolved" and outcome.over
    assert target.columns() == ["id"]
    assert target.attempts(event) == []


def test_in_place_a_statement_reaches_copies_and_nothing_else(target: Target) -> None:
    do(target.dsn, "CREATE SCHEMA pgddl_copy_public", "CREATE TABLE pgddl_copy_public.t (id int)")
    stray = target.record("ALTER TABLE public.t ADD COLUMN a int")
    outcome = target.apply(stray, copies_only=True)
    assert outcome.status == "failed" and "would act on this live relation" in str(outcome.message)
    assert target.columns() == ["id"]
    event = target.record("ALTER TABLE pgddl_copy_public.t ADD COLUMN a int")
    assert target.apply(event, copies_only=True).status == "applied"
    index = target.record("CREATE INDEX CONCURRENTLY i ON pgddl_copy_public.t (id)", concurrently=True)
    assert target.apply(index, copies_only=True).status == "applied"
    assert target.columns("pgddl_copy_public.t") == ["id", "a"]


# --- what refuses a transaction -----------------------------------------------------------------------------------

BUILD = "CREATE INDEX CONCURRENTLY made ON public.t (id)"
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'virtualxid'"
VALID = "SELECT (SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('public.made'))"


def concurrent(target: Target, statement: str, **event: Any) -> int:
    return target.record(statement, tag="CREATE INDEX", concurrently=True, kind="index", **event)


def test_an_index_is_built_concurrently(target: Target) -> None:
    event = concurrent(target, BUILD)
    assert target.apply(event) == EventOutcome("applied")
    assert one(target.dsn, VALID) is True
    again = concurrent(target, BUILD)
    outcome = target.apply(again)
    assert outcome == EventOutcome("failed", "there is an index public.made already")
    lenient = concurrent(target, BUILD.replace("made", "IF NOT EXISTS made"))
    assert target.apply(lenient).status == "applied"


def test_an_index_without_a_name_gets_the_one_of_the_source(target: Target) -> None:
    made = {**MADE[2], "name": "made", "identity": "public.made"}
    event = concurrent(target, "CREATE INDEX CONCURRENTLY ON public.t (id)", objects=[made])
    assert target.apply(event).status == "applied"
    assert one(target.dsn, VALID) is True


def test_a_build_that_fails_leaves_no_index(target: Target) -> None:
    do(target.dsn, "CREATE TABLE public.d (n int)", "INSERT INTO public.d VALUES (1), (1)")
    event = concurrent(target, "CREATE UNIQUE INDEX CONCURRENTLY made ON public.d (n)")
    outcome = target.apply(event)
    assert outcome.status == "failed" and "could not create unique index" in str(outcome.message)
    assert one(target.dsn, VALID) is None
    do(target.dsn, "DELETE FROM public.d")
    assert target.apply(event).status == "applied"
    assert one(target.dsn, VALID) is True


def test_a_build_waits_for_old_transactions_up_to_an_end(target: Target) -> None:
    event = concurrent(target, BUILD)
    with in_transaction(target.dsn, "INSERT INTO public.t VALUES (1)") as old:
        with pytest.raises(Retry, match=f"session {old.info.backend_pid}"):
            target.apply(event, retry_for="1s")
        assert target.attempts(event) == ["put off"]
        # The old transaction keeps us from dropping what there is of the index; the next run goes on from there.
        assert (target.status(event), one(target.dsn, VALID)) == ("applying", False)
        with Underway(lambda: target.apply(event, retry_for="60s")) as applying:
            wait_for(lambda: one(target.dsn, WAITING) == 1, applying)
            do(target.dsn, "INSERT INTO public.t VALUES (2)")  # nobody waits behind it
            old.commit()
            assert applying.finish().status == "applied"
    assert one(target.dsn, VALID) is True


def test_a_build_that_is_tried_once_waits_as_long_as_any_try(target: Target) -> None:
    event = concurrent(target, BUILD)
    with in_transaction(target.dsn, "INSERT INTO public.t VALUES (1)") as writer:
        with Underway(lambda: target.apply(event, retry_for="0s", lock_timeout="60s")) as applying:
            wait_for(lambda: one(target.dsn, WAITING) == 1, applying)
            writer.commit()
            assert applying.finish().status == "applied"


KILLED = """
import sys
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.apply.captured_events import apply_captured
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.dump_events import EventRow
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.lease import Fence, Lease
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
dsn, event = sys.argv[1], int(sys.argv[2])
with Lease(dsn, "shop", "replay", None) as lease:
    lease.take()
    session = lambda: connect(dsn, purpose="stage", pipeline="shop", token=lease.token)
    conn = session()
    pipeline = load_pipeline({
        "pipeline": "shop", "source": {"conn_id": "elsewhere"}, "target": {"dsn": "${PGDDL_TEST_DSN}"},
        "tables": {"include": ["public.*"]},
    })
    journal = DdlJournal(conn, "shop", 1)
    apply_captured(
        conn, session, pipeline, journal, lease.fence, journal.row(event), trusted_on_source=lambda _: True,
        powers_on_source=lambda _: (),
    )
"""


def killed_while(target: Target, event: int, condition: Callable[[], object]) -> None:
    """A run in a process of its own, ended with kill -9 once this is so; its sessions end as ours notice it."""
    target.lease.close()
    with subprocess.Popen([sys.executable, "-c", KILLED, target.dsn, str(event)], env=dict(os.environ)) as process:
        try:
            wait_for(lambda: process.poll() is not None or condition())
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)
    ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgddl:shop:%stage'"
    wait_for(lambda: one(target.dsn, f"{ours} AND pid <> {target.conn.info.backend_pid}") == 0)


def test_killed_while_it_builds_an_index_the_next_run_begins_again(target: Target) -> None:
    event = concurrent(target, BUILD)
    with in_transaction(target.dsn, "INSERT INTO public.t VALUES (1)"):
        killed_while(target, event, lambda: one(target.dsn, VALID) is False)
    assert (target.status(event), one(target.dsn, VALID)) == ("applying", False)
    target.start_run()
    assert target.lease.terminate_stale(target.conn) >= 0
    assert target.apply(event).status == "applied"
    assert one(target.dsn, VALID) is True
    assert target.attempts(event) == ["interrupted", "applied"]


@pytest.mark.parametrize(
    ("statement", "left"),
    [(BUILD, BUILD), ("DROP INDEX CONCURRENTLY public.there", "DROP INDEX public.there"),
     ("ALTER TABLE public.parts DETACH PARTITION public.part CONCURRENTLY",
      "ALTER TABLE public.parts DETACH PARTITION public.part")],
)  # fmt: skip
def test_done_but_not_noted_is_noted(target: Target, statement: str, left: str) -> None:
    do(target.dsn, "CREATE INDEX there ON public.t (id)", "CREATE TABLE public.parts (id int) PARTITION BY RANGE (id)",
       "CREATE TABLE public.part PARTITION OF public.parts FOR VALUES FROM (0) TO (9)")  # fmt: skip
    event = concurrent(target, statement)
    assert target.journal.start_attempt(event) is not None
    do(target.dsn, left)
    target.die()
    target.start_run()
    assert target.apply(event).status == "applied"
    assert target.attempts(event) == ["interrupted", "applied"]
    done_by_somebody = concurrent(target, statement)
    assert target.apply(done_by_somebody).status == "failed"


def test_a_detachment_that_is_pending_is_gone_through_with(target: Target) -> None:
    do(target.dsn, "CREATE TABLE public.parts (id int) PARTITION BY RANGE (id)",
       "CREATE TABLE public.part PARTITION OF public.parts FOR VALUES FROM (0) TO (9)")  # fmt: skip
    event = concurrent(target, "ALTER TABLE public.parts DETACH PARTITION public.part CONCURRENTLY")
    pending = "SELECT count(*) FROM pg_inherits WHERE inhdetachpending"
    with in_transaction(target.dsn, "SELECT * FROM public.parts"):
        killed_while(target, event, lambda: one(target.dsn, pending) == 1)
    assert target.status(event) == "applying"
    target.start_run()
    assert target.apply(event).status == "applied"
    assert one(target.dsn, "SELECT count(*) FROM pg_inherits WHERE inhrelid = 'public.part'::regclass") == 0


def test_killed_while_it_waits_for_a_lock_nothing_of_it_stays(target: Target) -> None:
    event = target.record("ALTER TABLE public.t ADD COLUMN a int")
    with in_transaction(target.dsn, "SELECT * FROM public.t"):
        killed_while(target, event, lambda: waits(target.dsn, "AccessExclusiveLock", "public.t"))
        assert not waits(target.dsn, "AccessExclusiveLock", "public.t")
    assert (target.status(event), target.columns()) == ("applying", ["id"])
    target.start_run()
    assert target.apply(event).status == "applied"
    assert target.attempts(event) == ["interrupted", "applied"]


def test_what_an_ended_reindex_left_is_cleared_away(target: Target) -> None:
    do(target.dsn, "CREATE INDEX made ON public.t (id)")
    event = concurrent(target, "REINDEX TABLE CONCURRENTLY public.t")
    invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
    with in_transaction(target.dsn, "INSERT INTO public.t VALUES (1)"):
        killed_while(target, event, lambda: one(target.dsn, invalid) > 0)
    target.start_run()
    assert target.apply(event).status == "applied"
    assert one(target.dsn, invalid) == 0
    assert one(target.dsn, "SELECT count(*) FROM pg_index WHERE indrelid = 'public.t'::regclass") == 2


def test_what_could_not_be_followed_up_is_not_begun(target: Target) -> None:
    event = target.record("DROP SUBSCRIPTION s", concurrently=True)
    outcome = target.apply(event)
    assert outcome.status == "failed" and "refuses a transaction" in str(outcome.message)


@pytest.mark.parametrize("statement", ["CREATE SCHEMA public", "ALTER TABLE public.nowhere ADD a int"])
def test_an_older_run_records_no_failure_of_a_dumps_statement(target: Target, statement: str) -> None:
    journal = Journal(target.conn, "shop")
    event_id = one(
        target.dsn,
        "INSERT INTO pgddl.ddl_events (pipeline, run, seq, phase, event, statement, status)"
        " VALUES ('shop', 1, 1, 'create', '{}', %s, 'pending') RETURNING id",
        statement,
    )
    old, event = target.lease, EventRow(event_id, None, {"tag": "CREATE", "kind": "table"}, statement)
    old.close()
    target.start_run()
    with pytest.raises(Fenced):
        apply_events(journal.conn, "shop", old.fence, [event], ())
    assert target.status(event_id) == "pending"
