"""What the checks know: both sides, the tables, and what the journal has recorded of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, LiteralString, NamedTuple

from psycopg.rows import dict_row

from airflow_provider_pgddl.engine.ddl.rewrite_actions import AlterAction, alter_actions
from airflow_provider_pgddl.engine.errors import PgddlError, PreflightRefused
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import table_pattern, written
from airflow_provider_pgddl.engine.pipeline.rewrite import PartitionBy
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.rights.foreign_code import NOTHING, Survey, survey
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("preflight")

NAME_BYTES = 63  # of a name; the server cuts the rest off
ASIDE = "before_pgddl"  # the schema for what is in the way
KINDS = {  # pg_class.relkind
    "r": "a table",
    "p": "a partitioned table",
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
}


class Relation(NamedTuple):
    """One row of the query `relations`: a table or a partition of it, and our rights on it."""

    root: int
    oid: int
    schema: str
    name: str
    quoted: str
    kind: str
    is_partition: bool
    owner: str
    owned: bool
    can_use_schema: bool
    can_create_in_schema: bool
    can_select: bool
    row_security: bool
    forced: bool
    hides_rows: bool

    @property
    def written(self) -> str:
        return written(self.schema, self.name)


class Side:
    """One server as the checks see it."""

    def __init__(self, where: Literal["source", "target"], conn: Session):
        self.where, self.conn = where, conn
        self.version = conn.info.server_version

    @cached_property
    def server(self) -> dict[str, Any]:
        """The row of the query `server`."""
        with self.conn.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute(_Q["server"]).fetchone()
        if row is None:
            raise PreflightRefused("the role of this session is gone")
        return row

    @property
    def role(self) -> str:
        """Our role, quoted for SQL."""
        return self.name(str(self.server["role"]))

    @cached_property
    def _keywords(self) -> set[str]:
        return {word for (word,) in self.conn.execute(_Q["keywords"])}

    def name(self, *names: str) -> str:
        """A name for SQL, quoted where it must be."""
        return ".".join(f'"{name}"' if name in self._keywords else written(name) for name in names)

    def rows(self, query: str, **args: Any) -> list[tuple[Any, ...]]:
        text: LiteralString = _Q[query]
        return self.conn.execute(text, args or None).fetchall()


class Facts:
    """What is known of one pipeline; every check yields findings from it, independent of the others."""

    def __init__(self, pipeline: Pipeline, sides: Sequence[Side], tables: Sequence[Name]):
        self.pipeline = pipeline
        self.source = sides[0]
        self.target = sides[1] if len(sides) > 1 else None
        self.sides = sides
        self.tables = list(dict.fromkeys(tables))
        self.structure = [table_pattern(pattern) for pattern in pipeline.tables.schema_only]
        self.rows = [
            (schema, name)
            for schema, name in self.tables
            if not any(s.fullmatch(schema) and t.fullmatch(name) for s, t in self.structure)
        ]
        named = self.source.rows("named", schemas=[s for s, _ in self.tables], names=[t for _, t in self.tables])
        self.kinds: dict[Name, str] = {(schema, name): kind for schema, name, oid, kind in named if oid is not None}
        self.oids: dict[Name, int] = {(schema, name): oid for schema, name, oid, _ in named if oid is not None}
        self.names = {oid: table for table, oid in self.oids.items()}
        self.row_oids = [self.oids[table] for table in self.rows if self.kinds.get(table) in ("r", "p")]
        found = [Relation(*row) for row in self.source.rows("relations", oids=list(self.names))]
        self.relations = [relation for relation in found if relation.kind in "rpf"]

    @cached_property
    def surveyed(self) -> Mapping[int, Survey]:
        """By oid, whose the tables whose rows move are, and what code of roles that are not trusted is on them."""
        found = survey(self.source.conn, self.row_oids, self.pipeline.trusted_roles)
        return {oid: found.get(oid, NOTHING) for oid in self.row_oids}

    @cached_property
    def surveyed_structure(self) -> Mapping[Name, Survey]:
        """The same of tables whose structure alone is moved, where something is to be said."""
        structure = [
            table
            for table in catalog.table_names(self.source.conn)
            if table not in self.rows
            and any(s.fullmatch(table[0]) and t.fullmatch(table[1]) for s, t in self.structure)
        ]
        oids = {oid: table for table, oid in catalog.oids_of(self.source.conn, structure).items()}
        found = survey(self.source.conn, oids, self.pipeline.trusted_roles)
        return {oids[oid]: survey for oid, survey in found.items()}

    def written(self, oid: int) -> str:
        return written(*self.names[oid])


def foreign_keys(facts: Facts) -> list[dict[str, Any]]:
    """Foreign keys at either end of the tables: the rows of the query of that name."""
    with facts.source.conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_Q["foreign_keys"], {"oids": list(facts.names)}).fetchall()


def running(facts: Facts, side: Side) -> bool:
    """Whether a run of this pipeline is under way: then what it made is on that side already."""
    if side.rows("journal_exists") != [(True,)]:
        return False
    return side.conn.execute(_Q["running"], [facts.pipeline.pipeline]).fetchall() == [(True,)]


def recorded(facts: Facts, side: Side) -> dict[Name, str]:
    """The tables that this pipeline's present run has made already, with their states."""
    if side.rows("journal_exists") != [(True,)]:
        return {}
    rows = side.conn.execute(_Q["recorded"], [facts.pipeline.pipeline]).fetchall()
    return {(schema, name): state for schema, name, state in rows}


@dataclass(frozen=True, slots=True)
class Brought:
    """Whose doing a table is: a run of a pipeline that is `earlier`, `finished` or `under way`. One that has not
    `begun` captures it, to bring it; one with a copy `beside` it is to swap both."""

    pipeline: str
    run: int
    since: str
    begun: bool
    beside: bool

    def has_or_will(self, what_it_means: str) -> str:
        """Who has brought it and what that means, or that it is to come."""
        return f"{self}, {f'has brought it there, and {what_it_means}' if self.begun else 'is about to bring it'}"

    def __str__(self) -> str:
        return f"run {self.run} of pipeline {self.pipeline!r}, which is {self.since.replace('earlier', 'over')}"


def brought(side: Side, tables: Sequence[Name]) -> dict[Name, Brought]:
    """Of these tables those that a pipeline has brought there, or is to, as the journal on that side tells."""
    if side.rows("journal_exists") != [(True,)]:
        return {}
    found = side.rows("brought", schemas=[s for s, _ in tables], names=[t for _, t in tables])
    return {(schema, name): Brought(*run) for schema, name, *run in found}


def free_name(side: Side, schema: str | None, wanted: str) -> str:
    """This name, or the first like it that nothing in the schema has; without one, no schema."""
    endings = ["", *(f"_{number}" for number in range(2, 100))]
    names = [wanted.encode()[: NAME_BYTES - len(e)].decode(errors="ignore") + e for e in endings]
    taken = {name for (name,) in side.rows("names_taken", schema=schema, names=names)}
    return next(name for name in names if name not in taken)


def any_brought(side: Side) -> bool:
    """Whether any pipeline has begun or ended to bring anything there."""
    return side.rows("journal_exists") == [(True,)] and side.rows("any_brought") == [(True,)]


def out_of_the_way(side: Side, table: Name, kind: str, oid: int) -> str:
    """What frees a relation's name: all but an empty table goes elsewhere, with all that belongs to it."""
    if kind in ("i", "I", "S"):  # which go with their table, and cannot go alone
        word = "SEQUENCE" if kind == "S" else "INDEX"
        return f"ALTER {word} {side.name(*table)} RENAME TO {side.name(f'{table[1][:50]}_{ASIDE}')};"
    words = {"v": "VIEW", "m": "MATERIALIZED VIEW", "f": "FOREIGN TABLE", "c": "TYPE"}
    if kind in words:
        return "\n".join(aside(side, [(words[kind], side.name(*table))]))
    if side.rows("filled", oids=[oid]):
        moves = aside(side, [("TABLE", side.name(*name)) for name in side.rows("with_partitions", oid=oid)])
        return "\n".join([f"{moves[0]}  -- it holds rows: look at them before you drop it", *moves[1:]])
    return f"DROP TABLE {side.name(*table)};  -- it is empty"


def aside(side: Side, objects: Iterable[tuple[str, str]]) -> list[str]:
    """Statements that put these, by kind and quoted name, where they are in nobody's way; nothing is lost by it."""
    schema = side.name(ASIDE)
    moves = [f"ALTER {kind} {quoted} SET SCHEMA {schema};" for kind, quoted in objects]
    return [f"CREATE SCHEMA IF NOT EXISTS {schema};", *moves]


def actions(facts: Facts, table: Name) -> list[AlterAction]:
    """Those of `rewrite.alter` that can be read; about the others `alterations` tells."""
    rewrite = facts.pipeline.rewrites.get(table)
    try:
        return alter_actions(rewrite.alter) if rewrite else []
    except PgddlError:
        return []


def split_tables(facts: Facts) -> Iterator[tuple[Name, PartitionBy]]:
    """Plain tables that `rewrite.partition_by` makes partitioned ones of."""
    for table, rewrite in facts.pipeline.rewrites.items():
        if rewrite.partition_by is not None and facts.kinds.get(table) == "r":
            yield table, rewrite.partition_by


def cannot_create(side: Side) -> Iterator[Finding]:
    """The finding that our role may not create schemas there."""
    what = f"role {side.server['role']} may not create schemas in database {side.server['database']}"
    fix = f"GRANT CREATE ON DATABASE {side.name(side.server['database'])} TO {side.role};"
    yield Finding("error", "rights", side.where, None, what, fix)


def memberships(facts: Facts, roles: Iterable[str]) -> dict[str, bool]:
    """Which roles the target has, and whether we may hand objects over to each."""
    assert facts.target is not None
    privilege = "SET" if facts.target.version >= 160_000 else "MEMBER"
    return dict(facts.target.rows("memberships", roles=list(roles), privilege=privilege))
