"""SQL put together from names and from what a server printed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import LiteralString

from psycopg import sql

Statements = Iterator[sql.Composed]


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


class AlterTable:
    """ALTER TABLE of one table, with and without ONLY."""

    def __init__(self, kind: sql.SQL, name: sql.Identifier) -> None:
        self._kind, self._name = kind, name

    def __call__(self, *actions: sql.Composable, only: bool = False) -> sql.Composed:
        table = spell("ONLY {}", self._name) if only else self._name
        return spell("ALTER {} {} {}", self._kind, table, joined(actions))

    def each(self, actions: Iterable[tuple[sql.Composable, bool]]) -> Statements:
        """Actions, each with whether it is for the table ONLY, as at most two statements."""
        listed = list(actions)
        for only in (False, True):
            if chosen := [action for action, alone in listed if alone is only]:
                yield self(*chosen, only=only)
