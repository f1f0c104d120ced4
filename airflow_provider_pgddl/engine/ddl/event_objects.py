"""What a captured event is about: its objects with their relations, by the names before and after. Pure."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, DroppedMeta, ObjectMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.parse import parse, statement_node, texts, unwrap
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name


@dataclass(frozen=True, slots=True)
class EventObject:
    """One object of an event."""

    key: tuple[str, int]
    """Its catalog and its oid there."""
    identity: str
    """Quoted and qualified."""
    type: str
    """In Postgres' words: ``table``, ``table column``, ``trigger`` …"""
    oid: int | None
    """Of the relation that it is or belongs to."""
    schema: str | None
    """Its schema now; of what is named within a relation, the relation's; a schema's own name."""
    name: str | None
    """Its own name now, where it is told."""
    relation: Name | None
    """The relation that it is or belongs to, by its name now."""
    before: Name | None
    """Of a relation, or a column of one, the relation's name before the event, where it was known."""


def main_objects(event: CapturedEvent, versions: Mapping[int, TableMeta]) -> list[EventObject]:
    """The objects that the command itself is about: not the indexes and sequences that a CREATE TABLE makes along."""
    # REINDEX tells of TOAST tables' indexes, too
    objects = [each for each in event["objects"] if each["identity"] and each["schema"] != "pg_toast"]
    own = [each for each in objects if each["tag"] == event["tag"] and each["type"] not in _MADE_ALONG]
    own = own or [each for each in objects if each["tag"] == event["tag"]] or objects
    if event["tag"] == "CREATE SCHEMA":
        own = [each for each in own if each["type"] == "schema"] or own
    return [_target(each, event, versions) for each in own]


# Reported under the tag of a CREATE TABLE or ALTER TABLE on Postgres' own account.
_MADE_ALONG = {"default value"}


def _target(thing: ObjectMeta, event: CapturedEvent, versions: Mapping[int, TableMeta]) -> EventObject:
    # A sequence has a schema of its own, and can stay when its owner goes.
    oid = relation_oid(thing, event) if thing["type"] != "sequence" else None
    after = event["tables"].get(str(oid)) if oid is not None else None
    before = versions.get(oid) if oid is not None else None
    known = after or before
    schema = thing["schema"] or (known["schema"] if known else None)
    name = thing["name"]
    if thing["type"] == "schema":
        schema = name = name or _unquoted(thing["identity"])
    elif after is not None and oid == thing["objid"] and thing["objsubid"] == 0:
        schema, name = after["schema"], after["name"]
    relation = name_if_known(known)
    if relation is None and thing["type"] in RELATIONS and thing["schema"] and thing["name"]:
        relation = (thing["schema"], thing["name"])  # somebody's lock kept it from being described
    return EventObject(
        key=(thing["classid"], thing["objid"]),
        identity=thing["identity"],
        type=thing["type"],
        oid=oid,
        schema=schema,
        name=name,
        relation=relation,
        before=name_if_known(before) if thing["classid"] == "pg_class" and oid == thing["objid"] else None,
    )


def relation_oid(thing: ObjectMeta, event: CapturedEvent) -> int | None:
    """The relation that an object is or belongs to."""
    if thing["table"] is not None:
        return thing["table"]
    return thing["objid"] if thing["classid"] == "pg_class" and str(thing["objid"]) in event["tables"] else None


def name_if_known(meta: TableMeta | None) -> Name | None:
    return (meta["schema"], meta["name"]) if meta is not None else None


def _unquoted(identity: str) -> str:
    try:
        return str(statement_node(parse(f"DROP SCHEMA {identity}")).objects[0].string.sval)
    except StageFailed:
        return identity


def parts_within(identity: str) -> list[str]:
    """``name on schema.table`` as [schema, table, name]; [] where it is none such."""
    try:
        return texts(unwrap(statement_node(parse(f"COMMENT ON CONSTRAINT {identity} IS NULL")).object).items)
    except StageFailed:
        return []


def dropped_schema(dropped: DroppedMeta) -> str | None:
    """The schema by which a dropped object is in scope or not."""
    if dropped["type"] == "schema":
        return dropped["name"] or _unquoted(dropped["identity"])
    return dropped["schema"] or (dropped["table"][0] if dropped["table"] else None)


def dropped_relation(dropped: DroppedMeta) -> Name | None:
    """The relation that a dropped object was or belonged to."""
    if dropped["table"]:
        return (dropped["table"][0], dropped["table"][1])
    if dropped["type"] in RELATIONS and dropped["schema"] and dropped["name"]:
        return (dropped["schema"], dropped["name"])
    return None


RELATIONS = {"table", "foreign table", "view", "materialized view"}


def touched(event: CapturedEvent, versions: Mapping[int, TableMeta]) -> tuple[Name, ...]:
    """The relations and other named objects that an event concerns, by their names before and after."""
    names: dict[Name, None] = {}
    for oid, meta in event["tables"].items():
        for name in (name_if_known(versions.get(int(oid))), name_if_known(meta)):
            if name is not None:
                names[name] = None
    for dropped in event["dropped"]:
        if name := dropped_relation(dropped):
            names[name] = None
        elif dropped["schema"] and dropped["name"] and dropped["original"]:
            names[dropped["schema"], dropped["name"]] = None
    indexes = {dropped["objid"] for dropped in event["dropped"] if dropped["type"] == "index"}
    for meta in versions.values() if indexes else ():
        if any(index["oid"] in indexes for index in meta["indexes"]):
            names[meta["schema"], meta["name"]] = None
    types: set[str] = set()
    for thing in event["objects"]:
        if thing["type"] in ("type", "composite type", "domain"):
            types.add(thing["identity"])
        if thing["schema"] and thing["name"]:
            names[thing["schema"], thing["name"]] = None
    for meta in versions.values() if types else ():
        if any(column["type"].removesuffix("[]") in types for column in meta["columns"]):
            names[meta["schema"], meta["name"]] = None
    return tuple(names)


def kind(event: CapturedEvent, targets: list[EventObject]) -> str:
    """The kind of object for `on_failure: queue`; whatever touches a table is ``table``."""
    types = [target.type for target in targets] or [each["type"] for each in event["dropped"] if each["original"]]
    types = types or [each["type"].lower() for each in event["objects"]]  # a GRANT's: TABLE, FUNCTION
    plain = {_PLAIN.get(each, each) for each in types}
    if event["rewritten"] or any(each["type"] in ("table", "table column") for each in event["dropped"]):
        return "table"
    return next(iter(plain)) if len(plain) == 1 else ("table" if "table" in plain else "several" if plain else "none")


_PLAIN = {
    "table column": "table",
    "table constraint": "table",
    "default value": "table",
    "view column": "view",
    "materialized view column": "materialized view",
    "foreign table column": "foreign table",
}


def advance(event: CapturedEvent, versions: MutableMapping[int, TableMeta]) -> None:
    """Brings the versions to what they are behind the event."""
    for oid, meta in event["tables"].items():
        versions[int(oid)] = meta
    for dropped in event["dropped"]:
        if dropped["classid"] == "pg_class" and dropped["objsubid"] == 0:
            versions.pop(dropped["objid"], None)


def rename_schema(versions: MutableMapping[int, TableMeta], old: str, new: str) -> None:
    """A renamed schema in every version: its own events list no tables."""
    for oid, meta in versions.items():
        versions[oid] = _with_schema(meta, old, new)


def _with_schema(meta: TableMeta, old: str, new: str) -> TableMeta:
    changed = meta.copy()
    if meta["schema"] == old:
        changed["schema"] = new
    changed["parents"] = [_moved(name, old, new) for name in meta["parents"]]
    changed["constraints"] = [
        {**each, "references": _moved(each["references"], old, new) if each["references"] else None}
        for each in meta["constraints"]
    ]
    return changed


def _moved(name: list[str], old: str, new: str) -> list[str]:
    return [new, *name[1:]] if name[0] == old else name
