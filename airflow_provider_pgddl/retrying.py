"""What Airflow is told of a failure: that a retry may cure it and when, or that none will."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pgddl.engine.errors import NoConnection, PgddlError

try:
    from airflow.sdk import RetryDecision, RetryPolicy
except ImportError:  # before Airflow 3.3
    RetryPolicy = None

# What passes by itself within seconds: somebody else's lock, a run that has just been killed and whose lease ends.
PASSES_SOON = frozenset(("Busy", "Fenced", "GaveWay", "LockHeld", "Stopped"))
SOON = timedelta(seconds=5)


class WorthRetrying(AirflowException):  # type: ignore[misc]
    """A failure that a retry may cure; `cause` is the name of our error's class."""

    def __init__(self, message: str, cause: str):
        super().__init__(message)
        self.cause = cause


def give_up(error: PgddlError) -> NoReturn:
    """Raises what Airflow takes for worth a retry, or for final. Nothing is chained: a trace may show values."""
    fail(str(error), type(error).__name__, retryable=is_worth_retrying(error))


def is_worth_retrying(error: PgddlError) -> bool:
    """In Airflow: a connection that it does not know may be one that it could not ask for, as when a secrets backend
    is away."""
    return error.retryable or isinstance(error, NoConnection)


def fail(message: str, cause: str, *, retryable: bool) -> NoReturn:
    """The same, for an error that has been recorded."""
    if retryable:
        raise WorthRetrying(message, cause) from None
    raise AirflowFailException(message) from None


def is_first_try(try_number: int, max_tries: int, retries: int) -> bool:
    """Since the task was last cleared."""
    return try_number == max_tries - retries + 1


def policy(given: Any) -> Mapping[str, Any]:
    """The argument `retry_policy` of an operator: the one that it was given, or ours; none before Airflow 3.3."""
    if RetryPolicy is None:
        return {}
    return {"retry_policy": PgddlRetryPolicy() if given is None else given}


if RetryPolicy is not None:

    class PgddlRetryPolicy(RetryPolicy):  # type: ignore[misc]
        """The first retry of what passes soon comes soon, every other after the task's own delay; each says why."""

        def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> Any:
            if not isinstance(exception, WorthRetrying):
                return RetryDecision.default()
            why = str(exception).partition("\n")[0]
            retries = context["task"].retries if context else max_tries
            first = is_first_try(try_number, max_tries, retries)
            delay = SOON if first and exception.cause in PASSES_SOON else None
            return RetryDecision.retry(delay, f"{exception.cause}: {why}")
