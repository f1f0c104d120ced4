"""The messages of pgoutput, protocol version 1. Pure.

Version 1 sends a transaction once it has committed, whole and in the order of commits, and leaves it to the server to
keep a large one on its disk until then. What later versions add, transactions that are streamed while they run, would
only move that to us: a window wants no transaction that has not committed.

See "Logical Replication Message Formats" in Postgres' documentation."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal

_BEGIN = struct.Struct("!QQI")  # LSN of the commit record, commit time, xid
_COMMIT = struct.Struct("!BQQQ")  # flags, LSN of the commit record, of its end, commit time
_MESSAGE = struct.Struct("!BQ")  # flags, LSN; then prefix, NUL, length, content
_RELATION = struct.Struct("!cH")  # replica identity, columns; before them oid, schema, NUL, name, NUL
_COLUMN = struct.Struct("!Ii")  # type, typmod; before them flags, name, NUL
_ROW = struct.Struct("!IB")  # relation, kind of the first tuple; then that, and the second one's kind and itself
_TRUNCATE = struct.Struct("!IB")  # relations, options; then their oids
_COUNT = struct.Struct("!H")
_LENGTH = struct.Struct("!I")

_KEY_COLUMN = 1
_TRANSACTIONAL = 1
_CASCADE, _RESTART_IDENTITY = 1, 2

_I, _U, _D, _N, _K, _O = b"IUDNKO"
_TEXT, _NULL, _TOAST = b"tnu"


class UnknownMessage(ValueError):
    """Bytes that are no message of this protocol, or one that is cut short."""


class Unchanged(Enum):
    """In place of a value kept out of line that an UPDATE did not touch: pgoutput does not send it."""

    TOAST = "unchanged"


Values = tuple[bytes | Unchanged | None, ...]
"""A row's values in the order of its relation's columns: text as the server prints it, in UTF-8."""

RowMessage = tuple[Literal["I", "U", "D"], int, Values | None, Values | None]
"""(operation, oid of the relation, old row, new row). A plain tuple, for there is one a changed row.

The old row of an UPDATE is there where its replica identity changed, and always with REPLICA IDENTITY FULL. It holds
the columns of the replica identity, and None in all others."""


@dataclass(frozen=True, slots=True)
class Begin:
    """What follows, up to its Commit, is one transaction. `commit_lsn` is where its commit record begins: a slot that
    is confirmed up to there yields it again. `xid` has 32 bits (see `Snapshot.widen`)."""

    commit_lsn: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A slot that is confirmed up to `end_lsn` does not yield the transaction any more."""

    commit_lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    typmod: int
    in_identity: bool
    """Whether it is part of the replica identity."""


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """A table as the rows behind this message have it, until the next one of the same oid. Of a connection's rows the
    first is preceded by it, and the first after each change of the table."""

    oid: int
    schema: str
    name: str
    replica_identity: Literal["d", "n", "f", "i"]
    """As in pg_class.relreplident: default, nothing, full, index."""
    columns: tuple[RelationColumn, ...]
    """Those of the publication's column list, or all."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """One statement's tables that are in the publication, with those that CASCADE brought in."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """One transactional message. LSNs are integers; `commit_lsn` is where its transaction's commit record begins: a
    slot that is confirmed up to there yields it again."""

    commit_lsn: int
    lsn: int
    prefix: str
    content: bytes


Item = Begin | Commit | RelationMessage | RowMessage | Truncate | LogicalMessage


def decode(stream: Iterable[bytes]) -> Iterator[Item]:
    """What the messages of a stream say, in their order; whatever is no dataclass is a `RowMessage`.

    Left out are the names of types and of origins, which a window does not need, and messages that are not
    transactional: nothing takes those back. The stream begins between two transactions. UnknownMessage for what
    cannot be read.
    """
    commit_lsn = 0
    try:
        for data in stream:
            kind = data[0]
            if kind == _I:
                relation, tuple_kind = _ROW.unpack_from(data, 1)
                values, end = _values(data, 6)
                if tuple_kind != _N or end != len(data):
                    raise _unknown(data)
                yield "I", relation, None, values
            elif kind == _U:
                relation, tuple_kind = _ROW.unpack_from(data, 1)
                values, end = _values(data, 6)
                old = None
                if tuple_kind in {_K, _O}:
                    old, tuple_kind = values, data[end]
                    values, end = _values(data, end + 1)
                if tuple_kind != _N or end != len(data):
                    raise _unknown(data)
                yield "U", relation, old, values
            elif kind == _D:
                relation, tuple_kind = _ROW.unpack_from(data, 1)
                values, end = _values(data, 6)
                if tuple_kind not in {_K, _O} or end != len(data):
                    raise _unknown(data)
                yield "D", relation, values, None
            else:
                item = _rarer(data, commit_lsn)
                if isinstance(item, Begin):
                    commit_lsn = item.commit_lsn
                if item is not None:
                    yield item
    except (struct.error, IndexError) as error:
        raise UnknownMessage(f"a message that is cut short: {error}") from None


def logical_messages(stream: Iterable[bytes]) -> Iterator[LogicalMessage]:
    """The transactional messages of a stream, in commit order."""
    return (item for item in decode(stream) if isinstance(item, LogicalMessage))


def _values(data: bytes, at: int) -> tuple[Values, int]:
    """A row, and where it ends."""
    (count,) = _COUNT.unpack_from(data, at)
    at += 2
    values: list[bytes | Unchanged | None] = []
    for _ in range(count):
        kind = data[at]
        if kind == _TEXT:
            start = at + 5
            at = start + _LENGTH.unpack_from(data, at + 1)[0]
            values.append(data[start:at])
        elif kind == _NULL:
            at += 1
            values.append(None)
        elif kind == _TOAST:
            at += 1
            values.append(Unchanged.TOAST)
        else:
            raise _unknown(data)
    return tuple(values), at


def _rarer(data: bytes, commit_lsn: int) -> Item | None:
    match data[:1]:
        case b"B":
            begin, _, xid = _BEGIN.unpack(data[1:])
            return Begin(begin, xid)
        case b"C":
            _, begin, end, _ = _COMMIT.unpack(data[1:])
            return Commit(begin, end)
        case b"R":
            return _relation(data)
        case b"T":
            count, options = _TRUNCATE.unpack_from(data, 1)
            relations = struct.unpack(f"!{count}I", data[1 + _TRUNCATE.size :])
            return Truncate(relations, bool(options & _CASCADE), bool(options & _RESTART_IDENTITY))
        case b"M":
            return _message(data, commit_lsn) if data[1] & _TRANSACTIONAL else None
        case b"O" | b"Y":
            return None
    raise _unknown(data)


def _relation(data: bytes) -> RelationMessage:
    (oid,) = _LENGTH.unpack_from(data, 1)
    schema, at = _string(data, 5)
    name, at = _string(data, at)
    identity, count = _RELATION.unpack_from(data, at)
    at += _RELATION.size
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _string(data, at + 1)
        type_oid, typmod = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(RelationColumn(column, type_oid, typmod, bool(flags & _KEY_COLUMN)))
    if at != len(data):
        raise _unknown(data)
    return RelationMessage(oid, schema or "pg_catalog", name, identity.decode(), tuple(columns))


def _message(data: bytes, commit_lsn: int) -> LogicalMessage:
    _, lsn = _MESSAGE.unpack_from(data, 1)
    prefix, at = _string(data, 1 + _MESSAGE.size)
    (length,) = _LENGTH.unpack_from(data, at)
    start = at + _LENGTH.size
    if len(data) != start + length:
        raise UnknownMessage(f"a message of {length} bytes in {len(data) - start}")
    return LogicalMessage(commit_lsn, lsn, prefix, data[start:])


def _string(data: bytes, at: int) -> tuple[str, int]:
    """A string that ends with NUL, and where the next thing begins."""
    end = data.find(0, at)
    if end < 0:
        raise _unknown(data)
    return data[at:end].decode(), end + 1


def _unknown(data: bytes) -> UnknownMessage:
    return UnknownMessage(f"pgoutput message {data[:1]!r} of {len(data)} bytes")  # never its values


def format_lsn(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The number of an LSN as the server prints it."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)
