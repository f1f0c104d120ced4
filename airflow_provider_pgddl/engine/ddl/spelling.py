"""SQL put together from names and from what a server printed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import LiteralString

from psycopg import sql


def raw(text: str) -> sql.SQL:
    """What the server printed: types, expressions, definitions, already quoted and qualified."""
    return sql.SQL(text)


def spell(template: LiteralString, *parts: sql.Composable, **named: sql.Composable) -> sql.Composed:
    return sql.SQL(template).format(*parts, **named)


def ident(name: Sequence[str]) -> sql.Identifier:
    return sql.Identifier(*name)


def joined(parts: Iterable[sql.Composable], by: LiteralString = ", ") -> sql.Composed:
    return sql.SQL(by).join(parts)


def raw_statement(text: str) -> sql.Composed:
    return sql.Composed([raw(text)])
