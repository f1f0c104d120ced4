"""What differs in the types and collations of a column that both tables have, and the statements that make the
target's what the source's are. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_pgddl.engine.schema.casts import judge_cast
from airflow_provider_pgddl.engine.schema.difference import Difference
from airflow_provider_pgddl.engine.schema.names import comma_joined, literal, sql_name
from airflow_provider_pgddl.engine.schema.table_model import ColumnModel, TypeModel
from airflow_provider_pgddl.engine.schema.table_pair import Pair
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding

_STRINGS = ("text", "character varying", "character", "name")
_NUMBERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")
_MOMENTS = ("date", "timestamp without time zone", "timestamp with time zone")
# Families between whose members Postgres casts where a value is assigned; to a string it always does.
_ASSIGNED = (
    _NUMBERS,
    _MOMENTS,
    (*_MOMENTS[1:], "time without time zone"),
    ("time without time zone", "time with time zone"),
    ("timestamp with time zone", "time with time zone"),
    ("bit", "bit varying"),
    ("json", "jsonb"),
    ("inet", "cidr"),
    ("macaddr", "macaddr8"),
    ("oid", "integer", "bigint"),
    ("money", "numeric", "integer", "bigint"),
)
_EXPLICIT = (("boolean", "integer"), ("bit", "integer", "bigint"), ("jsonb", "boolean", *_NUMBERS))


def type_difference(pair: Pair, source: ColumnModel, target: ColumnModel) -> Iterator[Difference]:
    if source.type == target.type:
        return
    cast = judge_cast(source.type, target.type, key=source.name in pair.key_columns)
    alike = source.type.text == target.type.text and _bare(source.type) == _bare(target.type)
    if cast.kind == "same" or (cast.kind == "safe" and alike):
        return
    mine, its = source.type.text, target.type.text
    where = f"{pair.there}.{source.name}: {mine} on the source, {its} on the target"
    if cast.kind == "safe":
        impact = f"{cast.why} - continuing"
        finding = SchemaFinding("safe_cast", "info", f"Type difference on {where}", source.name, impact, mine, its)
    else:
        finding = SchemaFinding(
            "type_mismatch",
            "mismatch",
            f"Type mismatch on {where}",
            source.name,
            f"{cast.why} ({cast.example})" if cast.example else cast.why,
            mine,
            its,
            _change_type(pair, source, target),
            reason="type_mismatch",
            metric="unsafe_cast",
        )
    yield Difference(finding, source, target, cast)


def _change_type(pair: Pair, source: ColumnModel, target: ColumnModel) -> tuple[str, ...]:
    """The target's column made what the source's is."""
    alter = f"ALTER COLUMN {sql_name(source.name)}"
    if source.type.text == target.type.text:
        if source.type.base is not None:
            return (f"{pair.alter} {alter} TYPE {source.type.stored.text};",)
        return _missing_labels(source.type, target.type)
    types = pair.needed_types()
    types.need(source.type)
    if types.unmakeable:
        return ()
    collate = f" COLLATE {source.collation}" if source.collation else ""
    using = _using(sql_name(source.name), target.type, source.type)
    actions = [f"{alter} TYPE {source.type.text}{collate}{using}"]
    if using and target.default is not None:
        actions.insert(0, f"{alter} DROP DEFAULT")  # which Postgres would have to cast as well
        if source.default is not None and "nextval" not in source.default:
            actions.append(f"{alter} SET DEFAULT {source.default}")
    return (*types.statements, f"{pair.alter} {comma_joined(actions)};")


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
                statements.append(f"ALTER TYPE {wanted.name} RENAME VALUE {literal(renamed)} TO {literal(label)};")
            else:
                where = f" AFTER {literal(before)}" if before else ""
                statements.append(f"ALTER TYPE {wanted.name} ADD VALUE IF NOT EXISTS {literal(label)}{where};")
                there.insert(place, label)
        before = label
    return tuple(statements)


def collation_finding(pair: Pair, source: ColumnModel, target: ColumnModel) -> SchemaFinding | None:
    if (source.collation, source.deterministic) == (target.collation, target.deterministic):
        return None
    bare = _bare(source.type), _bare(target.type)
    if bare[0] != bare[1] and not all(type_.startswith(_STRINGS) for type_ in bare):
        return None  # nothing that one of them sorts by
    mine, its = (c.collation or "the default" for c in (source, target))
    name = source.name
    unique = any(name in c.columns for c in pair.target.constraints if c.kind in ("p", "u", "x", "i"))
    in_key = name in pair.key_columns or name in (pair.target.key or ())
    merges = not target.deterministic and (in_key or unique)
    mismatch = merges or (in_key and not (source.deterministic and target.deterministic))
    collation = source.collation or 'pg_catalog."default"'
    return SchemaFinding(
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
        (f"{pair.alter} ALTER COLUMN {sql_name(name)} TYPE {target.type.text} COLLATE {collation};",),
    )


def _bare(type_: TypeModel) -> str:
    """What values are stored as, domains resolved."""
    if type_.base is not None:
        return _bare(type_.base)
    return f"{type_.kind} of {_bare(type_.element)}" if type_.element is not None else type_.text
