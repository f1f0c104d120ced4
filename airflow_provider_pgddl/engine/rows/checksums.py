"""Counts and 64-bit checksums of ranges of rows, compared at one snapshot; a difference is narrowed down to its rows.

The checksum is a sum (XOR cancels duplicates) of a hash of each row. Across clusters that is hashtextextended over the
row's text, which both sides print alike because every session pins what printing depends on; types that cannot be
hashed (json, xml, point) print all the same. On one server the columns whose equal values are the same value go into it
as they are, by hash_record_extended, in half the time. That is linear in its columns' hashes, so a plain sum of it
would not see values that changed places between rows: it is hashed once more. The hash of a bigint or a timestamp folds
it to 32 bits, for it must be that of an equal integer (-1 and 4294967295 have the same): their bytes are hashed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.rows.plan import Plan
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("checksums")
BUCKETS = 4096
SAMPLED = 200_000  # rows, at least, by which ranges are cut
SAMPLED_OF_A_RANGE = 100
SHORTEST_ROW = 28  # bytes: its header, and where its page says that it is
LISTED = 100  # keys of differing rows that are kept; a person needs examples, not all of them

# Types that order alike on every server, so that a range of keys is the same set of rows on both sides; text does not
# (collations differ between clusters), and is compared in one range.
RANGEABLE = frozenset({"smallint", "integer", "bigint", "numeric", "uuid", "oid", "date", "bytea",
                       "timestamp without time zone", "timestamp with time zone"})  # fmt: skip

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
class Range:
    """Rows whose first key column is in [low, high); None is open. Values are the type's text."""

    id: int
    low: str | None
    high: str | None


@dataclass(frozen=True, slots=True)
class Compared:
    """Rows on the source, and the keys (as text) that differ: at most LISTED, with the sign of the difference."""

    rows: int
    differ: tuple[str, ...]


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
        return cls(plan, tuple(copy_types[c] for c in plan.columns))

    def source_hash(self) -> sql.Composed:
        values = list(map(sql.SQL, self.plan.expressions))
        if not self.types:
            return self._hash(values)
        cast = sql.SQL("({})::{}")
        return self._hash([cast.format(v, sql.SQL(t)) for v, t in zip(values, self.types, strict=True)])

    def copy_hash(self) -> sql.Composed:
        return self._hash([sql.Identifier(c) for c in self.plan.columns])

    def key(self) -> sql.Composed:
        return _row(map(sql.Identifier, self.plan.key))

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


@dataclass(frozen=True, slots=True)
class Size:
    """Of a copy: `rows` as ANALYZE has found them, at most 0 where it has not, and bytes but for TOAST."""

    rows: int
    bytes: int


def sizes(copy: Session, plans: Sequence[Plan]) -> list[Size]:
    """Of each plan's copy; all by one question, as there may be thousands."""
    names = [plan.copy.as_string(copy) for plan in plans]
    return [Size(*row) for row in copy.execute(_Q["sizes"], [names])]


def boundaries(copy: Session, plan: Plan, size: Size, rows: int) -> list[str]:
    """Values (as text) of the first key column that cut the copy into ranges of about `rows` rows; [] for one range.
    Of a large copy by a sample: what the ranges are, not where they end, decides what is compared."""
    if plan.key_types[0] not in RANGEABLE or size.bytes // SHORTEST_ROW < rows:
        return []
    estimated = max(1, size.rows)
    percent = min(100.0, 100.0 * max(SAMPLED, SAMPLED_OF_A_RANGE * estimated / rows) / estimated)
    query = sql.SQL(_Q["boundaries"]).format(
        key=sql.Identifier(plan.key[0]), copy=plan.copy_only, percent=sql.Literal(percent),
        step=sql.Literal(max(1, round(rows * percent / 100))),
    )  # fmt: skip
    return [row[0] for row in copy.execute(query)]


def compare(source: Session, copy: Session, sides: Sides, within: Range) -> Compared:
    """Both sides' rows of a range, each as its session sees it now; narrowed down where they differ."""
    plan = sides.plan
    sums = [
        conn.execute(sql.SQL(_Q["sum"]).format(hash=hash_, relation=relation, where=_where(plan, within))).fetchone()
        for conn, hash_, relation in _both(source, copy, sides)
    ]
    rows = int(sums[0][0]) if sums[0] else 0
    if sums[0] == sums[1]:
        return Compared(rows, ())
    buckets: list[set[object]] = [
        set(conn.execute(
            sql.SQL(_Q["buckets"]).format(
                hash=hash_, key=sides.key(), relation=relation, where=_where(plan, within),
                mask=sql.Literal(BUCKETS - 1))))
        for conn, hash_, relation in _both(source, copy, sides)
    ]  # fmt: skip
    suspicious = sorted({b[0] for b in buckets[0] ^ buckets[1]})  # type: ignore[index]
    return Compared(rows, _differing(source, copy, sides, within, suspicious))


def count_and_sum(conn: Session, hash_: sql.Composable, relation: sql.Composable) -> tuple[int, int]:
    """(rows, checksum) of a whole relation as the session sees it now; `hash_` is one of `Sides`."""
    found = conn.execute(sql.SQL(_Q["sum"]).format(hash=hash_, relation=relation, where=sql.SQL(""))).fetchone()
    assert found is not None
    return int(found[0]), int(found[1])


def _differing(source: Session, copy: Session, sides: Sides, within: Range, buckets: Sequence[int]) -> tuple[str, ...]:
    """Keys whose rows differ, bucket by bucket, so that memory holds one bucket at a time."""
    found: list[str] = []
    for bucket in buckets:
        left, right = (
            Counter(conn.execute(
                sql.SQL(_Q["rows_of_bucket"]).format(
                    hash=hash_, key=sides.key(), relation=relation, where=_where(sides.plan, within),
                    mask=sql.Literal(BUCKETS - 1), bucket=sql.Literal(bucket))).fetchall())
            for conn, hash_, relation in _both(source, copy, sides)
        )  # fmt: skip
        more, less = ({key for key, _ in side} for side in (left - right, right - left))
        found += [f"{key} {_kind(key in more, key in less)}" for key in sorted(more | less)]
        if len(found) >= LISTED:
            break
    # The sums differ, so something does, even if it cannot be named.
    return tuple(found[:LISTED]) or ("(the sums differ)",)


def _kind(on_source: bool, on_copy: bool) -> str:
    if on_source and on_copy:
        return "differs"
    return "is missing or too few on the copy" if on_source else "is too many on the copy"


def _both(source: Session, copy: Session, sides: Sides):  # type: ignore[no-untyped-def]
    yield source, sides.source_hash(), sides.plan.source
    yield copy, sides.copy_hash(), sides.plan.copy_only


def _where(plan: Plan, within: Range) -> sql.Composable:
    column, type_ = sql.Identifier(plan.key[0]), sql.SQL(plan.key_types[0])
    terms = [
        sql.SQL("{} {} {}::{}").format(column, sql.SQL(op), sql.Literal(value), type_)
        for op, value in ((">=", within.low), ("<", within.high))
        if value is not None
    ]
    return sql.SQL(" WHERE ") + sql.SQL(" AND ").join(terms) if terms else sql.SQL("")
