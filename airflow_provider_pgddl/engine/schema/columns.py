"""What differs between the columns of two tables, and the SQL that ends it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from airflow_provider_pgddl.engine.schema.casts import judge_cast
from airflow_provider_pgddl.engine.schema.column_types import collation_finding, type_difference
from airflow_provider_pgddl.engine.schema.definitions import same_expression, tree_of
from airflow_provider_pgddl.engine.schema.difference import Difference
from airflow_provider_pgddl.engine.schema.names import literal, sql_name
from airflow_provider_pgddl.engine.schema.table_model import ColumnModel, TypeModel
from airflow_provider_pgddl.engine.schema.table_pair import Pair
from airflow_provider_pgddl.engine.schema.verdict import OR, FindingKind, SchemaFinding

_IDENTITY = {"a": "ALWAYS", "d": "BY DEFAULT"}
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


def column_differences(pair: Pair) -> Iterator[Difference]:
    for column in pair.lacking:
        yield _source_added(pair, column)
    for kind, now, was in pair.other_names:
        yield _other_name(pair, kind, now, was)
    for source, target in pair.both:
        yield from _both(pair, source, target)
    for column in pair.extra:
        yield _removed(pair, column) if column.name in pair.removed else _target_added(pair, column)


def _source_added(pair: Pair, column: ColumnModel) -> Difference:
    types = pair.needed_types()
    types.need(column.type)
    # Rows that are there have no value yet, but for one that follows from the others.
    bare = replace(column, not_null=False, identity="")
    add = f"{pair.alter} ADD COLUMN {column_definition(bare, pair.major)};"
    kind: FindingKind = "missing_type" if types.unmakeable else "source_added_column"
    return Difference(
        SchemaFinding(
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


def _other_name(pair: Pair, kind: FindingKind, now: ColumnModel, was: ColumnModel) -> Difference:
    what = (
        f"Source has renamed column '{was.name}' to '{now.name}', target has not"
        if kind == "renamed_column"
        else f"Source has column '{now.name}', target has '{was.name}': they differ only in case"
    )
    return Difference(
        SchemaFinding(
            kind,
            "mismatch",
            what,
            now.name,
            impact=f"If sync continues, {now.name} data will be LOST",
            source=now.name,
            target=was.name,
            fix=(f"{pair.alter} RENAME COLUMN {sql_name(was.name)} TO {sql_name(now.name)};",),
            reason="data_loss_risk",
        ),
        now,
        was,
    )


def _target_added(pair: Pair, column: ColumnModel) -> Difference:
    how, follows = _left_alone(column)
    if how:
        what = f"Target has extra column '{column.name}' ({how})"
        finding = SchemaFinding("target_added_column", "warning", what, column.name, follows, target=column.type.text)
        return Difference(finding, None, column)
    drop = f"{pair.alter} ALTER COLUMN {sql_name(column.name)} DROP NOT NULL;"
    default = _some_default(column.type)
    set_default = f"{pair.alter} ALTER COLUMN {sql_name(column.name)} SET DEFAULT {default};"
    alternatives = [drop] if column.not_null else []  # a domain is NOT NULL wherever it is used
    if default:
        alternatives += [OR, set_default] if alternatives else [set_default]
    finding = SchemaFinding(
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


def _some_default(type_: TypeModel) -> str:
    """A value that a column of the type could have as its default; '' where none comes to mind."""
    if type_.stored.kind == "enum":
        return literal(type_.stored.labels[0]) if type_.stored.labels else ""
    return "" if type_.checks else _DEFAULTS.get(type_.stored.name, "")


def _removed(pair: Pair, column: ColumnModel) -> Difference:
    finding = SchemaFinding(
        "source_removed_column",
        "mismatch",
        f"Target has column '{column.name}' that no longer exists in source",
        column.name,
        impact="What is to become of its values on the target has to be decided",
        target=column.type.text,
        fix=(f"{pair.alter} DROP COLUMN {sql_name(column.name)};",),
        reason="source_removed",
    )
    return Difference(finding, None, column)


def _both(pair: Pair, source: ColumnModel, target: ColumnModel) -> Iterator[Difference]:
    """A column that both have."""
    if source.name not in pair.altered:
        generated = _generated(pair, source, target)
        if generated:
            yield Difference(generated, source, target)
        if not (source.generated and target.generated):
            yield from type_difference(pair, source, target)
        collation = collation_finding(pair, source, target)
        if collation:
            yield Difference(collation, source, target)
        not_null = _not_null(pair, source, target)
        if not_null:
            yield Difference(not_null, source, target)
    identity = _identity(pair, source, target)
    if identity:
        yield Difference(identity, source, target)


def _generated(pair: Pair, source: ColumnModel, target: ColumnModel) -> SchemaFinding | None:
    name, alter = source.name, f"{pair.alter} ALTER COLUMN {sql_name(source.name)}"
    if source.generated and not target.generated:
        what = f"Column '{name}' is generated on the source, and an ordinary column on the target"
        return SchemaFinding("generated", "info", what, name, "Its values are copied", "generated", "ordinary")
    again = f"{pair.alter} DROP COLUMN {sql_name(name)}, ADD COLUMN {column_definition(source, pair.major)};"
    if target.generated and not source.generated:
        return SchemaFinding(
            "generated",
            "mismatch",
            f"Column '{name}' is generated on the target, and an ordinary column on the source",
            name,
            f"If sync continues, {name} data will be LOST: the target computes its own",
            "ordinary",
            "generated",
            (f"{alter} DROP EXPRESSION;" if target.generated == "s" else again,),
        )
    if not target.generated:
        return None
    mine, its = source.default or "", target.default or ""
    uncast = pair.on_retyped(mine)
    same = tree_of(f"SELECT {its}", uncast) == tree_of(f"SELECT {mine}", uncast)
    same = same or (bool(pair.renamed) and same_expression(its, mine, pair.renamed))
    alike = judge_cast(source.type, target.type).kind in ("same", "safe")
    if same and alike:
        return None
    # Postgres takes another expression from 17 on; for a virtual column only where nothing is checked.
    checked = target.generated == "v" and any(c.kind == "c" for c in pair.target.constraints)
    in_place = alike and pair.major >= 17 and not checked
    return SchemaFinding(
        "generated",
        "mismatch",
        f"Column '{name}' is generated on both sides, and not alike",
        name,
        "The target would show other values than the source",
        f"{source.type.text} AS {mine}",
        f"{target.type.text} AS {its}",
        (f"{alter} SET EXPRESSION AS ({mine});" if in_place else again,),
    )


def _identity(pair: Pair, source: ColumnModel, target: ColumnModel) -> SchemaFinding | None:
    if source.identity == target.identity:
        return None
    name, alter = source.name, f"{pair.alter} ALTER COLUMN {sql_name(source.name)}"
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
    return SchemaFinding("identity", "warning", what, name, impact, mine, its, fix)


def _not_null(pair: Pair, source: ColumnModel, target: ColumnModel) -> SchemaFinding | None:
    keys = {*pair.key_columns, *(pair.target.key or ())}
    if not target.not_null or source.never_null or _never_null(source.type) or source.name in keys:
        return None
    if source.not_null and target.not_valid:
        return None  # alike: rows from before came before it
    alter = f"ALTER COLUMN {sql_name(source.name)}"
    identity = f"{alter} DROP IDENTITY, " if target.identity else ""
    what = f"Column '{source.name}' is NOT NULL on the target, and may be NULL on the source"
    impact, mine = "Cannot insert rows - column requires a value", "nullable"
    if source.not_null:
        what, mine = f"{what} in rows from before: NOT NULL … NOT VALID", "NOT NULL NOT VALID"
        impact = "Cannot insert such rows - column requires a value"
    return SchemaFinding(
        "not_null",
        "warning" if source.not_null else "mismatch",  # it may be that none is
        what,
        source.name,
        impact,
        mine,
        "NOT NULL",
        (f"{pair.alter} {identity}{alter} DROP NOT NULL;",),
        reason="target_not_null",
    )


def _never_null(type_: TypeModel) -> bool:
    """Whether a domain takes no NULL."""
    return type_.not_null or (type_.base is not None and _never_null(type_.base))


def column_definition(column: ColumnModel, major: int) -> str:
    """A column as CREATE TABLE says it on a server of this version, which stores what it cannot compute when it is
    read; without its DEFAULT, which may need what the target does not have."""
    parts = [sql_name(column.name), column.type.text]
    if column.collation:
        parts.append(f"COLLATE {column.collation}")
    if column.generated:
        virtual = column.generated == "v" and major >= 18
        parts.append(f"GENERATED ALWAYS AS ({column.default}) {'VIRTUAL' if virtual else 'STORED'}")
    if column.identity:
        parts.append(_identity_of(column))
    if column.never_null:
        parts.append("NOT NULL")
    return " ".join(parts)


def _identity_of(column: ColumnModel) -> str:
    return f"GENERATED {_IDENTITY[column.identity]} AS IDENTITY" if column.identity else "no identity"
