"""Statements for a command whose own text is of no use, from what its event recorded. Pure.

Tables and views come from two versions of their metadata, whatever was done to them; other objects from the CREATE
statement that the server prints; what was dropped from the list of what went. The rest cannot be rebuilt, and says so.

What versions hold but no statement here says (`rest`: storage, row security, triggers switched off …) is refused, so
that nothing is done by half. Known to be missing: what no version holds (see `create_table`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.alter_table import alter_table
from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, DroppedMeta, ObjectMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.compose import ident, raw, spell
from airflow_provider_pgddl.engine.ddl.constraints_and_indexes import index_statement
from airflow_provider_pgddl.engine.ddl.create_table import World, column, create_table, create_view, replica_identity
from airflow_provider_pgddl.engine.ddl.drop_statements import drops, taken_along
from airflow_provider_pgddl.engine.ddl.node_names import action_name
from airflow_provider_pgddl.engine.ddl.parse import Node, kind_of, parse, statement_node, unwrap
from airflow_provider_pgddl.engine.ddl.rebuild_gaps import refuse_changed, refuse_made
from airflow_provider_pgddl.engine.ddl.serial_and_identity import type_of_identity
from airflow_provider_pgddl.engine.errors import CannotRebuild
from airflow_provider_pgddl.engine.schema.definitions import sequence_of
from airflow_provider_pgddl.engine.schema.table_versions import name_of

__all__ = ["CannotRebuild", "rebuild"]

# Objects whose CREATE statement the server prints: it makes them as they are, nothing left to add.
_PRINTED = {"function", "procedure", "trigger", "rule", "policy", "statistics object", "type", "sequence"}


def rebuild(event: CapturedEvent, versions: Mapping[int, TableMeta]) -> tuple[str, ...]:
    """The statements that do again what this command did; `versions` are the tables before it, by oid.

    Raises CannotRebuild, whose `what` is the reason, where the metadata does not tell.
    """
    statements = tuple(statement.as_string(None) for statement in _Event(event, versions).statements())
    if not statements:
        raise CannotRebuild(f"nothing in the metadata of this {event['tag']} shows what it changed")
    return statements


def shown_by_metadata(statements: Iterable[str]) -> bool:
    """Whether a new table that is made from its metadata has what these would do to it."""
    return all(_is_shown(statement_node(parse(statement))) for statement in statements)


def _is_shown(node: Node) -> bool:
    if kind_of(node) == "AlterTableStmt":
        return all(action_name(unwrap(command)) in _SHOWN for command in node.cmds)
    return kind_of(node) == "IndexStmt"


_SHOWN = {"AT_AddColumn", "AT_AlterColumnType", "AT_ColumnDefault", "AT_SetNotNull", "AT_DropNotNull", "AT_AddIdentity",
          "AT_AddConstraint", "AT_AddIndex", "AT_SetRelOptions", "AT_ReplicaIdentity"}  # fmt: skip


class _Event:
    """One event beside the versions before it."""

    def __init__(self, event: CapturedEvent, versions: Mapping[int, TableMeta]) -> None:
        self._event = event
        self._before = versions
        self._after = {int(oid): meta for oid, meta in event["tables"].items()}
        self._made = {o["objid"]: o for o in event["objects"] if _is(o, "sequence") and o["tag"] == "CREATE SEQUENCE"}
        self._subjects: dict[int, ObjectMeta] = {}
        for o in event["objects"]:
            if (oid := self._subject(o)) is not None:
                self._subjects.setdefault(oid, o)  # CREATE TABLE's foreign keys are reported as ALTER TABLE behind it
        self._gone = {d["name"] for d in event["dropped"] if d["type"] in _NAMED_IN_REST and d["name"] is not None}
        self._world = World(
            before=versions,
            after=self._after,
            identities=self._identities(),
            rewritten=frozenset(r["oid"] for r in event["rewritten"]),
            dropped=frozenset(d["objid"] for d in event["dropped"] if d["classid"] == "pg_class" and not d["objsubid"]),
        )

    def statements(self) -> Iterator[sql.Composable]:
        tag = self._event["tag"]
        if tag == "DROP OWNED":
            raise CannotRebuild("DROP OWNED revokes rights as well, which its event does not show")
        along = {(d["classid"], d["objid"], d["objsubid"]) for d in taken_along(self._event)}
        dropped = [d for d in self._event["dropped"] if (d["classid"], d["objid"], d["objsubid"]) in along]
        if tag.startswith("DROP ") or (tag == "ALTER DOMAIN" and self._event["dropped"]):
            yield from drops(d for d in self._event["dropped"] if d["original"] or d in dropped)
            return
        if self._subjects:  # what went with them by CASCADE; their own parts are told by their versions
            yield from drops(d for d in dropped if not self._is_part(d))
        done: set[int] = set()
        for o in self._event["objects"]:
            oid = self._subject(o)
            if oid is None:
                yield from self._object(o)
            elif oid not in done:
                done.add(oid)
                yield from self._table(oid)
        yield from self._owned_sequences()

    def _subject(self, o: ObjectMeta) -> int | None:
        """The relation whose versions tell what was done."""
        if o["classid"] == "pg_class" and o["objid"] in self._after:
            return None if o["tag"].startswith("REFRESH") else o["objid"]
        if o["table"] in self._after and o["tag"].startswith("ALTER") and o["type"] in _PARTS:
            return o["table"]
        return None

    # --- relations ----------------------------------------------------------------------------------------------------

    def _table(self, oid: int) -> Iterator[sql.Composable]:
        before, after = self._before.get(oid), self._after[oid]
        if before is not None:
            refuse_changed(before, after, self._world, self._subjects, self._gone)
            yield from alter_table(before, after, self._world, self._subjects)
        elif not self._subjects[oid]["tag"].startswith(("CREATE", "SELECT")):
            raise CannotRebuild("its version before this command is not known", table=".".join(name_of(after)))
        elif after["kind"] == "f":
            raise CannotRebuild("a foreign table's server and options are not recorded", table=".".join(name_of(after)))
        else:
            refuse_made(after, self._world, self._event["settings"])
            yield from self._created(after)

    def _created(self, meta: TableMeta) -> Iterator[sql.Composable]:
        if meta["kind"] in ("v", "m"):
            yield create_view(meta)
        else:
            yield from create_table(meta, self._world)
        reported = {o["objid"] for o in self._event["objects"]}
        for index in meta["indexes"]:
            # a partition gets its parents' indexes by itself
            if meta["bound"] is None or index["oid"] in reported:
                yield raw(index_statement(index["definition"], meta, self._world))
        if meta["kind"] != "v" and (meta["replica_identity"] in ("f", "n") or meta["replica_index"]):
            yield spell("ALTER TABLE {} {}", ident(name_of(meta)), replica_identity(meta))

    def _is_part(self, d: DroppedMeta) -> bool:
        """Whether something that went was a part of a table that the versions tell about, or of its descendants."""
        told = {oid for s in self._subjects for oid in (s, *self._relatives(s))}
        metas = [m for oid in told for m in (self._before.get(oid), self._after.get(oid)) if m is not None]
        if d["type"] == "index":
            return d["objid"] in {index["oid"] for meta in metas for index in meta["indexes"]}
        return d["type"] in _PARTS and d["table"] in [list(name_of(meta)) for meta in metas]

    def _relatives(self, oid: int) -> set[int]:
        return {d for known in (self._before, self._after) if oid in known for d in known[oid]["descendants"]}

    # --- sequences ----------------------------------------------------------------------------------------------------

    def _columns_of(self, o: ObjectMeta) -> list[tuple[int, str]]:
        """(table, column) whose default draws from this sequence."""
        return [
            (oid, c["name"])
            for oid in self._subjects
            for c in self._after[oid]["columns"]
            if sequence_of(c["default"]) == o["identity"]
        ]

    def _identities(self) -> dict[tuple[int, str], str]:
        """Which of the sequences made here stand behind identity columns: those that no default draws from, by name."""
        left = {o["objid"]: o for o in self._made.values() if not self._columns_of(o)}
        found: dict[tuple[int, str], str] = {}
        for oid in self._subjects:
            meta = self._after[oid]
            old = {c["attnum"] for c in self._before[oid]["columns"] if c["identity"]} if oid in self._before else set()
            new = [c for c in meta["columns"] if c["identity"] and c["attnum"] not in old]
            mine = [o for o in left.values() if o["table"] in (oid, None)]
            for c in new:
                likely = [o for o in mine if (o["name"] or "").startswith(f"{meta['name']}_{c['name']}_seq")]
                chosen = (likely or (mine if len(new) == 1 else []))[:1]
                for o in chosen:
                    mine.remove(o)
                    if o["definition"] is not None:
                        found[oid, c["name"]] = o["definition"]
        return found

    def _behind_identity(self, o: ObjectMeta) -> bool:
        return o["definition"] is not None and o["definition"] in self._world.identities.values()

    def _owned_sequences(self) -> Iterator[sql.Composable]:
        altered = {o["objid"] for o in self._event["objects"] if o["tag"] == "ALTER SEQUENCE"}
        for o in self._made.values():
            if o["objid"] in altered or o["table"] in self._subjects:
                for oid, name in self._columns_of(o)[:1]:
                    owner = ident([*name_of(self._after[oid]), name])
                    yield spell("ALTER SEQUENCE {} OWNED BY {}", raw(o["identity"]), owner)
        for (oid, name), definition in self._world.identities.items():
            behind = column(self._after[oid], name)
            if behind is not None and (statement := type_of_identity(definition, behind["type"])) is not None:
                yield statement

    # --- everything else ----------------------------------------------------------------------------------------------

    def _object(self, o: ObjectMeta) -> Iterator[sql.Composable]:
        tag = o["tag"]
        if _is(o, "sequence") and (o["objid"] in self._made or o["table"] in self._subjects):
            if tag == "CREATE SEQUENCE" and not self._behind_identity(o):
                yield raw(self._printed(o))
        elif tag == "REFRESH MATERIALIZED VIEW":
            yield spell("REFRESH MATERIALIZED VIEW {}", raw(o["identity"]))
        elif not tag.startswith("CREATE"):
            raise CannotRebuild(f"{tag} cannot be told from the metadata of {o['identity'] or 'its objects'}")
        elif _is(o, "schema"):
            owner = o["owner"] if o["owner"] not in (None, self._event["role"]) else None
            yield spell("CREATE SCHEMA {}", raw(o["identity"])) + (
                spell(" AUTHORIZATION {}", ident([owner])) if owner else sql.SQL("")
            )
        elif _is(o, "index"):
            if o["table"] not in self._subjects:  # there it came with the table
                table = self._after.get(o["table"]) if o["table"] else None
                yield raw(index_statement(self._printed(o), table, self._world))
        elif o["type"] in _PRINTED:
            yield raw(self._printed(o))
        else:
            raise CannotRebuild(f"{tag} cannot be told from the metadata of {o['identity'] or 'its objects'}")

    def _printed(self, o: ObjectMeta) -> str:
        if o["definition"] is None:
            raise CannotRebuild(f"the server does not print the definition of {o['type']} {o['identity']}")
        return o["definition"].rstrip().removesuffix(";")


_NAMED_IN_REST = {"index", "trigger", "rule", "table constraint"}
_PARTS = {"index", "table column", "table constraint", "default value", "foreign table column", "view column"}


def _is(o: ObjectMeta, kind: str) -> bool:
    return o["type"] == kind
