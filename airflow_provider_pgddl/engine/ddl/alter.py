"""A table brought from one version to the next: ALTER statements in an order in which they can be run. Pure.

One statement a phase, with all its actions, so that several new types are one rewrite. What recursion to partitions
and children did is read from their versions: an action is said with ONLY where they did not take part in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.captured import ColumnMeta, ConstraintMeta, IndexMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.drops import CannotRebuild
from airflow_provider_pgddl.engine.ddl.parse import Node, deparse, parse, statement_node
from airflow_provider_pgddl.engine.ddl.spelling import ident, joined, raw, raw_statement, spell
from airflow_provider_pgddl.engine.ddl.tables import (
    World,
    column,
    column_clause,
    constraint_clause,
    create_view,
    default_action,
    default_of_old_rows,
    identity_clause,
    options,
    replica_identity,
    type_of,
)
from airflow_provider_pgddl.engine.schema.definitions import constraint_columns, flags, index_columns, index_options
from airflow_provider_pgddl.engine.schema.versions import ColumnDiff, TableDiff, diff, name_of

Statements = Iterator[sql.Composed]

_KEYS = ("p", "u", "x")


_KEYWORDS = {"v": sql.SQL("VIEW"), "m": sql.SQL("MATERIALIZED VIEW"), "f": sql.SQL("FOREIGN TABLE")}


def alter_table(before: TableMeta, after: TableMeta, world: World, subjects: Collection[int] = ()) -> Statements:
    """`subjects`: oids of the tables that the command reports itself; the others among the descendants only took part
    in what was done here."""
    change = diff(before, after)
    if change.kind or change.partition_key:
        raise CannotRebuild("a table became another kind of relation", table=".".join(name_of(after)))
    kind, name = _KEYWORDS.get(after["kind"], sql.SQL("TABLE")), ident(name_of(after))
    alter = _Alter(kind, name)
    yield from _names(change, before, after, kind)
    yield from _leave_parents(before, after, world, subjects)
    yield from _drops(change, before, after, alter, world)
    if change.persistence:
        yield alter(sql.SQL("SET UNLOGGED" if after["persistence"] == "u" else "SET LOGGED"))
    yield from _renames(change, after, alter)
    yield from _types(change, alter)
    yield from _additions(change, after, alter, world, subjects)
    if change.definition and after["kind"] == "v" and (change.columns_added or not change.columns_renamed):
        yield create_view(after, replace=True)
    yield from _settings(change, after, alter)
    yield from _join_parents(before, after, world, subjects)


class _Alter:
    """ALTER TABLE of one table, with and without ONLY."""

    def __init__(self, kind: sql.SQL, name: sql.Identifier) -> None:
        self._kind, self._name = kind, name

    def __call__(self, *actions: sql.Composable, only: bool = False) -> sql.Composed:
        table = spell("ONLY {}", self._name) if only else self._name
        return spell("ALTER {} {} {}", self._kind, table, joined(actions))

    def each(self, actions: Iterable[tuple[sql.Composable, bool]]) -> Statements:
        """Actions, each with whether it is for the table ONLY, as at most two statements."""
        listed = list(actions)
        for only in (False, True):
            if chosen := [action for action, alone in listed if alone is only]:
                yield self(*chosen, only=only)


def _names(change: TableDiff, before: TableMeta, after: TableMeta, kind: sql.SQL) -> Statements:
    if change.moved:
        yield spell("ALTER {} {} SET SCHEMA {}", kind, ident(name_of(before)), ident([after["schema"]]))
    if change.renamed:
        old = ident([after["schema"], before["name"]])
        yield spell("ALTER {} {} RENAME TO {}", kind, old, ident([after["name"]]))


# --- parents ----------------------------------------------------------------------------------------------------------


def _leave_parents(before: TableMeta, after: TableMeta, world: World, subjects: Collection[int]) -> Statements:
    name = ident(name_of(after))
    for parent in _less(before["parents"], after["parents"]) if _parents_are_its_own(before, after) else ():
        if before["bound"] is not None:
            yield spell("ALTER TABLE {} DETACH PARTITION {}", ident(parent), name)
        else:
            yield spell("ALTER TABLE {} NO INHERIT {}", name, ident(parent))
    # one that the command reports itself is looked after there
    elsewhere = {*after["descendants"], *subjects, *world.dropped}
    for part in (world.before[oid] for oid in before["descendants"] if oid in world.before and oid not in elsewhere):
        if part["bound"] is not None and list(name_of(before)) in part["parents"]:  # deeper ones left with theirs
            yield spell("ALTER TABLE {} DETACH PARTITION {}", name, ident(name_of(part)))


def _join_parents(before: TableMeta, after: TableMeta, world: World, subjects: Collection[int]) -> Statements:
    name = ident(name_of(after))
    for parent in _less(after["parents"], before["parents"]) if _parents_are_its_own(before, after) else ():
        if after["bound"] is not None:
            yield spell("ALTER TABLE {} ATTACH PARTITION {} {}", ident(parent), name, raw(after["bound"]))
        else:
            yield spell("ALTER TABLE {} INHERIT {}", name, ident(parent))
    for _, part in world.descendants(after):
        new = part["oid"] not in before["descendants"] and part["oid"] not in subjects
        if new and part["bound"] is not None and list(name_of(after)) in part["parents"]:
            yield spell("ALTER TABLE {} ATTACH PARTITION {} {}", name, ident(name_of(part)), raw(part["bound"]))


def _parents_are_its_own(before: TableMeta, after: TableMeta) -> bool:
    """Not where the parents are the same ones under other names: there are as many, and the bound is what it was."""
    return len(before["parents"]) != len(after["parents"]) or before["bound"] != after["bound"]


def _less(these: Sequence[list[str]], those: Sequence[list[str]]) -> list[list[str]]:
    return [parent for parent in these if parent not in those]


# --- what goes --------------------------------------------------------------------------------------------------------


def _drops(change: TableDiff, before: TableMeta, after: TableMeta, alter: _Alter, world: World) -> Statements:
    if after["kind"] in ("v", "m"):
        yield from (_drop_index(after, i) for i in change.indexes_dropped)
        return
    kept_as_keys = {i["oid"] for i in _became_keys(change).values()}
    anew = [i.before for i in change.indexes if "definition" in i.changed]
    yield from alter.each(
        (spell("DROP CONSTRAINT {}", ident([c["name"]])), _stays(c, world, after))
        for c in [*change.constraints_dropped, *(c.before for c in change.constraints if "definition" in c.changed)]
        if c["local"] or before["parents"] != after["parents"]
    )
    yield from (_drop_index(after, i) for i in [*change.indexes_dropped, *anew] if i["oid"] not in kept_as_keys)
    yield from alter.each(
        [
            *((action, False) for c in change.columns for action in _lets_go(c)),
            *(
                (spell("DROP COLUMN {}", ident([c["name"]])), _column_stays(c, after, world))
                for c in change.columns_dropped
                if c["local"] or before["parents"] != after["parents"]
            ),
        ]
    )


def _drop_index(table: TableMeta, index: IndexMeta) -> sql.Composed:
    return spell("DROP INDEX {}", ident([table["schema"], index["name"]]))


def _stays(constraint: ConstraintMeta, world: World, after: TableMeta) -> bool:
    """Whether the children kept what they had inherited."""
    for was, is_ in world.descendants(after):
        here = {c["name"]: c for c in (was["constraints"] if was else ())}
        inherited = constraint["name"] in here and not here[constraint["name"]]["local"]
        if inherited and any(c["name"] == constraint["name"] for c in is_["constraints"]):
            return True
    return False


def _column_stays(dropped: ColumnMeta, after: TableMeta, world: World) -> bool:
    for was, is_ in world.descendants(after):
        here = column(was, dropped["name"]) if was else None
        if here and not here["local"] and any(c["attnum"] == here["attnum"] for c in is_["columns"]):
            return True
    return False


def _lets_go(c: ColumnDiff) -> Statements:
    """Under the column's old name: what has to go before its type or its default can change."""
    name = ident([c.before["name"]])
    if c.before["identity"] and not c.after["identity"]:
        yield spell("ALTER COLUMN {} DROP IDENTITY", name)
    if c.before["generated"] and not c.after["generated"]:
        yield spell("ALTER COLUMN {} DROP EXPRESSION", name)
    elif c.before["default"] is not None and not c.before["generated"] and (c.after["identity"] or _in_the_way(c)):
        yield spell("ALTER COLUMN {} DROP DEFAULT", name)


def _in_the_way(c: ColumnDiff) -> bool:
    """A default that may not turn into the new type by itself."""
    return c.retyped and "default" in c.changed


# --- what is called otherwise -----------------------------------------------------------------------------------------


def _renames(change: TableDiff, after: TableMeta, alter: _Alter) -> Statements:
    columns = {c.before["name"]: c.after["name"] for c in change.columns if "name" in c.changed and c.before["local"]}
    for old, new in _one_by_one(columns):
        yield alter(spell("RENAME COLUMN {} TO {}", ident([old]), ident([new])))
    constraints = {
        c.before["name"]: c.after["name"]
        for c in change.constraints
        if "name" in c.changed and (c.before["local"] or c.before["type"] in _KEYS)
    }
    for old, new in _one_by_one(constraints):
        yield alter(spell("RENAME CONSTRAINT {} TO {}", ident([old]), ident([new])))
    indexes = {i.before["name"]: i.after["name"] for i in change.indexes if "name" in i.changed}
    for old, new in _one_by_one(indexes):
        yield spell("ALTER INDEX {} RENAME TO {}", ident([after["schema"], old]), ident([new]))


def _one_by_one(names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Renames in an order in which no new name is still another's old one; two that change places go by a third."""
    left = dict(names)
    while left:
        free = [old for old, new in left.items() if new not in left]
        if not free:
            old, new = next(iter(left.items()))
            free, aside = [], f"pgddl_aside_{len(left)}"
            yield old, aside
            del left[old]
            left[aside] = new
        for old in free:
            yield old, left.pop(old)


# --- types ------------------------------------------------------------------------------------------------------------


def _types(change: TableDiff, alter: _Alter) -> Statements:
    if actions := [_type_action(c) for c in change.columns_retyped if c.after["local"]]:
        yield alter(*actions)


def _type_action(c: ColumnDiff) -> sql.Composed:
    name = ident([c.after["name"]])
    action = spell("ALTER COLUMN {} TYPE {}", name, type_of(c.after))
    if c.after["generated"]:
        return action  # it is computed anew
    old, new = family(c.before["type"]), family(c.after["type"])
    # Where no cast is sure to be there, by way of text, which every type can be read from.
    via = "" if old == new or "text" in (old, new) else "::pg_catalog.text"
    return action + spell(" USING {}{}::{}", name, raw(via), raw(c.after["type"]))


_FAMILIES = {
    "number": ("smallint", "integer", "bigint", "numeric", "real", "double precision"),
    "time": ("date", "timestamp without time zone", "timestamp with time zone"),
    "text": ("text", "character varying", "character", "name"),
}


def family(type_: str) -> str:
    """Types that can be cast to one another, text to and from all; any other is a family of its own."""
    bare = _TYPMOD.sub("", type_)
    return next((name for name, types in _FAMILIES.items() if bare in types), bare)


_TYPMOD = re.compile(r"\(\d+(,-?\d+)?\)")


# --- what comes -------------------------------------------------------------------------------------------------------


def _additions(
    change: TableDiff, after: TableMeta, alter: _Alter, world: World, subjects: Collection[int]
) -> Statements:
    if after["kind"] == "v":
        yield from alter.each((default_action(c), False) for c in _defaults(change))
        return
    added: list[sql.Composable] = []
    afterwards: list[sql.Composable] = []
    for c in change.columns_added:
        if c["local"]:
            default, own_later = default_of_old_rows(after, c, world)
            added.append(spell("ADD COLUMN {}", column_clause(c, default, _sequence(after, c, world))))
            afterwards += [default_action(c)] if own_later else []
    if added:
        yield alter(*added)
    if afterwards:
        yield alter(*afterwards)
    yield from alter.each(_column_actions(change, after, world))
    for was, part in world.descendants(after):
        if was is not None and part["oid"] not in subjects:
            yield from _own_ways(was, part, after, change, world)
    keys = _became_keys(change)
    yield from alter.each(
        (_add_constraint(c, keys.get(c["oid"])), _alone(c, after, world))
        for c in [*change.constraints_added, *(c.after for c in change.constraints if "definition" in c.changed)]
        if c["local"]
    )
    yield from _changed_constraints(change, alter)
    yield from _indexes(change, after, world)


def _sequence(after: TableMeta, c: ColumnMeta, world: World) -> str | None:
    return world.identities.get((after["oid"], c["name"]))


def _defaults(change: TableDiff) -> list[ColumnMeta]:
    """Columns that need SET or DROP DEFAULT."""
    found = []
    for c in change.columns:
        plain = not (c.after["generated"] or c.after["identity"] or c.before["identity"] or c.before["generated"])
        gone = c.after["default"] is None and _in_the_way(c)  # done before the type
        if "default" in c.changed and plain and not gone:
            found.append(c.after)
        elif (c.before["identity"] or c.before["generated"]) and not (c.after["identity"] or c.after["generated"]):
            found += [c.after] if c.after["default"] is not None else []
    return found


def _column_actions(change: TableDiff, after: TableMeta, world: World) -> Iterator[tuple[sql.Composable, bool]]:
    for c in _defaults(change):
        yield default_action(c), not _followed(after, c["name"], "default", world)
    for d in change.columns:
        c, name = d.after, ident([d.after["name"]])
        if c["generated"] and d.before["generated"] and "default" in d.changed:
            yield spell("ALTER COLUMN {} SET EXPRESSION AS ({})", name, raw(c["default"] or "")), False
        if "not_null" in d.changed:
            word = sql.SQL("SET" if c["not_null"] else "DROP")
            yield spell("ALTER COLUMN {} {} NOT NULL", name, word), not _followed(after, c["name"], "not_null", world)
        if c["identity"] and not d.before["identity"]:
            yield spell("ALTER COLUMN {} ADD {}", name, identity_clause(c, _sequence(after, c, world))), False
        elif c["identity"] and "identity" in d.changed:
            always = sql.SQL("ALWAYS" if c["identity"] == "a" else "BY DEFAULT")
            yield spell("ALTER COLUMN {} SET GENERATED {}", name, always), False


def _followed(after: TableMeta, name: str, what: str, world: World) -> bool:
    """Whether all descendants ended as the table did: then they were told by it."""
    own = column(after, name)
    theirs = [column(part, name) for _, part in world.descendants(after)]
    return all(c is None or own is None or c[what] == own[what] for c in theirs)  # type: ignore[literal-required]


def _own_ways(was: TableMeta, part: TableMeta, root: TableMeta, change: TableDiff, world: World) -> Statements:
    """A descendant's defaults and NOT NULLs that changed while the root spoke for itself ONLY."""
    told = {
        what: {c.after["name"] for c in change.having(what) if _followed(root, c.after["name"], what, world)}
        for what in ("default", "not_null")
    }
    own = diff(was, part)
    actions: list[sql.Composable] = [default_action(c) for c in _defaults(own) if c["name"] not in told["default"]]
    for d in own.having("not_null"):
        if d.after["name"] not in told["not_null"]:
            word = sql.SQL("SET" if d.after["not_null"] else "DROP")
            actions.append(spell("ALTER COLUMN {} {} NOT NULL", ident([d.after["name"]]), word))
    if actions:
        yield _Alter(sql.SQL("TABLE"), ident(name_of(part)))(*actions, only=True)


def _became_keys(change: TableDiff) -> dict[int, IndexMeta]:
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


def _add_constraint(c: ConstraintMeta, index: IndexMeta | None) -> sql.Composed:
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


def _alone(c: ConstraintMeta, after: TableMeta, world: World) -> bool:
    """Whether a key was added to a partitioned table ONLY, its partitions' keys being left for later."""
    parts = [part for was, part in world.descendants(after) if was is not None]
    if c["type"] not in _KEYS or after["kind"] != "p" or not parts:
        return False
    return not any(p["type"] == c["type"] and not p["local"] for part in parts for p in part["constraints"])


def _changed_constraints(change: TableDiff, alter: _Alter) -> Statements:
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


def _indexes(change: TableDiff, after: TableMeta, world: World) -> Statements:
    for index in [*change.indexes_added, *(i.after for i in change.indexes if "definition" in i.changed)]:
        yield raw_statement(index_statement(index["definition"], after, world))
    for changed in change.indexes:
        if "options" in changed.changed:
            was, is_ = (index_options(i["definition"]) for i in (changed.before, changed.after))
            name = ident([after["schema"], changed.after["name"]])
            if new := {k: v for k, v in is_.items() if was.get(k) != v}:
                yield spell("ALTER INDEX {} SET {}", name, options(f"{k}={v}" for k, v in new.items()))
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


# --- the table itself -------------------------------------------------------------------------------------------------


def _settings(change: TableDiff, after: TableMeta, alter: _Alter) -> Statements:
    made_anew = {x.after["name"] for x in (*change.constraints, *change.indexes) if "definition" in x.changed}
    if change.replica_identity or after["replica_index"] in made_anew:
        if (
            after["replica_identity"] != "i" or after["replica_index"]
        ):  # an index that was dropped leaves it without one
            yield alter(replica_identity(after))
    if change.options:
        was, is_ = (dict(o.split("=", 1) for o in side) for side in (change.options.before, change.options.after))
        if lost := [ident([k]) for k in was if k not in is_]:
            yield alter(spell("RESET ({})", joined(lost)))
        if any(was.get(k) != v for k, v in is_.items()):
            yield alter(spell("SET {}", options(change.options.after)))  # all, which leaves them in this order
    if change.owner:
        yield alter(spell("OWNER TO {}", ident([change.owner.after])))
