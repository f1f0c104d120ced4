"""What the event triggers on a source record of one command: the JSON of both transports, as types. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NotRequired, TypedDict


class ColumnMeta(TypedDict):
    """One live column. Types, collations and expressions are printed under an empty search_path, so fully qualified."""

    attnum: int
    name: str
    type: str
    """With typmod: ``numeric(10,2)``."""
    type_oid: int
    typmod: int
    collation: str | None
    """Quoted and qualified, where it is not the type's own."""
    not_null: bool
    default: str | None
    """The expression; a generated column's too."""
    generated: str
    """'' none, s stored, v virtual."""
    identity: str
    """'' none, a always, d by default."""
    missing: str | None
    """As text, what rows older than the column show (attmissingval)."""
    local: bool
    """Defined here, not only inherited."""
    rest: NotRequired[str | None]
    """What no field holds, where it is not the type's own: storage, compression, statistics target, options; parts with
    ``; `` between."""
    id: NotRequired[str | None]
    """The injector's identity."""


class KeyMeta(TypedDict):
    """What identifies a row: the primary key, else the first unique index over columns that are not null."""

    index: str
    columns: list[int]


class ConstraintMeta(TypedDict):
    oid: int
    name: str
    type: str
    """pg_constraint.contype: p u f c x n (n only on columns' not-null constraints of Postgres 18: left out)."""
    definition: str
    """pg_get_constraintdef under an empty search_path."""
    validated: bool
    local: bool
    references: list[str] | None
    """A foreign key's table as [schema, name]."""


class IndexMeta(TypedDict):
    """An index that no constraint made."""

    oid: int
    name: str
    definition: str
    """pg_get_indexdef."""


class TableMeta(TypedDict):
    """One relation as a whole: what a schema version holds. `kind` is pg_class.relkind: r p v m f."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    owner: str
    columns: list[ColumnMeta]
    key: KeyMeta | None
    replica_identity: str
    """pg_class.relreplident: d n f i."""
    replica_index: str | None
    constraints: list[ConstraintMeta]
    indexes: list[IndexMeta]
    partition_key: str | None
    """``RANGE (created_at)``, where it is partitioned."""
    bound: str | None
    """``FOR VALUES FROM …``, where it is a partition."""
    parents: list[list[str]]
    """[schema, name] of each, in order."""
    descendants: list[int]
    definition: str | None
    """A view's query (pg_get_viewdef)."""
    options: list[str]
    """pg_class.reloptions."""
    rest: NotRequired[str | None]
    """What no field holds, where it is not the server's own: row security, triggers and rules that are not enabled as
    usual (those of capture left out), tablespace, access method, options of its TOAST table, CLUSTER's index, the type
    it is OF, a foreign table's server and options. Parts with ``; `` between, as in columns."""
    id: NotRequired[str | None]
    """The injector's identity."""


class ObjectMeta(TypedDict):
    """One row of pg_event_trigger_ddl_commands()."""

    classid: str
    """The catalog's name: ``pg_class``."""
    objid: int
    objsubid: int
    tag: str
    type: str
    """``table``, ``table column``, ``index`` …"""
    schema: str | None
    name: str | None
    """The object's own name; null for what has none (a cast)."""
    identity: str
    """object_identity, quoted and qualified."""
    table: int | None
    """The relation that an index, a constraint, a trigger, a policy, a rule, a default, statistics … belongs to."""
    definition: str | None
    """Its statement, where Postgres can print it: views' queries are in `tables`; functions, indexes, triggers, rules,
    statistics, sequences, enums, composite types, domains as a whole CREATE statement."""
    owner: str | None


class DroppedMeta(TypedDict):
    """One row of pg_event_trigger_dropped_objects(), in an order in which they can be dropped one after the other."""

    classid: str
    objid: int
    objsubid: int
    type: str
    schema: str | None
    name: str | None
    identity: str
    original: bool
    """Named by the statement."""
    normal: bool
    """There on account of CASCADE, not as a part of something else."""
    table: list[str] | None
    """[schema, name] of the relation that a column, constraint, trigger, policy, rule, default … belonged to."""
    arguments: list[str]
    """address_args: a function's types of arguments."""


class TableRewrite(TypedDict):
    oid: int
    reason: int
    """pg_event_trigger_table_rewrite_reason(): 1 persistence, 2 default, 4 type, 8 access method; a sum."""


class CapturedEvent(TypedDict):
    """One command, recorded when it had been run and before its transaction ended."""

    id: str
    """``<xid8>.<seq>``: unique in a cluster's life, so a redelivery is known by it."""
    xid: str
    seq: int
    """From 1 in each transaction."""
    lsn: str
    at: str
    batch: str
    """The same for all commands of one string that a client sent."""
    tag: str
    statement: str
    """current_query(): the client's whole string, which may hold many statements, or a DO block."""
    nested: bool
    """Run inside a function, a procedure or a DO block: `statement` is not its own text."""
    inner: str | None
    """Nested: its own text, where the server's context tells it."""
    role: str
    """The client's current_user."""
    session_role: str
    path: list[str]
    """current_schemas(true): as names were looked up, pg_catalog among them."""
    settings: dict[str, str]
    """Settings that change what the statement means: TimeZone, DateStyle, IntervalStyle, default_tablespace,
    default_table_access_method, check_function_bodies, xmloption, standard_conforming_strings."""
    names: dict[str, str]
    """Unqualified words of the text that name a relation or type in the path, at the end of the command → its schema.
    Words that pg_catalog has first are left out."""
    functions: dict[str, str]
    """The same for functions and procedures."""
    objects: list[ObjectMeta]
    dropped: list[DroppedMeta]
    rewritten: list[TableRewrite]
    tables: dict[str, TableMeta]
    """By oid as text: every relation that is among the objects or owns one, and its descendants."""
    kept_snapshot: NotRequired[bool]
    """Its transaction kept one snapshot: what others changed since is not in `tables`."""
    within: NotRequired[str]
    """The id of the command that it was run in, by an event trigger of somebody else."""
    disabled_for: list[str]
    """Pipelines that had DDL switched off (`pgddl ddl disable`)."""


# What pg_dump reads at its snapshot, and what waits for the end of a swap, where a dump tells it.
TOLD_BY_A_DUMP = {
    "ALTER DEFAULT PRIVILEGES",
    "COMMENT",
    "GRANT",
    "REFRESH MATERIALIZED VIEW",
    "REVOKE",
    "SECURITY LABEL",
}
# What can put another thing in the place of one that a snapshot shows, and prints as of now.
_REPLACE = {"CREATE AGGREGATE", "CREATE FUNCTION", "CREATE PROCEDURE", "CREATE TRIGGER"}


def changes_a_dump(event: CapturedEvent, there: Collection[int]) -> bool:
    """Whether a command that came after a dump's snapshot may have changed what the dump says (C24). `there` are the
    oids of all relations, functions and triggers that the snapshot shows.

    pg_dump reads rows of the catalog at its snapshot, but has names, types, defaults, indexes, triggers, statistics and
    arguments printed by the server as of now. So what comes new, rights and comments are no reason; a change of what is
    there may be one, and is taken for one where no experiment has shown otherwise (test_dump_kinds)."""
    tag = event["tag"]
    if tag in TOLD_BY_A_DUMP:
        return False
    if tag in _REPLACE:
        return any(one["objid"] in there for one in event["objects"])
    if tag == "SELECT INTO" or (tag.startswith("CREATE ") and tag != "CREATE EXTENSION"):
        return False
    return is_about(event, there)


def is_about(event: CapturedEvent, there: Collection[int]) -> bool:
    """Whether a command may be about what a dump of these has. What is only about relations that are not there is in
    none; and tables that are dropped were dumped before, under a lock."""
    if not (event["objects"] or event["dropped"]):
        return True
    for one in event["objects"]:
        relation = one["table"] or (one["objid"] if one["classid"] == "pg_class" else None)
        if relation is None or relation in there:
            return True
    tables = {one["objid"] for one in event["dropped"] if one["classid"] == "pg_class" and one["type"] == "table"}
    return any((one["original"] or one["normal"]) and one["objid"] not in tables for one in event["dropped"])


DecisionVerdict = Literal["apply", "skip", "unhandled"]
