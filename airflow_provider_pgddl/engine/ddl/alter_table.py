"""A table brought from one version to the next: ALTER statements in an order in which they can be run. Pure.

One statement a phase, with all its actions, so that several new types are one rewrite. What recursion to partitions
and children did is read from their versions: an action is said with ONLY where they did not take part in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.captured_events import ColumnMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.compose import AlterTable, Statements, ident, joined, raw, spell
from airflow_provider_pgddl.engine.ddl.constraints_and_indexes import (
    KEYS,
    add_constraint,
    added_only,
    became_keys,
    changed_constraints,
    drop_index,
    make_indexes,
)
from airflow_provider_pgddl.engine.ddl.create_table import (
    World,
    apart,
    column_clause,
    create_view,
    default_action,
    default_of_old_rows,
    identity_clause,
    reloptions,
    replica_identity,
    type_of,
)
from airflow_provider_pgddl.engine.ddl.inheritance import (
    column_stays,
    constraint_stays,
    descendants_followed,
    join_parents,
    leave_parents,
)
from airflow_provider_pgddl.engine.errors import CannotRebuild
from airflow_provider_pgddl.engine.schema.table_versions import ColumnDiff, TableDiff, name_of, table_diff

_KEYWORDS = {"v": sql.SQL("VIEW"), "m": sql.SQL("MATERIALIZED VIEW"), "f": sql.SQL("FOREIGN TABLE")}


def alter_table(before: TableMeta, after: TableMeta, world: World, subjects: Collection[int] = ()) -> Statements:
    """`subjects`: oids of the tables that the command reports itself; the others among the descendants only took part
    in what was done here."""
    change = table_diff(before, after)
    if change.kind or change.partition_key:
        raise CannotRebuild("a table became another kind of relation", table=".".join(name_of(after)))
    kind, name = _KEYWORDS.get(after["kind"], sql.SQL("TABLE")), ident(name_of(after))
    alter = AlterTable(kind, name)
    yield from _names(change, before, after, kind)
    yield from leave_parents(before, after, world, subjects)
    yield from _drops(change, before, after, alter, world, subjects)
    if change.persistence:
        yield alter(sql.SQL("SET UNLOGGED" if after["persistence"] == "u" else "SET LOGGED"))
    yield from _renames(change, after, alter)
    yield from _types(change, alter)
    yield from _additions(change, after, alter, world, subjects)
    if change.definition and after["kind"] == "v" and (change.columns_added or not change.columns_renamed):
        yield create_view(after, replace=True)
    yield from _settings(change, after, alter)
    yield from join_parents(before, after, world, subjects)


def _names(change: TableDiff, before: TableMeta, after: TableMeta, kind: sql.SQL) -> Statements:
    if change.moved:
        yield spell("ALTER {} {} SET SCHEMA {}", kind, ident(name_of(before)), ident([after["schema"]]))
    if change.renamed:
        old = ident([after["schema"], before["name"]])
        yield spell("ALTER {} {} RENAME TO {}", kind, old, ident([after["name"]]))


# --- what goes --------------------------------------------------------------------------------------------------------


def _drops(
    change: TableDiff,
    before: TableMeta,
    after: TableMeta,
    alter: AlterTable,
    world: World,
    subjects: Collection[int],
) -> Statements:
    if after["kind"] in ("v", "m"):
        yield from (drop_index(after, i) for i in change.indexes_dropped)
        return
    kept_as_keys = {i["oid"] for i in became_keys(change).values()}
    anew = [i.before for i in change.indexes if "definition" in i.changed]
    yield from alter.each(
        (spell("DROP CONSTRAINT {}", ident([c["name"]])), constraint_stays(c, world, after))
        for c in [*change.constraints_dropped, *(c.before for c in change.constraints if "definition" in c.changed)]
        if c["local"] or before["parents"] != after["parents"]
    )
    yield from (drop_index(after, i) for i in [*change.indexes_dropped, *anew] if i["oid"] not in kept_as_keys)
    for was, part in world.descendants(after):
        # a parent's new type is theirs as well, and their defaults may be in its way
        if was is not None and part["oid"] not in subjects:
            own = [c for c in table_diff(was, part).columns if c.before["default"] is not None and _in_the_way(c)]
            if dropped := [spell("ALTER COLUMN {} DROP DEFAULT", ident([c.before["name"]])) for c in own]:
                yield AlterTable(sql.SQL("TABLE"), ident(name_of(was)))(*dropped, only=True)
    yield from alter.each(
        [
            *(action for c in change.columns for action in _lets_go(c, after, world)),
            *(
                (spell("DROP COLUMN {}", ident([c["name"]])), column_stays(c, after, world))
                for c in change.columns_dropped
                if c["local"] or before["parents"] != after["parents"]
            ),
        ]
    )


def _lets_go(c: ColumnDiff, after: TableMeta, world: World) -> Iterator[tuple[sql.Composable, bool]]:
    """Under the column's old name: what has to go before its type or its default can change."""
    name = ident([c.before["name"]])
    if c.before["identity"] and not c.after["identity"]:
        yield spell("ALTER COLUMN {} DROP IDENTITY", name), False
    if c.before["generated"] and not c.after["generated"]:
        yield spell("ALTER COLUMN {} DROP EXPRESSION", name), False
    elif c.before["default"] is not None and not c.before["generated"] and (c.after["identity"] or _in_the_way(c)):
        yield (
            spell("ALTER COLUMN {} DROP DEFAULT", name),
            not descendants_followed(after, c.after["name"], "default", world),
        )


def _in_the_way(c: ColumnDiff) -> bool:
    """A default that may not turn into the new type by itself."""
    return c.retyped and "default" in c.changed


# --- what is called otherwise -----------------------------------------------------------------------------------------


def _renames(change: TableDiff, after: TableMeta, alter: AlterTable) -> Statements:
    columns = {c.before["name"]: c.after["name"] for c in change.columns if "name" in c.changed and c.before["local"]}
    for old, new in _one_by_one(columns):
        yield alter(spell("RENAME COLUMN {} TO {}", ident([old]), ident([new])))
    constraints = {
        c.before["name"]: c.after["name"]
        for c in change.constraints
        if "name" in c.changed and (c.before["local"] or c.before["type"] in KEYS)
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


def _types(change: TableDiff, alter: AlterTable) -> Statements:
    if actions := [_type_action(c) for c in change.columns_retyped if c.after["local"]]:
        yield alter(*actions)


def _type_action(c: ColumnDiff) -> sql.Composed:
    name = ident([c.after["name"]])
    action = spell("ALTER COLUMN {} TYPE {}", name, type_of(c.after))
    if c.after["generated"]:
        return action  # it is computed anew
    old, new = _family_of(c.before["type"]), _family_of(c.after["type"])
    # Where no cast is sure to be there, by way of text, which every type can be read from.
    via = "" if old == new or "text" in (old, new) else "::pg_catalog.text"
    return action + spell(" USING {}{}::{}", name, raw(via), raw(c.after["type"]))


_FAMILIES = {
    "number": ("smallint", "integer", "bigint", "numeric", "real", "double precision"),
    "time": ("date", "timestamp without time zone", "timestamp with time zone"),
    "text": ("text", "character varying", "character", "name"),
}


def _family_of(type_: str) -> str:
    """Types that can be cast to one another, text to and from all; any other is a family of its own."""
    bare = _TYPMOD.sub("", type_)
    return next((name for name, types in _FAMILIES.items() if bare in types), bare)


_TYPMOD = re.compile(r"\(\d+(,-?\d+)?\)")


# --- what comes -------------------------------------------------------------------------------------------------------


def _additions(
    change: TableDiff, after: TableMeta, alter: AlterTable, world: World, subjects: Collection[int]
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
    keys = became_keys(change)
    new = [*change.constraints_added, *(c.after for c in change.constraints if "definition" in c.changed)]
    for some in apart(c for c in new if c["local"]):
        yield from alter.each((add_constraint(c, keys.get(c["oid"])), added_only(c, after, world)) for c in some)
    yield from changed_constraints(change, alter)
    yield from make_indexes(change, after, world)


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
        yield default_action(c), not descendants_followed(after, c["name"], "default", world)
    for d in change.columns:
        c, name = d.after, ident([d.after["name"]])
        if c["generated"] and d.before["generated"] and "default" in d.changed:
            yield spell("ALTER COLUMN {} SET EXPRESSION AS ({})", name, raw(c["default"] or "")), False
        if "not_null" in d.changed:
            word = sql.SQL("SET" if c["not_null"] else "DROP")
            yield (
                spell("ALTER COLUMN {} {} NOT NULL", name, word),
                not descendants_followed(after, c["name"], "not_null", world),
            )
        if c["identity"] and not d.before["identity"]:
            yield spell("ALTER COLUMN {} ADD {}", name, identity_clause(c, _sequence(after, c, world))), False
        elif c["identity"] and "identity" in d.changed:
            always = sql.SQL("ALWAYS" if c["identity"] == "a" else "BY DEFAULT")
            yield spell("ALTER COLUMN {} SET GENERATED {}", name, always), False


def _own_ways(was: TableMeta, part: TableMeta, root: TableMeta, change: TableDiff, world: World) -> Statements:
    """A descendant's defaults and NOT NULLs that changed while the root spoke for itself ONLY."""
    told = {
        what: {c.after["name"] for c in change.having(what) if descendants_followed(root, c.after["name"], what, world)}
        for what in ("default", "not_null")
    }
    own = table_diff(was, part)
    actions: list[sql.Composable] = [default_action(c) for c in _defaults(own) if c["name"] not in told["default"]]
    for d in own.having("not_null"):
        if d.after["name"] not in told["not_null"]:
            word = sql.SQL("SET" if d.after["not_null"] else "DROP")
            actions.append(spell("ALTER COLUMN {} {} NOT NULL", ident([d.after["name"]]), word))
    if actions:
        yield AlterTable(sql.SQL("TABLE"), ident(name_of(part)))(*actions, only=True)


# --- the table itself -------------------------------------------------------------------------------------------------


def _settings(change: TableDiff, after: TableMeta, alter: AlterTable) -> Statements:
    anew = {c.after["name"] for c in change.constraints if "definition" in c.changed}
    anew |= {i.after["name"] for i in change.indexes if "definition" in i.changed}
    # an index that was dropped leaves it without one, which nothing can be said for
    says_one = after["replica_identity"] != "i" or after["replica_index"] is not None
    if says_one and (change.replica_identity or after["replica_index"] in anew):
        yield alter(replica_identity(after))
    if change.options:
        was, is_ = (dict(o.split("=", 1) for o in side) for side in (change.options.before, change.options.after))
        if lost := [ident([k]) for k in was if k not in is_]:
            yield alter(spell("RESET ({})", joined(lost)))
        if any(was.get(k) != v for k, v in is_.items()):
            yield alter(spell("SET {}", reloptions(change.options.after)))  # all, which leaves them in this order
    if change.owner:
        yield alter(spell("OWNER TO {}", ident([change.owner.after])))
