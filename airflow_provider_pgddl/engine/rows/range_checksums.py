"""Counts and 64-bit checksums of ranges of rows, compared at one snapshot; a difference is narrowed down to its rows.

The checksum is a sum (XOR cancels duplicates) of a hash of each row. Across clusters that is hashtextextended over the
row's text, which both sides print alike because every session pins what printing depends on; types that cannot be
hashed (json, xml, point) print all the same. On one server the columns whose equal values are the same value go into it
as they are, by hash_record_extended, in half the time. That is linear in its columns' hashes, so a plain sum of it
would not see values that changed places between rows: it is hashed once more. The hash of a bigint or a timestamp folds
it to 32 bits, for it must be that of an equal integer (-1 and 4294967295 have the same): their bytes are hashed."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from psycopg import sql

from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.rights import as_owner, foreign_code
from airflow_provider_pgddl.engine.rows.ranges import by_text, where, wider_types
from airflow_provider_pgddl.engine.rows.source_errors import told_without_values
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("checksums")
BUCKETS = 4096
ROWS_AT_ONCE = 20_000  # that are held to be compared one by one
LISTED = 100  # keys of differing rows that are kept; a person needs examples, not all of them

# What is hashed of a value in place of its text: of types of which no two values are equal and not the same the value,
# of others the bytes that it is sent as. Text is hashed by its bytes, whatever its collation calls equal.
NATIVE = dict.fromkeys(("smallint", "integer", "oid", "boolean", "uuid", "date", "bytea"), "{}") | {
    "bigint": "pg_catalog.int8send({})",
    "numeric": "pg_catalog.numeric_send({})",
    "real": "pg_catalog.float4send({})",
    "double precision": "pg_catalog.float8send({})",
    "timestamp without time zone": "pg_catalog.timestamp_send({})",
    "timestamp with time zone": "pg_catalog.timestamptz_send({})",
    "interval": "pg_catalog.interval_send({})",
    "text": '({}) COLLATE "C"',
    "character varying": '({}) COLLATE "C"',
}


@dataclass(frozen=True, slots=True)
class RangeCompared:
    """Rows on the source, and the keys (as text) that differ: at most LISTED, with the sign of the difference.
    `narrowed`: the sums were not the same, and it was looked why."""

    rows: int
    differ: tuple[str, ...]
    narrowed: bool = False


@dataclass(frozen=True, slots=True)
class Sides:
    """How both sides are read: what a row consists of, and the key in front of it. `types` are the copy's where both
    are on one server, else empty: there the source's values are cast to them, as they were when they were inserted
    (rewrite.alter gives a column another type, or takes a value from an expression of another)."""

    plan: Plan
    types: tuple[str, ...] = ()

    @classmethod
    def across(cls, plan: Plan) -> Sides:
        """The plan's own expressions yield what the copy holds."""
        return cls(plan)

    @classmethod
    def in_place(cls, plan: Plan, copy_types: Mapping[str, str]) -> Sides:
        return cls(plan, tuple(copy_types[c] for c in plan.columns.names))

    def source_hash(self) -> sql.Composed:
        values = [sql.SQL(made) for name, made in self._compared()]
        if not self.types:
            return self._hash(values)
        cast = sql.SQL("({})::{}")
        return self._hash([cast.format(v, sql.SQL(t)) for v, t in zip(values, self.types, strict=True)])

    def copy_hash(self) -> sql.Composed:
        return self._hash([sql.Identifier(name) for name, _ in self._compared()])

    def _compared(self) -> list[tuple[str, str]]:
        """The copy's columns and what they are made of; only the key's where a row stays as it came once."""
        columns, key = self.plan.columns, self.plan.key.columns
        made = zip(columns.names, columns.expressions, strict=True)
        return [(name, how) for name, how in made if self.plan.is_updated or name in key]

    def key(self) -> sql.Composed:
        return _row(map(sql.Identifier, self.plan.key.columns))

    def _hash(self, values: Sequence[sql.Composable]) -> sql.Composed:
        """A row's hash, bigint."""
        if not self.types:
            return _hash_text(_row(values))
        native, printed = list[sql.Composable](), list[sql.Composable]()
        for value, type_ in zip(values, (re.sub(r"\([\d,-]+\)", "", t) for t in self.types), strict=True):
            if type_ in NATIVE:
                native.append(sql.SQL(NATIVE[type_]).format(value))
            else:
                printed.append(value)
        if printed:
            native.append(sql.SQL('({})::text COLLATE "C"').format(_row(printed)))
        return sql.SQL("pg_catalog.hashint4extended(0, pg_catalog.hash_record_extended({}, 0))").format(_row(native))


def _row(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL("ROW({})").format(sql.SQL(", ").join(parts))


def _hash_text(value: sql.Composable) -> sql.Composed:
    return sql.SQL('pg_catalog.hashtextextended(({})::text COLLATE "C", 0)').format(value)


def compare_range(
    source: Session, copy: Session, sides: Sides, within: Range, latest: float | None = None
) -> RangeCompared:
    """Both sides' rows of a range, each as its session sees it now; narrowed down where they differ. QueryCanceled
    where it takes until `latest`, of time.monotonic(), in a transaction of both. The live table is locked."""
    roles = foreign_code.reader_of(source, sides.plan), foreign_code.writer_of(copy, sides.plan)
    with _Reading(source, copy, sides, within, latest, roles) as of:
        return _compare(of)


def _compare(of: _Reading) -> RangeCompared:
    mine, theirs = of.both("sum", "bigint", "numeric")
    rows = int(mine[0][0])
    if mine == theirs:
        return RangeCompared(rows, ())
    mine, theirs = of.both("buckets", "bigint", "bigint", "numeric")
    counts = dict[int, int]()
    for bucket, count, _ in {*mine} ^ {*theirs}:
        counts[bucket] = max(counts.get(bucket, 0), count)
    return RangeCompared(rows, _differing(of, counts), narrowed=True)


def count_and_sum(conn: Session, hash_: sql.Composable, relation: sql.Composable, role: str) -> tuple[int, int]:
    """(rows, checksum) of a whole relation as the session sees it now, read as the role or as ourselves (''); `hash_`
    is one of `Sides`."""
    query = sql.SQL(_Q["sum"]).format(hash=hash_, relation=relation, where=sql.SQL(""))
    ((rows, checksum),) = as_owner.fetch(conn, role, query, ["bigint", "numeric"])
    return int(rows), int(checksum)


def _differing(of: _Reading, counts: Mapping[int, int]) -> tuple[str, ...]:
    """Keys whose rows differ, in buckets of so many rows; as many buckets at a time as memory is meant to hold."""
    found, suspected = list[str](), False
    elsewhere = of.within.bounded and by_text(of.sides.plan)  # a row may be in another range on the other side
    for buckets in _batches(counts):
        mine, theirs = of.rows_of_buckets(buckets)
        missing, extra = mine - theirs, theirs - mine
        suspected |= bool(missing or extra)
        if elsewhere and (missing or extra):
            mine, theirs = of.rows_of_keys({row[2:] for row in (*missing, *extra)})
            # What its own side does not find by its key stays what it was.
            missing = (mine - theirs) + Counter(row[:2] for row in missing if row[:2] not in mine)
            extra = (theirs - mine) + Counter(row[:2] for row in extra if row[:2] not in theirs)
        more, less = {row[0] for row in missing}, {row[0] for row in extra}
        found += [f"{key} {_kind(key in more, key in less)}" for key in sorted(more | less)]
        if len(found) >= LISTED:
            break
    # The sums differ, so something does, even if it cannot be named.
    return tuple(found[:LISTED]) if suspected else ("(the sums differ)",)


def _batches(counts: Mapping[int, int]) -> Iterator[list[int]]:
    batch, rows = list[int](), 0
    for bucket, count in counts.items():
        if batch and rows + count > ROWS_AT_ONCE:
            yield batch
            batch, rows = [], 0
        batch.append(bucket)
        rows += count
    if batch:
        yield batch


def _kind(on_source: bool, on_copy: bool) -> str:
    if on_source and on_copy:
        return "differs"
    return "is missing or too few on the copy" if on_source else "is too many on the copy"


@dataclass(frozen=True, slots=True)
class _Reading:
    """A range as both sides show it, with an end to the time for that."""

    source: Session
    copy: Session
    sides: Sides
    within: Range
    latest: float | None
    roles: tuple[str, str]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self.latest is not None and error is None:  # else it goes with what was done under it
            for conn in (self.source, self.copy):
                _limit(conn, 0)

    def both(self, query: str, *types: str, **parts: sql.Composable) -> list[list[tuple[Any, ...]]]:
        """What the source says, and what the copy does; `types` are those of the columns."""
        sides, plan, found = self.sides, self.sides.plan, list[list[tuple[Any, ...]]]()
        for conn, hash_, relation, role in (
            (self.source, sides.source_hash(), plan.rows, self.roles[0]),
            (self.copy, sides.copy_hash(), plan.copy_shown, self.roles[1]),
        ):
            if self.latest is not None:
                _limit(conn, max(1, math.ceil(1000 * (self.latest - time.monotonic())) + 1))
            composed = sql.SQL(_Q[query]).format(
                hash=hash_,
                relation=relation,
                where=where(plan, self.within),
                key=sides.key(),
                mask=sql.Literal(BUCKETS - 1),
                **parts,
            )
            fetch = partial(as_owner.fetch, conn, role, composed, types)
            found.append(told_without_values(plan.in_part and conn is self.source, fetch))
        return found

    def rows_of_buckets(self, buckets: Sequence[int]) -> list[Counter[tuple[Any, ...]]]:
        """(key, hash, each column of the key), and how many there are of it."""
        columns = [sql.SQL("s.{}::text").format(sql.Identifier(c)) for c in self.sides.plan.key.columns]
        parts = {"buckets": sql.Literal(list(buckets)), "columns": sql.SQL(", ").join(columns)}
        types = ["text", "bigint", *("text" for _ in columns)]
        return [Counter(rows) for rows in self.both("rows_of_buckets", *types, **parts)]

    def rows_of_keys(self, keys: Iterable[tuple[str, ...]]) -> list[Counter[tuple[Any, ...]]]:
        """(key, hash), and how many there are of it, of these keys wherever they are."""
        plan = self.sides.plan
        names = [sql.Identifier(f"k{n}") for n in range(1, len(plan.key.columns) + 1)]
        typed = [
            sql.SQL("c.{0}::{1} AS {0}").format(k, sql.SQL(t)) for k, t in zip(names, wider_types(plan), strict=True)
        ]
        arrays = [sql.SQL("{}::text[]").format(list(values)) for values in zip(*keys, strict=True)]
        parts = {
            "keys": sql.SQL(", ").join(names), "typed": sql.SQL(", ").join(typed),
            "arrays": sql.SQL(", ").join(arrays), "same": plan.key.join("t", "pgddl_key"),
        }  # fmt: skip
        return [Counter(rows) for rows in self.both("rows_of_keys", "text", "bigint", **parts)]


def _limit(conn: Session, milliseconds: int) -> None:
    """Of each statement from here to the end of the transaction; 0 is none."""
    conn.execute(sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(milliseconds)))
