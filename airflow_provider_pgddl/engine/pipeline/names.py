"""Names and patterns of tables and columns, as a pipeline file writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from airflow_provider_pgddl.engine.ddl.parse import kind_of, parse, statement_node, texts, unwrap, without_locations
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.model.names import Name

# Postgres cuts longer names silently (NAMEDATALEN - 1).
MAX_NAME_BYTES = 63
_QUOTING = 'quote a name with dots or capitals, as in "Sales"."Order.Items"'
# In bytes, as the server's own scanner reads names; a class with all of Unicode takes 20 ms to compile.
_PLAIN = re.compile(rb"[A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]*")
_NOT_IN_PATTERN = re.compile(rb"[^A-Za-z0-9_$*?\x80-\xff]")


def _fold(text: str) -> str:
    """Lower case as the server does it to unquoted names: ASCII only."""
    return "".join(char.lower() if char.isascii() else char for char in text)


def _parts(text: str) -> list[list[tuple[bool, str]]]:
    """A dotted name as parts; each part is a list of (quoted, text) runs."""
    parts: list[list[tuple[bool, str]]] = [[]]
    position = 0
    while position < len(text):
        if text[position] == '"':
            run, position = "", position + 1
            while True:
                end = text.find('"', position)
                if end < 0:
                    raise ValueError(f"{text}: the double quote is not closed")
                run += text[position:end]
                position = end + 1
                if text[position : position + 1] != '"':
                    break
                run, position = run + '"', position + 1
            parts[-1].append((True, run))
        elif text[position] == ".":
            parts.append([])
            position += 1
        else:
            start = position
            while position < len(text) and text[position] not in '".':
                position += 1
            parts[-1].append((False, text[start:position]))
    return parts


def _exact(text: str, count: int, shape: str) -> tuple[str, ...]:
    parts = _parts(text)
    if len(parts) != count or not all("".join(run for _, run in part) for part in parts):
        raise ValueError(f"{text}: write it as {shape}; {_QUOTING}")
    names = []
    for part in parts:
        for quoted, run in part:
            if not quoted and not _PLAIN.fullmatch(run.encode()):
                reason = "a pattern cannot stand here" if set(run) & set("*?") else 'put it in "double quotes"'
                raise ValueError(f"{text}: {run} is not a plain name; {reason}")
        name = "".join(run if quoted else _fold(run) for quoted, run in part)
        if len(name.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"{text}: the name is longer than Postgres' {MAX_NAME_BYTES} bytes")
        names.append(name)
    return tuple(names)


def table_name(text: str) -> Name:
    """`schema.table` as the file writes it, as exact names. ValueError says what is wrong."""
    schema, table = _exact(text, 2, "schema.table")
    return schema, table


def column_name(text: str) -> str:
    """A column's name as the file writes it: unquoted names fold to lower case, as in SQL."""
    return _exact(text, 1, "a column's name")[0]


def table_column_name(text: str) -> tuple[Name, str]:
    """`schema.table.column` as the file writes it."""
    schema, table, column = _exact(text, 3, "schema.table.column")
    return (schema, table), column


def exact_columns(listed: Mapping[str, Iterable[str]]) -> dict[Name, tuple[str, ...]]:
    """Lists of columns as the file writes them, by exact (schema, table)."""
    return {table_name(name): tuple(map(column_name, columns)) for name, columns in listed.items()}


@lru_cache(1000)
def table_pattern(text: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """`schema.table` with `*` and `?`, as one regular expression for each part; in quotes they are plain characters."""
    parts = _parts(text)
    if len(parts) != 2 or not all("".join(run for _, run in part) for part in parts):
        raise ValueError(f"{text}: a pattern has two parts, schema.table (all tables: *.*); {_QUOTING}")
    compiled = []
    for part in parts:
        expression = ""
        for quoted, run in part:
            if quoted:
                expression += re.escape(run)
                continue
            if _NOT_IN_PATTERN.search(run.encode()):
                raise ValueError(f'{text}: only * and ? mean something in a pattern; put the rest in "double quotes"')
            expression += re.escape(_fold(run)).replace(r"\*", ".*").replace(r"\?", ".")
        compiled.append(re.compile(expression, re.DOTALL))
    return compiled[0], compiled[1]


def written(*names: str) -> str:
    """Names joined by dots the way people write them: quoted only where they must be."""

    def one(name: str) -> str:
        return name if _PLAIN.fullmatch(name.encode()) and name == _fold(name) else '"' + name.replace('"', '""') + '"'

    return ".".join(map(one, names))


def sql_type(text: str) -> tuple[str, ...]:
    """A type as the file or the server writes it, so that what means the same is equal: ``int4`` and ``integer``,
    ``decimal(10, 2)`` and ``numeric(10,2)``. ValueError where it is no type.

    Schema ("" where none is written, or the system's), name, each modifier as a syntax tree's text, [] of an array."""
    try:
        tree = without_locations(parse(f"SELECT CAST(NULL AS {text})"))
        value = unwrap(unwrap(statement_node(tree).target_list[0]).val)
        if kind_of(value) != "TypeCast":
            raise ValueError
    except (PgddlError, ValueError):
        raise ValueError(f"{text}: not a type; write it as in SQL, such as integer or numeric(10,2)") from None
    node = value.type_name
    *schema, name = texts(node.names)
    modifiers = [str(unwrap(modifier)) for modifier in node.typmods]
    array = ["[]"] if node.array_bounds else []
    return ("".join(part for part in schema if part != "pg_catalog"), name, *modifiers, *array)


def _checked(parse: Any) -> AfterValidator:
    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


Pattern = Annotated[str, _checked(table_pattern)]
TableName = Annotated[str, _checked(table_name)]
TableColumnName = Annotated[str, _checked(table_column_name)]
ColumnName = Annotated[str, _checked(column_name)]
SqlType = Annotated[str, Field(strict=True, min_length=1), _checked(sql_type)]


def fits(pattern: str, table: Name) -> bool:
    schema, name = table_pattern(pattern)
    return bool(schema.fullmatch(table[0]) and name.fullmatch(table[1]))
