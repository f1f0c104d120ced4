"""Roles whose passwords change all the time, and sides of a pipeline file that ask a command for the present one."""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Rotation:
    """A role whose password is another one every second; a file has the present one, a little late."""

    def __init__(self, admin: str, role: str, file: Path, every: float = 1.0):
        self.passwords: list[str] = []
        self._admin, self._role, self._file, self._every = admin, role, file, every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._rotate)

    def __enter__(self) -> Self:
        self._next()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _rotate(self) -> None:
        while not self._over.wait(self._every):
            self._next()

    def _next(self) -> None:
        password = secrets.token_urlsafe(12)
        with psycopg.connect(self._admin, autocommit=True) as conn:
            alter = sql.SQL("ALTER ROLE {} PASSWORD {}")
            conn.execute(alter.format(sql.Identifier(self._role), sql.Literal(password)))
        draft = self._file.with_suffix(".new")
        draft.write_text(password)
        draft.replace(self._file)
        self.passwords.append(password)


@contextmanager
def rotated(admin: str, file: Path) -> Iterator[tuple[str, Rotation]]:
    """A superuser's role in this database, and what changes its password."""
    role = f"rotated_{os.getpid()}_{conninfo_to_dict(admin)['port']}"
    named = {"role": sql.Identifier(role)}
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE ROLE {role} SUPERUSER LOGIN").format(**named))
    try:
        with Rotation(admin, role, file) as rotation:
            yield role, rotation
    finally:
        with psycopg.connect(admin, autocommit=True) as conn:
            conn.execute(sql.SQL("REASSIGN OWNED BY {role} TO CURRENT_USER").format(**named))
            conn.execute(sql.SQL("DROP ROLE {role}").format(**named))


def endpoint(dsn: str, role: str, file: Path) -> dict[str, Any]:
    """A side of the pipeline file whose password a command prints."""
    parts = {key: value for key, value in conninfo_to_dict(dsn).items() if key != "password"}
    printing = f"print(open({str(file)!r}).read())"
    return {"dsn": make_conninfo("", **{**parts, "user": role}), "dsn_command": [sys.executable, "-c", printing]}
