"""What is copied of a table, and where to: made once at setup, kept in the journal, carried to every worker."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from psycopg import sql

from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.model.tables import Table


def equal(operator: str, left: sql.Composable, right: sql.Composable) -> sql.Composed:
    """Whether two values are the same, by an operator or by the function behind one (`catalog.Key.operators`)."""
    how = "{left} {by} {right}" if operator.startswith("OPERATOR(") else "{by}({left}, {right})"
    return sql.SQL(how).format(left=left, by=sql.SQL(operator), right=right)


@dataclass(frozen=True, slots=True)
class Split:
    """How the copy of a plain table is partitioned: by `range`, `list` or `hash` of a column of the copy.

    `step` is a period (a word of date_trunc) or a width in digits; "" for list and hash. `grows`: a row that no
    partition takes gets one made. `settings` are actions of rewrite.alter that each partition is altered with."""

    method: str
    column: str
    step: str
    grows: bool
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Keepers:
    """Whose a table is, as found when the stage began: the role that owns the live table (`reader`) and the copy
    (`writer`), "" for one that is trusted. `trusted` are the pipeline's trusted_roles; `refused` is why nothing may be
    done with it at all."""

    reader: str = ""
    writer: str = ""
    trusted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Source relation, copy, the replicated columns with what is read for each, and the key.

    `expressions[i]` is SQL over the source's columns that yields `columns[i]` of the copy. `key_types` have domains
    resolved and no typmod, so that a log table takes whatever the column may come to hold. `partitioned`: read and
    written through the root. `copies` maps a source leaf's oid (as text) to (schema, name) on the copy's side.

    Without a `key` no change of a row can be followed: such a table is copied whole at the swap.

    `keep` are columns of the copy that nobody writes and whose values stay, with their types in `keep_types`.
    `left_out` maps a source column's attnum (as text) to the name under which the pipeline skips it. `pairs` maps each
    of `columns` to [its attnum on the source, 0 where it is written as NULL; its attnum in the copy; its type there].
    `copy_attributes` is the digest of the copy's columns that all of this was made for; "" leaves it unchecked.
    `split` says how the copy is partitioned where the source is not. `order` are the source's columns by which its rows
    are copied.

    Of the way back from a swap: `proof` maps a column of the source to [SQL over the copy's columns that has to yield
    its value again, its type there, whether it is a number]; `echo` is the log of what is written to the copy, in
    which a window leaves nothing of its own; `serials` maps a serial's sequence to the type that it had, None where an
    older version has not noted it."""

    schema: str
    name: str
    oid: int
    partitioned: bool
    copy_schema: str
    copy_name: str
    columns: tuple[str, ...]
    expressions: tuple[str, ...]
    binary: bool
    key: tuple[str, ...]
    key_types: tuple[str, ...]
    key_operators: tuple[str, ...]
    key_domains: tuple[bool, ...]
    key_binary: bool
    copies: dict[str, tuple[str, str]]
    keep: tuple[str, ...] = ()
    keep_types: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    pairs: dict[str, list[Any]] = field(default_factory=dict)
    copy_attributes: str = ""
    split: Split | None = None
    order: tuple[str, ...] = ()
    proof: dict[str, list[Any]] = field(default_factory=dict)
    echo: str = ""
    serials: dict[str, str] | None = None
    keepers: Keepers = field(default=Keepers(), compare=False)

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def source(self) -> sql.Composable:
        """The source in FROM: a table's own rows only (C4), a partitioned one's through its root."""
        relation = sql.Identifier(self.schema, self.name)
        return relation if self.partitioned else sql.SQL("ONLY {}").format(relation)

    @property
    def copy(self) -> sql.Identifier:
        return sql.Identifier(self.copy_schema, self.copy_name)

    @property
    def copy_only(self) -> sql.Composable:
        """The copy in DELETE, SELECT and TRUNCATE: without the children of an inheritance parent."""
        return self.copy if self.partitioned or self.split else sql.SQL("ONLY {}").format(self.copy)

    @property
    def column_list(self) -> sql.Composed:
        return sql.SQL(", ").join(map(sql.Identifier, self.columns))

    @property
    def select_list(self) -> sql.Composed:
        """What a row of the copy is made of. The expressions were composed by us or parsed from the pipeline file."""
        return sql.SQL(", ").join(sql.SQL(e) for e in self.expressions)

    def key_list(self, prefix: str = "k") -> sql.Composed:
        """k1, k2, … : the columns of log, pending and staging tables."""
        return sql.SQL(", ").join(sql.Identifier(f"{prefix}{i}") for i in range(1, len(self.key) + 1))

    def key_definitions(self, *prefixes: str, not_null: bool = False) -> sql.Composed:
        """Column definitions for those tables, one group a prefix."""
        suffix = sql.SQL(" NOT NULL") if not_null else sql.SQL("")
        return sql.SQL(", ").join(
            sql.Identifier(f"{p}{i}") + sql.SQL(" ") + sql.SQL(t) + suffix
            for p in prefixes
            for i, t in enumerate(self.key_types, 1)
        )

    @property
    def key_digest(self) -> str:
        """Tells tables of keys apart that a session makes before and after the key changes."""
        return hashlib.sha256(",".join(self.key_types).encode()).hexdigest()[:8]

    def same_key(self, left: str, left_prefix: str, right: str, right_prefix: str) -> sql.Composed:
        """`left.k1 = right.k1 AND …` between two of those tables, with the key's own equality."""
        return sql.SQL(" AND ").join(
            equal(operator, sql.Identifier(left, f"{left_prefix}{i}"), sql.Identifier(right, f"{right_prefix}{i}"))
            for i, operator in enumerate(self.key_operators, 1)
        )

    def key_join(self, row: str, keys: str, prefix: str = "k") -> sql.Composed:
        """`row.id = keys.k1 AND …` with the key's own equality; a domain is compared as what it is stored as."""
        return sql.SQL(" AND ").join(
            equal(
                op,
                sql.Identifier(row, c) + sql.SQL("::" + type_ if domain else ""),
                sql.Identifier(keys, f"{prefix}{i}"),
            )
            for i, (c, type_, domain, op) in enumerate(
                zip(self.key, self.key_types, self.key_domains, self.key_operators, strict=True), 1
            )
        )

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "keepers"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        tuples = ("columns", "expressions", "key", "key_types", "key_operators", "key_domains", "keep", "keep_types",
                  "order")  # fmt: skip
        fields = dict(value) | {name: tuple(value[name]) for name in tuples if name in value}
        if split := value.get("split"):
            fields["split"] = Split(**split | {"settings": tuple(split["settings"])})
        return cls(**fields | {"copies": {k: tuple(v) for k, v in value["copies"].items()}})


def make_plan(
    table: Table,
    *,
    copy_schema: str,
    skip: Iterable[str] = (),
    using: Mapping[str, str] | None = None,
    casts: Mapping[str, str] | None = None,
    dropped: Iterable[str] = (),
    retyped: Iterable[str] = (),
    nulls: Iterable[str] = (),
    taken: Iterable[str] = (),
    keep: Iterable[str] = (),
    keep_types: Iterable[str] = (),
    left_out: Mapping[str, str] | None = None,
    pairs: Mapping[str, list[Any]] | None = None,
    copy_attributes: str = "",
    keyless: bool = False,
    split: Split | None = None,
    order: Iterable[str] = (),
) -> Plan:
    """The plan for a table as the catalog shows it; PreflightRefused for one without a key, where `keyless` does not
    allow that.

    `skip` are columns that are not replicated, `dropped` columns that the copy does not have, `using` expressions from
    rewrite.alter, `casts` those of the schema policy, `retyped` columns whose type on the copy differs (they cannot
    travel in binary), `nulls` columns of the copy alone that are written as NULL, `taken` generated columns whose
    values are copied. The rest is recorded as Plan says.
    """
    if table.key is None and not keyless:
        raise PreflightRefused(
            "has no key that identifies its rows",
            table=table.qualified,
            todo="give it a primary key, leave it out under tables.exclude, or set tables.keyless: copy_at_swap",
            sql=f'ALTER TABLE "{table.schema}"."{table.name}" ADD PRIMARY KEY (…);',
        )
    without = {*skip, *dropped}
    by_name = {c.name: c for c in table.columns}
    key_columns = table.key.columns if table.key else ()
    missing = [k for k in key_columns if k in without]
    if missing:
        raise PreflightRefused(
            f"key column {missing[0]!r} cannot be left out",
            table=table.qualified,
            todo="remove it from skip_columns or rewrite.alter",
        )
    copied = set(taken)
    columns = [c for c in table.columns if (not c.generated or c.name in copied) and c.name not in without]
    key = [by_name[k] for k in key_columns]
    made = {**(using or {}), **(casts or {})}
    expressions = [made.get(c.name) or sql.Identifier(c.name).as_string() for c in columns]
    nulls, as_text = tuple(nulls), {*retyped, *made}
    return Plan(
        schema=table.schema,
        name=table.name,
        oid=table.oid,
        partitioned=table.kind == "p",
        copy_schema=copy_schema,
        copy_name=table.name,
        columns=(*(c.name for c in columns), *nulls),
        expressions=(*expressions, *("NULL" for _ in nulls)),
        binary=not nulls and all(c.binary and c.name not in as_text for c in columns),
        key=key_columns,
        key_types=tuple(c.base_type for c in key),
        key_operators=table.key.operators if table.key else (),
        key_domains=tuple(c.domain for c in key),
        key_binary=all(c.binary for c in key),
        copies={str(leaf.oid): (copy_schema if table.kind != "p" else leaf.schema, leaf.name) for leaf in table.leaves},
        keep=tuple(keep),
        keep_types=tuple(keep_types),
        left_out=dict(left_out or {}),
        pairs=dict(pairs or {}),
        copy_attributes=copy_attributes,
        split=split,
        order=tuple(order),
    )
