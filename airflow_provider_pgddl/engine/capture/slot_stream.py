"""A logical slot over the streaming replication protocol: transactions in the order of their commits, from where the
slot is confirmed to.

Which of them belong to a window, C1 says: take the window's snapshot T, then a `marker` E; of what comes before E a
transaction belongs to the window if and only if T shows it. `confirm` no further than the first one that T does not
show, else E: a commit is in the log, and decoded, before its transaction becomes visible.

See "Streaming Replication Protocol" in Postgres' documentation."""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

import psycopg
from psycopg import errors as pg
from psycopg import pq, sql

from airflow_provider_pgddl.engine.capture import timeline
from airflow_provider_pgddl.engine.capture.pgoutput import RelationMessage, parse_lsn
from airflow_provider_pgddl.engine.errors import (
    SlotLost,
    Unreachable,
    from_postgres,
    slot_in_use,
    slot_of_others,
)
from airflow_provider_pgddl.engine.server.connect import Session, connect_replication
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("slot_stream")

FAILOVER = 170_000  # the first version whose slots standbys keep in step
SENDER_TIMEOUT = 300.0
"""Seconds after which the server ends a stream that has not answered: nobody may leave one alone for longer between two
calls. Not off: a server that shuts down waits for its streams."""
SILENCE = 2 * SENDER_TIMEOUT  # seconds; the server asks whether we are there after half of its timeout
RELEASE_WAIT = 5.0  # seconds; a server process that was just ended still holds its slot
CLOSE_WAIT = 5.0  # seconds for the server to end the stream by itself

_DATA = 25  # bytes of an XLogData message before what the plugin wrote: 'w', start, end, time
_KEEPALIVE = struct.Struct("!cQq?")  # 'k', up to where everything was sent, time, whether an answer is asked for
_STATUS = struct.Struct("!cQQQq?")  # 'r', written, flushed, applied, time, whether an answer is asked for
_TODO = "the tables that it captured have to be copied again: `pgddl reset` them, or set on_slot_lost"
_W, _K = b"wk"
_ROWS = frozenset(b"IUD")  # what is neither the beginning nor the end of a transaction
_B = b"B"[0]
_BEGIN = struct.Struct("!xQ")  # the beginning of pgoutput's 'B': LSN of the commit record
_POSTGRES_EPOCH = 946_684_800  # 2000-01-01, seconds


def create_slot(source: Session, name: str, *, failover: bool) -> None:
    """`failover`: standbys keep it in step, where the server can have that; where it cannot, preflight has said so."""
    in_step = failover and source.info.server_version >= FAILOVER
    source.execute(queries("slot_log")["create_failover_slot" if in_step else "create_slot"], [name])


def marker(session: Session) -> int:
    """Writes and flushes a message to the log, and returns its LSN E: whatever a snapshot taken before shows has its
    commit below E. `session` is not in a transaction."""
    if session.info.transaction_status != pq.TransactionStatus.IDLE:
        raise AssertionError("a marker must be committed at once")
    row = session.execute(_Q["marker"]).fetchone()
    assert row is not None
    return parse_lsn(row[0])


class SlotStream:
    """One connection to a slot of plugin pgoutput and its publication, as a context manager.

    While it is open nobody else can read the slot. Every call raises Retry or Unreachable where the stream was ended
    or the server is gone, and SlotLost where the slot cannot be read any more; a new stream starts from what was
    confirmed.
    """

    def __init__(self, dsn: str, slot: str, publication: str, *, pipeline: str = "", token: int = 0) -> None:
        self._slot, self._publication = slot, publication
        self._where = dsn, pipeline, token
        self._last = b""  # of what was yielded, with what stands before it
        self._confirmed = 0
        self._sent = 0  # the server has sent whatever committed below
        self._held: bytes | None = None  # a Begin at or behind the last `upto`
        self._skipped = False
        self.relations = dict[int, RelationMessage]()
        """What it has said of relations so far, by oid, kept by who decodes it: it says so once."""

    def __enter__(self) -> Self:
        dsn, pipeline, token = self._where
        self._conn = connect_replication(dsn, purpose="stream", pipeline=pipeline, token=token)
        self._conn.add_notice_handler(self._notice)
        self._pgconn = self._conn.pgconn
        try:
            self.timeline = timeline.current(self._conn)
            self._conn.execute(_Q["sender_timeout"], [str(int(SENDER_TIMEOUT * 1000))])
            self._start()
        except psycopg.Error as error:
            self._conn.close()
            raise from_postgres(error, doing=f"opening replication slot {self._slot!r}") from None
        except BaseException:
            self._conn.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            # Only then has the server read our last status, and let go of the slot. After an error it may still have
            # much to say that nobody wants to hear.
            with suppress(psycopg.Error):
                self._finish()
        self._conn.close()

    def messages(self, upto: int) -> Iterator[bytes]:
        """The messages of every transaction whose commit record begins below LSN `upto`, which the server has flushed
        or will; waits for what it has not sent yet.

        The next call goes on where this one ended: what was yielded comes again only on a new stream. A caller that
        leaves off in the middle has to close the stream.
        """
        if self._held is not None:
            if _commit_lsn(self._held) >= upto:
                return
            held, self._held = self._held, None
            yield held
        read = self._pgconn.get_copy_data
        try:
            while self._sent < upto:
                size, view = read(1)
                data = bytes(view)  # of which parts are had for less than of a memoryview
                if size > _DATA and data[_DATA] in _ROWS and data[0] == _W:
                    self._last = data
                    yield data[_DATA:]  # most of all; whether rows were skipped, their transaction's end asks
                    continue
                if self._skipped:
                    raise self._unpublished()
                if size == 0:
                    self._receive()
                elif size < 0:
                    raise self._ended()
                elif data[0] == _W:
                    message = data[_DATA:]
                    # Transactions come in the order of their commits, so nothing below is missing.
                    if message[0] == _B and _commit_lsn(message) >= upto:
                        self._held = message
                        return
                    self._last = data
                    yield message
                elif data[0] == _K:
                    self._keep_alive(data)
        except pg.UndefinedObject:
            raise self._unpublished() from None
        except psycopg.Error as error:
            raise from_postgres(error, doing=f"reading replication slot {self._slot!r}") from None

    @property
    def at(self) -> int:
        """Where the message that was yielded last stands in the WAL."""
        return int.from_bytes(self._last[1:9])

    def confirm(self, lsn: int) -> None:
        """Lets the source forget transactions whose commit record begins below `lsn`: what the target has committed. A
        new stream may yield some of them again all the same, for the server writes this down now and then."""
        if lsn <= self._confirmed:
            return  # some servers would move the slot back
        try:
            self._status(flushed=lsn)
            self._status()
        except psycopg.Error as error:
            raise from_postgres(error, doing=f"confirming replication slot {self._slot!r}") from None
        self._confirmed = lsn

    def _start(self) -> None:
        statement = sql.SQL(_Q["start"]).format(
            slot=sql.Identifier(self._slot),
            publications=sql.Literal(sql.Identifier(self._publication).as_string()),
        )
        deadline = time.monotonic() + RELEASE_WAIT
        while True:
            self._look()
            result = self._pgconn.exec_(statement.as_bytes(self._conn))
            if result.status == pq.ExecStatus.COPY_BOTH:
                return
            error = pg.error_from_result(result)
            if not isinstance(error, pg.ObjectInUse):
                self._look()  # it may have been lost since
                raise error
            if time.monotonic() > deadline:
                raise slot_in_use(error)
            time.sleep(0.05)

    def _look(self) -> None:
        """Refuses a slot that cannot be read, and learns where it is confirmed to."""
        row = self._conn.execute(_Q["slot"], [self._slot]).fetchone()
        if row is None:
            raise SlotLost(
                f"replication slot {self._slot!r} was dropped: what changed since its last read is not known",
                todo=_TODO,
            )
        plugin, here, wal_status, confirmed = row
        if plugin != "pgoutput" or not here:
            raise slot_of_others(self._slot, f" (plugin {plugin}, this database: {here})")
        if wal_status == "lost":
            raise SlotLost(
                f"replication slot {self._slot!r} has lost WAL that it needs: the source keeps no more than"
                " max_slot_wal_keep_size, or its logical decoding was turned off",
                todo=_TODO,
            )
        self._confirmed = parse_lsn(confirmed)

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        """From 18 on the server leaves rows out with a warning where older ones end the stream with an error. Words are
        in the server's language."""
        self._skipped = self._skipped or notice.sqlstate == pg.ObjectNotInPrerequisiteState.sqlstate

    def _unpublished(self) -> SlotLost:
        return SlotLost(
            f"publication {self._publication!r} was dropped, if only for a time: what changed then is not in"
            f" replication slot {self._slot!r}",
            todo=_TODO,
        )

    def _receive(self) -> None:
        """Waits for the server."""
        if not self._wait(select.POLLIN, SILENCE):
            raise Unreachable(
                f"the source has sent nothing for {SILENCE:.0f} s while replication slot {self._slot!r} was read",
                todo="check that the source is up and reachable, then run again",
            )
        self._pgconn.consume_input()

    def _wait(self, event: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._pgconn.socket, event)
        return bool(poll.poll(max(seconds, 0) * 1000))

    def _keep_alive(self, data: bytes) -> None:
        _, sent, _, answer = _KEEPALIVE.unpack(data)
        # It comes between transactions with all before it sent, or with a position from before the one under way.
        self._sent = max(self._sent, sent)
        if answer:
            self._status()

    def _status(self, flushed: int = 0) -> None:
        """Tells the server where we are. It is told "flushed" by `confirm` alone, and that it does not know afterwards:
        who flushes could be waited for by the source's synchronous commits, and by its shutdown, which waits for
        what is "written" where nothing is flushed."""
        now = int((time.time() - _POSTGRES_EPOCH) * 1_000_000)
        self._pgconn.put_copy_data(_STATUS.pack(b"r", self._sent, flushed, flushed, now, False))
        self._flush()

    def _flush(self) -> None:
        while self._pgconn.flush():
            self._wait(select.POLLOUT, SILENCE)

    def _ended(self) -> psycopg.Error | Unreachable:
        """Why there is no more."""
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return pg.error_from_result(result)
        return Unreachable(
            f"the source ended the stream of replication slot {self._slot!r}, as it does when it shuts down",
            todo="check that the source is up, then run again",
        )

    def _finish(self) -> None:
        self._pgconn.put_copy_end()
        self._flush()
        deadline = time.monotonic() + CLOSE_WAIT
        while (size := self._pgconn.get_copy_data(1)[0]) >= 0:
            if size == 0:
                if not self._wait(select.POLLIN, deadline - time.monotonic()):
                    return
                self._pgconn.consume_input()
            elif time.monotonic() > deadline:
                return
        while self._pgconn.get_result() is not None:
            pass


def _commit_lsn(begin: bytes) -> int:
    """Of a Begin message: where its transaction's commit record begins."""
    return int(_BEGIN.unpack_from(begin)[0])
