"""Captured DDL on the target: in one transaction with its bookkeeping, and done once, whatever ends us meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

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
from tests.integration.applied_ddl import Target, killed_while, opened, settings
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits


@pytest.fixture(params=matrix("pg16", "pg18"))
def target(request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    with opened(database(request.getfixturevalue(request.param)), monkeypatch) as target:
        yield target


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


def test_what_is_not_on_the_target_gives_way_to_its_default(target: Target) -> None:
    event = target.record("CREATE TABLE public.u (n int)", settings={"default_tablespace": "fast",
                          "default_table_access_method": "columnar"})  # fmt: skip
    assert target.apply(event).status == "applied"
    notes = target.journal.row(event).notes
    assert "default_tablespace fast is not on the target: the default was taken" in notes
    assert "default_table_access_method columnar is not on the target: the default was taken" in notes


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


def test_killed_while_it_waits_for_a_lock_nothing_of_it_stays(target: Target) -> None:
    event = target.record("ALTER TABLE public.t ADD COLUMN a int")
    with in_transaction(target.dsn, "SELECT * FROM public.t"):
        killed_while(target, event, lambda: waits(target.dsn, "AccessExclusiveLock", "public.t"))
        assert not waits(target.dsn, "AccessExclusiveLock", "public.t")
    assert (target.status(event), target.columns()) == ("applying", ["id"])
    target.start_run()
    assert target.apply(event).status == "applied"
    assert target.attempts(event) == ["interrupted", "applied"]


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
