"""One table of errors: what is final, what a retry may cure, and how it reads."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.engine import errors


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
