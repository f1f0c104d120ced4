"""What would end in loss or failure, found before anything is touched; each finding has its fix as SQL. Read-only."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, LiteralString, NamedTuple

from psycopg import errors as pg
from psycopg import sql
from psycopg.rows import dict_row

from airflow_provider_pgddl.engine import catalog, dependents
from airflow_provider_pgddl.engine.capture import slot_log
from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.ddl.actions import AlterAction, alter_actions, dropped_columns
from airflow_provider_pgddl.engine.ddl.dump import find_pg_dump
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, old_schema
from airflow_provider_pgddl.engine.errors import PgddlError, PreflightRefused
from airflow_provider_pgddl.engine.findings import Finding, Where
from airflow_provider_pgddl.engine.partition_checks import partition_findings
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import Table, column_name, table_name, table_pattern, written
from airflow_provider_pgddl.engine.pooler import shares_sessions
from airflow_provider_pgddl.engine.progress import amount
from airflow_provider_pgddl.engine.rows import ties
from airflow_provider_pgddl.engine.rows.chunks import UNINDEXED_RANGES
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.unbuilt import unsupported

OLDEST = 14
# Sessions of a run beside its workers': lease, stage, window, watch, journal.
OWN_SESSIONS = 6


def preflight(pipeline: Pipeline, source: Session, target: Session, tables: Sequence[Table]) -> list[Finding]:
    """Every finding, errors first. The sessions are idle ones of `connect`; in place both lead to one database.

    `tables` are those that the pipeline takes on the source, schema_only ones included or not.
    """
    found = list(unsupported(pipeline))
    sides = [Side("source", source), *([] if pipeline.in_place else [Side("target", target)])]
    old = [finding for side in sides for finding in too_old(side.version, side.where)]
    if old:
        return [*found, *old]  # their catalogs lack what the checks below ask for
    check = Preflight(pipeline, sides, tables)
    for step in check.steps():
        found.extend(step())
    return sorted(dict.fromkeys(found), key=lambda finding: finding.severity != "error")


def what_a_swap_breaks(pipeline: Pipeline, conn: Session, tables: Sequence[Table]) -> Callable[[], list[Finding]]:
    """A check to be called under the swap's lock: what the tables are by then. Prepared before it."""
    check = Preflight(pipeline, [Side("source", conn)], tables)
    return lambda: [
        *check.unmovable(), *check.unkept(), *check.children(), *check.published(), *check.replicated(),
        *check.partitions(),
    ]  # fmt: skip


def what_passes_a_fence(pipeline: Pipeline, conn: Session, tables: Sequence[Table]) -> list[Finding]:
    """What would go on writing to the source behind the fence of a cut-over."""
    return list(Preflight(pipeline, [Side("source", conn)], tables).subscribed("error"))


def too_old(version: int, where: Where) -> Iterator[Finding]:
    """A finding for a server_version_num below 14."""
    if version < OLDEST * 10_000:
        number = f"{version // 10_000}" if version >= 100_000 else f"{version // 10_000}.{version // 100 % 100}"
        what = f"Postgres {number} is too old: {OLDEST} or newer is needed"
        yield Finding("error", "version", where, None, what, "upgrade this server first")


# ---------------------------------------------------------------------------------------------------------------
# The two sides


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


_Q = queries("preflight")


class Preflight:
    """The checks over one pipeline; `steps` are independent of one another, each yields findings."""

    def __init__(self, pipeline: Pipeline, sides: Sequence[Side], tables: Sequence[Table]):
        self.pipeline = pipeline
        self.source = sides[0]
        self.target = sides[1] if len(sides) > 1 else None
        self.sides = sides
        self.tables = list(dict.fromkeys(tables))
        structure = [table_pattern(pattern) for pattern in pipeline.tables.schema_only]
        self.rows = [
            (schema, name)
            for schema, name in self.tables
            if not any(s.fullmatch(schema) and t.fullmatch(name) for s, t in structure)
        ]
        named = self.source.rows("named", schemas=[s for s, _ in self.tables], names=[t for _, t in self.tables])
        self.kinds: dict[Table, str] = {(schema, name): kind for schema, name, oid, kind in named if oid is not None}
        self.oids: dict[Table, int] = {(schema, name): oid for schema, name, oid, _ in named if oid is not None}
        self.names = {oid: table for table, oid in self.oids.items()}
        self.row_oids = [self.oids[table] for table in self.rows if self.kinds.get(table) in ("r", "p")]
        found = [Relation(*row) for row in self.source.rows("relations", oids=list(self.names))]
        self.relations = [relation for relation in found if relation.kind in "rpf"]

    def steps(self) -> list[Callable[[], Iterator[Finding]]]:
        """In the order in which people should read them."""
        both = [
            self.standby,
            self.pooler,
            self.event_triggers,
            self.slots,
            self.replica_identities,
            self.pg_dump,
            self.our_schemas,
            self.publications,
            self.connections,
        ]
        first = [self.missing_tables, self.source_rights, self.row_security, self.keys, self.foreign_tables]
        last = [self.partitioned_foreign_keys, self.prepared]
        if self.target is None:
            in_place = [self.alterations, self.partitions, self.orders, self.swap_rights, self.earlier_copies]
            moved = [self.unmovable, self.unkept, self.dependents, self.children, self.published, self.replicated]
            return [*both, *first, *in_place, *moved, *last]
        created = [self.target_rights, self.firing, self.existing, self.existing_objects, self.extensions, self.roles]
        return [self.same_database, *both, *first, *created, self.encodings, self.left_behind, self.subscribed, *last]

    def written(self, oid: int) -> str:
        return written(*self.names[oid])

    # --- servers -------------------------------------------------------------------------------------------------

    def standby(self) -> Iterator[Finding]:
        for side in self.sides:
            if side.server["standby"]:
                what = "this server is a standby, and pgddl writes on both sides"
                yield Finding("error", "standby", side.where, None, what, "point the connection at the primary")

    def event_triggers(self) -> Iterator[Finding]:
        """Only a superuser makes event triggers (C25)."""
        if self.pipeline.capture.ddl != "off" and not self.source.server["superuser"]:
            what = f"capture.ddl: {self.pipeline.capture.ddl} needs event triggers, which only a superuser can make"
            fix = f"ALTER ROLE {self.source.role} SUPERUSER;  -- or set capture.ddl: off: DDL then stops its table"
            yield Finding("error", "event_triggers", "source", None, what, fix)

    def slots(self) -> Iterator[Finding]:
        capture, server = self.pipeline.capture, self.source.server
        keys = [key for key in ("rows", "ddl") if getattr(capture, key) == "wal"]
        if not keys:
            return
        asked = " and ".join(f"capture.{key}: wal" for key in keys)
        if server["wal_level"] != "logical":
            what = f"{asked} needs wal_level logical, and it is {server['wal_level']}"
            instead = " and ".join(
                {"rows": "capture.rows: change_log", "ddl": "capture.ddl: queue"}[key] for key in keys
            )
            fix = f"ALTER SYSTEM SET wal_level = 'logical';  -- and restart the server; or set {instead}"
            yield Finding("error", "wal_level", "source", None, what, fix)
        elif server["free_slots"] < len(keys):
            fix = "ALTER SYSTEM SET max_replication_slots = 20;  -- and restart the server; or drop a slot"
            what = (
                "every replication slot is taken"
                if server["free_slots"] < 1
                else f"{asked} need two slots, one is free"
            )
            yield Finding("error", "slots", "source", None, what, fix)
        if not server["replication"]:
            fix = f"ALTER ROLE {self.source.role} REPLICATION;"
            yield Finding("error", "replication", "source", None, f"{asked} needs the right to replicate", fix)
        if capture.failover and self.source.version < 170_000:
            what = f"capture.failover needs Postgres 17 or newer, the source is {self.source.version // 10_000}"
            yield Finding("error", "failover", "source", None, what, "leave capture.failover out")

    def replica_identities(self) -> Iterator[Finding]:
        """What our publication would break for applications (C19)."""
        if not self.pipeline.by_slot:
            return
        for table in catalog.describe(self.source.conn, self.row_oids).values():
            if table.key is None and self.pipeline.tables.keyless == "copy_at_swap":
                continue  # never published
            for relation, what, fix in slot_log.unfit(self.source.conn, table):
                yield Finding("error", "replica_identity", "source", relation, what, fix)

    def same_database(self) -> Iterator[Finding]:
        """Names and system identifiers are no proof (a standby that was promoted has both); a lock that collides is."""
        assert self.target is not None
        source, target = self.source.server, self.target.server
        if (source["system"], source["database"]) != (target["system"], target["database"]):
            return
        probe = secrets.randbits(62)
        if self.source.conn.execute(_Q["lock_probe"], [probe]).fetchone() != (True,):
            return
        try:
            if self.target.conn.execute(_Q["lock_probe"], [probe]).fetchone() == (True,):
                self.target.conn.execute(_Q["unlock_probe"], [probe])
                return
        finally:
            self.source.conn.execute(_Q["unlock_probe"], [probe])
        what = f"source and target are the same database, {target['database']}"
        fix = "leave target out and name the tables under rewrite: then they are rewritten in place"
        yield Finding("error", "same_database", "target", None, what, fix)

    def pooler(self) -> Iterator[Finding]:
        for side in self.sides:
            if shares_sessions(side.conn):
                what = "a connection pooler in transaction mode stands in between: locks and settings do not last there"
                fix = "connect to the server directly, or to a pool with pool_mode = session"
                yield Finding("error", "pooler", side.where, None, what, fix)

    def pg_dump(self) -> Iterator[Finding]:
        try:
            find_pg_dump(self.source.version // 10_000)
        except PgddlError as error:
            yield Finding("error", "pg_dump", "source", None, error.what, error.todo)

    def connections(self) -> Iterator[Finding]:
        needed = self.pipeline.backfill.workers + OWN_SESSIONS
        for side in self.sides:
            free = side.server["free_connections"]
            if free < needed:
                what = f"{free} connections are free, and up to {needed} are needed ({OWN_SESSIONS} and one a worker)"
                fix = "lower backfill.workers, or raise max_connections:\nALTER SYSTEM SET max_connections = ...;"
                yield Finding("warning", "connections", side.where, None, what, fix)

    def prepared(self) -> Iterator[Finding]:
        for gid, owner, since in self.source.rows("prepared_transactions"):
            what = f"prepared transaction {gid} of {owner} is open since {since}; setup waits until it has ended"
            fix = f"ROLLBACK PREPARED {sql.Literal(gid).as_string(self.source.conn)};  -- or COMMIT PREPARED"
            yield Finding("warning", "prepared_transaction", "source", None, what, fix)

    def our_schemas(self) -> Iterator[Finding]:
        """`pgddl` and, in place, the schemas of copies and of what they replace: absent, or ours by their comment."""
        live = sorted({schema for schema, _ in self.rows}) if self.target is None else []
        for side in self.sides:
            wanted = ["pgddl", *(made(schema) for schema in live for made in (copy_schema, old_schema))]
            present = {row[0]: row[1:] for row in side.rows("schemas", schemas=wanted)}
            for schema, (comment, usable, owner, ledger) in present.items():
                ours = (comment or "").startswith("pgddl") and (schema != "pgddl" or ledger)
                if not ours:
                    quoted = side.name(schema)
                    what = f"schema {written(schema)} (owner {owner}) exists and is not pgddl's"
                    fix = f"ALTER SCHEMA {quoted} RENAME TO ...;\n-- or, if unneeded: DROP SCHEMA {quoted} CASCADE;"
                    yield Finding("error", "foreign_schema", side.where, None, what, fix)
                elif not usable:
                    what = f"role {side.server['role']} may not create in schema {written(schema)}"
                    fix = f"GRANT USAGE, CREATE ON SCHEMA {side.name(schema)} TO {side.role};"
                    yield Finding("error", "rights", side.where, None, what, fix)
            if not side.server["can_create"] and not all(schema in present for schema in wanted):
                yield from self._cannot_create(side)

    def _cannot_create(self, side: Side) -> Iterator[Finding]:
        what = f"role {side.server['role']} may not create schemas in database {side.server['database']}"
        fix = f"GRANT CREATE ON DATABASE {side.name(side.server['database'])} TO {side.role};"
        yield Finding("error", "rights", side.where, None, what, fix)

    def publications(self) -> Iterator[Finding]:
        """A subscriber to everything stops at the first row of a table of ours (C20)."""
        for side in self.sides:
            for name, schemas in side.rows("for_all_tables"):
                quoted = side.name(name)
                what = (
                    f"publication {written(name)} is FOR ALL TABLES: its subscribers would stop at pgddl's own tables"
                )
                scope = f"FOR TABLES IN SCHEMA {schemas}" if side.version >= 150_000 and schemas else "FOR TABLE ..."
                fix = f"DROP PUBLICATION {quoted};\nCREATE PUBLICATION {quoted} {scope};"
                yield Finding("error", "publication", side.where, None, what, fix)

    # --- tables on the source ------------------------------------------------------------------------------------

    def missing_tables(self) -> Iterator[Finding]:
        for schema, name in self.tables:
            kind = self.kinds.get((schema, name))
            if kind is None:
                yield Finding("error", "no_table", "source", written(schema, name), "there is no such table")
            elif kind not in "rp":
                what = f"is {_KINDS.get(kind, 'not a table')}, not a table that pgddl can move"
                yield Finding("error", "no_table", "source", written(schema, name), what)

    def source_rights(self) -> Iterator[Finding]:
        """Triggers that fire always are the owner's to make; rows and sequences are read."""
        side = self.source
        if side.server["superuser"]:
            return
        role = side.server["role"]
        for owner in sorted({relation.owner for relation in self.relations if not relation.owned}):
            of_owner = [relation for relation in self.relations if relation.owner == owner]
            others = f" and {len(of_owner) - 1} more" if len(of_owner) > 1 else ""
            what = (
                f"role {role} needs the rights of the owner, {owner}, to make triggers on {of_owner[0].written}{others}"
            )
            fix = f"GRANT {side.name(owner)} TO {side.role};"
            yield Finding("error", "rights", "source", of_owner[0].written, what, fix)
        for schema in sorted({relation.schema for relation in self.relations if not relation.can_use_schema}):
            what = f"role {role} may not use schema {written(schema)}"
            yield Finding(
                "error", "rights", "source", None, what, f"GRANT USAGE ON SCHEMA {side.name(schema)} TO {side.role};"
            )
        for relation in self.relations:
            if not relation.can_select:
                what, fix = f"role {role} may not read it", f"GRANT SELECT ON {relation.quoted} TO {side.role};"
                yield Finding("error", "rights", "source", relation.written, what, fix)
        for (sequence,) in side.rows("sequences") if self.target is not None else []:
            what = f"role {role} may not read sequence {sequence}"
            fix = f"GRANT SELECT ON SEQUENCE {sequence} TO {side.role};"
            yield Finding("error", "rights", "source", None, what, fix)

    def row_security(self) -> Iterator[Finding]:
        """Policies would hide rows from the copy, and from the checksum by the same role as well (C7)."""
        for relation in self.relations:
            if relation.hides_rows:
                what = f"row security would hide rows from role {self.source.server['role']}"
                fix = f"ALTER ROLE {self.source.role} BYPASSRLS;"
                yield Finding("error", "row_security", "source", relation.written, what, fix)
        if self.target is None or self.target.server["bypasses_row_security"]:
            return
        secured = [relation for relation in self.relations if relation.row_security]
        members = self._memberships({relation.owner for relation in secured})
        for relation in secured:
            if relation.forced or not members.get(relation.owner):
                what = f"its row security would hide rows on the target from role {self.target.server['role']}"
                fix = f"ALTER ROLE {self.target.role} BYPASSRLS;"
                yield Finding("error", "row_security", "target", relation.written, what, fix)

    def keys(self) -> Iterator[Finding]:
        """Every row needs a key: unique, not null, whole, checked at once, and equal only to itself."""
        if self.pipeline.capture.rows == "none":
            return
        side = self.source
        at_swap = self.pipeline.tables.keyless == "copy_at_swap"
        sizes: dict[int, int] = dict(side.rows("table_sizes", oids=self.row_oids)) if at_swap else {}
        described = catalog.describe(side.conn, self.row_oids)
        nullable = dict(side.rows("not_null_candidates", oids=self.row_oids))
        collations: dict[int, dict[str, str]] = {}
        for oid, column, collation in side.rows("key_collations", oids=self.row_oids):
            collations.setdefault(oid, {})[column] = collation
        for oid, table in described.items():
            quoted = side.name(table.schema, table.name)
            if table.key is None and at_swap:
                what = (
                    f"has no key: its {amount(sizes.get(oid, 0))}B are copied whole and compared at the swap, and its"
                    " writers wait for that; a pipeline that never swaps never copies it"
                )
                yield Finding("warning", "keyless", "source", self.written(oid), what)
                continue
            if table.key is None:
                what = (
                    "has no key: no primary key, nor a unique index over all rows and NOT NULL columns, checked at once"
                )
                if candidate := nullable.get(oid):
                    actions = ", ".join(f"ALTER COLUMN {side.name(column)} SET NOT NULL" for column in candidate)
                    fix = f"ALTER TABLE {quoted} {actions};"
                else:
                    columns = [column.name for column in table.columns]
                    key = side.name("id") if "id" in columns else "..."
                    fix = f"ALTER TABLE {quoted} ADD PRIMARY KEY ({key});"
                fix += "\n-- or leave the table out under tables.exclude, or set tables.keyless: copy_at_swap"
                yield Finding("error", "key", "source", self.written(oid), what, fix)
                continue
            for column in table.key.columns:
                if column in self.pipeline.skipped_columns.get((table.schema, table.name), ()):
                    what = f"column {written(column)} is in skip_columns and part of the key"
                    yield Finding(
                        "error", "key", "pipeline", self.written(oid), what, "leave it out of tables.skip_columns"
                    )
                if collation := collations.get(oid, {}).get(column):
                    what = f"key column {written(column)} is under {collation}, by which different texts are equal"
                    fix = f'ALTER TABLE {quoted} ALTER COLUMN {side.name(column)} TYPE text COLLATE pg_catalog."C";'
                    yield Finding("error", "key", "source", self.written(oid), what, fix)

    def foreign_tables(self) -> Iterator[Finding]:
        for relation in self.relations:
            if relation.kind == "f" and relation.oid != relation.root:
                what = f"its partition {relation.written} is a foreign table, whose changes no trigger of ours sees"
                fix = f"ALTER TABLE {self.source.name(*self.names[relation.root])} DETACH PARTITION {relation.quoted};"
                yield Finding("error", "foreign_table", "source", self.written(relation.root), what, fix)

    def partitioned_foreign_keys(self) -> Iterator[Finding]:
        """Before 18, a partitioned table takes no foreign key NOT VALID: validation would lock both tables (C23)."""
        side = self.target or self.source
        if side.version >= 180_000:
            return
        for key in self._foreign_keys():
            if key["referencing_kind"] != "p":
                continue
            referencing = (key["referencing_schema"], key["referencing_name"])
            table, name = written(*referencing), written(key["name"])
            what = f"partitioned, its foreign key {name} cannot be added NOT VALID before Postgres 18"
            if self.target is None:
                fix = f"ALTER TABLE {side.name(*referencing)} DROP CONSTRAINT {side.name(key['name'])};"
                yield Finding("error", "partitioned_foreign_key", side.where, table, what, fix)
            elif referencing in self.oids:
                what += ": it is checked while both tables are locked on the target"
                yield Finding("warning", "partitioned_foreign_key", side.where, table, what)

    def _foreign_keys(self) -> list[dict[str, Any]]:
        with self.source.conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(_Q["foreign_keys"], {"oids": list(self.names)}).fetchall()

    def subscribed(self, severity: Literal["error", "warning"] = "warning") -> Iterator[Finding]:
        """A fence is a statement trigger, and apply workers fire none: what they write would be left behind."""
        if self.pipeline.swap.fence != "read_only" and self.pipeline.tables.keyless != "copy_at_swap":
            return
        side, by_oid = self.source, {relation.oid: relation for relation in self.relations}
        for oid, subscription in side.rows("subscribed", oids=list(by_oid)):
            what = f"subscription {written(subscription)} writes into it, and the fence does not stop that"
            fix = (
                f"ALTER SUBSCRIPTION {side.name(subscription)} DISABLE;  -- before stage swap, which refuses otherwise"
            )
            yield Finding(severity, "subscription", "source", by_oid[oid].written, what, fix)

    # --- in place ------------------------------------------------------------------------------------------------

    def alterations(self) -> Iterator[Finding]:
        """`rewrite.alter` names columns that there are, and drops none that something else needs."""
        columns: dict[int, set[str]] = {}
        for oid, column in self.source.rows("columns", oids=list(self.names)):
            columns.setdefault(oid, set()).add(column)
        for key, rewrite in self.pipeline.rewrite.items():
            table = table_name(key)
            if table not in self.oids:
                continue
            dropped: list[str] = []
            for number, text in enumerate(rewrite.alter):
                place = self.pipeline.where("rewrite", key, "alter", number)
                try:
                    named = [action.column for action in alter_actions([text]) if action.column]
                    dropped += dropped_columns([text])
                except PgddlError as error:
                    yield Finding("error", "alter", "pipeline", written(*table), f"{place}: {error.what}", error.todo)
                    continue
                for column in named:
                    if column not in columns.get(self.oids[table], ()):
                        what = f"{place}: there is no column {written(column)}"
                        yield Finding("error", "alter", "pipeline", written(*table), what)
            place = self.pipeline.where("rewrite", key, "alter")
            retyped = [action.column for action in self._actions(table) if action.kind == "TYPE"]
            for column, made in self.source.rows("generated_from", oid=self.oids[table], columns=retyped):
                what = f"{place}: column {written(column)} gets no other type, {written(made)} is generated from it"
                fix = f"ALTER TABLE {self.source.name(*table)} ALTER COLUMN {self.source.name(made)} DROP EXPRESSION;"
                yield Finding("error", "alter", "pipeline", written(*table), what, fix)
            for column, user in self.source.rows("column_users", oid=self.oids[table], columns=dropped):
                what = f"{place}: column {written(column)} cannot be dropped, {user} needs it"
                fix = "drop that first, or leave the column"
                yield Finding("error", "alter", "pipeline", written(*table), what, fix)

    def partitions(self) -> Iterator[Finding]:
        """`rewrite.partition_by` (C23)."""
        for key, rewrite in self.pipeline.rewrite.items():
            table = table_name(key)
            if self.kinds.get(table) == "r":
                side = self.source
                yield from partition_findings(side.conn, table, self.oids[table], rewrite, side.name)

    def orders(self) -> Iterator[Finding]:
        """`rewrite.order_by`: columns that have an order, and an index that finds the rows in it."""
        side = self.source
        for key, rewrite in self.pipeline.rewrite.items():
            table, names = table_name(key), [column_name(column) for column in rewrite.order_by]
            if self.kinds.get(table) != "r" or not names:
                continue
            described = catalog.describe(side.conn, [self.oids[table]])[self.oids[table]]
            first = next((c for c in described.columns if c.name == names[0]), None)
            if first is None:
                continue  # told of the file's columns
            probe = sql.SQL(queries("order")["probe"]).format(
                source=sql.Identifier(*table), first=sql.Identifier(first.name), type=sql.SQL(first.type),
                columns=sql.SQL(", ").join(sql.Identifier("t", name) for name in names),
            )  # fmt: skip
            try:
                side.conn.execute(probe)
            except pg.UndefinedFunction as error:
                place = self.pipeline.where("rewrite", key, "order_by")
                what = f"{place}: these columns have no order: {error.diag.message_primary}"
                yield Finding("error", "order_by", "pipeline", written(*table), what, "order by other columns")
                continue
            if not side.conn.execute(queries("order")["leading_index"], [described.oid, first.attnum]).fetchone():
                what = (
                    f"no index begins with {written(first.name)}: backfill reads all of the table for each of up to "
                    f"{UNINDEXED_RANGES} ranges of it, and a range is one transaction"
                )
                fix = f"CREATE INDEX CONCURRENTLY ON {side.name(*table)} ({side.name(first.name)});"
                yield Finding("warning", "order_by", "source", written(*table), what, fix)

    def swap_rights(self) -> Iterator[Finding]:
        """The swap moves tables within their schemas and makes foreign keys of both directions anew."""
        side = self.source
        if side.server["superuser"]:
            return
        role = side.server["role"]
        for schema in sorted({relation.schema for relation in self.relations if not relation.can_create_in_schema}):
            what = f"role {role} may not create in schema {written(schema)}, where the new table goes"
            yield Finding(
                "error", "rights", "source", None, what, f"GRANT CREATE ON SCHEMA {side.name(schema)} TO {side.role};"
            )
        for oid, what, fix in dependents.lacking(side.conn, list(self.names)):
            if not fix.endswith(f" TO {side.role};") or not fix.startswith("GRANT CREATE"):  # that was said just now
                yield Finding("error", "rights", "source", self.written(oid), what, fix)
        for key in self._foreign_keys():
            for end, other in (("referencing", "referred to by"), ("referenced", "refers to")):
                if not key[f"owns_{end}"] and key[f"{end}_oid"] not in self.names:
                    table = key["referenced_oid"] if end == "referencing" else key["referencing_oid"]
                    far = written(key[f"{end}_schema"], key[f"{end}_name"])
                    owner = key[f"{end}_owner"]
                    what = f"is {other} {far}" if end == "referencing" else f"{other} {far}"
                    what += (
                        f", whose foreign key the swap makes anew: role {role} needs the rights of its owner, {owner}"
                    )
                    fix = f"GRANT {side.name(owner)} TO {side.role};"
                    yield Finding("error", "rights", "source", self.written(table), what, fix)

    def earlier_copies(self) -> Iterator[Finding]:
        """A table of that name in the copy's or the old table's schema that this run has not made itself."""
        side, made = self.source, self._recorded(self.source)
        for made_in, what in ((copy_schema, "a copy"), (old_schema, "what an earlier rewrite replaced")):
            names = {(made_in(schema), name): (schema, name) for schema, name in self.rows}
            present = side.rows("named", schemas=[s for s, _ in names], names=[t for _, t in names])
            for schema, name, oid, _ in present:
                live = names[(schema, name)]
                if oid is None or made.get(live):
                    continue
                text = f"{written(schema, name)} exists: {what} that belongs to no run of this pipeline"
                fix = f"DROP TABLE {side.name(schema, name)};  -- once nothing in it is needed"
                yield Finding("error", "earlier_copy", "source", written(*live), text, fix)

    def _running(self, side: Side) -> bool:
        if side.rows("journal_exists") != [(True,)]:
            return False
        return side.conn.execute(_Q["running"], [self.pipeline.pipeline]).fetchall() == [(True,)]

    def _recorded(self, side: Side) -> dict[Table, str]:
        """The tables that this pipeline's present run has made already, with their states."""
        if side.rows("journal_exists") != [(True,)]:
            return {}
        rows = side.conn.execute(_Q["recorded"], [self.pipeline.pipeline]).fetchall()
        return {(schema, name): state for schema, name, state in rows}

    def unmovable(self) -> Iterator[Finding]:
        """Partitioning, inheritance, labels, extensions: kinds of tables that the swap does not take yet."""
        side = self.source
        for oid, (schema, name) in self.names.items():
            own = next((r for r in self.relations if r.oid == oid and r.root == oid), None)
            if own is not None and own.kind == "p":
                what = "is partitioned; rewriting it in place is not built yet"
                yield Finding("error", "partitioned", "source", written(schema, name), what, "leave it out")
            elif own is not None and own.is_partition:
                what = "is a partition; rewriting one in place is not built yet"
                yield Finding("error", "partitioned", "source", written(schema, name), what, "leave it out")
        for child_oid, *_, child, ps, pn, parent in side.rows("inheritance", oids=list(self.names)):
            if child_oid in self.names:
                what = f"inherits from {written(ps, pn)}; rewriting a child in place is not built yet"
                fix = f"ALTER TABLE {child} NO INHERIT {parent};"
                yield Finding("error", "inheritance", "source", self.written(child_oid), what, fix)
        for oid, provider in side.rows("security_labels", oids=list(self.names)):
            what = f"has a security label of {provider}, which would stay with the old table"
            label = f"SECURITY LABEL FOR {side.name(provider)} ON TABLE {side.name(*self.names[oid])}"
            fix = f"{label} IS NULL;  -- and again after the swap"
            yield Finding("error", "security_label", "source", self.written(oid), what, fix)
        for oid, extension in side.rows("extension_members", oids=list(self.names)):
            what = f"belongs to extension {written(extension)}"
            fix = f"ALTER EXTENSION {side.name(extension)} DROP TABLE {side.name(*self.names[oid])};"
            yield Finding("error", "extension_member", "source", self.written(oid), what, fix)
        for oid, sequence, own, identity, other, column in side.rows("shared_sequences", oids=list(self.names)):
            dropped = [a.column for a in self._actions(self.names[oid]) if a.kind == "DROP COLUMN"]
            if not identity and own not in dropped:
                continue  # a serial's goes on under the new table, the same for all
            what = f"shares sequence {sequence} with {other}.{column}, which would go on with the old table's"
            fix = f"ALTER TABLE {other} ALTER COLUMN {column} DROP DEFAULT;  -- and give it a sequence of its own"
            yield Finding("error", "shared_sequence", "source", self.written(oid), what, fix)

    def unkept(self) -> Iterator[Finding]:
        """What would be lost in silence, as it is of a table that is dumped and restored."""
        for oid, what, fix in self.source.rows("unkept", oids=list(self.names)):
            yield Finding("error", "unkept", "source", self.written(oid), what, fix)

    def dependents(self) -> Iterator[Finding]:
        """What refers to the table by oid goes over with the swap; not what cannot be told anew (C21)."""
        if not self.names:
            return
        changed = {
            oid: [action.column for action in self._actions(table) if action.kind == "TYPE" and action.column]
            for table, oid in self.oids.items()
        }
        asked = self.pipeline.swap.recreate_materialized_views
        for refused in dependents.read(self.source.conn, list(self.names), changed, materialized=asked).refused:
            yield Finding("error", refused.code, "source", self.written(refused.table), refused.what, refused.fix)

    def _actions(self, table: Table) -> list[AlterAction]:
        """Those of `rewrite.alter` that can be read; about the others `alterations` tells."""
        rewrite = self.pipeline.rewrites.get(table)
        try:
            return alter_actions(rewrite.alter) if rewrite else []
        except PgddlError:
            return []

    def children(self) -> Iterator[Finding]:
        """Children go on under the new table, which must have the columns that they have."""
        for oid, _, _, schema, name, *_ in self.source.rows("children", oids=list(self.names)):
            kinds = {action.kind for action in self._actions(self.names[oid])}
            wrong = sorted(kinds & {"TYPE", "DROP COLUMN", "SET NOT NULL", "DROP NOT NULL"})
            if self._is_split(self.names[oid]):
                wrong.append("partition_by")
            if wrong:
                what = f"{written(schema, name)} inherits from it, and would not have the same columns: {wrong[0]}"
                child, parent = self.source.name(schema, name), self.source.name(*self.names[oid])
                fix = f"ALTER TABLE {child} NO INHERIT {parent};"
                yield Finding("error", "inheritance", "source", self.written(oid), what, fix)

    def published(self) -> Iterator[Finding]:
        """Subscribers know a table by its name, and of a partitioned one they would be told the leaves'."""
        split = [oid for oid, table in self.names.items() if self._is_split(table)]
        for oid, publication in self.source.rows("published_by_leaf", oids=split):
            what = f"publication {written(publication)} would tell subscribers of its partitions, not of it"
            fix = f"ALTER PUBLICATION {self.source.name(publication)} SET (publish_via_partition_root = true);"
            yield Finding("error", "publication", "source", self.written(oid), what, fix)

    def _is_split(self, table: Table) -> bool:
        rewrite = self.pipeline.rewrites.get(table)
        return rewrite is not None and rewrite.partition_by is not None

    def replicated(self) -> Iterator[Finding]:
        """An apply worker knows its tables by oid, and leaves out what comes for one that it does not know."""
        for oid, subscription in self.source.rows("written_by", oids=list(self.names)):
            what = f"subscription {written(subscription)} writes into it, and would write nothing into the new table"
            fix = "rewrite it while it is published elsewhere: leave it out of that publication, and\n"
            fix += f"ALTER SUBSCRIPTION {self.source.name(subscription)} REFRESH PUBLICATION;"
            yield Finding("error", "subscription", "source", self.written(oid), what, fix)

    # --- to a target ---------------------------------------------------------------------------------------------

    def target_rights(self) -> Iterator[Finding]:
        """Schemas, tables and all that belongs to them are created on the target."""
        assert self.target is not None
        side = self.target
        if not side.server["can_create"]:
            yield from self._cannot_create(side)
        schemas = sorted({schema for schema, _ in self.tables})
        for schema, _, usable, _, _ in side.rows("schemas", schemas=schemas):
            if not usable:
                what = f"role {side.server['role']} may not create in schema {written(schema)}"
                fix = f"GRANT USAGE, CREATE ON SCHEMA {side.name(schema)} TO {side.role};"
                yield Finding("error", "rights", "target", None, what, fix)

    def firing(self) -> Iterator[Finding]:
        """What would fire for replayed rows on tables that are there already (C13)."""
        assert self.target is not None
        conn, there = self.target.conn, dict(enumerate(self.rows))
        tied = ties.look(conn, there)
        if ties.may_silence(conn):
            tied = tied.in_replica_role()
        for number, why in tied.stops((), str(self.target.server["role"])).items():
            for what, fix in why:
                yield Finding("error", "firing", "target", written(*there[number]), what, fix)

    def existing(self) -> Iterator[Finding]:
        """Live tables that the target has already, and that this run has not made itself."""
        assert self.target is not None
        if self.pipeline.tables.existing != "refuse":
            return
        made = self._recorded(self.target)
        present = self.target.rows("named", schemas=[s for s, _ in self.tables], names=[t for _, t in self.tables])
        for schema, name, oid, kind in present:
            if oid is not None and not made.get((schema, name)):
                what = f"{_KINDS.get(kind, 'something')} of that name is on the target already"
                drop = {"v": "VIEW", "m": "MATERIALIZED VIEW", "S": "SEQUENCE", "i": "INDEX", "f": "FOREIGN TABLE"}
                fix = (
                    f"DROP {drop.get(kind, 'TABLE')} {self.target.name(schema, name)};  -- once nothing in it is needed"
                )
                yield Finding("error", "existing", "target", written(schema, name), what, fix)

    def existing_objects(self) -> Iterator[Finding]:
        """Views, sequences, types and functions of both sides: the snapshot would stop half-way, at the first."""
        assert self.target is not None
        if self._running(self.target):
            return
        there = set(self.target.rows("objects"))
        both = [row for row in self.source.rows("objects") if row in there]
        if both:
            kind, _, _, quoted = both[0]
            others = f", and {len(both) - 1} more" if len(both) > 1 else ""
            what = f"the target has objects of the source already: {kind.lower()} {quoted}{others}"
            drops = [f"DROP {kind} {quoted};" for kind, _, _, quoted in both]
            yield Finding(
                "error", "existing", "target", None, what, "\n".join([*drops, "-- or start with an empty database"])
            )

    def encodings(self) -> Iterator[Finding]:
        assert self.target is not None
        source, target = self.source.server["encoding"], self.target.server["encoding"]
        database = self.target.name(self.target.server["database"])
        create = f"CREATE DATABASE {database} ENCODING {source} TEMPLATE template0;  -- in its place"
        if source != target:
            what = f"the source's encoding is {source}, the target's {target}"
            # Sessions speak UTF8, so anything that has an encoding fits into a database in UTF8.
            lossless = target == "UTF8" and source != "SQL_ASCII"
            what += "; texts are converted" if lossless else ", which cannot hold every text of the source"
            yield Finding(
                "warning" if lossless else "error", "encoding", "target", None, what, None if lossless else create
            )
        elif source == "SQL_ASCII":
            what = "the database's encoding is SQL_ASCII: a text that is not valid UTF-8 would stop its table"
            yield Finding("warning", "encoding", "source", None, what)
        if self.source.server["locale"] != self.target.server["locale"]:
            source, target = self.source.server["locale"], self.target.server["locale"]
            what = f"texts sort differently: by {source} on the source, by {target} on the target"
            yield Finding("warning", "locale", "target", None, what)
        if self.target.version // 10_000 < self.source.version // 10_000:
            what = (
                f"the target is older than the source (Postgres {self.target.version // 10_000} and "
                f"{self.source.version // 10_000}): what the older version does not know stops the snapshot"
            )
            yield Finding("warning", "version", "target", None, what)

    def extensions(self) -> Iterator[Finding]:
        """The snapshot creates every extension of the source on the target."""
        assert self.target is not None
        side = self.target
        installed = self.source.rows("extensions", oids=list(self.names))
        available = {
            name: (there, anyone)
            for name, there, anyone in side.rows("available_extensions", names=[row[0] for row in installed])
        }
        for name, version, _, needed_by in installed:
            users = sorted(self.written(oid) for oid in needed_by)
            needed = (
                f" (needed by {users[0]}{f' and {len(users) - 1} more' if len(users) > 1 else ''})" if users else ""
            )
            there, anyone = available.get(name, (False, None))
            if there:
                continue
            if anyone is None:
                what = f"the target server has no files of extension {written(name)} {version}{needed}"
                fix = "install its package on the target's server"
                if not users:
                    fix += f", or on the source, if nobody uses it:\nDROP EXTENSION {self.source.name(name)};"
                yield Finding("error", "extension", "target", users[0] if users else None, what, fix)
            elif not anyone and not side.server["superuser"]:
                what = f"extension {written(name)}{needed} takes a superuser to create"
                fix = f"CREATE EXTENSION {side.name(name)};  -- as a superuser, in database {side.server['database']}"
                yield Finding("error", "extension", "target", users[0] if users else None, what, fix)

    def _memberships(self, roles: Iterable[str]) -> dict[str, bool]:
        """Which roles the target has, and whether we may hand objects over to each."""
        assert self.target is not None
        privilege = "SET" if self.target.version >= 160_000 else "MEMBER"
        return dict(self.target.rows("memberships", roles=list(roles), privilege=privilege))

    def roles(self) -> Iterator[Finding]:
        assert self.target is not None
        side = self.target
        involved = dict(self.source.rows("roles", oids=list(self.names)))
        present = self._memberships(involved)
        missing = [role for role in involved if role not in present]
        if missing:
            names = ", ".join(written(role) for role in missing)
            if self.pipeline.ddl.missing_role == "ignore":
                what = f"the target has no role {names}: ownership and grants of theirs are left out there"
            else:
                what = f"the target has no role {names}, and ddl.missing_role is not ignore"
            fix = "\n".join(f"CREATE ROLE {side.name(role)};" for role in missing)
            severity: Literal["error", "warning"] = "warning" if self.pipeline.ddl.missing_role == "ignore" else "error"
            yield Finding(severity, "role", "target", None, what, fix)
        for role, owner in involved.items():
            if owner and present.get(role) is False:
                what = f"role {side.server['role']} cannot give objects to their owner {written(role)}: it is no member"
                yield Finding("error", "role", "target", None, what, f"GRANT {side.name(role)} TO {side.role};")

    def left_behind(self) -> Iterator[Finding]:
        """What the target will not have because something beside the pipeline's tables is missing there."""
        for key in self._foreign_keys():
            if key["referencing_oid"] in self.names and key["referenced_oid"] not in self.names:
                table = self.written(key["referencing_oid"])
                far = written(key["referenced_schema"], key["referenced_name"])
                what = (
                    f"foreign key {written(key['name'])} is left out on the target: {far} is no table of this pipeline"
                )
                yield Finding("warning", "foreign_key", "pipeline", table, what, f"add {far} to tables.include")
        for child, parent, *_, ps, pn, _ in self.source.rows("inheritance", oids=list(self.names)):
            if child in self.names and parent not in self.names:
                what = f"inherits from {written(ps, pn)}, which is no table of this pipeline"
                fix = f"add {written(ps, pn)} to tables.include"
                yield Finding("error", "inheritance", "pipeline", self.written(child), what, fix)
        count = self.source.rows("large_objects")[0][0]
        if count:
            some = "at least 1000" if count == 1000 else str(count)
            what = f"the database holds {some} large objects, which belong to no table and are not moved"
            yield Finding("warning", "large_objects", "source", None, what)


_KINDS = {
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
