"""Decoding the messages of a slot without tables."""

from __future__ import annotations

import struct

import pytest

from airflow_provider_pgddl.engine.capture.pgoutput import (
    LogicalMessage,
    UnknownMessage,
    format_lsn,
    logical_messages,
)


def begin(commit_lsn: int, xid: int = 7) -> bytes:
    return struct.pack("!cqqI", b"B", commit_lsn, 0, xid)


def commit(commit_lsn: int) -> bytes:
    return struct.pack("!cBqqq", b"C", 0, commit_lsn, commit_lsn + 8, 0)


def message(lsn: int, content: bytes, *, prefix: str = "pgddl", transactional: bool = True) -> bytes:
    head = struct.pack("!cBq", b"M", int(transactional), lsn)
    return head + prefix.encode() + b"\0" + struct.pack("!I", len(content)) + content


def test_messages_come_with_their_transactions_commit() -> None:
    stream = [begin(100), message(60, b"{}"), message(70, "é\0".encode()), commit(100), begin(200), commit(200)]
    stream += [begin(1 << 40), message(90, b"", prefix="other"), commit(1 << 40)]
    assert list(logical_messages(stream)) == [
        LogicalMessage(100, 60, "pgddl", b"{}"),
        LogicalMessage(100, 70, "pgddl", "é\0".encode()),
        LogicalMessage(1 << 40, 90, "other", b""),
    ]


def test_what_no_transaction_can_take_back_is_not_ours() -> None:
    stream = [message(10, b"x", transactional=False), begin(50), message(20, b"y", transactional=False), commit(50)]
    assert list(logical_messages(stream)) == []


def test_an_origin_is_passed_over_and_anything_else_is_an_error() -> None:
    origin = b"O" + struct.pack("!q", 5) + b"elsewhere\0"
    assert len(list(logical_messages([begin(9), origin, message(1, b"x"), commit(9)]))) == 1
    for odd in (b"R" + bytes(20), b""):
        with pytest.raises(UnknownMessage):
            list(logical_messages([odd]))


def test_a_message_that_is_cut_short_is_an_error() -> None:
    with pytest.raises(UnknownMessage, match="a message of 5 bytes in 4"):
        list(logical_messages([begin(9), message(1, b"12345")[:-1]]))


@pytest.mark.parametrize(
    ("text", "number"), [("0/0", 0), ("16/B374D848", 0x16B374D848), ("FFFFFFFF/FFFFFFFF", 2**64 - 1)]
)
def test_positions_are_printed_as_the_server_does(text: str, number: int) -> None:
    assert format_lsn(number) == text
