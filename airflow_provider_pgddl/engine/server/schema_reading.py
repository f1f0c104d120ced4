"""Reads tables and their types from a server as the schema gate compares them: a few queries, however many tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.pq import TransactionStatus

from airflow_provider_pgddl.engine.ddl.quoting import for_parser
from airflow_provider_pgddl.engine.errors import Retry, gone_meanwhile
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.schema.table_model import (
    ColumnModel,
    ConstraintModel,
    Schemas,
    TableModel,
    TypeKind,
    TypeModel,
)
from airflow_provider_pgddl.engine.server.connect import Session, plans_kept
from airflow_provider_pgddl.engine.sql import queries

TRIES = 3
# Printing an expression waits for whoever alters its table; longer than a client's DDL should hold its lock.
LOCK_TIMEOUT = "3s"

_Q = queries("schema")
_RELATIONS = sql.SQL(_Q["relations"])
_PARTS: dict[str, sql.Composable] = {
    "relations": _RELATIONS,
    "columns": sql.SQL(_Q["columns"]),
    "keys": sql.SQL("SELECT k.relid::bigint AS relid, k.attnums FROM ({}) k(relid, index, attnums, operators)").format(
        sql.SQL(queries("catalog")["keys"])
    ),
    "types": sql.SQL(_Q["types"]),
    "constraints": sql.SQL(_Q["constraints"]),
    "known_types": sql.SQL(_Q["known_types"]),
}
# One statement is one snapshot, in whatever transaction it stands: a JSON array of rows a part.
_WHOLE = sql.SQL("SELECT {}").format(
    sql.SQL(", ").join(
        sql.SQL("(SELECT coalesce(pg_catalog.json_agg(q), '[]') FROM ({}) q) AS {}").format(query, sql.Identifier(part))
        for part, query in _PARTS.items()
    )
)
_KINDS: Mapping[str, TypeKind] = {
    "b": "base",
    "c": "composite",
    "d": "domain",
    "e": "enum",
    "m": "multirange",
    "r": "range",
}

# What the server says, beside "cache lookup failed", when something went between a row of the catalog and the look at
# what it names: it prints expressions and types as they are now, whatever snapshot asks.
_GONE = (pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedObject)

CatalogRow = dict[str, Any]


class _Altered(Exception):
    """Something was dropped or altered between two looks."""


def read(conn: Session, names: Collection[Name]) -> Schemas:
    """The relations of these names, of whatever kind, as one snapshot shows them; what is not there is left out.

    Runs in the caller's transaction if there is one, and leaves nothing behind in it. Retry if the tables are altered
    while they are read, or somebody keeps them locked."""
    for _ in range(TRIES):
        try:
            with _waiting_briefly(conn), plans_kept(conn):
                oids = _oids(conn.execute(_RELATIONS, _args(names)).fetchall())
                row = conn.execute(_WHOLE, {**_args(names), "oids": oids}).fetchone()
            return _assemble(row, oids, conn.info.server_version // 10_000)
        except (_Altered, psycopg.Error) as error:
            _refuse_others(error)
    raise _altered()


@contextmanager
def _waiting_briefly(conn: Session) -> Iterator[None]:
    """A transaction, or a part of the caller's, which goes on with the lock_timeout that it had. Nothing is rolled back
    for that: the client would forget every plan that it has kept."""
    within = conn.info.transaction_status != TransactionStatus.IDLE
    with conn.transaction():
        before = conn.execute("SELECT pg_catalog.current_setting('lock_timeout')").fetchone() if within else None
        conn.execute(_SET)
        yield
        if within:
            conn.execute("SELECT pg_catalog.set_config('lock_timeout', %s, true)", before)


def read_temporary(conn: Session, name: str) -> TableModel:
    """A temporary table or view of this session's own."""
    query = "SELECT nspname FROM pg_catalog.pg_namespace WHERE oid = pg_catalog.pg_my_temp_schema()"
    ((schema,),) = conn.execute(query)
    return read(conn, [(schema, name)]).tables[schema, name]


async def read_async(conn: psycopg.AsyncConnection[Any], names: Collection[Name]) -> Schemas:
    """As `read`."""
    for _ in range(TRIES):
        try:
            async with conn.transaction(force_rollback=True):
                await conn.execute(_SET)
                oids = _oids(await (await conn.execute(_RELATIONS, _args(names))).fetchall())
                row = await (await conn.execute(_WHOLE, {**_args(names), "oids": oids})).fetchone()
            return _assemble(row, oids, conn.info.server_version // 10_000)
        except (_Altered, psycopg.Error) as error:
            _refuse_others(error)
    raise _altered()


def _refuse_others(error: Exception) -> None:
    """Returns if another try is due."""
    if isinstance(error, pg.LockNotAvailable):
        raise Retry(
            f"somebody has held a table locked for {LOCK_TIMEOUT} while its schema was to be read",
            todo="run it again when the ALTER TABLE, or whatever holds it, has ended (see pg_locks)",
        ) from None
    if not (gone_meanwhile(error) or isinstance(error, (_Altered, *_GONE))):
        raise error


_SET = sql.SQL("SET LOCAL lock_timeout = {}").format(LOCK_TIMEOUT)


def _args(names: Collection[Name]) -> dict[str, Any]:
    return {"schemas": [schema for schema, _ in names], "names": [name for _, name in names]}


def _oids(rows: Collection[Any]) -> list[int]:
    return [row[0] for row in rows]


def _altered() -> Retry:
    return Retry("tables were altered or dropped each time their schemas were read", todo="run it again")


# --- rows to models -------------------------------------------------------------------------------------------------


def _assemble(row: Any, oids: Collection[int], major: int) -> Schemas:
    """_Altered where the parts do not fit together."""
    relations, columns, keys, types, constraints, known = row
    if {r["oid"] for r in relations} != set(oids):
        raise _Altered
    models = _types(types)
    of: dict[int, dict[int, ColumnModel]] = {oid: {} for oid in oids}
    for c in columns:
        of[c["relid"]][c["attnum"]] = _column(c, models, major)
    limits: dict[int, list[ConstraintModel]] = {oid: [] for oid in oids}
    for c in constraints:
        numbers = c["attnums"] or ()
        definition = for_parser(_known(c["definition"]), major)
        limits[c["relid"]].append(ConstraintModel(c["name"], c["kind"], definition, _names(of[c["relid"]], numbers)))
    found = {k["relid"]: _names(of[k["relid"]], k["attnums"]) for k in keys}
    return Schemas(
        {
            (r["nspname"], r["relname"]): TableModel(
                r["oid"],
                r["nspname"],
                r["relname"],
                r["relkind"],
                tuple(of[r["oid"]].values()),
                found.get(r["oid"]),
                tuple(limits[r["oid"]]),
                r["owner"],
                r["owned"],
                tuple(right for right in _RIGHTS if not _known(r["rights"][right])),
                r["unlogged"],
            )
            for r in relations
        },
        frozenset(k["name"] for k in known),
        major,
    )


_RIGHTS = ("USAGE", "SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")


def _column(row: CatalogRow, types: Mapping[tuple[int, int], TypeModel], major: int) -> ColumnModel:
    if row["has_default"]:
        _known(row["default_"])
    type_ = types.get((row["type_"], row["atttypmod"]))
    return ColumnModel(
        row["attnum"],
        row["attname"],
        _known(type_),
        row["attnotnull"],
        row["default_"] and for_parser(row["default_"], major),
        row["attgenerated"],
        row["attidentity"],
        row["collation_"],
        row["deterministic"],
        row["not_valid"],
    )


def _names(columns: Mapping[int, ColumnModel], numbers: Collection[int]) -> tuple[str, ...]:
    return tuple(_known(columns.get(number)).name for number in numbers)


def _types(rows: Collection[CatalogRow]) -> dict[tuple[int, int], TypeModel]:
    by_number = {(row["oid"], row["typmod"]): row for row in rows}
    models: dict[tuple[int, int], TypeModel] = {}

    def model(number: tuple[int, int]) -> TypeModel:
        if number not in models:
            models[number] = make(_known(by_number.get(number)))
        return models[number]

    def make(row: CatalogRow) -> TypeModel:
        if "???" in (row["name"], row["text_"]) or None in row["checks"]:  # how a type is printed that is gone
            raise _Altered
        part = model((row["part"], row["part_typmod"])) if row["part"] is not None else None
        domain = row["typtype"] == "d"
        kind = "array" if row["typtype"] == "b" and part else _KINDS[row["typtype"]]
        return TypeModel(
            row["name"],
            row["text_"],
            kind,
            row["typmod"],
            row["builtin"],
            None if domain else part,
            part if domain else None,
            tuple(row["labels"]),
            tuple((n, t) for n, t in row["attributes"]),
            tuple(row["checks"]),
            row["not_null"],
            row["extension"],
        )

    for number in by_number:
        model(number)
    return models


def _known(value: Any) -> Any:
    """A value that is null only where what it is of went meanwhile."""
    if value is None:
        raise _Altered
    return value
