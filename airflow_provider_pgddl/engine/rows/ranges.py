"""Ranges of a table's key, by which source and copy are compared: about a chunk's bytes each, and cut into shorter ones
where that takes too long.

A range is over as many of the key's first columns as have an order that can be written down, so however few values the
first of them has, no range need be long. What the ranges are, not where they end, decides what is compared: text may be
ordered by another collation on the copy than on the source, and then a range is not the same set of rows on both sides.
But going along the bounds, a row of either side is at or above the first, which is none, and below the last: where it
comes to be below, it is in the range between the two. So each row is in a range of its own side, and where the rows of
a range differ, `range_checksums.compare_range` looks for them by their keys before it says so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from psycopg import sql

from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.model.ranges import Bound, Range
from airflow_provider_pgddl.engine.rights import as_owner
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("ranges")
SAMPLED = 50_000  # rows, at least, by which ranges are cut
SAMPLED_OF_A_RANGE = 100
SHORTEST_ROW = 28  # bytes: its header, and where its page says that it is
BYTES_A_ROW = 100  # a row has at least these, for cutting ranges
FEWEST_ROWS = 10_000  # of a range, so that a table of huge rows is not all ranges
TEXT_SHARE = 8  # ranges of text are so much shorter: rows that are in another one on the copy are looked up one by one
PARTS = 4  # that a range is cut into

_NUMBERS = ("smallint", "integer", "bigint", "numeric")  # each holds what those before it do
_REALS = ("real", "double precision")
_WIDER = (_NUMBERS, _REALS)
_TEXTS = frozenset({"text", "character varying", "bpchar", "character"})
_OTHERS = frozenset({"uuid", "oid", "date", "bytea", "boolean", "inet", "interval",
                     "time without time zone", "time with time zone", "timestamp without time zone",
                     "timestamp with time zone"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """Of a copy: `rows` as ANALYZE has found them, at most 0 where it has not; bytes without TOAST, and with it."""

    rows: int
    bytes: int
    whole: int

    def rows_of(self, chunk_bytes: int) -> int:
        """How many rows are about so many bytes."""
        average = self.whole // self.rows if self.rows > 0 else 0
        return max(FEWEST_ROWS, chunk_bytes // max(BYTES_A_ROW, average))


def sizes(copy: Session, plans: Sequence[Plan]) -> list[Size]:
    """Of each plan's copy; all by one question, as there may be thousands."""
    names = [plan.copy.as_string(copy) for plan in plans]
    return [Size(*row) for row in copy.execute(_Q["sizes"], [names])]


def boundaries(source: Session, copy: Session, plan: Plan, size: Size, rows: int) -> list[Bound]:
    """What cuts the copy into ranges of about `rows` rows; [] for one range. Of a large copy by a sample."""
    width = _width(plan)
    if not width or size.bytes // SHORTEST_ROW < rows:
        return []
    if by_text(plan):
        rows = max(1, rows // TEXT_SHARE)
    estimated = max(1, size.rows)
    percent = min(100.0, 100.0 * max(SAMPLED, SAMPLED_OF_A_RANGE * estimated / rows) / estimated)
    query = sql.SQL(_Q["boundaries"]).format(
        **_names(plan, width),
        copy=plan.copy_only,
        percent=sql.Literal(percent),
        step=sql.Literal(max(1, round(rows * percent / 100))),
    )
    cuts = as_owner.fetch_held(copy, plan, "writer", query, ["text"] * width)
    return _on_source(source, plan, Range(0), cuts)


def scattered(copy: Session, plans: Mapping[int, Plan]) -> set[int]:
    """Which of these copies, by any number, have rows that do not lie in their key's order, as ANALYZE has found."""
    columns = [
        (n, plan.copy_schema, plan.copy_name, c) for n, plan in plans.items() for c in plan.key.columns[: _width(plan)]
    ]
    if not columns:
        return set()
    numbers, *names = ([*column] for column in zip(*columns, strict=True))
    return {n for (n,) in copy.execute(_Q["scattered"], [numbers, *names])}


def parts(source: Session, copy: Session, plan: Plan, within: Range) -> list[Range]:
    """A range in PARTS of about as many rows of the copy; only itself, not to be cut, where that is not possible."""
    cuts = list[Bound]()
    if width := _width(plan):
        beyond: sql.Composable = sql.SQL("")
        if within.low is not None and len(within.low) == width:  # equal values may be printed differently
            keys, low = (_listed(side) for side in (_keys("s", width), _values(plan, within.low)))
            beyond = sql.SQL(" AND ({}) > ({})").format(keys, low)
        query = sql.SQL(_Q["parts"]).format(
            **_names(plan, width),
            copy=plan.copy_only,
            where=where(plan, within),
            parts=sql.Literal(PARTS),
            beyond=beyond,
        )
        found = as_owner.fetch_held(copy, plan, "writer", query, ["text"] * width)
        cuts = _on_source(source, plan, within, found)
    if not cuts:
        return [Range(within.id, within.low, within.high, cuttable=False)]
    return [Range(0, low, high) for low, high in pairwise([within.low, *cuts, within.high])]


def where(plan: Plan, within: Range) -> sql.Composable:
    """`WHERE …` for a range's rows, on either side. The first column by itself tells which partitions have any."""
    terms = list[sql.Composable]()
    for bound, first, all_ in ((within.low, ">=", ">="), (within.high, "<=", "<")):
        if bound is None:
            continue
        columns = [sql.Identifier(c) for c in plan.key.columns[: len(bound)]]
        values = _values(plan, bound)
        if len(bound) > 1:
            terms.append(sql.SQL("{} {} {}").format(columns[0], sql.SQL(first), values[0]))
        left, right = (sql.SQL("({})").format(_listed(side)) for side in (columns, values))
        terms.append(sql.SQL("{} {} {}").format(left, sql.SQL(all_), right))
    return sql.SQL(" WHERE ") + sql.SQL(" AND ").join(terms) if terms else sql.SQL("")


def _width(plan: Plan) -> int:
    """How many of the key's columns, from the first on, have an order on both sides that can be written down."""
    for n, (column, type_) in enumerate(zip(plan.key.columns, plan.key.types, strict=True)):
        kind, there = _kind(type_), _kind(_there(plan, column))
        if kind is None or there not in (kind, None):  # a domain is of the type that the source's is
            return n
    return len(plan.key.columns)


def _kind(type_: str) -> object:
    return next((kind for kind in (_NUMBERS, _REALS, _TEXTS) if type_ in kind), type_ if type_ in _OTHERS else None)


def by_text(plan: Plan) -> bool:
    """Whether a row may be in another range on the other side."""
    return any(_kind(type_) is _TEXTS for type_ in plan.key.types[: _width(plan)])


def wider_types(plan: Plan) -> list[str]:
    """Of each key column, the type that holds what both sides may have: the copy's may be wider than the source's."""
    found = list[str]()
    for column, type_ in zip(plan.key.columns, plan.key.types, strict=True):
        there = _there(plan, column)
        wider = next((w for w in _WIDER if type_ in w and there in w), None)
        found.append(max(type_, there, key=wider.index) if wider else type_)
    return found


def _there(plan: Plan, column: str) -> str:
    """A key column's type in the copy, without its modifier; "" where the plan does not say."""
    return re.sub(r"\([\d,-]+\)", "", str(plan.columns.pairs[column][2])) if column in plan.columns.pairs else ""


def _values(plan: Plan, bound: Bound) -> list[sql.Composed]:
    """Of a wider type, but of one under which the source's index can be used."""
    types = [own if wider == "numeric" else wider for own, wider in zip(plan.key.types, wider_types(plan), strict=True)]
    return [sql.SQL("{}::{}").format(value, sql.SQL(t)) for value, t in zip(bound, types, strict=False)]


def _keys(relation: str, width: int) -> list[sql.Composed]:
    return [sql.SQL("{}").format(sql.Identifier(relation, f"k{n}")) for n in range(1, width + 1)]


def _names(plan: Plan, width: int) -> dict[str, sql.Composable]:
    """The key's columns; the same as k1, k2, …; and these as text."""
    columns = [sql.Identifier(c) for c in plan.key.columns[:width]]
    named = [sql.SQL("{} AS {}").format(c, sql.Identifier(f"k{n}")) for n, c in enumerate(columns, 1)]
    return {
        "columns": _listed(columns),
        "named": _listed(named),
        "texts": _listed(sql.SQL("{}::text").format(k) for k in _keys("s", width)),
    }


def _on_source(source: Session, plan: Plan, within: Range, cuts: Sequence[Bound]) -> list[Bound]:
    """Each bound once, in the source's order, in which each of its rows is in one range only; and inside `within`. As
    they are where the source's columns have other names by now: what the order is for is that rows count once."""
    distinct = list(dict.fromkeys(cuts))
    if not distinct or not by_text(plan):
        return distinct
    width = len(distinct[0])
    collations = {
        column: sql.SQL(" COLLATE {}").format(sql.Identifier(*collation))
        for column, *collation in source.execute(_Q["collations"], [plan.oid, list(plan.key.columns[:width])])
    }
    typed = list[sql.Composable]()
    for n, (column, type_) in enumerate(zip(plan.key.columns[:width], plan.key.types, strict=False), 1):
        if _kind(type_) is _TEXTS and column not in collations:
            return distinct
        collate = collations.get(column, sql.SQL(""))
        value = sql.SQL("(c.{}::{}){}").format(sql.Identifier(f"k{n}"), sql.SQL(type_), collate)
        typed.append(sql.SQL("{} AS {}").format(value, sql.Identifier(column)))
    ordered = [sql.SQL("s.{}").format(sql.Identifier(c)) for c in plan.key.columns[:width]]
    query = sql.SQL(_Q["in_order"]).format(
        where=where(plan, within),
        keys=_listed(sql.Identifier(f"k{n}") for n in range(1, width + 1)),
        texts=_listed(sql.SQL("{}::text").format(c) for c in ordered),
        ordered=_listed(ordered),
        typed=_listed(typed),
        arrays=_listed(sql.SQL("{}::text[]").format(list(values)) for values in zip(*distinct, strict=True)),
    )
    return source.execute(query).fetchall()


def _listed(items: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(items)
