"""Compares two databases row by row, sequence by sequence and fact by fact.

Shares nothing with the engine, neither its checksums nor its connections: what the engine says about its own work is
compared with what plain SQL says. Needs no more memory than a few rows, whatever the tables' sizes: both servers sort,
this side merges.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any, cast

import psycopg
from psycopg import sql

Name = tuple[str, str]

# What decides how a value is written as text, and which rows one sees. Both sides must agree on all of it.
_SETTINGS = {
    "search_path": "",
    "row_security": "off",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "lc_monetary": "C",
    "statement_timeout": "0",
    "work_mem": "64MB",
}

_USER_TABLES = """
SELECT n.nspname, c.relname
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
   AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND n.nspname !~ '^pgddl'
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                    WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
 ORDER BY 1, 2
"""

_COLUMNS = """
SELECT c.relkind::text, array_agg(a.attname::text ORDER BY a.attname COLLATE "C")
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE n.nspname = %s AND c.relname = %s
 GROUP BY c.oid, c.relkind
"""

_USER_SEQUENCES = """
SELECT n.nspname, c.relname
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'S' AND c.relpersistence <> 't'
   AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND n.nspname !~ '^pgddl'
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                    WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
 ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class TableDifference:
    """What two relations have in common and what not. Rows count as often as they occur (EXCEPT ALL, both ways)."""

    schema: str
    table: str
    rows_source: int
    rows_target: int
    only_source: int
    only_target: int
    sample: tuple[str, ...] = ()  # "source: (1,a)" or "target: (1,b)", or why the rows could not be compared
    comparable: bool = True

    @property
    def differs(self) -> bool:
        return not self.comparable or bool(self.only_source or self.only_target)

    def __str__(self) -> str:
        head = (
            f"{self.schema}.{self.table}: {self.rows_source} and {self.rows_target} rows, "
            f"{self.only_source} only in the source, {self.only_target} only in the target"
        )
        return "\n  ".join([head, *self.sample])


@dataclass(frozen=True, slots=True)
class SequenceDifference:
    """A sequence whose two sides would not give the same next value; None where it is missing."""

    schema: str
    name: str
    source: int | None
    target: int | None

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}: next value {self.source} in the source, {self.target} in the target"


def compare(
    source_dsn: str,
    target_dsn: str,
    tables: Iterable[Name] | None = None,
    *,
    renamed: Mapping[Name, Name] | None = None,
    ignore_columns: Mapping[Name, Iterable[str]] | None = None,
    source_snapshot: str | None = None,
    target_snapshot: str | None = None,
    sample: int = 5,
) -> list[TableDifference]:
    """Compares tables row by row; one result a table, whether it differs or not.

    tables: as named in the source; all user tables of either side where left out.
    renamed: where a table of the source has another name on the other side.
    source_snapshot, target_snapshot: snapshots to read at, exported by transactions that are still open.
    """
    renamed = renamed or {}
    ignored = {name: frozenset(columns) for name, columns in (ignore_columns or {}).items()}
    with closing(_connect(source_dsn)) as source, closing(_connect(target_dsn)) as target:
        if tables is None:
            back = {there: here for here, there in renamed.items()}
            found = set(user_tables(source)) | {back.get(name, name) for name in user_tables(target)}
            names = sorted(found)
        else:
            names = list(tables)
        return [
            _compare_table(
                source,
                target,
                name,
                renamed.get(name, name),
                ignored.get(name, frozenset()),
                (source_snapshot, target_snapshot),
                sample,
            )
            for name in names
        ]


def differences(source_dsn: str, target_dsn: str, tables: Iterable[Name] | None = None) -> list[TableDifference]:
    """Only the tables that differ: empty where the two sides are equal."""
    return [result for result in compare(source_dsn, target_dsn, tables) if result.differs]


def compare_sequences(
    source_dsn: str, target_dsn: str, schemas: Sequence[str] | None = None, *, ahead: bool = False
) -> list[SequenceDifference]:
    """Sequences that would not give the same next value; with `ahead` the target may be further on."""
    return diff_sequences(sequence_positions(source_dsn, schemas), sequence_positions(target_dsn, schemas), ahead=ahead)


Positions = Mapping[Name, tuple[int, int]]  # next value and increment


def diff_sequences(source: Positions, target: Positions, *, ahead: bool = False) -> list[SequenceDifference]:
    """What `compare_sequences` gives, from positions that were read before."""
    found = []
    for schema, name in sorted(source.keys() | target.keys()):
        ours, theirs = source.get((schema, name)), target.get((schema, name))
        if ours is None or theirs is None:
            found.append(SequenceDifference(schema, name, ours and ours[0], theirs and theirs[0]))
        elif ours[0] != theirs[0]:
            (mine, step), (other, _) = ours, theirs
            if not (ahead and (other - mine) * step > 0):
                found.append(SequenceDifference(schema, name, mine, other))
    return found


def sequence_positions(dsn: str, schemas: Sequence[str] | None = None) -> Positions:
    """Where each user sequence stands, identities' included."""
    found: dict[Name, tuple[int, int]] = {}
    with closing(_connect(dsn)) as conn:
        for schema, name in conn.execute(_USER_SEQUENCES).fetchall():
            if schemas is not None and schema not in schemas:
                continue
            # A sequence is no table under MVCC: this is its position now, whatever snapshot one holds.
            query = sql.SQL(
                "SELECT CASE WHEN is_called THEN last_value + seqincrement ELSE last_value END, seqincrement"
                " FROM {} CROSS JOIN pg_catalog.pg_sequence WHERE seqrelid = {}::pg_catalog.regclass"
            )
            full = sql.Identifier(schema, name)
            row = conn.execute(query.format(full, sql.Literal(full.as_string(conn)))).fetchone()
            assert row is not None
            found[schema, name] = (row[0], row[1])
    return found


def compare_catalogs(
    source_dsn: str, target_dsn: str, schemas: Sequence[str] | None = None, *, ignore: Iterable[str] = ()
) -> list[str]:
    """Facts that only one side has, "- …" for the source's and "+ …" for the target's; empty where equal.

    ignore: texts; a line that contains one of them is left out.
    """
    return diff_catalogs(catalog_lines(source_dsn, schemas), catalog_lines(target_dsn, schemas), ignore=ignore)


def catalog_lines(dsn: str, schemas: Sequence[str] | None = None) -> list[str]:
    """The structure of a database, one fact a line, sorted: columns, indexes, constraints, triggers, grants, …"""
    query = resources.files(__package__).joinpath("catalog.sql").read_text(encoding="utf-8")
    with closing(_connect(dsn)) as conn:
        params = {"schemas": None if schemas is None else list(schemas)}
        return [cast(str, line) for (line,) in conn.execute(query, params)]


def diff_catalogs(source: Sequence[str], target: Sequence[str], *, ignore: Iterable[str] = ()) -> list[str]:
    """What `compare_catalogs` gives, from two lists of lines (of two moments, say)."""
    ignore = tuple(ignore)
    here, there = (Counter(line for line in side if not any(t in line for t in ignore)) for side in (source, target))
    only = [(line, "-") for line in (here - there).elements()] + [(line, "+") for line in (there - here).elements()]
    return [f"{sign} {line}" for line, sign in sorted(only)]


def user_tables(conn: psycopg.Connection[tuple[Any, ...]]) -> list[Name]:
    """Tables and partitioned roots; neither partitions, the system's, an extension's, nor ours."""
    return [cast(Name, row) for row in conn.execute(_USER_TABLES)]


def _connect(dsn: str) -> psycopg.Connection[tuple[Any, ...]]:
    conn = psycopg.connect(dsn, autocommit=True, client_encoding="UTF8", application_name="pgddl_demo:compare")
    for name, value in _SETTINGS.items():
        conn.execute("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))
    return conn


def _compare_table(
    source: psycopg.Connection[tuple[Any, ...]],
    target: psycopg.Connection[tuple[Any, ...]],
    name: Name,
    other: Name,
    ignored: frozenset[str],
    snapshots: tuple[str | None, str | None],
    sample: int,
) -> TableDifference:
    with _reading(source, snapshots[0]), _reading(target, snapshots[1]):
        here, there = _columns(source, name, ignored), _columns(target, other, ignored)
        if here is None or there is None or here[1] != there[1]:
            return TableDifference(
                *name,
                rows_source=_count(source, name) if here else 0,
                rows_target=_count(target, other) if there else 0,
                only_source=0,
                only_target=0,
                sample=(f"columns: {here and here[1]} in the source, {there and there[1]} in the target",),
                comparable=False,
            )
        # Both servers sort at the same time: COPY answers before it has its first row.
        with (
            source.cursor().copy(_rows_query(name, *here)) as left,
            target.cursor().copy(_rows_query(other, *there)) as right,
        ):
            return _merge(name, _rows(left), _rows(right), sample)


@contextmanager
def _reading(conn: psycopg.Connection[tuple[Any, ...]], snapshot: str | None) -> Iterator[None]:
    """A short transaction that only reads: no lock on a table outlives its own comparison."""
    conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        if snapshot is not None:
            conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        yield
    finally:
        if not conn.closed:
            conn.rollback()


def _columns(
    conn: psycopg.Connection[tuple[Any, ...]], name: Name, ignored: frozenset[str]
) -> tuple[str, list[str]] | None:
    row = conn.execute(_COLUMNS, name).fetchone()
    if row is None:
        return None
    return row[0], [column for column in row[1] if column is not None and column not in ignored]


def _count(conn: psycopg.Connection[tuple[Any, ...]], name: Name) -> int:
    row = conn.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(*name))).fetchone()
    assert row is not None
    return cast(int, row[0])


def _rows_query(name: Name, kind: str, columns: list[str]) -> sql.Composed:
    # As bytes: memcmp is their order on both servers and here; COPY of text escapes what was sorted unescaped.
    # A whole row's text tells null from ''. ONLY: a parent of plain inheritance does not answer for its children.
    return sql.SQL(
        "COPY (SELECT convert_to(ROW({columns})::text, 'UTF8') AS r FROM {only}{table} ORDER BY r)"
        " TO STDOUT (FORMAT binary)"
    ).format(
        columns=sql.SQL(", ").join(sql.Identifier(column) for column in columns),
        only=sql.SQL("ONLY " if kind == "r" else ""),
        table=sql.Identifier(*name),
    )


def _rows(copy: psycopg.Copy) -> Iterator[bytes]:
    copy.set_types(["bytea"])
    for (row,) in copy.rows():
        yield row


def _merge(name: Name, left: Iterator[bytes], right: Iterator[bytes], sample: int) -> TableDifference:
    rows = [0, 0]
    only = [0, 0]
    shown: list[str] = []

    def keep(side: int, row: bytes) -> None:
        only[side] += 1
        if only[side] <= sample:
            shown.append(f"{('source', 'target')[side]}: {row[:1000].decode('utf-8', 'replace')}")

    ours, theirs = next(left, None), next(right, None)
    while ours is not None or theirs is not None:
        if ours == theirs:
            rows[0] += 1
            rows[1] += 1
            ours, theirs = next(left, None), next(right, None)
        elif theirs is None or (ours is not None and ours < theirs):
            assert ours is not None
            rows[0] += 1
            keep(0, ours)
            ours = next(left, None)
        else:
            rows[1] += 1
            keep(1, theirs)
            theirs = next(right, None)
    return TableDifference(*name, rows[0], rows[1], only[0], only[1], tuple(sorted(shown)))


def main(argv: Sequence[str] | None = None) -> int:
    """Compares rows, sequences and structure; exit code 1 where anything differs."""
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_pgddl.demo.compare", description=main.__doc__)
    parser.add_argument("source", help="the environment variable that holds the source's connection string")
    parser.add_argument("target", help="the environment variable that holds the target's connection string")
    parser.add_argument("--target-snapshot", help="read the target's rows at this exported snapshot")
    parser.add_argument("--rows-only", action="store_true", help="leave sequences and structure out")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    # Connection strings hold passwords: not for argv, where everybody on this machine can read them.
    source, target = os.environ[args.source], os.environ[args.target]
    results = compare(source, target, target_snapshot=args.target_snapshot)
    others = [] if args.rows_only else [*map(str, compare_sequences(source, target)), *compare_catalogs(source, target)]
    if args.json:
        print(json.dumps({"tables": [asdict(result) for result in results], "others": others}))
    else:
        for line in (*results, *others):
            print(line)
    return int(bool(others) or any(result.differs for result in results))


if __name__ == "__main__":
    sys.exit(main())
