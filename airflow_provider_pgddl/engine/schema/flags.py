"""The schema gate's flags on the command line, and how they change a pipeline file. Pure.

The command line reads OPTIONS at every start, so only the standard library is imported up here.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterable, Mapping
from typing import Any

DRIFT = ("source_superset", "target_superset", "type_casts", "all")
_COLUMNS = "[SCHEMA.]TABLE.COLUMN,..."

# (flags, settings) as argparse takes them.
OPTIONS: tuple[tuple[tuple[str, ...], Mapping[str, Any]], ...] = (
    (
        ("--schema-validation",),
        {"choices": ("strict", "warn-only", "disabled"), "default": None,
         "help": "what a mismatch does, for all tables (disabled needs --force)"},
    ),
    (
        ("--allow-schema-drift",),
        {"action": "append", "default": [], "metavar": "TYPE,...",
         "help": "let pass: source_superset (data loss), target_superset (a column that the source has lost keeps its "
         "values, too), type_casts (precision loss), all; all but target_superset need --force"},
    ),
    (
        ("--skip-columns",),
        {"action": "append", "default": [], "metavar": _COLUMNS, "help": "do not copy these columns (data loss)"},
    ),
    (
        ("--preserve-columns",),
        {"action": "append", "default": [], "metavar": _COLUMNS,
         "help": "keep the values of columns that were removed from the source"},
    ),
    (
        ("--null-removed-columns",),
        {"action": "append", "default": [], "metavar": _COLUMNS,
         "help": "set columns that were removed from the source to NULL (needs --force)"},
    ),
    (
        ("--allow-type-cast",),
        {"action": "append", "default": [], "metavar": "[SCHEMA.]TABLE.COLUMN:TYPE,...",
         "help": "cast these columns to the type that the target has, even if it loses data (needs --force)"},
    ),
    (
        ("--allow-all-type-casts",),
        {"action": "store_true", "help": "the same as --allow-schema-drift=type_casts (needs --force)"},
    ),
    (
        ("--auto-migrate-schema",),
        {"action": "store_true", "help": "add columns to the target and widen its types, without asking"},
    ),
    (("--force",), {"action": "store_true", "help": "let flags pass that can lose data"}),
)  # fmt: skip

# What a table's own setting may say against a flag, which is the later word.
_STRICTER = {
    "source_superset": ("source_added_columns",),
    "target_superset": ("target_added_columns", "source_removed_columns"),
    "type_casts": ("type_mismatches",),
    "all": ("source_added_columns", "target_added_columns", "source_removed_columns", "type_mismatches",
            "target_added_constraints"),
}  # fmt: skip


def merged(content: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """The pipeline's tree (`Pipeline.to_json`) with the flags of OPTIONS in it, for `load_pipeline`.

    A flag is stronger than the file; lists are added to the file's. UsageError says which flag is wrong."""
    from airflow_provider_pgddl.engine.pipeline.key_positions import ORIGIN

    tree = copy.deepcopy(dict(content))
    schema = tree["schema"]
    overrides = schema["overrides"].values()
    schema["force"] = schema["force"] or args.force
    if args.schema_validation:
        schema["validation"] = args.schema_validation.replace("-", "_")
        for own in overrides:
            own.pop("validation", None)
        if args.schema_validation == "disabled":
            _need_force(schema, "--schema-validation=disabled")

    drift = _drift(args.allow_schema_drift)
    for word in drift:
        if word != "target_superset":
            _need_force(schema, f"--allow-schema-drift={word}")
    if args.allow_all_type_casts:
        _need_force(schema, "--allow-all-type-casts")
        drift.append("type_casts")
    for own in overrides:
        for key in (key for word in drift for key in _STRICTER[word]):
            if own.get(key) in ("stop", "cast_if_safe"):
                del own[key]
    schema["allow_schema_drift"] = list(dict.fromkeys([*schema["allow_schema_drift"], *drift]))

    _add_columns(tree["tables"]["skip_columns"], "--skip-columns", args.skip_columns)
    _add_columns(schema["preserve_columns"], "--preserve-columns", args.preserve_columns)
    _add_columns(schema["null_removed_columns"], "--null-removed-columns", args.null_removed_columns)
    if args.null_removed_columns:
        _need_force(schema, "--null-removed-columns")
    if args.allow_type_cast:
        _need_force(schema, "--allow-type-cast")
        _add_casts(schema, args.allow_type_cast)
    if args.auto_migrate_schema:
        schema["auto_migrate"] = {"types": ["add_column", "safe_type_change"], "approval": "auto"}
    if ORIGIN in tree:  # what was said here is no default
        for section in ("schema", "tables"):
            for key, value in tree[section].items():
                if value != content[section][key]:
                    within = [f".{each}" for each in value] if isinstance(value, Mapping) else [""]
                    tree[ORIGIN]["given"] += [f"{section}.{key}{each}" for each in within]
    return tree


def _need_force(schema: Mapping[str, Any], flag: str) -> None:
    from airflow_provider_pgddl.engine.errors import UsageError

    if not schema["force"]:
        raise UsageError(f"{flag} can lose data", todo="add --force if that is meant")


def _drift(given: Iterable[str]) -> list[str]:
    from airflow_provider_pgddl.engine.errors import UsageError

    words = [word for text in given for word in _split(text)]
    for word in words:
        if word not in DRIFT:
            raise UsageError(f"--allow-schema-drift: {word}: expected one of: {', '.join(DRIFT)}")
    return words


def _add_columns(listed: dict[str, list[str]], flag: str, given: Iterable[str]) -> None:
    from airflow_provider_pgddl.engine.pipeline.names import column_name, table_name, written

    for name in (name for text in given for name in _split(text)):
        table, column = _table_column(flag, name)
        # The file may write the same table in another way.
        key = next((key for key in listed if table_name(key) == table), written(*table))
        columns = listed.setdefault(key, [])
        if column not in map(column_name, columns):
            columns.append(written(column))


def _add_casts(schema: dict[str, Any], given: Iterable[str]) -> None:
    from airflow_provider_pgddl.engine.errors import UsageError
    from airflow_provider_pgddl.engine.pipeline.names import (
        column_name,
        sql_type,
        table_column_name,
        table_name,
        written,
    )

    for cast in (cast for text in given for cast in _split(text)):
        name, *types = _split(cast, ":")
        if len(types) != 1:
            raise UsageError(f"--allow-type-cast: {cast}: write it as schema.table.column:type")
        try:
            sql_type(types[0])
        except ValueError as error:
            raise UsageError(f"--allow-type-cast: {error}") from None
        table, column = _table_column("--allow-type-cast", name)
        for key in [key for key in schema["allow_type_cast"] if table_column_name(key) == (table, column)]:
            del schema["allow_type_cast"][key]
        for key, own in schema["overrides"].items():
            if table_name(key) == table and "allow_type_cast" in own:
                casts = own["allow_type_cast"].items()
                own["allow_type_cast"] = {key: to for key, to in casts if column_name(key) != column}
        schema["allow_type_cast"][written(*table, column)] = types[0]


def _table_column(flag: str, text: str) -> tuple[tuple[str, str], str]:
    """`schema.table.column`, or `table.column` of schema public."""
    from airflow_provider_pgddl.engine.errors import UsageError
    from airflow_provider_pgddl.engine.pipeline.names import table_column_name

    full = f"public.{text}" if len(_split(text, ".")) == 2 else text
    try:
        return table_column_name(full)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def _split(text: str, at: str = ",") -> list[str]:
    """Split where `at` stands outside of double quotes and of parentheses."""
    parts, quoted, depth = [""], False, 0
    for char in text:
        quoted ^= char == '"'
        if not quoted:
            depth += (char == "(") - (char == ")")
        if char == at and not quoted and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]
