"""Names and texts as SQL takes them, and names as people read them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from airflow_provider_pgddl.engine.ddl.parse import parse
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name

_BARE = re.compile(r"[a-z_][a-z0-9_$]*")


def sql_name(*names: str) -> str:
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


def plain_name(name: Name) -> str:
    return ".".join(name)


def comma_joined(names: Iterable[str]) -> str:
    return ", ".join(names)


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
