"""Tables as a catalog describes them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any


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

    @property
    def types(self) -> dict[str, str]:
        """The columns' types by name."""
        return {c.name: c.type for c in self.columns}

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
