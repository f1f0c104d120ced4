"""Captured events as the triggers would record them, made by hand: enough of the JSON for pure tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from airflow_provider_pgddl.engine.ddl.captured_events import (
    CapturedEvent,
    ColumnMeta,
    DroppedMeta,
    ObjectMeta,
    TableMeta,
)


def column(attnum: int, name: str, kind: str = "integer", **more: Any) -> ColumnMeta:
    fixed: dict[str, Any] = {
        "attnum": attnum,
        "name": name,
        "type": kind,
        "type_oid": 23,
        "typmod": -1,
        "collation": None,
        "not_null": False,
        "default": None,
        "generated": "",
        "identity": "",
        "missing": None,
        "local": True,
    }
    return cast(ColumnMeta, fixed | more)


def foreign_key(name: str, references: Sequence[str]) -> dict[str, Any]:
    return {
        "oid": 900,
        "name": name,
        "type": "f",
        "definition": f"FOREIGN KEY (a) REFERENCES {'.'.join(references)}(id)",
        "validated": True,
        "local": True,
        "references": list(references),
    }


def table(oid: int, schema: str, name: str, columns: Sequence[Any] = ("id",), **more: Any) -> TableMeta:
    """Columns by name, or made by `column`."""
    fixed: dict[str, Any] = {
        "oid": oid,
        "schema": schema,
        "name": name,
        "kind": "r",
        "persistence": "p",
        "owner": "app",
        "columns": [column(n, c) if isinstance(c, str) else c for n, c in enumerate(columns, 1)],
        "key": None,
        "replica_identity": "d",
        "replica_index": None,
        "constraints": [],
        "indexes": [],
        "partition_key": None,
        "bound": None,
        "parents": [],
        "descendants": [],
        "definition": None,
        "options": [],
    }
    return cast(TableMeta, fixed | more)


def of_table(meta: TableMeta, tag: str, kind: str = "table", **more: Any) -> ObjectMeta:
    """The object of a command on a relation."""
    return thing(tag, kind, meta["oid"], meta["schema"], meta["name"], table=meta["oid"], **more)


def thing(
    tag: str, kind: str, oid: int = 50, schema: str | None = None, name: str | None = None, **more: Any
) -> ObjectMeta:
    catalog = {"table": "pg_class", "view": "pg_class", "index": "pg_class", "sequence": "pg_class"}.get(kind, "pg_x")
    fixed: dict[str, Any] = {
        "classid": catalog,
        "objid": oid,
        "objsubid": 0,
        "tag": tag,
        "type": kind,
        "schema": schema,
        "name": name,
        "identity": ".".join(f'"{part}"' for part in (schema, name) if part),
        "table": None,
        "definition": None,
        "owner": "app",
    }
    return cast(ObjectMeta, fixed | more)


def gone(kind: str, schema: str | None, name: str | None, *, oid: int = 70, **more: Any) -> DroppedMeta:
    """Something dropped; `original` unless it says otherwise."""
    fixed: dict[str, Any] = {
        "classid": "pg_class" if kind in ("table", "view", "index", "sequence") else "pg_x",
        "objid": oid,
        "objsubid": 0,
        "type": kind,
        "schema": schema,
        "name": name,
        "identity": ".".join(f'"{part}"' for part in (schema, name) if part),
        "original": True,
        "normal": False,
        "table": None,
        "arguments": [],
    }
    return cast(DroppedMeta, fixed | more)


def event(
    tag: str,
    statement: str,
    objects: Sequence[ObjectMeta] = (),
    *,
    tables: Sequence[TableMeta] = (),
    dropped: Sequence[DroppedMeta] = (),
    names: Mapping[str, str] | None = None,
    seq: int = 1,
    **more: Any,
) -> CapturedEvent:
    fixed: dict[str, Any] = {
        "id": f"800.{seq}",
        "xid": "800",
        "seq": seq,
        "lsn": "0/1",
        "at": "2026-01-01 00:00:00+00",
        "batch": "800.1",
        "tag": tag,
        "statement": statement,
        "nested": False,
        "inner": None,
        "role": "app",
        "session_role": "app",
        "path": ["pg_catalog", "app"],
        "settings": {"standard_conforming_strings": "on"},
        "names": dict(names or {}),
        "functions": {},
        "objects": list(objects),
        "dropped": list(dropped),
        "rewritten": [],
        "tables": {str(meta["oid"]): meta for meta in tables},
        "disabled_for": [],
    }
    return cast(CapturedEvent, fixed | more)
