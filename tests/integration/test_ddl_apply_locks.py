"""Locks that captured DDL waits for: how long, who is in the way, and who is signalled."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from airflow_provider_pgddl.engine.apply.blockers import Blockers
from airflow_provider_pgddl.engine.errors import Retry
from airflow_provider_pgddl.engine.server.connect import connect
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.applied_ddl import WEAK, Target, opened
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits


@pytest.fixture(params=matrix("pg16", "pg18"))
def target(request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    with opened(database(request.getfixturevalue(request.param)), monkeypatch) as target:
        yield target


def test_a_lock_is_waited_for_briefly_and_nobody_queues_behind_us_for_long(target: Target) -> None:
    event = target.record("ALTER TABLE public.t ADD COLUMN a int")
    with in_transaction(target.dsn, "LOCK public.t IN ACCESS SHARE MODE") as blocker:
        with Underway(lambda: target.apply(event, lock_timeout="300ms", retry_for="60s")) as applying:
            wait_for(lambda: waits(target.dsn, "AccessExclusiveLock", "public.t"), applying)
            # It comes after us, and is through while the blocker is still there.
            do(target.dsn, "SET lock_timeout = '20s'", "SELECT * FROM public.t")
            assert target.status(event) == "applying"
            blocker.commit()
            assert applying.finish().status == "applied"
    assert target.attempts(event) == ["applied"]


def test_an_attempt_has_an_end_and_says_who_was_in_the_way(target: Target) -> None:
    event = target.record("DROP TABLE public.t", tag="DROP TABLE")
    with in_transaction(target.dsn, "SET application_name = 'nightly report'", "SELECT * FROM public.t") as blocker:
        with pytest.raises(Retry, match="could not be applied within 1 s") as caught:
            target.apply(event, lock_timeout="500ms", retry_for="1s")
        assert f"session {blocker.info.backend_pid} (postgres, nightly report, idle in transaction" in str(caught.value)
    assert (target.status(event), target.attempts(event)) == ("pending", ["put off"])
    assert target.journal.killed() == []
    assert target.apply(event).status == "applied"
    assert target.attempts(event) == ["put off", "applied"]


def test_a_prepared_transaction_is_named(target: Target) -> None:
    if one(target.dsn, "SHOW max_prepared_transactions") == "0":
        pytest.skip("the cluster has no prepared transactions")
    do(target.dsn, "BEGIN; LOCK public.t; PREPARE TRANSACTION 'half done'")
    event = target.record("ALTER TABLE public.t ADD COLUMN a int")
    with pytest.raises(Retry, match="prepared transaction 'half done', which no signal ends"):
        target.apply(event, lock_timeout="500ms", retry_for="1s", signal_blockers="terminate")
    do(target.dsn, "ROLLBACK PREPARED 'half done'")
    assert target.apply(event).status == "applied"


SIGNALS = {"lock_timeout": "300ms", "retry_for": "20s"}


def signalled(target: Target) -> list[tuple[int, str, bool | None]]:
    return [(k["pid"], k["signal"], k["succeeded"]) for k in target.journal.killed()]


def test_a_running_statement_is_cancelled(target: Target) -> None:
    event = target.record("ALTER TABLE public.t ADD COLUMN a int")
    with in_transaction(target.dsn, "SET application_name = 'report'", "LOCK public.t") as blocker:
        with Underway(lambda: blocker.execute("SELECT pg_sleep(120)")) as sleeping:
            outcome = target.apply(event, signal_blockers="cancel", **SIGNALS)
            sleeping.fails(psycopg.errors.QueryCanceled)
        assert outcome.status == "applied"
        assert signalled(target) == [(blocker.info.backend_pid, "cancel", True)]
    (killed,) = target.journal.show(event).killed
    assert (killed["usename"], killed["application_name"], killed["state"]) == ("postgres", "report", "active")
    assert killed["query"] == "SELECT pg_sleep(120)" and killed["xact_start"] and killed["client_addr"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("mode", "sent"),
    [("terminate", ["terminate"]), ("cancel_then_terminate", ["cancel", "terminate"])],
)
def test_an_idle_transaction_is_terminated(target: Target, mode: str, sent: list[str]) -> None:
    event = target.record("DROP TABLE public.t", tag="DROP TABLE")
    with psycopg.connect(target.dsn) as blocker:
        blocker.execute("SELECT * FROM public.t")
        assert target.apply(event, signal_blockers=mode, **SIGNALS).status == "applied"
        assert signalled(target) == [(blocker.info.backend_pid, each, True) for each in sent]
        with pytest.raises(psycopg.OperationalError):
            blocker.execute("SELECT 1")
    assert target.journal.mark_reported() == len(sent)
    assert target.journal.killed(unreported=True) == []
    assert all(k["reported"] and k["reported_at"] for k in target.journal.killed())


def test_cancelling_an_idle_transaction_does_not_help_and_is_done_once(target: Target) -> None:
    event = target.record("ALTER TABLE public.t ADD COLUMN a int")
    with in_transaction(target.dsn, "SELECT * FROM public.t") as blocker:
        with pytest.raises(Retry):
            target.apply(event, signal_blockers="cancel", lock_timeout="200ms", retry_for="4s")
        assert signalled(target) == [(blocker.info.backend_pid, "cancel", True)]


@pytest.mark.parametrize("statement", ["ALTER TABLE public.parts ADD COLUMN a int", "DROP TABLE public.parts"])
def test_whoever_holds_a_partition_is_in_the_way_too(target: Target, statement: str) -> None:
    do(target.dsn, "CREATE TABLE public.parts (id int) PARTITION BY RANGE (id)",
       "CREATE TABLE public.part PARTITION OF public.parts FOR VALUES FROM (0) TO (9)")  # fmt: skip
    event = target.record(statement)
    with psycopg.connect(target.dsn) as blocker:
        blocker.execute("SELECT * FROM public.part")
        assert target.apply(event, signal_blockers="terminate", **SIGNALS).status == "applied"
        assert signalled(target) == [(blocker.info.backend_pid, "terminate", True)]
        blocker.close()


def test_our_own_sessions_are_waited_for(target: Target) -> None:
    event = target.record("ALTER TABLE public.t ADD COLUMN a int")
    with target.session("worker") as worker, worker.transaction():
        worker.execute("SELECT * FROM public.t")
        with pytest.raises(Retry, match="pgddl:shop"):
            target.apply(event, signal_blockers="terminate", lock_timeout="300ms", retry_for="1s")
    assert signalled(target) == []


def test_without_the_right_to_signal_that_is_recorded(target: Target) -> None:
    event = target.record("ALTER TABLE public.t ADD COLUMN a int")
    do(target.dsn, f"ALTER ROLE {WEAK} LOGIN PASSWORD 'weak'", f"ALTER TABLE public.t OWNER TO {WEAK}",
       f"GRANT USAGE ON SCHEMA pgddl TO {WEAK}", f"GRANT ALL ON ALL TABLES IN SCHEMA pgddl TO {WEAK}")  # fmt: skip
    weak = psycopg.conninfo.make_conninfo(target.dsn, user=WEAK, password="weak")
    blockers = Blockers(lambda: connect(weak, purpose="watch"), "shop", event, "terminate", 0.1)
    with connect(weak, purpose="test") as waiter, in_transaction(target.dsn, "SELECT * FROM public.t") as blocker:
        waiter.execute("SET lock_timeout = '2s'")
        with pytest.raises(psycopg.errors.LockNotAvailable), blockers.watch(waiter):
            waiter.execute("ALTER TABLE public.t ADD COLUMN a int")
        assert signalled(target) == [(blocker.info.backend_pid, "terminate", False)]
        assert "permission denied" in target.journal.killed()[0]["message"]
        blocker.execute("SELECT 1")


def test_not_lock_safe_is_one_long_wait(target: Target) -> None:
    event = target.record("ALTER TABLE public.t ADD COLUMN a int")
    with in_transaction(target.dsn, "SELECT * FROM public.t") as blocker:
        with Underway(lambda: target.apply(event, lock_safe=False, lock_timeout="1ms", retry_for="60s")) as applying:
            wait_for(lambda: waits(target.dsn, "AccessExclusiveLock", "public.t"), applying)
            since = "SELECT waitstart FROM pg_locks WHERE NOT granted AND relation = 'public.t'::regclass"
            wait_for(lambda: one(target.dsn, since) is not None, applying)
            first = one(target.dsn, since)
            wait_for(lambda: one(target.dsn, "SELECT clock_timestamp() - %s > interval '1 s'", first), applying)
            assert one(target.dsn, since) == first
            blocker.commit()
            assert applying.finish().status == "applied"
