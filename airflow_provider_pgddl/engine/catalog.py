"""Reads schemas from a server, in bulk: one query a kind of object, however many tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_pgddl.engine.connect import Session, plans_kept
from airflow_provider_pgddl.engine.errors import Retry
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("catalog")


@dataclass(frozen=True, slots=True)
class Server:
    """Which server and database this is; `system` and `timeline` tell a failover or another cluster apart."""

    version: int
    system: str
    timeline: int
    database: str
    block_size: int
    database_oid: int

    @property
    def major(self) -> int:
        return self.version // 10_000


@dataclass(frozen=True, slots=True)
class Column:
    """One live column; `base_type` is the type with domains resolved and without typmod, as a log column holds it."""

    attnum: int
    name: str
    type: str
    type_oid: int
    base_type: str
    domain: bool
    binary: bool
    not_null: bool
    default: str | None
    generated: str
    identity: str
    collation: str | None


@dataclass(frozen=True, slots=True)
class Key:
    """What identifies a row: index, column names, and each column's equality: a qualified SQL operator, or the function
    behind it."""

    index: str
    columns: tuple[str, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A relation that holds rows of the table; `triggers` are those of ours with their state, None where there is
    none."""

    oid: int
    schema: str
    name: str
    kind: str
    filenode: int
    attributes: str
    bound: str | None
    triggers: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """One table as it is now. `kind` is pg_class.relkind: r (a table) or p (partitioned)."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    columns: tuple[Column, ...]
    key: Key | None
    leaves: tuple[Leaf, ...]
    partition_key: str | None

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    def structure(self) -> dict[str, Any]:
        """The structure without oids: what is fingerprinted, kept as the schema version, and compared (JSON)."""
        return {
            "schema": self.schema,
            "name": self.name,
            "kind": self.kind,
            "persistence": self.persistence,
            "columns": {
                c.name: {
                    "type": c.type,
                    "not_null": c.not_null,
                    "default": c.default,
                    "generated": c.generated,
                    "identity": c.identity,
                    "collation": c.collation,
                }
                for c in self.columns
            },
            "key": list(self.key.columns) if self.key else None,
            "partition_key": self.partition_key,
            "partitions": {f"{leaf.schema}.{leaf.name}": leaf.bound for leaf in self.leaves}
            if self.kind == "p"
            else {},
        }

    def version(self) -> dict[str, Any]:
        """What is recorded of a table: its structure, and which column is which when names change hands."""
        return self.structure() | {"attnums": {c.name: c.attnum for c in self.columns}}

    def physical(self) -> dict[str, list[Any]]:
        """Per leaf (oid as text): filenode, digest of the attributes' versions, our triggers' versions."""
        return {str(leaf.oid): [leaf.filenode, leaf.attributes, leaf.triggers] for leaf in self.leaves}


def fingerprint(structure: dict[str, Any]) -> str:
    """SHA-256 (hex) of a canonical structure; the order of columns does not matter."""
    return hashlib.sha256(json.dumps(structure, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


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


def _describe(conn: Session, args: dict[str, Any]) -> dict[int, Table]:
    columns: dict[int, list[Column]] = {}
    for (relid, attnum, name, type_, type_oid, base, base_oid, typtype, builtin, _, elem_kind, elem_builtin,
         not_null, default, generated, identity, collation) in conn.execute(_Q["columns"], args):  # fmt: skip
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
    names = {(relid, c.attnum): c.name for relid, cs in columns.items() for c in cs}
    keys = {}
    for relid, index, attnums, operators in conn.execute(_Q["keys"], args):
        if any((relid, n) not in names for n in attnums):
            raise Retry("a table was altered while it was looked at", todo="run it again")
        keys[relid] = Key(index, tuple(names[relid, n] for n in attnums), tuple(operators))
    leaves: dict[int, list[Leaf]] = {}
    for root, *leaf in conn.execute(_Q["leaves"], args):
        leaves.setdefault(root, []).append(Leaf(*leaf))
    return {
        oid: Table(
            oid, schema, name, kind, persistence, tuple(columns.get(oid, ())), keys.get(oid),
            tuple(leaves.get(oid, ())), partition_key,
        )
        for oid, schema, name, kind, persistence, partition_key in conn.execute(_Q["relations_partitioned_by"], args)
    }  # fmt: skip


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
