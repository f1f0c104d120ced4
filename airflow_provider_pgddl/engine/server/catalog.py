"""Reads schemas from a server, in bulk: one query a kind of object, however many tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_pgddl.engine.errors import Retry
from airflow_provider_pgddl.engine.model.tables import Column, Key, Leaf, Server, Table
from airflow_provider_pgddl.engine.server.connect import Session, plans_kept
from airflow_provider_pgddl.engine.sql import queries

IN_THE_MAKING = 2.0  # seconds that a new table may take from its CREATE to its key before anybody hears of it

_Q = queries("catalog")
_EQUALS = "OPERATOR(pg_catalog.=)"


def server(conn: Session) -> Server:
    row = conn.execute(_Q["server"]).fetchone()
    assert row is not None
    return Server(*row)


def table_names(conn: Session) -> list[tuple[str, str]]:
    """(schema, table) of every table that a pattern can match."""
    return [(schema, name) for _, schema, name, _ in conn.execute(_Q["tables"])]


def partitions(conn: Session) -> dict[tuple[str, str], tuple[str, str]]:
    """Every partition, and the table that it is of."""
    return {(schema, name): (root_schema, root) for schema, name, root_schema, root in conn.execute(_Q["partitions"])}


def table_oids(conn: Session) -> dict[tuple[str, str], int]:
    """The same, with their oids."""
    return {(schema, name): oid for oid, schema, name, _ in conn.execute(_Q["tables"])}


def oid_of(conn: Session, schema: str, name: str) -> int | None:
    row = conn.execute(_Q["oid_of"], [schema, name]).fetchone()
    return int(row[0]) if row else None


def oids_of(conn: Session, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """The same of many; a name that no relation has is left out."""
    listed = list(names)
    args = {"schemas": [schema for schema, _ in listed], "names": [name for _, name in listed]}
    return {(schema, name): oid for schema, name, oid in conn.execute(_Q["oids_of"], args)}


def logged(conn: Session, oids: Iterable[int]) -> set[int]:
    """Of relations those whose rows a crash leaves where they are."""
    return {oid for (oid,) in conn.execute(_Q["logged"], {"oids": list(oids)})}


def own_types(conn: Session, oids: Iterable[int]) -> dict[int, dict[str, str]]:
    """Of relations, by oid: the columns whose type is the server's own, each with its name and no more."""
    found: dict[int, dict[str, str]] = {}
    for oid, column, type_ in conn.execute(_Q["own_types"], {"oids": list(oids)}):
        found.setdefault(oid, {})[column] = type_
    return found


def compared_columns(conn: Session, keys: Iterable[int]) -> dict[int, tuple[tuple[str, str, str], ...]]:
    """Of foreign keys, by oid: (referenced column, operator, referring column) of each pair; the operator as in
    `Key.operators`. One that is gone is left out."""
    found: dict[int, tuple[tuple[str, str, str], ...]] = {}
    for key, *pair in conn.execute(_Q["compared_columns"], {"keys": list(keys)}):
        found[key] = (*found.get(key, ()), (pair[0], pair[1], pair[2]))
    return found


def user_oids(conn: Session) -> set[int]:
    """The oids of all relations, functions and triggers that users made."""
    return {oid for (oid,) in conn.execute(_Q["user_oids"])}


def all_relations(conn: Session) -> list[int]:
    """The oids of all that has columns, extensions' tables included: tables, partitions, views, foreign tables."""
    return [row[0] for row in conn.execute(_Q["all_relations"])]


def current_snapshot(conn: Session) -> str:
    """What the next query of a transaction sees, or all of them where it keeps one snapshot."""
    row = conn.execute("SELECT pg_catalog.pg_current_snapshot()::text").fetchone()
    assert row is not None
    return str(row[0])


def describe_all(conn: Session, triggers: Sequence[str] = ()) -> dict[tuple[str, str], Table]:
    """Every table by (schema, name)."""
    oids = [row[0] for row in conn.execute(_Q["tables"])]
    return {(t.schema, t.name): t for t in describe(conn, oids, triggers).values()}


def describe(conn: Session, oids: Iterable[int], triggers: Sequence[str] = ()) -> dict[int, Table]:
    """The tables with these oids, as this transaction sees them; one that is gone is left out.

    `triggers` are the names of the capture's own, whose state goes into `Leaf.triggers`.
    """
    with plans_kept(conn):
        return _describe(conn, {"oids": list(oids), "triggers": list(triggers)})


def still_without_key(conn: Session, oids: Iterable[int]) -> set[int]:
    """Those of the tables that are there without a key, and are so for a moment longer: a table made by one statement
    and given its key by the next is in the making, and nobody has to do anything about it."""
    left, end = set(oids), time.monotonic() + IN_THE_MAKING
    while left := {oid for oid, table in describe(conn, left).items() if table.key is None}:
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return left


def as_read(conn: Session, oids: Iterable[int]) -> dict[int, str]:
    """A digest of each of these tables that is another as soon as it is altered, or a part of it; not so where only
    the words change in which it is described (a type's or a collation's schema gets another name)."""
    with plans_kept(conn):
        return dict(conn.execute(_Q["as_read"], {"oids": list(oids)}).fetchall())


def leaves_now(conn: Session, table: Table, triggers: Sequence[str]) -> Table:
    """A table whose structure a lock keeps as it was described, with its leaves as they are by now."""
    with plans_kept(conn):
        return replace(
            table, leaves=_leaves(conn, {"oids": [table.oid], "triggers": list(triggers)}).get(table.oid, ())
        )


def _describe(conn: Session, args: dict[str, Any]) -> dict[int, Table]:
    columns: dict[int, list[Column]] = {}
    for (
        relid,
        attnum,
        name,
        type_,
        type_oid,
        base,
        base_oid,
        typtype,
        builtin,
        _,
        elem_kind,
        elem_builtin,
        not_null,
        default,
        generated,
        identity,
        collation,
    ) in conn.execute(_Q["columns"], args):
        binary = _binary_safe(base, base_oid, typtype, builtin, elem_kind, elem_builtin)
        columns.setdefault(relid, []).append(
            Column(
                attnum,
                name,
                type_,
                type_oid,
                base,
                type_oid != base_oid,
                binary,
                not_null,
                default,
                generated,
                identity,
                collation,
            )
        )
    keys = _keys(conn, args, {(relid, c.attnum): c for relid, found in columns.items() for c in found})
    leaves = _leaves(conn, args)
    return {
        oid: Table(
            oid, schema, name, kind, persistence, tuple(columns.get(oid, ())), keys.get(oid),
            leaves.get(oid, ()), partition_key,
        )
        for oid, schema, name, kind, persistence, partition_key in conn.execute(_Q["relations_partitioned_by"], args)
    }  # fmt: skip


def _keys(conn: Session, args: dict[str, Any], columns: Mapping[tuple[int, int], Column]) -> dict[int, Key]:
    """By table; `columns` by table and number."""
    found = {}
    wanted: set[tuple[int, int]] = set()  # operator class, type
    for relid, index, attnums, opclasses in conn.execute(_Q["keys"], args):
        try:
            key = [columns[relid, n] for n in attnums]
        except KeyError:
            raise _altered() from None
        found[relid] = index, key, opclasses
        wanted |= {(opclass, c.type_oid) for opclass, c in zip(opclasses, key, strict=True) if opclass}
    operators = dict.fromkeys(((0, c.type_oid) for c in columns.values()), _EQUALS)
    if wanted:
        opclasses, types = zip(*sorted(wanted), strict=True)
        for opclass, type_, operator in conn.execute(_Q["operators"], {"opclasses": [*opclasses], "types": [*types]}):
            operators[opclass, type_] = operator
    try:
        return {
            relid: Key(
                index,
                tuple(c.name for c in key),
                tuple(operators[opclass, c.type_oid] for opclass, c in zip(opclasses, key, strict=True)),
            )
            for relid, (index, key, opclasses) in found.items()
        }
    except KeyError:
        raise _altered() from None


def _altered() -> Retry:
    return Retry("a table was altered while it was looked at", todo="run it again")


def _leaves(conn: Session, args: dict[str, Any]) -> dict[int, tuple[Leaf, ...]]:
    found: dict[int, list[Leaf]] = {}
    for root, *leaf in conn.execute(_Q["leaves"], args):
        found.setdefault(root, []).append(Leaf(*leaf))
    return {root: tuple(leaves) for root, leaves in found.items()}


_OID_TYPES = frozenset({"regproc", "regprocedure", "regoper", "regoperator", "regclass", "regtype", "regconfig",
                        "regdictionary", "regnamespace", "regrole", "regcollation", "oid", "aclitem"})  # fmt: skip
# Postgres does not read back what it writes for an empty one.
_TEXT_ONLY = _OID_TYPES | {"tsquery"}


def _binary_safe(base: str, base_oid: int, typtype: str, builtin: bool, elem_kind: str, elem_builtin: bool) -> bool:
    """Whether COPY's binary form of a type means the same on another cluster.

    It does not where it carries oids of the cluster that wrote it: reg* types, and arrays, composites and ranges of
    types that are not built in. Enums travel as their labels."""
    if base.removesuffix("[]").strip('"') in _TEXT_ONLY:
        return False
    if typtype == "e":
        return True
    if not builtin or base_oid >= 10_000:
        return False
    if elem_kind:
        return elem_builtin and elem_kind == "b"
    return typtype in ("b", "r", "m")
