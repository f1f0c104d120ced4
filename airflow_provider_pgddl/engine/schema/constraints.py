"""What differs between the keys, constraints and unique indexes of two tables, and the SQL that ends it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from airflow_provider_pgddl.engine.ddl.parse import parse, statement_node, unwrap
from airflow_provider_pgddl.engine.schema.definitions import flags, same_constraint, same_index, tree_of
from airflow_provider_pgddl.engine.schema.difference import Difference
from airflow_provider_pgddl.engine.schema.names import comma_joined, sql_name
from airflow_provider_pgddl.engine.schema.table_model import ConstraintModel
from airflow_provider_pgddl.engine.schema.table_pair import Pair
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding

NOT_VALID = " NOT VALID"


def key_differences(pair: Pair) -> Iterator[Difference]:
    source, target = pair.source.key, pair.target.key
    if source is None or _is_key(pair, source):
        return
    primary = next((c for c in pair.target.constraints if c.kind == "p"), None)
    drop = f"DROP CONSTRAINT {sql_name(primary.name)}, " if primary else ""
    columns = comma_joined(map(sql_name, source))
    mine, its = f"({comma_joined(source)})", f"({comma_joined(target)})" if target else "none"
    finding = SchemaFinding(
        "key",
        "mismatch",
        f"The key of {pair.there} is {mine} on the source, {its} on the target",
        None,
        "Changed rows could not be found again on the target",
        mine,
        its,
        (f"{pair.alter} {drop}ADD PRIMARY KEY ({columns});",),
    )
    yield Difference(finding)


def _is_key(pair: Pair, key: Collection[str]) -> bool:
    """Whether the target tells rows apart by these columns of the source, whatever key it has beside it."""
    wanted = set(key)
    if wanted == set(_here(pair, pair.target.key or ())):
        return True
    not_null = {pair.renamed.get(c.name, c.name) for c in pair.target.columns if c.never_null}
    keys = (_unique(c) for c in pair.target.constraints)
    return wanted <= not_null and any(k is not None and set(_here(pair, k.columns)) == wanted for k in keys)


def _here(pair: Pair, columns: Iterable[str]) -> list[str]:
    """The target's columns by the names that the source has for them."""
    return [pair.renamed.get(name, name) for name in columns]


def constraint_differences(pair: Pair, *, keyed: bool) -> Iterator[Difference]:
    """What the target asks of rows beyond what the source does."""
    key = pair.source.key
    told = not keyed or (key is not None and not _is_key(pair, key))
    for constraint in pair.target.constraints:
        if constraint.kind == "c" and _asks_old_rows(pair, constraint):
            yield Difference(_on_old_rows(pair, constraint))
        if (constraint.kind == "p" and told) or _has(pair, constraint) or not _enforced(constraint):
            continue
        foreign = constraint.kind == "f"
        yield Difference(_foreign_key(constraint) if foreign else _beyond(pair, constraint))


def _foreign_key(constraint: ConstraintModel) -> SchemaFinding:
    return SchemaFinding(
        "target_constraint",
        "warning",
        f"Target has foreign key '{constraint.name}' {constraint.definition}, source has not",
        _only(constraint.columns),
        "It is not checked while rows are replayed",
        target=constraint.definition,
        reason="target_constraint",
    )


def _beyond(pair: Pair, constraint: ConstraintModel) -> SchemaFinding:
    if constraint.kind == "i":
        what, drop = "unique index", f"DROP INDEX {sql_name(pair.names[1][0], constraint.name)};"
    else:
        what, drop = "constraint", f"{pair.alter} DROP CONSTRAINT {sql_name(constraint.name)};"
    return SchemaFinding(
        "target_constraint",
        "mismatch",
        f"Target has {what} '{constraint.name}' that source does not have: {constraint.definition}",
        _only(constraint.columns),
        "Rows of the source that do not meet it are refused",
        target=constraint.definition,
        fix=(drop,),
        reason="target_constraint",
    )


def _on_old_rows(pair: Pair, constraint: ConstraintModel) -> SchemaFinding:
    return SchemaFinding(
        "target_constraint",
        "warning",  # it may be that all meet it
        f"Target has constraint '{constraint.name}' for all rows, source for new ones only: NOT VALID",
        _only(constraint.columns),
        "Rows of the source that do not meet it are refused",
        target=constraint.definition,
        fix=(f"{pair.alter} DROP CONSTRAINT {sql_name(constraint.name)};",),
        reason="target_constraint",
    )


def _asks_old_rows(pair: Pair, check: ConstraintModel) -> bool:
    """Whether the source has the same NOT VALID alone, and the target not."""
    alike = [c for c in pair.source.constraints if c.kind == check.kind and _same(pair, check, c)]
    valid = [c for c in (check, *alike) if not c.definition.endswith(NOT_VALID)]
    return bool(alike) and valid == [check]


def _has(pair: Pair, constraint: ConstraintModel) -> bool:
    """Whether the source asks the same of its rows, or more."""
    alike = [c for c in pair.source.constraints if c.kind == constraint.kind]
    if any(c.definition == constraint.definition for c in alike):
        return True
    unique = _unique(constraint)
    if unique is not None and any(map(_implies(pair, unique), pair.source.constraints)):
        return True
    return any(_same(pair, constraint, c) and _enforced(c) for c in alike)


def _implies(pair: Pair, unique: _Unique) -> Callable[[ConstraintModel], bool]:
    """Whether no two rows can be the same to `unique` that are not the same to a constraint of the source."""
    wanted = set(_here(pair, unique.columns))
    not_null = {c.name for c in pair.source.columns if c.never_null}

    def implies(constraint: ConstraintModel) -> bool:
        mine = _unique(constraint)
        if mine is None or not wanted.issuperset(mine.columns):
            return False
        return not unique.nulls_alike or mine.nulls_alike or not_null.issuperset(mine.columns)

    return implies


def _same(pair: Pair, target: ConstraintModel, source: ConstraintModel) -> bool:
    uncast = pair.on_retyped(source.definition)
    if tree_of(_statement(target), uncast) == tree_of(_statement(source), uncast):
        return True
    same = same_index if target.kind == "i" else same_constraint
    return bool(pair.renamed) and same(target.definition, source.definition, pair.renamed)


def _only(columns: Sequence[str]) -> str | None:
    return columns[0] if len(columns) == 1 else None


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
    return f"ALTER TABLE t ADD CONSTRAINT c {constraint.definition.removesuffix(NOT_VALID)}"
