"""A copy that is partitioned where its source is not: which partition a row needs, and making it.

Every partition is a cell of a fixed grid (a period, a width of numbers, one value), and its name says which. So a
partition can be made at any moment, by anybody, and twice does no harm."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.rights import as_owner, foreign_code
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("partition_cells")
MOST = 1000  # partitions of one table; each costs every query that does not name the partition key
_NAME_BYTES = 63
DEFAULT = "default"

# A period's length, and how its beginning is written in a partition's name.
_PERIODS = {
    "day": ("1 day", "p%YYYY_MM_DD"), "week": ("7 days", "p%YYYY_MM_DD"), "month": ("1 month", "p%YYYY_MM"),
    "quarter": ("3 months", 'p%YYYY_"q"Q'), "year": ("1 year", "p%YYYY"),
}  # fmt: skip
PERIOD_TYPES = ("date", "timestamp without time zone", "timestamp with time zone")
WIDTH_TYPES = {"smallint": 15, "integer": 31, "bigint": 63, "numeric": None}
LIST_TYPES = ("text", "character varying", "boolean", "uuid", "date", "smallint", "integer", "bigint")
_BOUND = re.compile(r"FOR VALUES FROM \('?([^')]*)'?\) TO \('?([^')]*)'?\)")


@dataclass(frozen=True, slots=True)
class Cell:
    """One partition: how its name ends, and its bound as SQL."""

    suffix: str
    bound: str


class NoPartition(Exception):
    """Rows have no partition to go to; `cells` are those that they need."""

    def __init__(self, cells: Sequence[Cell]):
        self.cells = cells
        super().__init__("a row came that needs a partition of its own")


def partition_name(table: str, suffix: str) -> str:
    """``orders_p2026_11``; a hash for the tail of a long name, cut between characters."""
    name = f"{table}_{suffix}"
    if len(name.encode()) <= _NAME_BYTES:
        return name
    digest = hashlib.sha256(table.encode()).hexdigest()[:8]
    kept = table.encode()[: _NAME_BYTES - len(digest) - len(suffix) - 2].decode(errors="ignore")
    return f"{kept}_{digest}_{suffix}"


def has_no_partition(plan: Plan, error: pg.CheckViolation) -> bool:
    """Whether a row was refused because no partition takes it; not because of a constraint."""
    return bool(plan.split) and error.diag.constraint_name is None and error.diag.table_name == plan.copy_name


def values(plan: Plan, rows: sql.Composable) -> sql.Composed:
    """The partition key's values as the copy holds them, of rows that are selected by `rows` (FROM … WHERE …)."""
    assert plan.split is not None
    expression = plan.columns.expressions[plan.columns.names.index(plan.split.column)]
    return sql.SQL("SELECT ({})::{} {}").format(sql.SQL(expression), sql.SQL(_type(plan)), rows)


def _type(plan: Plan) -> str:
    assert plan.split is not None
    return str(plan.columns.pairs[plan.split.column][2])


def without_modifier(type_: str) -> str:
    """A type without its modifier."""
    return re.sub(r"\([^)]*\)", "", type_)


def cells_of(conn: Session, plan: Plan, of: sql.Composed, *keys: sql.Identifier) -> list[Cell]:
    """The cells that these `values` lie in; values that are in none (infinity, NaN) are left out. `keys` are tables of
    ours that they are selected by."""
    split = plan.split
    assert split is not None
    if not split.grows:
        return []
    role = foreign_code.reader_of(conn, plan)
    if split.method == "list":
        rows = as_owner.fetch(conn, role, sql.SQL(_Q["values_of"]).format(rows=of), ["text"], *keys)
        return [list_cell([text]) for (text,) in rows]
    if split.step in _PERIODS:
        query = sql.SQL(_Q["periods_of"]).format(rows=of, **_period(plan))
        return [_period_cell(*row) for row in as_owner.fetch(conn, role, query, ["text", "text", "text"], *keys)]
    query = sql.SQL(_Q["widths_of"]).format(rows=of, width=sql.Literal(int(split.step)))
    return [_width_cell(plan, int(low)) for (low,) in as_owner.fetch(conn, role, query, ["numeric"], *keys)]


def range_cells(conn: Session, plan: Plan, first: str | None, last: str | None, ahead: int) -> list[Cell]:
    """All cells from that of `first` to `ahead` beyond that of `last`, and for periods beyond today's (values as text;
    None where there are no rows). StageFailed where these are too many."""
    split = plan.split
    assert split is not None
    if split.step in _PERIODS:
        now = sql.SQL("pg_catalog.now()::{}").format(sql.SQL(_type(plan)))
        given = [now if v is None else sql.Literal(v) for v in (first, last)]
        # Not one that began and is over: now() stays what it is in this transaction.
        base = "timestamptz" if without_modifier(_type(plan)) == PERIOD_TYPES[2] else "timestamp"
        query = sql.SQL(_Q["periods_between"]).format(
            first=given[0],
            last=given[1],
            now=sql.SQL("pg_catalog.now()::{}").format(sql.SQL(base)),
            base=sql.SQL(base),
            ahead=sql.Literal(ahead),
            most=sql.Literal(MOST + 1),
            **_period(plan),
        )
        cells = [_period_cell(*row) for row in conn.execute(query)]
    else:
        width = int(split.step)
        low, high = (_floor(v or "0", width) for v in (first, last))
        cells = [_width_cell(plan, low + n * width) for n in range(min((high - low) // width + ahead, MOST) + 1)]
    if len(cells) > MOST:
        raise too_many(plan, f"from {first} to {last}")
    return [cell for cell in cells if cell.bound]


def too_many(plan: Plan, what: str) -> StageFailed:
    return StageFailed(
        f"{what} would make more than {MOST} partitions of one {plan.split.step if plan.split else ''} each",
        table=plan.qualified,
        todo="choose a wider rewrite.partition_by.range, or put right the rows that lie far off; "
        "`pgddl reset` and start again",
    )


def edges(conn: Session, plan: Plan) -> tuple[str | None, str | None, bool]:
    """The least and the greatest value of the live table as text, and whether there are others in no cell."""
    of = values(plan, sql.SQL("FROM {} AS t").format(plan.source))
    parts = {
        key: sql.SQL(_finite(plan).format(value))
        for key, value in (("finite", "r.v"), ("finite_first", "e.first"), ("finite_last", "e.last"))
    }
    query = sql.SQL(_Q["edges"]).format(rows=of, **parts)
    ((first, last, others),) = as_owner.fetch_held(conn, plan, "reader", query, ["text", "text", "boolean"])
    return first, last, others


def _finite(plan: Plan) -> str:
    if without_modifier(_type(plan)) in PERIOD_TYPES:
        return "pg_catalog.isfinite({})"
    return "{}::numeric <> ALL ('{{NaN,Infinity,-Infinity}}'::numeric[])"


def lowest_and_used(conn: Session, plan: Plan) -> tuple[str | None, str | None]:
    """The lower bounds (as text) of the lowest partition, and of the highest that holds rows."""
    bounds = []
    for _, schema, name, bound in made_partitions(conn, plan):
        if found := _BOUND.fullmatch(bound):
            bounds.append((_order(plan, found[1], found[2]), found[1], found[2], schema, name))
    bounds.sort()
    used = None
    for _, low, high, schema, name in reversed(bounds):
        query = sql.SQL(_Q["is_empty"]).format(partition=sql.Identifier(schema, name))
        if as_owner.fetch_held(conn, plan, "writer", query, ["boolean"]) == [(False,)]:
            used = low if low != "MINVALUE" else str(int(high) - 1)
            break
    return next((low for _, low, _, _, _ in bounds if low != "MINVALUE"), None), used


def _order(plan: Plan, low: str, high: str) -> tuple[int, str]:
    """Bounds as they follow each other: numbers as such; dates as ISO text, with longer years behind."""
    if plan.split is not None and plan.split.step in _PERIODS:
        return len(low.partition("-")[0]), low
    return (int(low) if low != "MINVALUE" else int(high) - 1), ""


def _period(plan: Plan) -> dict[str, sql.Composable]:
    assert plan.split is not None
    step, name = _PERIODS[plan.split.step]
    return {
        "step": sql.Literal(step), "unit": sql.Literal(plan.split.step), "type": sql.SQL(_type(plan)),
        "format": sql.Literal(name.replace("p%", '"p"')),
    }  # fmt: skip


def _period_cell(low: str, high: str, suffix: str) -> Cell:
    return Cell(suffix, _range_bound(sql.Literal(low), sql.Literal(high)))


def _floor(value: str, width: int) -> int:
    whole = int(value.partition(".")[0] or "0")
    if value.startswith("-") and value.partition(".")[2].strip("0"):
        whole -= 1
    return whole // width * width


def _width_cell(plan: Plan, low: int) -> Cell:
    """`bound` is empty where the type has no such values."""
    assert plan.split is not None
    width, bits = int(plan.split.step), WIDTH_TYPES.get(without_modifier(_type(plan)))
    lower: sql.Composable = sql.Literal(low)
    upper: sql.Composable = sql.Literal(low + width)
    if bits is not None:
        if low >= 1 << bits:
            return Cell("", "")
        if low < -(1 << bits):
            lower = sql.SQL("MINVALUE")
        if low + width >= 1 << bits:
            upper = sql.SQL("MAXVALUE")
    return Cell(f"p{low}" if low >= 0 else f"pm{-low}", _range_bound(lower, upper))


def _range_bound(low: sql.Composable, high: sql.Composable) -> str:
    return sql.SQL("FOR VALUES FROM ({}) TO ({})").format(low, high).as_string()


def list_cell(texts: Sequence[str]) -> Cell:
    """A partition for these values."""
    joined = "_".join(texts)
    suffix = re.sub(r"[^a-z0-9_]", "_", joined.lower())
    if suffix != joined or len(suffix) > 28:
        suffix = f"{suffix[:19]}_{hashlib.sha256(repr(tuple(texts)).encode()).hexdigest()[:8]}"
    wanted = sql.SQL(", ").join(map(sql.Literal, texts))
    return Cell(f"p_{suffix}", sql.SQL("FOR VALUES IN ({})").format(wanted).as_string())


def hashed(parts: int) -> list[Cell]:
    return [Cell(f"p{n}", f"FOR VALUES WITH (MODULUS {parts}, REMAINDER {n})") for n in range(parts)]


DEFAULT_CELL = Cell(DEFAULT, "DEFAULT")


# --- partitions of the copy -------------------------------------------------------------------------------------------


def made_partitions(conn: Session, plan: Plan) -> list[tuple[int, str, str, str]]:
    """(oid, schema, name, bound) of each."""
    return conn.execute(_Q["partitions"], [plan.copy_schema, plan.copy_name]).fetchall()


def are_new(conn: Session, plan: Plan, cells: Iterable[Cell]) -> bool:
    """Whether one of these has no partition yet."""
    there = {name for _, _, name, _ in made_partitions(conn, plan)}
    return any(partition_name(plan.copy_name, cell.suffix) not in there for cell in cells)


def make(conn: Session, plan: Plan, cells: Iterable[Cell]) -> list[str]:
    """Makes the partitions that are not there yet, in the caller's transaction; returns their names. Where the column's
    collation calls texts equal that are not the same, another partition may take a value already."""
    split = plan.split
    assert split is not None
    wanted = {partition_name(plan.copy_name, cell.suffix): cell for cell in cells}
    # Whoever else makes one has committed it by then, so that its name is seen.
    conn.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE").format(plan.copy))
    there = {name for _, _, name, _ in conn.execute(_Q["partitions"], [plan.copy_schema, plan.copy_name])}
    new = [name for name in wanted if name not in there]
    if len(there) + len(new) > MOST and split.method != "hash":
        raise too_many(plan, f"partition {new[0]} beside the {len(there)} that are there")
    storage = _storage(conn, plan) if new else sql.SQL("")
    of_values, made = split.method == "list" and split.grows, list[str]()
    for name in new:
        leaf = sql.Identifier(plan.copy_schema, name)
        create = sql.SQL("CREATE TABLE {} PARTITION OF {} {}{}").format(
            leaf, plan.copy, sql.SQL(wanted[name].bound), storage
        )
        try:
            with conn.transaction() if of_values else nullcontext():
                as_owner.execute(
                    conn, plan.keepers.writer, create
                )  # with indexes, whose expressions may be its owner's
        except pg.InvalidObjectDefinition as error:
            if not of_values or error.diag.source_function != "check_new_partition_bound":
                raise
            continue  # it would overlap the one that takes its value
        made.append(name)
        for setting in split.settings:
            conn.execute(sql.SQL("ALTER TABLE {} {}").format(leaf, sql.SQL(setting)))
    if made:
        dress(conn, plan)
    return made


def dress(conn: Session, plan: Plan) -> None:
    """Gives partitions what they do not take from their table by themselves, where they lack it."""
    for schema, name, identity, index, differs, columns in conn.execute(
        _Q["undressed"], [plan.copy_schema, plan.copy_name]
    ).fetchall():
        actions: list[sql.Composable] = [sql.SQL(action) for action in columns]
        if differs and identity == "i":
            if index is not None:  # else the index is not built yet
                actions.append(sql.SQL("REPLICA IDENTITY USING INDEX {}").format(sql.Identifier(index)))
        elif differs:
            actions.append(sql.SQL("REPLICA IDENTITY " + {"f": "FULL", "n": "NOTHING", "d": "DEFAULT"}[identity]))
        for action in actions:
            statement = sql.SQL("ALTER TABLE {} {}").format(sql.Identifier(schema, name), action)
            as_owner.execute(conn, plan.keepers.writer, statement)  # it looks at an index, which may be another by now


def _storage(conn: Session, plan: Plan) -> sql.Composable:
    """USING and WITH as of the live table: a partitioned one has neither."""
    row = conn.execute(_Q["storage"], [plan.oid]).fetchone()
    if row is None:
        return sql.SQL("")
    method, options, toast = row
    given = [("", option) for option in options or ()] + [("toast.", option) for option in toast or ()]
    parts = [
        sql.SQL("{}{} = {}").format(sql.SQL(prefix), sql.Identifier(key), sql.Literal(value))
        for prefix, option in given
        for key, _, value in [option.partition("=")]
    ]
    using = sql.SQL("") if method == "heap" else sql.SQL(" USING {}").format(sql.Identifier(method))
    return using + (sql.SQL(" WITH ({})").format(sql.SQL(", ").join(parts)) if parts else sql.SQL(""))
