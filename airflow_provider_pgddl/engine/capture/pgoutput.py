"""The messages of pgoutput (protocol 1) that a slot without tables yields: begin, commit, logical message. Pure.

See "Logical Replication Message Formats" in Postgres' documentation."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_BEGIN = struct.Struct("!cqqI")  # kind, LSN of the commit record, commit time, xid
_MESSAGE = struct.Struct("!cBq")  # kind, flags, LSN; then prefix, NUL, length, content
_LENGTH = struct.Struct("!I")
_TRANSACTIONAL = 1


class UnknownMessage(ValueError):
    """A message that this slot cannot yield."""


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """One transactional message. LSNs are integers; `commit_lsn` is where its transaction's commit record begins: a
    slot that is confirmed up to there yields it again."""

    commit_lsn: int
    lsn: int
    prefix: str
    content: bytes


def logical_messages(stream: Iterable[bytes]) -> Iterator[LogicalMessage]:
    """The transactional messages of a stream, in commit order."""
    commit_lsn: int | None = None
    for data in stream:
        match data[:1]:
            case b"B":
                commit_lsn = _BEGIN.unpack(data)[1]
            case b"C":
                commit_lsn = None
            case b"M":
                if commit_lsn is not None and data[1] & _TRANSACTIONAL:
                    yield _message(commit_lsn, data)
            case b"O":  # the origin of a transaction that was itself replicated
                pass
            case other:
                raise UnknownMessage(f"pgoutput message {other!r} of {len(data)} bytes")


def _message(commit_lsn: int, data: bytes) -> LogicalMessage:
    _, _, lsn = _MESSAGE.unpack_from(data)
    end = data.index(0, _MESSAGE.size)
    prefix = data[_MESSAGE.size : end].decode()
    (length,) = _LENGTH.unpack_from(data, end + 1)
    start = end + 1 + _LENGTH.size
    if len(data) != start + length:
        raise UnknownMessage(f"a message of {length} bytes in {len(data) - start}")
    return LogicalMessage(commit_lsn, lsn, prefix, data[start:])


def format_lsn(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
