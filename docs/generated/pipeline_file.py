"""The table of all keys of the pipeline file, by the model: its docstrings, annotations and defaults."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from airflow_provider_pgddl.engine.pipeline import fields
from airflow_provider_pgddl.engine.pipeline.fields import Section
from airflow_provider_pgddl.engine.pipeline.later import KEYS, Later
from airflow_provider_pgddl.engine.pipeline.model import Capture, Overrides, Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import model_of
from airflow_provider_pgddl.engine.preflight.unsupported_keys import BUILT

# What the annotations of the model say in the file.
_WORDS = {
    "Bytes": "size", "ColumnName": "column", "ConnId": "text", "Count": "number", "Flag": "true, false",
    "Pattern": "pattern", "PipelineName": "name", "Seconds": "duration", "SqlType": "type",
    "TableColumnName": "schema.table.column", "TableName": "table",
    "Tag": "command tag", "Text": "text", "int": "number", "str": "text",
}  # fmt: skip


@dataclass(frozen=True)
class Key:
    """One line of the table. `type` and `meaning` are Markdown; `later` says what becomes of it after setup."""

    key: str
    type: str
    default: str
    meaning: str
    later: Later


def each_key() -> Iterator[Key]:
    """Every key of the file in the model's order, `<table>` for a table's name."""
    yield from _keys(Pipeline)


def leaves(model: type[Section] = Pipeline, path: str = "") -> Iterator[tuple[str, FieldInfo, type[Section]]]:
    """(dotted key, its field, the section that holds it) of all that a file may say."""
    for name, field in model.model_fields.items():
        key = f"{path}{field.alias or name}"
        inner, named = model_of(field.annotation)
        if inner is None:
            yield key, field, model
        else:
            yield from leaves(inner, f"{key}.<table>." if named else f"{key}.")


def _keys(model: type[Section]) -> Iterator[Key]:
    for key, field, section in leaves(model):
        name = key.rpartition(".")[2]
        annotation, said = _source(section)[name]
        meaning, _, type_text = said.partition("Type: ")
        if section is Overrides and not meaning:
            above = "tables" if name == "skip_columns" else "schema"
            meaning = f"As `{above}.{name}`, for this table"
        if built := BUILT.get(key):
            meaning += f" Works today: {', '.join(f'`{word}`' for word in built)}."
        type_text = type_text.removesuffix(".") or _type(annotation, field)
        yield Key(key, type_text, _default(key, field), meaning.strip().removesuffix("."), KEYS[key])


@cache
def _source(section: type[Section]) -> dict[str, tuple[ast.expr, str]]:
    """The annotation and the docstring of each field, as they are written."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, tuple[ast.expr, str]] = {}
    for node, behind in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = ""
            if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
                text = " ".join(str(behind.value.value).split())
            found[node.target.id] = node.annotation, text
    return found


def _type(annotation: ast.expr, field: FieldInfo) -> str:
    words = list(dict.fromkeys(_words(field.annotation)))
    if words:
        listed = "list of " if ast.unparse(annotation).startswith("tuple") else ""
        roles = ", or role: role" if "dict[" in ast.unparse(annotation) else ""
        return listed + ", ".join(words) + roles
    bounds = [getattr(m, side) for side in ("ge", "le") for m in field.metadata if getattr(m, side, None) is not None]
    if "Seconds" in ast.unparse(annotation) and len(bounds) == 2:
        return " to ".join(map(fields._seconds_text, bounds))
    if len(bounds) == 2:
        return " to ".join(map(str, bounds))
    return _in_words(annotation)


def _words(annotation: Any) -> Iterator[str]:
    """The words that a key takes."""
    if get_origin(annotation) is Literal:
        yield from (word for word in get_args(annotation) if word != "inherit")
    else:
        for argument in get_args(annotation):
            yield from _words(argument)


def _in_words(node: ast.expr) -> str:
    match node:
        case ast.BinOp(left=left):
            return _in_words(left)  # the rest is None
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[item, _])):
            return f"list of {_in_words(item)}s"
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, value])):
            return f"{_in_words(key)}: {_in_words(value)}"
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[item, *_])):
            return _in_words(item)
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
    raise ValueError(f"no words for {ast.unparse(node)}: write `Type: …` at the end of the field's docstring")


def _default(key: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if key == "capture.ddl":
        return f"`{Capture().ddl}`"
    if key in ("ddl.create_tags", "ddl.drop_tags", "ddl.blocked_tags"):
        return "[the lists](ddl.md#the-lists)"
    value = field.get_default(call_default_factory=True)
    if value is None or value == "inherit":
        return "–"
    if isinstance(value, float):
        return f"`{_duration(value)}`"
    if _is_size(field):
        return f"`{_size(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(value)}]`"
    if isinstance(value, dict):
        return "`{}`"
    return f'`"{value}"`' if re.search(r"[^\w]", str(value)) else f"`{value}`"


def _is_size(field: FieldInfo) -> bool:
    return any(getattr(m, "func", None) is fields.size_bytes for m in field.metadata)


def _duration(value: float) -> str:
    return f"{int(value // 60)}min" if value > 60 and value % 60 == 0 else fields._seconds_text(value)


def _size(value: int) -> str:
    units = ((30, "GB"), (20, "MB"), (10, "kB"))
    return next(f"{value >> shift}{unit}" for shift, unit in units if not value % (1 << shift))


def tables() -> str:
    """Markdown: a heading and a table for each section of the file."""
    lines: list[str] = []
    current = ""
    for key in each_key():
        section = key.key.partition(".")[0] if "." in key.key else "endpoints"
        section = "endpoints" if section in ("source", "target") else section
        if section != current:
            current = section
            lines += ["", f"### {section}", "", "| Key | Type | Default | Meaning | Later |", "|---|---|---|---|---|"]
        later = ": ".join(filter(None, (key.later.how, key.later.why)))
        cells = (f"`{key.key}`", key.type, key.default, key.meaning, later)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).strip() + "\n"
