"""One table of errors: what is final, what a retry may cure, and how it reads."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.engine import errors
from airflow_provider_pgddl.engine.preflight.findings import Finding, refuse
from airflow_provider_pgddl.engine.server import connect, pg_dump


def test_an_error_says_what_where_and_what_to_do() -> None:
    error = errors.PreflightRefused("has no key", table="shop.log", todo="give it one", sql="ALTER TABLE …;\nANALYZE;")
    assert str(error) == "shop.log: has no key\n  to do: give it one\n  ALTER TABLE …;\n  ANALYZE;"
    assert error.to_json()["exit_code"] == 4


@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        (errors.StageFailed, 1, False),
        (errors.UsageError, 2, False),
        (errors.PipelineFileError, 2, False),
        (errors.PreflightRefused, 4, False),
        (errors.LockHeld, 5, True),
        (errors.Fenced, 5, True),
        (errors.Unreachable, 5, True),
    ],
)
def test_exit_codes_are_public(kind: type[errors.PgddlError], code: int, retryable: bool) -> None:
    error = kind("x")
    assert (error.exit_code, error.retryable) == (code, retryable)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (pg.DeadlockDetected("x"), errors.Retry),
        (pg.AdminShutdown("x"), errors.Retry),
        (pg.OutOfMemory("x"), errors.Retry),
        (pg.ProtocolViolation("query_wait_timeout"), errors.Retry),
        (pg.ProtocolViolation("server conn crashed?"), errors.Retry),
        (pg.ProtocolViolation("pgbouncer cannot connect to server"), errors.Retry),
        (pg.ProtocolViolation("insufficient data left in message"), errors.StageFailed),
        (pg.ProtocolViolation("prepared statement name is already in use"), errors.StageFailed),
        (pg.ConnectionFailure("x"), errors.Retry),
        (pg.IdleSessionTimeout("x"), errors.Retry),
        (pg.IdleInTransactionSessionTimeout("x"), errors.Retry),
        (pg.TransactionTimeout("x"), errors.Retry),
        (pg.DiskFull("x"), errors.StageFailed),
        (pg.InsufficientPrivilege("x"), errors.StageFailed),
        (pg.UniqueViolation("x"), errors.StageFailed),
        (pg.SyntaxError("x"), errors.StageFailed),
        (psycopg.OperationalError("server closed the connection"), errors.Unreachable),
    ],
)
def test_a_servers_error_becomes_one_of_ours(error: psycopg.Error, expected: type[errors.PgddlError]) -> None:
    ours = errors.from_postgres(error, doing="copying", table="shop.orders")
    assert type(ours) is expected
    assert ours.table == "shop.orders"
    assert ours.todo


@pytest.mark.parametrize(
    ("said", "kind", "todo"),
    [
        ('root certificate file "/x/root.crt" does not exist', errors.PgddlError, "sslrootcert"),
        ('FATAL:  role "x" does not exist', errors.PgddlError, "user or database"),
        ("FATAL:  sorry, too many clients already", errors.Unreachable, "more connections"),
        ('FATAL:  too many connections for role "x"', errors.Unreachable, "more connections"),
        ("FATAL:  remaining connection slots are reserved for roles", errors.Unreachable, "more connections"),
        ("FATAL:  no more connections allowed (max_client_conn)", errors.Unreachable, "more connections"),
        ("Connection refused", errors.Unreachable, "is up and reachable"),
    ],
)
def test_why_there_is_no_session_is_told_by_libpqs_words(said: str, kind: type[errors.PgddlError], todo: str) -> None:
    error = psycopg.OperationalError(f'connection to server at "db" (10.0.0.1), port 5432 failed: {said}')
    ours = connect._not_opened(error, "host=db")
    assert type(ours) is kind
    assert todo in str(ours.todo)


def test_a_dump_that_a_pooler_had_no_room_for_is_worth_a_retry() -> None:
    said = "pg_dump: error: connection to server at failed: FATAL:  no more connections allowed (max_client_conn)"
    assert pg_dump._failed(said, "shop").retryable


@pytest.mark.parametrize(
    "said",
    [
        "pg_dump: error: query failed: ERROR:  could not open relation with OID 16500\nDETAIL: …",
        "pg_dump: error: query failed: ERROR:  cache lookup failed for index 16500",
        "pg_dump: error: query failed: ERROR:  could not find tuple for trigger 16500",
    ],
)
def test_what_was_dropped_while_it_was_dumped_is_worth_a_retry(said: str) -> None:
    assert pg_dump._failed(said, "shop").retryable
    assert not pg_dump._failed("pg_dump: error: query failed: ERROR:  syntax error", "shop").retryable
    denied = "pg_dump: error: query failed: ERROR:  permission denied for table t\n"
    denied += "pg_dump: detail: Query was: LOCK TABLE public.t IN ACCESS SHARE MODE"
    assert not pg_dump._failed(denied, "shop").retryable


def test_a_refusal_says_what_is_so_at_its_time() -> None:
    finding = Finding("error", "rights", "source", "shop.orders", "is another's")
    for under_way in (False, True):
        with pytest.raises(errors.PreflightRefused) as refused:
            refuse([finding], under_way=under_way)
        text = str(refused.value)
        assert "is another's" in text
        assert ("nothing has been touched" in text, "pgddl check" in text) == (not under_way, not under_way)
