"""A dump's statements where copies stand beside the target's own tables (`tables.existing: replace`): the pipeline's
tables are made in schemas of their own, and what is made over them is made over the copies. By their oids it is about
the new tables once these have moved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.dump_phases import phase_of
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.parse import parse
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, moving, relocate
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.rights.foreign_code import is_superuser
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session

KEEPS = "who may do what with it stays as it is on the target"
_NOW = ("create", "index")  # while the copies are beside; what comes later finds them in their place


def is_right(event: DdlEvent) -> bool:
    """Whether it says who owns a table, may use it, or sees which of its rows."""
    of_table = event.kind == "owner" and event.tag == "ALTER TABLE"
    return of_table or event.kind in ("policy", "row security") or event.tag in ("GRANT", "REVOKE")


def live_tables(target: Session, tables: Collection[Name]) -> dict[Name, int]:
    """The oids of those that the target has under these names: before the swap they are to be replaced."""
    return catalog.oids_of(target, tables)


def copy_schemas(
    target: Session, pipeline: str, events: Iterable[DdlEvent], tables: Collection[Name], others: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """(tag, schema, statement) of what makes the copies' schemas, and lets the copies have their owners; `others`:
    roles by their names on the target, where these are not the source's."""
    owners: dict[str, set[str]] = {schema: set() for schema, _ in tables}
    for event in events:
        if event.kind == "owner" and event.table is not None and event.table in tables:
            owners[event.table[0]].update(others.get(role, role) for role in event.roles)
    roles = {row[0] for row in target.execute("SELECT rolname FROM pg_catalog.pg_roles")}
    for schema in sorted(owners):
        home = sql.Identifier(copy_schema(schema))
        comment = sql.Literal(f"pgddl: copies of pipeline {pipeline}")
        yield "CREATE SCHEMA", schema, sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(home).as_string()
        yield "COMMENT", schema, sql.SQL("COMMENT ON SCHEMA {} IS {}").format(home, comment).as_string(target)
        for owner in sorted(owners[schema] & roles) if not is_superuser(target) else ():
            grant = sql.SQL("GRANT USAGE, CREATE ON SCHEMA {} TO {}").format(home, sql.Identifier(owner))
            yield "GRANT", schema, grant.as_string()


class Beside:
    """Where the statements of one dump go."""

    def __init__(self, events: Sequence[DdlEvent], tables: Collection[Name], live: Collection[Name]):
        self.tables, self._live = {*tables}, {*live}
        self.names = moving(events, self.tables, serials=True)

    def keeps(self, event: DdlEvent) -> bool:
        """Whether the target's own table says instead of this."""
        return event.table in self._live and event.table in self.tables and event.phase != "create" and is_right(event)

    def is_own(self, event: DdlEvent) -> bool:
        """Whether it is a part of a table of the pipeline."""
        return event.table in self.tables

    def statement(self, event: DdlEvent) -> str:
        """As it is run. StageFailed where it would act on a table that is to be replaced."""
        if event.phase not in _NOW:
            return event.statement
        if self.is_own(event) or not self.names.keys().isdisjoint({*event.references, *event.types}):
            return relocate(event.statement, self.names, serials=True)
        return event.statement


def moved_back(events: Iterable[DdlEvent], homes: Mapping[str, str]) -> list[DdlEvent]:
    """What a dump says of copies, as it will be once they are in their places; `homes`: schema of copies → theirs."""
    listed = list(events)
    names: dict[Name, str] = {}
    for event in listed:
        if event.table is not None and event.table[0] in homes:
            home = homes[event.table[0]]
            for name in (event.table, event.index, event.sequence):
                if name is not None and name[0] in homes:
                    names[name] = home
            if event.tag == "CREATE STATISTICS" and event.schema in homes:
                names[event.schema or "", event.name or ""] = home
    return [_moved_back(event, names, homes) for event in listed]


def _moved_back(event: DdlEvent, names: Mapping[Name, str], homes: Mapping[str, str]) -> DdlEvent:
    def back(name: Name | None) -> Name | None:
        return None if name is None else (homes.get(name[0], name[0]), name[1])

    referred = (event.table, *event.references, *event.types)
    if not any(name is not None and name[0] in homes for name in referred):
        return event
    statement = relocate(event.statement, names, serials=True)
    return replace(
        event,
        statement=statement,
        phase=phase_of(
            parse(statement), event.section or "pre-data"
        ),  # what is in a schema of ours was taken for noise
        note=None,
        schema=homes.get(event.schema or "", event.schema),
        table=back(event.table),
        index=back(event.index),
        sequence=back(event.sequence),
        references=tuple((homes.get(s, s), n) for s, n in event.references),
    )
