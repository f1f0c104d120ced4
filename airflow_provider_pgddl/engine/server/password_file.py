"""Password files of libpq, which says only that it has no password: why it found none in one."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict


def why_without_password(dsn: str) -> tuple[str, str] | None:
    """(what, what to do) where a connection string names a password file that did not help; None where it names none.

    By the rules of libpq, which passes over such a file without an error: who may read it, and whether it can be."""
    parts = conninfo_to_dict(dsn)
    if not parts.get("passfile"):
        return None
    file, here = Path(str(parts["passfile"])), socket.gethostname()
    try:
        mode = file.stat().st_mode
    except OSError:
        return f"there is no password file {file} on {here}", "put it there, mode 0600"
    if not stat.S_ISREG(mode):
        return f"the password file {file} on {here} is not a regular file", "put one there, mode 0600"
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        what = f"the password file {file} on {here} has mode {stat.S_IMODE(mode):04o}, and is not read for that"
        return what, f"let nobody but its owner read it: chmod 0600 {file}"
    if not os.access(file, os.R_OK):
        return f"the password file {file} on {here} cannot be read by us", "give it to the user who executors run as"
    where = ":".join(str(parts.get(key) or default) for key, default in _ENTRY)
    return f"the password file {file} on {here} has no line for {where}", f"add one: {where}:PASSWORD"


# The columns of a line before the password.
_ENTRY = (("host", "localhost"), ("port", 5432), ("dbname", "*"), ("user", "*"))
