"""Every error that a user can meet, and what each means for a retry.

An error says what happened, to which table, and what to do, with the SQL to do it. The class decides the
exit code of a stage that failed and whether Airflow tries again (`retryable`). One that ended, and left tables out, has
the code of its result (`job.result.StageResult`); a command without a stage, that of its module (`cli_…`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
from psycopg import errors as pg

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BLOCKED = 3
EXIT_REFUSED = 4
EXIT_RETRY = 5


class PgddlError(Exception):
    """Base of all: `what` happened, to which `table`, what `todo`, with the `sql` to do it (all plain text)."""

    exit_code: ClassVar[int] = EXIT_FAILED

    def __init__(self, what: str, *, table: str | None = None, todo: str | None = None, sql: str | None = None):
        self.what, self.table, self.todo, self.sql = what, table, todo, sql
        super().__init__(what)

    @property
    def retryable(self) -> bool:
        """Whether the same job may well succeed when it is started again as it is."""
        return self.exit_code == EXIT_RETRY

    def __str__(self) -> str:
        lines = [f"{self.table}: {self.what}" if self.table else self.what]
        if self.todo:
            lines.append(f"  to do: {self.todo}")
        if self.sql:
            lines.extend(f"  {line}" for line in self.sql.splitlines())
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "error": type(self).__name__,
            "what": self.what,
            "table": self.table,
            "todo": self.todo,
            "sql": self.sql,
            "exit_code": self.exit_code,
            "retryable": self.retryable,
        }


class UsageError(PgddlError):
    """The call itself is wrong: an unknown table, a stage out of order, a changed key of a recorded pipeline."""

    exit_code = EXIT_USAGE


class NoConnection(UsageError):
    """Airflow knows no such connection. In a task that may be because it could not ask whoever knows it."""


class PipelineFileError(UsageError):
    """The pipeline file is wrong; `what` names the line."""


class PreflightRefused(PgddlError):
    """Found before it was begun: something that would end in loss or failure. What applications use is as it was."""

    exit_code = EXIT_REFUSED


class StageFailed(PgddlError):
    """A final failure: trying again as it is will not help."""


class LeftBehindTheWall(StageFailed):
    """Code of a role that is not trusted has left in our session what could have run with our rights."""


class SlotLost(StageFailed):
    """A slot or its publication was dropped, or the server has thrown away WAL that it needs: which rows changed is not
    known."""


class ReadBeyond(SlotLost):
    """A slot has let go of changes that no log has: the target was failed over to a state from before it had them, or
    somebody else has read the slot, or made it anew. `begins` is where it goes on."""

    def __init__(self, what: str, begins: str, todo: str) -> None:
        super().__init__(what, todo=todo)
        self.begins = begins


class CannotRebuild(PgddlError):
    """The metadata of captured DDL does not tell how to do it again; `what` says why. It becomes what is said of the
    event."""


class Cancelled(PgddlError):
    """A person has ended the run with `pgddl cancel`: nobody starts it again but a person."""


class Retry(PgddlError):
    """Worth trying again later, as it is."""

    exit_code = EXIT_RETRY


class TableChanged(Retry):
    """A table was dropped, renamed or altered between a look at it and the lock on it; a new look shows it as it is."""


class OwnerChanged(Retry):
    """A table is another role's than when the stage began."""


class Stopped(Retry):
    """The run was told to stop; what it had committed stays, the next run goes on from there."""


class LockHeld(Retry):
    """Another run of this pipeline (or table) is alive."""


class Fenced(Retry):
    """A newer run took over while this one was still working; nothing of this transaction was committed."""


class Unreachable(Retry):
    """A server does not answer."""


class GaveWay(Retry):
    """We let go of a table because somebody waited for it, or could not lock it in time."""


class Closed(Retry):
    """A table refuses writes for the cut-over of another pipeline: one that is done, or whose swap may yet fail."""


# What opens a server again that a pipeline's cut-over has closed.
OPEN = (
    "where applications are to come back to this server, `pgddl reset` {by} opens it; or, where that pipeline is gone, "
    'DROP TRIGGER "pgddl_fence_{by}" on its tables and their partitions'
)


class TookTooLong(GaveWay):
    """Work had not ended by its limit, and was cancelled."""


class Busy(GaveWay):
    """Others had what we asked for, a lock or a core: with less to do we would not have got it either."""


# --- what more than one place finds -----------------------------------------------------------------------------------


def about_whole_pipeline(stage: str) -> UsageError:
    return UsageError(f"{stage} is about the whole pipeline", todo="run it without --tables")


def not_of_pipeline(table: str) -> UsageError:
    return UsageError(f"{table} is not a table of this pipeline", todo="see `pgddl status`")


def no_such_exception(number: int) -> UsageError:
    return UsageError(f"there is no unresolved exception {number}", todo="see `pgddl ddl exceptions`")


def slot_of_others(name: str, whose: str) -> StageFailed:
    what = f"replication slot {name!r} is somebody else's{whose}"
    return StageFailed(what, todo="give this pipeline another name")


def no_logical_slot(error: psycopg.Error, instead: str) -> StageFailed:
    """`instead`: the setting of the file that takes none."""
    return StageFailed(
        f"a logical slot cannot be made: {error.diag.message_primary}",
        todo=f"set {instead}, or make the source fit for logical decoding and restart it",
        sql="ALTER SYSTEM SET wal_level = 'logical';",
    )


def slot_in_use(error: psycopg.Error) -> Retry:
    return Retry(str(error.diag.message_primary), todo="end that process, then run this again")


# By its name a relation is not found that was dropped, or renamed, or whose schema was.
NO_SUCH_RELATION = (pg.UndefinedTable, pg.InvalidSchemaName)


def gone_or_keyless(table: str) -> TableChanged:
    return TableChanged("was dropped or renamed, or has lost its key, just now", table=table, todo="run it again")


def copy_gone_meanwhile() -> GaveWay:
    return GaveWay("a copy was dropped or renamed just now", todo="nothing: this part is tried again")


# --- what a server says -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a server's error means for a run: worth a retry or not, and what a person does about it."""

    retryable: bool
    todo: str


# A server's word for it, or a pooler's, where libpq has none.
LOST = (
    pg.ConnectionException, pg.ConnectionDoesNotExist, pg.ConnectionFailure, pg.SqlclientUnableToEstablishSqlconnection,
    pg.SqlserverRejectedEstablishmentOfSqlconnection, pg.TransactionResolutionUnknown, pg.ProtocolViolation,
    pg.IdleSessionTimeout, pg.IdleInTransactionSessionTimeout, pg.TransactionTimeout,
)  # fmt: skip

# Whatever PgBouncer says to a client it calls a violation of the protocol: of that, what it says when it has lost the
# server, or has none to give. From a server itself it is a mistake of ours, which no retry mends.
POOLERS_WORDS = (
    "query_wait_timeout", "server conn crashed", "server closed", "server disconnected", "server_lifetime",
    "server idle timeout", "server login has been failing", "server_login_retry", "cannot connect to server",
    "connect failed", "connect timeout", "obsolete connection", "database configuration changed", "client_idle_timeout",
    "idle transaction timeout", "idle_transaction_timeout", "query timeout", "query_timeout", "shutting down",
    "shutdown", "no more connections allowed",
)  # fmt: skip

# Looked up by class, first match wins; the one table that tells retryable errors from final ones.
REMEDIES: tuple[tuple[type[psycopg.Error], Remedy], ...] = (
    (pg.InvalidPassword, Remedy(False, "correct the password of this connection")),
    (pg.InvalidAuthorizationSpecification, Remedy(False, "correct user, password or pg_hba.conf for this connection")),
    (pg.InvalidCatalogName, Remedy(False, "correct the database name of this connection")),
    (pg.InsufficientPrivilege, Remedy(False, "grant the missing right, then run it again")),
    (pg.ReadOnlySqlTransaction, Remedy(True, "the server is read-only: point the connection at the primary")),
    (pg.LockNotAvailable, Remedy(True, "somebody holds the table; the stage tries again")),
    (pg.DeadlockDetected, Remedy(True, "the stage tries again")),
    (pg.SerializationFailure, Remedy(True, "the stage tries again")),
    (pg.DiskFull, Remedy(False, "make room on the server's disk, then run the stage again")),
    (pg.TooManyConnections, Remedy(True, "lower backfill.workers or raise max_connections")),
    (pg.OutOfMemory, Remedy(True, "lower backfill.workers, or give the server more memory; the stage tries again")),
    *((kind, Remedy(True, "the connection was lost; the stage tries again")) for kind in LOST),
    (pg.AdminShutdown, Remedy(True, "the connection was ended by the server; the stage tries again")),
    (pg.CrashShutdown, Remedy(True, "the server restarted; the stage tries again")),
    (pg.CannotConnectNow, Remedy(True, "the server is starting or stopping; the stage tries again")),
    (pg.QueryCanceled, Remedy(True, "the statement was cancelled; the stage tries again")),
    (pg.ForeignKeyViolation, Remedy(False, "correct the rows that violate it, or drop the key; then run it again")),
    (pg.UniqueViolation, Remedy(False, "the copy holds a row that the source does not: `pgddl reset` this table")),
)


# The server looks some facts up as they are now, whatever snapshot asks.
GONE_MEANWHILE = ("cache lookup failed", "could not open relation with OID", "could not find tuple")


def gone_meanwhile(error: Exception) -> bool:
    """Whether a look at the catalog met something that was dropped while it looked; a new snapshot does not show it."""
    return isinstance(error, pg.InternalError_) and any(words in str(error) for words in GONE_MEANWHILE)


def remedy_for(error: psycopg.Error) -> Remedy | None:
    """The remedy for a server's or connection's error; None where a retry is not known to help."""
    if isinstance(error, pg.OutOfMemory) and "max_locks_per_transaction" in (error.diag.message_hint or ""):
        return Remedy(False, "raise max_locks_per_transaction, and restart the server; then run the stage again")
    if isinstance(error, pg.ProtocolViolation) and not any(words in str(error) for words in POOLERS_WORDS):
        return None
    for kind, remedy in REMEDIES:
        if isinstance(error, kind):
            return remedy
    if gone_meanwhile(error):
        return Remedy(True, "an object was dropped while the catalog was read; the stage tries again")
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return Remedy(True, "check that the server is up and reachable; the stage tries again")
    return None


def from_postgres(error: psycopg.Error, *, doing: str, table: str | None = None) -> PgddlError:
    """A psycopg error as one of ours. `doing` completes "while …"; values of rows never enter the message."""
    remedy = remedy_for(error)
    primary = error.diag.message_primary or str(error).strip().splitlines()[0]
    what = f"{primary} (while {doing})"
    if remedy is None:
        return StageFailed(what, table=table, todo="see the server's log for the whole statement")
    kind = Retry if remedy.retryable else StageFailed
    if error.sqlstate is None:
        kind = Unreachable
    return kind(what, table=table, todo=remedy.todo)
