"""Captured DDL that refuses a transaction, such as CREATE INDEX CONCURRENTLY: done once, whatever ends us."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_pgddl.engine.apply.captured_events import EventOutcome
from airflow_provider_pgddl.engine.errors import Retry
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.applied_ddl import BUILD, OWNER, VALID, Target, concurrent, killed_while, opened
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for


@pytest.fixture(params=matrix("pg16", "pg18"))
def target(request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    with opened(database(request.getfixturevalue(request.param)), monkeypatch) as target:
        yield target


WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'virtualxid'"


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
    made = {
        "classid": "pg_class", "objid": 1, "objsubid": 0, "tag": "CREATE INDEX", "type": "index", "schema": "closed",
        "name": "made", "identity": "public.made", "table": None, "definition": None, "owner": OWNER,
    }  # fmt: skip
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
