"""Credentials that change: a connection string may name a broker, which is asked for a fresh one whenever a session is
opened.

A broker lives in the process that a run works for, and answers whoever has its key: the driver, and its workers, on
other machines too. It asks again for what is older than ten minutes, and for what a server has just refused."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.engine.errors import PgddlError, Unreachable

T = TypeVar("T")

MAX_AGE = 600.0  # seconds; tokens of cloud providers live for fifteen minutes
TRIES = 5  # while a password changes just as it is used
PAUSE = 0.2  # seconds
# libpq takes a passfile that is not there for none, so a string with such a name is one like any other.
_MARK = "pgddl-broker|"
_REFUSED = ("password authentication failed", "no password supplied", "PAM authentication failed")


class Broker:
    """Hands out connection strings that `ask` makes, by side; `known` have just been made."""

    def __init__(
        self, ask: Mapping[str, Callable[[], str]], *, known: Mapping[str, str] | None = None, host: str = "127.0.0.1"
    ):
        self._ask, now = dict(ask), time.monotonic()
        self._known = {side: (conninfo, now) for side, conninfo in (known or {}).items()}
        self._locks = {side: threading.Lock() for side in self._ask}
        self._key = secrets.token_bytes(32)
        self._closed = False
        self._listener = Listener((host, 0), backlog=64)
        threading.Thread(target=self._serve, name="pgddl-credentials", daemon=True).start()

    def reference(self, side: str) -> str:
        """A connection string without a password, with which `opened` finds its way here."""
        host, port = self._listener.address
        parts = conninfo_to_dict(self.fresh(side))
        parts.pop("password", None)
        place = "|".join((str(host), str(port), self._key.hex(), side))
        return make_conninfo("", **{**parts, "passfile": _MARK + place})

    def fresh(self, side: str, refused: str | None = None) -> str:
        """The side's connection string, not older than MAX_AGE, and another than the one with the digest `refused`."""
        with self._locks[side]:
            known = self._known.get(side)
            if known is None or time.monotonic() - known[1] > MAX_AGE or _digest(known[0]) == refused:
                asked = time.monotonic()
                known = self._known[side] = (self._ask[side](), asked)
            return known[0]

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):  # wakes who waits for somebody to come
            socket.create_connection(self._listener.address, 1).close()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            if self._closed:
                connection.close()
                return
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: Connection[Any, Any]) -> None:
        """Each in a thread of its own: who is slow to prove that it has the key holds up nobody."""
        with connection, suppress(EOFError, OSError, AuthenticationError):
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            asked = json.loads(_unsealed(self._key, connection.recv_bytes(10_000)))
            try:
                answer = {"conninfo": self.fresh(asked["side"], asked["refused"])}
            except Exception as error:  # noqa: BLE001 - whatever it was, who asked is told, and not what it printed
                what = error.what if isinstance(error, PgddlError) else type(error).__name__
                answer = {"error": what}
            connection.send_bytes(_sealed(self._key, json.dumps(answer).encode()))


_here: dict[Hashable, str] = {}
_last_used: dict[str, str] = {}
_dsns: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def handed_out_here(name: Hashable, ask: Callable[[], str]) -> str:
    """A connection string whose credential this process hands out for as long as it lives, one for each `name`."""
    if name not in _here:
        _here[name] = Broker({"server": ask}).reference("server")
    return _here[name]


def real(dsn: str, refused: str | None = None) -> str:
    """The connection string to use now; `refused` is one that a server has just refused. Unreachable where nobody
    answers for the credentials."""
    parts = conninfo_to_dict(dsn)
    place = str(parts.get("passfile") or "")
    if not place.startswith(_MARK):
        return dsn
    host, port, key, side = place.removeprefix(_MARK).split("|")
    asked = {"side": side, "refused": None if refused is None else _digest(refused)}
    try:
        with Client((host, int(port)), authkey=bytes.fromhex(key)) as connection:
            connection.send_bytes(_sealed(bytes.fromhex(key), json.dumps(asked).encode()))
            answer = json.loads(_unsealed(bytes.fromhex(key), connection.recv_bytes()))
    except (OSError, EOFError, AuthenticationError) as error:
        raise Unreachable(
            f"nobody hands out the {side}'s credentials at {host}:{port} ({type(error).__name__})",
            todo="run the stage again; workers have to reach the machine that runs the driver",
        ) from None
    if "error" in answer:
        raise Unreachable(f"the {side}'s credentials cannot be had: {answer['error']}", todo="run the stage again")
    return str(answer["conninfo"])


def opened(dsn: str, connect: Callable[[str], T]) -> tuple[T, str]:
    """What `connect` makes of the connection string to use now, and that string: what to keep out of messages.

    A credential that is refused is asked for anew, a few times: it may have changed since. An error of `connect` is
    raised with the string as `pgddl_dsn`."""
    tries = TRIES if is_reference(dsn) else 1
    refused = None
    while True:
        now = _last_used[dsn] = real(dsn, refused)
        try:
            return connect(now), now
        except (psycopg.Error, PgddlError) as error:
            tries -= 1
            if not tries or not _is_refused(error):
                error.pgddl_dsn = now  # type: ignore[union-attr]
                raise
            refused = now
            time.sleep(PAUSE)


def _is_refused(error: Exception) -> bool:
    """Also where a server says so in another language: libpq knows that a password was asked for. What else comes once
    a password was taken costs a few tries."""
    by_libpq = getattr(error, "pgconn", None)
    asked_for = by_libpq is not None and (by_libpq.needs_password or by_libpq.used_password)
    return bool(asked_for) or any(words in str(error) for words in _REFUSED)


def last_used(dsn: str) -> str | None:
    """What this process has opened a session with the last time that it was asked to by this connection string."""
    return _last_used.get(dsn)


def remember(session: Any, dsn: str) -> None:
    """Which connection string a session was asked for with."""
    _dsns[session] = dsn


def dsn_of(session: Any) -> str:
    """The connection string that leads to where a session of ours does, as it was given."""
    return _dsns[session]


def is_reference(dsn: str) -> bool:
    """Whether the credential of a connection string is handed out by a broker."""
    return _MARK in dsn


# Executors have the standard library alone, in which there is no cipher. Both sides have a key of 256 bits that is made
# for one run: a keystream of HMACs over a nonce that no other message has, and an HMAC over what came of it.


def _sealed(key: bytes, text: bytes) -> bytes:
    nonce = secrets.token_bytes(16)
    hidden = _masked(key, nonce, text)
    return nonce + hmac.digest(key, b"seal" + nonce + hidden, "sha256") + hidden


def _unsealed(key: bytes, message: bytes) -> bytes:
    nonce, seal, hidden = message[:16], message[16:48], message[48:]
    if not hmac.compare_digest(seal, hmac.digest(key, b"seal" + nonce + hidden, "sha256")):
        raise AuthenticationError("the message was changed on its way")
    return _masked(key, nonce, hidden)


def _masked(key: bytes, nonce: bytes, text: bytes) -> bytes:
    blocks = (hmac.digest(key, b"mask" + nonce + n.to_bytes(4), "sha256") for n in range(len(text) // 32 + 1))
    return bytes(a ^ b for a, b in zip(text, b"".join(blocks), strict=False))


def _digest(conninfo: str) -> str:
    return hashlib.sha256(conninfo.encode()).hexdigest()
