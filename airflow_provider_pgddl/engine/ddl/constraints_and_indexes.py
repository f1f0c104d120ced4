"""Constraints and indexes of a table that is there: made, changed, taken away. Pure."""

from __future__ import annotations

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.captured_events import ConstraintMeta, IndexMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.compose import AlterTable, Statements, ident, joined, raw, raw_statement, spell
from airflow_provider_pgddl.engine.ddl.create_table import World, constraint_clause, reloptions
from airflow_provider_pgddl.engine.ddl.parse import Node, deparse, parse, statement_node
from airflow_provider_pgddl.engine.schema.definitions import constraint_columns, flags, index_columns, index_options
from airflow_provider_pgddl.engine.schema.table_versions import TableDiff

KEYS = ("p", "u", "x")
"""pg_constraint.contype of those with an index."""


def drop_index(table: TableMeta, index: IndexMeta) -> sql.Composed:
    return spell("DROP INDEX {}", ident([table["schema"], index["name"]]))


def became_keys(change: TableDiff) -> dict[int, IndexMeta]:
    """Constraint → the index that it took over (ADD CONSTRAINT … USING INDEX): gone as an index, with its columns."""
    found: dict[int, IndexMeta] = {}
    for c in change.constraints_added:
        if c["type"] in ("p", "u") and c["local"]:
            for index in change.indexes_dropped:
                columns = index_columns(index["definition"])
                if columns and index not in found.values():
                    columns = [change.columns_renamed.get(name, name) for name in columns]
                    if columns == constraint_columns(c["definition"]) and "INCLUDE" not in index["definition"]:
                        found[c["oid"]] = index
                        break
    return found


def add_constraint(c: ConstraintMeta, index: IndexMeta | None) -> sql.Composed:
    if index is None:
        return spell("ADD {}", constraint_clause(c))
    kind = sql.SQL("PRIMARY KEY" if c["type"] == "p" else "UNIQUE")
    action = spell("ADD CONSTRAINT {} {} USING INDEX {}", ident([c["name"]]), kind, ident([index["name"]]))
    said = flags(c["definition"])
    if said.deferrable:
        action += sql.SQL(" DEFERRABLE")
    if said.deferred:
        action += sql.SQL(" INITIALLY DEFERRED")
    return action


def added_only(c: ConstraintMeta, after: TableMeta, world: World) -> bool:
    """Whether a key was added to a partitioned table ONLY, its partitions' keys being left for later."""
    parts = [part for was, part in world.descendants(after) if was is not None]
    if c["type"] not in KEYS or after["kind"] != "p" or not parts:
        return False
    return not any(p["type"] == c["type"] and not p["local"] for part in parts for p in part["constraints"])


def changed_constraints(change: TableDiff, alter: AlterTable) -> Statements:
    for c in change.constraints:
        name = ident([c.after["name"]])
        if "definition" in c.changed or not c.after["local"]:
            continue
        if "flags" in c.changed:
            was, said = flags(c.before["definition"]), flags(c.after["definition"])
            words = []
            if (was.deferrable, was.deferred) != (said.deferrable, said.deferred):
                words.append("DEFERRABLE" if said.deferrable else "NOT DEFERRABLE")
                words.append("INITIALLY DEFERRED" if said.deferred else "INITIALLY IMMEDIATE")
            if was.enforced != said.enforced:
                words.append("ENFORCED" if said.enforced else "NOT ENFORCED")
            if was.no_inherit != said.no_inherit:
                words.append("NO INHERIT" if said.no_inherit else "INHERIT")
            yield alter(spell("ALTER CONSTRAINT {} {}", name, raw(" ".join(words))))
        if c.after["validated"] and "validated" in c.changed and "flags" not in c.changed:
            yield alter(spell("VALIDATE CONSTRAINT {}", name))


def make_indexes(change: TableDiff, after: TableMeta, world: World) -> Statements:
    for index in [*change.indexes_added, *(i.after for i in change.indexes if "definition" in i.changed)]:
        yield raw_statement(index_statement(index["definition"], after, world))
    for changed in change.indexes:
        if "options" in changed.changed:
            was, is_ = (index_options(i["definition"]) for i in (changed.before, changed.after))
            name = ident([after["schema"], changed.after["name"]])
            if new := {k: v for k, v in is_.items() if was.get(k) != v}:
                yield spell("ALTER INDEX {} SET {}", name, reloptions(f"{k}={v}" for k, v in new.items()))
            if lost := [ident([k]) for k in was if k not in is_]:
                yield spell("ALTER INDEX {} RESET ({})", name, joined(lost))


def index_statement(definition: str, table: TableMeta | None, world: World) -> str:
    """pg_get_indexdef of a partitioned table's index always says ONLY, which would leave it invalid. Said only where
    the partitions got no index of theirs."""
    if table is None or table["kind"] != "p":
        return definition
    parts = [(was, part) for was, part in world.descendants(table) if was is not None]
    fewer = any(len(part["indexes"]) <= len(was["indexes"]) for was, part in parts)
    tree = parse(definition)
    node: Node = statement_node(tree)
    node.relation.inh = not (parts and fewer)
    return deparse(tree)
