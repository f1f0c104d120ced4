"""What is in scope at one moment: by schema, and by the tables that the pipeline takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, DroppedMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.event_objects import dropped_relation, dropped_schema, name_of
from airflow_provider_pgddl.engine.ddl.parse import quoted
from airflow_provider_pgddl.engine.ddl.rules import Rules
from airflow_provider_pgddl.engine.model.names import Name


@dataclass
class Coverage:
    """The rules, with the relations as they are before and behind one event."""

    rules: Rules
    tables: set[Name]
    """The pipeline's tables, under every name that they had since the first event."""
    versions: Mapping[int, TableMeta]
    event: CapturedEvent

    @cached_property
    def _known(self) -> Mapping[Name, list[TableMeta]]:
        known: dict[Name, list[TableMeta]] = {}
        for meta in (*self.event["tables"].values(), *self.versions.values()):
            known.setdefault((meta["schema"], meta["name"]), []).append(meta)
        return known

    def covers(self, schema: str | None, name: Name | None, *, table: bool = False) -> bool:
        """Whether an object is in scope: by its schema, and by the relation that it is or belongs to.

        `table`: that is known to be a table, though no version tells it.
        """
        if self.rules.narrow:
            return name is not None and self._takes(name)
        if schema is None:
            return self.rules.scope == "everything"
        if not self.rules.has_schema(schema) or (name is not None and not self.rules.has_schema(name[0])):
            return False
        return name is None or self._takes(name) or not (table or self._is_table(name))

    def covers_table(self, name: Name) -> bool:
        """Whether a statement may refer to a table."""
        if self.rules.in_place:  # other tables are there
            return True
        return self._takes(name) if self.rules.narrow or self.rules.has_schema(name[0]) else False

    def covers_dropped(self, dropped: DroppedMeta) -> bool:
        is_table = dropped["type"] == "table"
        return self.covers(dropped_schema(dropped), self.dropped_relation(dropped), table=is_table)

    def dropped_relation(self, dropped: DroppedMeta) -> Name | None:
        """The relation of a dropped object; an index's, which its event does not tell, is the one that had it."""
        if dropped["type"] != "index":
            return dropped_relation(dropped)
        for meta in self.versions.values():
            if any(index["oid"] == dropped["objid"] for index in meta["indexes"]):
                return name_of(meta)
        return None

    def family_moved(self) -> str | None:
        """Whether a table got or left a parent of which one is in scope, as words."""
        for oid, meta in self.event["tables"].items():
            before = self.versions.get(int(oid))
            left = before["parents"] if before is not None else []
            for schema, name in [
                each for each in meta["parents"] + left if (each in left) != (each in meta["parents"])
            ]:
                if self.covers(schema, (schema, name)):
                    return f"{quoted((schema, name))} is in scope, {quoted((meta['schema'], meta['name']))} is not"
                if before is not None and self.covers(before["schema"], name_of(before)):
                    return f"{quoted((meta['schema'], meta['name']))} is in scope, {quoted((schema, name))} is not"
        return None

    def _takes(self, name: Name) -> bool:
        """A table of the pipeline, or one that hangs below one; in place none does, or the swap is refused."""
        if self.rules.in_place:
            return name in self.tables
        seen: set[Name] = set()
        waiting = [name]
        while waiting:
            name = waiting.pop()
            if name in self.tables or (not self.rules.narrow and self.rules.takes(name)):
                return True
            if name not in seen:
                seen.add(name)
                parents = [parent for meta in self._known.get(name, ()) for parent in meta["parents"]]
                waiting += [(parent[0], parent[1]) for parent in parents]
        return False

    def _is_table(self, name: Name) -> bool:
        return any(meta["kind"] in ("r", "p") for meta in self._known.get(name, ()))
