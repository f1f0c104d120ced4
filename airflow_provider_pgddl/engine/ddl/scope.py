"""Which schemas, tables and tags a pipeline's DDL rules let through, and what that is at one moment: by schema, and by
the tables that the pipeline takes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, DroppedMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.event_objects import dropped_relation, dropped_schema, name_if_known
from airflow_provider_pgddl.engine.ddl.left_out import LeftOut
from airflow_provider_pgddl.engine.ddl.parse import quoted
from airflow_provider_pgddl.engine.ddl.quoting import NEWEST
from airflow_provider_pgddl.engine.ddl.subcommands import meant
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.selection import matches

# pgl_ddl_deploy.exclude_regex(), and our own.
_EXCLUDED = re.compile(
    r"pg_catalog|information_schema|pg_temp.*|pg_toast.*|pgl_ddl_deploy|pglogical|pglogical_ticker|repack"
    r"|pgddl|pgddl_.*",
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The `ddl` section of a pipeline as scope needs it."""

    pipeline: str
    scope: Literal["replicated_tables", "schemas", "everything"]
    schemas: re.Pattern[str]
    create_tags: frozenset[str]
    drop_tags: frozenset[str]
    blocked_tags: frozenset[str]
    excluded_subcommands: frozenset[str]
    multi_statements: Literal["split", "safe_only", "single_only"]
    out_of_scope_references: Literal["strip", "unhandled"]
    tables: frozenset[Name]
    """The pipeline's tables by their names now."""
    takes: Callable[[Name], bool]
    """Whether the pipeline takes a table of this name: `tables.include` and `exclude`."""
    in_place: bool
    beside: bool
    """Whether copies stand beside the tables that they are to replace, which therefore keep their names."""
    major: int
    """The source's version, by whose grammar clients write."""

    @classmethod
    def of(cls, pipeline: Pipeline, tables: Collection[Name], major: int = NEWEST) -> Rules:
        ddl = pipeline.ddl
        patterns = bool(pipeline.tables.include or pipeline.tables.schema_only) and not ddl.ddl_only

        @cache
        def takes(name: Name) -> bool:
            chosen = matches(pipeline, [name], strict=False)
            return bool(chosen.rows or chosen.schema_only)

        return cls(
            pipeline=pipeline.pipeline,
            scope=ddl.scope,
            schemas=re.compile(ddl.schemas, re.IGNORECASE),
            create_tags=frozenset(ddl.create_tags or ()),
            drop_tags=frozenset(ddl.drop_tags or ()),
            blocked_tags=frozenset(ddl.blocked_tags),
            excluded_subcommands=meant(ddl.exclude_alter_table_subcommands),
            multi_statements=ddl.multi_statements,
            out_of_scope_references=ddl.out_of_scope_references,
            tables=frozenset(tables),
            takes=takes if patterns else lambda _: True,
            in_place=pipeline.in_place,
            beside=pipeline.beside,
            major=major,
        )

    @property
    def kept(self) -> str:
        """Why a table has to keep its name, as the beginning of a reason."""
        return "in place" if self.in_place else "tables.existing: replace"

    @property
    def narrow(self) -> bool:
        """Whether only the pipeline's own tables count, not schemas."""
        return self.in_place or self.scope == "replicated_tables"

    def has_schema(self, schema: str) -> bool:
        """Whether a schema is in scope; the excluded ones never are."""
        if self.narrow or _EXCLUDED.fullmatch(schema):
            return False
        return self.scope == "everything" or self.schemas.search(schema) is not None

    def tag_refused(self, tag: str) -> str | None:
        """The rule that keeps a tag out, if one does. A table made by a query is a table."""
        tags = {"CREATE TABLE", tag} if tag in ("CREATE TABLE AS", "SELECT INTO") else {tag}
        if tags & self.blocked_tags:
            return f"blocked tag {tag}"
        if self.in_place:  # what was done to the live table must be there after the swap
            return None
        key, listed = ("drop_tags", self.drop_tags) if is_drop(tag) else ("create_tags", self.create_tags)
        return None if tags & listed or (tag == "DROP OWNED" and listed) else f"tag {tag} is not in {key}"

    def out_of_scope(self, schema: str | None, relation: Name | None) -> str:
        """The rule for what is not in scope."""
        if self.in_place:
            return "in place: it has already happened"
        if self.scope == "replicated_tables":
            return f"scope: {quoted(relation) if relation else 'it'} is not one of the replicated tables"
        if schema is None:
            return "scope: it belongs to no schema"
        if relation is not None and not self.has_schema(relation[0]):
            schema = relation[0]
        if self.has_schema(schema) and relation is not None:
            return f"tables: {quoted(relation)} is not among the tables of this pipeline"
        return f"scope: schema {quoted(('', schema))} does not match"


def is_drop(tag: str) -> bool:
    return tag.startswith("DROP ")


@dataclass
class Coverage:
    """The rules, with the relations as they are before and behind one event."""

    rules: Rules
    tables: set[Name]
    """The pipeline's tables, under every name that they had since the first event."""
    versions: Mapping[int, TableMeta]
    event: CapturedEvent
    left_out: LeftOut

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

    def leaves_out(self, name: Name) -> bool:
        """Whether this is a table that the pipeline leaves out, whatever the scope of its DDL."""
        return self._is_table(name) and not self._takes(name) and name not in self.left_out.of_extensions

    def covers_dropped(self, dropped: DroppedMeta) -> bool:
        if self.left_out.dropped(dropped) is not None:
            return False
        is_table = dropped["type"] == "table"
        return self.covers(dropped_schema(dropped), self.dropped_relation(dropped), table=is_table)

    def dropped_relation(self, dropped: DroppedMeta) -> Name | None:
        """The relation of a dropped object; an index's, which its event does not tell, is the one that had it."""
        if dropped["type"] != "index":
            return dropped_relation(dropped)
        for meta in self.versions.values():
            if any(index["oid"] == dropped["objid"] for index in meta["indexes"]):
                return name_if_known(meta)
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
                if before is not None and self.covers(before["schema"], name_if_known(before)):
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
