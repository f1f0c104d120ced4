"""What is not on the target because it needs a table that the pipeline leaves out, as events come and go. Pure.

A view over such a table, a function with its row type or a body that reads it, a trigger that calls this function, a
view over the view, the table's own sequences: a snapshot leaves all of these out, and so does what follows it, with all
that is said of them later. Only what could not be there is left out: whatever a statement needs is looked for on the
target first, and where that has it, the statement is run as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from postgast import ParseResult, pg_query_pb2

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, DroppedMeta
from airflow_provider_pgddl.engine.ddl.event_objects import EventObject
from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    kind_of,
    qualified,
    quoted,
    relation,
    texts,
    unwrap,
)
from airflow_provider_pgddl.engine.ddl.subject import subject_of
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name

Key = tuple[str, int]
"""An object's catalog and its oid on the source."""


@dataclass(frozen=True, slots=True)
class Absent:
    """One object that the target does not have."""

    name: Name
    """By which it goes on the source now."""
    identity: str
    """As the server spells it, a function with its arguments."""
    needs: Name
    """What it cannot be without: a table, or what is left out itself."""

    @property
    def why(self) -> str:
        return f"{self.identity} needs {quoted(self.needs)}, which the pipeline leaves out"


def _nowhere(*_: object) -> bool:
    return False


@dataclass
class LeftOut:
    """All of them at one moment."""

    objects: dict[Key, Absent] = field(default_factory=dict)
    on_target: Callable[[str, Name, str | None], bool] = _nowhere
    """Whether the target has something of this catalog and name; of a function also by its identity, where given."""
    of_extensions: frozenset[Name] = frozenset()
    """Tables that come with their extension, which a person makes: what needs them waits for that."""
    made: set[Key] = field(default_factory=set)
    """What events of this read have made, which the target may be about to get."""

    @classmethod
    def from_json(
        cls,
        recorded: Mapping[str, Sequence[str]],
        of_extensions: frozenset[Name],
        on_target: Callable[[str, Name, str | None], bool],
    ) -> LeftOut:
        objects = {}
        for key, (schema, name, identity, *needs) in recorded.items():
            catalog, oid = key.split(" ")
            objects[catalog, int(oid)] = Absent((schema, name), identity, (needs[0], needs[1]))
        return cls(objects, on_target, of_extensions)

    def to_json(self) -> dict[str, list[str]]:
        return {
            f"{catalog} {oid}": [*absent.name, absent.identity, *absent.needs]
            for (catalog, oid), absent in self.objects.items()
        }

    def begin(self, event: CapturedEvent) -> None:
        """A table is none of these, whatever had its oid before a failover."""
        for oid, meta in event["tables"].items():
            if meta["kind"] in ("r", "p"):
                self.objects.pop(("pg_class", int(oid)), None)

    # --- what an event is about -----------------------------------------------------------------------------------

    def about(self, target: EventObject) -> Absent | None:
        """What is left out of which this is, or is a part of: a column, an index, a trigger."""
        return self._of(target.key) or (self._of(("pg_class", target.oid)) if target.oid is not None else None)

    def _of(self, key: Key) -> Absent | None:
        absent = self.objects.get(key)
        return None if absent is None or self.on_target(key[0], absent.name, absent.identity) else absent

    def dropped(self, dropped: DroppedMeta) -> Absent | None:
        """A composite type is told by two catalogs."""
        if (absent := self._of((dropped["classid"], dropped["objid"]))) is not None:
            return absent
        if dropped["table"]:
            return self.relation((dropped["table"][0], dropped["table"][1]))
        return self.named("pg_type", (dropped["schema"] or "", dropped["name"] or "")) if _is_type(dropped) else None

    def relation(self, name: Name) -> Absent | None:
        return self.named("pg_class", name)

    def named(self, catalog: str, name: Name) -> Absent | None:
        for key, absent in self.objects.items():
            if key[0] == catalog and absent.name == name and self._of(key) is not None:
                return absent
        return None

    # --- what a statement needs -----------------------------------------------------------------------------------

    def needed(self, tree: ParseResult, is_left_out: Callable[[Name], bool]) -> Name | None:
        """What a statement that makes an object needs and the target lacks, with all names spelled out. `is_left_out`:
        whether this is a table that the pipeline leaves out."""
        try:
            subject = subject_of(tree)
        except StageFailed:
            return None
        for name in dict.fromkeys((*subject.mentions, *subject.types)):
            if is_left_out(name) and not self.on_target("pg_class", name, None):
                return name
            for catalog in ("pg_class", "pg_type"):
                if self.named(catalog, name) is not None:
                    return name
        for name in subject.functions:
            if self.named("pg_proc", name) is not None and not self.on_target("pg_proc", name, None):
                return name  # else it may be another one of that name
        return None

    def may_replace(self, target: EventObject, was_there: bool) -> bool:
        """Whether the target may have, or be about to get, what a statement makes. A trigger, a policy and a rule come
        from a dump, which leaves out what has come to need such a table."""
        if target.key[0] not in ("pg_class", "pg_proc", "pg_type"):
            return False
        name = (target.schema or "", target.name or "")
        return was_there or target.key in self.made or self.on_target(target.key[0], name, target.identity)

    def all_of(self, tag: str, targets: Sequence[EventObject]) -> Absent | None:
        """The first of what an event is about, where all of it is left out and none is made anew."""
        absent = [self.about(target) for target in targets]
        if not all(absent) or (tag in MADE and any(target.key in self.objects for target in targets)):
            return None
        return absent[0]

    def without(self, node: Node) -> list[Absent]:
        """Takes what is left out out of a GRANT, whose event names no objects."""
        gone: list[Absent] = []
        if kind_of(node) != "GrantStmt":
            return gone
        for position in reversed(range(len(node.objects))):
            absent = self._granted(node, unwrap(node.objects[position]))
            if absent is not None:
                gone.append(absent)
                del node.objects[position]
        return gone[::-1]

    def _granted(self, node: Node, item: Node) -> Absent | None:
        kind = kind_of(item)
        if kind == "RangeVar":
            return self.relation(relation(item))
        if kind == "List" and node.objtype in (pg_query_pb2.OBJECT_TYPE, pg_query_pb2.OBJECT_DOMAIN):
            return self.named("pg_type", qualified(texts(item.items)))
        if kind == "ObjectWithArgs":
            name = qualified(texts(item.objname))
            return None if self.on_target("pg_proc", name, None) else self.named("pg_proc", name)
        return None

    # --- behind an event --------------------------------------------------------------------------------------------

    def add(self, key: Key, name: Name, identity: str, needs: Name) -> None:
        self.objects[key] = Absent(name, identity, needs)

    def mark(self, targets: list[EventObject], needs: Name) -> None:
        for target in targets:
            self.add(target.key, (target.schema or "", target.name or ""), target.identity, needs)

    def mark_sequences(self, event: CapturedEvent, is_left_out: Callable[[Name], bool]) -> None:
        """Those that a table which is left out has got along."""
        for made in event["objects"]:
            table = event["tables"].get(str(made["table"]))
            if made["tag"] == "CREATE SEQUENCE" != event["tag"] and table is not None:
                owner = (table["schema"], table["name"])
                if is_left_out(owner):
                    name = (made["schema"] or "", made["name"] or "")
                    self.add((made["classid"], made["objid"]), name, made["identity"], owner)

    def advance(self, event: CapturedEvent) -> None:
        """New names, and what is gone."""
        for thing in event["objects"]:
            key = (thing["classid"], thing["objid"])
            absent = self.objects.get(key)
            if absent is not None and thing["objsubid"] == 0 and thing["name"]:
                name = (thing["schema"] or absent.name[0], thing["name"])
                self.add(key, name, thing["identity"], absent.needs)
        for dropped in event["dropped"]:
            if dropped["objsubid"] == 0:
                self.objects.pop((dropped["classid"], dropped["objid"]), None)

    def rename_schema(self, old: str, new: str) -> None:
        for key, absent in self.objects.items():
            if absent.name[0] == old:
                name = (new, absent.name[1])
                identity = absent.identity if key[0] == "pg_proc" else quoted(name)
                self.add(key, name, identity, absent.needs)

    def dependents(self, name: Name) -> Iterator[str]:
        """What is left out on account of this."""
        return (absent.identity for absent in self.objects.values() if absent.needs == name)


def _is_type(dropped: DroppedMeta) -> bool:
    return dropped["type"] in ("type", "composite type", "domain")


# What is made as a whole, and is left out as a whole: a table is not, nor is what changes one.
MADE = {
    "CREATE VIEW",
    "CREATE MATERIALIZED VIEW",
    "CREATE FUNCTION",
    "CREATE PROCEDURE",
    "CREATE AGGREGATE",
    "CREATE TYPE",
    "CREATE DOMAIN",
    "CREATE TRIGGER",
    "CREATE POLICY",
    "CREATE RULE",
    "CREATE CAST",
    "CREATE OPERATOR",
}
