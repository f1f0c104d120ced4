"""A password file of libpq, as executors and drivers elsewhere have one."""

from __future__ import annotations

import os
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict


def line(dsn: str) -> str:
    parts = conninfo_to_dict(dsn)
    return ":".join(str(parts[key]) for key in ("host", "port", "dbname", "user", "password")) + "\n"


def write(file: Path, *lines: str, mode: int = 0o600) -> None:
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as out:
        out.writelines(lines)
    file.chmod(mode)
