"""An event's list of dropped objects, as statements. None of them cascades: what went along is listed, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.captured_events import DroppedMeta
from airflow_provider_pgddl.engine.ddl.compose import ident, joined, raw, spell
from airflow_provider_pgddl.engine.ddl.parse import dotted_names
from airflow_provider_pgddl.engine.errors import PgddlError


class CannotRebuild(PgddlError):
    """The metadata does not tell how to do it again; `what` says why."""


# Postgres' own words for a kind of object, where DROP takes its identity as it is printed.
_WORDS = {
    **{
        kind: kind.upper()
        for kind in (
            "table", "view", "materialized view", "index", "sequence", "foreign table", "type", "function", "procedure",
            "aggregate", "schema", "extension", "language", "collation", "conversion", "operator", "operator class",
            "operator family", "cast", "event trigger", "server", "access method", "publication", "subscription",
            "text search parser", "text search dictionary", "text search template", "text search configuration",
        )
    },
    "statistics object": "STATISTICS",
    "foreign-data wrapper": "FOREIGN DATA WRAPPER",
}  # fmt: skip
_ON_TABLES = {"trigger": "TRIGGER", "policy": "POLICY", "rule": "RULE"}


def drops(dropped: Iterable[DroppedMeta]) -> Iterator[sql.Composed]:
    """DROP of these objects one after the other; neighbours of one kind together, for tables that refer to each other
    can only go at once."""
    for kind, group in groupby(dropped, key=lambda d: d["type"]):
        if kind in ("table", "view", "materialized view"):
            yield spell("DROP {} {}", raw(_WORDS[kind]), joined(raw(d["identity"]) for d in group))
        else:
            yield from map(drop, group)


def drop(d: DroppedMeta) -> sql.Composed:
    """DROP of one object. Raises CannotRebuild for what has no such statement."""
    kind = d["type"]
    if kind in _WORDS:
        return spell("DROP {} {}", raw(_WORDS[kind]), raw(d["identity"]))
    if d["table"] is not None and kind in _ON_TABLES:
        return spell("DROP {} {} ON {}", raw(_ON_TABLES[kind]), ident([_own_name(d)]), ident(d["table"]))
    if d["table"] is not None and kind in ("table column", "foreign table column"):
        return spell("ALTER TABLE {} DROP COLUMN {}", ident(d["table"]), ident([_own_name(d)]))
    if d["table"] is not None and kind == "table constraint":
        return spell("ALTER TABLE {} DROP CONSTRAINT {}", ident(d["table"]), ident([_own_name(d)]))
    if d["table"] is not None and kind == "default value":
        column = _last_part(d["identity"].removeprefix("for "))
        return spell("ALTER TABLE {} ALTER COLUMN {} DROP DEFAULT", ident(d["table"]), ident([column]))
    if kind == "domain constraint":
        # "name on schema.domain", the name quoted where it has to be
        quoted = sql.Identifier(_own_name(d)).as_string(None)
        start = quoted if d["identity"].startswith(quoted) else _own_name(d)
        domain = d["identity"][len(start) :].removeprefix(" on ")
        return spell("ALTER DOMAIN {} DROP CONSTRAINT {}", raw(domain), ident([_own_name(d)]))
    raise CannotRebuild(f"there is no statement that drops the {kind} {d['identity']} alone")


def _own_name(d: DroppedMeta) -> str:
    return d["name"] if d["name"] is not None else _last_part(d["identity"].split(" on ", 1)[0])


def _last_part(identity: str) -> str:
    return next(iter(dotted_names(f"x.{identity}")))[-1]
