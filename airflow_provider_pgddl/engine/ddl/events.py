"""DDL events: one schema change each, always the same JSON, whether snapshotted by pg_dump or captured live. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from postgast import ParseResult

from airflow_provider_pgddl.engine.ddl.dump_phases import OPEN_TO_ALL, DumpSection, Phase, phase_of, setting_value
from airflow_provider_pgddl.engine.ddl.node_names import action_name, added_constraints, constraint_kind
from airflow_provider_pgddl.engine.ddl.parse import Node, deparse, kind_of, parse, split, start_of, unwrap
from airflow_provider_pgddl.engine.ddl.parse import statement_node as node_of
from airflow_provider_pgddl.engine.ddl.quoting import unquoted
from airflow_provider_pgddl.engine.ddl.subject import subject_of
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name

Source = Literal["snapshot", "captured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlEvent:
    """One schema change. Names are (schema, name)."""

    seq: int
    tag: str
    """Postgres' command tag: ``CREATE TABLE``."""
    kind: str
    """The kind of object: ``table``, ``index``, ``primary key``, ``foreign key``, ``identity``, ``trigger`` …"""
    section: DumpSection | None
    phase: Phase
    statement: str
    schema: str | None
    name: str | None
    table: Name | None
    """The relation that it is or belongs to: an index's, a constraint's, a trigger's, a serial's sequence's …"""
    references: tuple[Name, ...] = ()
    """Other relations that it needs: a foreign key's table, a view's tables, a partition and its parent."""
    types: tuple[Name, ...] = ()
    """Schema-qualified types in it, row types of tables among them."""
    functions: tuple[Name, ...] = ()
    """Schema-qualified functions that it calls."""
    arguments: tuple[str, ...] | None = None
    """A function's types of arguments, which tell it from others of its name."""
    roles: tuple[str, ...] = ()
    """Roles that it names; they may be missing on the target."""
    index: Name | None = None
    """The index that it makes, by itself or by a constraint."""
    sequence: Name | None = None
    """The sequence that it makes, alters or ties to a column (also an identity's)."""
    grantor: str | None = None
    """Who grants, where that is not the owner."""
    note: str | None = None
    """Why it is noise, where a reader would wonder."""
    source: Source = "snapshot"

    @property
    def is_right_on_schema(self) -> bool:
        """Its owner, or a grant: clients need these for their DDL from the start, wherever the schema is new."""
        return self.kind == "schema" and self.tag in ("ALTER SCHEMA", "GRANT", "REVOKE")

    @property
    def is_right_on_what_all_may_use(self) -> bool:
        """A grant on a routine, a type or a language: without it everybody may use a new one."""
        return self.tag in ("GRANT", "REVOKE") and self.kind.upper() in OPEN_TO_ALL

    @property
    def is_right_from_start(self) -> bool:
        """It comes with what it is about, where that is new, and does not wait for the swap."""
        return self.is_right_on_schema or self.is_right_on_what_all_may_use

    def to_json(self) -> dict[str, Any]:
        return {field.name: _listed(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DdlEvent:
        known = {field.name for field in fields(cls)}
        given = {key: value[key] for key in known & value.keys()}
        for key in ("table", "index", "sequence"):
            given[key] = tuple(given[key]) if given.get(key) else None
        for key in ("references", "types", "functions"):
            given[key] = tuple(tuple(name) for name in given.get(key) or ())
        given["roles"] = tuple(given.get("roles") or ())
        given["arguments"] = tuple(given["arguments"]) if given.get("arguments") is not None else None
        return cls(**given)


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


def events_from_dump(pre: str, post: str) -> list[DdlEvent]:
    """The events of a schema dump in its order, from its sections pre-data and post-data, whatever was quoted in it.

    What one statement does not say is taken from its neighbours: an index's table, a serial's sequence, which
    mentioned types are tables. StageFailed names the statement that is not understood.
    """
    read: list[DdlEvent] = []
    settings: dict[str, str] = {}  # of the one session: where the sections come from two, each says anew what it needs
    for section, text in _sections(pre, post):
        for statement in map(unquoted, split(text)):
            tree = parse(statement)
            try:
                read.append(_event(len(read), tree, statement, section, settings))
            except StageFailed as error:
                raise StageFailed(f"{error.what}: {start_of(statement)}", todo=error.todo, sql=error.sql) from None
            if method := _access_method(node_of(tree), settings):
                read.append(_event(len(read), parse(method), method, section, settings))
    return _own_left_out(_joined(read))


def _sections(pre: str, post: str) -> Iterator[tuple[DumpSection, str]]:
    yield "pre-data", pre
    yield "post-data", post


def _event(seq: int, tree: ParseResult, statement: str, section: DumpSection, settings: dict[str, str]) -> DdlEvent:
    node = node_of(tree)
    phase = phase_of(tree, section)
    subject = subject_of(tree)
    note = grantor = None
    if kind_of(node) == "AlterTableStmt" and _without_versions(node):
        phase = phase if node.cmds else "noise"
        statement = deparse(tree) if node.cmds else statement
    if kind_of(node) == "VariableSetStmt":
        settings[node.name] = setting_value(node)
    elif (grantor := settings.get("session_authorization") or None) and kind_of(node) != "GrantStmt":
        raise StageFailed("a dump is expected to change the session's role for grants only")
    elif _spell_out(node, settings):
        statement = deparse(tree)
    if kind_of(node) in ("CreateUserMappingStmt", "AlterUserMappingStmt"):
        del node.options[:]  # passwords live here
        statement = deparse(tree)
        note = "user mappings hold passwords and are not carried: create it on the target"
    return DdlEvent(
        seq=seq,
        tag=subject.tag,
        kind=subject.kind,
        section=section,
        phase=phase,
        statement=statement,
        schema=subject.schema,
        name=subject.name,
        table=subject.table,
        references=subject.mentions,
        types=subject.types,
        functions=subject.functions,
        arguments=subject.arguments,
        roles=subject.roles if grantor is None else (*subject.roles, grantor),
        grantor=grantor,
        index=subject.index,
        sequence=subject.sequence,
        note=note,
    )


def _without_versions(node: Node) -> bool:
    """Takes out of an ALTER TABLE what newer minor versions note among a column's options by themselves, and an older
    pg_dump prints: other servers refuse it. Whether there was any."""
    found = False
    for at in reversed(range(len(node.cmds))):
        command = unwrap(node.cmds[at])
        if action_name(command) != "AT_SetOptions":
            continue
        options = getattr(command, "def").list.items
        for n in reversed(range(len(options))):
            if unwrap(options[n]).defname == "pg_attver":
                del options[n]
                found = True
        if not options:
            del node.cmds[at]
    return found


def _spell_out(node: Node, settings: Mapping[str, str]) -> bool:
    """Writes the dump's default tablespace into a statement; whether it did."""
    tablespace = settings.get("default_tablespace", "")
    if not tablespace:
        return False
    kind = kind_of(node)
    if kind == "CreateStmt":
        node.tablespacename = node.tablespacename or tablespace
    elif kind == "CreateTableAsStmt":
        node.into.table_space_name = node.into.table_space_name or tablespace
    elif kind == "IndexStmt":
        node.table_space = node.table_space or tablespace
    elif kind == "AlterTableStmt":
        built = [c for c in added_constraints(node) if constraint_kind(c) in ("primary key", "unique", "exclude")]
        for constraint in built:
            constraint.indexspace = constraint.indexspace or tablespace
        return bool(built)
    else:
        return False
    return True


def _access_method(node: Node, settings: Mapping[str, str]) -> str | None:
    """A statement that gives a new table the dump's access method, where that is not heap.

    A statement of its own, because postgast 0.2 prints no space behind CREATE TABLE … USING method.
    """
    method = settings.get("default_table_access_method", "heap")
    if method == "heap" or kind_of(node) not in ("CreateStmt", "CreateTableAsStmt") or _partitioned(node):
        return None
    tree = parse("ALTER TABLE t SET ACCESS METHOD heap")
    alter = node_of(tree)
    created = node.relation if kind_of(node) == "CreateStmt" else node.into.rel
    alter.relation.CopyFrom(created)
    alter.cmds[0].alter_table_cmd.name = method
    if kind_of(node) == "CreateTableAsStmt":
        alter.objtype = node.objtype
    return deparse(tree)


def _joined(read: list[DdlEvent]) -> list[DdlEvent]:
    """The events with what only their neighbours know: whose index, whose sequence, which types are tables."""
    relations = {event.table for event in read if event.tag in _MAKES_RELATION}
    types = {_name(event) for event in read if event.tag in ("CREATE TYPE", "CREATE DOMAIN")}
    of_index = {event.index: event.table for event in read if event.index}
    of_sequence = {event.sequence: event.table for event in read if event.sequence}
    of_statistics = {_name(event): event.table for event in read if event.tag == "CREATE STATISTICS"}
    owners = {"index": of_index, "sequence": of_sequence, "statistics": of_statistics}
    joined = []
    for event in read:
        table, sequence = event.table, event.sequence
        if event.kind in owners and table is None:
            table = owners[event.kind].get(_name(event))
        if event.kind == "sequence" and sequence is None:
            sequence = _name(event)
        if table in types:  # COMMENT ON COLUMN of a composite type
            table = None
        references = dict.fromkeys(of_index.get(name) or name for name in event.references)
        references.update(dict.fromkeys(name for name in event.types if name in relations))
        references.pop(table or ("", ""), None)
        known = table, sequence, tuple(references)
        same = known == (event.table, event.sequence, event.references)
        joined.append(event if same else replace(event, table=table, sequence=sequence, references=known[2]))
    return joined


def _name(event: DdlEvent) -> Name:
    return (event.schema or "", event.name or "")


def _partitioned(node: Node) -> bool:
    return kind_of(node) == "CreateStmt" and bool(node.HasField("partspec"))


def is_own_schema(schema: str) -> bool:
    """Whether a schema is one of ours: the journal's, or a copy's."""
    return schema == "pgddl" or schema.startswith("pgddl_")


def _own_left_out(events: list[DdlEvent]) -> list[DdlEvent]:
    """Our own triggers, on the source's tables already when the dump is taken, are noise."""
    ours: set[tuple[Name | None, str | None]] = set()
    judged = []
    for event in events:
        this = (event.table, event.name)
        trigger = event.kind in ("trigger", "event trigger")
        if trigger and any(is_own_schema(schema) for schema, _ in event.functions):
            ours.add(this)
        own = this in ours if trigger else is_own_schema(event.schema or "")
        judged.append(replace(event, phase="noise", note="pgddl's own") if own else event)
    return judged


def without(events: Iterable[DdlEvent], tables: Collection[Name]) -> tuple[list[DdlEvent], list[DdlEvent]]:
    """(kept, left out): events without `tables`, and without all that cannot be there without those.

    A view over a table that is left out goes with it, and so do its own grants, comments and dependents, and functions
    that take or return its rows; a table stays without its foreign keys to what is left out.
    """
    events = list(events)
    gone = set(tables)  # relations and types, which share one space of names
    gone_functions: set[tuple[Name, tuple[str, ...] | None]] = set()
    gone_whole: set[tuple[str, Name]] = set()  # other things that stand alone: what is said of them goes along
    # pg_dump --exclude-table leaves out an index, but not what attaches a partition's index to it.
    made = {event.table for event in events if event.tag in _MAKES_RELATION}
    while True:
        kept_functions = {_name(e) for e in events if e.tag in _MAKES_FUNCTION and _function(e) not in gone_functions}
        uncallable = {name for name, _ in gone_functions} - kept_functions
        left_out = [
            event
            for event in events
            if event.table in gone
            or gone.intersection(event.references)
            or gone.intersection(event.types)
            or uncallable.intersection(event.functions)
            or _function(event) in gone_functions
            or (event.kind in _WHOLE and _whole(event) in gone_whole)
            or (event.tag == "ALTER INDEX" and not made.issuperset({event.table, *event.references}))
        ]
        more = {_name(event) for event in left_out if event.tag in _MAKES_RELATION | _MAKES_TYPE} - gone
        more_functions = {_function(event) for event in left_out if event.tag in _MAKES_FUNCTION} - gone_functions
        out = {id(event) for event in left_out}
        kept = {_whole(event) for event in events if event.tag.startswith("CREATE ") and id(event) not in out}
        more_whole = (
            {_whole(e) for e in left_out if e.kind in _WHOLE and e.tag.startswith("CREATE ")} - kept - gone_whole
        )
        if not more and not more_functions and not more_whole:
            return [event for event in events if id(event) not in out], left_out
        gone |= more
        gone_functions |= more_functions
        gone_whole |= more_whole


def _function(event: DdlEvent) -> tuple[Name, tuple[str, ...] | None]:
    """A function by name and arguments; what is no function is no member of any set of functions."""
    return (_name(event), event.arguments)


def _whole(event: DdlEvent) -> tuple[str, Name]:
    return (event.kind, _name(event))


_WHOLE = {"type", "domain", "aggregate", "operator", "operator class", "operator family"}
_MAKES_FUNCTION = {"CREATE FUNCTION", "CREATE PROCEDURE"}
_MAKES_TYPE = {"CREATE TYPE", "CREATE DOMAIN"}
_MAKES_RELATION = {
    "CREATE TABLE",
    "CREATE VIEW",
    "CREATE MATERIALIZED VIEW",
    "CREATE FOREIGN TABLE",
    "CREATE TABLE AS",
    "SELECT INTO",
}
