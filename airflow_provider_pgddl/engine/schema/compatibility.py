"""What differs between a table on the source and its copy on the target, and the SQL that ends it. Pure.

What is only on the source in the way of constraints and indexes is no difference: these come with later stages. Nor is
the order of columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType

from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    kind_of,
    parse,
    statement_node,
    unwrap,
    walk,
    without_locations,
)
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.schema.casts import Cast, judge_cast
from airflow_provider_pgddl.engine.schema.definitions import flags, same_constraint, same_expression, same_index
from airflow_provider_pgddl.engine.schema.model import ColumnModel, ConstraintModel, Name, TableModel, TypeModel
from airflow_provider_pgddl.engine.schema.verdict import Finding, Kind

OR = "-- OR --"
"""Stands between two statements of a fix of which one is enough."""

_NONE: Mapping[str, str] = MappingProxyType({})
_TABLES = ("r", "p")
_RELATIONS = {  # pg_class.relkind, and the word of its ALTER
    "v": ("a view", "VIEW"),
    "m": ("a materialized view", "MATERIALIZED VIEW"),
    "f": ("a foreign table", "FOREIGN TABLE"),
    "S": ("a sequence", "SEQUENCE"),
    "i": ("an index", "INDEX"),
    "I": ("an index", "INDEX"),
    "c": ("a composite type", "TYPE"),
    "t": ("a TOAST table", "TABLE"),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One finding with the columns that it is about (None where a side has none) and, where their types differ, the
    cast between them."""

    finding: Finding
    source: ColumnModel | None = None
    target: ColumnModel | None = None
    cast: Cast | None = None


def compare(
    source: TableModel | None, target: TableModel | None, target_types: frozenset[str], *,
    removed: Collection[str] = (), renamed: Mapping[str, str] = _NONE, altered: Collection[str] = (),
    keyed: bool = True, names: tuple[Name, Name], role: str = "",
) -> list[Difference]:  # fmt: skip
    """All that differs, with the severity that it has where no policy says otherwise.

    `target_types` are the types that the target knows beside the system's own (`Schemas.types`). `removed` are columns
    that the source had once; `renamed` is old → new name of those that it renamed. `altered` columns have another
    shape on purpose. Without `keyed` the target has no indexes yet. `names` are those of the two tables, `role` is
    whom a missing right is to be granted. The fixes of two findings may begin with the same CREATE TYPE: once is
    enough."""
    there, here = _shown(names[0]), written(*names[1])
    if source is None:
        return [_missing_on_source(there, here)]
    if source.relkind not in _TABLES:
        return [Difference(_not_a_table(there, source.relkind, "source"))]
    if target is None:
        return [_missing_on_target(source, target_types, names)]
    if target.relkind not in _TABLES:
        rename = f"ALTER {_RELATIONS[target.relkind][1]} {here} RENAME TO {written(names[1][1] + '_before_pgddl')};"
        return [Difference(_not_a_table(there, target.relkind, "target", rename))]
    comparison = _Comparison(source, target, target_types, names, renamed, {*removed, *renamed}, altered)
    found = [Difference(finding) for finding in _privileges(source, target, names, role)]
    found += comparison.columns()
    if keyed:
        found += comparison.key()
    return found + list(comparison.constraints(keyed=keyed))


# --- names in SQL ---------------------------------------------------------------------------------------------------

_BARE = re.compile(r"[a-z_][a-z0-9_$]*")


def written(*names: str) -> str:
    """Names joined by dots as SQL takes them: quoted only where they must be."""
    return ".".join(map(_written, names))


@cache
def _written(name: str) -> str:
    if _BARE.fullmatch(name):
        try:
            parse(f"ALTER TABLE t ALTER COLUMN {name} TYPE x USING {name}::x")
        except StageFailed:  # a reserved word
            pass
        else:
            return name
    return '"' + name.replace('"', '""') + '"'


def _shown(name: Name) -> str:
    return ".".join(name)


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


# --- tables ---------------------------------------------------------------------------------------------------------


def _missing_on_source(there: str, here: str) -> Difference:
    return Difference(
        Finding(
            "missing_on_source",
            "mismatch",
            f"Table {there} was dropped on the source, or renamed",
            impact="There are no rows to read; what the target has stays as it is",
            fix=(f"-- if the target is not to have it any more: DROP TABLE {here};",),
            reason="missing_table",
        )
    )


def _missing_on_target(source: TableModel, target_types: frozenset[str], names: tuple[Name, Name]) -> Difference:
    types = _Types(target_types)
    types.need_schema(written(names[1][0]))
    columns = [_definition(column) for column in source.columns]
    if source.key:
        columns.append(f"PRIMARY KEY ({_list(map(written, source.key))})")
    create = f"CREATE TABLE {written(*names[1])} (\n  " + ",\n  ".join(columns) + "\n);"
    for column in source.columns:
        types.need(column.type)
    return Difference(
        Finding(
            "missing_on_target",
            "mismatch",
            f"Table {_shown(names[0])} does not exist on the target" + types.sentence(),
            impact="Its rows have nowhere to go",
            fix=(*types.statements, create),
            reason="missing_table",
        )
    )


def _definition(column: ColumnModel) -> str:
    """A column as CREATE TABLE says it; without its DEFAULT, which may need what the target does not have."""
    parts = [written(column.name), column.type.text]
    if column.collation:
        parts.append(f"COLLATE {column.collation}")
    if column.generated:
        parts.append(f"GENERATED ALWAYS AS ({column.default}) {'STORED' if column.generated == 's' else 'VIRTUAL'}")
    if column.identity:
        parts.append(_identity_of(column))
    if column.not_null:
        parts.append("NOT NULL")
    return " ".join(parts)


_IDENTITY = {"a": "ALWAYS", "d": "BY DEFAULT"}


def _identity_of(column: ColumnModel) -> str:
    return f"GENERATED {_IDENTITY[column.identity]} AS IDENTITY" if column.identity else "no identity"


def _not_a_table(there: str, relkind: str, side: str, *fix: str) -> Finding:
    return Finding(
        "not_a_table",
        "mismatch",
        f"{there} is {_RELATIONS[relkind][0]} on the {side}, where a table is expected",
        impact="Rows can only be copied from a table to a table",
        fix=fix,
        reason="missing_table",
    )


def _privileges(source: TableModel, target: TableModel, names: tuple[Name, Name], role: str) -> Iterator[Finding]:
    who = written(role) if role else "our_role"
    sides = (("source", [r for r in source.missing if r in ("USAGE", "SELECT")], names[0]),
             ("target", list(target.missing), names[1]))  # fmt: skip
    for side, missing, name in sides:
        grants = [f"GRANT USAGE ON SCHEMA {written(name[0])} TO {who};"] if "USAGE" in missing else []
        rights = _list(right for right in missing if right != "USAGE")
        if rights:
            grants.append(f"GRANT {rights} ON TABLE {written(*name)} TO {who};")
        if grants:
            told = rights + (", " if rights and "USAGE" in missing else "")
            told += f"USAGE of schema {name[0]}" if "USAGE" in missing else ""
            yield Finding(
                "privileges",
                "mismatch",
                f"Our role lacks {told} on {_shown(names[0])} of the {side}",
                impact="Its rows cannot be " + ("read" if side == "source" else "written"),
                fix=tuple(f"-- on the source: {grant}" for grant in grants) if side == "source" else tuple(grants),
                reason="privileges",
            )


class _Types:
    """The types that columns need and the target does not have: the statements that make them, and those of which
    nothing is known that would."""

    def __init__(self, known: frozenset[str]):
        self.known = set(known)
        self.schemas = {"", "public", *(_schema_of(name) for name in known)}
        self.missing: list[str] = []
        self.unmakeable: list[str] = []
        self.statements: list[str] = []

    def need_schema(self, name: str) -> None:
        if name not in self.schemas:
            self.schemas.add(name)
            self.statements.append(f"CREATE SCHEMA IF NOT EXISTS {name};")

    def need(self, type_: TypeModel) -> None:
        for part in (type_.element, type_.base):
            if part is not None:
                self.need(part)
        # An array comes with what it is of, a multirange with its range.
        if type_.builtin or type_.kind in ("array", "multirange") or type_.name in self.known:
            return
        self.known.add(type_.name)
        self.missing.append(type_.name)
        create = _create_type(type_)
        if create is None:
            self.unmakeable.append(type_.name)
        elif create not in self.statements:  # an extension brings several
            self.need_schema(_schema_of(type_.name))
            self.statements.append(create)

    def sentence(self) -> str:
        if not self.missing:
            return ""
        return f", nor does the target have {'types' if len(self.missing) > 1 else 'type'} {_list(self.missing)}"


def _schema_of(type_name: str) -> str:
    """The schema, quoted as it is there; '' where there is none."""
    parts = re.match(r'("(?:[^"]|"")+"|[^".]+)\.', type_name)
    return parts[1] if parts else ""


def _create_type(type_: TypeModel) -> str | None:
    if type_.extension:
        where = _schema_of(type_.name)
        return f"CREATE EXTENSION IF NOT EXISTS {written(type_.extension)}" + (f" SCHEMA {where};" if where else ";")
    if type_.kind == "enum":
        return f"CREATE TYPE {type_.name} AS ENUM ({_list(map(_literal, type_.labels))});"
    if type_.base is not None:
        checks = "".join(f" CHECK ({check})" for check in type_.checks)
        return f"CREATE DOMAIN {type_.name} AS {type_.base.text}{' NOT NULL' if type_.not_null else ''}{checks};"
    if type_.kind == "composite":
        attributes = _list(f"{written(name)} {text}" for name, text in type_.attributes)
        return f"CREATE TYPE {type_.name} AS ({attributes});"
    if type_.kind == "range" and type_.element:
        return f"CREATE TYPE {type_.name} AS RANGE (SUBTYPE = {type_.element.text});"
    return None


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# --- columns --------------------------------------------------------------------------------------------------------


class _Comparison:
    """Two tables, column by column and constraint by constraint."""

    def __init__(
        self, source: TableModel, target: TableModel, target_types: frozenset[str], names: tuple[Name, Name],
        renamed: Mapping[str, str], removed: Collection[str], altered: Collection[str],
    ):  # fmt: skip
        self.source, self.target, self.types, self.names = source, target, target_types, names
        self.removed, self.altered = removed, altered
        self.there, self.alter = _shown(names[0]), f"ALTER TABLE {written(*names[1])}"
        self.key_columns = {*(source.key or ())}
        mine = {c.name: c for c in source.columns}
        its = {c.name: c for c in target.columns}
        self.both = [(c, its[c.name]) for c in source.columns if c.name in its]
        lacking = {name: c for name, c in mine.items() if name not in its}
        extra = {name: c for name, c in its.items() if name not in mine}
        self.other_names: list[tuple[Kind, ColumnModel, ColumnModel]] = []
        for was, now in renamed.items():
            if was in extra and now in lacking:
                self.other_names.append(("renamed_column", lacking.pop(now), extra.pop(was)))
        for name in list(lacking):
            like = next((other for other in extra if other.casefold() == name.casefold()), None)
            if like is not None:
                self.other_names.append(("column_case", lacking.pop(name), extra.pop(like)))
        self.lacking, self.extra = list(lacking.values()), list(extra.values())
        # The target's names of columns and those that the source has for them.
        self.renamed = {was.name: now.name for _, now, was in self.other_names}
        self.retyped = {c.name for c, t in self.both if c.type.text != t.type.text}

    def columns(self) -> Iterator[Difference]:
        for column in self.lacking:
            yield self._source_added(column)
        for kind, now, was in self.other_names:
            yield self._other_name(kind, now, was)
        for pair in self.both:
            yield from self._pair(*pair)
        for column in self.extra:
            yield self._removed(column) if column.name in self.removed else self._target_added(column)

    def _types(self) -> _Types:
        types = _Types(self.types)
        types.schemas.add(written(self.names[1][0]))
        return types

    def _source_added(self, column: ColumnModel) -> Difference:
        types = self._types()
        types.need(column.type)
        collate = f" COLLATE {column.collation}" if column.collation else ""
        add = f"{self.alter} ADD COLUMN {written(column.name)} {column.type.text}{collate};"
        kind: Kind = "missing_type" if types.unmakeable else "source_added_column"
        return Difference(
            Finding(
                kind,
                "mismatch",
                f"Source has new column '{column.name}' not in target{types.sentence()}",
                column.name,
                impact=f"If sync continues, {column.name} data will be LOST",
                source=column.type.text,
                fix=() if types.unmakeable else (*types.statements, add),
                reason="data_loss_risk",
                metric="source_added_column",
            ),
            column,
        )

    def _other_name(self, kind: Kind, now: ColumnModel, was: ColumnModel) -> Difference:
        what = (
            f"Source has renamed column '{was.name}' to '{now.name}', target has not"
            if kind == "renamed_column"
            else f"Source has column '{now.name}', target has '{was.name}': they differ only in case"
        )
        return Difference(
            Finding(
                kind,
                "mismatch",
                what,
                now.name,
                impact=f"If sync continues, {now.name} data will be LOST",
                source=now.name,
                target=was.name,
                fix=(f"{self.alter} RENAME COLUMN {written(was.name)} TO {written(now.name)};",),
                reason="data_loss_risk",
            ),
            now,
            was,
        )

    def _target_added(self, column: ColumnModel) -> Difference:
        how, follows = _left_alone(column)
        if how:
            what = f"Target has extra column '{column.name}' ({how})"
            finding = Finding("target_added_column", "warning", what, column.name, follows, target=column.type.text)
            return Difference(finding, None, column)
        drop = f"{self.alter} ALTER COLUMN {written(column.name)} DROP NOT NULL;"
        default = _some_default(column.type)
        set_default = f"{self.alter} ALTER COLUMN {written(column.name)} SET DEFAULT {default};"
        alternatives = [drop] if column.not_null else []  # a domain is NOT NULL wherever it is used
        if default:
            alternatives += [OR, set_default] if alternatives else [set_default]
        finding = Finding(
            "target_added_column",
            "mismatch",
            f"Target has new column '{column.name}' (NOT NULL, no DEFAULT)",
            column.name,
            impact="Cannot insert rows - column requires a value",
            target=column.type.text,
            fix=tuple(alternatives),
            reason="target_not_null",
        )
        return Difference(finding, None, column)

    def _removed(self, column: ColumnModel) -> Difference:
        finding = Finding(
            "source_removed_column",
            "mismatch",
            f"Target has column '{column.name}' that no longer exists in source",
            column.name,
            impact="What is to become of its values on the target has to be decided",
            target=column.type.text,
            fix=(f"{self.alter} DROP COLUMN {written(column.name)};",),
            reason="source_removed",
        )
        return Difference(finding, None, column)

    def _pair(self, source: ColumnModel, target: ColumnModel) -> Iterator[Difference]:
        """A column that both have."""
        if source.name not in self.altered:
            generated = self._generated(source, target)
            if generated:
                yield Difference(generated, source, target)
            if not (source.generated and target.generated):
                yield from self._type(source, target)
            collation = self._collation(source, target)
            if collation:
                yield Difference(collation, source, target)
            not_null = self._not_null(source, target)
            if not_null:
                yield Difference(not_null, source, target)
        identity = self._identity(source, target)
        if identity:
            yield Difference(identity, source, target)

    # Types

    def _type(self, source: ColumnModel, target: ColumnModel) -> Iterator[Difference]:
        if source.type == target.type:
            return
        cast = judge_cast(source.type, target.type, key=source.name in self.key_columns)
        alike = source.type.text == target.type.text and _bare(source.type) == _bare(target.type)
        if cast.kind == "same" or (cast.kind == "safe" and alike):
            return
        mine, its = source.type.text, target.type.text
        where = f"{self.there}.{source.name}: {mine} on the source, {its} on the target"
        if cast.kind == "safe":
            impact = f"{cast.why} - continuing"
            finding = Finding("safe_cast", "info", f"Type difference on {where}", source.name, impact, mine, its)
        else:
            finding = Finding(
                "type_mismatch",
                "mismatch",
                f"Type mismatch on {where}",
                source.name,
                f"{cast.why} ({cast.example})" if cast.example else cast.why,
                mine,
                its,
                self._change_type(source, target),
                reason="type_mismatch",
                metric="unsafe_cast",
            )
        yield Difference(finding, source, target, cast)

    def _change_type(self, source: ColumnModel, target: ColumnModel) -> tuple[str, ...]:
        """The target's column made what the source's is."""
        alter = f"ALTER COLUMN {written(source.name)}"
        if source.type.text == target.type.text:
            if source.type.base is not None:
                return (f"{self.alter} {alter} TYPE {source.type.stored.text};",)
            return _missing_labels(source.type, target.type)
        types = self._types()
        types.need(source.type)
        if types.unmakeable:
            return ()
        collate = f" COLLATE {source.collation}" if source.collation else ""
        using = _using(written(source.name), target.type, source.type)
        actions = [f"{alter} TYPE {source.type.text}{collate}{using}"]
        if using and target.default is not None:
            actions.insert(0, f"{alter} DROP DEFAULT")  # which Postgres would have to cast as well
            if source.default is not None and "nextval" not in source.default:
                actions.append(f"{alter} SET DEFAULT {source.default}")
        return (*types.statements, f"{self.alter} {_list(actions)};")

    # Generated, identity, collation, NOT NULL

    def _generated(self, source: ColumnModel, target: ColumnModel) -> Finding | None:
        name, alter = source.name, f"{self.alter} ALTER COLUMN {written(source.name)}"
        if source.generated and not target.generated:
            what = f"Column '{name}' is generated on the source, and an ordinary column on the target"
            return Finding("generated", "info", what, name, "Its values are copied", "generated", "ordinary")
        again = f"{self.alter} DROP COLUMN {written(name)}, ADD COLUMN {_definition(source)};"
        drop = f"{alter} DROP EXPRESSION;" if target.generated == "s" else again
        if target.generated and not source.generated:
            return Finding(
                "generated",
                "mismatch",
                f"Column '{name}' is generated on the target, and an ordinary column on the source",
                name,
                f"If sync continues, {name} data will be LOST: the target computes its own",
                "ordinary",
                "generated",
                (drop,),
            )
        if not target.generated:
            return None
        mine, its = source.default or "", target.default or ""
        uncast = self._on_retyped(mine)
        same = _tree(f"SELECT {its}", uncast) == _tree(f"SELECT {mine}", uncast)
        same = same or (bool(self.renamed) and same_expression(its, mine, self.renamed))
        if same and judge_cast(source.type, target.type).kind in ("same", "safe"):
            return None
        return Finding(
            "generated",
            "mismatch",
            f"Column '{name}' is generated on both sides, and not alike",
            name,
            "The target would show other values than the source",
            f"{source.type.text} AS {mine}",
            f"{target.type.text} AS {its}",
            (drop,),
        )

    def _on_retyped(self, expression: str) -> bool:
        """Whether a column is in it whose type is another one on the target, so that it is printed with other casts."""
        return any(name in expression for name in self.retyped)

    def _identity(self, source: ColumnModel, target: ColumnModel) -> Finding | None:
        if source.identity == target.identity:
            return None
        name, alter = source.name, f"{self.alter} ALTER COLUMN {written(source.name)}"
        mine, its = (_identity_of(column) for column in (source, target))
        fix: tuple[str, ...] = ()
        if not source.identity:
            impact = "Values are copied; the cut-over sets its sequence only where both sides have the same"
            fix = (f"{alter} DROP IDENTITY;",)
        elif not target.identity:
            impact = "Values are copied; after the cut-over the target makes none for new rows"
            if target.default is None and target.not_null:
                fix = (f"{alter} ADD {mine};",)
        else:
            impact = "Values are copied; after the cut-over the target treats values that clients give otherwise"
            fix = (f"{alter} SET GENERATED {_IDENTITY[source.identity]};",)
        what = f"Column '{name}': {mine} on the source, {its} on the target"
        return Finding("identity", "warning", what, name, impact, mine, its, fix)

    def _collation(self, source: ColumnModel, target: ColumnModel) -> Finding | None:
        if (source.collation, source.deterministic) == (target.collation, target.deterministic):
            return None
        bare = _bare(source.type), _bare(target.type)
        if bare[0] != bare[1] and not all(type_.startswith(_STRINGS) for type_ in bare):
            return None  # nothing that one of them sorts by
        mine, its = (c.collation or "the default" for c in (source, target))
        name = source.name
        unique = any(name in c.columns for c in self.target.constraints if c.kind in ("p", "u", "x", "i"))
        in_key = name in self.key_columns or name in (self.target.key or ())
        merges = not target.deterministic and (in_key or unique)
        mismatch = merges or (in_key and not (source.deterministic and target.deterministic))
        collation = source.collation or 'pg_catalog."default"'
        return Finding(
            "collation",
            "mismatch" if mismatch else "warning",
            f"Column '{name}' has collation {mine} on the source, {its} on the target",
            name,
            "Values that the source tells apart, or not, are told apart otherwise on the target: rows would be refused "
            "or taken for one another"
            if mismatch
            else "Values are the same; they may sort and compare otherwise",
            mine,
            its,
            (f"{self.alter} ALTER COLUMN {written(name)} TYPE {target.type.text} COLLATE {collation};",),
        )

    def _not_null(self, source: ColumnModel, target: ColumnModel) -> Finding | None:
        keys = {*self.key_columns, *(self.target.key or ())}
        if not target.not_null or source.not_null or _never_null(source.type) or source.name in keys:
            return None
        alter = f"ALTER COLUMN {written(source.name)}"
        identity = f"{alter} DROP IDENTITY, " if target.identity else ""
        return Finding(
            "not_null",
            "mismatch",
            f"Column '{source.name}' is NOT NULL on the target, and may be NULL on the source",
            source.name,
            "Cannot insert rows - column requires a value",
            "nullable",
            "NOT NULL",
            (f"{self.alter} {identity}{alter} DROP NOT NULL;",),
            reason="target_not_null",
        )

    # --- keys and constraints

    def key(self) -> Iterator[Difference]:
        source, target = self.source.key, self.target.key
        if source is None or self._is_key(source):
            return
        primary = next((c for c in self.target.constraints if c.kind == "p"), None)
        drop = f"DROP CONSTRAINT {written(primary.name)}, " if primary else ""
        columns = _list(map(written, source))
        mine, its = f"({_list(source)})", f"({_list(target)})" if target else "none"
        finding = Finding(
            "key",
            "mismatch",
            f"The key of {self.there} is {mine} on the source, {its} on the target",
            None,
            "Changed rows could not be found again on the target",
            mine,
            its,
            (f"{self.alter} {drop}ADD PRIMARY KEY ({columns});",),
        )
        yield Difference(finding)

    def _is_key(self, key: Collection[str]) -> bool:
        """Whether the target tells rows apart by these columns of the source, whatever key it has beside it."""
        wanted = set(key)
        if wanted == set(self._here(self.target.key or ())):
            return True
        not_null = {self.renamed.get(c.name, c.name) for c in self.target.columns if c.not_null}
        keys = (_unique(c) for c in self.target.constraints)
        return wanted <= not_null and any(k is not None and set(self._here(k.columns)) == wanted for k in keys)

    def _here(self, columns: Iterable[str]) -> list[str]:
        """The target's columns by the names that the source has for them."""
        return [self.renamed.get(name, name) for name in columns]

    def constraints(self, *, keyed: bool) -> Iterator[Difference]:
        """What the target asks of rows beyond what the source does."""
        key = self.source.key
        told = not keyed or (key is not None and not self._is_key(key))
        for constraint in self.target.constraints:
            if (constraint.kind == "p" and told) or self._has(constraint) or not _enforced(constraint):
                continue
            foreign = constraint.kind == "f"
            yield Difference(self._foreign_key(constraint) if foreign else self._beyond(constraint))

    def _foreign_key(self, constraint: ConstraintModel) -> Finding:
        return Finding(
            "target_constraint",
            "warning",
            f"Target has foreign key '{constraint.name}' {constraint.definition}, source has not",
            _only(constraint.columns),
            "It is not checked while rows are replayed",
            target=constraint.definition,
            reason="target_constraint",
        )

    def _beyond(self, constraint: ConstraintModel) -> Finding:
        if constraint.kind == "i":
            what, drop = "unique index", f"DROP INDEX {written(self.names[1][0], constraint.name)};"
        else:
            what, drop = "constraint", f"{self.alter} DROP CONSTRAINT {written(constraint.name)};"
        return Finding(
            "target_constraint",
            "mismatch",
            f"Target has {what} '{constraint.name}' that source does not have: {constraint.definition}",
            _only(constraint.columns),
            "Rows of the source that do not meet it are refused",
            target=constraint.definition,
            fix=(drop,),
            reason="target_constraint",
        )

    def _has(self, constraint: ConstraintModel) -> bool:
        """Whether the source asks the same of its rows, or more."""
        alike = [c for c in self.source.constraints if c.kind == constraint.kind]
        if any(c.definition == constraint.definition for c in alike):
            return True
        unique = _unique(constraint)
        if unique is not None and any(map(self._implies(unique), self.source.constraints)):
            return True
        return any(self._same(constraint, c) and _enforced(c) for c in alike)

    def _implies(self, unique: _Unique) -> Callable[[ConstraintModel], bool]:
        """Whether no two rows can be the same to `unique` that are not the same to a constraint of the source."""
        wanted = set(self._here(unique.columns))
        not_null = {c.name for c in self.source.columns if c.not_null}

        def implies(constraint: ConstraintModel) -> bool:
            mine = _unique(constraint)
            if mine is None or not wanted.issuperset(mine.columns):
                return False
            return not unique.nulls_alike or mine.nulls_alike or not_null.issuperset(mine.columns)

        return implies

    def _same(self, target: ConstraintModel, source: ConstraintModel) -> bool:
        uncast = self._on_retyped(source.definition)
        if _tree(_statement(target), uncast) == _tree(_statement(source), uncast):
            return True
        same = same_index if target.kind == "i" else same_constraint
        return bool(self.renamed) and same(target.definition, source.definition, self.renamed)


def _left_alone(column: ColumnModel) -> tuple[str, str]:
    """What a column that only the target has gets where nobody writes it, in a word and in a sentence; '' where it has
    to be given a value."""
    if column.generated:
        return "generated", "The target computes its values"
    if column.identity:
        return "identity", "The target numbers all synced rows by itself"
    if column.default is not None:
        return f"DEFAULT {column.default}", "This column will have its default for all synced rows"
    if column.not_null or _never_null(column.type):
        return "", ""
    return "nullable", "This column will be NULL for all synced rows\nThis is OK for audit/metadata columns"


def _never_null(type_: TypeModel) -> bool:
    """Whether a domain takes no NULL."""
    return type_.not_null or (type_.base is not None and _never_null(type_.base))


_DEFAULTS = {
    **dict.fromkeys(("smallint", "integer", "bigint", "numeric", "real", "double precision"), "0"),
    **dict.fromkeys(("date", "timestamp without time zone", "timestamp with time zone"), "now()"),
    "boolean": "false",
    "uuid": "gen_random_uuid()",
    "text": "'pgddl'",
    "character varying": "''",
    "json": "'{}'",
    "jsonb": "'{}'",
}


def _some_default(type_: TypeModel) -> str:
    """A value that a column of the type could have as its default; '' where none comes to mind."""
    if type_.stored.kind == "enum":
        return _literal(type_.stored.labels[0]) if type_.stored.labels else ""
    return "" if type_.checks else _DEFAULTS.get(type_.stored.name, "")


def _only(columns: Sequence[str]) -> str | None:
    return columns[0] if len(columns) == 1 else None


def _bare(type_: TypeModel) -> str:
    """What values are stored as, domains resolved."""
    if type_.base is not None:
        return _bare(type_.base)
    return f"{type_.kind} of {_bare(type_.element)}" if type_.element is not None else type_.text


# --- changing a type ------------------------------------------------------------------------------------------------

_STRINGS = ("text", "character varying", "character", "name")
_NUMBERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")
_MOMENTS = ("date", "timestamp without time zone", "timestamp with time zone")
# Families between whose members Postgres casts where a value is assigned; to a string it always does.
_ASSIGNED = (
    _NUMBERS, _MOMENTS, (*_MOMENTS[1:], "time without time zone"), ("time without time zone", "time with time zone"),
    ("timestamp with time zone", "time with time zone"), ("bit", "bit varying"), ("json", "jsonb"), ("inet", "cidr"),
    ("macaddr", "macaddr8"), ("oid", "integer", "bigint"), ("money", "numeric", "integer", "bigint"),
)  # fmt: skip
_EXPLICIT = (("boolean", "integer"), ("bit", "integer", "bigint"), ("jsonb", "boolean", *_NUMBERS))


def _using(column: str, was: TypeModel, becomes: TypeModel) -> str:
    """USING, where Postgres would not change the type without it."""
    old, new = (type_.stored.name.removesuffix("[]") for type_ in (was, becomes))
    if old == new or new in _STRINGS or any(old in family and new in family for family in _ASSIGNED):
        return ""
    direct = old in _STRINGS or any(old in family and new in family for family in _EXPLICIT)
    return f" USING {column}::{becomes.text}" if direct else f" USING {column}::text::{becomes.text}"


def _missing_labels(wanted: TypeModel, present: TypeModel) -> tuple[str, ...]:
    """What an enum lacks; what else two types of one name can differ in has no statement of its own."""
    statements = []
    wanted, present = (type_.element or type_ for type_ in (wanted, present))
    before, there = "", list(present.labels)
    for label in wanted.labels:
        if label not in there:
            place = there.index(before) + 1 if before else 0
            if place < len(there) and there[place] not in wanted.labels:
                # Postgres takes no label away, so the source has renamed it, and with it what old rows hold.
                renamed, there[place] = there[place], label
                statements.append(f"ALTER TYPE {wanted.name} RENAME VALUE {_literal(renamed)} TO {_literal(label)};")
            else:
                where = f" AFTER {_literal(before)}" if before else ""
                statements.append(f"ALTER TYPE {wanted.name} ADD VALUE IF NOT EXISTS {_literal(label)}{where};")
                there.insert(place, label)
        before = label
    return tuple(statements)


# --- definitions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Unique:
    """Columns of which no two rows have the same values; `nulls_alike` where NULLs count as one value."""

    columns: tuple[str, ...]
    nulls_alike: bool


def _unique(constraint: ConstraintModel) -> _Unique | None:
    """None for what is no plain unique key of the whole table: partial, by expressions, or by another equality."""
    definition = constraint.definition
    if constraint.kind in ("p", "u"):
        if "WITHOUT OVERLAPS" in definition:
            return None
        return _Unique(constraint.columns, "NULLS NOT DISTINCT" in definition)
    if constraint.kind != "i":
        return None
    index = statement_node(parse(definition))
    elements = [unwrap(element) for element in index.index_params]
    if index.HasField("where_clause") or not all(e.name and not e.collation and not e.opclass for e in elements):
        return None
    return _Unique(tuple(e.name for e in elements), index.nulls_not_distinct)


def _enforced(constraint: ConstraintModel) -> bool:
    return constraint.kind == "i" or flags(constraint.definition).enforced


def _statement(constraint: ConstraintModel) -> str:
    """One that is NOT VALID holds for all that is written from now on."""
    if constraint.kind == "i":
        return constraint.definition
    return f"ALTER TABLE t ADD CONSTRAINT c {constraint.definition.removesuffix(' NOT VALID')}"


@lru_cache(maxsize=10_000)  # the gate looks at the same tables again and again
def _tree(statement: str, uncast: bool) -> bytes:
    """What a statement says: equal for two prints of one thing.

    Of an index neither its names, nor how it is stored, nor ONLY, which Postgres prints for a partitioned table. With
    `uncast` no casts: the prints of one expression differ in them where a column has another type."""
    tree = parse(statement)
    node = statement_node(tree)
    if kind_of(node) == "IndexStmt":
        node.idxname = node.table_space = node.relation.schemaname = node.relation.relname = ""
        node.relation.inh = True
        node.ClearField("options")
    if uncast and "::" in statement:
        for each in walk(tree):
            for child in _nodes(each):
                while kind_of(inner := unwrap(child)) == "TypeCast":
                    bare = type(inner.arg)()
                    bare.CopyFrom(inner.arg)
                    child.CopyFrom(bare)
    return bytes(without_locations(tree).SerializeToString(deterministic=True))


def _nodes(node: Node) -> Iterator[Node]:
    """The generic nodes in the fields of a message."""
    for field, value in node.ListFields():
        if field.message_type is not None and field.message_type.name == "Node":
            yield from value if isinstance(value, Iterable) else (value,)
