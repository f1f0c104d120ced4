"""One table as one server has it: all that decides whether rows of another table fit into it. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_pgddl.engine.model.names import Name

TypeKind = Literal["base", "array", "enum", "domain", "composite", "range", "multirange"]


@dataclass(frozen=True, slots=True)
class TypeModel:
    """A type with its modifier. `name` is what `format_type` prints under an empty search_path without the modifier,
    `text` with it: ``numeric`` and ``numeric(10,2)``, ``public.mood`` and ``public.mood``.

    `element` is what an array or a range is of, `base` what a domain is over (with the modifier), `labels` an enum's in
    their order, `attributes` a composite's names and types, `checks` a domain's conditions, `extension` whose member
    the type is."""

    name: str
    text: str
    kind: TypeKind
    typmod: int = -1
    builtin: bool = True
    element: TypeModel | None = None
    base: TypeModel | None = None
    labels: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    checks: tuple[str, ...] = ()
    not_null: bool = False
    extension: str | None = None

    @property
    def stored(self) -> TypeModel:
        """The type with domains resolved."""
        return self.base.stored if self.base is not None else self


@dataclass(frozen=True, slots=True)
class ColumnModel:
    """`generated` is "" or s (stored) or v (virtual), with its expression in `default`; `identity` is "" or a (always)
    or d (by default); `collation` is None where it is the type's own; `not_null` takes no NULL any more, and where
    it is `not_valid` (NOT NULL … NOT VALID) rows from before may have one."""

    attnum: int
    name: str
    type: TypeModel
    not_null: bool
    default: str | None
    generated: str
    identity: str
    collation: str | None
    deterministic: bool = True
    not_valid: bool = False

    @property
    def never_null(self) -> bool:
        return self.not_null and not self.not_valid


@dataclass(frozen=True, slots=True)
class ConstraintModel:
    """`kind` is c (CHECK), p, u, x (exclusion), f, or i (a unique index that is no constraint); `definition` is what
    pg_get_constraintdef or pg_get_indexdef prints."""

    name: str
    kind: Literal["c", "p", "u", "x", "f", "i"]
    definition: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableModel:
    """`relkind` as in pg_class, so also what is no table; `key` are the columns that identify a row; `missing` are the
    privileges that the session's role lacks (USAGE, which is the schema's, SELECT, INSERT, UPDATE, DELETE, TRUNCATE),
    `owned` whether it may alter the table; a crash empties one that is `unlogged`."""

    oid: int
    schema: str
    name: str
    relkind: str
    columns: tuple[ColumnModel, ...]
    key: tuple[str, ...] | None
    constraints: tuple[ConstraintModel, ...] = ()
    owner: str = ""
    owned: bool = True
    missing: tuple[str, ...] = ()
    unlogged: bool = False

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> ColumnModel | None:
        return next((c for c in self.columns if c.name == name), None)

    def canonical(self) -> dict[str, Any]:
        """What the fingerprint is of (JSON): names, types with their modifiers, nullability, defaults, generated,
        identity, collation, key. Neither the order of columns nor where the table stands is in it."""
        return {
            "columns": {
                c.name: {
                    "type": c.type.text,
                    "not_null": c.not_null,
                    "default": c.default,
                    "generated": c.generated,
                    "identity": c.identity,
                    "collation": c.collation,
                }
                for c in self.columns
            },
            "key": list(self.key) if self.key else None,
        }

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the canonical schema."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Schemas:
    """What one server has of the tables that were asked for, and the names of all types that it knows beside the
    system's own."""

    tables: dict[Name, TableModel]
    types: frozenset[str]
    major: int
