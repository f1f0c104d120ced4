"""Applies the versioned sets of `sql/`: `core` and `injector` on the source, `journal` on the target.

In place all sets share one schema. A script that has landed is never edited, as databases hold what it made: what
changes comes as a version of its own. The down script is kept with each applied version, so that an older database can
be taken down by a newer package.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, LiteralString

from psycopg import Connection, sql

from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.sql import queries

SETS = ("core", "injector", "journal")


@dataclass(frozen=True, slots=True)
class Migration:
    """One version of a set; `checksum` is the SHA-256 of its up script."""

    set_name: str
    version: int
    name: str
    up: LiteralString
    down: LiteralString

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.up.encode()).hexdigest()


@cache
def migrations(set_name: str) -> tuple[Migration, ...]:
    """The set's migrations in order, from `sql/<set>/NNN_name.up.sql` and `.down.sql`."""
    folder = files("airflow_provider_pgddl.engine.sql").joinpath(set_name)
    found = []
    for up in sorted((f for f in folder.iterdir() if f.name.endswith(".up.sql")), key=lambda f: f.name):
        number, _, name = up.name.removesuffix(".up.sql").partition("_")
        down = folder.joinpath(up.name.replace(".up.sql", ".down.sql"))
        texts = (f.read_text(encoding="utf-8") for f in (up, down))
        found.append(Migration(set_name, int(number), name, *texts))
    return tuple(found)


def state(conn: Connection[Any], set_name: str) -> dict[str, Any]:
    """What of a set is applied here: `{"set", "applied": [versions], "pending": [versions], "changed": [versions]}`."""
    q = queries("migrations")
    row = conn.execute(q["ledger_exists"]).fetchone()
    applied = dict[int, str]()
    if row and row[0]:
        applied = {version: checksum for version, _, checksum in conn.execute(q["applied"], [set_name])}
    known = {m.version: m.checksum for m in migrations(set_name)}
    return {
        "set": set_name,
        "applied": sorted(applied),
        "pending": sorted(known.keys() - applied.keys()),
        "changed": sorted(v for v, checksum in applied.items() if known.get(v) != checksum),
    }


def apply(conn: Session, set_name: str, lock_timeout: float = 0) -> list[int]:
    """Brings a set up to date in one transaction; returns the versions that were applied now.

    `lock_timeout` (seconds; 0: none) bounds how long whoever needs our tables, as every DDL of clients does, queues
    behind us; LockNotAvailable when it runs out. StageFailed where an applied version is not the one that this package
    knows.
    """
    q = queries("migrations")
    if not any(state(conn, set_name)[what] for what in ("pending", "changed")):
        return []
    with conn.transaction():
        if lock_timeout:
            limit_lock_wait(conn, lock_timeout)
        conn.execute(q["lock"])
        _refuse_others(conn, set_name)
        conn.execute(q["bootstrap"])
        now = state(conn, set_name)
        if now["changed"]:
            raise StageFailed(
                f"schema pgddl holds versions {now['changed']} of set {set_name!r} that differ from this package's",
                todo="use the package version that applied them, or take the pipelines down with `pgddl reset`",
            )
        for m in migrations(set_name):
            if m.version in now["pending"]:
                # Comments of some have characters that a database in LATIN1 does not know.
                conn.execute(m.up.encode("ascii", "replace"))
                conn.execute(q["record"], [m.set_name, m.version, m.name, m.checksum, m.down])
        failpoint("migrations.before_up_commit", conn)
    return list(now["pending"])


def _refuse_others(conn: Connection[Any], set_name: str) -> None:
    """Only who made the schema brings its sets up to date."""
    if not is_ours(conn):
        raise StageFailed(
            f"schema pgddl is an administrator's, and set {set_name!r} in it is older than this package",
            todo="have what `pgddl check --admin-sql` prints run once more",
        )


def is_ours(conn: Connection[Any]) -> bool:
    """Whether the sets are ours to change, or there are none yet."""
    row = conn.execute(queries("migrations")["is_ours"]).fetchone()
    return bool(row and row[0])


def revert(conn: Connection[Any], set_name: str, *, to: int = 0, unless_in: str | None = None) -> bool:
    """Takes a set down again to this version, and schema pgddl with it once nothing is left in it. What is an
    administrator's stays. False where it is in use again: `unless_in` is the set's table with a row for each user."""
    q = queries("migrations")
    with conn.transaction():
        conn.execute(q["lock"])
        row = conn.execute(q["ledger_exists"]).fetchone()
        if not (row and row[0]) or not is_ours(conn):
            return True
        if unless_in is not None:
            users = sql.Identifier("pgddl", unless_in)
            conn.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(users))  # whoever begins now waits for the end
            if conn.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(users)).fetchone():
                return False
        for version, down in conn.execute(q["downs"], [set_name, to]).fetchall():
            conn.execute(down)
            conn.execute(q["forget"], [set_name, version])
        left = conn.execute(q["sets_left"]).fetchone()
        if left and left[0] == 0:
            conn.execute(q["drop_ledger"])
            conn.execute(q["drop_schema_if_empty"])
        failpoint("migrations.before_down_commit", conn)
    return True
