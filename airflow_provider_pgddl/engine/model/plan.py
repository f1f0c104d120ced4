"""What is copied of a table, and where to: made once at setup, kept in the journal, carried to every worker."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from psycopg import sql

from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.model.tables import Table


def equal(operator: str, left: sql.Composable, right: sql.Composable) -> sql.Composed:
    """Whether two values are the same, by an operator or by the function behind one (`catalog.Key.operators`)."""
    how = "{left} {by} {right}" if operator.startswith("OPERATOR(") else "{by}({left}, {right})"
    return sql.SQL(how).format(left=left, by=sql.SQL(operator), right=right)


def into(relation: sql.Composable, columns: sql.Composable) -> sql.Composed:
    """`relation (a, b)` of an INSERT or a COPY; of a table without columns it alone, as SQL has no empty list."""
    return sql.SQL("{}" if columns == sql.Composed([]) else "{} ({})").format(relation, columns)


def is_user_type(printed: str) -> bool:
    """Of a type as servers print it for sessions of ours: what is not built in bears its schema."""
    return "." in printed


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
    done with it at all. `removes_extra`: rows that the copy alone has are to go (tables.keep_extra is false)."""

    reader: str = ""
    writer: str = ""
    trusted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    removes_extra: bool = False


@dataclass(frozen=True, slots=True)
class PlanKey:
    """The key by which rows are told apart; a table without one has no columns in it, and its changes are not followed.

    `types` have domains resolved and no typmod, so that a log table takes whatever the column may come to hold. Tables
    of log, pending and staged keys have it as k1, k2, …"""

    columns: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    domains: tuple[bool, ...] = ()
    binary: bool = True

    def __bool__(self) -> bool:
        return bool(self.columns)

    def list(self, prefix: str = "k") -> sql.Composed:
        """k1, k2, …"""
        return sql.SQL(", ").join(sql.Identifier(f"{prefix}{i}") for i in range(1, len(self.columns) + 1))

    def definitions(self, *prefixes: str, not_null: bool = False) -> sql.Composed:
        """Column definitions for tables of keys, one group a prefix."""
        suffix = sql.SQL(" NOT NULL") if not_null else sql.SQL("")
        return sql.SQL(", ").join(
            sql.Identifier(f"{p}{i}") + sql.SQL(" ") + sql.SQL(t) + suffix
            for p in prefixes
            for i, t in enumerate(self.types, 1)
        )

    @property
    def has_user_types(self) -> bool:
        """Whether a type of it is not built in: a slot's log has such a key as text."""
        return any(map(is_user_type, self.types))

    @property
    def digest(self) -> str:
        """Tells tables of keys apart that a session makes before and after the key changes."""
        return hashlib.sha256(",".join(self.types).encode()).hexdigest()[:8]

    def same(self, left: str, left_prefix: str, right: str, right_prefix: str) -> sql.Composed:
        """`left.k1 = right.k1 AND …` between two tables of keys, with the key's own equality."""
        return sql.SQL(" AND ").join(
            equal(operator, sql.Identifier(left, f"{left_prefix}{i}"), sql.Identifier(right, f"{right_prefix}{i}"))
            for i, operator in enumerate(self.operators, 1)
        )

    def join(self, row: str, keys: str, prefix: str = "k") -> sql.Composed:
        """`row.id = keys.k1 AND …` with the key's own equality; a domain is compared as what it is stored as."""
        return sql.SQL(" AND ").join(
            equal(
                op,
                sql.Identifier(row, c) + sql.SQL("::" + type_ if domain else ""),
                sql.Identifier(keys, f"{prefix}{i}"),
            )
            for i, (c, type_, domain, op) in enumerate(
                zip(self.columns, self.types, self.domains, self.operators, strict=True), 1
            )
        )


@dataclass(frozen=True, slots=True)
class PlanColumns:
    """The columns of the copy that rows are written to: `expressions[i]` is SQL over the source's columns that yields
    `names[i]`; `binary` whether rows may travel so.

    `left_out` maps a source column's attnum (as text) to the name under which the pipeline skips it. `pairs` maps each
    of `names` to [its attnum on the source, 0 where it is written as NULL; its attnum in the copy; its type there].
    `kept` are columns of the copy that nobody writes and whose values stay, with their types in `kept_types`."""

    names: tuple[str, ...]
    expressions: tuple[str, ...]
    binary: bool
    left_out: Mapping[str, str] = field(default_factory=dict)
    pairs: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    kept_types: tuple[str, ...] = ()

    @property
    def list(self) -> sql.Composed:
        return sql.SQL(", ").join(map(sql.Identifier, self.names))

    @property
    def select_list(self) -> sql.Composed:
        """What a row of the copy is made of. The expressions were composed by us or parsed from the pipeline file."""
        return sql.SQL(", ").join(sql.SQL(e) for e in self.expressions)


@dataclass(frozen=True, slots=True)
class ReversePlan:
    """What only the way back from a swap needs: `proof` maps a column of the source to [SQL over the copy's columns
    that has to yield its value again, its type there, whether it is a number]; `echo` is the log of what is written to
    the copy, in which a window leaves nothing of its own; `serials` maps a serial's sequence to the type that it had,
    None where an older version has not noted it."""

    proof: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    echo: str = ""
    serials: Mapping[str, str] | None = None


# "": we have made the copy. Of one that was there: it had no rows, so blocks fill it; blocks have begun to, and what is
# left comparing tells; the same by another `where`, so what the source has of it may belong there no more; it has rows
# that nobody has compared yet; what differed has become pending.
Adopted = Literal["", "empty", "begun", "other_part", "uncompared", "compared"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Source relation, copy, what is written to it, and the key.

    `partitioned`: read and written through the root. `copies` maps a source leaf's oid (as text) to (schema, name) on
    the copy's side. Without a `key` no change of a row can be followed: such a table is copied whole at the swap.

    `where` is a condition over the source's columns, in SQL; rows for which it is not true do not belong on the target.
    `transformed` are the columns whose values are made by an expression of the pipeline file.

    `adopted`: the copy was on the target before the pipeline, and how it stands with the rows that it had. `extra` is
    the table of ours that lists the keys of rows which it alone has, and keeps. Before these are known, a row of it for
    which `where_there` (`where`, over its own columns) is not true is none of the source's; "": any may be. With
    `operations` the copy is an archive: rows are inserted there, and updated if that is among them; what the source has
    deleted is `extra`.

    `copy_attributes` is the digest of the copy's columns that all of this was made for; "" leaves it unchecked.
    `split` says how the copy is partitioned where the source is not. `order` are the source's columns by which its rows
    are copied."""

    schema: str
    name: str
    oid: int
    partitioned: bool
    copy_schema: str
    copy_name: str
    columns: PlanColumns
    key: PlanKey
    copies: Mapping[str, tuple[str, str]]
    copy_attributes: str = ""
    split: Split | None = None
    order: tuple[str, ...] = ()
    reverse: ReversePlan = ReversePlan()
    where: str = ""
    transformed: tuple[str, ...] = ()
    adopted: Adopted = ""
    extra: str = ""
    operations: tuple[str, ...] = ()
    where_there: str = ""
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
    def rows(self) -> sql.Composable:
        """The source's rows that belong on the target, in FROM, where an alias has to follow."""
        return self.rows_of(self.source)

    def rows_of(self, relation: sql.Composable) -> sql.Composable:
        """The same of a part of the source, such as a leaf; with their ctid. The condition stands in a query of its
        own, where no column of anything else is in its sight; the planner takes the two for one."""
        if not self.where:
            return relation
        return sql.SQL("(SELECT r.*, r.ctid FROM {} AS r WHERE ({}))").format(relation, sql.SQL(self.where))

    @property
    def in_part(self) -> bool:
        """Whether not all rows are on the target, or not all values as they are: then what the source says of them in
        an error may hold a value that is not to leave it."""
        return bool(self.where or self.transformed)

    @property
    def copy(self) -> sql.Identifier:
        return sql.Identifier(self.copy_schema, self.copy_name)

    @property
    def copy_shown(self) -> sql.Composable:
        """The copy's rows that come from the source, in FROM, where an alias has to follow."""
        if not self.extra:
            return self.copy_only
        return sql.SQL("(SELECT r.* FROM {} AS r WHERE NOT EXISTS (SELECT FROM {} AS x WHERE {}))").format(
            self.copy_only, self.extra_keys, self.key.join("r", "x")
        )

    def has_leaf(self, oid: int) -> bool:
        """Whether what the source's leaf loses as a whole its copy loses, too: not before it is known to be a copy."""
        return str(oid) in self.copies and self.adopted != "uncompared"

    @property
    def is_to_be_compared(self) -> bool:
        """Whether comparing tells what of the copy's rows has to be read."""
        return self.adopted in ("begun", "other_part", "uncompared")

    @property
    def is_updated(self) -> bool:
        """Whether a row that is on the target already becomes what the source has."""
        return not self.operations or "update" in self.operations

    @property
    def has_own_values(self) -> bool:
        """Whether the copy has values, or rows, that nobody else knows, or may have such that are not to go."""
        unknown = self.adopted == "uncompared" and not self.keepers.removes_extra
        return bool(self.columns.kept or self.extra or unknown)

    @property
    def keeps_rows(self) -> bool:
        """Whether the copy has rows that the source has not and that are to stay, or may have such."""
        unknown = self.adopted == "uncompared" and not self.keepers.removes_extra
        return bool(self.extra or self.operations or unknown)

    @property
    def extra_keys(self) -> sql.Identifier:
        return sql.Identifier("pgddl", self.extra)

    @property
    def copy_only(self) -> sql.Composable:
        """The copy in DELETE, SELECT and TRUNCATE: without the children of an inheritance parent."""
        return self.copy if self.partitioned or self.split else sql.SQL("ONLY {}").format(self.copy)

    def to_json(self) -> dict[str, Any]:
        """As the journal keeps it: flat, as versions before the parts had it, and without the keepers."""
        key, columns, reverse = self.key, self.columns, self.reverse
        return {
            **{name: getattr(self, name) for name in _RELATIONS},
            "columns": columns.names,
            "expressions": columns.expressions,
            "binary": columns.binary,
            "key": key.columns,
            "key_types": key.types,
            "key_operators": key.operators,
            "key_domains": key.domains,
            "key_binary": key.binary,
            "copies": self.copies,
            "keep": columns.kept,
            "keep_types": columns.kept_types,
            "left_out": columns.left_out,
            "pairs": columns.pairs,
            "copy_attributes": self.copy_attributes,
            "split": asdict(self.split) if self.split else None,
            "order": self.order,
            "proof": reverse.proof,
            "echo": reverse.echo,
            "serials": reverse.serials,
            "where": self.where,
            "transformed": self.transformed,
            "adopted": self.adopted,
            "extra": self.extra,
            "operations": self.operations,
            "where_there": self.where_there,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        split = value.get("split")
        return cls(
            **{name: value[name] for name in _RELATIONS},
            columns=PlanColumns(
                names=tuple(value["columns"]),
                expressions=tuple(value["expressions"]),
                binary=value["binary"],
                left_out=value.get("left_out", {}),
                pairs=value.get("pairs", {}),
                kept=tuple(value.get("keep", ())),
                kept_types=tuple(value.get("keep_types", ())),
            ),
            key=PlanKey(
                columns=tuple(value["key"]),
                types=tuple(value["key_types"]),
                operators=tuple(value["key_operators"]),
                domains=tuple(value["key_domains"]),
                binary=value["key_binary"],
            ),
            copies={leaf: tuple(name) for leaf, name in value["copies"].items()},
            copy_attributes=value.get("copy_attributes", ""),
            split=Split(**split | {"settings": tuple(split["settings"])}) if split else None,
            order=tuple(value.get("order", ())),
            reverse=ReversePlan(value.get("proof", {}), value.get("echo", ""), value.get("serials")),
            where=value.get("where", ""),
            transformed=tuple(value.get("transformed", ())),
            adopted=value.get("adopted", ""),
            extra=value.get("extra", ""),
            operations=tuple(value.get("operations", ())),
            where_there=value.get("where_there", ""),
        )


_RELATIONS = ("schema", "name", "oid", "partitioned", "copy_schema", "copy_name")


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """What becomes of a table's columns.

    `skip` are not replicated, `dropped` the copy does not have; `using` are expressions from rewrite.alter, `casts`
    those of the schema policy, `transform` those of tables.transform; `retyped` have another type on the copy (and
    cannot travel in binary); `nulls` are columns of the copy alone that are written as NULL; `taken` are generated
    columns whose values are copied. `kept`, `kept_types`, `left_out` and `pairs` are recorded as `PlanColumns` says."""

    skip: Collection[str] = ()
    dropped: Collection[str] = ()
    using: Mapping[str, str] = field(default_factory=dict)
    casts: Mapping[str, str] = field(default_factory=dict)
    transform: Mapping[str, str] = field(default_factory=dict)
    retyped: Collection[str] = ()
    nulls: Sequence[str] = ()
    taken: Collection[str] = ()
    kept: Sequence[str] = ()
    kept_types: Sequence[str] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    pairs: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def make_plan(
    table: Table,
    *,
    copy_schema: str,
    choice: ColumnChoice | None = None,
    copy_attributes: str = "",
    keyless: bool = False,
    split: Split | None = None,
    order: Iterable[str] = (),
    where: str = "",
) -> Plan:
    """The plan for a table as the catalog shows it; PreflightRefused for one without a key, where `keyless` does not
    allow that."""
    choice = choice or ColumnChoice()
    return Plan(
        schema=table.schema,
        name=table.name,
        oid=table.oid,
        partitioned=table.kind == "p",
        copy_schema=copy_schema,
        copy_name=table.name,
        columns=_columns(table, choice),
        key=_key(table, {*choice.skip, *choice.dropped}, keyless=keyless),
        copies={str(leaf.oid): (copy_schema if table.kind != "p" else leaf.schema, leaf.name) for leaf in table.leaves},
        copy_attributes=copy_attributes,
        split=split,
        order=tuple(order),
        where=where,
        transformed=tuple(sorted(choice.transform)),
    )


def _key(table: Table, without: Collection[str], *, keyless: bool) -> PlanKey:
    if table.key is None:
        if keyless:
            return PlanKey()
        raise PreflightRefused(
            "has no key that identifies its rows",
            table=table.qualified,
            todo="give it a primary key, leave it out under tables.exclude, or set tables.keyless: copy_at_swap",
            sql=f'ALTER TABLE "{table.schema}"."{table.name}" ADD PRIMARY KEY (…);',
        )
    if missing := [k for k in table.key.columns if k in without]:
        raise PreflightRefused(
            f"key column {missing[0]!r} cannot be left out",
            table=table.qualified,
            todo="remove it from skip_columns or rewrite.alter",
        )
    by_name = {c.name: c for c in table.columns}
    key = [by_name[k] for k in table.key.columns]
    return PlanKey(
        columns=table.key.columns,
        types=tuple(c.base_type for c in key),
        operators=table.key.operators,
        domains=tuple(c.domain for c in key),
        binary=all(c.binary for c in key),
    )


def _columns(table: Table, choice: ColumnChoice) -> PlanColumns:
    without, taken, nulls = {*choice.skip, *choice.dropped}, {*choice.taken}, tuple(choice.nulls)
    columns = [c for c in table.columns if (not c.generated or c.name in taken) and c.name not in without]
    made = {**choice.using, **choice.casts, **choice.transform}
    expressions = [made.get(c.name) or sql.Identifier(c.name).as_string() for c in columns]
    as_text = {*choice.retyped, *made}
    return PlanColumns(
        names=(*(c.name for c in columns), *nulls),
        expressions=(*expressions, *("NULL" for _ in nulls)),
        binary=not nulls and all(c.binary and c.name not in as_text for c in columns),
        left_out=dict(choice.left_out),
        pairs=dict(choice.pairs),
        kept=tuple(choice.kept),
        kept_types=tuple(choice.kept_types),
    )
