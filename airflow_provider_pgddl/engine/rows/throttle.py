"""Throttling: before each chunk and each window of replay, whether the source has enough to do already."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.errors import Retry, StageFailed, from_postgres
from airflow_provider_pgddl.engine.journal.control import Hold
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

if TYPE_CHECKING:
    from airflow_provider_pgddl.engine.pipeline.model import Pipeline

_Q = queries("throttle")
QUERY_TIMEOUT = 5  # seconds for the user's query: it is asked before every chunk


@dataclass(frozen=True, slots=True)
class Limits:
    """`backfill.throttle`, as it travels to workers; `max_replica_lag` in seconds, None: no limit."""

    max_replica_lag: float | None
    max_active_backends: int | None
    query: str | None


def limits(pipeline: Pipeline) -> Limits:
    """What the pipeline file asks for."""
    throttle = pipeline.backfill.throttle
    return Limits(throttle.max_replica_lag, throttle.max_active_backends, throttle.query)


class Throttling:
    """Looks at the source over one session, which must not be in a transaction. One object for one run or worker: it
    remembers where replicas were at its last look."""

    def __init__(self, source: Session, limits: Limits, clock: Callable[[], float] = time.monotonic):
        self._source, self._limits, self._clock = source, limits, clock
        self._may_look = False
        self._stalled: dict[int, tuple[str | None, float]] = {}  # a walsender's pid → (its LSN, since when)

    def look(self) -> Hold | None:
        """The first limit that is exceeded; None if none is.

        StageFailed where the role may not see what the limits are about, or where the user's query fails or does not
        answer with a boolean; Retry where it takes too long."""
        limits = self._limits
        if limits.max_replica_lag is not None:
            self._require_stats("max_replica_lag")
            name, lag = max(self._lags(), key=lambda one: one[1], default=("", 0.0))
            if lag > limits.max_replica_lag:
                return Hold(
                    "max_replica_lag",
                    f"throttled: replica {name} is {lag:.1f} s behind "
                    f"(backfill.throttle.max_replica_lag: {limits.max_replica_lag:g} s)",
                )
        if limits.max_active_backends is not None:
            self._require_stats("max_active_backends")
            row = self._source.execute(_Q["active_backends"]).fetchone()
            if row and row[0] > limits.max_active_backends:
                return Hold(
                    "max_active_backends",
                    f"throttled: {row[0]} sessions are active on the source "
                    f"(backfill.throttle.max_active_backends: {limits.max_active_backends})",
                )
        if limits.query is not None and self._asked(limits.query):
            return Hold("query", "throttled: backfill.throttle.query says so")
        return None

    def _lags(self) -> list[tuple[str, float]]:
        """(name, seconds behind) of each replica. The server reports a lag only with WAL that has been applied, so one
        that applies nothing would keep its last small lag for ever: it is at least as late as we have seen it stand."""
        now, found, stalled = self._clock(), [], dict[int, tuple[str | None, float]]()
        for pid, name, reported, lsn, behind in self._source.execute(_Q["replicas"]):
            since = now
            if behind:
                was = self._stalled.get(pid)
                since = was[1] if was and was[0] == lsn else now
                stalled[pid] = (lsn, since)
            found.append((name, max(reported, now - since)))
        self._stalled = stalled
        return found

    def _require_stats(self, key: str) -> None:
        """Else the views show less than there is, and nothing would ever be throttled."""
        if self._may_look:
            return
        row = self._source.execute(_Q["may_look"]).fetchone()
        assert row is not None
        if not row[0]:
            grant = sql.SQL("GRANT pg_read_all_stats TO {};").format(sql.Identifier(row[1]))
            raise StageFailed(
                f"backfill.throttle.{key}: role {row[1]} may not see what others do on the source",
                todo="grant it that, or take the key out of the pipeline file",
                sql=grant.as_string(self._source),
            )
        self._may_look = True

    def _asked(self, query: str) -> bool:
        key = "backfill.throttle.query"
        try:
            with self._source.transaction():
                self._source.execute("SET TRANSACTION READ ONLY")
                self._source.execute(
                    sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(f"{QUERY_TIMEOUT}s"))
                )
                # Results in binary make psycopg send one statement as one: a COMMIT in it would end READ ONLY.
                cursor = self._source.execute(query.encode(), binary=True)
                row = cursor.fetchone() if cursor.description else ()
        except pg.QueryCanceled:
            raise Retry(
                f"{key} took longer than {QUERY_TIMEOUT} s", todo="make it cheaper: it is asked before every chunk"
            ) from None
        except psycopg.Error as error:
            raise from_postgres(error, doing=f"asking {key}") from None
        answer = row[0] if row else row
        if answer is not None and answer is not True and answer is not False:
            raise StageFailed(
                f"{key} must answer with a boolean in its first column",
                todo="let it say true while the pipeline is to wait, as in SELECT count(*) > 5 FROM jobs.queue",
            )
        return answer is True
