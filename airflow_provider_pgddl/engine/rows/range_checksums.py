"""Counts and 64-bit checksums of ranges of rows, compared at one snapshot; a difference is narrowed down to its rows.

The checksum is a sum (XOR cancels duplicates) of a hash of each row, by hash_record_extended. Into it go the columns as
they are whose equal values are the same value, of others the bytes that they are sent as, and the rest as one text,
which both sides print alike because every session pins what printing depends on; types that cannot be hashed (xml,
point) print all the same. A text of the whole row takes twice as long.

That hash is linear in its columns' hashes, so a plain sum of it would not see values that changed places between rows:
it is hashed once more. The hash of a bigint or a timestamp folds it to 32 bits, for it must be that of an equal integer
(-1 and 4294967295 have the same): their bytes are hashed. That of a numeric knows neither its sign nor its scale.

Across databases only columns that have the same type on both sides are hashed so, and only where both servers are seen
to hash alike (`hashes_alike`); else the text of a row is hashed."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from psycopg import sql

from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.rights import as_owner, foreign_code
from airflow_provider_pgddl.engine.rows import archive
from airflow_provider_pgddl.engine.rows.ranges import by_text, where, wider_types
from airflow_provider_pgddl.engine.rows.source_errors import told_without_values
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.encodings import Verbatim
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("checksums")
BUCKETS = 4096
ROWS_AT_ONCE = 20_000  # that are held to be compared one by one
# Each range asks the copy while it asks the source; to start a thread for it takes as long as a small table.
_beside = ThreadPoolExecutor(64, "pgddl-copy")
LISTED = 100  # keys of differing rows that are kept; a person needs examples, not all of them

# What is hashed of a value in place of its row's text: of types of which no two values are equal and not the same the
# value, of others the bytes that it is sent as. Text is hashed by its bytes, whatever its collation calls equal. These
# types' own text needs no row around it: no cast to text of theirs leaves anything out.
NATIVE = dict.fromkeys(("smallint", "integer", "oid", "boolean", "uuid", "date", "bytea"), "{}") | {
    "bigint": "pg_catalog.int8send({})",
    "numeric": "pg_catalog.numeric_send({})",
    # A NaN has many bit patterns, of which its text tells nothing: a copy that came as text has another one.
    "real": "pg_catalog.float4send(CASE WHEN {0} OPERATOR(pg_catalog.=) 'NaN'::pg_catalog.float4"
    " THEN 'NaN'::pg_catalog.float4 ELSE {0} END)",
    "double precision": "pg_catalog.float8send(CASE WHEN {0} OPERATOR(pg_catalog.=) 'NaN'::pg_catalog.float8"
    " THEN 'NaN'::pg_catalog.float8 ELSE {0} END)",
    "timestamp without time zone": "pg_catalog.timestamp_send({})",
    "timestamp with time zone": "pg_catalog.timestamptz_send({})",
    "time without time zone": "pg_catalog.time_send({})",
    "time with time zone": "pg_catalog.timetz_send({})",
    "interval": "pg_catalog.interval_send({})",
    "character": "pg_catalog.bpcharsend({})",
    "bpchar": "pg_catalog.bpcharsend({})",
    "inet": "pg_catalog.inet_send({})",
}
_TEXTS = dict.fromkeys(("text", "character varying"), "{}")
_PRINTED = dict.fromkeys(("json", "jsonb"), "({})::text")
_PRINTED |= {f"{t}[]": "({})::text" for t in ("smallint", "integer", "bigint", "numeric", "uuid", "date", "text",
             "character varying", "boolean", "timestamp with time zone", "timestamp without time zone")}  # fmt: skip
TEXT = {**_TEXTS, **_PRINTED}

# Of every type above: values whose hashes show whether two servers hash alike.
SAMPLES = {
    "smallint": ("-1", "77"), "integer": ("-1", "77777"), "oid": ("4294967295",), "boolean": ("true", "false"),
    "uuid": ("9c5b94b1-35ad-49bb-b118-8e8fc24abf80",), "date": ("1999-12-31",), "inet": ("10.0.0.1/8", "::1"),
    "bytea": ("", "\\x00ff10", "\\x" + "5a" * 45), "bigint": ("-1", "77777777777"), "numeric": ("-1.50", "NaN"),
    "real": ("-0", "NaN"), "double precision": ("-0", "0.1", "NaN"), "interval": ("-1 mon 3 days 00:00:01",),
    "timestamp without time zone": ("1999-12-31 23:59:59.999999", "infinity"), "character": ("a ",), "bpchar": ("a ",),
    "timestamp with time zone": ("1999-12-31 23:59:59.999999+00",), "time without time zone": ("23:59:59.999999",),
    "time with time zone": ("23:59:59.999999-03",), "text": ("", "twelve bytes and more, for the hash takes 12"),
    "character varying": ("a",), "json": ('{"n":  1}',), "jsonb": ('{"n": 1.0}',), "smallint[]": ("{1,NULL}",),
    "integer[]": ("[0:1]={1,2}",), "bigint[]": ("{-1}",), "numeric[]": ("{1.0}",), "date[]": ("{1999-12-31}",),
    "uuid[]": ("{9c5b94b1-35ad-49bb-b118-8e8fc24abf80}",), "text[]": ('{"a b","",NULL,"NULL"}',),
    "boolean[]": ("{t,f}",), "character varying[]": ("{a,b}",),
    "timestamp with time zone[]": ("{1999-12-31 23:59:59.999999+00}",),
    "timestamp without time zone[]": ("{1999-12-31 23:59:59.999999}",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RangeCompared:
    """Rows on the source, and the keys (as text) that differ: at most LISTED, with the sign of the difference.
    `narrowed`: the sums were not the same, and it was looked why."""

    rows: int
    differ: tuple[str, ...]
    narrowed: bool = False


@dataclass(frozen=True, slots=True)
class Sides:
    """How both sides are read: what a row consists of, and the key in front of it.

    `types` are the copy's where both are on one server, else empty: there the source's values are cast to them, as they
    were when they were inserted (rewrite.alter gives a column another type, or takes a value from an expression of
    another). `native` are the types by which columns are hashed, "" for those that are printed; none where the text of
    the row is hashed. `recoded`: the databases have other encodings, so text is hashed as it is sent, in UTF8."""

    plan: Plan
    types: tuple[str, ...] = ()
    native: tuple[str, ...] = ()
    recoded: bool = False

    @classmethod
    def across(cls, plan: Plan, alike: Mapping[str, str] | None = None, *, recoded: bool = False) -> Sides:
        """The plan's own expressions yield what the copy holds. `alike`: types of the columns that have the same one on
        both sides, whose hashes may be compared; None where no hash but that of a text may be."""
        if alike is None:
            return cls(plan, recoded=recoded)
        plain = zip(plan.columns.names, plan.columns.expressions, strict=True)
        own = (alike.get(c, "") if made == sql.Identifier(c).as_string() else "" for c, made in plain)
        return cls(plan, native=tuple(t if t in NATIVE or t in TEXT else "" for t in own), recoded=recoded)

    @classmethod
    def in_place(cls, plan: Plan, copy_types: Mapping[str, str]) -> Sides:
        types = tuple(copy_types[c] for c in plan.columns.names)
        bare = (re.sub(r"\([\d,-]+\)", "", t) for t in types)
        return cls(plan, types, tuple(t if t in NATIVE or t in TEXT else "" for t in bare))

    def _of_source(self) -> list[sql.Composable]:
        """What the copy's columns are made of."""
        made = [sql.SQL(e) for e in self.plan.columns.expressions]
        if not self.types:
            return [*made]
        return [sql.SQL("({})::{}").format(v, sql.SQL(t)) for v, t in zip(made, self.types, strict=True)]

    def source_hash(self) -> sql.Composed:
        return self._hash(self._of_source())

    def copy_hash(self) -> sql.Composed:
        return self._hash([sql.Identifier(name) for name in self.plan.columns.names])

    def source_key(self) -> list[sql.Composable]:
        """As the copy has it: 1.00 of the one is 1.0000 of the other where its type says so."""
        made = dict(zip(self.plan.columns.names, self._of_source(), strict=True))
        return [made.get(column) or sql.Identifier(column) for column in self.plan.key.columns]  # it may be generated

    def copy_key(self) -> list[sql.Composable]:
        return [sql.Identifier(column) for column in self.plan.key.columns]

    def key_hash(self, key: Iterable[sql.Composable]) -> sql.Composed:
        return self._hash_text(_row(key))

    def _hash(self, values: Sequence[sql.Composable]) -> sql.Composed:
        """A row's hash, bigint, of these values of the copy's columns; of the key's alone where a row stays as it came
        once."""
        columns, key = self.plan.columns.names, self.plan.key.columns
        some = [n for n, name in enumerate(columns) if self.plan.is_updated or name in key]
        if not self.native:
            return self._hash_text(_row(values[n] for n in some))
        hashed, printed = list[sql.Composable](), list[sql.Composable]()
        for n in some:
            if (type_ := self.native[n]) in NATIVE:
                hashed.append(sql.SQL(NATIVE[type_]).format(values[n]))
            elif type_:
                hashed.append(self._text(sql.SQL(TEXT[type_]).format(values[n])))
            else:
                printed.append(values[n])
        if printed:
            hashed.append(self._text(sql.SQL("({})::text").format(_row(printed))))
        return _MIXED.format(_row(hashed))

    def _hash_text(self, row: sql.Composable) -> sql.Composed:
        text = sql.SQL("({})::text").format(row)
        if self.recoded:
            return _MIXED.format(_row([self._text(text)]))
        return sql.SQL('pg_catalog.hashtextextended({} COLLATE "C", 0)').format(text)

    def _text(self, text: sql.Composable) -> sql.Composed:
        return sql.SQL("pg_catalog.textsend({})" if self.recoded else '({}) COLLATE "C"').format(text)


_MIXED = sql.SQL("pg_catalog.hashint4extended(0, pg_catalog.hash_record_extended({}, 0))")


def _row(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL("ROW({})").format(sql.SQL(", ").join(parts))


def value_hash(type_: str, value: sql.Composable) -> sql.Composed:
    """Of a row of one value of a type of NATIVE or TEXT."""
    return _MIXED.format(_row([sql.SQL((NATIVE | TEXT)[type_]).format(value)]))


def hashes_alike(source: Session, copy: Session) -> bool:
    """Whether both servers hash the samples of all types alike: they may have another byte order, or a version whose
    hashes are others."""
    query = sql.SQL("SELECT ARRAY[{}]").format(
        sql.SQL(", ").join(
            value_hash(t, sql.SQL("{}::" + t).format(sql.Literal(v))) for t, values in SAMPLES.items() for v in values
        )
    )
    mine, theirs = (conn.execute(query).fetchall() for conn in (source, copy))
    return mine == theirs


def compare_range(
    source: Session, copy: Session, sides: Sides, within: Range, latest: float | None = None
) -> RangeCompared:
    """Both sides' rows of a range, each as its session sees it now; narrowed down where they differ. QueryCanceled
    where it takes until `latest`, of time.monotonic(), in a transaction of both. The live table is locked."""
    roles = foreign_code.reader_of(source, sides.plan), foreign_code.writer_of(copy, sides.plan)
    if roles[1] and sides.plan.extra:  # whose keys are ours to read
        raise StageFailed("; ".join(archive.not_behind_the_wall(sides.plan)), table=sides.plan.qualified)
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
        sides, plan = self.sides, self.sides.plan

        def ask(
            conn: Session, hash_: sql.Composed, key: Sequence[sql.Composable], relation: sql.Composable, role: str
        ) -> list[tuple[Any, ...]]:
            if self.latest is not None:
                _limit(conn, max(1, math.ceil(1000 * (self.latest - time.monotonic())) + 1))
            composed = sql.SQL(_Q[query]).format(
                hash=hash_,
                relation=relation,
                where=where(plan, self.within),
                key=_row(key),
                columns=sql.SQL(", ").join(sql.SQL("({})::text").format(column) for column in key),
                key_hash=sides.key_hash(key),
                mask=sql.Literal(BUCKETS - 1),
                **parts,
            )
            fetch = partial(as_owner.fetch, conn, role, composed, types)
            return told_without_values(plan.in_part and conn is self.source, fetch)

        mine = partial(ask, self.source, sides.source_hash(), sides.source_key(), plan.rows, self.roles[0])
        theirs = partial(ask, self.copy, sides.copy_hash(), sides.copy_key(), plan.copy_shown, self.roles[1])
        if self.source is self.copy:
            return [mine(), theirs()]
        asked = _beside.submit(theirs)
        try:
            return [mine(), asked.result()]
        except BaseException:
            if not asked.done():  # somebody waits for the table, until this has ended, too
                self.copy.cancel_safe()
            wait([asked])
            raise

    def rows_of_buckets(self, buckets: Sequence[int]) -> list[Counter[tuple[Any, ...]]]:
        """(key, hash, each column of the key), and how many there are of it."""
        parts = {"buckets": sql.Literal(list(buckets))}
        types = ["text", "bigint", *("text" for _ in self.sides.plan.key.columns)]
        return [Counter(rows) for rows in self.both("rows_of_buckets", *types, **parts)]

    def rows_of_keys(self, keys: Iterable[tuple[str, ...]]) -> list[Counter[tuple[Any, ...]]]:
        """(key, hash), and how many there are of it, of these keys wherever they are."""
        plan = self.sides.plan
        names = [sql.Identifier(f"k{n}") for n in range(1, len(plan.key.columns) + 1)]
        typed = [
            sql.SQL("c.{0}::{1} AS {0}").format(k, sql.SQL(t)) for k, t in zip(names, wider_types(plan), strict=True)
        ]
        arrays = [sql.SQL("{}::text[]").format([*map(Verbatim, values)]) for values in zip(*keys, strict=True)]
        parts = {
            "keys": sql.SQL(", ").join(names), "typed": sql.SQL(", ").join(typed),
            "arrays": sql.SQL(", ").join(arrays), "same": plan.key.join("t", "pgddl_key"),
        }  # fmt: skip
        return [Counter(rows) for rows in self.both("rows_of_keys", "text", "bigint", **parts)]


def _limit(conn: Session, milliseconds: int) -> None:
    """Of each statement from here to the end of the transaction; 0 is none."""
    conn.execute(sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(milliseconds)))
